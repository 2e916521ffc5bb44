"""Task `locks`: hidden two-digit codes, opened one after another within a shared budget of turns.

    prompt       <bos> <locks> <low tens> <low ones> <high tens> <high ones> <turns>
    action       ? <tens> <ones>    compare a guess with the hidden code
                 ! <tens> <ones>    commit a guess: a right one opens the lock, a wrong one ends the episode
    observation  below | above | equal | next, the current bounds (four digits), <turns left>

`below` says that the code lies below the guess; `next` that a lock opened and the bounds are those of the
next code. The bounds shrink with every answer, so they hold all that is known. The reward is 1 when every
lock is open, else 0; a wrong commit, a malformed action or the last turn ends the episode.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sao.environments.base import (
    Instance,
    Split,
    StepResult,
    content_hash,
    draw_pools,
    draw_training_instance,
    play,
)

if TYPE_CHECKING:
    from sao.config_scales import LocksTask

BEGIN, DIGIT, QUERY, COMMIT, BELOW, ABOVE, EQUAL, NEXT, TURNS = 1, 2, 12, 13, 14, 15, 16, 17, 18
CODES = 100
MIN_TURNS = 2
PROMPT_TOKENS, ACTION_TOKENS, OBSERVATION_TOKENS = 7, 3, 6

Lock = tuple[int, int, int]
"""Lowest and highest possible code (both included), and the code."""


class LocksEpisode:
    """One attempt; `low`, `high`, `turns_left` and `locks_left` are what the policy has been told."""

    __slots__ = (
        "_code",
        "_done",
        "_locks",
        "_opened",
        "high",
        "locks_left",
        "low",
        "prompt_ids",
        "turns_left",
    )

    def __init__(self, locks: tuple[Lock, ...], budget: int, lock_count_token: int) -> None:
        self._locks = locks
        self._opened = 0
        self._done = False
        self.low, self.high, self._code = locks[0]
        self.locks_left = len(locks)
        self.turns_left = budget
        self.prompt_ids = [BEGIN, lock_count_token, *self._bounds_and_turns()]

    def action_complete(self, action_ids: Sequence[int]) -> bool:
        """Tell whether the three tokens of an action are there."""
        return len(action_ids) == ACTION_TOKENS

    def step(self, action_ids: Sequence[int]) -> StepResult:
        """Query or commit; a malformed action ends the episode with reward 0."""
        if self._done:
            raise RuntimeError("the episode is over: start a new one")
        guess = _guess(action_ids)
        if guess is None:
            return self._end(0.0)
        self.turns_left -= 1
        if action_ids[0] == QUERY:
            answer = self._compare(guess)
        elif guess != self._code:
            return self._end(0.0)
        else:
            self._opened += 1
            self.locks_left -= 1
            if self.locks_left == 0:
                return self._end(1.0)
            self.low, self.high, self._code = self._locks[self._opened]
            answer = NEXT
        if self.turns_left == 0:
            self._done = True
            return StepResult([], True, 0.0, "truncated")
        return StepResult([answer, *self._bounds_and_turns()], False, 0.0)

    def details(self) -> dict[str, str | int]:
        """Return nothing: the reward and the label say all."""
        return {}

    def _compare(self, guess: int) -> int:
        if self._code < guess:
            self.high = min(self.high, guess - 1)
            return BELOW
        if self._code > guess:
            self.low = max(self.low, guess + 1)
            return ABOVE
        self.low = self.high = guess
        return EQUAL

    def _end(self, reward: float) -> StepResult:
        self._done = True
        return StepResult([], True, reward)

    def _bounds_and_turns(self) -> list[int]:
        low, high = self.low, self.high
        return [
            DIGIT + low // 10,
            DIGIT + low % 10,
            DIGIT + high // 10,
            DIGIT + high % 10,
            TURNS + self.turns_left,
        ]


def _guess(action_ids: Sequence[int]) -> int | None:
    """Return the guess of a query or commit, None for a malformed action."""
    if len(action_ids) != ACTION_TOKENS:
        return None
    kind, tens, ones = action_ids
    digits = range(DIGIT, DIGIT + 10)
    if (kind != QUERY and kind != COMMIT) or tens not in digits or ones not in digits:
        return None
    return 10 * (tens - DIGIT) + ones - DIGIT


def action(kind: int, guess: int) -> list[int]:
    """Return the three tokens of a `QUERY` or `COMMIT` of a guess in 0..99."""
    return [kind, DIGIT + guess // 10, DIGIT + guess % 10]


class LocksEnvironment:
    """The instances, episodes and demonstrations of one `locks` task block."""

    tokenizer = None

    def __init__(self, task: "LocksTask") -> None:
        self._task = task
        # A task whose block cannot make instances fails here, before anything is trained.
        rng = np.random.default_rng(task.pool_seed)
        self._pools = draw_pools(lambda: self._draw(rng), task.pool_instances, task.held_out_instances)
        turns = [f"T{left}" for left in range(task.max_turns + 1)]
        lock_counts = [f"L{count}" for count in range(1, max(task.lock_count_odds) + 1)]
        digits = [str(digit) for digit in range(10)]
        answers = ["below", "above", "equal", "next"]
        self.vocabulary = ("<pad>", "<bos>", *digits, "?", "!", *answers, *turns, *lock_counts)
        self.max_episode_tokens = (
            PROMPT_TOKENS + ACTION_TOKENS * task.max_turns + OBSERVATION_TOKENS * (task.max_turns - 1)
        )

    def instances(self, split: Split) -> list[Instance]:
        """Return the pool of a split in its fixed order."""
        return list(self._pools[split])

    def start(self, instance: Instance, progress: float) -> LocksEpisode:
        """Start an episode; the task is the same throughout training."""
        locks, budget = instance.payload
        return LocksEpisode(locks, budget, TURNS + self._task.max_turns + len(locks))

    def demonstration(self, rng: np.random.Generator) -> tuple[list[int], list[bool], float]:
        """Play the noisy demonstrator on a fresh instance that is not held out."""
        instance = draw_training_instance(lambda: self._draw(rng))
        return play(self.start(instance, 0.0), lambda episode: self.demonstrator_action(episode, rng))

    def demonstrator_action(self, episode: LocksEpisode, rng: np.random.Generator) -> list[int]:
        """Guess anywhere within the bounds, at times in all of 0..99; commit mostly when one code is left."""
        task = self._task
        commit_draw, wild_draw, guess_draw = rng.random(3)
        certain = episode.low == episode.high
        commit_odds = (
            task.demonstrator_certain_commit_odds if certain else task.demonstrator_early_commit_odds
        )
        wild = wild_draw < task.demonstrator_wild_guess_odds
        low, high = (0, CODES - 1) if wild else (episode.low, episode.high)
        guess = low + int(guess_draw * (high - low + 1))
        return action(COMMIT if commit_draw < commit_odds else QUERY, guess)

    def _draw(self, rng: np.random.Generator) -> Instance:
        task = self._task
        count = int(rng.choice(list(task.lock_count_odds), p=list(task.lock_count_odds.values())))
        locks = tuple(_draw_lock(rng, task.width_min, task.width_max) for _ in range(count))
        slack = float(rng.choice(list(task.budget_slack_odds), p=list(task.budget_slack_odds.values())))
        turns = bisection_queries(locks) + count + round(slack * count)
        budget = min(max(turns, MIN_TURNS), task.max_turns)
        return Instance(content_hash((locks, budget)), _band(count), (locks, budget))


def bisection_queries(locks: tuple[Lock, ...]) -> int:
    """Return how many queries bisection needs to be certain of every code: the sum of ceil(log2(width))."""
    return sum((high - low).bit_length() for low, high, _ in locks)


def _draw_lock(rng: np.random.Generator, width_min: int, width_max: int) -> Lock:
    """Draw a lock whose number of possible codes is log-uniform and whose code is uniform among them."""
    width = int(math.exp(rng.uniform(math.log(width_min), math.log(width_max + 1))))
    width = min(max(width, width_min), width_max)  # exp(log(n)) may fall on either side of n
    low = int(rng.integers(0, CODES - width + 1))
    return low, low + width - 1, int(rng.integers(low, low + width))


def _band(count: int) -> str:
    """Return the difficulty band of the tables, which take 4 and 6 locks together."""
    if count in (4, 6):
        return "4 or 6 locks"
    return "1 lock" if count == 1 else f"{count} locks"
