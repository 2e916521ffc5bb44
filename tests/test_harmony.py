"""Traces of GPT-OSS as conversations of another model, and the filter that chooses them."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from math_standins import PlainGrader, chat, tokenizer

from evaluation.math.sft_traces import TraceFileError, kept, read_traces
from sao.environments.chat_format import ChatFormatError
from sao.environments.harmony import TraceError, parse_harmony


def said(channel: str, body: str, end: str = "<|end|>") -> str:
    return f"<|start|>assistant<|channel|>{channel}<|message|>{body}{end}"


SYSTEM = "<|start|>system<|message|>You are a model.<|end|><|start|>developer<|message|>Be brief.<|end|>"
USER = "<|start|>user<|message|>What is 6 * 7?<|end|>"
CALL = said("analysis to=python code", "print(6 * 7)", "<|call|>")
RESULT = "<|start|>python to=assistant<|channel|>analysis<|message|>42\n<|end|>"
FINAL = said("final", "\\boxed{42}", "<|return|>")
TRACE = SYSTEM + USER + said("analysis", "Compute it.") + CALL + RESULT + said("analysis", "Good.") + FINAL


def test_a_trace_becomes_a_conversation() -> None:
    question, call, result, answer = parse_harmony(TRACE)
    assert question == {"role": "user", "content": "What is 6 * 7?"}
    assert (call["reasoning_content"], call["content"]) == ("Compute it.", "")
    assert call["tool_calls"][0]["function"] == {"name": "python", "arguments": {"code": "print(6 * 7)"}}
    assert result == {"role": "tool", "name": "python", "content": "42"}
    assert (answer["reasoning_content"], answer["content"]) == ("Good.", "\\boxed{42}")


@pytest.mark.parametrize(
    "call",
    [
        "<|start|>assistant to=python<|channel|>analysis code<|message|>print(6 * 7)<|call|>",
        said("commentary to=python code", "print(6 * 7)", "<|call|>"),
        said("commentary to=functions.python <|constrain|>json", '{"code": "print(6 * 7)"}', "<|call|>"),
    ],
)
def test_the_spellings_of_a_call(call: str) -> None:
    messages = parse_harmony(USER + call + RESULT + FINAL)
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == {"code": "print(6 * 7)"}


def test_a_trace_without_its_prompt_loses_nothing() -> None:
    """Sampled text alone, as servers return it, begins in the middle of the first message."""
    sampled = (said("analysis", "Compute it.") + CALL + RESULT + FINAL).removeprefix("<|start|>assistant")
    assert parse_harmony(sampled)[0]["reasoning_content"] == "Compute it."
    assert len(parse_harmony(sampled)) == 3


def test_an_empty_result_reads_as_in_sampling() -> None:
    silent = "<|start|>functions.python to=assistant<|channel|>commentary<|message|><|end|>"
    assert parse_harmony(USER + CALL + silent + FINAL)[2]["content"] == "(no output)"


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        ("plain text", "holds no message"),
        ("Let me think." + FINAL, "text outside its messages"),
        (USER + CALL + "lost" + RESULT + FINAL, "text outside its messages"),
        (USER + said("final", "\\boxed{4", ""), "is cut off"),
        (USER + said("analysis", "hm"), "does not end with a final answer"),
        (USER + FINAL + RESULT, "result without a call"),
        (USER + CALL + FINAL, "call without a result"),
        (
            USER + said("analysis to=browser.search code", "x", "<|call|>") + RESULT + FINAL,
            "'browser.search'",
        ),
        (
            USER + said("analysis to=python<|constrain|>json", "{", "<|call|>") + RESULT + FINAL,
            "not the JSON",
        ),
        ("<|start|>critic<|message|>no<|end|>" + FINAL, "message of 'critic'"),
    ],
)
def test_a_faulty_trace_is_named(trace: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        parse_harmony(trace)


def test_a_training_example_has_the_tokens_of_sampling() -> None:
    """Thinking stays in every turn, tool results and separators are not trained on."""
    token_ids, mask = chat().training_example(parse_harmony(TRACE))
    trained = tokenizer().decode([token for token, acts in zip(token_ids, mask, strict=True) if acts])
    assert trained == (
        "Compute it.\n</think>\n\n<tool_call>\n"
        '{"name": "python", "arguments": {"code": "print(6 * 7)"}}\n</tool_call><|im_end|>'
        "Good.\n</think>\n\n\\boxed{42}<|im_end|>"
    )
    rest = tokenizer().decode([token for token, acts in zip(token_ids, mask, strict=True) if not acts])
    assert rest.endswith(
        "<think>\n\n<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n"
    )
    with pytest.raises(ChatFormatError, match="2 messages of 'assistant' in a row"):
        chat().training_example([*parse_harmony(TRACE), parse_harmony(TRACE)[-1]])


def test_the_filter_keeps_whole_right_short_and_new_traces() -> None:
    right = {"problem": "What is 6 * 7?", "answer": "42", "trace": TRACE}
    traces: list[Any] = [
        right,
        right,
        right | {"answer": "41"},
        right | {"trace": TRACE[:-12]},
        right | {"trace": TRACE.replace("Compute it.", "x" * 9000)},
    ]
    left_out: Counter[str] = Counter()
    (line,) = kept(traces, chat(), PlainGrader(), max_tokens=2000, left_out=left_out)
    assert line["messages"][0]["content"].endswith("Put your final answer within \\boxed{}.")
    assert line["tokens"] == len(chat().training_example(line["messages"])[0])
    assert left_out == {
        "is there already": 1,
        "answers wrong": 1,
        "is cut off in its last message": 1,
        "is longer than 2000 tokens": 1,
    }


def test_a_damaged_file_of_traces_is_reported_by_line(tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    file.write_text(json.dumps({"problem": "p", "answer": "a", "trace": "t"}) + '\n{"problem": "p"}\n')
    with pytest.raises(TraceFileError, match="line 2: is no trace"):
        list(read_traces(file))
    with pytest.raises(TraceFileError, match="cannot be read"):
        list(read_traces(tmp_path / "nothing"))
