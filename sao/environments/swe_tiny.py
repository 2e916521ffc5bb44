"""A tiny policy's way of seeing SWE tasks: template, tokenizer, and scripts that solve the tiny tasks or not.

OpenHands' system prompt and tools are 33 kB of every request, which no model of a few hundred thousand
weights on a CPU can read. This template is the tiny policy's own and says so openly: it writes the names of
the tools, the first line of the issue, and the first characters of each tool's answer, and leaves out the
rest. All else is as for any other model: the same SDK, the same requests, recording and grading.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sao.environments.chat_format import ChatFormat, Message
from sao.environments.small_tokenizer import small_tokenizer

SHOWN = 72  # characters of a tool's answer, enough for what the file editor did to which file
VOCABULARY = 640

COMPACT_TEMPLATE = (
    """\
{%- if tools %}
  {{- "<|im_start|>system\\nTools:" }}
  {%- for tool in tools %}{{- " " ~ tool.function.name }}{%- endfor %}
  {{- "<|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
  {%- if message.role == "user" %}
    {{- "<|im_start|>user\\n" }}
    {{- message.content.split("<issue>\\n")[-1].split("\\n")[0][:"""
    f"{SHOWN}"
    """] ~ "<|im_end|>\\n" }}
  {%- elif message.role == "tool" %}
    {%- if loop.first or loop.previtem.role != "tool" %}{{- "<|im_start|>user" }}{%- endif %}
    {{- "\\n<tool_response>\\n" ~ message.content[:"""
    f"{SHOWN}"
    """] ~ "\\n</tool_response>" }}
    {%- if loop.last or loop.nextitem.role != "tool" %}{{- "<|im_end|>\\n" }}{%- endif %}
  {%- elif message.role == "assistant" %}
    {{- "<|im_start|>assistant\\n<think>\\n" ~ (message.reasoning_content or "") ~ "\\n</think>\\n\\n" }}
    {{- message.content }}
    {%- for call in message.tool_calls or [] %}
      {{- "<tool_call>\\n" ~ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}
      {{- "\\n</tool_call>" }}
    {%- endfor %}
    {{- "<|im_end|>\\n" }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- "<|im_start|>assistant\\n<think>\\n" }}
{%- endif %}
"""
)


@dataclass(frozen=True)
class Script:
    """Calls that the demonstrator makes on a task, and whether they resolve it."""

    instance_id: str
    calls: tuple[tuple[str, dict[str, Any]], ...]
    resolves: bool


def scripts_of(described: Mapping[str, Any], repository: str) -> list[Script]:
    """The demonstrator's two ways with a tiny task: all edits of its solution, and all but the last.

    `described` has the task's `name`, and its `solution` as [old, new] texts by file.
    """
    edits = [
        (
            "file_editor",
            {"command": "str_replace", "path": f"{repository}/{file}", "old_str": old, "new_str": new},
        )
        for file, changes in described["solution"].items()
        for old, new in changes
    ]
    finish = ("finish", {"message": "done"})
    name = str(described["name"])
    return [Script(name, (*edits, finish), True), Script(name, (*edits[:-1], finish), False)]


def tiny_tokenizer(scripts: Sequence[Script], titles: Sequence[str]) -> Any:
    """A tokenizer trained on what the demonstrator writes and on the issues' first lines."""
    calls = [
        json.dumps({"name": name, "arguments": arguments}) for s in scripts for name, arguments in s.calls
    ]
    answers = "The file /testbed/a.py has been edited. Here's the result of running `cat -n` on a snippet of"
    tools = "Tools: terminal file_editor task_tracker finish think"
    tokenizer = small_tokenizer([*calls, *titles, *[answers, tools] * len(calls)], VOCABULARY)
    tokenizer.chat_template = COMPACT_TEMPLATE
    return tokenizer


def actions_of(script: Script, chat: ChatFormat) -> list[list[int]]:
    """Token ids of the script's actions, as the policy would sample them."""
    return [chat.action_ids(_message(name, arguments)) for name, arguments in script.calls]


def _message(name: str, arguments: dict[str, Any]) -> Message:
    function = {"name": name, "arguments": arguments}
    call = {"type": "function", "function": function}
    return {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": [call]}
