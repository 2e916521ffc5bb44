"""What both engines' asynchronous schedules share: data order, counts, the batch taken, its log lines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from sao.environments.base import Instance
from sao.runlog import SCHEDULE_COLUMNS
from sao.trajectory import Trajectory

MAX_INVALID_PER_BATCH = 20  # times the batch: an environment that fails this often is broken
MAX_FILTERED_PER_BATCH = 10  # times its groups: a policy that always succeeds (or never) still gets batches
MAX_FAILURES_PER_TRAJECTORY = 3  # of a prompt, before another prompt takes its place


class SchedulingError(RuntimeError):
    """The schedule cannot go on; the message says why and what to change."""


class PromptOrder:
    """The training pool in one seeded order, a new permutation each epoch; the same for all rows."""

    def __init__(self, instances: list[Instance], seed: int) -> None:
        self.instances, self.seed = instances, seed
        self.served = 0
        self._epoch = -1

    def next(self) -> Instance:
        """The next instance of the order."""
        epoch, place = divmod(self.served, len(self.instances))
        if epoch != self._epoch:
            self._permutation = np.random.default_rng([self.seed, epoch]).permutation(len(self.instances))
            self._epoch = epoch
        self.served += 1
        return self.instances[self._permutation[place]]


@dataclass
class Counters:
    """What happened since the last batch was taken."""

    ticks: int = 0
    busy_slot_ticks: int = 0
    trainer_ticks: int = 0
    invalid: int = 0
    dropped_stale: int = 0
    dropped: list[tuple[int, float]] = field(default_factory=list)  # (action tokens, reward) of each of them
    filtered_groups: int = 0
    sampled_tokens: int = 0
    loads: list[tuple[int, int]] = field(default_factory=list)  # (tick, version) of new weights


class Timed(Protocol):
    """When and where a trajectory was sampled."""

    slot: int
    start_tick: int
    end_tick: int
    graded_tick: int


@dataclass
class Taken:
    """A batch for the trainer, with its rollouts' schedule and the counts since the batch before it.

    `rollouts` is aligned with `trajectories`.
    """

    trajectories: list[Trajectory]
    rollouts: Sequence[Timed]
    tick: int
    counters: Counters
    prompts_started: int


def schedule_lines(taken: Taken, step: int, update_ticks: int) -> Iterator[dict[str, Any]]:
    """Lines of the schedule log: weight loads since the last batch, its trajectories, the update."""
    for tick, version in taken.counters.loads:
        yield _schedule_line("load", step, end_tick=tick, last_version=version)
    for rollout, trajectory in zip(taken.rollouts, taken.trajectories, strict=True):
        versions = trajectory.policy_versions[trajectory.action_mask]
        yield _schedule_line(
            "trajectory",
            step,
            index=trajectory.index,
            slot=rollout.slot,
            start_tick=rollout.start_tick,
            end_tick=rollout.end_tick,
            graded_tick=rollout.graded_tick,
            taken_tick=taken.tick,
            first_version=int(versions.min()),
            last_version=int(versions.max()),
            action_tokens=len(versions),
            total_tokens=len(trajectory.token_ids),
            group_id=trajectory.group_id,
        )
    yield _schedule_line("update", step, start_tick=taken.tick, end_tick=taken.tick + update_ticks)


def _schedule_line(kind: str, step: int, **columns: int) -> dict[str, Any]:
    return dict.fromkeys(SCHEDULE_COLUMNS) | {"kind": kind, "step": step} | columns
