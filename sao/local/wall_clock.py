"""The local engine in wall-clock mode: for environments whose agents call the model over HTTP.

The policy is served by `sao.local.serve` from this process. A fixed number of rollouts is under way all the
time; a finished one waits in a queue, and the trainer takes the oldest batch while others go on. After an
update the server gets the new weights in the middle of requests, and each token carries the version that
sampled it. Nothing here repeats itself from run to run: for that there is the virtual clock of
`sao.local.schedule`.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any, Self

from transformers import Qwen3MoeForCausalLM

from sao import metrics
from sao.background_server import BackgroundServer
from sao.config import RunConfig
from sao.config_scales import ScaleSettings
from sao.environments.base import EnvironmentFailure, Instance
from sao.local.batching import BatchedEngine
from sao.local.decode import DecodeEngine
from sao.local.serve import Server
from sao.local.trainer import Trainer
from sao.streaming import Counters, PromptOrder, Waiting
from sao.trajectory import Batch, Trajectory

Rollout = Callable[[Instance, int, int], Trajectory]
"""Runs one attempt at an instance, with its index and group; blocks, and raises EnvironmentFailure."""


class ServedPolicy:
    """A policy behind `sao.local.serve`, from a thread of this process; open with `with`.

    `url` is the address of its API, `model` its name there.
    """

    url: str

    def __init__(
        self, policy: Qwen3MoeForCausalLM, scale: ScaleSettings, model: str, key: str | None = None
    ) -> None:
        settings = scale.sampler
        engine = DecodeEngine(policy, settings.slots, settings.max_tokens, settings.rounding)
        self.model, self.engine = model, BatchedEngine(engine)
        self._server = BackgroundServer(Server(self.engine, None, model, key).app())

    def __enter__(self) -> Self:
        self._server.__enter__()
        self.url = f"{self._server.url}/v1"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.engine.stop()
        self._server.__exit__(kind, error, trace)

    def load(self, policy: Qwen3MoeForCausalLM, version: int) -> None:
        """Sample with these weights from the next token on."""
        self.engine.load_weights(policy, version)


class Collector:
    """Keeps `concurrency` rollouts under way in threads, and hands out batches of whole groups.

    `reasons` holds why rollouts since the last batch were invalid. On leaving its `with` it starts no more
    and waits for none.
    """

    def __init__(self, run: RunConfig, instances: list[Instance], rollout: Rollout, concurrency: int) -> None:
        self.run, self.rollout, self.concurrency = run, rollout, concurrency
        self.prompts = PromptOrder(instances, run.seed)
        self.waiting: Waiting[Trajectory] = Waiting()
        self.reasons: list[str] = []
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="rollout")
        self._running: dict[Future[Trajectory], tuple[Instance, int]] = {}
        self._next_index = self._next_group = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Those under way may take hours; who closes their scaffold and engine ends them.
        self._pool.shutdown(wait=False, cancel_futures=True)

    def next_batch(self, version: int) -> list[Trajectory]:
        """Wait for the oldest batch whose tokens are recent enough for weights of `version`."""
        groups = self.run.training.batch_trajectories // self.run.sampling.group_size
        while True:
            self.waiting.drop_stale(self.run, version)
            self._start()
            if len(self.waiting.ready) >= groups:
                return [member for _ in range(groups) for member in self.waiting.ready.popleft()]
            done, _ = wait(self._running, return_when=FIRST_COMPLETED)
            for future in done:
                self._finished(future)

    def taken(self) -> tuple[Counters, list[str]]:
        """The counts since the last call, and the reasons of invalid rollouts in order."""
        taken = self.waiting.counters, self.reasons
        self.waiting.counters, self.reasons = Counters(), []
        return taken

    def _start(self) -> None:
        waiting, size = self.waiting, self.run.sampling.group_size
        limit = self.run.virtual_clock.queue_limit_batches * self.run.training.batch_trajectories
        while len(self._running) < self.concurrency:
            if not waiting.to_start:
                if waiting.ready_trajectories >= limit:
                    return
                waiting.to_start.extend([(self.prompts.next(), self._next_group)] * size)
                self._next_group += 1
            instance, group = waiting.to_start.popleft()
            future = self._pool.submit(self.rollout, instance, self._next_index, group)
            self._running[future] = instance, group
            self._next_index += 1

    def _finished(self, future: Future[Trajectory]) -> None:
        instance, group = self._running.pop(future)
        try:
            trajectory = future.result()
        except EnvironmentFailure as failure:
            self.reasons.append(str(failure))
            self.waiting.fail(self.run, instance, group, str(failure))
        else:
            self.waiting.end(self.run, group, trajectory)


def train(
    run: RunConfig, trainer: Trainer, served: ServedPolicy, collector: Collector
) -> Iterator[dict[str, Any]]:
    """Train for the run's updates, its critic-only steps first; yields one line of metrics per step."""
    version = 0
    for step in range(-run.critic_only_steps, run.training.updates):
        began = time.monotonic()
        batch = collector.next_batch(version)
        waited = time.monotonic() - began
        record = trainer.update(batch, step)
        record |= _batch_metrics(batch, version)
        if step >= 0:
            version += 1
            if version % run.virtual_clock.sync_interval == 0:
                served.load(trainer.policy, version)
        counts, reasons = collector.taken()
        yield record | {
            "step": step,
            "version": version,
            "invalid": counts.invalid,
            "invalid_reasons": reasons,
            "dropped_stale": counts.dropped_stale,
            "wait_seconds": waited,
            "step_seconds": time.monotonic() - began,
        }


def _batch_metrics(trajectories: Sequence[Trajectory], version: int) -> dict[str, Any]:
    batch = Batch.from_trajectories(trajectories)
    return metrics.staleness_statistics(batch.policy_versions, batch.action_mask, version) | {
        "reward_mean": batch.outcome.mean().item(),
        "positive_share": (batch.outcome > 0).double().mean().item(),
        "truncated": sum(trajectory.status == "truncated" for trajectory in trajectories),
        "trajectories": len(batch),
        "action_tokens": int(batch.action_mask.sum()),
        "total_tokens": int(batch.lengths.sum()),
        "mean_turns": sum(trajectory.turns for trajectory in trajectories) / len(batch),
    }
