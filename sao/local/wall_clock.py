"""The local engine in wall-clock mode: for environments whose agents call the model over HTTP.

The policy is served by `sao.local.serve` from this process. A fixed number of rollouts is under way all the
time; a finished one waits in a queue, and the trainer takes the oldest batch while others go on. After an
update the server gets the new weights in the middle of requests, and each token carries the version that
sampled it. Nothing here repeats itself from run to run: for that there is the virtual clock of
`sao.local.schedule`.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from transformers import Qwen3MoeForCausalLM

from sao import metrics
from sao.background_server import BackgroundServer
from sao.config import ConfigError, RunConfig
from sao.environments.base import EnvironmentFailure, Instance
from sao.local.batching import BatchedEngine
from sao.local.decode import DecodeEngine
from sao.local.serve import Server
from sao.local.trainer import Trainer
from sao.streaming import (
    MAX_FAILURES_PER_TRAJECTORY,
    MAX_INVALID_PER_BATCH,
    PromptOrder,
    SchedulingError,
)
from sao.trajectory import Batch, Trajectory

Rollout = Callable[[Instance, int, int], Trajectory]
"""Runs one attempt at an instance, with its index and group; blocks, and raises EnvironmentFailure."""


class ServedPolicy:
    """A policy behind `sao.local.serve`, from a thread of this process; open with `with`.

    `url` is the address of its API, `model` its name there.
    """

    url: str

    def __init__(
        self, policy: Qwen3MoeForCausalLM, run: RunConfig, model: str, key: str | None = None
    ) -> None:
        settings = run.sampler
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


@dataclass
class Counts:
    """What happened since the last batch was taken; reasons of invalid rollouts in order."""

    invalid: int = 0
    dropped_stale: int = 0
    reasons: list[str] = field(default_factory=list)


class Collector:
    """Keeps `concurrency` rollouts under way in threads, and hands out batches of whole groups.

    On leaving its `with` it starts no more and waits for none. Raises ConfigError for dynamic sampling.
    """

    def __init__(self, run: RunConfig, instances: list[Instance], rollout: Rollout, concurrency: int) -> None:
        if run.sampling.dynamic_sampling:
            raise ConfigError(
                "sampling.dynamic_sampling: the wall-clock engine replaces no groups; set it to false, or "
                "use the engine with the virtual clock"
            )
        self.run, self.rollout, self.concurrency = run, rollout, concurrency
        self.prompts = PromptOrder(instances, run.seed)
        self.counts = Counts()
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="rollout")
        self._running: dict[Future[Trajectory], tuple[Instance, int]] = {}
        self._to_start: deque[tuple[Instance, int]] = deque()
        self._groups: dict[int, list[Trajectory]] = {}
        self._failures: dict[int, int] = {}
        self._ready: deque[list[Trajectory]] = deque()
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
            self._drop_stale(version)
            if len(self._ready) >= groups:
                self._start()
                return [member for _ in range(groups) for member in self._ready.popleft()]
            self._start()
            done, _ = wait(self._running, return_when=FIRST_COMPLETED)
            for future in done:
                self._finished(future)

    def taken(self) -> Counts:
        """The counts since the last call."""
        counts, self.counts = self.counts, Counts()
        return counts

    def _start(self) -> None:
        limit = self.run.virtual_clock.queue_limit_batches * self.run.training.batch_trajectories
        while len(self._running) < self.concurrency:
            if not self._to_start:
                if len(self._ready) * self.run.sampling.group_size >= limit:
                    return
                self._to_start.extend(
                    [(self.prompts.next(), self._next_group)] * self.run.sampling.group_size
                )
                self._next_group += 1
            instance, group = self._to_start.popleft()
            future = self._pool.submit(self.rollout, instance, self._next_index, group)
            self._running[future] = instance, group
            self._next_index += 1

    def _finished(self, future: Future[Trajectory]) -> None:
        instance, group = self._running.pop(future)
        try:
            trajectory = future.result()
        except EnvironmentFailure as failure:
            self._failed(instance, group, str(failure))
            return
        if self._failures.get(group, 0) >= self._most_failures:
            return
        members = self._groups.setdefault(group, [])
        members.append(trajectory)
        if len(members) == self.run.sampling.group_size:
            self._ready.append(self._groups.pop(group))

    @property
    def _most_failures(self) -> int:
        return MAX_FAILURES_PER_TRAJECTORY * self.run.sampling.group_size

    def _failed(self, instance: Instance, group: int, reason: str) -> None:
        """Count an invalid rollout and try its task again; one that fails time and again is given up."""
        batch = self.run.training.batch_trajectories
        self.counts.invalid += 1
        self.counts.reasons.append(reason)
        if self.counts.invalid > MAX_INVALID_PER_BATCH * batch:
            raise SchedulingError(
                f"{self.counts.invalid} rollouts were invalid before one batch of {batch} was full, the last "
                f"for: {reason}; mend the environment and start again"
            )
        self._failures[group] = self._failures.get(group, 0) + 1
        if self._failures[group] < self._most_failures:
            self._to_start.appendleft((instance, group))
            return
        self._to_start = deque(waiting for waiting in self._to_start if waiting[1] != group)
        self._groups.pop(group, None)

    def _drop_stale(self, version: int) -> None:
        cap = self.run.training.max_staleness
        if cap is None:
            return
        kept = deque(group for group in self._ready if min(map(oldest_version, group)) >= version - cap)
        dropped = len(self._ready) - len(kept)
        self.counts.dropped_stale += dropped * self.run.sampling.group_size
        self._ready = kept


def oldest_version(trajectory: Trajectory) -> int:
    """The version of the oldest weights that sampled a token of the trajectory."""
    return int(trajectory.policy_versions[trajectory.action_mask].min())


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
        counts = collector.taken()
        yield record | {
            "step": step,
            "version": version,
            "invalid": counts.invalid,
            "invalid_reasons": counts.reasons,
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
