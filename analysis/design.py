"""What a table could show: the minimum detectable difference of each comparison, before it is trained.

    python -m analysis.design --runs results/logged/cpu [--seeds 3 5 10] [--problems 384] [--artifact table4]

prints, for designs of so many seeds, the smallest true difference to SAO that its interval would tell from 0
in 80% of repeats. How much seeds, problems and single answers vary is read off the runs in `--runs`: a pilot,
or the shipped ones.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.artifacts import load_artifacts
from analysis.command import pick_artifacts, run_command
from analysis.load import AnalysisError, Logs, Run, load_logs
from analysis.power import VarianceComponents, minimum_detectable_difference, pooled, variance_components
from analysis.render import Sheet, to_markdown
from analysis.statistics import LEVEL
from analysis.table_data import REFERENCE_ROW

ALL_COMPARISONS = "all comparisons"
SEEDS = (3, 5, 10)
FOOTER = (
    "Points of the score (mean of the last two evaluations), all held-out problems; intervals over seeds "
    "and problems as in the tables, 80% power. Spreads are standard deviations of the paired difference, "
    "read off the pilot's seeds: from 3 or 5 seeds the seeds' spread is itself uncertain, and 0 means too "
    "small to be told from the noise of single answers. 'all comparisons' takes the mean variance of the "
    "table's lines."
)


def build_design(
    logs: Logs, names: list[str], seeds: tuple[int, ...], problems: int | None = None
) -> pd.DataFrame:
    """One line a comparison with SAO, then one for all of a table, for each number of seeds.

    Columns: table, row, pilot_seeds, seed_spread, problem_spread, residual_spread, seeds, problems,
    detectable and detectable_holm (the smallest p of the table's comparisons, Holm's hardest), in points.
    Comparisons whose pilot has fewer than two seeds are left out.
    """
    lines: list[dict[str, Any]] = []
    for name in names:
        pilots = {
            row: shares for row in load_artifacts().tables[name].run_rows for shares in _pilot(logs, row)
        }
        if not pilots:
            continue
        parts = {row: variance_components(shares) for row, shares in pilots.items()}
        counts = {row: shares.shape[0] for row, shares in pilots.items()}
        planned = problems or next(iter(pilots.values())).shape[1]
        parts[ALL_COMPARISONS] = pooled(list(parts.values()))
        counts[ALL_COMPARISONS] = min(counts.values())
        for row, part in parts.items():
            common = {"table": name, "row": row, "pilot_seeds": counts[row], **_spreads(part)}
            for count in seeds:
                lines.append(common | _detectable(part, count, planned, len(pilots)))
    if not lines:
        raise AnalysisError(
            f"{logs.folder}: no row has two finished seeds in common with {REFERENCE_ROW}, so nothing "
            "says how much seeds vary; train a pilot, or name one (--runs results/logged/cpu)"
        )
    return pd.DataFrame(lines)


def lay_out(design: pd.DataFrame, logs: Logs) -> Sheet:
    """One line a comparison, one column a number of seeds."""
    counts = sorted(design["seeds"].unique())
    header = ["table", "row", "pilot seeds", "spread: seeds", "problems", "single answers"]
    header += [f"{count} seed{'s' if count > 1 else ''}" for count in counts]
    header += [f"{counts[0]}, Holm"]
    rows = []
    for (table, row), lines in design.groupby(["table", "row"], sort=False):
        first = lines.iloc[0]
        spreads = [f"{first[name]:.1f}" for name in ("seed_spread", "problem_spread", "residual_spread")]
        found = [f"{value:.1f}" for value in lines.sort_values("seeds")["detectable"]]
        corrected = f"{lines.sort_values('seeds')['detectable_holm'].iloc[0]:.1f}"
        rows.append([str(table), f"`{row}`", str(first["pilot_seeds"]), *spreads, *found, corrected])
    problems = ", ".join(str(count) for count in sorted(design["problems"].unique()))
    few = " Below 3 seeds: over problems alone, nothing of other seeds." if counts[0] < 3 else ""
    footer = f"{FOOTER}{few} Pilot: `{logs.folder}`, {problems} held-out problems."
    return Sheet(
        f"Minimum detectable difference to {REFERENCE_ROW}, scale {logs.scale}", header, rows, [footer]
    )


def _pilot(logs: Logs, row: str) -> list[np.ndarray]:
    """The paired score differences [seeds, problems] of a row, where two seeds or more are finished."""
    if row == REFERENCE_ROW:
        return []
    outcomes = [logs.outcomes(name, Run.score) for name in (row, REFERENCE_ROW)]
    difference = outcomes[0].minus(outcomes[1]) if outcomes[0] and outcomes[1] else None
    return [difference.shares] if difference is not None and len(difference.seeds) > 1 else []


def _spreads(part: VarianceComponents) -> dict[str, float]:
    return {
        "seed_spread": 100 * float(np.sqrt(part.seeds)),
        "problem_spread": 100 * float(np.sqrt(part.problems)),
        "residual_spread": 100 * float(np.sqrt(part.residual)),
    }


def _detectable(part: VarianceComponents, seeds: int, problems: int, comparisons: int) -> dict[str, Any]:
    corrected = 1 - (1 - LEVEL) / comparisons
    return {
        "seeds": seeds,
        "problems": problems,
        "detectable": 100 * minimum_detectable_difference(part, seeds, problems),
        "detectable_holm": 100 * minimum_detectable_difference(part, seeds, problems, corrected),
    }


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number of at least 1")
    return int(text)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.design", description="Print the minimum detectable differences of tables."
    )
    parser.add_argument(
        "--runs", type=Path, required=True, help="folder of the pilot's runs, e.g. results/logged/cpu"
    )
    parser.add_argument("--seeds", type=_count, nargs="+", default=list(SEEDS), help="numbers of seeds")
    parser.add_argument("--problems", type=_count, help="held-out problems (default: the pilot's)")
    parser.add_argument("--artifact", help="this table alone, e.g. table4; without it all")
    parser.add_argument("--out", type=Path, help="write the lines to this CSV file too")
    options = parser.parse_args(arguments)
    if options.problems == 1:
        raise AnalysisError("--problems 1: a spread over problems needs two or more")
    tables = load_artifacts().tables
    names = pick_artifacts(options.artifact, tables)
    logs = load_logs(options.runs, [REFERENCE_ROW, *(row for name in names for row in tables[name].run_rows)])
    design = build_design(logs, names, tuple(dict.fromkeys(options.seeds)), options.problems)
    print(to_markdown(lay_out(design, logs)), end="")
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        design.to_csv(options.out, index=False, float_format="%.6g", lineterminator="\n")
        print(f"\nwrote {options.out}")


if __name__ == "__main__":
    sys.exit(run_command(main))
