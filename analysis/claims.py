"""Verdicts on the paper's claims.

    python -m analysis.claims --runs results/cpu --out results/cpu/tables/claims

writes claims.csv, .md and .tex: each claim with its test, effect, interval and verdict.
"""

import sys
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.artifacts import Claim, load_artifacts
from analysis.claim_tests import FACTORS, POINTS, TESTS, Effect
from analysis.command import beside_parser, regenerate_command, run_command
from analysis.imported import beside_claims
from analysis.load import Logs, load_logs
from analysis.render import EMPTY, Sheet, write_sheet
from analysis.rows import row_status
from analysis.statistics import FEWEST_SEEDS, NO_INTERVAL, RESAMPLES
from analysis.swe_evaluations import load_swe, read_named

COLUMNS = (
    "claim",
    "part",
    "statement",
    "place",
    "test",
    "effect",
    "low",
    "high",
    "unit",
    "interval",
    "seeds",
    "detectable",
    "verdict",
    "detail",
    "runs",
)
NOT_RUN = "not run"
NOT_MEASURED = "not measured"
NUMBER_WORDS = {1: "one seed", 2: "two seeds"}


def verdict(effect: Effect) -> str:
    """One of reproduced, contradicted, inconclusive; with few seeds, what the interval rests on first."""
    interval = effect.interval
    few = NUMBER_WORDS.get(interval.seeds) if interval.seeds < FEWEST_SEEDS else None
    if not interval.has_bounds:
        return f"{few}: no interval"
    if interval.low > 0 and effect.rule_upheld:
        word = "reproduced"
    elif interval.high < 0 and effect.rule_broken:
        word = "contradicted"
    else:
        word = "inconclusive"
    return f"{few}: problems only ({word})" if few else word


def judge(logs: Logs, claim: Claim) -> dict[str, object]:
    """One line of the claims table."""
    effect = TESTS[claim.test](logs, claim)
    line: dict[str, object] = dict.fromkeys(COLUMNS, "")
    line |= {
        "claim": claim.claim,
        "part": claim.part,
        "statement": claim.statement,
        "place": claim.place,
        "test": claim.test.replace("_", " "),
        "effect": np.nan,
        "low": np.nan,
        "high": np.nan,
        "detectable": np.nan,
        "verdict": NOT_RUN,
    }
    if effect is None:
        return line | _absent(logs, claim)
    interval, factor = effect.interval, FACTORS.get(effect.unit, 1.0)
    decided = verdict(effect)
    return line | {
        "test": effect.test,
        "effect": factor * interval.estimate,
        "low": factor * interval.low,
        "high": factor * interval.high,
        "unit": effect.unit,
        "interval": interval.method,
        "seeds": " ".join(map(str, effect.seeds)),
        "detectable": factor * interval.detectable if "inconclusive" in decided else np.nan,
        "verdict": decided,
        "detail": effect.detail,
        "runs": " ".join(
            effect.sources or [f"runs/{row}/seed{seed}" for row in claim.rows for seed in effect.seeds]
        ),
    }


def build_claims(logs: Logs) -> pd.DataFrame:
    """The claims table, one line a claim or part of one, with the columns `COLUMNS`."""
    return pd.DataFrame([judge(logs, claim) for claim in load_artifacts().claims], columns=list(COLUMNS))


def layout(claims: pd.DataFrame, logs: Logs, command: str) -> Sheet:
    """The claims as text cells for Markdown and LaTeX."""
    header = [
        "claim",
        "statement",
        "in the paper",
        "test",
        "effect [95% interval]",
        "seeds",
        "verdict",
        "detail",
    ]
    rows = [
        [
            f"{line['claim']} {line['part']}".strip(),
            line["statement"],
            line["place"],
            line["test"],
            _effect_text(line),
            str(len(line["seeds"].split())) if line["seeds"] else EMPTY,
            _verdict_text(line),
            line["detail"],
        ]
        for line in claims.to_dict("records")
    ]
    measured = claims.loc[(claims["claim"] == "C15"), "effect"].notna().any()
    software = "C15 stands on all 500 tasks of SWE-Bench Verified. " if measured else ""
    footer = (
        f"Scale {logs.scale}. Effects are signed so that the paper's direction is positive. Variance shown: "
        f"seeds and problems (crossed bootstrap, {RESAMPLES:,} resamples, {_problem_count(logs)} held-out "
        "problems), or seeds (Student's t) for quantities of a whole run, with n in the column of seeds; "
        "below 3 seeds problems only. An inconclusive effect is followed by "
        "the smallest one that the design would have shown in 80% of repeats. Not corrected for the number "
        f"of claims. {software}Rules: docs/statistics.md. Regenerate: `{command}`"
    )
    return Sheet(
        f"Claims of the paper at scale {logs.scale}", header, rows, [*beside_claims(logs.imported), footer]
    )


def write_claims(logs: Logs, stem: Path, command: str) -> None:
    """Write the verdicts as `<stem>.csv`, `.md` and `.tex`; `command` is what makes them again."""
    claims = build_claims(logs)
    write_sheet(stem, claims, layout(claims, logs, command))


def _claimed_rows() -> list[str]:
    return list(dict.fromkeys(row for claim in load_artifacts().claims for row in claim.rows))


def _problem_count(logs: Logs) -> str:
    """The number of held-out problems of the claims' runs, or numbers where tasks differ."""
    finished = [run for row in _claimed_rows() for run in logs.finished(row)]
    return " or ".join(map(str, sorted({run.correct.shape[1] for run in finished}))) or "no"


def _number(value: float, unit: str) -> str:
    if unit == POINTS:
        return f"{value:.1f}" if abs(value) >= 1 else f"{value:.2f}"
    return f"{value:.3g}"


def _effect_text(line: dict[Hashable, Any]) -> str:
    effect, unit = line["effect"], line["unit"]
    if np.isnan(effect):
        return EMPTY
    named = "" if unit == "1" else f" {unit}"
    text = ("+" if effect > 0 else "") + _number(effect, unit)
    if np.isnan(line["low"]):
        return f"{text}{named} ({NO_INTERVAL})"
    return f"{text} [{_number(line['low'], unit)}, {_number(line['high'], unit)}]{named}"


def _verdict_text(line: dict[Hashable, Any]) -> str:
    if np.isnan(line["detectable"]):
        return str(line["verdict"])
    unit = "" if line["unit"] == "1" else f" {line['unit']}"
    return f"{line['verdict']}; could have shown {_number(line['detectable'], line['unit'])}{unit}"


def _absent(logs: Logs, claim: Claim) -> dict[str, object]:
    """Verdict and detail of a claim whose test has nothing to stand on."""
    if claim.test != "swe_bench":
        return {"detail": _why_not_run(logs, claim)}
    evaluations = load_swe(logs)
    if evaluations.is_empty:
        return {"detail": "not run at this scale"}
    rows = [read_named(logs, evaluations, row) for row in claim.rows]
    missing = [f"{row.row}: {row.status.note}" for row in rows if not row.complete]
    said = "; ".join(missing) or "the rows share no evaluated seed, tasks, limits or grader"
    return {"verdict": NOT_MEASURED, "detail": said}


def _why_not_run(logs: Logs, claim: Claim) -> str:
    missing = [row for row in claim.rows if not logs.finished(row)]
    if not missing:
        return "the rows share no finished seed with a value"
    return "; ".join(f"{row}: {row_status(logs, row).note}" for row in missing)


def main(arguments: list[str] | None = None) -> None:
    options = beside_parser("analysis.claims", "Write the verdicts on the paper's claims.").parse_args(
        arguments
    )
    logs = load_logs(options.runs, _claimed_rows(), options.beside)
    write_claims(logs, options.out, regenerate_command("analysis.claims", options))
    print(f"wrote {options.out}.csv, .md and .tex")


if __name__ == "__main__":
    sys.exit(run_command(main))
