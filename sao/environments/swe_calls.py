"""What a sampled action says to an agent's SDK: an assistant message of the chat API, from its tokens.

Tool calls have the Qwen3 (Hermes) format and are read by the rule of vLLM's `hermes` parser, so that training
and an evaluation over vLLM's chat API see the same: where one call of an action is no valid JSON, none is
made and the whole text is the message's content.

    <think> ... </think> text <tool_call>{"name": "terminal", "arguments": {"command": "ls"}}</tool_call>
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from sao.environments.chat_format import ChatFormat, Message

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


def assistant_message(chat: ChatFormat, action_ids: Sequence[int], turn: int) -> Message:
    """The message that the tokens of action number `turn` say; `tool_calls` is there where it calls tools.

    An action that does not end its turn calls nothing.
    """
    action = chat.read(action_ids)
    calls = _calls(action.text) if action.calls else []
    message: Message = {"role": "assistant", "content": action.text, "reasoning_content": action.thinking}
    if calls:
        message["content"] = action.text.partition("<tool_call>")[0].strip()
        message["tool_calls"] = [
            {"id": f"call_{turn}_{place}", "type": "function", "function": function}
            for place, function in enumerate(calls)
        ]
    return message


def _calls(text: str) -> list[dict[str, str]]:
    """Names and arguments (as JSON) of all calls, or none where one is malformed."""
    functions: list[dict[str, str]] = []
    for body in _CALL.findall(text):
        try:
            call: Any = json.loads(body)
            name, arguments = call["name"], call["arguments"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return []
        functions.append({"name": str(name), "arguments": json.dumps(arguments, ensure_ascii=False)})
    return functions
