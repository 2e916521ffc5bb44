"""Task `swe`: an issue of a repository, an agent that mends it, and the repository's own tests as the judge.

Other than in the token environments the agent calls the model: an agent's SDK asks a recording proxy for each
turn, and the proxy asks an engine. So an episode is not stepped, it is run: `SWEEnvironment.rollout` lets the
scaffold work on one task and returns the trajectory that the proxy recorded. It blocks; engines call it from
threads, as many at once as they like.

Reward 1 where grading says that the issue is resolved and finds nothing suspect, otherwise 0. An attempt that
ends at a limit (turns, wall clock, tokens) is truncated, and its patch so far is graded. One whose policy
ended its own agent server is completed, and graded likewise. What else breaks the scaffold, and a history
that the SDK altered, says nothing about the policy: EnvironmentFailure, counted.
"""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Literal, Protocol

import numpy as np

from sao.environments.base import EnvironmentFailure, Episode, Instance, Split, content_hash
from sao.environments.swe_recording import Recording
from sao.trajectory import Status, Trajectory

Row = dict[str, Any]
"""One task in the format of SWE-Bench 5."""

Ending = Literal["finish", "text", "stuck", "turns", "context", "wall_clock", "server_ended"]
"""The tool, answers without a tool call, a loop that the SDK broke off, a limit, or the agent's own server,
which the policy ended."""
TRUNCATED: tuple[Ending, ...] = ("turns", "context", "wall_clock")


@dataclass(frozen=True)
class ModelAddress:
    """Where an agent finds the model; `key` is the API key of its conversation alone."""

    url: str
    model: str
    key: str


@dataclass(frozen=True)
class Attempt:
    """How the scaffold's work on a task ended: `outcome` is grading's name for it.

    `resolved` says that the tests pass and that nothing makes the grading doubtful.
    """

    ending: Ending
    outcome: str
    resolved: bool
    turns: int
    seconds: float


class Scaffold(Protocol):
    """Lets an agent work on a task and grades its patch; safe to call from several threads."""

    def attempt(self, row: Row, address: ModelAddress) -> Attempt:
        """Run one task to its end and leave nothing behind.

        Raises EnvironmentFailure where scaffold, workspace or grading broke.
        """


class Recorder(Protocol):
    """Records conversations; `engine` is whatever the recorder samples with, None its own."""

    def open(self, engine: Any = None) -> ModelAddress: ...
    def close(self, address: ModelAddress) -> Recording: ...


class SWEEnvironment:
    """Tasks, the scaffold that works on them, and the recorder between scaffold and engine.

    `counts` holds how many rollouts ended how: each `ending`, each `outcome` and `invalid`, with the reasons
    of invalid ones. Without a tokenizer there is no vocabulary to show trajectories with.
    """

    vocabulary: tuple[str, ...] = ()
    max_episode_tokens: int = 0
    tokenizer: Any = None

    def __init__(
        self, train: Sequence[Row], held_out: Sequence[Row], scaffold: Scaffold, recorder: Recorder
    ) -> None:
        self.scaffold, self.recorder = scaffold, recorder
        self.counts: Counter[str] = Counter()
        self._traces: Iterator[Trajectory] = iter(())
        self._lock = threading.Lock()
        self._instances: dict[Split, list[Instance]] = {
            "train": [instance_of(row) for row in train],
            "held_out": [instance_of(row) for row in held_out],
        }

    def open(self, workers: int, max_tokens: int) -> None:
        """Make ready for `workers` attempts at once of `max_tokens` tokens: what was given is ready."""

    def close(self) -> None:
        """End what `open` started."""

    def instances(self, split: Split) -> list[Instance]:
        """Return the tasks of a split, always in the same order."""
        return self._instances[split]

    def start(self, instance: Instance, progress: float) -> Episode:
        """No attempt can be stepped: raises RuntimeError."""
        raise RuntimeError("an attempt at a task of software engineering is run as a whole, by `rollout`")

    def demonstrate(self, traces: Sequence[Trajectory]) -> None:
        """Have `demonstration` give these recorded traces in turn, over and over."""
        self._traces = cycle(traces)

    def demonstration(self, rng: np.random.Generator) -> tuple[list[int], list[bool], float]:
        """Return the next trace: its token ids, a mask that is true on action tokens, and its reward.

        Raises RuntimeError where no traces were recorded.
        """
        trace = next(self._traces, None)
        if trace is None:
            raise RuntimeError("no traces were recorded: a scaffold records them, no demonstrator plays here")
        return trace.token_ids.tolist(), trace.action_mask.tolist(), trace.reward

    def rollout(
        self, instance: Instance, index: int = -1, group_id: int = -1, engine: Any = None
    ) -> Trajectory:
        """Run one attempt at a task and return its trajectory; EnvironmentFailure where it is invalid."""
        address = self.recorder.open(engine)
        failure: EnvironmentFailure | None = None
        try:
            attempt = self.scaffold.attempt(instance.payload[0], address)
        except EnvironmentFailure as error:
            failure = error
        finally:
            recording = self.recorder.close(address)
        if recording.invalid:  # the scaffold fails for it, with a less telling message
            failure = EnvironmentFailure(recording.invalid)
        elif failure is None and not recording.action_spans:
            failure = EnvironmentFailure("the agent ended without a call of the model")
        if failure is not None:
            self._count("invalid", f"invalid: {failure}")
            raise failure
        self._count(attempt.ending, attempt.outcome)
        truncated = recording.cut or attempt.ending in TRUNCATED
        return recording.trajectory(
            1.0 if attempt.resolved else 0.0,
            Status.TRUNCATED if truncated else Status.COMPLETED,
            prompt_id=instance.prompt_id,
            group_id=group_id,
            index=index,
            label=instance.label,
        )

    def _count(self, *names: str) -> None:
        with self._lock:
            self.counts.update(names)


def instance_of(row: Row) -> Instance:
    """The instance of a task; its label is the repository."""
    content = (str(row["instance_id"]), str(row["base_commit"]), str(row["problem_statement"]))
    return Instance(content_hash(content), str(row["repo"]), (row,))
