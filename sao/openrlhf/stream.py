"""Which rollout to start next, what waits for what, and which batch the trainer gets: no Ray, no engine.

A finished trajectory counts at once when it stands alone, or when the last member of its group is there. The
trainer takes what was ready first. Time is whole milliseconds of the run ("ticks" in the columns that both
engines share), read from the clock given.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sao.config import RunConfig
from sao.environments.base import Instance
from sao.streaming import (
    MAX_FAILURES_PER_TRAJECTORY,
    MAX_FILTERED_PER_BATCH,
    MAX_INVALID_PER_BATCH,
    Counters,
    PromptOrder,
    SchedulingError,
    Taken,
)
from sao.trajectory import Trajectory


def milliseconds() -> int:
    """Time on a clock that never goes back."""
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True)
class Request:
    """One trajectory to sample; `progress` is the share of training done."""

    instance: Instance
    group_id: int
    index: int
    slot: int
    start_tick: int
    progress: float


@dataclass(frozen=True)
class Sampled:
    """A finished trajectory with its times."""

    trajectory: Trajectory
    slot: int
    start_tick: int
    end_tick: int
    graded_tick: int


@dataclass
class StreamedBatch(Taken):
    """`Taken`, with the stream's state right after the batch left it."""

    state: dict[str, Any] = field(repr=False, default_factory=dict)


class Stream:
    """Slots, groups, queue and staleness of one run."""

    def __init__(
        self, run: RunConfig, instances: list[Instance], clock: Callable[[], int] = milliseconds
    ) -> None:
        self.run, self._clock = run, clock
        self.synchronous = run.sampling.schedule == "synchronous"
        self.prompts = PromptOrder(instances, run.seed)
        self.version = 0
        self.trainer_busy = False
        self.next_index = self.next_group = self.prompts_started = 0
        self.running: dict[int, Request] = {}
        self.free_slots = list(range(run.sampler.slots - 1, -1, -1))
        self.to_start: deque[tuple[Instance, int]] = deque()
        self.groups: dict[int, list[Sampled]] = {}
        self.failures: dict[int, int] = {}
        self.ready: deque[list[Sampled]] = deque()
        self.counters = Counters()
        self._offset, self._started, self._counted_to = 0, clock(), 0

    def begin(self, version: int) -> None:
        """The engines hold the weights of `version`, and the clock of this attempt starts."""
        self.version, self._started = version, self._clock()

    def now(self) -> int:
        """Milliseconds of this run so far, earlier attempts included; brings the counters up to date."""
        now = self._offset + self._clock() - self._started
        elapsed, self._counted_to = now - self._counted_to, now
        self.counters.ticks += elapsed
        self.counters.busy_slot_ticks += elapsed * len(self.running)
        self.counters.trainer_ticks += elapsed * self.trainer_busy
        return now

    def start_requests(self) -> list[Request]:
        """Fills the free slots as far as the schedule allows; the caller samples what is returned."""
        now, size = self.now(), self.run.sampling.group_size
        requests = []
        while self.free_slots and (self.to_start or self._may_start()):
            if not self.to_start:
                self.to_start.extend([(self.prompts.next(), self.next_group)] * size)
                self.prompts_started += 1
                self.next_group += 1
            instance, group = self.to_start.popleft()
            progress = min(self.version / self.run.training.updates, 1.0)
            request = Request(instance, group, self.next_index, self.free_slots.pop(), now, progress)
            self.next_index += 1
            self.running[request.index] = request
            requests.append(request)
        return requests

    def _may_start(self) -> bool:
        batch, cap = self.run.training.batch_trajectories, self.run.training.max_staleness
        if self.synchronous:
            return not self.trainer_busy and self._outstanding() < batch
        if cap is not None and self._outstanding() >= (cap + 1) * batch:
            return False  # more would be too old by the time the trainer takes them
        limit = (self.run.openrlhf or self.run.virtual_clock).queue_limit_batches
        return self.ready_trajectories() < limit * batch

    def _outstanding(self) -> int:
        waiting = sum(len(members) for members in self.groups.values())
        return len(self.running) + len(self.to_start) + waiting + self.ready_trajectories()

    def ready_trajectories(self) -> int:
        """Trajectories that a batch could hold now."""
        return len(self.ready) * self.run.sampling.group_size

    def finish(self, request: Request, trajectory: Trajectory, sampling_ms: int) -> None:
        """Takes in a trajectory whose last token was sampled `sampling_ms` after its start, graded now."""
        now = self._leave(request)
        end = min(request.start_tick + sampling_ms, now)
        sampled = Sampled(trajectory, request.slot, request.start_tick, end, now)
        self.counters.sampled_tokens += trajectory.num_action_tokens
        if self._given_up(request.group_id):
            return
        members = self.groups.setdefault(request.group_id, [])
        members.append(sampled)
        if len(members) < self.run.sampling.group_size:
            return
        del self.groups[request.group_id]
        if self._uninformative(members):
            self.counters.filtered_groups += 1
        else:
            self.ready.append(members)

    def fail(self, request: Request, reason: str) -> None:
        """An environment error says nothing about the policy: it is counted and the prompt sampled again.

        A prompt that fails time and again is given up, its group with it, and the next prompt replaces it.
        """
        self._leave(request)
        batch, group = self.run.training.batch_trajectories, request.group_id
        self.counters.invalid += 1
        if self.counters.invalid > MAX_INVALID_PER_BATCH * batch:
            raise SchedulingError(
                f"task {self.run.task.name}: {self.counters.invalid} trajectories ended in an environment "
                f"error before one batch of {batch} was full, the last with: {reason}; mend the environment "
                "and start the run again"
            )
        if self._given_up(group):
            return
        self.failures[group] = self.failures.get(group, 0) + 1
        self.to_start.appendleft((request.instance, group))
        if self._given_up(group):
            self.to_start = deque(waiting for waiting in self.to_start if waiting[1] != group)
            self.groups.pop(group, None)

    def _leave(self, request: Request) -> int:
        now = self.now()
        del self.running[request.index]
        self.free_slots.append(request.slot)
        return now

    def _given_up(self, group: int) -> bool:
        limit = MAX_FAILURES_PER_TRAJECTORY * self.run.sampling.group_size
        return self.failures.get(group, 0) >= limit

    def _uninformative(self, members: list[Sampled]) -> bool:
        limit = MAX_FILTERED_PER_BATCH * self.run.prompts_per_batch
        if not self.run.sampling.dynamic_sampling or self.counters.filtered_groups >= limit:
            return False
        return len({member.trajectory.reward for member in members}) == 1

    def batch_ready(self) -> bool:
        """Whether `take` has a whole batch once what is too old is dropped."""
        self._drop_stale()
        return self.ready_trajectories() >= self.run.training.batch_trajectories

    def _drop_stale(self) -> None:
        cap = self.run.training.max_staleness
        if cap is None:
            return
        kept: deque[list[Sampled]] = deque()
        for group in self.ready:
            if min(_oldest_version(member.trajectory) for member in group) >= self.version - cap:
                kept.append(group)
            else:
                self.counters.dropped_stale += len(group)
                self.counters.dropped += [
                    (member.trajectory.num_action_tokens, member.trajectory.reward) for member in group
                ]
        self.ready = kept

    def take(self) -> StreamedBatch:
        """The batch that was ready first; the trainer is busy from now until `finish_update`."""
        if self.trainer_busy:
            raise SchedulingError("the trainer took a batch before it finished the update on the one before")
        if not self.batch_ready():
            raise SchedulingError("a batch was taken before it was ready")
        now = self.now()
        groups = [self.ready.popleft() for _ in range(self.run.prompts_per_batch)]
        # The first to finish are the shortest: shuffled, so that minibatches do not differ in length.
        order = np.random.default_rng([self.run.seed, 2, self.prompts_started]).permutation(len(groups))
        sampled = [member for place in order for member in groups[place]]
        counters, self.counters = self.counters, Counters()
        self.trainer_busy = True
        return StreamedBatch(
            [member.trajectory for member in sampled],
            sampled,
            now,
            counters,
            self.prompts_started,
            self.state_dict(),
        )

    def finish_update(self, version: int, loaded: bool) -> int:
        """The trainer is free again after `version` policy updates; `loaded` if the engines have them.

        Returns the tick.
        """
        now = self.now()
        if version < self.version:
            raise SchedulingError(f"the trainer went back from version {self.version} to {version}")
        self.trainer_busy = False
        self.version = version
        if loaded:
            self.counters.loads.append((now, version))
        return now

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: rollouts under way count as not started, finished ones are kept."""
        under_way = [(request.instance, request.group_id) for request in self.running.values()]
        return {
            "prompts_served": self.prompts.served,
            "to_start": under_way + list(self.to_start),
            "groups": {group: list(members) for group, members in self.groups.items()},
            "failures": dict(self.failures),
            "ready": [list(members) for members in self.ready],
            "next_index": self.next_index,
            "next_group": self.next_group,
            "prompts_started": self.prompts_started,
            "milliseconds": self._counted_to,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restores what `state_dict` returned; `begin` follows."""
        self.prompts.served = saved["prompts_served"]
        self.to_start = deque(saved["to_start"])
        self.groups, self.failures = dict(saved["groups"]), dict(saved["failures"])
        self.ready = deque(saved["ready"])
        self.next_index, self.next_group = saved["next_index"], saved["next_group"]
        self.prompts_started = saved["prompts_started"]
        self._offset = self._counted_to = saved["milliseconds"]


def _oldest_version(trajectory: Trajectory) -> int:
    return int(trajectory.policy_versions[trajectory.action_mask].min())
