"""Five tasks, three at once, through runner and harness; the runner is killed and started again."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import openhands.tools.file_editor
import openhands.tools.task_tracker
import openhands.tools.terminal  # noqa: F401
import pytest
from conftest import processes_of
from openhands.sdk import LLM, Event
from openhands.sdk.critic import CriticBase
from openhands.sdk.llm import Metrics
from openhands.sdk.utils.models import OpenHandsModel
from pydantic import BaseModel
from scripted_model import ScriptedModel
from scripts import MIXED
from swebench.harness.utils import get_predictions_from_file

TURNS, WALL_SECONDS = 6, 90
PLACE = "tiny/evaluations/trial/seed0/step0/swe_tiny"
KEYS = {"model", "messages", "tools", "temperature", "top_p", "prompt_cache_key"}


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


class EvalMetadata(BaseModel):
    """What the reader of OpenHands' benchmarks asks for, of OpenHands' own types."""

    llm: LLM
    dataset: str
    max_iterations: int
    eval_output_dir: str
    critic: CriticBase
    n_critic_runs: int
    enable_condenser: bool
    details: dict[str, Any]


class RuntimeRun(BaseModel):
    """One of its two names is there, or the line is refused; only the second has a meaning here."""

    session_id: str
    started_at: datetime


class EvalOutput(OpenHandsModel):
    """A line of output.jsonl."""

    instance_id: str
    attempt: int
    test_result: dict[str, Any]
    instruction: str
    metadata: EvalMetadata
    history: list[Event]
    metrics: Metrics
    error: None
    instance: dict[str, Any]
    runtime_runs: list[RuntimeRun]


class Evaluation:
    """One evaluation of the scripted model, with what was seen on the way."""

    def __init__(self, results: Path) -> None:
        self.results, self.folder = results, results / PLACE
        self.model = ScriptedModel(MIXED)
        with self.model:
            self._kill_after_two_tasks()
            assert self._start().wait(timeout=1500) == 0
        self.left_after_end = processes_of(results)
        self.samples = {sample["problem_id"]: sample for sample in lines_of(self.folder / "samples.jsonl")}
        self.page, self.scores = "", {}

    def grade(self, *options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "evaluation.swe.grade", str(self.folder), "--backend", "bubblewrap"]
        done = subprocess.run(
            [*command, "--workers", "2", "--timeout", "120", *options], capture_output=True, text=True
        )
        self.scores = {score["problem_id"]: score for score in lines_of(self.folder / "scores.jsonl")}
        self.page = (self.folder / "report.md").read_text()
        return done

    def _start(self) -> subprocess.Popen[bytes]:
        options = "--row trial --scale tiny --benchmark swe_tiny --workspace local --model tiny-coder"
        options += f" --max-turns {TURNS} --wall-seconds {WALL_SECONDS} --concurrency 3"
        options += f" --results {self.results} --endpoint {self.model.url}"
        return subprocess.Popen([sys.executable, "-m", "evaluation.swe.runner", *options.split()])

    def _kill_after_two_tasks(self) -> None:
        runner = self._start()
        samples = self.folder / "samples.jsonl"
        deadline = time.monotonic() + 900
        while len(lines_of(samples)) < 2:
            assert runner.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
        self.running_when_killed = processes_of(self.results)
        runner.send_signal(signal.SIGKILL)
        runner.wait()
        self.samples_when_killed = samples.read_text()
        for _ in range(100):
            self.left_after_kill = processes_of(self.results)
            if not self.left_after_kill:
                break
            time.sleep(0.2)


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluation]:
    done = Evaluation(tmp_path_factory.mktemp("results"))
    graded = done.grade()
    assert graded.returncode == 0, graded.stderr
    yield done


def test_each_task_is_graded_as_intended(evaluation: Evaluation) -> None:
    outcomes = {
        name: (score["outcome"], score["finish_reason"], score["verdict"])
        for name, score in evaluation.scores.items()
    }
    assert outcomes == {
        "tiny__calendar-1": ("resolved", "finish", "right"),
        "tiny__slugs-2": ("suspect", "finish", "wrong"),
        "tiny__intervals-3": ("resolved", "turns", "right"),
        "tiny__ledger-4": ("tests_fail", "finish", "wrong"),
        "tiny__router-5": ("tests_fail", "wall_clock", "wrong"),
    }


def test_forged_run_is_what_the_harness_alone_calls_resolved(evaluation: Evaluation) -> None:
    report = next((evaluation.folder / "grading").glob("tiny-coder.*.json"))
    assert json.loads(report.read_text())["resolved_ids"] == [
        "tiny__calendar-1",
        "tiny__intervals-3",
        "tiny__slugs-2",
    ]
    assert evaluation.scores["tiny__slugs-2"]["reasons"] == [
        "changes conftest.py, which changes how tests run",
        "the tests ended without the summary of their runner",
    ]


def test_killed_runner_leaves_nothing_running_and_loses_nothing(evaluation: Evaluation) -> None:
    assert evaluation.running_when_killed
    assert evaluation.left_after_kill == evaluation.left_after_end == []
    text = (evaluation.folder / "samples.jsonl").read_text()
    assert text.startswith(evaluation.samples_when_killed)
    assert [len(evaluation.samples), len(text.splitlines())] == [5, 5]
    names = [line["instance_id"] for line in lines_of(evaluation.folder / "output.jsonl")]
    assert sorted(names) == sorted(evaluation.samples)
    assert not (evaluation.folder / "work").exists()
    assert not (evaluation.folder / "grading" / "containers").exists()


def test_three_tasks_run_at_once(evaluation: Evaluation) -> None:
    spans = [line["runtime_runs"][0] for line in lines_of(evaluation.folder / "output.jsonl")]
    at_once = [
        sum(other["started_at"] <= span["started_at"] < other["finished_at"] for other in spans)
        for span in spans
    ]
    assert max(at_once) == 3


def test_requests_hold_the_protocol_and_nothing_else(evaluation: Evaluation) -> None:
    assert evaluation.model.requests
    for body in evaluation.model.requests:
        assert (body["temperature"], body["top_p"], body["model"]) == (1.0, 1.0, "tiny-coder")
        assert set(body) <= KEYS
        names = [tool["function"]["name"] for tool in body["tools"]]
        assert names == ["terminal", "file_editor", "task_tracker", "finish", "think"]


def test_turn_limit_is_exact(evaluation: Evaluation) -> None:
    assert evaluation.samples["tiny__intervals-3"]["turns"] == TURNS
    longest = [len(body["messages"]) for body in evaluation.model.of("tiny/intervals")]
    assert max(longest) == 2 + 2 * (
        TURNS - 1
    )  # system, issue, and a call with its result for each turn before


def test_hang_is_ended_at_the_limit_with_the_patch_so_far(evaluation: Evaluation) -> None:
    sample = evaluation.samples["tiny__router-5"]
    assert WALL_SECONDS <= sample["seconds"] < WALL_SECONDS + 600  # the start of the server counts here
    assert "+# note" in sample["response_text"] and sample["status"] == "truncated"


def test_what_is_not_handed_in_is_said(evaluation: Evaluation) -> None:
    sample = evaluation.samples["tiny__calendar-1"]
    assert sample["dropped"] == {"data.bin": "binary", "setup.py": "setup file", "test_mine.py": "test"}
    assert sample["response_text"].count("diff --git") == 1
    assert "Left out of the patch: data.bin (binary), setup.py (setup file)" in evaluation.page


def test_page_tells_of_every_task(evaluation: Evaluation) -> None:
    for name, score in evaluation.scores.items():
        assert f"| [{name}](#{name}) | {score['outcome']} |" in evaluation.page
        assert f"## {name}" in evaluation.page
    assert '  3  terminal {"command": "echo two"}' in evaluation.page
    assert "+    for start, end in sorted(intervals):" in evaluation.page
    assert "FAIL_TO_PASS: 1 of 2 pass." in evaluation.page
    assert "- fails: `tests/test_ledger.py::test_no_drift`" in evaluation.page


def test_output_has_the_form_of_openhands_benchmarks(evaluation: Evaluation) -> None:
    lines = lines_of(evaluation.folder / "output.jsonl")
    assert set(lines[0]) == set(EvalOutput.model_fields)
    for line in lines:
        read = EvalOutput.model_validate(line)
        assert read.test_result["git_patch"] == evaluation.samples[read.instance_id]["response_text"]
        assert {event.kind for event in read.history} >= {"SystemPromptEvent", "MessageEvent", "ActionEvent"}
        assert (read.metadata.llm.model, read.metadata.llm.temperature) == ("tiny-coder", 1.0)
        assert (read.metadata.max_iterations, read.metadata.enable_condenser) == (TURNS, False)
        assert read.metrics.accumulated_token_usage.completion_tokens > 0


def test_the_harness_reads_the_predictions(evaluation: Evaluation) -> None:
    file = evaluation.folder / "predictions.jsonl"
    read = get_predictions_from_file(str(file), "unused", "test")
    patches = {line["instance_id"]: line["model_patch"] for line in read}
    assert patches == {name: sample["response_text"] for name, sample in evaluation.samples.items()}


def test_settings_that_change_scores_are_logged(evaluation: Evaluation) -> None:
    agent = json.loads((evaluation.folder / "spec.json").read_text())["protocol"]["agent"]
    assert (agent["condenser"], agent["stuck_detection"], agent["attempts"]) == (None, True, 1)


def test_regrading_reads_the_logs_and_starts_no_container(evaluation: Evaluation) -> None:
    before = (evaluation.folder / "scores.jsonl").read_bytes()
    os.rename(evaluation.folder / "tasks" / "images", evaluation.folder / "tasks" / "away")
    try:
        again = evaluation.grade("--from-logs")
    finally:
        os.rename(evaluation.folder / "tasks" / "away", evaluation.folder / "tasks" / "images")
    assert again.returncode == 0, again.stderr
    assert "2 resolved, 1 suspect, 2 tests_fail of 5; 40.0% resolved" in again.stdout
    assert "over bubblewrap" in again.stdout
    assert (evaluation.folder / "scores.jsonl").read_bytes() == before
