"""The asynchronous schedule on a virtual clock.

One tick samples one token in every busy slot. A finished trajectory is graded after a heavy-tailed latency
and then queued: at once when it stands alone, or when the last member of its group is there. The trainer
takes the oldest batch, is busy for a set number of ticks, and every `sync_interval` updates the sampler gets
the new weights, at a token boundary and in the middle of trajectories. Nothing depends on wall-clock time, so
the same configuration and seed give the same run on any load.
"""

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from transformers import Qwen3MoeForCausalLM

from sao.config import RunConfig
from sao.environments.base import Environment, EnvironmentFailure, Instance
from sao.local.decode import DecodeEngine
from sao.local.sampler import Rollout, Sampler
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
    filtered_groups: int = 0
    sampled_tokens: int = 0
    loads: list[tuple[int, int]] = field(default_factory=list)  # (tick, version) of new weights


@dataclass
class Taken:
    """A batch for the trainer, with its rollouts' schedule and the counts since the batch before it."""

    trajectories: list[Trajectory]
    rollouts: list[Rollout]
    tick: int
    counters: Counters
    prompts_started: int


@dataclass
class ScheduleState:
    """All that changes as the clock runs (pickled into checkpoints)."""

    tick: int = 0
    version: int = 0
    trainer_busy_until: int | None = None
    trainer_trains_policy: bool = False
    next_index: int = 0
    next_group: int = 0
    prompts_started: int = 0
    to_start: deque[tuple[Instance, int]] = field(default_factory=deque)
    grading: list[tuple[int, int, Rollout]] = field(default_factory=list)
    groups: dict[int, list[Rollout]] = field(default_factory=dict)
    failures: dict[int, int] = field(default_factory=dict)  # environment errors of each group that had one
    ready: deque[list[Rollout]] = field(default_factory=deque)
    counters: Counters = field(default_factory=Counters)


class Schedule:
    """Runs sampler and clock until a batch is ready; see the module's text for the rules."""

    def __init__(self, run: RunConfig, environment: Environment, policy: Qwen3MoeForCausalLM) -> None:
        self.run, self.environment, self.policy = run, environment, policy
        self.clock = run.virtual_clock
        self.synchronous = run.sampling.schedule == "synchronous"
        engine = DecodeEngine(policy, run.sampler.slots, run.sampler.max_tokens, run.sampler.rounding)
        self.sampler = Sampler(engine, seed=run.seed)
        self.prompts = PromptOrder(environment.instances("train"), run.seed)
        self.state = ScheduleState()

    @property
    def staleness_cap(self) -> int | None:
        """Greatest number of updates that a trajectory's oldest token may lag behind, if there is one."""
        return self.run.training.max_staleness

    def next_batch(self) -> Taken:
        """Advances the clock until the trainer is free and a batch is ready, and takes the oldest one."""
        state = self.state
        while True:
            self._finish_update()
            if state.trainer_busy_until is None:
                self._drop_stale()
                if self._ready_trajectories() >= self.run.training.batch_trajectories:
                    return self._take()
            self._advance()

    def begin_update(self, trains_policy: bool) -> None:
        """The trainer is busy from now for the clock's `update_ticks`; new weights count from its end."""
        self.state.trainer_busy_until = self.state.tick + self.clock.update_ticks
        self.state.trainer_trains_policy = trains_policy

    def _finish_update(self) -> None:
        state = self.state
        if state.trainer_busy_until is None or state.tick < state.trainer_busy_until:
            return
        state.trainer_busy_until = None
        if not state.trainer_trains_policy:
            return
        state.version += 1
        if self.synchronous or state.version % self.clock.sync_interval == 0:
            self.sampler.engine.load_weights(self.policy)
            self.sampler.version = state.version
            state.counters.loads.append((state.tick, state.version))
            if self.run.sampling.recompute_kv:
                self.sampler.forget_caches()

    def _advance(self) -> None:
        state = self.state
        self._start_rollouts()
        state.tick += 1
        state.counters.ticks += 1
        state.counters.busy_slot_ticks += len(self.sampler.rollouts)
        state.counters.sampled_tokens += len(self.sampler.rollouts)
        state.counters.trainer_ticks += state.trainer_busy_until is not None
        for rollout in self.sampler.tick(state.tick):
            heapq.heappush(state.grading, (state.tick + self._latency(rollout.index), rollout.index, rollout))
        while state.grading and state.grading[0][0] <= state.tick:
            self._graded(heapq.heappop(state.grading)[2])

    def _latency(self, index: int) -> int:
        """Grading latency of one trajectory in ticks: a capped Pareto draw, whatever the order of events."""
        clock = self.clock
        if clock.latency_scale_ticks == 0:
            return 0
        draw = np.random.default_rng([self.run.seed, 1, index]).pareto(clock.latency_shape)
        return int(min(clock.latency_max_ticks, clock.latency_scale_ticks * draw))

    def _start_rollouts(self) -> None:
        state, size = self.state, self.run.sampling.group_size
        progress = min(state.version / self.run.training.updates, 1.0)
        while self.sampler.free_slots and (state.to_start or self._may_start()):
            if not state.to_start:
                instance = self.prompts.next()
                state.prompts_started += 1
                state.to_start.extend([(instance, state.next_group)] * size)
                state.next_group += 1
            instance, group = state.to_start.popleft()
            try:
                self.sampler.start(self.environment, instance, state.next_index, group, state.tick, progress)
            except EnvironmentFailure:
                self._retry(instance, group)
            state.next_index += 1

    def _may_start(self) -> bool:
        batch, cap = self.run.training.batch_trajectories, self.staleness_cap
        if self.synchronous:
            return self.state.trainer_busy_until is None and self._outstanding() < batch
        if cap is not None and self._outstanding() >= (cap + 1) * batch:
            return False  # more would be too old by the time the trainer takes them
        return self._ready_trajectories() < self.clock.queue_limit_batches * batch

    def _outstanding(self) -> int:
        """Trajectories started and not yet taken by the trainer."""
        grouped = sum(len(members) for members in self.state.groups.values())
        return len(self.sampler.rollouts) + len(self.state.grading) + grouped + self._ready_trajectories()

    def _retry(self, instance: Instance, group: int) -> None:
        """An environment error says nothing about the policy: count it and sample the prompt again.

        A prompt that fails time and again is given up, its group with it, and the next prompt replaces it.
        """
        state, batch = self.state, self.run.training.batch_trajectories
        state.counters.invalid += 1
        if state.counters.invalid > MAX_INVALID_PER_BATCH * batch:
            raise SchedulingError(
                f"task {self.run.task.name}: {state.counters.invalid} trajectories ended in an environment "
                f"error before one batch of {batch} was full; mend the environment and start the run again"
            )
        state.failures[group] = state.failures.get(group, 0) + 1
        state.to_start.appendleft((instance, group))
        if self._given_up(group):
            state.to_start = deque(waiting for waiting in state.to_start if waiting[1] != group)
            state.groups.pop(group, None)

    def _given_up(self, group: int) -> bool:
        limit = MAX_FAILURES_PER_TRAJECTORY * self.run.sampling.group_size
        return self.state.failures.get(group, 0) >= limit

    def _graded(self, rollout: Rollout) -> None:
        state = self.state
        rollout.graded_tick = state.tick
        if rollout.status == "environment_error":
            self._retry(rollout.instance, rollout.group_id)
            return
        if self._given_up(rollout.group_id):
            return
        members = state.groups.setdefault(rollout.group_id, [])
        members.append(rollout)
        if len(members) < self.run.sampling.group_size:
            return
        del state.groups[rollout.group_id]
        if self._uninformative(members):
            state.counters.filtered_groups += 1
        else:
            state.ready.append(members)

    def _uninformative(self, members: list[Rollout]) -> bool:
        """Whether dynamic sampling replaces the group: its raw rewards are all equal."""
        limit = MAX_FILTERED_PER_BATCH * self.run.prompts_per_batch
        if not self.run.sampling.dynamic_sampling or self.state.counters.filtered_groups >= limit:
            return False
        return len({member.reward for member in members}) == 1

    def _ready_trajectories(self) -> int:
        return len(self.state.ready) * self.run.sampling.group_size

    def _drop_stale(self) -> None:
        """Drops queued trajectories (whole groups) with a token older than the staleness cap."""
        if self.staleness_cap is None:
            return
        oldest_allowed = self.state.version - self.staleness_cap
        kept = deque(group for group in self.state.ready if min(map(oldest_version, group)) >= oldest_allowed)
        dropped = len(self.state.ready) - len(kept)
        self.state.counters.dropped_stale += dropped * self.run.sampling.group_size
        self.state.ready = kept

    def _take(self) -> Taken:
        state = self.state
        groups = self.run.training.batch_trajectories // self.run.sampling.group_size
        rollouts = [rollout for _ in range(groups) for rollout in state.ready.popleft()]
        # The first to finish are the shortest: shuffled, so that minibatches do not differ in length.
        order = np.random.default_rng([self.run.seed, 2, state.tick]).permutation(len(rollouts))
        rollouts = [rollouts[place] for place in order]
        counters, state.counters = state.counters, Counters()
        trajectories = [rollout.to_trajectory() for rollout in rollouts]
        return Taken(trajectories, rollouts, state.tick, counters, state.prompts_started)

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs to go on as if it had never stopped."""
        return {
            "state": self.state,
            "rollouts": self.sampler.rollouts,
            "free_slots": self.sampler.free_slots,
            "generator": self.sampler.generator.get_state(),
            "sampler_version": self.sampler.version,
            "engine": self.sampler.engine.state_dict(used_tokens=self._longest_context()),
            "prompts_served": self.prompts.served,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restores what `state_dict` returned."""
        self.state = saved["state"]
        self.sampler.rollouts = saved["rollouts"]
        self.sampler.free_slots = saved["free_slots"]
        self.sampler.generator.set_state(saved["generator"])
        self.sampler.version = saved["sampler_version"]
        self.sampler.engine.load_state_dict(saved["engine"])
        self.prompts.served = saved["prompts_served"]

    def _longest_context(self) -> int:
        return max((rollout.fed for rollout in self.sampler.rollouts.values()), default=0)


def oldest_version(rollout: Rollout) -> int:
    """The version of the oldest weights that sampled a token of `rollout`."""
    return min(rollout.versions.values())


def schedule_lines(taken: Taken, step: int, update_ticks: int) -> Iterator[dict[str, Any]]:
    """Lines of the schedule log: weight loads since the last batch, its trajectories, the update."""
    for tick, version in taken.counters.loads:
        yield _schedule_line("load", step, end_tick=tick, last_version=version)
    for rollout in taken.rollouts:
        versions = rollout.versions.values()
        yield _schedule_line(
            "trajectory",
            step,
            index=rollout.index,
            slot=rollout.slot,
            start_tick=rollout.start_tick,
            end_tick=rollout.end_tick,
            graded_tick=rollout.graded_tick,
            taken_tick=taken.tick,
            first_version=min(versions),
            last_version=max(versions),
            action_tokens=len(versions),
            total_tokens=len(rollout.token_ids),
            group_id=rollout.group_id,
        )
    yield _schedule_line("update", step, start_tick=taken.tick, end_tick=taken.tick + update_ticks)


def _schedule_line(kind: str, step: int, **columns: int) -> dict[str, Any]:
    return dict.fromkeys(SCHEDULE_COLUMNS) | {"kind": kind, "step": step} | columns
