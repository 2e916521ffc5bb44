"""The asynchronous schedule on a virtual clock.

One tick samples one token in every busy slot. A finished trajectory is graded after a heavy-tailed latency
and then queued: at once when it stands alone, or when the last member of its group is there. The trainer
takes the oldest batch, is busy for a set number of ticks, and every `sync_interval` updates the sampler gets
the new weights, at a token boundary and in the middle of trajectories. Nothing depends on wall-clock time, so
the same configuration and seed give the same run on any load.
"""

import heapq
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from transformers import Qwen3MoeForCausalLM

from sao.config import RunConfig
from sao.environments.base import Environment, EnvironmentFailure
from sao.local.decode import DecodeEngine
from sao.local.sampler import Rollout, Sampler
from sao.streaming import Counters, PromptOrder, Taken, Waiting


@dataclass
class ScheduleState(Waiting[Rollout]):
    """All that changes as the clock runs (pickled into checkpoints)."""

    tick: int = 0
    version: int = 0
    trainer_busy_until: int | None = None
    trainer_trains_policy: bool = False
    next_index: int = 0
    next_group: int = 0
    prompts_started: int = 0
    grading: list[tuple[int, int, Rollout]] = field(default_factory=list)


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

    @property
    def version(self) -> int:
        """Updates of the policy so far."""
        return self.state.version

    def next_batch(self) -> Taken:
        """Advances the clock until the trainer is free and a batch is ready, and takes the oldest one."""
        state = self.state
        while True:
            self._finish_update()
            if state.trainer_busy_until is None:
                state.drop_stale(self.run, state.version)
                if self.state.ready_trajectories >= self.run.training.batch_trajectories:
                    return self._take()
            self._advance()

    def end_update(self, trains_policy: bool) -> int:
        """The trainer computed an update: on this clock it is busy with it from now.

        Returns the ticks that it takes; new weights count from its end.
        """
        self.state.trainer_busy_until = self.state.tick + self.clock.update_ticks
        self.state.trainer_trains_policy = trains_policy
        return self.clock.update_ticks

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
            except EnvironmentFailure as failure:
                state.fail(self.run, instance, group, str(failure))
            state.next_index += 1

    def _may_start(self) -> bool:
        batch, cap = self.run.training.batch_trajectories, self.staleness_cap
        trainer_busy = self.state.trainer_busy_until is not None
        if self.synchronous:
            return not trainer_busy and self._outstanding() < batch
        in_training = trainer_busy and self.state.trainer_trains_policy  # the version grows at its end
        if cap is not None and self._outstanding() >= (cap + 1 - in_training) * batch:
            return False  # more would be too old by the time the trainer takes them
        return self.state.ready_trajectories < self.clock.queue_limit_batches * batch

    def _outstanding(self) -> int:
        """Trajectories started and not yet taken by the trainer."""
        state = self.state
        under_way = len(self.sampler.rollouts) + len(state.grading)
        return under_way + state.grouped_trajectories + state.ready_trajectories

    def _graded(self, rollout: Rollout) -> None:
        rollout.graded_tick = self.state.tick
        if rollout.status == "environment_error":
            self.state.fail(self.run, rollout.instance, rollout.group_id, rollout.failure)
        else:
            self.state.end(self.run, rollout.group_id, rollout)

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
