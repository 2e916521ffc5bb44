"""The client of an endpoint: what it asks for, what it retries, and what it says when something is wrong."""

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from math_standins import (
    SIX_TIMES_SEVEN,
    PlainGrader,
    PlainTool,
    ScriptedModel,
    call,
    chat,
    ids,
    says,
    serving,
    tokenizer,
)
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from evaluation.endpoint import Endpoint, EndpointError, EndpointFailure
from evaluation.math.conversation import Attempt, ChatAttempt, play_tokens, seeds
from sao.environments.chat_format import PYTHON_TOOL
from sao.environments.python_math import Limits, PythonMath, question
from sao.trajectory import Trajectory

POOL = ThreadPoolExecutor(2)


def answering(prompt: str, seed: int) -> str:
    """Compute with the tool, then answer with what it printed."""
    if "<tool_response>" not in prompt:
        return call("print(6 * 7)")
    return says(prompt.rpartition("<tool_response>\n")[2].partition("\n")[0])


def ask(
    url: str, method: str, *given: Any, model: str = "scripted", key: str = "none", retries: int = 2
) -> Any:
    async def run() -> Any:
        async with Endpoint(url, model, key, timeout=20, retries=retries) as endpoint:
            return await getattr(endpoint, method)(*given)

    return asyncio.run(run())


def play(url: str, max_tokens: int = 600, tool: PlainTool | None = None) -> Attempt:
    shared = PythonMath(chat(), Limits(max_tokens, 5), PlainGrader(), tool or PlainTool())

    async def run() -> Attempt:
        async with Endpoint(url, "scripted", timeout=20, retries=2) as endpoint:
            return await play_tokens(shared, SIX_TIMES_SEVEN, endpoint, seeds("s"), POOL)

    return asyncio.run(run())


def play_chat(url: str, max_tokens: int = 2000, max_turns: int = 5, tool: PlainTool | None = None) -> Attempt:
    async def run() -> Attempt:
        async with Endpoint(url, "scripted", timeout=20, retries=0) as endpoint:
            limits = Limits(max_tokens, max_turns)
            return await ChatAttempt(
                SIX_TIMES_SEVEN, endpoint, limits, PlainGrader(), tool or PlainTool()
            ).play(POOL)

    return asyncio.run(run())


COMPLETE = ("complete", [2, 20], 30, (3,), 1)


def test_requests_carry_the_protocol() -> None:
    model = ScriptedModel(answering)
    with model.serve() as url:
        played = play(url)
    first, second = model.requests
    assert (first["temperature"], first["top_p"], first["model"]) == (1.0, 1.0, "scripted")
    # Unsaid, vLLM would take these from the model's generation_config.json, top-k 20 for Qwen3.
    assert (first["top_k"], first["min_p"], first["repetition_penalty"]) == (0, 0.0, 1.0)
    assert (first["logprobs"], first["return_token_ids"]) == (0, True)
    assert first["stop_token_ids"] == list(chat().stop_ids)
    assert first["max_tokens"] == 600 - len(first["prompt"])
    # The second prompt is the first, the action and the observation: nothing is tokenised anew.
    action = ids(call("print(6 * 7)"))
    assert second["prompt"] == first["prompt"] + action + chat().observation_ids(["42"])
    assert second["max_tokens"] == 600 - len(second["prompt"])
    assert first["seed"] != second["seed"]
    assert played.outcome.grade.verdict == "right"


def test_an_attempt_makes_a_trajectory() -> None:
    with ScriptedModel(answering).serve() as url:
        played = play(url)
    logprobs = [float("nan")] * len(played.token_ids)
    versions = [-1] * len(played.token_ids)
    values = iter(played.logprobs)
    for start, end in played.action_spans:
        for place in range(start, end):
            logprobs[place], versions[place] = next(values), 3
    made = Trajectory(
        token_ids=played.token_ids,  # type: ignore[arg-type]
        action_spans=played.action_spans,  # type: ignore[arg-type]
        rollout_logprobs=logprobs,  # type: ignore[arg-type]
        policy_versions=versions,  # type: ignore[arg-type]
        reward=played.outcome.reward,
    )
    assert made.turns == played.turns == 2
    assert made.num_action_tokens == played.action_tokens == len(played.logprobs)
    texts = [tokenizer().decode(played.token_ids[start:end]) for start, end in played.action_spans]
    assert texts == [call("print(6 * 7)") + "<|im_end|>", says("42") + "<|im_end|>"]


def test_seeds_differ_by_sample_and_request_and_repeat() -> None:
    one, again, other = seeds(0, "p1", 3), seeds(0, "p1", 3), seeds(0, "p1", 4)
    assert [one(0), one(1)] == [again(0), again(1)]
    assert len({one(0), one(1), other(0), other(1)}) == 4
    assert all(0 <= one(number) < 2**31 for number in range(50))


@pytest.mark.parametrize("status", [429, 500, 503, 408])
def test_rate_limits_and_server_errors_are_tried_again(status: int) -> None:
    model = ScriptedModel(answering, faults={0: status, 1: status})
    with model.serve() as url:
        assert play(url).outcome.grade.verdict == "right"
    assert len(model.requests) == 4


def test_a_lasting_failure_says_nothing_about_the_model() -> None:
    model = ScriptedModel(answering, faults=dict.fromkeys(range(9), 500))
    with model.serve() as url, pytest.raises(EndpointFailure, match="status 500: fault 2"):
        ask(url, *COMPLETE)
    assert len(model.requests) == 3


def test_a_request_that_the_server_gave_up_goes_on_with_what_is_left() -> None:
    """Case 89 for a request cut off in the middle: its tokens count, and the rest of the budget remains."""

    def cut(choice: dict[str, Any]) -> None:
        choice["token_ids"] = choice["token_ids"][:7]
        choice["logprobs"]["token_logprobs"] = choice["logprobs"]["token_logprobs"][:7]
        choice["finish_reason"] = "abort"

    model = ScriptedModel(
        lambda prompt, seed: says("42") if "boxed{}" in prompt[-60:] else "rest", faults={0: cut}
    )
    with model.serve() as url:
        played = play(url)
    first, second = model.requests
    assert second["prompt"] == first["prompt"] + ids(says("42"))[:7]
    assert second["max_tokens"] == first["max_tokens"] - 7
    assert played.turns == 1 and played.action_spans[0][1] - played.action_spans[0][0] == len(played.logprobs)


def test_an_endpoint_that_cuts_answers_is_found_out() -> None:
    def cut(choice: dict[str, Any]) -> None:
        choice["token_ids"], choice["finish_reason"] = choice["token_ids"][:4], "length"
        choice["logprobs"]["token_logprobs"] = choice["logprobs"]["token_logprobs"][:4]

    with (
        ScriptedModel(answering, {0: cut}).serve() as url,
        pytest.raises(EndpointError, match="cuts after 4 tokens"),
    ):
        play(url)


def test_a_prompt_beyond_the_limit_is_said() -> None:
    with pytest.raises(EndpointError, match=r"problem p0 has \d+ tokens.*raise --max-tokens"):
        play("http://127.0.0.1:9/v1", max_tokens=20)


def test_the_limit_itself_is_no_cut() -> None:
    prompt = len(chat().prompt_ids([{"role": "user", "content": SIX_TIMES_SEVEN.text}]))
    with ScriptedModel(lambda prompt, seed: "x" * 500).serve() as url:
        played = play(url, max_tokens=prompt + 60)
    assert (played.outcome.finish_reason, played.outcome.status) == ("length", "truncated")
    assert played.total_tokens == prompt + 60


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda choice: choice.pop("token_ids"), "returns no token ids"),
        (lambda choice: choice.pop("logprobs"), "returns no log-probs"),
        (lambda choice: choice["token_ids"].append(1), "cannot be aligned"),
        (lambda choice: choice["logprobs"]["token_logprobs"].__setitem__(0, None), "without its log-prob"),
        (lambda choice: choice["token_ids"].__setitem__(-1, 20), "stopped at token 20"),
    ],
)
def test_answers_that_make_no_trajectory_stop_the_run(fault: Any, message: str) -> None:
    """A missing log-prob is never taken for 0 (case 37), and lengths must agree (case 46)."""
    with ScriptedModel(answering, {0: fault}).serve() as url, pytest.raises(EndpointError, match=message):
        play(url)


def test_a_wrong_address_a_wrong_key_and_a_wrong_model() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(EndpointError, match=r"cannot be reached.*check the address"):
        ask(url, "check")
    with ScriptedModel(answering, key="right").serve() as url:
        with pytest.raises(EndpointError, match="refuses the API key"):
            ask(url, "check", key="wrong")
        ask(url, "check", key="right")
        with pytest.raises(EndpointError, match="has no model 'other', but scripted"):
            ask(url, "check", model="other", key="right")
        with pytest.raises(EndpointError, match=r"no such path.*ends in /v1"):
            ask(url.removesuffix("/v1"), *COMPLETE)
        with pytest.raises(EndpointError, match=r"context of 4096 tokens.*--max-model-len 131072"):
            ask(url, "check", 131_072, key="right")
    for answer, message in (
        (PlainTextResponse("<html>welcome"), "something else than a JSON object"),
        (JSONResponse({"data": [1, 2]}), "lists no models"),
        (JSONResponse({"data": {"status": "up"}}), "lists no models"),
    ):
        page = Starlette(routes=[Route("/v1/models", lambda request, answer=answer: answer)])
        with serving(page) as url, pytest.raises(EndpointError, match=message):
            ask(f"{url}/v1", "check")


def test_a_connection_lost_in_the_middle_is_a_failure_and_no_mistake() -> None:
    async def run(url: str, stop: Any) -> None:
        async with Endpoint(url, "scripted", timeout=20, retries=0) as endpoint:
            await endpoint.check()
            await asyncio.to_thread(stop)
            await endpoint.complete([2], 5, (3,), 1)

    context = ScriptedModel(answering).serve()
    url = context.__enter__()
    with pytest.raises(EndpointFailure, match="cannot be reached"):
        asyncio.run(run(url, lambda: context.__exit__(None, None, None)))


def test_chat_completions_with_tool_calls() -> None:
    tool = PlainTool()

    def script(said: str, number: int) -> str:
        return "print(6 * 7)" if number == 0 else f"It is \\boxed{{{said.strip()}}}."

    model = ScriptedModel(script)
    with model.serve() as url:
        played = play_chat(url, tool=tool)
    first, second = model.requests
    assert (first["temperature"], first["top_p"]) == (1.0, 1.0)
    asked = len(json.dumps(first["messages"] + first["tools"], ensure_ascii=False).encode())
    assert first["max_tokens"] == 2000 - asked, "the prompt counts, a byte for a token until it was counted"
    assert first["tools"][0]["function"]["name"] == "python"
    # 9 + 5 tokens were counted; the tool's result has not been yet.
    assert 2000 - 9 - 5 - 90 < second["max_tokens"] < 2000 - 9 - 5 - 2, "the budget is the trajectory's"
    assert second["messages"][1]["tool_calls"][0]["id"] == "c1"
    assert second["messages"][2] == {"role": "tool", "tool_call_id": "c1", "content": "42"}
    assert (played.outcome.grade.verdict, played.turns, played.action_tokens) == ("right", 2, 10)
    assert [message["role"] for message in played.messages] == ["assistant", "tool", "assistant"]
    assert tool.open == 0


def test_chat_limits() -> None:
    with ScriptedModel(lambda said, number: "print(1)").serve() as url:
        played = play_chat(url, max_turns=3)
        assert (played.outcome.finish_reason, played.turns, played.interpreter.calls) == ("turns", 3, 2)
    with ScriptedModel(lambda said, number: "print('y' * 3000)").serve() as url:
        played = play_chat(url, max_turns=9)
        assert (played.outcome.finish_reason, played.turns) == ("length", 1), "its result fills the budget"
    with (
        ScriptedModel(lambda said, number: "").serve() as url,
        pytest.raises(EndpointError, match=r"prompt of problem p0 may have \d+ tokens.*raise --max-tokens"),
    ):
        play_chat(url, max_tokens=10)

    def length(choice: dict[str, Any]) -> None:
        choice["finish_reason"] = "length"

    model = ScriptedModel(lambda said, number: "\\boxed{42", {0: length})
    with model.serve() as url, pytest.raises(EndpointError, match=r"cuts after 5 tokens where \d+"):
        play_chat(url)
    given = json.dumps([*question(SIX_TIMES_SEVEN), PYTHON_TOOL], ensure_ascii=False)
    with ScriptedModel(lambda said, number: "\\boxed{42", {0: length}).serve() as url:
        played = play_chat(url, max_tokens=len(given) + 5)
        assert (played.outcome.finish_reason, played.outcome.grade.verdict) == ("length", "wrong")


def test_a_chat_without_usage_is_refused() -> None:
    """Without it an endpoint that cuts at 4k tokens would look like a model that gives up."""
    model = ScriptedModel(lambda said, number: "\\boxed{42")
    model.usage = None
    with model.serve() as url, pytest.raises(EndpointError, match="reports no usage"):
        play_chat(url)


def test_parameters_that_an_api_does_not_know_are_left_out_or_renamed() -> None:
    """Only temperature and top-p, which are 1 there anyway; max_tokens goes by its new name."""
    faults = {
        0: (400, "Unsupported parameter: 'top_p' is not supported with this model.", "top_p"),
        1: (400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.", "max_tokens"),
    }
    model = ScriptedModel(lambda said, number: "\\boxed{42}", faults)
    with model.serve() as url:
        assert play_chat(url).outcome.grade.verdict == "right"
    third = model.requests[2]
    assert "top_p" not in third and "max_tokens" not in third
    assert (third["max_completion_tokens"], third["temperature"]) == (model.requests[0]["max_tokens"], 1.0)
    refused = {0: (400, "tools are not supported", "tools")}
    with (
        ScriptedModel(lambda said, number: "", refused).serve() as url,
        pytest.raises(EndpointError, match=r"refuses the request \(status 400\): tools are not supported"),
    ):
        play_chat(url)


def test_a_served_model_without_chat_template() -> None:
    fault = (400, "As of transformers v4.44, default chat template is no longer allowed", None)
    with (
        ScriptedModel(lambda said, number: "", {0: fault}).serve() as url,
        pytest.raises(EndpointError, match="scripted has no chat template"),
    ):
        play_chat(url)
