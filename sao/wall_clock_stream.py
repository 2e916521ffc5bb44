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
from sao.streaming import Counters, PromptOrder, SchedulingError, Taken, Waiting
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

    @property
    def reward(self) -> float:
        """Outcome as the environment scores it."""
        return self.trajectory.reward

    @property
    def num_action_tokens(self) -> int:
        """Tokens sampled by the policy."""
        return self.trajectory.num_action_tokens

    @property
    def oldest_version(self) -> int:
        """The version of the oldest weights that sampled one of them."""
        return self.trajectory.oldest_version


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
        self.waiting: Waiting[Sampled] = Waiting()
        self._offset, self._started, self._counted_to = 0, clock(), 0

    def begin(self, version: int) -> None:
        """The engines hold the weights of `version`, and the clock of this attempt starts."""
        self.version, self._started = version, self._clock()

    def now(self) -> int:
        """Milliseconds of this run so far, earlier attempts included; brings the counters up to date."""
        now = self._offset + self._clock() - self._started
        elapsed, self._counted_to = now - self._counted_to, now
        self.waiting.counters.ticks += elapsed
        self.waiting.counters.busy_slot_ticks += elapsed * len(self.running)
        self.waiting.counters.trainer_ticks += elapsed * self.trainer_busy
        return now

    def start_requests(self) -> list[Request]:
        """Fills the free slots as far as the schedule allows; the caller samples what is returned."""
        now, size = self.now(), self.run.sampling.group_size
        requests = []
        while self.free_slots and (self.waiting.to_start or self._may_start()):
            if not self.waiting.to_start:
                self.waiting.to_start.extend([(self.prompts.next(), self.next_group)] * size)
                self.prompts_started += 1
                self.next_group += 1
            instance, group = self.waiting.to_start.popleft()
            progress = min(self.version / max(self.run.training.updates, 1), 1.0)
            request = Request(instance, group, self.next_index, self.free_slots.pop(), now, progress)
            self.next_index += 1
            self.running[request.index] = request
            requests.append(request)
        return requests

    def _may_start(self) -> bool:
        batch, cap = self.run.training.batch_trajectories, self.run.training.max_staleness
        if self.synchronous:
            return not self.trainer_busy and self._outstanding() < batch
        if cap is not None and self._outstanding() >= (cap + 1 - self.trainer_busy) * batch:
            return False  # more would be too old by the time the trainer takes them
        limit = (self.run.openrlhf or self.run.virtual_clock).queue_limit_batches
        return self.waiting.ready_trajectories < limit * batch

    def _outstanding(self) -> int:
        waiting = self.waiting
        under_way = len(self.running) + len(waiting.to_start)
        return under_way + waiting.grouped_trajectories + waiting.ready_trajectories

    def finish(self, request: Request, trajectory: Trajectory, sampling_ms: int) -> None:
        """Takes in a trajectory whose last token was sampled `sampling_ms` after its start, graded now."""
        now = self._leave(request)
        end = min(request.start_tick + sampling_ms, now)
        sampled = Sampled(trajectory, request.slot, request.start_tick, end, now)
        self.waiting.counters.sampled_tokens += trajectory.num_action_tokens
        self.waiting.end(self.run, request.group_id, sampled)

    def fail(self, request: Request, reason: str) -> None:
        """Takes in that a trajectory ended in an environment error."""
        self._leave(request)
        self.waiting.fail(self.run, request.instance, request.group_id, reason)

    def _leave(self, request: Request) -> int:
        now = self.now()
        del self.running[request.index]
        self.free_slots.append(request.slot)
        return now

    def batch_ready(self) -> bool:
        """Whether `take` has a whole batch once what is too old is dropped."""
        self.waiting.drop_stale(self.run, self.version)
        return self.waiting.ready_trajectories >= self.run.training.batch_trajectories

    def take(self) -> StreamedBatch:
        """The batch that was ready first; the trainer is busy from now until `finish_update`."""
        if self.trainer_busy:
            raise SchedulingError("the trainer took a batch before it finished the update on the one before")
        if not self.batch_ready():
            raise SchedulingError("a batch was taken before it was ready")
        now = self.now()
        groups = [self.waiting.ready.popleft() for _ in range(self.run.prompts_per_batch)]
        # The first to finish are the shortest: shuffled, so that minibatches do not differ in length.
        order = np.random.default_rng([self.run.seed, 2, self.prompts_started]).permutation(len(groups))
        sampled = [member for place in order for member in groups[place]]
        counters, self.waiting.counters = self.waiting.counters, Counters()
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
            self.waiting.counters.loads.append((now, version))
        return now

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: rollouts under way count as not started, finished ones are kept."""
        waiting = self.waiting
        under_way = [(request.instance, request.group_id) for request in self.running.values()]
        return {
            "prompts_served": self.prompts.served,
            "to_start": under_way + list(waiting.to_start),
            "groups": {group: list(members) for group, members in waiting.groups.items()},
            "failures": dict(waiting.failures),
            "ready": [list(members) for members in waiting.ready],
            "next_index": self.next_index,
            "next_group": self.next_group,
            "prompts_started": self.prompts_started,
            "milliseconds": self._counted_to,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restores what `state_dict` returned; `begin` follows."""
        self.prompts.served = saved["prompts_served"]
        self.waiting = Waiting(
            deque(saved["to_start"]), dict(saved["groups"]), dict(saved["failures"]), deque(saved["ready"])
        )
        self.next_index, self.next_group = saved["next_index"], saved["next_group"]
        self.prompts_started = saved["prompts_started"]
        self._offset = self._counted_to = saved["milliseconds"]
