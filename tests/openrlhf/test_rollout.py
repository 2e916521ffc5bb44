"""The actor that the trainer speaks to, here without Ray.

Engines are stand-ins with Ray's calling convention: they answer in real time and sample nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")
pytest.importorskip("openrlhf")

import ray
from local_engine import run_config, trajectory

from sao.openrlhf.environment import Answer, Ask
from sao.openrlhf.rollout import RolloutError, RolloutStream
from sao.openrlhf.settings import RunSettings
from sao.streaming import SchedulingError
from sao.trajectory import Trajectory

BATCH = 16


class Remote:
    """A method that is called with `.remote`."""

    def __init__(self, method: Callable[..., Awaitable[Any]]) -> None:
        self.remote = method


class StandIn:
    """An engine whose `answer` the test gives; it counts how many trajectories it plays at once."""

    def __init__(self, answer: Callable[[Ask], Awaitable[Answer]]) -> None:
        self.answer, self.configured, self.playing, self.most, self.played = answer, None, 0, 0, 0
        self.asked: list[tuple[Ask, float, Any]] = []
        self.configure = Remote(self._configure)
        self.generate_responses = Remote(self._generate)

    async def _configure(self, *given: Any) -> None:
        self.configured = given

    async def _generate(self, prompt: Ask, label: float, sampling_params: Any, **rest: Any) -> list[Answer]:
        self.playing += 1
        self.most = max(self.most, self.playing)
        self.asked.append((prompt, label, sampling_params))
        try:
            return [await self.answer(prompt)]
        finally:
            self.playing -= 1
            self.played += 1


def finished(ask: Ask, reward: float = 1.0) -> Answer:
    made: Trajectory = trajectory(
        [1, 2, 3],
        [(1, 3)],
        reward=reward,
        prompt_id=ask.instance.prompt_id,
        group_id=ask.group_id,
        index=ask.index,
    )
    return Answer(made, "", 3, {"note": ask.index})


async def at_once(ask: Ask) -> Answer:
    await asyncio.sleep(0.001)
    return finished(ask)


def stream_of(*engines: StandIn, row: str = "sao", **changes: Any) -> RolloutStream:
    changes.setdefault("training", {})["batch_trajectories"] = BATCH
    run = run_config(row, **changes)
    settings = RunSettings(directory=Path("run"), results="/results")
    strategy = SimpleNamespace(args=SimpleNamespace(sao=run, run_settings=settings))
    return RolloutStream("path", strategy, list(engines), vllm_lock=None)


def test_batches_flow_while_one_trajectory_takes_its_time() -> None:
    never = asyncio.Event

    async def answer(ask: Ask) -> Answer:
        if ask.index == 0:
            await never().wait()
        return await at_once(ask)

    async def work() -> list[int]:
        engine = StandIn(answer)
        stream = stream_of(engine)
        await stream.start(0)
        assert engine.configured == (stream.run, "/results")
        taken = []
        for version in range(1, 4):
            batch = await asyncio.wait_for(stream.take(), 10)
            taken += [made.index for made in batch.trajectories]
            assert all(r.start_tick <= r.end_tick <= r.graded_tick <= batch.tick for r in batch.rollouts)
            assert await stream.finish_update(version) >= batch.tick
        assert batch.counters.loads[-1][1] == 2
        return taken

    taken = asyncio.run(work())
    assert len(set(taken)) == len(taken) == 3 * BATCH and 0 not in taken


def test_all_engines_share_the_work_within_the_slots() -> None:
    async def work() -> list[StandIn]:
        engines = [StandIn(at_once) for _ in range(3)]
        stream = stream_of(*engines, sampler={"slots": 30})
        await stream.start(0)
        await stream.take()
        return engines

    engines = asyncio.run(work())
    assert [engine.most for engine in engines] == [10, 10, 10]


def test_training_settings_go_with_every_request() -> None:
    async def work() -> StandIn:
        engine = StandIn(at_once)
        stream = stream_of(engine)
        await stream.start(0)
        await stream.take()
        return engine

    engine = asyncio.run(work())
    keys = [ask.key for ask, _, _ in engine.asked]
    assert len(set(keys)) == len(keys)
    for _, temperature, parameters in engine.asked:
        assert temperature == parameters.temperature == 1.0 and parameters.logprobs == 0


def test_an_invalid_trajectory_is_counted_and_replaced() -> None:
    async def answer(ask: Ask) -> Answer:
        return Answer(None, "the tool is gone") if ask.index < 3 else await at_once(ask)

    async def work() -> Any:
        stream = stream_of(StandIn(answer))
        await stream.start(0)
        return await asyncio.wait_for(stream.take(), 10)

    taken = asyncio.run(work())
    assert taken.counters.invalid == 3 and len(taken.trajectories) == BATCH


def test_an_environment_that_always_fails_reaches_the_trainer() -> None:
    async def answer(ask: Ask) -> Answer:
        return Answer(None, "the tool is gone")

    async def work() -> None:
        stream = stream_of(StandIn(answer))
        await stream.start(0)
        await asyncio.wait_for(stream.take(), 30)

    with pytest.raises(SchedulingError, match="the last with: the tool is gone"):
        asyncio.run(work())


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ray.exceptions.RayTaskError("generate_responses", "", RuntimeError("the vLLM engine died")),
            "engine 0: the vLLM engine died; start the run again, and it goes on from its latest checkpoint",
        ),
        (
            ray.exceptions.RayActorError(error_msg="The actor died."),
            "engine 0 is gone: The actor died.; start",
        ),
    ],
)
def test_an_engine_that_dies_reaches_the_waiting_trainer(error: Exception, message: str) -> None:
    async def answer(ask: Ask) -> Answer:
        await asyncio.sleep(0.01)
        raise error

    async def work() -> None:
        stream = stream_of(StandIn(answer))
        await stream.start(0)
        await asyncio.wait_for(stream.take(), 10)

    with pytest.raises(RolloutError) as raised:
        asyncio.run(work())
    assert str(raised.value).startswith(message)


def test_synchronous_rows_wait_for_the_update() -> None:
    async def work() -> None:
        engine = StandIn(at_once)
        stream = stream_of(engine, row="sao_sync")
        await stream.start(0)
        await stream.take()
        await asyncio.sleep(0.05)
        assert engine.played == BATCH and engine.playing == 0
        await stream.finish_update(1)
        await stream.take()
        assert engine.played == 2 * BATCH

    asyncio.run(work())


def test_a_resumed_stream_starts_from_the_state_of_the_batch() -> None:
    async def work() -> tuple[list[str], list[str]]:
        straight = stream_of(StandIn(at_once))
        await straight.start(0)
        prompts = []
        for version in (1, 2):
            taken = await straight.take()
            prompts.append(sorted(made.prompt_id for made in taken.trajectories))
            await straight.finish_update(version)
            if version == 1:
                state = taken.state
        resumed = stream_of(StandIn(at_once))
        await resumed.load_state_dict(state)
        await resumed.start(1)
        taken = await resumed.take()
        return prompts[1], sorted(made.prompt_id for made in taken.trajectories)

    expected, found = asyncio.run(work())
    assert found == expected


def test_evaluation_samples_every_held_out_problem_and_notes_what_broke() -> None:
    """At its own temperature, a broken problem three times; one that stays broken has no trajectory."""
    attempts: dict[int, int] = {}

    async def answer(ask: Ask) -> Answer:
        attempts[ask.index] = attempts.get(ask.index, 0) + 1
        broken = ask.index == 0 or (ask.index == 1 and attempts[1] < 3)
        return Answer(None, "gone") if broken else finished(ask)

    async def work() -> tuple[list[Any], StandIn, RolloutStream]:
        engine = StandIn(answer)
        stream = stream_of(engine, evaluation={"runs_per_problem": 2, "temperature": 0.7})
        return await stream.evaluate(0.5), engine, stream

    sampled, engine, stream = asyncio.run(work())
    problems = stream.environment.instances("held_out")
    assert [one.instance for one in sampled] == problems * 2
    assert [one.trajectory is None for one in sampled[:3]] == [True, False, False]
    assert attempts[0] == attempts[1] == 3 and attempts[2] == 1
    assert sampled[5].details == {"note": 5}
    assert {(ask.progress, label, params.temperature) for ask, label, params in engine.asked} == {
        (0.5, 0.7, 0.7)
    }
    assert engine.most <= stream.run.sampler.slots
