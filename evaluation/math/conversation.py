"""Plays problems against an endpoint: the training episode over token ids, or a chat with tool calls."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from evaluation.endpoint import Endpoint, EndpointError
from sao.environments.chat_format import PYTHON_TOOL, Message
from sao.environments.python_math import (
    FinishReason,
    Grader,
    Interpreter,
    Limits,
    Outcome,
    Problem,
    PythonMath,
    PythonMathEpisode,
    Tool,
    grade,
    question,
)
from sao.environments.tool_calls import read_action, read_call


@dataclass
class Attempt:
    """What one sample brought.

    Over token ids, `token_ids`, `action_spans` and `logprobs` (of the action tokens, in order) make the
    trajectory; a chat leaves them empty and counts tokens as the endpoint reports them.
    """

    outcome: Outcome
    messages: list[Message]
    turns: int
    prompt_tokens: int
    action_tokens: int
    total_tokens: int
    interpreter: Interpreter
    token_ids: list[int] = field(default_factory=list)
    action_spans: list[tuple[int, int]] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


Seed = Callable[[int], int]
"""Seed of a sample's request by its number, from 0."""


def seeds(*parts: object) -> Seed:
    """Seeds that follow from what identifies a sample, so that a repeated run draws the same."""

    def seed(request: int) -> int:
        digest = hashlib.sha256(repr((*parts, request)).encode()).digest()
        return int.from_bytes(digest[:4]) >> 1

    return seed


async def play_tokens(
    shared: PythonMath, problem: Problem, endpoint: Endpoint, seed: Seed, executor: Executor
) -> Attempt:
    """Play the episode of training; tool and grader run in the executor's threads."""
    loop = asyncio.get_running_loop()
    episode = shared.attempt(problem)
    if episode.tokens_left < 1:
        tokens, allowed = len(episode.prompt_ids), shared.limits.max_tokens
        raise EndpointError(
            f"the prompt of problem {problem.problem_id} has {tokens} tokens, and a trajectory may have "
            f"{allowed}; raise --max-tokens"
        )
    token_ids, spans, logprobs = list(episode.prompt_ids), [], []
    requests = 0
    try:
        while episode.outcome is None:
            action: list[int] = []
            while not episode.action_complete(action):  # again where the server gave up in the middle
                completion = await endpoint.complete(
                    token_ids + action,
                    episode.tokens_left - len(action),
                    shared.chat.stop_ids,
                    seed(requests),
                )
                requests += 1
                action += completion.token_ids
                logprobs += completion.logprobs
                if completion.finish_reason == "stop" and not episode.action_complete(action):
                    last = action[-1] if action else None
                    raise EndpointError(
                        f"{endpoint.url}: stopped at token {last}, which ends no turn of the chat template; "
                        "the endpoint serves another model, or leaves stop tokens out"
                    )
            spans.append((len(token_ids), len(token_ids) + len(action)))
            result = await loop.run_in_executor(executor, episode.step, action)
            token_ids += action + result.observation_ids
    finally:
        await loop.run_in_executor(executor, episode.interpreter.close)
    return _attempt(episode, episode.outcome, token_ids, spans, logprobs)


def _attempt(
    episode: PythonMathEpisode,
    outcome: Outcome,
    token_ids: list[int],
    spans: list[tuple[int, int]],
    logprobs: list[float],
) -> Attempt:
    return Attempt(
        outcome=outcome,
        messages=episode.messages,
        turns=episode.turns,
        prompt_tokens=len(episode.prompt_ids),
        action_tokens=len(logprobs),
        total_tokens=len(token_ids),
        interpreter=episode.interpreter,
        token_ids=token_ids,
        action_spans=spans,
        logprobs=logprobs,
    )


def _most_tokens(messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> int:
    """A bound on the tokens of messages that an API will count only when it has got them: their bytes.

    Asking for more than the context holds makes servers refuse a request or cut its answer.
    """
    return len(json.dumps([*messages, *tools], ensure_ascii=False).encode(errors="replace"))


class ChatAttempt:
    """One problem over chat completions, for reference models behind APIs.

    The limit of tokens covers prompt, actions and tool results together, as in the episode; what the API has
    not counted yet is taken for one token a byte.
    """

    def __init__(
        self, problem: Problem, endpoint: Endpoint, limits: Limits, grader: Grader, tool: Tool | None
    ) -> None:
        self.problem, self.endpoint, self.limits, self.grader = problem, endpoint, limits, grader
        self.tools = [PYTHON_TOOL] if tool else []
        self.interpreter = Interpreter(tool)
        self.messages: list[Message] = []
        self.turns = self.action_tokens = self.prompt_tokens = 0

    async def play(self, executor: Executor) -> Attempt:
        """Converse until an answer or a limit."""
        loop = asyncio.get_running_loop()
        try:
            response, finish_reason = await self._converse(executor)
            outcome = await loop.run_in_executor(
                executor, grade, self.grader, self.problem, response, finish_reason
            )
        finally:
            await loop.run_in_executor(executor, self.interpreter.close)
        return Attempt(
            outcome=outcome,
            messages=self.messages,
            turns=self.turns,
            prompt_tokens=self.prompt_tokens,
            action_tokens=self.action_tokens,
            total_tokens=self.prompt_tokens + self.action_tokens,
            interpreter=self.interpreter,
        )

    async def _converse(self, executor: Executor) -> tuple[str, FinishReason]:
        loop = asyncio.get_running_loop()
        history = question(self.problem)
        context = _most_tokens(history, self.tools)  # of what the next action follows, at most
        if context >= self.limits.max_tokens:
            raise EndpointError(
                f"the prompt of problem {self.problem.problem_id} may have {context} tokens, and a "
                f"trajectory {self.limits.max_tokens}; raise --max-tokens"
            )
        while True:
            left = self.limits.max_tokens - context
            if left < 1:
                return "", "length"
            turn = await self.endpoint.chat(history, self.tools, left)
            self.turns += 1
            self.action_tokens += turn.completion_tokens
            self.prompt_tokens = self.prompt_tokens or turn.prompt_tokens
            content = turn.message.get("content") or ""
            self.messages.append(
                {
                    "role": "assistant",
                    "content": content,
                    "reasoning_content": turn.message.get("reasoning_content")
                    or turn.message.get("reasoning")
                    or "",
                    "tool_calls": turn.message.get("tool_calls") or [],
                }
            )
            calls = turn.message.get("tool_calls") or []
            context = turn.prompt_tokens + turn.completion_tokens
            if turn.cut or not calls:
                text = read_action(content, opens_thinking=False, ended=not turn.cut, may_call=False).text
                return text, "length" if turn.cut else "stop"
            if self.turns >= self.limits.max_turns:
                return "", "turns"
            history.append(turn.message)
            for call in calls:
                function = call.get("function") or {}
                wanted = read_call(function.get("name"), function.get("arguments"))
                answer = await loop.run_in_executor(executor, self.interpreter.answer, wanted)
                self.messages.append(answer)
                history.append({"role": "tool", "tool_call_id": call.get("id"), "content": answer["content"]})
                context += _most_tokens([answer], [])
