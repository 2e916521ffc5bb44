"""What a sampled action says: its thinking, its text, and its tool calls in the Qwen3 (Hermes) format.

<think> ... </think> text <tool_call>{"name": "python", "arguments": {"code": "print(6 * 7)"}}</tool_call>
"""

import json
import re
from dataclasses import dataclass

EXAMPLE = '{"name": "python", "arguments": {"code": "..."}}'
MAX_CALLS = 8  # of one action; more are answered with an error

_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)


@dataclass(frozen=True)
class ToolCall:
    """Code to run, or the `error` that answers a malformed call."""

    code: str = ""
    error: str | None = None


@dataclass(frozen=True)
class Action:
    """`text` is what the action says outside its thinking, tool calls included; empty while thinking goes on.

    `ended` tells that the model ended the action itself; without that nothing is called.
    """

    thinking: str
    text: str
    calls: tuple[ToolCall, ...]
    ended: bool


def read_action(text: str, opens_thinking: bool, ended: bool, may_call: bool) -> Action:
    """Split an action's text; thinking that never closes leaves no text, and so neither answer nor calls."""
    thinking, closed, rest = text.rpartition("</think>")
    if not closed:
        before, opened, inside = text.partition("<think>")
        if opens_thinking or (opened and not before.strip()):
            return Action(inside if opened else text, "", (), ended)
        thinking, rest = "", text
    calls = tuple(map(_read_call, _CALL.findall(rest))) if may_call else ()
    refused = (ToolCall(error=f"Error: at most {MAX_CALLS} calls in one turn"),) * (len(calls) - MAX_CALLS)
    return Action(thinking.removeprefix("<think>").strip(), rest.strip(), calls[:MAX_CALLS] + refused, ended)


def read_call(name: object, arguments: object) -> ToolCall:
    """A tool call by its parts; `arguments` is a mapping, or JSON of one."""
    try:
        if isinstance(arguments, str):
            arguments = json.loads(arguments, strict=False)
        code = arguments["code"]  # type: ignore[index]
    except (ValueError, RecursionError) as error:
        return ToolCall(error=f"Error: the arguments are not valid JSON: {error}")
    except (KeyError, TypeError):
        return ToolCall(error=f"Error: a tool call is {EXAMPLE}")
    if name != "python":
        return ToolCall(error=f"Error: there is no tool {str(name)[:40]!r}, only 'python'")
    if not isinstance(code, str):
        return ToolCall(error="Error: code must be a string")
    return ToolCall(code=code)


def _read_call(found: tuple[str, str]) -> ToolCall:
    body, closing = found
    if not closing:
        return ToolCall(error="Error: the tool call lacks its closing </tool_call>")
    try:
        call = json.loads(body, strict=False)
        return read_call(call["name"], call["arguments"])
    except (ValueError, RecursionError) as error:
        return ToolCall(error=f"Error: the tool call is not valid JSON: {error}")
    except (KeyError, TypeError):
        return ToolCall(error=f"Error: a tool call is {EXAMPLE}")
