"""Scores of the mathematics evaluations, with their errors: `python -m evaluation.summary`. Imports no torch.

    python -m evaluation.summary --evaluations results/cpu_math/evaluations --out results/cpu_math/tables

writes math_scores.csv and .md (a line for each evaluation) and math_problems.csv (a line for each problem of
each). A score stands on all samples that the protocol asks for, or it is left out; the samples that are
missing then count as wrong in `at_least`, and math_problems.csv says which problems lack them. An undecided
sample is no right one.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from math import comb, nan, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evaluation.math.protocol import BENCHMARKS, MAX_TOKENS, MAX_TURNS
from evaluation.math.store import Evaluation, StoreError, read_evaluation
from evaluation.swe.protocol import BENCHMARKS as SWE_BENCHMARKS

PASS_AT = (1, 4, 16)
COMPLETE = "complete"
PUBLISHED = Path(__file__).parents[1] / "results" / "published" / "paper.csv"
KEYS = ("row", "seed", "step", "benchmark")
COLUMNS: dict[str, str] = {
    "row": "row of the tables",
    "seed": "training seed",
    "step": "policy updates before the evaluation",
    "benchmark": "name of the benchmark",
    "status": "complete, or how many samples are there",
    "problems": "problems of the benchmark",
    "runs": "samples of each problem",
    "score": "right samples (%); empty unless complete",
    "se_problems": "standard error over problems: what other problems of the kind would change (points)",
    "se_runs": "standard deviation of the runs over sqrt(runs): what sampling again would change (points)",
    "at_least": "right samples (%), missing ones counted as wrong",
    "judged": "right samples (%), undecided ones as the judge says; empty unless complete and all judged",
    "paper": "the paper's value (%)",
    "undecided": "samples that no grader could decide (%); not right",
    **{f"pass_at_{k}": f"problems solved by one of {k} samples (%), unbiased" for k in PASS_AT},
    "turns": "mean actions of a sample",
    "action_tokens": "mean tokens that the model sampled",
    "tool_calls": "mean calls of the tool",
    "tool_errors": "calls whose code failed or hit a limit (%)",
    "malformed_calls": "calls that could not be read (%)",
    "cut_by_tokens": "samples that the token limit ended (%)",
    "cut_by_turns": "samples that the turn limit ended (%)",
    "max_tokens": "limit of tokens of a sample",
    "max_turns": "limit of actions of a sample",
    "python": "whether the tool was there",
    "sandbox": "what its code ran in; none: plain processes",
    "data": "where the problems come from: published or synthetic",
    "patch_set": "corrections of known faults that the problems carry",
    "folder": "folder of the samples",
}


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Chance that one of k samples is right, unbiased from `right` of `samples`; NaN for too few samples."""
    if k > samples:
        return nan
    return 1 - comb(samples - right, k) / comb(samples, k)


def clustered_error(outcomes: np.ndarray) -> float:
    """Standard error of the mean of outcomes [problems, runs], problems drawn anew with all their runs."""
    problems = outcomes.shape[0]
    return float(outcomes.mean(axis=1).std(ddof=1) / sqrt(problems)) if problems > 1 else nan


def run_error(outcomes: np.ndarray) -> float:
    """Standard error of the mean of outcomes [problems, runs], runs drawn anew on the same problems."""
    runs = outcomes.shape[1]
    return float(outcomes.mean(axis=0).std(ddof=1) / sqrt(runs)) if runs > 1 else nan


def outcome_matrix(evaluation: Evaluation) -> np.ndarray:
    """1 for right, 0 for wrong or undecided, NaN for missing samples: float [problems, runs]."""
    due: dict[str, int] = evaluation.spec["samples"]
    place = {problem: row for row, problem in enumerate(due)}
    outcomes = np.full((len(due), max(due.values())), nan)
    for score in evaluation.scores:
        outcomes[place[score["problem_id"]], score["run_index"]] = score["verdict"] == "right"
    return outcomes


def summary_line(evaluation: Evaluation) -> dict[str, Any]:
    """One line of math_scores.csv: the keys of COLUMNS."""
    spec, outcomes = evaluation.spec, outcome_matrix(evaluation)
    right = np.nan_to_num(outcomes)
    status = _status(evaluation, outcomes)
    line: dict[str, Any] = dict.fromkeys(COLUMNS, nan) | {name: spec[name] for name in KEYS}
    line |= {
        "status": status,
        "problems": outcomes.shape[0],
        "runs": outcomes.shape[1],
        "at_least": 100 * float(right.mean()),
        "max_tokens": spec["protocol"]["max_tokens"],
        "max_turns": spec["protocol"]["max_turns"],
        "python": spec["protocol"]["python"],
        "sandbox": spec["protocol"]["sandbox"],
        "data": spec["data"]["source"],
        "patch_set": spec["data"]["patch_set"],
        "folder": evaluation.path.as_posix(),
    }
    if status == COMPLETE:
        counts = right.sum(axis=1).astype(int).tolist()
        runs = outcomes.shape[1]
        line |= {
            "score": 100 * float(right.mean()),
            "se_problems": 100 * clustered_error(right),
            "se_runs": 100 * run_error(right),
            "judged": _judged(evaluation.scores),
        }
        for k in PASS_AT:
            line[f"pass_at_{k}"] = 100 * float(np.mean([pass_at_k(runs, count, k) for count in counts]))
    return line | _usage(evaluation.scores)


def problem_lines(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Lines of math_problems.csv."""
    samples: dict[str, list[dict[str, Any]]] = {problem: [] for problem in evaluation.spec["samples"]}
    for score in evaluation.scores:
        samples[score["problem_id"]].append(score)
    lines = []
    for problem, runs in evaluation.spec["samples"].items():
        scores = samples[problem]
        verdicts = [score["verdict"] for score in scores]
        lines.append(
            {name: evaluation.spec[name] for name in KEYS}
            | {
                "problem_id": problem,
                "label": scores[0]["label"] if scores else None,
                "runs": runs,
                "right": verdicts.count("right"),
                "wrong": verdicts.count("wrong"),
                "undecided": verdicts.count("undecided"),
                "missing": runs - len(scores),
                "missing_runs": " ".join(
                    str(run) for run in sorted(set(range(runs)) - {score["run_index"] for score in scores})
                ),
                "cut": sum(score["status"] == "truncated" for score in scores),
                "turns": _mean(scores, "turns"),
                "action_tokens": _mean(scores, "action_tokens"),
            }
        )
    return lines


def score_table(lines: Sequence[dict[str, Any]]) -> str:
    """Markdown: a line for each row, seed and step, a column for each benchmark."""
    cells: dict[tuple[Any, ...], dict[str, str]] = {}
    for line in lines:
        cells.setdefault((line["row"], line["seed"], line["step"]), {})[line["benchmark"]] = _cell(line)
    names = [name for name in BENCHMARKS if any(name in found for found in cells.values())]
    header = ["row", "seed", "step", *(BENCHMARKS[name].title for name in names)]
    body = [[*map(str, place), *(found.get(name, "") for name in names)] for place, found in cells.items()]
    rows = [header, ["---"] * len(header), *body]
    notes = [
        "Right samples in %, ± the standard error over problems; in brackets the paper's value.",
        *dict.fromkeys(
            origin(
                line["benchmark"], line["data"], line["patch_set"], (line["max_tokens"], line["max_turns"])
            )
            for line in lines
        ),
    ]
    return "\n".join(["| " + " | ".join(row) + " |" for row in rows] + ["", *notes, ""])


def origin(
    benchmark: str, data: str, patch_set: str | None, limits: tuple[int, int] = (MAX_TOKENS, MAX_TURNS)
) -> str:
    """The line below a table that says which problems a benchmark's scores are of.

    `limits`, tokens and turns of a trajectory, are named where they are not the protocol's.
    """
    patches = f"with the corrections {patch_set}" if patch_set else "without corrections"
    fewer = "" if limits == (MAX_TOKENS, MAX_TURNS) else f", at most {limits[0]} tokens and {limits[1]} turns"
    return f"{BENCHMARKS[benchmark].title}: {data} problems, {patches}{fewer}."


def with_paper(lines: Iterable[dict[str, Any]], published: Path = PUBLISHED) -> list[dict[str, Any]]:
    """The lines with the paper's Table 1 value of the same row and benchmark, on the published problems."""
    values = pd.read_csv(published)
    table = values[values["artifact"] == "table1"].set_index(["row", "benchmark"])["value"]
    return [
        line | {"paper": table.get((line["row"], BENCHMARKS[line["benchmark"]].published), nan)}
        if line["data"] == "published"
        else line
        for line in lines
    ]


def find_evaluations(folder: Path) -> list[Evaluation]:
    """All evaluations on mathematics below a folder, by row, seed, step and benchmark.

    Raises StoreError for one that is damaged or lies in another one's place.
    """
    specs = folder.glob("*/seed*/step*/*/spec.json")
    found = [read_evaluation(spec.parent) for spec in specs if spec.parent.name not in SWE_BENCHMARKS]
    for evaluation in found:
        _check_place(evaluation, folder)
    order = list(BENCHMARKS)
    return sorted(
        found,
        key=lambda one: (
            one.spec["row"],
            one.spec["seed"],
            one.spec["step"],
            order.index(one.spec["benchmark"]),
        ),
    )


def _check_place(evaluation: Evaluation, folder: Path) -> None:
    spec = evaluation.spec
    row, seed, step, benchmark = (spec.get(name) for name in KEYS)
    place = f"{row}/seed{seed}/step{step}/{benchmark}"
    if benchmark not in BENCHMARKS:
        raise StoreError(
            f"{evaluation.path}: is of benchmark {benchmark!r}, which is unknown here; move it away"
        )
    if evaluation.path.relative_to(folder).as_posix() != place:
        raise StoreError(
            f"{evaluation.path / 'spec.json'}: is of {place}; an evaluation lies in the folder that says "
            "what it is of, so move this one away"
        )


def _status(evaluation: Evaluation, outcomes: np.ndarray) -> str:
    benchmark = BENCHMARKS[evaluation.spec["benchmark"]]
    there = int((~np.isnan(outcomes)).sum())
    if outcomes.shape != (benchmark.problems, benchmark.runs):
        due = f"{benchmark.problems} x {benchmark.runs}"
        return f"{outcomes.shape[0]} x {outcomes.shape[1]} samples where the protocol has {due}"
    if there < outcomes.size:
        return f"{there} of {outcomes.size} samples"
    return COMPLETE if evaluation.sealed else "not sealed"


def _judged(scores: list[dict[str, Any]]) -> float:
    """Right samples (%), undecided ones by the judge's verdicts; NaN where one of them lacks a verdict."""
    verdicts = [
        score.get("judge", {}).get("verdict") if score["verdict"] == "undecided" else score["verdict"]
        for score in scores
    ]
    known = all(verdict in ("right", "wrong") for verdict in verdicts)
    return 100 * verdicts.count("right") / len(verdicts) if known and verdicts else nan


def _usage(scores: list[dict[str, Any]]) -> dict[str, float]:
    calls = sum(score["tool_calls"] for score in scores)
    malformed = sum(score["malformed_calls"] for score in scores)
    return {
        "undecided": _share(scores, "verdict", "undecided"),
        "cut_by_tokens": _share(scores, "finish_reason", "length"),
        "cut_by_turns": _share(scores, "finish_reason", "turns"),
        "turns": _mean(scores, "turns"),
        "action_tokens": _mean(scores, "action_tokens"),
        "tool_calls": _mean(scores, "tool_calls"),
        "tool_errors": 100 * sum(score["tool_errors"] for score in scores) / calls if calls else nan,
        "malformed_calls": 100 * malformed / (calls + malformed) if calls + malformed else nan,
    }


def _share(scores: list[dict[str, Any]], name: str, value: str) -> float:
    return 100 * sum(score[name] == value for score in scores) / len(scores) if scores else nan


def _mean(scores: list[dict[str, Any]], name: str) -> float:
    return sum(score[name] for score in scores) / len(scores) if scores else nan


def _cell(line: dict[str, Any]) -> str:
    if np.isnan(line["score"]):
        return line["status"]
    paper = "" if np.isnan(line["paper"]) else f" [{line['paper']:.1f}]"
    return f"{line['score']:.1f} ± {line['se_problems']:.1f}{paper}"


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns 0, or 2 for a user's mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.summary", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--evaluations", type=Path, required=True, help="e.g. results/cpu_math/evaluations")
    parser.add_argument("--out", type=Path, required=True, help="folder of the tables")
    options = parser.parse_args(arguments)
    try:
        evaluations = find_evaluations(options.evaluations)
    except StoreError as error:
        print(error, file=sys.stderr)
        return 2
    if not evaluations:
        print(
            f"{options.evaluations}: holds no evaluation; python -m evaluation.math.runner makes them",
            file=sys.stderr,
        )
        return 2
    lines = with_paper(map(summary_line, evaluations))
    options.out.mkdir(parents=True, exist_ok=True)
    table = score_table(lines)
    pd.DataFrame(lines, columns=list(COLUMNS)).to_csv(
        options.out / "math_scores.csv", index=False, float_format="%.7g"
    )
    problems = pd.DataFrame([line for one in evaluations for line in problem_lines(one)])
    problems.to_csv(options.out / "math_problems.csv", index=False, float_format="%.7g")
    (options.out / "math_scores.md").write_text(table)
    print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
