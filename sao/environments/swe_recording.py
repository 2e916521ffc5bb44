"""The token-aligned record of a conversation that an agent's SDK leads over the chat API.

The SDK sends the whole history with each request. What the engine sampled is never tokenised again: the
record holds the tokens of the conversation so far, and of a request's messages only those behind the last
answer are rendered and appended. That is sound while the history is the recorded one; where the SDK altered
it (a condenser, a dropped thinking, a request sent twice) the tokens are not what the SDK shows the model,
and the record is invalid.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sao.environments.chat_format import ChatFormat, Message
from sao.environments.swe_calls import assistant_message
from sao.trajectory import Status, Trajectory

Tools = list[dict[str, Any]]
OURS = "assistant"
COMPARED = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id")


class HistoryAltered(Exception):
    """A request's history is not the recorded one; the message says where they part."""


@dataclass
class Recording:
    """One conversation: its tokens and what was sampled of them.

    `logprobs` and `versions` are those of the action tokens, in order. `cut` says that the last action ended
    for want of tokens, `invalid` why the record is none of a trajectory.
    """

    token_ids: list[int] = field(default_factory=list)
    action_spans: list[tuple[int, int]] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    tools: Tools | None = None
    cut: bool = False
    invalid: str | None = None

    def context(self, messages: Sequence[Message], tools: Tools, chat: ChatFormat) -> list[int]:
        """Token ids that the next action follows, from the request's whole history; changes nothing.

        Raises HistoryAltered where the history does not continue the record.
        """
        if self.tools is None:
            return self._opening(messages, chat)
        if tools != self.tools:
            raise HistoryAltered(_difference(tools, self.tools))
        known = len(self.messages)
        for place, (theirs, ours) in enumerate(zip(messages, self.messages, strict=False)):
            if different := [
                name for name in COMPARED if (theirs.get(name) or None) != (ours.get(name) or None)
            ]:
                raise HistoryAltered(f"message {place} ({ours['role']}) has another {different[0]}")
        new = [_safe(message, chat) for message in messages[known:]]
        if len(messages) <= known:
            raise HistoryAltered(f"the history has {len(messages)} messages where {known} are recorded")
        if any(message["role"] == OURS for message in new):
            raise HistoryAltered("the history holds an assistant message that was not sampled here")
        closing = [] if self.token_ids[-1] == chat.end_of_turn else [chat.end_of_turn]
        return self.token_ids + closing + chat.following_ids(new)

    def record(
        self,
        messages: Sequence[Message],
        tools: Tools,
        context: list[int],
        chat: ChatFormat,
        action_ids: list[int],
        logprobs: list[float],
        versions: list[int],
    ) -> Message:
        """Append what was sampled behind `context`, the answer to `messages`; returns it as a message."""
        answer = assistant_message(chat, action_ids, turn=len(self.action_spans))
        self.tools, self.messages = tools, [*messages, answer]
        self.token_ids = context + action_ids
        self.action_spans.append((len(context), len(self.token_ids)))
        self.logprobs += logprobs
        self.versions += versions
        return answer

    def trajectory(self, reward: float, status: Status, **identity: Any) -> Trajectory:
        """The record as a trajectory; `identity` holds its prompt_id, group_id, index and label."""
        tokens = len(self.token_ids)
        logprobs = np.full(tokens, np.nan, dtype=np.float32)
        versions = np.full(tokens, -1, dtype=np.int64)
        places = [place for start, end in self.action_spans for place in range(start, end)]
        logprobs[places], versions[places] = self.logprobs, self.versions
        spans = np.array(self.action_spans, dtype=np.int64).reshape(-1, 2)
        token_ids = np.array(self.token_ids, dtype=np.int64)
        return Trajectory(token_ids, spans, logprobs, versions, reward, status, **identity)

    @staticmethod
    def _opening(messages: Sequence[Message], chat: ChatFormat) -> list[int]:
        if not messages or any(message["role"] == OURS for message in messages):
            raise HistoryAltered("the conversation began before its record")
        return chat.prompt_ids([_safe(message, chat) for message in messages])


def _difference(tools: Tools, first: Tools) -> str:
    """Where a request's tools part from those of the first one."""
    names, before = ([tool["function"]["name"] for tool in listed] for listed in (tools, first))
    if names != before:
        return f"the tools are {', '.join(names)}, and were {', '.join(before)}"
    changed = [name for name, tool, other in zip(names, tools, first, strict=True) if tool != other]
    return f"the tool {changed[0]} is described in another way than in the first request"


def _safe(message: Message, chat: ChatFormat) -> Message:
    """The message with no special tokens in its text; the scaffold's own system prompt stays as it is."""
    return (
        message if message["role"] == "system" else message | {"content": chat.harmless(message["content"])}
    )
