"""Task `python_math`: a mathematics problem, a Python tool, and an answer in \\boxed{}.

The policy thinks, calls the tool as often as it likes, sees what its code prints, and answers. The episode
ends with an action that calls nothing, after `max_turns` actions, or when prompt, actions and observations
fill `max_tokens`. The same episode drives training (the sampler of an engine feeds it tokens) and evaluation
(`evaluation.math.conversation` feeds it what an HTTP endpoint sampled).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from sao.environments.base import EnvironmentFailure, Status, StepResult
from sao.environments.chat_format import ChatFormat, Message
from sao.environments.tool_calls import ToolCall

INSTRUCTION = "Put your final answer within \\boxed{}."
NO_OUTPUT = "(no output)"

FinishReason = Literal["stop", "length", "turns"]

_CALLS = re.compile(r"<tool_call>.*?(</tool_call>|\Z)", re.DOTALL)


class ToolResult(Protocol):
    """What one call returned: its `output`, and "ok" or another `status`."""

    @property
    def output(self) -> str: ...
    @property
    def status(self) -> str: ...


class Session(Protocol):
    """An interpreter whose variables live on between calls."""

    def run(self, code: str) -> ToolResult: ...
    def close(self) -> None: ...


class Tool(Protocol):
    """Opens interpreters that cannot reach each other."""

    def open_session(self) -> Session: ...


@dataclass(frozen=True)
class Problem:
    """A problem with its reference answer; `label` is its kind or category."""

    problem_id: str
    benchmark: str
    text: str
    answer: str
    label: str | None = None


class Grade(Protocol):
    """What a grader says of a response; `answer` is what it took for the final answer."""

    @property
    def verdict(self) -> Literal["right", "wrong", "undecided"]: ...
    @property
    def answer(self) -> str | None: ...
    @property
    def reason(self) -> str: ...
    def fields(self) -> dict[str, Any]: ...


class Grader(Protocol):
    """Compares the answer in a response with the reference."""

    def grade(self, benchmark: str, gold: str, response: str, finish_reason: str) -> Grade: ...


@dataclass(frozen=True)
class Limits:
    """`max_tokens` counts prompt, actions and observations of a trajectory, `max_turns` its actions."""

    max_tokens: int
    max_turns: int


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended: `response` is what the last action says outside thinking and calls.

    `finish_reason` is "length" at the token limit and "turns" at the turn limit.
    """

    grade: Grade
    response: str
    finish_reason: FinishReason

    @property
    def reward(self) -> float:
        return 1.0 if self.grade.verdict == "right" else 0.0

    @property
    def status(self) -> Status:
        return "completed" if self.finish_reason == "stop" else "truncated"


def question(problem: Problem) -> list[Message]:
    """The messages that pose a problem, the same in training and evaluation."""
    return [{"role": "user", "content": f"{problem.text}\n\n{INSTRUCTION}"}]


def grade(grader: Grader, problem: Problem, response: str, finish_reason: FinishReason) -> Outcome:
    """Grade a response; EnvironmentFailure where the grader broke."""
    try:
        said = grader.grade(problem.benchmark, problem.answer, response, finish_reason)
    except Exception as error:
        raise EnvironmentFailure(f"the grader failed: {error}") from error
    return Outcome(said, response, finish_reason)


class Interpreter:
    """The Python tool of one attempt: answers calls and counts them.

    Its session is opened by the first call. A pickled interpreter leaves session and tool behind and takes
    the code along, to run it again before its next call, once it is given a tool.
    """

    def __init__(self, tool: Tool | None) -> None:
        self.calls = self.errors = self.malformed = 0
        self.tool = tool
        self._session: Session | None = None
        self._codes: list[str] = []

    def answer(self, call: ToolCall) -> Message:
        """The message that answers a call; EnvironmentFailure where the tool broke."""
        if call.error is not None:
            self.malformed += 1
            return {"role": "tool", "name": "python", "content": call.error, "status": "malformed"}
        self.calls += 1
        try:
            result = self._open().run(call.code)
        except Exception as error:
            self.close()
            raise EnvironmentFailure(f"the Python tool failed: {error}") from error
        self._codes.append(call.code)
        self.errors += result.status != "ok"
        output = result.output.strip("\n") or NO_OUTPUT
        return {"role": "tool", "name": "python", "content": output, "status": result.status}

    def close(self) -> None:
        """Give the session back; later calls do nothing."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def __del__(self) -> None:
        self.close()

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_session": None, "tool": None}

    def _open(self) -> Session:
        if self._session is None:
            assert self.tool is not None  # a prompt without the tool has no calls
            self._session = self.tool.open_session()
            for code in self._codes:
                self._session.run(code)
        return self._session


@dataclass(frozen=True)
class PythonMath:
    """What all attempts share; `tool` is None where the conversation goes without one."""

    chat: ChatFormat
    limits: Limits
    grader: Grader
    tool: Tool | None

    def attempt(self, problem: Problem) -> "PythonMathEpisode":
        """Start an episode."""
        return PythonMathEpisode(self, problem)


class PythonMathEpisode:
    """One attempt at a problem; `messages` is what was said so far, `outcome` is there at the end."""

    def __init__(self, shared: PythonMath, problem: Problem) -> None:
        self.prompt_ids = shared.chat.prompt_ids(question(problem))
        self.interpreter = Interpreter(shared.tool)
        self.messages: list[Message] = []
        self.turns = 0
        self.outcome: Outcome | None = None
        self._shared, self._problem = shared, problem
        self._used = len(self.prompt_ids)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.interpreter.tool = self._shared.tool

    @property
    def tokens_left(self) -> int:
        """Tokens that the action under way may have, those already sampled of it included."""
        return self._shared.limits.max_tokens - self._used

    def action_complete(self, action_ids: Sequence[int]) -> bool:
        """Tell whether the action ended itself or used up the tokens left."""
        return bool(action_ids) and (
            action_ids[-1] in self._shared.chat.stop_ids or len(action_ids) >= self.tokens_left
        )

    def step(self, action_ids: Sequence[int]) -> StepResult:
        """Run the action's tool calls, or grade its answer; an action with calls has not answered.

        Raises EnvironmentFailure where the tool or the grader broke, RuntimeError after the end.
        """
        if self.outcome is not None:
            raise RuntimeError("the episode is over: start a new one")
        action = self._shared.chat.read(action_ids)
        self._used += len(action_ids)
        self.turns += 1
        self.messages.append(
            {"role": "assistant", "content": action.text, "reasoning_content": action.thinking}
        )
        if not action.calls:
            return self._end(_CALLS.sub("", action.text).strip(), "stop" if action.ended else "length")
        if self.turns >= self._shared.limits.max_turns:
            return self._end("", "turns")
        answers = [self.interpreter.answer(call) for call in action.calls]
        self.messages += answers
        observation = self._shared.chat.observation_ids([answer["content"] for answer in answers])
        if len(observation) >= self.tokens_left:
            return self._end("", "length")
        self._used += len(observation)
        return StepResult(observation, False, 0.0)

    def details(self) -> dict[str, str | int]:
        """Return the counts of tool calls, and at the end verdict, answer and reason."""
        counts: dict[str, str | int] = {
            "tool_calls": self.interpreter.calls,
            "tool_errors": self.interpreter.errors,
            "malformed_calls": self.interpreter.malformed,
        }
        if self.outcome is None:
            return counts
        grade = self.outcome.grade
        return counts | {"verdict": grade.verdict, "answer": grade.answer or "", "reason": grade.reason}

    def _end(self, response: str, finish_reason: FinishReason) -> StepResult:
        self.interpreter.close()
        self.outcome = grade(self._shared.grader, self._problem, response, finish_reason)
        return StepResult([], True, self.outcome.reward, self.outcome.status)
