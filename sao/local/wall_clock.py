"""The local engine in wall-clock mode: for environments whose agents call the model over HTTP.

The policy is served by `sao.local.serve` from this process. A fixed number of rollouts is under way all the
time; a finished one waits in a queue, and the trainer takes the oldest batch while others go on. After an
update the server gets the new weights in the middle of requests, and each token carries the version that
sampled it. Nothing here repeats itself from run to run: for that there is the virtual clock of
`sao.local.schedule`.
"""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any, Self

from transformers import Qwen3MoeForCausalLM

from sao.background_server import BackgroundServer
from sao.config import RunConfig
from sao.config_scales import ScaleSettings
from sao.environments.base import EnvironmentFailure, Instance
from sao.local.batching import BatchedEngine
from sao.local.decode import DecodeEngine
from sao.local.serve import Server
from sao.streaming import Taken
from sao.trajectory import Trajectory
from sao.wall_clock_stream import Request, Stream

Rollout = Callable[[Request], tuple[Trajectory, int]]
"""Runs one attempt; returns it and the milliseconds to its last token. Blocks; raises EnvironmentFailure."""


class ServedPolicy:
    """A policy behind `sao.local.serve`, from a thread of this process; open with `with`.

    `url` is the address of its API, `model` its name there; `rounding` of the weights is the sampler's
    unless it is given.
    """

    url: str

    def __init__(
        self,
        policy: Qwen3MoeForCausalLM,
        scale: ScaleSettings,
        model: str,
        key: str | None = None,
        rounding: str | None = None,
    ) -> None:
        settings = scale.sampler
        engine = DecodeEngine(policy, settings.slots, settings.max_tokens, rounding or settings.rounding)
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
    """The schedule of a run on the wall clock; a tick is a millisecond. Has what `Schedule` has for a run.

    `rollout` runs in threads, as many at once as the run has slots. `load(version)` gives the sampler the
    trainer's weights. `reasons` holds why rollouts since they were last taken were invalid. On leaving its
    `with` it starts no more and waits for none.
    """

    def __init__(
        self, run: RunConfig, instances: list[Instance], rollout: Rollout, load: Callable[[int], None]
    ) -> None:
        self.run, self.rollout, self.load = run, rollout, load
        self.stream = Stream(run, instances)
        self.reasons: list[str] = []
        self._pool = ThreadPoolExecutor(run.sampler.slots, thread_name_prefix="rollout")
        self._running: dict[Future[tuple[Trajectory, int]], Request] = {}
        self._taken_tick = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Those under way may take hours; who closes their scaffold and engine ends them.
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def version(self) -> int:
        """Updates of the policy so far."""
        return self.stream.version

    def begin(self, version: int) -> None:
        """The sampler holds the weights of `version`, and the clock of this attempt starts."""
        self.stream.begin(version)

    def next_batch(self) -> Taken:
        """Wait for the batch that is ready first, of tokens that are recent enough."""
        while not self.stream.batch_ready():
            self._start()
            done, _ = wait(self._running, return_when=FIRST_COMPLETED)
            for future in done:
                self._finished(future)
        taken = self.stream.take()
        self._taken_tick = taken.tick
        self._start()  # they go on while the trainer is busy
        return taken

    def end_update(self, trains_policy: bool) -> int:
        """Have the sampler get new weights where they are due; returns the ticks that the update took."""
        version = self.stream.version + trains_policy
        due = version % self.run.virtual_clock.sync_interval == 0 or self.stream.synchronous
        if loaded := trains_policy and due:
            self.load(version)
        tick = self.stream.finish_update(version, loaded)
        self._start()
        return tick - self._taken_tick

    def taken_reasons(self) -> list[str]:
        """The reasons of invalid rollouts since the last call."""
        taken, self.reasons = self.reasons, []
        return taken

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: rollouts under way start again, finished ones are kept."""
        return self.stream.state_dict() | {"version": self.version}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; `begin` follows."""
        self.stream.load_state_dict(saved)
        self.stream.version = saved["version"]

    def _start(self) -> None:
        for request in self.stream.start_requests():
            self._running[self._pool.submit(self.rollout, request)] = request

    def _finished(self, future: Future[tuple[Trajectory, int]]) -> None:
        request = self._running.pop(future)
        try:
            trajectory, sampling_ms = future.result()
        except EnvironmentFailure as failure:
            self.reasons.append(str(failure))
            self.stream.fail(request, str(failure))
        else:
            self.stream.finish(request, trajectory, sampling_ms)
