"""Traces in the harmony format of GPT-OSS as chat messages, for supervised fine-tuning of another model.

    <|start|>assistant<|channel|>analysis<|message|>thinking<|end|>
    <|start|>assistant<|channel|>analysis to=python code<|message|>print(6 * 7)<|call|>
    <|start|>python to=assistant<|channel|>analysis<|message|>42<|end|>
    <|start|>assistant<|channel|>final<|message|>\\boxed{42}<|return|>

An assistant's messages up to a call or the final answer become one turn: what was said in the analysis
channel is its thinking, what was said in the others its text.
"""

import json
import re
from dataclasses import dataclass, field

from sao.environments.chat_format import Message
from sao.environments.python_math import NO_OUTPUT

PYTHON = ("python", "functions.python")

_MESSAGE = re.compile(
    r"<\|start\|>(?P<header>.*?)<\|message\|>(?P<body>.*?)(?P<end><\|end\|>|<\|call\|>|<\|return\|>|\Z)",
    re.DOTALL,
)
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=(\S+?)(?=<\||\s|\Z)")


class TraceError(ValueError):
    """A trace that makes no conversation; the message says what is wrong with it."""


@dataclass
class _Turn:
    thinking: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    def message(self, code: str | None = None) -> Message:
        message: Message = {
            "role": "assistant",
            "content": "\n\n".join(self.text),
            "reasoning_content": "\n\n".join(self.thinking),
        }
        if code is not None:
            function = {"name": "python", "arguments": {"code": code}}
            message["tool_calls"] = [{"type": "function", "function": function}]
        return message


def parse_harmony(trace: str) -> list[Message]:
    """The messages of a trace from the question to the final answer, without system and developer messages.

    A trace may begin behind the `<|start|>assistant` that its prompt ended with. Raises TraceError for one
    that is cut off, holds text outside its messages, calls another tool, or does not end with an answer.
    """
    if trace.lstrip().startswith(("<|channel|>", "<|message|>")):
        trace = f"<|start|>assistant{trace.lstrip()}"
    found = list(_MESSAGE.finditer(trace))
    if not found:
        raise TraceError("holds no message")
    if _MESSAGE.sub("", trace).strip():
        raise TraceError("holds text outside its messages")
    messages: list[Message] = []
    turn = _Turn()
    awaits_result = False
    for place, match in enumerate(found):
        header, body, end = match["header"], match["body"], match["end"]
        role = re.split(r"[\s<]", header.strip(), maxsplit=1)[0]
        if not end:
            raise TraceError("is cut off in its last message")
        if role in ("system", "developer"):
            continue
        if role == "user":
            messages.append({"role": "user", "content": body.strip()})
        elif role in PYTHON:
            if not awaits_result:
                raise TraceError("has a tool result without a call")
            messages.append({"role": "tool", "name": "python", "content": body.strip("\n") or NO_OUTPUT})
            awaits_result = False
        elif role != "assistant":
            raise TraceError(f"has a message of {role!r}, which is neither a person, the model, nor the tool")
        elif awaits_result:
            raise TraceError("has a call without a result")
        elif recipient := _RECIPIENT.search(header):
            messages.append(turn.message(_code(recipient[1], header, body)))
            turn, awaits_result = _Turn(), True
        else:
            channel = _CHANNEL.search(header)
            (turn.thinking if channel and channel[1] == "analysis" else turn.text).append(body.strip())
            if channel and channel[1] == "final" and place == len(found) - 1:
                return [*messages, turn.message()]
    raise TraceError("does not end with a final answer")


def _code(recipient: str, header: str, body: str) -> str:
    if recipient not in PYTHON:
        raise TraceError(f"calls the tool {recipient!r}")
    if "json" not in header.rpartition("<|constrain|>")[2]:
        return body.strip("\n")
    try:
        return str(json.loads(body)["code"])
    except (ValueError, KeyError, TypeError):
        raise TraceError("has a call whose arguments are not the JSON of some code") from None
