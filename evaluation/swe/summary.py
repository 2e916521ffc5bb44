"""Scores of SWE-Bench evaluations, and paired tests between them. Imports no torch and no OpenHands.

    python -m evaluation.swe.summary --evaluations results/paper_swe/evaluations \\
        --out results/paper_swe/tables

writes swe_scores.csv and .md (a line for each evaluation, beside the paper's Table 2) and swe_comparisons.csv
(a line for each pair of evaluations of the same tasks). A score stands on all tasks of the benchmark,
each with a graded patch, or there is none; the status says what is missing.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.statistics import EXACT, clopper_pearson
from evaluation.math.store import StoreError
from evaluation.swe.comparisons import COLUMNS as COMPARISON_COLUMNS
from evaluation.swe.comparisons import REFERENCE_ROW, comparison_lines
from evaluation.swe.graded import COMPLETE, KEYS, Graded, find_graded
from evaluation.swe.outcomes import EMPTY_PATCH, MANY_EMPTY_PATCHES, OUTCOMES, RESOLVED, SUSPECT
from evaluation.swe.protocol import BENCHMARKS

PUBLISHED = Path(__file__).parents[2] / "results" / "published" / "paper.csv"
ENDINGS = ("finish", "text", "turns", "context", "stuck", "wall_clock", "server_ended")
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
        share = clopper_pearson(counts[RESOLVED], due)
        line |= {"score": 100 * counts[RESOLVED] / due, "low": 100 * share.low, "high": 100 * share.high}
    return line


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
            "p",
            "p, Holm",
        ]
        body = [
            [
                line["row"],
                line["other"],
                f"{line['difference']:+.1f} [{line['low']:.1f}, {line['high']:.1f}]",
                f"{line['se_paired']:.2f}",
                f"{line['se_unpaired']:.2f}",
                f"{line['only_row']} + {line['only_other']}",
                f"{line['p_value']:.4f}",
                "" if pd.isna(line["p_holm"]) else f"{line['p_holm']:.4f} of {line['comparisons']}",
            ]
            for line in comparisons
        ]
        parts += [
            "",
            *_table(header, body),
            "",
            "p: exact McNemar test on the tasks that one of the two alone resolves; the 95% interval "
            f"excludes 0 just where p is below .05. Holm: corrected for the comparisons with {REFERENCE_ROW} "
            "of one seed and step, which Table 2 shows; their number stands behind it.",
        ]
    return "\n".join([*parts, ""])


def _notes(lines: Sequence[dict[str, Any]]) -> list[str]:
    notes = [
        f"Resolved tasks of all tasks in %, with the 95% interval ({EXACT}). {SUSPECT}: the tests pass, "
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
