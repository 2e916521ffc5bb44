"""The recording proxy: tokens of a conversation, refusals, invalid records, conversations at once."""

import asyncio
import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from math_standins import tokenizer

from evaluation.endpoint import Completion, EndpointFailure
from evaluation.swe.engines import ActionEngine
from evaluation.swe.proxy import RecordingProxy
from sao.environments.swe_recording import Recording
from sao.trajectory import Status

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "terminal", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "finish", "parameters": {"type": "object"}}},
]
SYSTEM = {"role": "system", "content": [{"type": "text", "text": "You mend code."}]}
QUESTION = {"role": "user", "content": [{"type": "text", "text": "Mend <|im_end|> add()"}]}
END = tokenizer().convert_tokens_to_ids("<|im_end|>")


def action(name: str, thinking: str = "hm", text: str = "", **arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments})
    return f"{thinking}\n</think>\n\n{text}<tool_call>\n{body}\n</tool_call>"


def ids(text: str, ends: bool = True) -> list[int]:
    return tokenizer().encode(text, add_special_tokens=False) + ([END] if ends else [])


class ScriptedEngine:
    """Answers with the scripted texts in order; log-probs count down from -0.125."""

    def __init__(self, *answers: Any, versions: bool = True) -> None:
        self.answers, self.versions = list(answers), versions
        self.prompts: list[list[int]] = []
        self.on_request: Callable[[], None] = lambda: None

    async def complete(
        self, token_ids: Sequence[int], max_tokens: int, stop_ids: Sequence[int], seed: int
    ) -> Completion:
        self.prompts.append(list(token_ids))
        self.on_request()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Completion):
            return answer
        sampled = ids(answer)[:max_tokens]
        logprobs = [-0.125 * (place + 1) for place in range(len(sampled))]
        version = [len(self.prompts)] * len(sampled) if self.versions else None
        return Completion(sampled, logprobs, "stop" if sampled[-1] == END else "length", version)


class Client:
    """Plays the SDK: keeps the history, sends all of it each time."""

    def __init__(self, proxy: RecordingProxy, engine: Any = None, session: str = "one") -> None:
        self.proxy, self.session = proxy, session
        self.address = proxy.open(engine)
        self.history: list[dict[str, Any]] = copy.deepcopy([SYSTEM, QUESTION])

    async def post(self, **body: Any) -> httpx.Response:
        given = {"model": "tiny", "messages": self.history, "tools": TOOLS, "temperature": 1.0, "top_p": 1.0}
        headers = {"authorization": f"Bearer {self.address.key}", "x-litellm-session-id": self.session}
        transport = httpx.ASGITransport(app=self.proxy.app())
        async with httpx.AsyncClient(transport=transport, base_url="http://proxy", headers=headers) as client:
            return await client.post("/v1/chat/completions", json=given | body)

    async def turn(self, *results: str) -> dict[str, Any]:
        answer = await self.post()
        assert answer.status_code == 200, answer.text
        message = answer.json()["choices"][0]["message"]
        self.history.append(message)
        for call, result in zip(message.get("tool_calls", []), results, strict=True):
            content = [{"type": "text", "text": result}]
            name = call["function"]["name"]
            self.history.append(
                {"role": "tool", "tool_call_id": call["id"], "name": name, "content": content}
            )
        return message


def proxied(*answers: Any, max_tokens: int = 4000, **options: Any) -> tuple[RecordingProxy, Client]:
    proxy = RecordingProxy(ScriptedEngine(*answers), tokenizer(), "tiny", max_tokens, **options)
    return proxy, Client(proxy)


def engine_of(proxy: RecordingProxy) -> ScriptedEngine:
    assert isinstance(proxy.engine, ScriptedEngine)
    return proxy.engine


def test_a_conversation_has_the_very_tokens_of_the_template() -> None:
    """One rendering of the whole conversation by transformers, against turns that were appended."""
    proxy, client = proxied(
        action("terminal", command="cat a.py"),
        action("terminal", command="ls"),
        action("finish", message="done"),
    )

    async def converse() -> None:
        await client.turn("def add(): 1 < 2")
        await client.turn("a.py")
        await client.turn("")

    asyncio.run(converse())
    record = proxy.close(client.address)
    history: list[dict[str, Any]] = [
        {"role": "system", "content": "You mend code."},
        {"role": "user", "content": "Mend < |im_end|> add()"},
    ]
    said = [
        ("terminal", {"command": "cat a.py"}),
        ("terminal", {"command": "ls"}),
        ("finish", {"message": "done"}),
    ]
    for (name, arguments), result in zip(said, ["def add(): 1 < 2", "a.py", ""], strict=True):
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        history.append({"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]})
        history.append({"role": "tool", "name": name, "content": result})
    whole = tokenizer().apply_chat_template(history[:-1], tools=TOOLS, tokenize=True, return_dict=False)
    assert record.token_ids == whole[: len(record.token_ids)]
    assert tokenizer().decode(whole[len(record.token_ids) :]) == "\n"
    assert [tokenizer().decode(record.token_ids[a:b]) for a, b in record.action_spans] == [
        action(name, **arguments) + "<|im_end|>" for name, arguments in said
    ]


def test_each_request_continues_the_tokens_of_the_one_before() -> None:
    proxy, client = proxied(action("terminal", command="ls"), action("finish", message="x"))
    first = asyncio.run(client.turn("a.py"))
    assert first["tool_calls"][0]["function"] == {"name": "terminal", "arguments": '{"command": "ls"}'}
    asyncio.run(client.turn("done"))
    prompts = engine_of(proxy).prompts
    said = ids(action("terminal", command="ls"))
    assert prompts[1][: len(prompts[0]) + len(said)] == prompts[0] + said


def test_ids_that_no_text_gives_are_passed_on_as_they_were_sampled() -> None:
    """The engine may sample a word letter by letter; tokenising its text again would merge the letters."""
    letters = [token for letter in "print python" for token in ids(letter, ends=False)]
    sampled = [*ids("</think>\n\n", ends=False), *letters, END]
    assert ids(tokenizer().decode(sampled[:-1])) != sampled
    proxy, client = proxied(
        Completion(sampled, [-1.0] * len(sampled), "stop", [3] * len(sampled)), action("finish")
    )

    async def converse() -> None:
        await client.turn()
        client.history.append({"role": "user", "content": "go on"})
        await client.turn("")

    asyncio.run(converse())
    record = proxy.close(client.address)
    start, end = record.action_spans[0]
    assert record.token_ids[start:end] == sampled and record.invalid is None


def test_a_turn_is_closed_whichever_token_the_action_ended_with() -> None:
    """Behind the end of text the end of the turn is missing; it is an observation, with the newline after."""

    def between(last: int) -> list[int]:
        sampled = [*ids("</think>\n\nSo be it.", ends=False), last]
        proxy, client = proxied(
            Completion(sampled, [-1.0] * len(sampled), "stop", [3] * len(sampled)), action("finish")
        )

        async def converse() -> None:
            await client.turn()
            client.history.append({"role": "user", "content": "go on"})
            await client.turn("")

        asyncio.run(converse())
        record = proxy.close(client.address)
        (_, end), (start, _) = record.action_spans
        return record.token_ids[end:start]

    assert tokenizer().decode(between(END)).startswith("\n<|im_start|>user\ngo on<|im_end|>\n")
    assert between(tokenizer().convert_tokens_to_ids("<|endoftext|>")) == [END, *between(END)]


def test_the_trajectory_holds_what_the_engine_said() -> None:
    proxy, client = proxied(action("terminal", command="ls"), action("finish", message="x"))
    asyncio.run(client.turn("a.py"))
    asyncio.run(client.turn("done"))
    trajectory = proxy.close(client.address).trajectory(
        1.0, Status.COMPLETED, prompt_id="p", label="calc", index=7
    )
    lengths = [len(ids(action("terminal", command="ls"))), len(ids(action("finish", message="x")))]
    assert (trajectory.action_spans[:, 1] - trajectory.action_spans[:, 0]).tolist() == lengths
    expected = [-0.125 * (place + 1) for length in lengths for place in range(length)]
    assert trajectory.rollout_logprobs[trajectory.action_mask].tolist() == expected
    assert np.isnan(trajectory.rollout_logprobs[~trajectory.action_mask]).all()
    versions = trajectory.policy_versions[trajectory.action_mask].tolist()
    assert versions == [1] * lengths[0] + [2] * lengths[1]
    assert (trajectory.reward, trajectory.label, trajectory.index, trajectory.turns) == (1.0, "calc", 7, 2)


def test_without_versions_of_the_engine_the_older_one_counts() -> None:
    versions = iter([4, 5])
    proxy, client = proxied(action("finish", message="x"), version=lambda: next(versions))
    engine_of(proxy).versions = False
    asyncio.run(client.turn("done"))
    assert set(proxy.close(client.address).versions) == {4}


def test_an_action_that_the_engine_gave_up_is_continued() -> None:
    whole = ids(action("finish", message="x"))
    cut = Completion(whole[:5], [-1.0] * 5, "abort", [1] * 5)
    rest = Completion(whole[5:], [-2.0] * (len(whole) - 5), "stop", [2] * (len(whole) - 5))
    proxy, client = proxied(cut, rest)
    asyncio.run(client.turn("done"))
    record = proxy.close(client.address)
    assert record.token_ids[record.action_spans[0][0] :] == whole
    assert record.versions == [1] * 5 + [2] * (len(whole) - 5)
    assert engine_of(proxy).prompts[1] == engine_of(proxy).prompts[0] + whole[:5]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.6),
        ("top_p", 0.95),
        ("top_k", 20),
        ("presence_penalty", 0.5),
        ("n", 2),
        ("stream", True),
        ("reasoning_effort", "high"),
        ("stop", ["x"]),
        ("tool_choice", "required"),
    ],
)
def test_other_sampling_is_refused_by_name(name: str, value: Any) -> None:
    proxy, client = proxied(action("finish"))
    answer = asyncio.run(client.post(**{name: value}))
    assert answer.status_code == 400 and name in answer.json()["error"]["message"]
    assert not engine_of(proxy).prompts and proxy.close(client.address).invalid is None


def altered(
    change: Callable[[list[dict[str, Any]]], Any],
) -> tuple[Recording, httpx.Response, RecordingProxy]:
    proxy, client = proxied(action("terminal", "thought", command="ls"), action("finish"))
    asyncio.run(client.turn("a.py"))
    change(client.history)
    answer = asyncio.run(client.post())
    counts = proxy.counts
    assert counts["invalid"] == 1 and len(engine_of(proxy).prompts) == 1
    return proxy.close(client.address), answer, proxy


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda history: history[1].update(content="Mend sub()"), "message 1 (user) has another content"),
        (
            lambda history: history[2].pop("reasoning_content"),
            "message 2 (assistant) has another reasoning_content",
        ),
        (lambda history: history[2].pop("tool_calls"), "message 2 (assistant) has another tool_calls"),
        (
            lambda history: history.__delitem__(slice(2, None)),
            "the history has 2 messages where 3 are recorded",
        ),
        (lambda history: history.pop(), "the history has 3 messages where 3 are recorded"),
        (
            lambda history: history.append({"role": "assistant", "content": "x"}),
            "an assistant message that was not",
        ),
    ],
)
def test_an_altered_history_makes_the_record_invalid_and_is_counted(change: Any, reason: str) -> None:
    history: list[dict[str, Any]] = []
    record, answer, proxy = altered(lambda found: (change(found), history.extend(found)))
    assert answer.status_code == 409
    assert record.invalid is not None and reason in record.invalid
    assert proxy.counts[f"invalid: {record.invalid}"] == 1


def test_a_failed_request_may_be_repeated_and_leaves_no_trace() -> None:
    proxy, client = proxied(EndpointFailure("busy"), action("finish", message="x"))
    assert asyncio.run(client.post()).status_code == 502
    asyncio.run(client.turn("done"))
    record = proxy.close(client.address)
    assert record.invalid is None and len(record.action_spans) == 1


def test_a_full_context_is_told_as_vllm_tells_it_and_the_record_is_cut() -> None:
    proxy, client = proxied(action("terminal", command="ls"), max_tokens=300)
    asyncio.run(client.turn("x" * 2000))
    answer = asyncio.run(client.post())
    assert answer.status_code == 400 and "maximum context length is 300 tokens" in answer.text
    record = proxy.close(client.address)
    assert record.cut and record.invalid is None and len(record.action_spans) == 1
    # Nothing that no action followed is part of the record.
    assert len(record.token_ids) == record.action_spans[0][1]


def test_an_action_without_room_is_cut_and_calls_nothing() -> None:
    proxy, client = proxied(action("terminal", command="echo " + "x" * 500), max_tokens=200)
    message = asyncio.run(client.turn())
    assert "tool_calls" not in message
    record = proxy.close(client.address)
    assert record.cut and len(record.token_ids) == 200


def test_malformed_calls_are_text_and_two_calls_are_two() -> None:
    broken = 'hm\n</think>\n\nsee <tool_call>\n{"name": "terminal", "arguments": {"command": }\n</tool_call>'
    twice = (
        action("terminal", command="a") + '\n<tool_call>\n{"name": "finish", "arguments": {}}\n</tool_call>'
    )
    proxy, client = proxied(broken, twice)
    message = asyncio.run(client.turn())
    assert "tool_calls" not in message and message["content"].startswith("see <tool_call>")
    client.history.append({"role": "user", "content": "go on"})
    message = asyncio.run(client.turn("1", "2"))
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["terminal", "finish"]
    assert len({call["id"] for call in message["tool_calls"]}) == 2 and message["content"] == ""
    assert proxy.close(client.address).invalid is None


def test_conversations_at_once_do_not_mix() -> None:
    proxy = RecordingProxy(None, tokenizer(), "tiny", 4000)

    class Echo:
        """Answers with the number that its prompt ends on, the later the lower."""

        async def complete(
            self, token_ids: Sequence[int], max_tokens: int, stop_ids: Sequence[int], seed: int
        ) -> Completion:
            number = int(tokenizer().decode(token_ids).rpartition("number ")[2][0])
            await asyncio.sleep(0.01 * (8 - number))
            sampled = ids(action("terminal", command=f"number {number}"))
            return Completion(sampled, [-float(number + 1)] * len(sampled), "stop", [number] * len(sampled))

    clients = [Client(proxy, Echo(), session=str(number)) for number in range(8)]

    async def converse(number: int) -> None:
        clients[number].history = [SYSTEM, {"role": "user", "content": f"number {number}"}]
        for _ in range(3):
            await clients[number].turn(f"number {number}")

    async def together() -> None:
        await asyncio.gather(*map(converse, range(8)))

    asyncio.run(together())
    for number, client in enumerate(clients):
        record = proxy.close(client.address)
        assert len(record.action_spans) == 3 and set(record.versions) == {number}
        assert set(record.logprobs) == {-float(number + 1)}
        assert f"number {(number + 1) % 8}" not in tokenizer().decode(record.token_ids)


@dataclass
class Parameters:
    """Stands for the sampling settings of a backend."""

    max_tokens: int = 0

    def clone(self) -> "Parameters":
        return Parameters(self.max_tokens)


class StreamingBackend:
    """Samples as the OpenRLHF backend does: on its own loop, token by token until the action is whole."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *actions: list[int], gives_up_at: int = 0) -> None:
        self.loop, self.actions, self.gives_up_at = loop, list(actions), gives_up_at
        self.keys: list[str] = []

    async def sample_action(
        self,
        token_ids: Sequence[int],
        parameters: Parameters,
        key: str,
        complete: Callable[[list[int]], bool],
    ) -> Any:
        assert asyncio.get_running_loop() is self.loop
        self.keys.append(key)
        action, ids = self.actions.pop(0), list[int]()
        while action and len(ids) < parameters.max_tokens and not complete(ids):
            ids.append(action.pop(0))
            if self.gives_up_at and len(ids) == self.gives_up_at:
                self.gives_up_at = 0
                self.actions.insert(0, action)
                break
        return SimpleNamespace(token_ids=ids, logprobs=[-0.5] * len(ids), versions=[7] * len(ids))


@pytest.mark.parametrize("gives_up_at", [0, 4])
def test_a_streaming_backend_is_asked_on_its_own_loop(gives_up_at: int) -> None:
    """The proxy's requests come from its own thread; tokens behind an action's end are not taken."""
    first, second = ids(action("terminal", command="ls")), ids(action("finish", message="x"))

    async def converse() -> tuple[Recording, StreamingBackend]:
        here = asyncio.get_running_loop()
        backend = StreamingBackend(here, [*first, 9, 9], list(second), gives_up_at=gives_up_at)
        proxy = RecordingProxy(None, tokenizer(), "tiny", 4000)
        client = Client(proxy, ActionEngine(backend, Parameters(), "trajectory 1", here))
        await asyncio.to_thread(asyncio.run, client.turn("a.py"))
        await asyncio.to_thread(asyncio.run, client.turn("done"))
        return proxy.close(client.address), backend

    record, backend = asyncio.run(converse())
    spans = [record.token_ids[start:end] for start, end in record.action_spans]
    assert spans == [first, second] and set(record.versions) == {7} and set(record.logprobs) == {-0.5}
    assert set(backend.keys) == {"trajectory 1"} and len(backend.keys) == (3 if gives_up_at else 2)


def test_a_second_conversation_under_the_same_key_makes_it_invalid() -> None:
    proxy, client = proxied(action("finish"), action("finish"))
    asyncio.run(client.turn(""))
    client.session = "two"
    assert asyncio.run(client.post()).status_code == 409
    assert "second conversation" in str(proxy.close(client.address).invalid)


def test_unknown_keys_models_and_contents_are_refused() -> None:
    proxy, client = proxied(action("finish"))
    assert asyncio.run(client.post(model="other")).status_code == 404
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    answer = asyncio.run(client.post(messages=[picture]))
    assert answer.status_code == 400 and "image_url" in answer.text
    assert proxy.close(client.address).invalid is None
    assert asyncio.run(client.post()).status_code == 401
    with pytest.raises(ValueError, match="no engine"):
        RecordingProxy(None, tokenizer(), "tiny", 4000).open()


def test_a_closed_trajectory_is_sampled_no_further_and_a_failure_is_told_apart() -> None:
    """Sampling that begins while the trajectory is being closed is broken off too."""

    class Backend:
        async def sample_action(self, *_: Any) -> Any:
            if fails:
                raise ValueError("no log-prob")
            await asyncio.sleep(60)

    async def sample(engine: ActionEngine, reason: str) -> None:
        with pytest.raises(EndpointFailure, match=reason):
            await asyncio.wait_for(engine.complete([1], 5, [0], seed=0), 20)

    async def run() -> None:
        engine = ActionEngine(Backend(), Parameters(), "one", asyncio.get_running_loop())
        engine.close()
        await sample(engine, "the trajectory is closed")
        assert not engine.failure.done()

    async def run_failing() -> None:
        engine = ActionEngine(Backend(), Parameters(), "one", asyncio.get_running_loop())
        await sample(engine, "sampling failed: no log-prob")
        assert str(await engine.failure) == "no log-prob"

    fails = False
    asyncio.run(run())
    fails = True
    asyncio.run(run_failing())


def test_what_arrives_after_the_end_is_not_recorded() -> None:
    """The conversation is closed while the engine samples: the trajectory keeps the tokens it had."""
    proxy, client = proxied(action("finish"))
    taken: list[Recording] = []
    engine_of(proxy).on_request = lambda: taken.append(proxy.close(client.address))
    answer = asyncio.run(client.post())
    assert answer.status_code == 401 and "closed meanwhile" in answer.text
    assert taken[0].token_ids == [] and taken[0].action_spans == []
