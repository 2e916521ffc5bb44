"""Attempts of software engineering in the agent executor: a plain agent asks for the model over HTTP.

A stand-in replaces the engine: it samples what the test scripts, with log-prob -0.5 and the versions given.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("vllm")
pytest.importorskip("openrlhf")

from math_standins import tokenizer
from test_swe_environment import ROW, PlainScaffold, attempt
from test_swe_proxy import action, ids

from evaluation.swe.proxy import RecordingProxy
from sao import config
from sao.background_server import BackgroundServer
from sao.environments.base import EnvironmentFailure
from sao.environments.swe import ModelAddress, SWEEnvironment
from sao.openrlhf import environment as adapter
from sao.openrlhf.engine import Action, LogprobError, SamplingError, sampling_parameters
from sao.openrlhf.environment import AgentExecutor, Answer, Ask

LIST, FINISH = ids(action("terminal", command="ls")), ids(action("finish", message="done"))


class Sampler:
    """Samples the scripted actions token by token, by version 4, from token number `new_at` on by 5."""

    def __init__(self, *actions: Sequence[int], new_at: int = 10**9) -> None:
        self.actions, self.new_at = list(actions), new_at
        self.contexts: list[list[int]] = []
        self.keys: list[str] = []
        self.sampled = 0

    async def sample_action(
        self, token_ids: Sequence[int], parameters: Any, key: str, complete: Callable[[list[int]], bool]
    ) -> Action:
        self.contexts.append(list(token_ids))
        self.keys.append(key)
        made = Action()
        for token in [*self.actions.pop(0), 9, 9][: parameters.max_tokens]:
            await asyncio.sleep(0)
            made.token_ids.append(token)
            made.logprobs.append(-0.5)
            made.versions.append(5 if self.sampled >= self.new_at else 4)
            self.sampled += 1
            if complete(made.token_ids):
                break
        return made


@contextlib.contextmanager
def executor_with(scaffold: Any) -> Iterator[AgentExecutor]:
    proxy = RecordingProxy(None, tokenizer(), "tiny", 4000)
    executor = AgentExecutor()
    executor.environment = SWEEnvironment([ROW], [], scaffold, proxy)
    with BackgroundServer(proxy.app()) as server:
        proxy.url = server.url
        yield executor
    assert proxy._conversations == {}  # whatever happened


async def play(executor: AgentExecutor, engine: Any, parameters: Any = None) -> Answer:
    [instance] = executor.environment.instances("train")
    ask = Ask(instance, index=7, group_id=3, progress=0.0, key="trajectory 7")
    return await executor.execute(ask, 1.0, parameters or sampling_parameters(), 4000, None, engine)


def test_a_whole_attempt_becomes_one_trajectory_token_by_token() -> None:
    """Weights arrive in the middle of its second action, and each token tells its version."""
    sampler = Sampler(LIST, FINISH, new_at=len(LIST) + 2)
    with executor_with(PlainScaffold(attempt(), turns=2)) as executor:
        answer = asyncio.run(play(executor, sampler))
    made = answer.trajectory
    assert answer.failure == "" and answer.sampling_ms >= 0
    assert (made.reward, made.status, made.index, made.group_id) == (1.0, "completed", 7, 3)
    assert [made.token_ids[start:end].tolist() for start, end in made.action_spans] == [LIST, FINISH]
    assert made.policy_versions[made.action_mask].tolist() == [4] * (len(LIST) + 2) + [5] * (len(FINISH) - 2)
    assert made.rollout_logprobs[made.action_mask].tolist() == [-0.5] * (len(LIST) + len(FINISH))
    # The engine continues the very tokens that it sampled, under the trajectory's own cache key.
    assert sampler.contexts[1][: len(sampler.contexts[0]) + len(LIST)] == sampler.contexts[0] + LIST
    assert sampler.keys == ["trajectory 7"] * 2


def test_a_scaffold_that_breaks_leaves_an_invalid_trajectory() -> None:
    with executor_with(PlainScaffold(EnvironmentFailure("no container"))) as executor:
        answer = asyncio.run(play(executor, Sampler(LIST)))
        assert answer == Answer(None, failure="no container")
        assert executor.environment.counts["invalid"] == 1


class Stubborn:
    """Asks once, and goes on working whatever the answer is, until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def attempt(self, row: dict[str, Any], address: ModelAddress) -> Any:
        try:
            PlainScaffold(attempt()).attempt(row, address)
        finally:
            self.let_go.wait(20)
        return attempt()


@pytest.mark.parametrize("error", [LogprobError("token 5 without log-prob"), SamplingError("engine")])
def test_what_fails_in_sampling_stops_the_run_at_once(error: Exception) -> None:
    """It is no environment error, which would be sampled again, and nobody waits for the agent's end."""

    class Broken:
        async def sample_action(self, *_: Any) -> Action:
            raise error

    scaffold = Stubborn()

    async def run(executor: AgentExecutor) -> None:
        began = time.monotonic()
        with pytest.raises(type(error), match=str(error)):
            await play(executor, Broken())
        assert time.monotonic() - began < 10
        scaffold.let_go.set()
        while threading.active_count() > threads + 1:  # the attempt's own thread ends
            await asyncio.sleep(0.01)

    with executor_with(scaffold) as executor:
        threads = threading.active_count()
        asyncio.run(asyncio.wait_for(run(executor), 30))


def test_what_is_being_sampled_when_an_attempt_ends_is_broken_off() -> None:
    """At a limit of time the agent is gone, and the engine would sample for nobody."""

    class Endless:
        broken_off = False

        async def sample_action(self, *_: Any) -> Action:
            started.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.broken_off = True
                raise
            return Action()

    def ask(row: dict[str, Any], address: ModelAddress) -> None:
        with contextlib.suppress(EnvironmentFailure):
            PlainScaffold(attempt()).attempt(row, address)

    class Impatient:
        def attempt(self, row: dict[str, Any], address: ModelAddress) -> Any:
            threading.Thread(target=ask, args=(row, address), daemon=True).start()
            started.wait(20)
            raise EnvironmentFailure("the worker was ended")

    engine, started = Endless(), threading.Event()

    async def run(executor: AgentExecutor) -> Answer:
        answer = await play(executor, engine)
        while not engine.broken_off:
            await asyncio.sleep(0.01)
        return answer

    with executor_with(Impatient()) as executor:
        assert asyncio.run(asyncio.wait_for(run(executor), 30)).failure == "the worker was ended"


def test_other_sampling_settings_are_refused() -> None:
    with executor_with(PlainScaffold(attempt())) as executor:  # noqa: SIM117
        with pytest.raises(SamplingError, match="temperature"):
            asyncio.run(play(executor, Sampler(LIST), sampling_parameters(0.5)))


def test_an_engine_opens_its_share_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five trajectories at once over two engines: three workers beside each."""

    class Opened(SWEEnvironment):
        def open(self, workers: int, max_tokens: int) -> None:
            self.opened = workers, max_tokens

    made = Opened([ROW], [], PlainScaffold(attempt()), RecordingProxy(None, tokenizer(), "tiny", 10))
    monkeypatch.setattr(adapter, "make_environment", lambda *_: made)
    run = config.resolve("sao_swe", "openrlhf_smoke_swe", 0)
    engines = run.cluster.engines.model_copy(update={"number": 2})
    changes = {
        "cluster": run.cluster.model_copy(update={"engines": engines}),
        "sampler": run.sampler.model_copy(update={"slots": 5, "max_tokens": 1000}),
    }
    AgentExecutor().configure(run.model_copy(update=changes))
    assert made.opened == (3, 1000)
