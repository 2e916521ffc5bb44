"""Attempts as trajectories: reward, status, what is invalid; and the tiny policy's template."""

import asyncio
import threading
from typing import Any

import httpx
import pytest
from math_standins import tokenizer
from test_swe_proxy import TOOLS, ScriptedEngine, action

from evaluation.swe.proxy import RecordingProxy
from sao.background_server import BackgroundServer
from sao.environments.base import EnvironmentFailure
from sao.environments.chat_format import ChatFormat
from sao.environments.swe import Attempt, ModelAddress, SWEEnvironment
from sao.environments.swe_tiny import Script, actions_of, scripts_of, tiny_tokenizer
from sao.trajectory import Status

ROW = {"instance_id": "tiny__calc-1", "repo": "tiny/calc", "base_commit": "c0", "problem_statement": "add()"}


class PlainScaffold:
    """Asks the model over HTTP as an agent does, `turns` times, and gives the attempt it was told to give."""

    def __init__(self, attempt: Attempt | Exception, turns: int = 1, alter: bool = False) -> None:
        self.result, self.turns, self.alter = attempt, turns, alter

    def attempt(self, row: dict[str, Any], address: ModelAddress) -> Attempt:
        history: list[dict[str, Any]] = [{"role": "user", "content": row["problem_statement"]}]
        for _ in range(self.turns):
            body = {"model": address.model, "messages": history, "tools": TOOLS}
            headers = {"authorization": f"Bearer {address.key}"}
            answer = httpx.post(f"{address.url}/chat/completions", json=body, headers=headers)
            if not answer.is_success:
                raise EnvironmentFailure("the SDK failed")
            history.append(answer.json()["choices"][0]["message"])
            calls = history[-1].get("tool_calls", [])
            history += [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in calls]
            if self.alter:
                history[0]["content"] = "shorter"
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def attempt(ending: Any = "finish", outcome: str = "resolved", resolved: bool = True) -> Attempt:
    return Attempt(ending, outcome, resolved, turns=2, seconds=1.0)


def run(scaffold: PlainScaffold, max_tokens: int = 4000) -> tuple[Any, SWEEnvironment]:
    proxy = RecordingProxy(None, tokenizer(), "tiny", max_tokens)
    environment = SWEEnvironment([ROW], [], scaffold, proxy)
    engine = ScriptedEngine(*[action("terminal", command="ls") for _ in range(scaffold.turns)])
    with BackgroundServer(proxy.app()) as server:
        proxy.url = server.url
        try:
            trajectory = environment.rollout(environment.instances("train")[0], 3, 1, engine)
        except EnvironmentFailure as failure:
            return failure, environment
        finally:
            assert proxy._conversations == {}  # whatever happened
    return trajectory, environment


def test_a_resolved_task_earns_one() -> None:
    trajectory, environment = run(PlainScaffold(attempt(), turns=2))
    assert (trajectory.reward, trajectory.status) == (1.0, Status.COMPLETED)
    assert (trajectory.turns, trajectory.index, trajectory.group_id, trajectory.label) == (
        2,
        3,
        1,
        "tiny/calc",
    )
    assert trajectory.prompt_id == environment.instances("train")[0].prompt_id
    assert environment.counts == {"finish": 1, "resolved": 1} and trajectory.usable


@pytest.mark.parametrize("outcome", ["suspect", "tests_fail", "empty_patch", "does_not_apply", "timeout"])
def test_all_else_earns_nothing(outcome: str) -> None:
    trajectory, _ = run(PlainScaffold(attempt(outcome=outcome, resolved=False)))
    assert (trajectory.reward, trajectory.status) == (0.0, Status.COMPLETED)


@pytest.mark.parametrize("ending", ["turns", "context", "wall_clock"])
def test_limits_truncate_and_the_patch_so_far_counts(ending: str) -> None:
    trajectory, _ = run(PlainScaffold(attempt(ending)))
    assert (trajectory.reward, trajectory.status) == (1.0, Status.TRUNCATED)


@pytest.mark.parametrize(("resolved", "reward"), [(True, 1.0), (False, 0.0)])
def test_a_policy_that_ended_its_server_has_ended_its_attempt(resolved: bool, reward: float) -> None:
    """It is trained on, and not sampled again."""
    outcome = "resolved" if resolved else "empty_patch"
    trajectory, environment = run(PlainScaffold(attempt("server_ended", outcome, resolved)))
    assert (trajectory.reward, trajectory.status) == (reward, Status.COMPLETED)
    assert environment.counts == {"server_ended": 1, outcome: 1}


def test_an_action_cut_for_want_of_tokens_truncates() -> None:
    trajectory, _ = run(PlainScaffold(attempt("text", "empty_patch", False)), max_tokens=90)
    assert len(trajectory.token_ids) == 90 and trajectory.status == Status.TRUNCATED


@pytest.mark.parametrize(
    ("scaffold", "reason"),
    [
        (PlainScaffold(EnvironmentFailure("no container")), "no container"),
        (PlainScaffold(attempt(), turns=2, alter=True), "message 0 (user) has another content"),
        (PlainScaffold(attempt(), turns=0), "the agent ended without a call of the model"),
    ],
)
def test_what_says_nothing_of_the_policy_is_invalid_and_counted(scaffold: PlainScaffold, reason: str) -> None:
    failure, environment = run(scaffold)
    assert isinstance(failure, EnvironmentFailure) and reason in str(failure)
    assert environment.counts == {"invalid": 1, f"invalid: {failure}": 1}


def test_a_fault_of_the_program_is_no_environment_error() -> None:
    """It must stop the run, not be tried again."""
    proxy = RecordingProxy(ScriptedEngine(), tokenizer(), "tiny", 4000)
    environment = SWEEnvironment([ROW], [], PlainScaffold(TypeError("a bug"), turns=0), proxy)
    with pytest.raises(TypeError, match="a bug"):
        environment.rollout(environment.instances("train")[0])
    assert proxy._conversations == {}


def test_attempts_at_once_count_once_each() -> None:
    proxy = RecordingProxy(None, tokenizer(), "tiny", 4000)
    environment = SWEEnvironment([ROW], [], PlainScaffold(attempt()), proxy)
    rewards: list[float] = []

    def one() -> None:
        engine = ScriptedEngine(action("finish"))
        rewards.append(environment.rollout(environment.instances("train")[0], engine=engine).reward)

    with BackgroundServer(proxy.app()) as server:
        proxy.url = server.url
        threads = [threading.Thread(target=one) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert rewards == [1.0] * 6 and environment.counts == {"finish": 6, "resolved": 6}


DESCRIBED = {"name": "tiny__calc-1", "solution": {"a.py": [["a - b\n", "a + b\n"]], "b.py": [["1", "2"]]}}


def test_scripts_make_all_edits_or_all_but_the_last() -> None:
    good, bad = scripts_of(DESCRIBED, "/testbed")
    assert [name for name, _ in good.calls] == ["file_editor", "file_editor", "finish"] and good.resolves
    assert [name for name, _ in bad.calls] == ["file_editor", "finish"] and not bad.resolves
    assert good.calls[1][1] == {
        "command": "str_replace",
        "path": "/testbed/b.py",
        "old_str": "1",
        "new_str": "2",
    }


def test_the_compact_template_leaves_out_what_a_tiny_policy_cannot_read() -> None:
    scripts = scripts_of(DESCRIBED, "/testbed")
    vocabulary = tiny_tokenizer(scripts, ["add() subtracts"])
    proxy = RecordingProxy(None, vocabulary, "tiny", 2000)
    chat = ChatFormat(vocabulary, TOOLS)
    engine = ScriptedEngine()
    address = proxy.open(engine)
    history: list[dict[str, Any]] = [
        {"role": "system", "content": "You are an agent. " * 1000},
        {"role": "user", "content": "Look:\n<issue>\nadd() subtracts\n\nIt should add.\n</issue>\nGo on."},
    ]

    async def converse() -> None:
        headers = {"authorization": f"Bearer {address.key}"}
        transport = httpx.ASGITransport(app=proxy.app())
        async with httpx.AsyncClient(transport=transport, base_url="http://p", headers=headers) as client:
            for ids in actions_of(scripts[0], chat):
                engine.answers.append(completion(ids))
                body = {"model": "tiny", "messages": history, "tools": TOOLS}
                answer = await client.post("/v1/chat/completions", json=body)
                history.append(answer.json()["choices"][0]["message"])
                call = history[-1]["tool_calls"][0]
                history.append({"role": "tool", "tool_call_id": call["id"], "content": "x" * 500 + "END"})

    asyncio.run(converse())
    record = proxy.close(address)
    text = vocabulary.decode(record.token_ids)
    assert text.startswith(
        "<|im_start|>system\nTools: terminal finish<|im_end|>\n<|im_start|>user\nadd() subtracts<|im_end|>\n"
    )
    assert "agent" not in text and "should add" not in text and "END" not in text
    said = [call for message in history for call in message.get("tool_calls", [])]
    assert [call["function"]["name"] for call in said] == [name for name, _ in scripts[0].calls]
    assert len(record.token_ids) < 600


def completion(ids: list[int]) -> Any:
    from evaluation.endpoint import Completion

    return Completion(ids, [-0.5] * len(ids), "stop", [0] * len(ids))


def test_script_of_one_edit_has_an_empty_failure() -> None:
    _, bad = scripts_of({"name": "t", "solution": {"a.py": [["x", "y"]]}}, "/testbed")
    assert bad == Script("t", (("finish", {"message": "done"}),), False)
