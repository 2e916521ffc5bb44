"""Engines of other backends behind the recording proxy.

A streaming backend samples one action at a time and tells for each token its log-prob and the version of
the weights: `sample_action` of the OpenRLHF backend's rollout engine. Its coroutines belong to its own event
loop.
"""

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from evaluation.endpoint import Completion, EndpointFailure


class SampledAction(Protocol):
    """Tokens of one action with the log-prob and weight version of each."""

    token_ids: list[int]
    logprobs: list[float]
    versions: list[int]


class ActionSampler(Protocol):
    """Samples after `token_ids` until `complete` calls the action whole, or `parameters.max_tokens`.

    `trajectory_key` is the same for all actions of a trajectory and belongs to no other.
    """

    async def sample_action(
        self,
        token_ids: Sequence[int],
        parameters: Any,
        trajectory_key: str,
        complete: Callable[[list[int]], bool],
    ) -> SampledAction: ...


class ActionEngine:
    """An ActionSampler as the proxy's engine, for one trajectory.

    `parameters` are the backend's sampling settings (with `clone` and `max_tokens`), which the backend has
    checked; `loop` is the event loop that its coroutines belong to. `failure`, a future of that loop, gets
    the exception with which sampling failed: that is no fault of the environment. `sampled_at` is the time at
    which the last action was sampled (nanoseconds on the clock of `time.monotonic_ns`).
    """

    def __init__(
        self, sampler: ActionSampler, parameters: Any, trajectory_key: str, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.sampler, self.parameters, self.trajectory_key = sampler, parameters, trajectory_key
        self.loop = loop
        self.failure: asyncio.Future[Exception] = loop.create_future()
        self.sampled_at = time.monotonic_ns()
        self._closed = False
        self._sampling: set[concurrent.futures.Future[SampledAction]] = set()

    async def complete(
        self, token_ids: Sequence[int], max_tokens: int, stop_ids: Sequence[int], seed: int
    ) -> Completion:
        """Sample one action on the backend's loop; the backend's own seed rules.

        Raises EndpointFailure where sampling fails or the trajectory is closed.
        """

        def whole(action: list[int]) -> bool:
            return bool(action) and action[-1] in stop_ids

        parameters = self.parameters.clone()
        parameters.max_tokens = max_tokens
        action = await self._sampled(token_ids, parameters, whole)
        self.sampled_at = time.monotonic_ns()
        reason = "stop" if whole(action.token_ids) else "length"
        if reason == "length" and len(action.token_ids) < max_tokens:
            reason = "abort"  # the engine gave up in the middle; the proxy asks for the rest
        return Completion(action.token_ids, action.logprobs, reason, action.versions)

    async def _sampled(
        self, token_ids: Sequence[int], parameters: Any, whole: Callable[[list[int]], bool]
    ) -> SampledAction:
        sampling = self.sampler.sample_action(token_ids, parameters, self.trajectory_key, whole)
        future = asyncio.run_coroutine_threadsafe(sampling, self.loop)
        self._sampling.add(future)
        if self._closed:  # meanwhile, in the backend's thread
            future.cancel()
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            raise EndpointFailure("the trajectory is closed") from None
        except Exception as error:
            self.loop.call_soon_threadsafe(self._failed, error)
            raise EndpointFailure(f"sampling failed: {error}") from error
        finally:
            self._sampling.discard(future)

    def _failed(self, error: Exception) -> None:
        if not self.failure.done():
            self.failure.set_result(error)

    def close(self) -> None:
        """Break off what is being sampled, now and later: nobody waits for it any more."""
        self._closed = True
        for future in tuple(self._sampling):
            future.cancel()
