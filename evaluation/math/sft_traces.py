"""Filters tool-using traces of GPT-OSS for supervised fine-tuning, and says what it left out and why.

    python -m evaluation.math.sft_traces traces.jsonl --tokenizer MODEL --out sft.jsonl

A line of the input has `problem`, `answer` and `trace` (harmony format). A trace is kept when it is whole,
uses no tool but Python, answers right, fits `--max-tokens` in the tokenizer's chat template, and is not there
already. A line of the output has `messages`, as chat templates take them, and the number of `tokens`.
"""

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluation.math.grading import Grader
from evaluation.math.protocol import MAX_TOKENS, MAX_TURNS
from sao.environments.chat_format import PYTHON_TOOL, ChatFormat, ChatFormatError, Message
from sao.environments.harmony import TraceError, parse_harmony
from sao.environments.python_math import INSTRUCTION
from sao.runlog_files import write_atomic

BENCHMARK = "sft"  # graded as a benchmark of its own: no vote of two graders


class TraceFileError(ValueError):
    """A file of traces that cannot be read; the message names the line and the mend."""


def read_traces(path: Path) -> Iterator[dict[str, str]]:
    """The lines of a file of traces; TraceFileError where one lacks a field."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TraceFileError(f"{path}: cannot be read: {error.strerror}") from error
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            trace = json.loads(line)
            yield {name: trace[name] for name in ("problem", "answer", "trace")}
        except (ValueError, KeyError, TypeError) as error:
            raise TraceFileError(
                f"{path}: line {number}: is no trace ({error}); remove or repair it"
            ) from None


def conversation(problem: str, trace: str) -> list[Message]:
    """The messages of a trace behind the question as evaluation poses it; TraceError for a faulty trace."""
    messages = [message for message in parse_harmony(trace) if message["role"] != "user"]
    return [{"role": "user", "content": f"{problem}\n\n{INSTRUCTION}"}, *messages]


@dataclass
class Selection:
    """Chooses the conversations to train on; `left_out` counts the reasons against the others."""

    chat: ChatFormat
    max_tokens: int
    max_turns: int
    left_out: Counter[str]
    _seen: set[str] = field(default_factory=set)

    def line(self, messages: list[Message], verdict: str) -> dict[str, Any] | None:
        """The line of a conversation with the verdict on its answer; None where it is left out."""
        try:
            token_ids, _ = self.chat.training_example(messages)
        except ChatFormatError as error:
            self.left_out[str(error)] += 1
            return None
        content = hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest()
        if verdict != "right":
            self.left_out[f"answers {verdict}"] += 1
        elif len(token_ids) > self.max_tokens:
            self.left_out[f"is longer than {self.max_tokens} tokens"] += 1
        elif sum(message["role"] == "assistant" for message in messages) > self.max_turns:
            self.left_out[f"has more than {self.max_turns} turns"] += 1
        elif content in self._seen:
            self.left_out["is there already"] += 1
        else:
            self._seen.add(content)
            return {"messages": messages, "tokens": len(token_ids)}
        return None


def kept(
    traces: Iterable[dict[str, str]], chat: ChatFormat, grader: Any, max_tokens: int, left_out: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Lines of the output; `left_out` counts the reasons against the others."""
    selection = Selection(chat, max_tokens, MAX_TURNS, left_out)
    for trace in traces:
        try:
            messages = conversation(trace["problem"], trace["trace"])
        except TraceError as error:
            left_out[str(error)] += 1
            continue
        said = grader.grade(BENCHMARK, trace["answer"], messages[-1]["content"], "stop")
        if (line := selection.line(messages, said.verdict)) is not None:
            yield line


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns 0, or 2 for a user's mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.math.sft_traces", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("traces", type=Path)
    parser.add_argument("--tokenizer", required=True, help="model or folder whose chat template is trained")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS)
    options = parser.parse_args(arguments)
    from transformers import AutoTokenizer

    left_out: Counter[str] = Counter()
    try:
        chat = ChatFormat(AutoTokenizer.from_pretrained(options.tokenizer), [PYTHON_TOOL])
        with Grader() as grader:
            lines = list(kept(read_traces(options.traces), chat, grader, options.max_tokens, left_out))
    except (TraceFileError, ChatFormatError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    write_atomic(options.out, "".join(json.dumps(line) + "\n" for line in lines).encode())
    print(f"{options.out}: {len(lines)} traces kept, {sum(left_out.values())} left out")
    for reason, count in left_out.most_common():
        print(f"  {count:6d}  {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
