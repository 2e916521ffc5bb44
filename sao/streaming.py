"""What the asynchronous schedules of both engines share: data order, queues, counts, batches, log lines."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from sao.config import RunConfig
from sao.environments.base import Instance
from sao.runlog import SCHEDULE_COLUMNS
from sao.trajectory import Trajectory

MAX_INVALID_PER_BATCH = 20  # times the batch: an environment that fails this often is broken
MAX_FILTERED_PER_BATCH = 10  # times its groups: a policy that always succeeds (or never) still gets batches
MAX_FAILURES_PER_TRAJECTORY = 3  # of a prompt, before another prompt takes its place
TOO_OLD, GROUP_GIVEN_UP = "too_old", "group_given_up"  # why a finished trajectory was dropped


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
    dropped: list[tuple[str, int, float]] = field(default_factory=list)  # (reason, action tokens, reward)
    filtered_groups: int = 0
    sampled_tokens: int = 0
    loads: list[tuple[int, int]] = field(default_factory=list)  # (tick, version) of new weights

    def drop(self, reason: str, members: Iterable["Ended"]) -> None:
        """Counts finished trajectories that no batch will hold."""
        self.dropped += [(reason, member.num_action_tokens, member.reward) for member in members]

    @property
    def dropped_stale(self) -> int:
        """Trajectories that the staleness cap dropped."""
        return sum(reason == TOO_OLD for reason, _, _ in self.dropped)

    @property
    def dropped_with_group(self) -> int:
        """Trajectories that were dropped with their group."""
        return sum(reason == GROUP_GIVEN_UP for reason, _, _ in self.dropped)


class Ended(Protocol):
    """A trajectory that ended, as a queue sees it."""

    @property
    def reward(self) -> float:
        """Outcome as the environment scores it."""

    @property
    def num_action_tokens(self) -> int:
        """Tokens sampled by the policy."""

    @property
    def oldest_version(self) -> int:
        """The version of the oldest weights that sampled one of them."""


Member = TypeVar("Member", bound=Ended)


@dataclass
class Waiting(Generic[Member]):
    """What waits to start, for the rest of its group, or for the trainer, under the rules of a run."""

    to_start: deque[tuple[Instance, int]] = field(default_factory=deque)  # with the group
    groups: dict[int, list[Member]] = field(default_factory=dict)
    failures: dict[int, int] = field(default_factory=dict)  # environment errors of each group that had one
    ready: deque[list[Member]] = field(default_factory=deque)
    counters: Counters = field(default_factory=Counters)

    def fail(self, run: RunConfig, instance: Instance, group: int, reason: str) -> None:
        """An environment error says nothing about the policy: it is counted and the prompt sampled again.

        A prompt that fails time and again is given up, its group with it, and the next prompt replaces it;
        members that ended well are dropped, those that still run when they end.
        """
        batch = run.training.batch_trajectories
        self.counters.invalid += 1
        if self.counters.invalid > MAX_INVALID_PER_BATCH * batch:
            raise SchedulingError(
                f"task {run.task.name}: {self.counters.invalid} trajectories ended in an environment "
                f"error before one batch of {batch} was full, the last with: {reason}; mend the environment "
                "and start the run again"
            )
        self.failures[group] = self.failures.get(group, 0) + 1
        self.to_start.appendleft((instance, group))
        if self._given_up(run, group):
            self.to_start = deque(waiting for waiting in self.to_start if waiting[1] != group)
            self.counters.drop(GROUP_GIVEN_UP, self.groups.pop(group, []))

    def end(self, run: RunConfig, group: int, ended: Member) -> None:
        """Queues a graded trajectory: at once when it stands alone, or with the last member of its group."""
        if self._given_up(run, group):
            self.counters.drop(GROUP_GIVEN_UP, [ended])
            return
        members = self.groups.setdefault(group, [])
        members.append(ended)
        if len(members) < run.sampling.group_size:
            return
        del self.groups[group]
        if self._uninformative(run, members):
            self.counters.filtered_groups += 1
        else:
            self.ready.append(members)

    def _given_up(self, run: RunConfig, group: int) -> bool:
        limit = MAX_FAILURES_PER_TRAJECTORY * run.sampling.group_size
        return self.failures.get(group, 0) >= limit

    def _uninformative(self, run: RunConfig, members: list[Member]) -> bool:
        """Whether dynamic sampling replaces the group: its raw rewards are all equal."""
        limit = MAX_FILTERED_PER_BATCH * run.prompts_per_batch
        if not run.sampling.dynamic_sampling or self.counters.filtered_groups >= limit:
            return False
        return len({member.reward for member in members}) == 1

    def drop_stale(self, run: RunConfig, version: int) -> None:
        """Drops queued trajectories (whole groups) with a token older than the staleness cap allows."""
        cap = run.training.max_staleness
        if cap is None:
            return
        kept: deque[list[Member]] = deque()
        for group in self.ready:
            if min(member.oldest_version for member in group) >= version - cap:
                kept.append(group)
            else:
                self.counters.drop(TOO_OLD, group)
        self.ready = kept

    @property
    def ready_trajectories(self) -> int:
        """Trajectories that a batch could hold now."""
        return sum(map(len, self.ready))

    @property
    def grouped_trajectories(self) -> int:
        """Trajectories that wait for the rest of their group."""
        return sum(map(len, self.groups.values()))


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


def dropped_lines(taken: Taken, step: int) -> list[dict[str, Any]]:
    """Lines of the log of finished trajectories that were dropped since the batch before."""
    return [
        {"step": step, "reason": reason, "action_tokens": tokens, "reward": reward}
        for reason, tokens, reward in taken.counters.dropped
    ]


def _schedule_line(kind: str, step: int, **columns: int) -> dict[str, Any]:
    return dict.fromkeys(SCHEDULE_COLUMNS) | {"kind": kind, "step": step} | columns
