"""What the tests of the mathematics path share: plain tool and grader, a tokenizer, a scripted model.

Tool and grader are stand-ins for `evaluation.math.sandbox` and `evaluation.math.grading`: they run in the
test's own process, in microseconds, and do no more than the tests need.
"""

import contextlib
import io
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sao.environments.chat_format import PYTHON_TOOL, ChatFormat
from sao.environments.python_math import Problem
from sao.environments.small_tokenizer import small_tokenizer

SIX_TIMES_SEVEN = Problem("p0", "aime_2025", "What is 6 * 7?", "42", "product")


@dataclass(frozen=True)
class Result:
    output: str
    status: str


@dataclass
class PlainSession:
    """Runs code in this process; `raise SystemExit` breaks the tool itself."""

    tool: "PlainTool"
    names: dict[str, Any] = field(default_factory=dict)
    closed: bool = False

    def run(self, code: str) -> Result:
        self.tool.codes.append(code)
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(code, self.names)
        except Exception as error:
            return Result(printed.getvalue() + repr(error), "error")
        return Result(printed.getvalue(), "ok")

    def close(self) -> None:
        assert not self.closed
        self.closed = True
        self.tool.open -= 1


@dataclass
class PlainTool:
    """Counts open sessions; records all code."""

    open: int = 0
    codes: list[str] = field(default_factory=list)
    broken: bool = False

    def __reduce__(self) -> Any:
        raise TypeError("a tool has processes, which no pickle holds")

    def open_session(self) -> PlainSession:
        if self.broken:
            raise OSError("no interpreter")
        self.open += 1
        return PlainSession(self)


@dataclass(frozen=True)
class PlainGrade:
    verdict: Any
    answer: str | None = None
    reason: str = "compared"

    def fields(self) -> dict[str, Any]:
        return {"verdict": self.verdict, "extracted_answer": self.answer, "reason": self.reason}


class PlainGrader:
    """Right where the last box holds the reference, wrong otherwise; remembers what it was given."""

    def __init__(self) -> None:
        self.given: list[tuple[str, str, str, str]] = []

    def __reduce__(self) -> Any:
        raise TypeError("a grader has processes, which no pickle holds")

    def grade(self, benchmark: str, gold: str, response: str, finish_reason: str) -> PlainGrade:
        self.given.append((benchmark, gold, response, finish_reason))
        boxes = re.findall(r"\\boxed\{(.*?)\}", response)
        if not boxes:
            return PlainGrade("wrong", None, "no answer")
        return PlainGrade("right" if boxes[-1] == gold else "wrong", boxes[-1])


@cache
def tokenizer() -> Any:
    """A byte-level tokenizer with the thinking chat template."""
    return small_tokenizer(['print(6 * 7) {"name": "python", "arguments": {"code": '] * 5, 300)


@cache
def chat(python: bool = True) -> ChatFormat:
    return ChatFormat(tokenizer(), [PYTHON_TOOL] if python else [])


def call(code: str) -> str:
    """An action that runs code, behind the opened thinking."""
    escaped = code.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    body = f'{{"name": "python", "arguments": {{"code": "{escaped}"}}}}'
    return f"hm\n</think>\n\n<tool_call>\n{body}\n</tool_call>"


def says(answer: str) -> str:
    """An action that answers."""
    return f"hm\n</think>\n\nSo \\boxed{{{answer}}}."


def ids(text: str, ends: bool = True) -> list[int]:
    """Token ids of an action."""
    found = tokenizer().encode(text, add_special_tokens=False)
    return [*found, chat().end_of_turn] if ends else found


Script = Callable[[str, int], str]
"""Text of an action by the text of its prompt and the request's seed."""


class ScriptedModel:
    """An HTTP endpoint whose completions follow a script; runs in a thread of the test.

    `faults` maps a request's number (from 0) to what comes in its place: a status, or a function that changes
    the right answer.
    """

    def __init__(self, script: Script, faults: dict[int, Any] | None = None, key: str | None = None) -> None:
        self.script, self.faults, self.key = script, faults or {}, key
        self.requests: list[dict[str, Any]] = []
        self.max_model_len = 4096
        self.usage: dict[str, int] | None = {"prompt_tokens": 9, "completion_tokens": 5}  # of a chat turn
        self.lock = threading.Lock()

    async def models(self, request: Request) -> Response:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return _error(401, "bad key")
        return JSONResponse({"data": [{"id": "scripted", "max_model_len": self.max_model_len}]})

    async def completions(self, request: Request) -> Response:
        body = await request.json()
        with self.lock:
            number = len(self.requests)
            self.requests.append(body)
        fault = self.faults.get(number)
        if isinstance(fault, int):
            return _error(fault, f"fault {number}", {"retry-after-ms": "1"})
        prompt = tokenizer().decode(body["prompt"], skip_special_tokens=False)
        sampled = ids(self.script(prompt, body["seed"]))
        finish = "stop" if len(sampled) <= body["max_tokens"] else "length"
        sampled = sampled[: body["max_tokens"]]
        choice = {
            "token_ids": sampled,
            "logprobs": {"token_logprobs": [-0.5] * len(sampled)},
            "finish_reason": finish,
        }
        if callable(fault):
            fault(choice)
        return JSONResponse({"choices": [choice]})

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        with self.lock:
            number = len(self.requests)
            self.requests.append(body)
        fault = self.faults.get(number)
        if isinstance(fault, tuple):
            status, said, parameter = fault
            return _error(status, said, parameter=parameter)
        answer = self.script(body["messages"][-1]["content"], number)
        message: dict[str, Any] = {"role": "assistant", "content": answer}
        if answer.startswith("print"):
            function = {"name": "python", "arguments": f'{{"code": "{answer}"}}'}
            message |= {
                "content": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": function}],
            }
        choice = {"message": message, "finish_reason": "stop"}
        if callable(fault):
            fault(choice)
        return JSONResponse({"choices": [choice], "usage": self.usage})

    @contextlib.contextmanager
    def serve(self) -> Iterator[str]:
        """The base URL while the endpoint runs."""
        routes = [
            Route("/v1/models", self.models),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
        ]
        with serving(Starlette(routes=routes)) as url:
            yield f"{url}/v1"


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:
    """The address of an ASGI application that runs in a thread."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)


def _error(
    status: int, message: str, headers: dict[str, str] | None = None, parameter: str | None = None
) -> Response:
    error = {"message": message, "param": parameter}
    return JSONResponse({"error": error}, status_code=status, headers=headers)
