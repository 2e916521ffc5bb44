"""What a task's grading comes to, read from the logs that the official harness leaves. Starts no container.

The harness counts a task as resolved when its log says so, and a patch can write into that log. So a
resolved task whose patch or log gives reason to doubt is `suspect`, apart from `resolved`.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from swebench.harness.constants import (
    APPLY_PATCH_FAIL,
    END_TEST_OUTPUT,
    FAIL_TO_PASS,
    LOG_INSTANCE,
    LOG_REPORT,
    LOG_TEST_OUTPUT,
    PASS_TO_PASS,
    START_TEST_OUTPUT,
    TEST_EXIT_CODE,
)
from swebench.harness.grading import test_maintained
from swebench.harness.log_parsers import PARSER_REGISTRY

from evaluation.swe.outcomes import (
    DOES_NOT_APPLY,
    EMPTY_PATCH,
    INFRASTRUCTURE_ERROR,
    RESOLVED,
    SUSPECT,
    TESTS_FAIL,
    TIMEOUT,
)
from evaluation.swe.patches import suspicions
from evaluation.swe.tasks import Task

TIMED_OUT = re.compile(r"\n\nTimeout error: \d+ seconds exceeded\.\Z")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
EXIT_CODE = re.compile(rf"{re.escape(TEST_EXIT_CODE)}: *(-?\d+)")
PYTEST_SUMMARY = re.compile(r"^=*\s*((?:\d+ [a-z]+(?:, )?)+) in [\d.]+ ?s", re.MULTILINE)
SUMMARY_HEAD = "short test summary info"
PASSED_LINE = re.compile(r"^PASSED (\S.*)$", re.MULTILINE)
FAILING_LINE = re.compile(
    r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$|^(?:FAIL|ERROR): (.+)$"
    r"|^(.+?) \.\.\. (?:FAIL|ERROR)$|^(test_\w+) [EF]$",
    re.MULTILINE,
)
"""As pytest, unittest (twice) and SymPy's runner say that a test fails."""
SUMMARIES = {
    "parse_log_django": re.compile(r"^Ran \d+ tests? in [\d.]+s", re.MULTILINE),
    "parse_log_sympy": re.compile(r"tests finished: .* in [\d.]+ seconds", re.MULTILINE),
    **dict.fromkeys(
        (
            "parse_log_pytest",
            "parse_log_pytest_options",
            "parse_log_pytest_v2",
            "parse_log_astropy",
            "parse_log_flask",
            "parse_log_matplotlib",
            "parse_log_pylint",
            "parse_log_requests",
            "parse_log_scikit",
            "parse_log_seaborn",
            "parse_log_sphinx",
            "parse_log_xarray",
            "parse_log_astroid",
            "parse_log_marshmallow",
            "parse_log_pvlib",
            "parse_log_pyvista",
            "parse_log_sqlfluff",
            "parse_log_pydicom",
        ),
        PYTEST_SUMMARY,
    ),
}
"""The line that a test runner ends with, by the harness's parser of its log."""


@dataclass(frozen=True)
class Verdict:
    """One task's outcome. `tests` are the names by [FAIL_TO_PASS or PASS_TO_PASS][success or failure]."""

    outcome: str
    reasons: list[str] = field(default_factory=list)
    tests: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        return asdict(self)


def verdict_of(task: Task, patch: str, logs: Path) -> Verdict:
    """The verdict on a patch from its folder of logs; an infrastructure error where they say nothing."""
    if not patch.strip():
        return Verdict(EMPTY_PATCH)
    output = _text(logs / LOG_TEST_OUTPUT)
    if TIMED_OUT.search(output):
        return Verdict(TIMEOUT)
    report = _report(logs / LOG_REPORT, task.instance_id)
    if report is None:
        return _ungraded(_text(logs / LOG_INSTANCE))
    if report.get("infra_failure"):
        return Verdict(INFRASTRUCTURE_ERROR, [str(report.get("infra_failure_reason", "unknown"))])
    tests = {kind: report.get("tests_status", {}).get(kind, {}) for kind in (FAIL_TO_PASS, PASS_TO_PASS)}
    if not report.get("resolved"):
        return Verdict(TESTS_FAIL, [], tests)
    row = task.row
    reasons = suspicions(patch, row["patch"], row["test_patch"], row["repo"])
    passed = [name for kind in tests.values() for name in kind.get("success", [])]
    reasons += log_suspicions(output, row["log_parser"], passed)
    return Verdict(SUSPECT if reasons else RESOLVED, reasons, tests)


def settled(verdict: Verdict, task: Task, logs: Path, training: bool = False) -> Verdict:
    """The verdict once nothing is tried again.

    The harness tells an infrastructure failure by words in the output of the tests ("Cannot allocate
    memory"), which a patch can print. So it is tests_fail where the tests ran to their end, and in training
    always: else a policy could have its failures sampled again.
    """
    report = _report(logs / LOG_REPORT, task.instance_id) or {}
    if verdict.outcome != INFRASTRUCTURE_ERROR or not report.get("infra_failure"):
        return verdict
    if training or END_TEST_OUTPUT in _text(logs / LOG_TEST_OUTPUT):
        return Verdict(TESTS_FAIL, [f"the harness sees in the log: {reason}" for reason in verdict.reasons])
    return verdict


def log_suspicions(log: str, parser: str, passed: Collection[str] = ()) -> list[str]:
    """Reasons to doubt the log of a task that passed; `passed` are the tests that it has to pass."""
    log = COLOURS.sub("", log)
    reasons = [
        f"the log holds the mark {mark!r} {log.count(mark)} times"
        for mark in (START_TEST_OUTPUT, END_TEST_OUTPUT)
        if log.count(mark) != 1
    ]
    if len(set(EXIT_CODE.findall(log))) > 1:
        reasons.append("the log holds several exit codes of the tests")
    summary = SUMMARIES.get(parser)
    if summary is None or reasons:
        return reasons
    tests = log.split(START_TEST_OUTPUT)[1].split(END_TEST_OUTPUT)[0]
    found = summary.findall(tests)
    if not found:
        return ["the tests ended without the summary of their runner"]
    if both := sorted(set(passed) & _failing(tests)):
        reasons.append(f"the log says of {both[0]} that it failed, and that it passed")
    if summary is PYTEST_SUMMARY:
        reasons += _summary_suspicions(tests, found[-1], EXIT_CODE.findall(log), parser, passed)
    return reasons


def _failing(tests: str) -> set[str]:
    """Names of the tests that some line says fail."""
    return {name for group in FAILING_LINE.findall(tests) for name in group if name}


def _summary_suspicions(
    tests: str, counts: str, exit_codes: Sequence[str], parser: str, passed: Collection[str]
) -> list[str]:
    """Reasons to doubt pytest's summary: what its last section lists, counts, and ended with."""
    reasons = []
    listed = tests.rpartition(SUMMARY_HEAD)[2]
    counted = sum(int(number) for number in re.findall(r"(\d+) passed", counts))
    named = len(set(PASSED_LINE.findall(listed)))
    if counted < named:
        reasons.append(f"the log names {named} passed tests, and its summary counts {counted}")
    if set(exit_codes) - {"0"} and not re.search(r"failed|error", counts):
        reasons.append(f"the tests ended with exit code {exit_codes[0]}, and their summary counts no failure")
    statuses = PARSER_REGISTRY[parser](listed, None)
    missing = [name for name in passed if "::" in name and not test_maintained(name, statuses)]
    if named and missing:
        reasons.append(f"the summary does not list {missing[0]} as passed")
    return reasons


def _ungraded(log: str) -> Verdict:
    """The outcome of a run that made no report."""
    if APPLY_PATCH_FAIL in log:
        return Verdict(DOES_NOT_APPLY)
    last = next((line for line in reversed(log.splitlines()) if line.strip()), "the harness left no log")
    return Verdict(INFRASTRUCTURE_ERROR, [last.strip()[:300]])


def _report(file: Path, instance: str) -> Mapping[str, Any] | None:
    try:
        return json.loads(file.read_text())[instance]
    except (OSError, ValueError, KeyError):
        return None


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.exists() else ""
