"""A backend's engine behind the recording proxy: sampling that nobody waits for is broken off."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from evaluation.endpoint import EndpointFailure
from evaluation.swe.engines import ActionEngine


class Endless:
    """Samples an action that never ends."""

    def __init__(self) -> None:
        self.began = asyncio.Event()

    async def sample_action(self, *arguments: Any) -> Any:
        self.began.set()
        await asyncio.Event().wait()


def parameters() -> Any:
    return SimpleNamespace(clone=lambda: SimpleNamespace(max_tokens=0))


@pytest.mark.parametrize("closed_first", [True, False])
def test_sampling_ends_with_its_trajectory(closed_first: bool) -> None:
    """Whether it is under way when the trajectory is closed, or begins at that moment."""

    async def play() -> None:
        sampler = Endless()
        engine = ActionEngine(sampler, parameters(), "key", asyncio.get_running_loop())
        if closed_first:
            engine.close()
        sampling = asyncio.ensure_future(engine.complete([1], 4, [2], 0))
        if not closed_first:
            await sampler.began.wait()
            engine.close()
        ended, _ = await asyncio.wait({sampling}, timeout=5)
        assert ended, "cancelling it here would look like an end of its own"
        with pytest.raises(EndpointFailure, match="the trajectory is closed"):
            await sampling
        assert not engine.failure.done()

    asyncio.run(play())
