"""One run in the local engine on the wall clock: its agents call the policy over HTTP.

The run directory is that of every run; a tick of its schedule is a millisecond. Nothing here repeats itself
from run to run. A stopped run goes on from its checkpoint with its data order, versions and finished
trajectories, and starts those under way again.
"""

import time
from contextlib import ExitStack, closing
from typing import Any

from transformers import Qwen3MoeForCausalLM

from sao.environments.swe import SWEEnvironment
from sao.local.attempts import MODEL_NAME, sample_attempts
from sao.local.run import LocalRun
from sao.local.wall_clock import Collector, ServedPolicy
from sao.step_log import HeldOut, evaluation_lines
from sao.trajectory import Trajectory
from sao.wall_clock_stream import Request


class TimedEngine:
    """An endpoint that notes when it sampled last, in nanoseconds on the clock of `time.monotonic_ns`."""

    def __init__(self, endpoint: Any) -> None:
        self.endpoint, self.sampled_at = endpoint, time.monotonic_ns()

    async def complete(self, *arguments: Any) -> Any:
        """The endpoint's completion."""
        completion = await self.endpoint.complete(*arguments)
        self.sampled_at = time.monotonic_ns()
        return completion


class WallClockRun(LocalRun):
    """A run whose attempts are made through a scaffold."""

    environment: SWEEnvironment
    collector: Collector

    def _make_schedule(self, policy: Qwen3MoeForCausalLM) -> Collector:
        self.served = ServedPolicy(policy, self.run, MODEL_NAME)

        def rollout(request: Request) -> tuple[Trajectory, int]:
            began, engine = time.monotonic_ns(), TimedEngine(self.endpoint)
            trajectory = self.environment.rollout(request.instance, request.index, request.group_id, engine)
            return trajectory, (engine.sampled_at - began) // 1_000_000

        def load(version: int) -> None:
            self.served.load(self.trainer.policy, version)

        self.collector = Collector(self.run, self.environment.instances("train"), rollout, load)
        return self.collector

    def train(self) -> None:
        """Runs the remaining steps; raises RunFailure where the run cannot go on."""
        from evaluation.endpoint import Endpoint

        with ExitStack() as stack:
            stack.enter_context(self.served)
            stack.enter_context(self.collector)
            stack.enter_context(closing(self.environment))
            self.environment.open(self.run.sampler.slots, self.run.sampler.max_tokens)
            self.endpoint = Endpoint(self.served.url, MODEL_NAME)
            version = max(self.step, 0)
            self.served.load(self.trainer.policy, version)
            self.collector.begin(version)
            super().train()

    def _train_step(self) -> dict[str, Any]:
        record = super()._train_step()
        if reasons := self.collector.taken_reasons():
            with self.directory.attempt_log_path.open("a") as log:
                log.writelines(f"step {record['step']}: invalid: {reason}\n" for reason in reasons)
        return record

    def _sample_held_out(self) -> tuple[list[Trajectory], list[dict[str, Any]]]:
        held_out = self.environment.instances("held_out") * self.run.evaluation.runs_per_problem
        sampled = sample_attempts(
            self.run, self.environment, self.trainer.policy, held_out, "none", version=self.step
        )
        samples = (HeldOut(*pair).sample for pair in zip(held_out, sampled, strict=True))
        usable = [trajectory for trajectory in sampled if trajectory is not None]
        return usable, evaluation_lines(samples, self.run.task.name, self.step)
