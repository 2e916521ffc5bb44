"""Checks of benchmark rows on load: counts, ids, damaged text, answers that cannot be graded by rules."""

import datetime
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from evaluation.math.answers import integer_of
from evaluation.math.problems import Problem

_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")
# LaTeX commands whose first letter became a line end: "\neq" as a line that starts with "eq".
_BROKEN_COMMAND = re.compile(r"\n(?:eq|abla|otin|mid|exists)\b")
_SPREADSHEET_EPOCH = datetime.date(1899, 12, 30)
_SPREADSHEET_YEARS = range(2018, 2031)  # dates that a spreadsheet gives to text such as "4/5" typed today


@dataclass(frozen=True)
class Finding:
    """One fault or remark. An "error" makes the data unusable, a "warning" wants a look, a "note" informs."""

    problem_id: str
    severity: Literal["error", "warning", "note"]
    message: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.problem_id}: {self.message}"


def check_problems(
    problems: Sequence[Problem], expected_rows: int, answers: Literal["integer", "any"]
) -> list[Finding]:
    """All findings, in the order of the rows; `answers` says what the benchmark's gold answers are."""
    findings = []
    if len(problems) != expected_rows:
        findings.append(Finding("all rows", "error", f"{len(problems)} rows, {expected_rows} are due"))
    for name, values in (
        ("id", [problem.id for problem in problems]),
        ("problem", [problem.problem for problem in problems]),
    ):
        for value, count in Counter(values).items():
            if count > 1:
                row = next(problem for problem in problems if getattr(problem, name) == value)
                findings.append(Finding(row.id, "error", f"the {name} stands in {count} rows"))
    categories = {problem.category for problem in problems if problem.category}
    for problem in problems:
        findings += _check_text(problem)
        findings += _check_answer(problem, answers, categories)
    return findings


def _check_text(problem: Problem) -> Iterator[Finding]:
    for name, text in (("problem", problem.problem), ("answer", problem.answer)):
        if not text.strip():
            yield Finding(problem.id, "error", f"no {name}")
        damaged = _CONTROL.search(text.strip().replace("\r\n", "\n")) or _BROKEN_COMMAND.search(text)
        if damaged is not None:
            near = repr(text[max(damaged.start() - 10, 0) : damaged.end() + 10])
            yield Finding(problem.id, "error", f"the {name} holds a control character near {near}")
        if len(re.findall(r"(?<!\\)\$", text)) % 2:
            yield Finding(problem.id, "warning", f"an odd number of dollar signs in the {name}")
        plain = re.sub(r"\\.", "", text)
        if plain.count("{") != plain.count("}"):
            yield Finding(problem.id, "warning", f"unbalanced braces in the {name}")


def _check_answer(
    problem: Problem, answers: Literal["integer", "any"], categories: set[str]
) -> Iterator[Finding]:
    answer = problem.answer.strip()
    integer = integer_of(answer)
    if answer in categories:
        yield Finding(problem.id, "error", f"the answer {answer!r} is a category: the columns are shifted")
    elif answers == "integer" and integer is None:
        yield Finding(problem.id, "error", f"the answer {answer!r} is no integer")
    elif answers == "any" and integer is None and problem.judge_only:
        yield Finding(problem.id, "note", f"judge_only: {answer!r}")
    date = _spreadsheet_date(integer) if answers == "any" and integer is not None else None
    if date is not None:
        yield Finding(
            problem.id,
            "warning",
            f"{answer} is how a spreadsheet stores {date:%d %B %Y}: perhaps {date.month}/{date.day}",
        )


def _spreadsheet_date(serial: int) -> datetime.date | None:
    if not 0 < serial < 100_000:
        return None
    date = _SPREADSHEET_EPOCH + datetime.timedelta(days=serial)
    return date if date.year in _SPREADSHEET_YEARS else None
