"""Traces for fine-tuning: a teacher's attempts over HTTP, resumed, and what of them is trained on."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from math_standins import PlainTool, ScriptedModel, chat, tokenizer

from evaluation.endpoint import Endpoint
from evaluation.math import runner, traces
from evaluation.math.sft_traces import Selection
from evaluation.math.store import read_samples
from evaluation.math.traces import conversation_of, in_order, kept, main
from evaluation.vllm_server import VLLMServer
from sao import config_files
from sao.config import load_scale
from sao.environments.harmony import TraceError
from sao.environments.python_math import INSTRUCTION, Problem

FACTORS = range(2, 8)


class TestTool(PlainTool):
    __test__ = False

    def __enter__(self) -> "TestTool":
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six problems, and scale `tiny` whose model is a folder with a tokenizer."""
    experiments = shutil.copytree(config_files.EXPERIMENTS, tmp_path / "experiments")
    tokenizer().save_pretrained(tmp_path / "released")
    task = {
        "name": "math",
        "environment": "math",
        "data": "tiny_problems",
        "max_tokens": 2000,
        "max_turns": 3,
    }
    scale = {
        "extends": "paper_math",
        "title": "tiny",
        "model": {"path": str(tmp_path / "released"), "vocabulary_size": 512},
        "tasks": {"reasoning": task | {"benchmarks": ["aime_2025"]}},
        "sft": {"data": "tiny_problems", "teacher": "scripted", "samples_per_problem": 2},
    }
    (experiments / "scales" / "tiny.yaml").write_text(yaml.safe_dump(scale))
    monkeypatch.setattr(config_files, "EXPERIMENTS", experiments)
    monkeypatch.setattr(traces, "PythonTool", TestTool)
    monkeypatch.setattr(runner, "PAUSE_SECONDS", 0.0)
    rows = [{"id": f"p{n}", "text": f"What is {n} * 7?", "answer": str(n * 7)} for n in FACTORS]
    rows.append({"id": "proof", "text": "Show that 1 is odd.", "answer": ""})
    file = tmp_path / "results" / "data" / "tiny_problems.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "results"


def solve(said: str, number: int) -> str:
    """Runs the product and answers what was printed; answers 6 * 7 at once, and wrongly."""
    if "6 * 7" in said:
        return "It is \\boxed{41}."
    asked = re.search(r"What is (\d+) \* 7\?", said)
    return f"print({asked[1]} * 7)" if asked else f"It is \\boxed{{{said.strip()}}}."


def words(command: str, results: Path, *more: str) -> list[str]:
    return [command, "--scale", "tiny", "--results", str(results), *more]


def test_traces_lie_in_the_order_of_the_problems_whichever_ended_first() -> None:
    problems = [Problem(name, "set", "text", "answer") for name in ("b", "a")]
    ended = [("a", 1), ("b", 1), ("a", 0), ("b", 0)]
    samples = [{"problem_id": name, "run_index": run} for name, run in ended]
    found = [(sample["problem_id"], sample["run_index"]) for sample in in_order(problems, samples)]
    assert found == [("b", 0), ("b", 1), ("a", 0), ("a", 1)]


def test_a_teacher_solves_and_what_is_right_is_kept(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ScriptedModel(solve).serve() as url:
        assert main(words("sample", results, "--endpoint", url)) == 0
        assert main(words("sample", results, "--endpoint", url)) == 0
    assert "is finished" in capsys.readouterr().out
    folder = results / "tiny" / "prepare" / "math" / "traces"
    found = Counter(sample["problem_id"] for sample in read_samples(folder))
    assert found == {f"p{n}": 2 for n in FACTORS}, "no attempt at the proof, which has no answer"

    assert main(words("keep", results)) == 0
    said = capsys.readouterr().out
    assert "5 traces kept, 7 left out" in said
    assert re.search(r"5  is there already", said) and re.search(r"2  answers wrong", said)
    lines = [json.loads(line) for line in (results / "data" / "tiny_problems_traces.jsonl").open()]
    assert len(lines) == 5
    asked, called, shown, answered = lines[0]["messages"]
    assert asked == {"role": "user", "content": f"What is 2 * 7?\n\n{INSTRUCTION}"}
    assert called["tool_calls"][0]["function"] == {"name": "python", "arguments": {"code": "print(2 * 7)"}}
    assert (shown["content"], answered["content"]) == ("14", "It is \\boxed{14}.")
    token_ids, _ = chat().training_example(lines[0]["messages"])
    assert len(token_ids) == lines[0]["tokens"]


def test_attempts_outlive_a_broken_endpoint(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The third request is refused for good; what was finished before it is not asked for again."""
    model = ScriptedModel(solve, {2: (400, "no such thing", None)})
    with model.serve() as url:
        assert main(words("sample", results, "--endpoint", url, "--concurrency", "1")) == 2
    folder = results / "tiny" / "prepare" / "math" / "traces"
    before = len(list(read_samples(folder)))
    assert before == 1 and not (folder / "seal.json").exists()
    assert "refuses the request" in capsys.readouterr().err
    assert main(words("keep", results)) == 2
    assert "is missing or unfinished; make it with: python -m evaluation.math.traces sample" in (
        capsys.readouterr().err
    )
    with ScriptedModel(solve).serve() as url:
        assert main(words("sample", results, "--endpoint", url)) == 0
    assert len(list(read_samples(folder))) == 2 * len(FACTORS)


def test_nothing_right_writes_no_file(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedModel(lambda said, number: "I give up.").serve() as url:
        assert main(words("sample", results, "--endpoint", url)) == 0
    assert main(words("keep", results)) == 2
    assert "no trace can be trained on" in capsys.readouterr().err
    assert not (results / "data" / "tiny_problems_traces.jsonl").exists()


def sample(*messages: dict[str, Any], finish_reason: str = "stop") -> dict[str, Any]:
    return {
        "problem": "What is 6 * 7?",
        "finish_reason": finish_reason,
        "verdict": "right",
        "messages": list(messages),
    }


def assistant(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "reasoning_content": "hm", **more}


CALL = '<tool_call>\n{"name": "python", "arguments": {"code": "print(42)"}}\n</tool_call>'


def test_calls_within_the_text_become_calls() -> None:
    """As models write them that are asked in token ids."""
    tool = {"role": "tool", "name": "python", "content": "42", "status": "ok"}
    messages = conversation_of(sample(assistant(f"Let me see.\n{CALL}"), tool, assistant("\\boxed{42}")))
    assert messages[1]["content"] == "Let me see." and messages[1]["reasoning_content"] == "hm"
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == {"code": "print(42)"}
    assert messages[2] == {"role": "tool", "name": "python", "content": "42"}
    assert "tool_calls" not in messages[3]


@pytest.mark.parametrize(
    ("faulty", "reason"),
    [
        (sample(assistant(""), finish_reason="length"), "ended at the limit of tokens or turns"),
        (sample(assistant("<tool_call>{</tool_call>")), "has a malformed call"),
        (sample(assistant("", tool_calls=[{"function": {"name": "search"}}])), "has a malformed call"),
    ],
)
def test_faulty_attempts_are_left_out_and_counted(faulty: dict[str, Any], reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        conversation_of(faulty)
    left_out: Counter[str] = Counter()
    assert list(kept([faulty], Selection(chat(), 2000, 3, left_out))) == []
    assert left_out == {reason: 1}


def test_long_and_many_turned_traces_are_left_out() -> None:
    right = sample(assistant("\\boxed{42}"))
    for selection, reason in (
        (Selection(chat(), 20, 3, Counter()), "is longer than 20 tokens"),
        (Selection(chat(), 2000, 0, Counter()), "has more than 0 turns"),
    ):
        assert list(kept([right], selection)) == [] and selection.left_out == {reason: 1}


def test_mistakes_are_told_in_one_line(
    results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for scale, message in (
        ("cpu_math", "cpu_math.yaml: sft: the scale fine-tunes no released model on mathematics"),
        ("tin", "did you mean tiny?"),
    ):
        assert main(["sample", "--scale", scale, "--results", str(results)]) == 2
        said = capsys.readouterr().err
        assert message in said and said.count("\n") == 1
    (results / "data" / "tiny_problems.jsonl").unlink()
    assert main(words("sample", results)) == 2
    assert "tiny_problems.jsonl: is not there" in capsys.readouterr().err


def test_the_papers_teacher_is_served_by_vllm_on_a_node(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two copies of four GPUs each, with the scale's words for its tool calls."""
    teaching = traces.Teaching(load_scale("tiny"), str(results))
    server = teaching._server(16)
    assert isinstance(server, VLLMServer)
    line = " ".join(server.command(1))
    assert "--model scripted" in line and "--tensor-parallel-size 4" in line
    assert "--data-parallel-size 2 --enable-auto-tool-choice --tool-call-parser openai" in line


def test_an_endpoint_is_asked_under_the_teachers_name(results: Path) -> None:
    teaching = traces.Teaching(load_scale("tiny"), str(results))
    options = traces.parse(words("sample", results, "--endpoint", "http://here/v1"))
    with traces.ExitStack() as stack:
        teaching.start(stack, options)
    assert isinstance(teaching.endpoint, Endpoint) and teaching.endpoint.model == "scripted"
