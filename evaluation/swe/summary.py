"""Scores of SWE-Bench evaluations, and paired tests between them. Imports no torch and no OpenHands.

    python -m evaluation.swe.summary --evaluations results/paper_swe/evaluations \\
        --out results/paper_swe/tables

writes swe_scores.csv and .md (a line for each evaluation, beside the paper's Table 2) and swe_comparisons.csv
(a line for each pair of evaluations of the same tasks). A score stands on all tasks of the benchmark,
each with a graded patch, or there is none; the status says what is missing.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import nan, sqrt
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import binomtest

from evaluation.math.store import StoreError, read_evaluation
from evaluation.swe.outcomes import (
    EMPTY_PATCH,
    INFRASTRUCTURE_ERROR,
    MANY_EMPTY_PATCHES,
    OUTCOMES,
    RESOLVED,
    SUSPECT,
)
from evaluation.swe.protocol import BENCHMARKS

COMPLETE = "complete"
INTERVAL = "Clopper-Pearson"
PUBLISHED = Path(__file__).parents[2] / "results" / "published" / "paper.csv"
KEYS = ("row", "seed", "step", "benchmark")
ENDINGS = ("finish", "text", "turns", "context", "stuck", "wall_clock")
COLUMNS: dict[str, str] = {
    "row": "row of the tables",
    "seed": "training seed",
    "step": "policy updates before the evaluation",
    "benchmark": "name of the benchmark",
    "status": "complete, or what is missing",
    "tasks": "tasks of the benchmark: the denominator",
    "score": "resolved tasks (%); empty unless complete",
    "low": "lower end of the score's 95% interval (%), Clopper-Pearson",
    "high": "upper end",
    "paper": "the paper's value (%)",
    **{outcome: f"tasks with outcome {outcome}" for outcome in OUTCOMES},
    "not_played": "tasks without a conversation",
    "not_graded": "tasks with a conversation and without an outcome",
    **{f"ended_{ending}": f"conversations that ended by {ending}" for ending in ENDINGS},
    "turns": "mean answers of the model to a task",
    "tool_calls": "mean calls of tools",
    "action_tokens": "mean tokens that the model sampled",
    "max_turns": "limit of answers to a task",
    "max_tokens": "context of the model",
    "workspace": "where the agent worked",
    "backend": "where the tests ran; bubblewrap: not on the official images",
    "data": "published or synthetic",
    "folder": "where the evaluation lies",
}
COMPARISON_COLUMNS: dict[str, str] = {
    "row": "row, and its seed and step",
    "other": "row that it is compared with",
    "benchmark": "name of the benchmark",
    "tasks": "tasks of both",
    "difference": "score of row less score of other (points)",
    "se_paired": "standard error of the difference, tasks drawn anew for both together (points)",
    "se_unpaired": "the same if the tasks of the two were others (points)",
    "only_row": "tasks that row alone resolves",
    "only_other": "tasks that other alone resolves",
    "discordant": "tasks that one of the two alone resolves (%)",
    "p_value": "exact McNemar test, two-sided, not corrected for the number of comparisons",
}


@dataclass(frozen=True)
class Graded:
    """An evaluation with what is known of its tasks, `scores` by task."""

    path: Path
    spec: dict[str, Any]
    scores: dict[str, dict[str, Any]]
    sealed: bool
    failure: str

    @property
    def name(self) -> str:
        return f"{self.spec['row']} seed {self.spec['seed']} step {self.spec['step']}"

    @property
    def counts(self) -> Counter[str]:
        return Counter(score.get("outcome", "") for score in self.scores.values())

    @property
    def status(self) -> str:
        """`complete`, or what is missing for a score."""
        due = BENCHMARKS[self.spec["benchmark"]].problems
        if len(self.spec["samples"]) != due:
            return f"{len(self.spec['samples'])} tasks where the benchmark has {due}"
        if len(self.scores) < due:
            return f"{len(self.scores)} of {due} tasks played"
        if ungraded := self.counts[""]:
            return f"{ungraded} of {due} tasks not graded"
        if broken := self.counts[INFRASTRUCTURE_ERROR]:
            return f"{broken} of {due} tasks with an infrastructure error"
        return COMPLETE if self.sealed else "not sealed"

    @property
    def resolved(self) -> dict[str, bool]:
        return {name: score.get("outcome") == RESOLVED for name, score in self.scores.items()}


def find_graded(folder: Path) -> list[Graded]:
    """Evaluations below a folder, by row, seed, step and benchmark; StoreError for a damaged one."""
    found = [
        _read(spec.parent)
        for spec in folder.glob("*/seed*/step*/*/spec.json")
        if spec.parent.name in BENCHMARKS
    ]
    return sorted(found, key=lambda one: [one.spec[name] for name in KEYS])


def summary_line(graded: Graded) -> dict[str, Any]:
    """One line of swe_scores.csv: the keys of COLUMNS."""
    spec, counts = graded.spec, graded.counts
    scores = list(graded.scores.values())
    due = len(spec["samples"])
    endings = Counter(score["finish_reason"] for score in scores)
    line: dict[str, Any] = dict.fromkeys(COLUMNS, nan) | {name: spec[name] for name in KEYS}
    line |= {outcome: counts[outcome] for outcome in OUTCOMES}
    line |= {f"ended_{ending}": endings[ending] for ending in ENDINGS}
    line |= {
        "status": graded.status,
        "tasks": due,
        "not_played": due - len(scores),
        "not_graded": counts[""],
        "max_turns": spec["protocol"]["max_turns"],
        "max_tokens": spec["protocol"]["max_tokens"],
        "workspace": spec["protocol"]["sandbox"],
        "backend": ", ".join(sorted({score["backend"] for score in scores if "backend" in score})),
        "data": spec["data"]["source"],
        "folder": graded.path.as_posix(),
    }
    for name in ("turns", "tool_calls", "action_tokens"):
        line[name] = sum(score[name] for score in scores) / len(scores) if scores else nan
    if graded.status == COMPLETE:
        low, high = score_interval(counts[RESOLVED], due)
        line |= {"score": 100 * counts[RESOLVED] / due, "low": 100 * low, "high": 100 * high}
    return line


def score_interval(resolved: int, tasks: int) -> tuple[float, float]:
    """The 95% Clopper-Pearson interval of a share of resolved tasks, within [0, 1]."""
    interval = binomtest(resolved, tasks).proportion_ci(0.95, method="exact")
    return float(interval.low), float(interval.high)


def comparison_line(one: Graded, other: Graded) -> dict[str, Any]:
    """One line of swe_comparisons.csv, of two complete evaluations of the same tasks."""
    ours, theirs = one.resolved, other.resolved
    tasks = len(ours)
    only_one = sum(ours[name] and not theirs[name] for name in ours)
    only_other = sum(theirs[name] and not ours[name] for name in ours)
    discordant = only_one + only_other
    shares = [sum(resolved.values()) / tasks for resolved in (ours, theirs)]
    unpaired = sqrt(sum(share * (1 - share) for share in shares) / tasks)
    paired = sqrt(discordant - (only_one - only_other) ** 2 / tasks) / tasks
    return {
        "row": one.name,
        "other": other.name,
        "benchmark": one.spec["benchmark"],
        "tasks": tasks,
        "difference": 100 * (shares[0] - shares[1]),
        "se_paired": 100 * paired,
        "se_unpaired": 100 * unpaired,
        "only_row": only_one,
        "only_other": only_other,
        "discordant": 100 * discordant / tasks,
        "p_value": float(binomtest(only_one, discordant, 0.5).pvalue) if discordant else 1.0,
    }


def comparison_lines(found: Sequence[Graded]) -> list[dict[str, Any]]:
    """Lines of all pairs that measure the same: complete, of the same tasks and protocol, graded alike."""
    complete = [graded for graded in found if graded.status == COMPLETE]
    return [
        comparison_line(one, other)
        for one, other in combinations(complete, 2)
        if _measured(one) == _measured(other)
    ]


def with_paper(lines: Sequence[dict[str, Any]], published: Path = PUBLISHED) -> list[dict[str, Any]]:
    """The lines with the paper's Table 2 value of the same row, on the published tasks."""
    values = pd.read_csv(published)
    table = values[values["artifact"] == "table2"].set_index(["row", "benchmark"])["value"]
    return [
        line | {"paper": table.get((line["row"], BENCHMARKS[line["benchmark"]].published), nan)}
        for line in lines
    ]


def score_table(lines: Sequence[dict[str, Any]], comparisons: Sequence[dict[str, Any]]) -> str:
    """Markdown: a line for each evaluation, then one for each pair."""
    header = [
        "row",
        "seed",
        "step",
        "benchmark",
        "resolved (%)",
        "paper (%)",
        *OUTCOMES,
        "graded over",
        "turns",
    ]
    body = [
        [
            line["row"],
            line["seed"],
            line["step"],
            BENCHMARKS[line["benchmark"]].title,
            _score_cell(line),
            "" if pd.isna(line["paper"]) else f"{line['paper']:.1f}",
            *(line[outcome] for outcome in OUTCOMES),
            line["backend"],
            "" if pd.isna(line["turns"]) else f"{line['turns']:.1f}",
        ]
        for line in lines
    ]
    parts = [*_table(header, body), "", *_notes(lines)]
    if comparisons:
        header = [
            "row",
            "compared with",
            "difference (points)",
            "paired SE",
            "unpaired SE",
            "discordant",
            "p (uncorrected)",
        ]
        body = [
            [
                line["row"],
                line["other"],
                f"{line['difference']:+.1f}",
                f"{line['se_paired']:.2f}",
                f"{line['se_unpaired']:.2f}",
                f"{line['only_row']} + {line['only_other']}",
                f"{line['p_value']:.4f}",
            ]
            for line in comparisons
        ]
        parts += [
            "",
            *_table(header, body),
            "",
            "Exact McNemar test on the tasks that one of the two resolves; p is not corrected for the "
            "number of comparisons.",
        ]
    return "\n".join([*parts, ""])


def _notes(lines: Sequence[dict[str, Any]]) -> list[str]:
    notes = [
        f"Resolved tasks of all tasks in %, with the 95% interval ({INTERVAL}). {SUSPECT}: the tests pass, "
        "and patch or log give reason to doubt them; not counted as resolved."
    ]
    if any(line["backend"] == "bubblewrap" for line in lines):
        notes.append("Tests graded over bubblewrap did not run on the official images.")
    if any(line["data"] == "synthetic" for line in lines):
        notes.append("The tiny tasks are made here; their scores say nothing of SWE-Bench.")
    notes += [
        f"{line['row']} seed {line['seed']} step {line['step']}: {line[EMPTY_PATCH]} empty patches; "
        "a fault of the run is likely."
        for line in lines
        if line[EMPTY_PATCH] > MANY_EMPTY_PATCHES * line["tasks"]
    ]
    return notes


def _table(header: Sequence[str], body: Sequence[Sequence[Any]]) -> list[str]:
    rows = [header, ["---"] * len(header), *body]
    return ["| " + " | ".join(map(str, row)) + " |" for row in rows]


def _score_cell(line: dict[str, Any]) -> str:
    if pd.isna(line["score"]):
        return str(line["status"])
    return f"{line['score']:.1f} [{line['low']:.1f}, {line['high']:.1f}]"


def _measured(graded: Graded) -> Any:
    spec = graded.spec
    protocol = {name: value for name, value in spec["protocol"].items() if name != "sandbox"}
    backends = {score.get("backend") for score in graded.scores.values()}
    return spec["benchmark"], spec["data"]["tasks_sha256"], protocol, backends, list(spec["samples"])


def _read(path: Path) -> Graded:
    evaluation = read_evaluation(path)
    scores = {score["problem_id"]: score for score in evaluation.scores}
    outcomes = path / "grading" / "outcomes.jsonl"
    if not evaluation.sealed and outcomes.exists():
        for line in outcomes.read_text().splitlines():
            score = json.loads(line)
            scores[score["problem_id"]] = score
    return Graded(path, evaluation.spec, scores, evaluation.sealed, evaluation.failure)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns 0, or 2 for a user's mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.swe.summary", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--evaluations", type=Path, required=True, help="e.g. results/paper_swe/evaluations")
    parser.add_argument("--out", type=Path, required=True, help="folder of the tables")
    options = parser.parse_args(arguments)
    try:
        found = find_graded(options.evaluations)
    except StoreError as error:
        print(error, file=sys.stderr)
        return 2
    if not found:
        print(
            f"{options.evaluations}: holds none of SWE-Bench; python -m evaluation.swe.runner makes them",
            file=sys.stderr,
        )
        return 2
    lines, comparisons = with_paper(list(map(summary_line, found))), comparison_lines(found)
    options.out.mkdir(parents=True, exist_ok=True)
    table = score_table(lines, comparisons)
    for name, content, columns in (
        ("swe_scores.csv", lines, COLUMNS),
        ("swe_comparisons.csv", comparisons, COMPARISON_COLUMNS),
    ):
        frame = pd.DataFrame(content, columns=list(columns))
        frame.to_csv(options.out / name, index=False, float_format="%.7g")
    (options.out / "swe_scores.md").write_text(table)
    print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
