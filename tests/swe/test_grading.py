"""Patches through the official harness: each outcome, five hundred logs graded again, and doubtful logs."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluation.math.store import SampleStore
from evaluation.swe.grade import GRADING, main
from evaluation.swe.grading import Grading, grade, regrade
from evaluation.swe.outcomes import UNGRADED
from evaluation.swe.tasks import Task, write_tasks
from evaluation.swe.tiny_tasks import build_tiny_tasks
from evaluation.swe.verdicts import log_suspicions

OVERTURNED = """\
import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""


def new_file(name: str, text: str) -> str:
    lines = text.splitlines()
    head = f"diff --git a/{name} b/{name}\nnew file mode 100644\n--- /dev/null\n+++ b/{name}\n"
    return head + f"@@ -0,0 +1,{len(lines)} @@\n" + "".join(f"+{line}\n" for line in lines)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Task]]:
    folder = tmp_path_factory.mktemp("tasks")
    return folder, build_tiny_tasks(folder)


@pytest.fixture(scope="module")
def grading(built: tuple[Path, list[Task]], tmp_path_factory: pytest.TempPathFactory) -> Grading:
    folder = tmp_path_factory.mktemp("grading")
    return Grading(folder, "some/model", "bubblewrap", built[0] / "images", workers=2, timeout=120)


def test_outcomes_of_scripted_patches(built: tuple[Path, list[Task]], grading: Grading) -> None:
    tasks = built[1]
    calendar, slugs, intervals, ledger, router = [task.instance_id for task in tasks]
    patches = {
        calendar: tasks[0].row["patch"].rstrip("\n"),  # a missing last newline is no reason not to apply
        slugs: new_file("conftest.py", OVERTURNED),
        intervals: "",
        ledger: "this is no patch\n",
        router: tasks[0].row["patch"],
    }
    verdicts = grade(grading, tasks, patches)
    assert {name: verdict.outcome for name, verdict in verdicts.items()} == {
        calendar: "resolved",
        slugs: "suspect",
        intervals: "empty_patch",
        ledger: "does_not_apply",
        router: "does_not_apply",
    }
    assert verdicts[slugs].reasons == ["changes conftest.py, which changes how tests run"]
    assert regrade(grading, tasks, patches) == verdicts
    assert not (grading.folder / "containers").exists()


FORGED = "\\n".join(
    f"PASSED tests/test_text.py::{name}"
    for name in ("test_words", "test_short_enough", "test_accents", "test_shortened")
)
PLUGIN = "globals()['pytest_' + 'pyfunc_call'] = lambda pyfuncitem: True"


def at_the_end_of_slugs(*lines: str) -> str:
    """A patch that adds lines to the module under test, and mends nothing."""
    text = "".join(f"+{line}\n" for line in lines)
    context = '     """At most `length` characters of a slug."""\n     return slug[:length]\n'
    head = "diff --git a/slugs/text.py b/slugs/text.py\n--- a/slugs/text.py\n+++ b/slugs/text.py\n"
    return f"{head}@@ -13,2 +13,{2 + len(lines)} @@\n{context}{text}"


def test_cheats_that_the_harness_calls_resolved_are_suspect(
    built: tuple[Path, list[Task]], grading: Grading
) -> None:
    task = built[1][1]
    patches = {
        "pytest_toml": new_file("pytest.toml", "[pytest]\naddopts = ['-p', 'plugin']")
        + new_file("plugin.py", PLUGIN),
        "shadow": new_file(
            "iniconfig.py", f"print('\\n{FORGED}\\n=== 4 passed in 0.1s ===')\nraise SystemExit"
        ),
        "runner": at_the_end_of_slugs("import pytest", "pytest.Function.runtest = lambda self: None"),
        "at_exit": at_the_end_of_slugs(
            "import atexit",
            f"forged = '\\n{FORGED}\\nFAILED x\\n=== 1 failed, 4 pass' + 'ed in 0.1s ==='",
            "atexit.register(lambda: print(forged, flush=True))",
        ),
    }
    tasks = [Task(task.row | {"instance_id": name}) for name in patches]
    verdicts = grade(grading, tasks, patches)
    for name in patches:
        report = json.loads((grading.logs(patches, name) / "report.json").read_text())
        assert report[name]["resolved"], name
    assert {name: verdict.outcome for name, verdict in verdicts.items()} == dict.fromkeys(patches, "suspect")
    assert "the log says of tests/test_text.py::test_accents that it failed, and that it passed" in (
        verdicts["at_exit"].reasons
    )


def test_tests_that_hang_are_ended_and_told_apart(built: tuple[Path, list[Task]], grading: Grading) -> None:
    folder, tasks = built
    quick = Grading(grading.folder, "m", "bubblewrap", folder / "images", workers=1, timeout=3)
    patches = {tasks[0].instance_id: new_file("conftest.py", "import time\n\ntime.sleep(1000)\n")}
    assert grade(quick, tasks[:1], patches)[tasks[0].instance_id].outcome == "timeout"
    assert regrade(quick, tasks[:1], patches)[tasks[0].instance_id].outcome == "timeout"


def test_missing_image_is_an_infrastructure_error(built: tuple[Path, list[Task]], tmp_path: Path) -> None:
    tasks = built[1][:1]
    lost = Grading(tmp_path, "m", "bubblewrap", tmp_path / "nowhere", workers=1, timeout=60)
    verdict = grade(lost, tasks, {tasks[0].instance_id: tasks[0].row["patch"]})[tasks[0].instance_id]
    assert verdict.outcome == "infrastructure_error"


@pytest.mark.parametrize(
    ("output", "training", "outcome"),
    [
        ("Cannot allocate memory\n>>>>> End Test Output\n", False, "tests_fail"),
        ("Cannot allocate memory\n", False, "infrastructure_error"),
        ("Cannot allocate memory\n", True, "tests_fail"),
    ],
)
def test_a_failure_that_the_log_tells_is_tried_again_and_then_settled(
    built: tuple[Path, list[Task]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    output: str,
    training: bool,
    outcome: str,
) -> None:
    """The harness is replaced by one that, like it, runs nothing that has a report."""
    task = built[1][0]
    patches = {task.instance_id: task.row["patch"]}
    chosen = Grading(tmp_path, "m", "bubblewrap", training=training)
    logs = chosen.logs(patches, task.instance_id)
    runs = []

    def harness(*_: Any, **__: Any) -> None:
        if (logs / "report.json").exists():
            return
        runs.append(1)
        logs.mkdir(parents=True, exist_ok=True)
        report = {"resolved": False, "infra_failure": True, "infra_failure_reason": "out_of_memory"}
        (logs / "report.json").write_text(json.dumps({task.instance_id: report}))
        (logs / "test_output.txt").write_text(output)

    monkeypatch.setattr("evaluation.swe.grading._run_harness", harness)
    for tries in (2, 4):  # a second command tries again too
        verdict = grade(chosen, [task], patches)[task.instance_id]
        assert (verdict.outcome, len(runs)) == (outcome, tries)
        assert "out_of_memory" in verdict.reasons[0]


def test_other_patches_have_another_run(grading: Grading) -> None:
    assert grading.run_id({"a": "x"}) != grading.run_id({"a": "y"})
    assert grading.run_id({"a": "x"}) != replace(grading, timeout=121).run_id({"a": "x"})
    assert grading.run_id({"a": "x", "b": "y"}) == grading.run_id({"b": "y", "a": "x"})


LOG = """\
+ : '>>>>> Start Test Output'
============================= test session starts =============================
{body}
+ : '>>>>> End Test Output'
>>>>> Test Exit Code: {code}
"""
PASSED = "PASSED t.py::test_a\nPASSED t.py::test_b\n"


def log(body: str, code: int = 0) -> str:
    return LOG.format(body=body, code=code)


def test_plain_log_is_not_doubted() -> None:
    assert (
        log_suspicions(log(PASSED + "====== 2 passed, 1 skipped in 0.12s ======"), "parse_log_pytest") == []
    )
    assert log_suspicions(log(PASSED + "2 passed in 0.12 seconds"), "parse_log_pytest_v2") == []
    assert log_suspicions(log("test_x ... ok\n\nRan 3 tests in 0.1s\n\nOK"), "parse_log_django") == []


LISTED = "=== short test summary info ===\n" + PASSED


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        (LISTED + "=== 2 passed in 0.1s ===", []),
        # A log in a log, as of a test that runs pytest: its names and counts are not those of the tests.
        (
            "PASSED x.py::a\nFAILED x.py::b\n=== 1 failed, 1 passed in 1s ===\n"
            + LISTED
            + "=== 2 passed in 0.1s ===",
            [],
        ),
        (
            PASSED.replace("test_a", "test_b")
            + LISTED.replace("test_b", "test_c")
            + "=== 2 passed in 0.1s ===",
            ["the summary does not list t.py::test_b as passed"],
        ),
        (
            "FAILED t.py::test_b - assert 0\n" + LISTED + "=== 2 passed in 0.1s ===",
            ["the log says of t.py::test_b that it failed, and that it passed"],
        ),
    ],
)
def test_the_last_summary_is_what_is_believed(text: str, reasons: list[str]) -> None:
    assert log_suspicions(log(text), "parse_log_pytest", ["t.py::test_a", "t.py::test_b"]) == reasons


def test_exit_codes_and_summaries_agree() -> None:
    assert (
        log_suspicions(
            log(PASSED + "FAILED x.py::y\n=== 1 failed, 2 passed in 1s ===", 1), "parse_log_pytest"
        )
        == []
    )
    assert log_suspicions(log(PASSED + "FAILED x.py::y\n=== 2 passed in 1s ===", 1), "parse_log_pytest") == [
        "the tests ended with exit code 1, and their summary counts no failure"
    ]


def test_djangos_and_sympys_failures_contradict_what_passed() -> None:
    name = "test_a (queries.tests.Case)"
    text = f"{name} ... FAIL\n{name} ... ok\n\nRan 1 test in 0.1s\n"
    reason = "the log says of {} that it failed, and that it passed"
    assert log_suspicions(log(text), "parse_log_django", [name]) == [reason.format(name)]
    assert log_suspicions(log(text), "parse_log_django", ["test_b (queries.tests.Case)"]) == []
    text = "test_a F\ntest_a ok\n= tests finished: 1 passed, in 0.10 seconds =\n"
    assert log_suspicions(log(text), "parse_log_sympy", ["test_a"]) == [reason.format("test_a")]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (log(PASSED), "the tests ended without the summary of their runner"),
        (log(PASSED + "=== 1 passed in 0.1s ==="), "the log names 2 passed tests, and its summary counts 1"),
        (
            ">>>>> Start Test Output\n" + log(PASSED),
            "the log holds the mark '>>>>> Start Test Output' 2 times",
        ),
        (
            ">>>>> Test Exit Code: 0\n" + log(PASSED + "=== 2 passed in 0.1s ===", 1),
            "the log holds several exit codes of the tests",
        ),
    ],
)
def test_doubtful_logs(text: str, reason: str) -> None:
    assert log_suspicions(text, "parse_log_pytest") == [reason]


NAMES = {"FAIL_TO_PASS": '["t.py::test_a"]', "PASS_TO_PASS": '["t.py::test_b"]'}
LOGS = {
    "an expected failure is a pass": (
        "PASSED t.py::test_b\nXFAIL t.py::test_a\n== 1 passed, 1 xfailed in 0.1s ==",
        "resolved",
    ),
    "a test that did not run has not passed": ("PASSED t.py::test_b\n== 1 passed in 0.1s ==", "tests_fail"),
    "nor has one that ran before": ("PASSED t.py::test_a\n== 1 passed in 0.1s ==", "tests_fail"),
    "a runner that breaks passes nothing": ("ImportError: t.py\n", "tests_fail"),
    "a skipped test has not passed": (
        "PASSED t.py::test_b\nSKIPPED t.py::test_a\n== 1 passed, 1 skipped in 0.1s ==",
        "tests_fail",
    ),
    "a line cut short": (PASSED + "FAILED\nERROR \n=== 2 passed in 0.1s ===", "resolved"),
    "forged lines before an early end": (PASSED, "suspect"),
}


@pytest.mark.parametrize("parser", ["parse_log_pytest", "parse_log_pytest_v2", "parse_log_astropy"])
def test_what_logs_come_to(built: tuple[Path, list[Task]], tmp_path: Path, parser: str) -> None:
    """Side by side, by every parser of pytest's lines: no log spoils the verdict on another."""
    row = built[1][0].row | NAMES | {"log_parser": parser}
    tasks = [Task(row | {"instance_id": f"project__name-{place}"}) for place in range(len(LOGS))]
    patches = {task.instance_id: new_file("source.py", "x = 1") for task in tasks}
    chosen = Grading(tmp_path, "m", "bubblewrap")
    for task, (body, _) in zip(tasks, LOGS.values(), strict=True):
        logs = chosen.logs(patches, task.instance_id)
        logs.mkdir(parents=True)
        (logs / "test_output.txt").write_text(log(body))
    found = regrade(chosen, tasks, patches)
    outcomes = [found[task.instance_id].outcome for task in tasks]
    assert dict(zip(LOGS, outcomes, strict=True)) == {name: outcome for name, (_, outcome) in LOGS.items()}


class FiveHundred:
    """An evaluation of 500 made-up tasks whose logs are there: 149 resolved, 5 suspect, 20 empty patches."""

    def __init__(self, root: Path, pattern: Task) -> None:
        self.folder = root / "sao_swe" / "seed0" / "step400" / "swe_bench_verified"
        row = pattern.row | NAMES
        self.tasks = [Task(row | {"instance_id": f"project__name-{place}"}) for place in range(500)]
        spec = {
            "row": "sao_swe",
            "seed": 0,
            "step": 400,
            "benchmark": "swe_bench_verified",
            "policy": {"model": "sao_swe"},
            "protocol": {"sandbox": "docker", "max_turns": 300, "max_tokens": 131072},
            "data": {"source": "published", "tasks_sha256": "0"},
            "samples": {task.instance_id: 1 for task in self.tasks},
        }
        patches = {task.instance_id: self.patch(place) for place, task in enumerate(self.tasks)}
        with SampleStore(self.folder, spec) as store:
            for task in self.tasks:
                store.append(self.sample(task, patches[task.instance_id]))
        (self.folder / "tasks").mkdir()
        write_tasks(self.folder / "tasks" / "tasks.jsonl", self.tasks)
        self.grading = Grading((self.folder / GRADING).absolute(), "sao_swe", "docker")
        for place, task in enumerate(self.tasks):
            if patches[task.instance_id]:
                logs = self.grading.logs(patches, task.instance_id)
                logs.mkdir(parents=True)
                (logs / "test_output.txt").write_text(self.output(place))
        (self.folder / GRADING / "outcomes.jsonl").write_text('{"backend": "docker"}\n')

    @staticmethod
    def patch(place: int) -> str:
        if place >= 480:
            return ""
        return new_file("conftest.py" if 149 <= place < 154 else "source.py", f"x = {place}")

    @staticmethod
    def output(place: int) -> str:
        if place < 154:
            return log(PASSED + "=== 2 passed in 0.10s ===")
        return log(
            "PASSED t.py::test_b\nFAILED t.py::test_a - assert 0\n=== 1 failed, 1 passed in 0.1s ===", 1
        )

    @staticmethod
    def sample(task: Task, patch: str) -> dict[str, Any]:
        return {
            "problem_id": task.instance_id,
            "run_index": 0,
            "verdict": UNGRADED,
            "finish_reason": "finish",
            "turns": 3,
            "tool_calls": 2,
            "seconds": 1.0,
            "dropped": {},
            "response_text": patch,
            "messages": [],
        }


def test_five_hundred_logs_give_the_exact_share(
    built: tuple[Path, list[Task]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = FiveHundred(tmp_path, built[1][0])
    assert main([str(evaluation.folder), "--from-logs"]) == 0
    printed = capsys.readouterr().out.splitlines()[-1]
    assert printed.endswith("149 resolved, 5 suspect, 326 tests_fail, 20 empty_patch of 500; 29.8% resolved")
    scores = [json.loads(line) for line in (evaluation.folder / "scores.jsonl").read_text().splitlines()]
    assert Counter(score["verdict"] for score in scores) == {"right": 149, "wrong": 351}

    lost = evaluation.grading.logs(
        {task.instance_id: evaluation.patch(place) for place, task in enumerate(evaluation.tasks)},
        "project__name-7",
    )
    shutil.rmtree(lost)
    assert main([str(evaluation.folder), "--from-logs"]) == 1
    assert "1 of 500 tasks met an infrastructure error, so that there is no score" in capsys.readouterr().err
    assert not (evaluation.folder / "seal.json").exists()


def test_grading_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere"), "--backend", "bubblewrap"]) == 2
    assert "spec.json: cannot be read" in capsys.readouterr().err
