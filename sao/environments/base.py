"""What an environment offers to engine, warm-up and evaluation: instances, episodes, demonstrations.

Tokens are ids in, ids out: an episode hands out its prompt as ids, takes the ids that the policy sampled
and answers with ids, so nothing is ever tokenised twice.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

Split = Literal["train", "held_out"]
Status = Literal["completed", "truncated"]
PADDING_ID = 0
FRUITLESS_DRAWS = 5000  # draws in a row without a new instance, after which a pool counts as exhausted


class EnvironmentFailure(Exception):
    """The environment broke, which says nothing about the policy: the status becomes `environment_error`."""


class EnvironmentUnusable(RuntimeError):
    """The environment cannot be used, whatever the policy: the run stops; the message says what to mend."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One problem of an environment.

    `prompt_id` is a hash of everything that defines the problem; `label` is its difficulty band or topic;
    `payload` belongs to the environment that made the instance.
    """

    prompt_id: str
    label: str | None
    payload: tuple[Any, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The answer to one action.

    `observation_ids` is empty once the episode is `done`. `reward` is the outcome, and 0 before the end.
    `status` is "truncated" when a budget ended the episode, otherwise "completed".
    """

    observation_ids: list[int]
    done: bool
    reward: float
    status: Status = "completed"


class Episode(Protocol):
    """One attempt at an instance."""

    prompt_ids: list[int]

    def action_complete(self, action_ids: Sequence[int]) -> bool:
        """Tell whether the tokens sampled since the last observation are a whole action."""

    def step(self, action_ids: Sequence[int]) -> StepResult:
        """Act. Raises EnvironmentFailure when the environment broke, RuntimeError after the episode's end."""

    def details(self) -> dict[str, str | int]:
        """Return what an evaluation line records beside the reward."""


class Environment(Protocol):
    """A task that a policy acts in."""

    vocabulary: tuple[str, ...]
    """Text of each token id; id 0 is padding and no episode contains it."""
    max_episode_tokens: int
    """Longest possible episode: prompt, actions and observations."""
    tokenizer: Any
    """What turns text into ids (a transformers tokenizer), None where the task has no text."""

    def instances(self, split: Split) -> list[Instance]:
        """Return the pool of a split, always the same instances in the same order; the splits share none."""

    def start(self, instance: Instance, progress: float) -> Episode:
        """Start an episode at `progress`, the share of training done, in [0, 1]."""

    def demonstration(self, rng: np.random.Generator) -> tuple[list[int], list[bool], float]:
        """Play one episode of the noisy demonstrator on an instance that is never held out.

        Returns the token ids, a mask that is true on action tokens, and the reward.
        """


def content_hash(content: tuple[Any, ...]) -> str:
    """Return the first 16 hex digits of the SHA-256 of nested tuples of ints and strings."""
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]


def split_of(instance: Instance) -> Split:
    """Return the split an instance belongs to, by its hash alone: a third of all instances is held out."""
    return "held_out" if int(instance.prompt_id, 16) % 3 == 0 else "train"


def draw_pools(
    draw: Callable[[], Instance], pool_instances: int, held_out_instances: int
) -> dict[Split, list[Instance]]:
    """Draw instances, each kept once and in its own split, until both pools are full.

    Raises ValueError when the task has too few distinct instances.
    """
    wanted: dict[Split, int] = {"train": pool_instances, "held_out": held_out_instances}
    pools: dict[Split, dict[str, Instance]] = {"train": {}, "held_out": {}}
    fruitless = 0
    while fruitless < FRUITLESS_DRAWS:
        if all(len(pools[split]) == count for split, count in wanted.items()):
            return {split: list(pool.values()) for split, pool in pools.items()}
        instance = draw()
        split = split_of(instance)
        if len(pools[split]) == wanted[split] or instance.prompt_id in pools[split]:
            fruitless += 1
            continue
        pools[split][instance.prompt_id] = instance
        fruitless = 0
    raise ValueError(
        f"too few distinct instances for pool_instances {pool_instances} and held_out_instances"
        f" {held_out_instances} (a third of all is held out): lower these, or widen what they are drawn from"
    )


def pools_by_hash(instances: Sequence[Instance], most_held_out: int) -> dict[Split, list[Instance]]:
    """Split given instances, in their order: those with the smallest hashes are held out, a third at most."""
    count = min(most_held_out, len(instances) // 3)
    smallest = sorted(instance.prompt_id for instance in instances)[:count]
    held_out = set(smallest)
    return {
        "train": [instance for instance in instances if instance.prompt_id not in held_out],
        "held_out": [instance for instance in instances if instance.prompt_id in held_out],
    }


def draw_training_instance(draw: Callable[[], Instance]) -> Instance:
    """Draw an instance that is not held out, from the pool or beyond it."""
    while split_of(instance := draw()) == "held_out":
        pass
    return instance


EpisodeT = TypeVar("EpisodeT", bound=Episode)


def play(episode: EpisodeT, policy: Callable[[EpisodeT], list[int]]) -> tuple[list[int], list[bool], float]:
    """Play an episode to its end with a policy that maps the episode's state to an action.

    Returns the token ids, a mask that is true on action tokens, and the reward.
    """
    token_ids = list(episode.prompt_ids)
    action_mask = [False] * len(token_ids)
    while True:
        action_ids = policy(episode)
        result = episode.step(action_ids)
        token_ids += action_ids + result.observation_ids
        action_mask += [True] * len(action_ids) + [False] * len(result.observation_ids)
        if result.done:
            return token_ids, action_mask, result.reward
