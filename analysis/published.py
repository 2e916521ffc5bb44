"""Checks on the published values: impossible scores, copied cells, tables that disagree, wrong labels.

    python -m analysis.published --out results/cpu/tables/published [--values results/published]

writes published.csv with a line for every published number, its source line and what was found about it, and
published.md and .tex with the findings alone. `docs/statistics.md` states each rule.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.artifacts import PUBLISHED_FILE
from analysis.command import run_command
from analysis.published_checks import (
    Finding,
    baselines_ahead,
    copied_cells,
    disagreeing_tables,
    off_grid,
    own_runs_by_chance,
    repeated_captions,
    wrong_labels,
)
from analysis.published_values import (
    CurvePoint,
    RunCount,
    Value,
    load_captions,
    load_curves,
    load_run_counts,
    load_values,
    missing_files,
)
from analysis.render import EMPTY, Sheet, write_sheet

COLUMNS = (
    "file",
    "line",
    "place",
    "row",
    "label",
    "benchmark",
    "value",
    "origin",
    "problems",
    "runs",
    "nearest",
    "on_grid",
    "finding",
    "detail",
)


def check_values(
    values: list[Value],
    counts: list[RunCount],
    captions: Sequence[Value] = (),
    curves: Sequence[CurvePoint] = (),
) -> list[Finding]:
    """All findings, in the order of the checks and of the values' lines."""
    return [
        *off_grid(values, counts),
        *copied_cells(values),
        *disagreeing_tables(values),
        *wrong_labels(values),
        *repeated_captions(list(captions)),
        *baselines_ahead(list(curves)),
    ]


def build_table(values: list[Value], counts: list[RunCount], findings: list[Finding]) -> pd.DataFrame:
    """One line a published value, with the columns `COLUMNS`."""
    return pd.DataFrame([_line(value, counts, findings) for value in values], columns=list(COLUMNS))


def lay_out(
    values: list[Value],
    counts: list[RunCount],
    findings: list[Finding],
    command: str,
    not_checked: Sequence[str] = (),
) -> Sheet:
    """The findings as text cells, and below them how much was checked and what was not."""
    header = ["finding", "where", "row", "benchmark", "value", "source line", "detail"]
    rows = [
        [
            finding.kind,
            finding.value.place,
            finding.value.label,
            finding.value.benchmark,
            finding.value.text,
            f"`{finding.value.file}:{finding.value.line}`",
            finding.detail,
        ]
        for finding in findings
    ]
    told = [value for value in values if (count := value.run_count(counts)) and count.tells(value)]
    own = list({(value.row, value.benchmark): value for value in told if value.is_own_run}.values())
    known = sum(value.run_count(counts) is not None for value in values)
    footer = (
        f"{len(values)} published values. Run counts are known for {known}; for {len(told)} of them a value "
        f"as printed could miss the grid of its run count ({len(own)} different ones of the paper's own "
        f"runs: random digits would all lie on it with a chance of {own_runs_by_chance(own, counts):.1g}). "
        f"Rules: docs/statistics.md. Regenerate: `{command}`"
    )
    left = [f"Not checked, for lack of data: {'; '.join(not_checked)}."] if not_checked else []
    return Sheet("Checks on the published values", header, rows, [*left, footer])


def make_checks(folder: Path, command: str) -> tuple[pd.DataFrame, Sheet]:
    """Every published value in `folder` with what was found about it, and the sheet of the findings."""
    values, counts = load_values(folder), load_run_counts(folder)
    findings = check_values(values, counts, load_captions(folder), load_curves(folder))
    sheet = lay_out(values, counts, findings, command, missing_files(folder))
    return build_table(values, counts, findings), sheet


def _line(value: Value, counts: list[RunCount], findings: list[Finding]) -> dict[str, Any]:
    mine = [finding for finding in findings if finding.value is value]
    count = value.run_count(counts)
    line: dict[str, Any] = {
        "file": value.file,
        "line": value.line,
        "place": value.place,
        "row": value.row,
        "label": value.label,
        "benchmark": value.benchmark,
        "value": value.text,
        "origin": value.origin,
        "problems": pd.NA,
        "runs": pd.NA,
        "nearest": "",
        "on_grid": "run count not stated",
        "finding": "; ".join(finding.kind for finding in mine),
        "detail": "; ".join(finding.detail for finding in mine),
    }
    if count is None:
        return line
    verdict = "every printable value is" if not count.tells(value) else "yes" if count.fits(value) else "no"
    return line | {
        "problems": count.problems,
        "runs": count.runs,
        "nearest": f"{count.nearest(value)}/{count.samples}",
        "on_grid": verdict,
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.published", description="Check the published values."
    )
    parser.add_argument("--out", type=Path, required=True, help="where to write, without suffix")
    parser.add_argument(
        "--values",
        type=Path,
        default=PUBLISHED_FILE.parent,
        help="folder with paper.csv, independent_runs.csv, relabelled.csv, run_counts.csv, and if there are "
        "any captions.csv and curves.csv",
    )
    options = parser.parse_args(arguments)
    words = ["python", "-m", "analysis.published", "--out", str(options.out)]
    words += ["--values", str(options.values)] if options.values != PUBLISHED_FILE.parent else []
    data, sheet = make_checks(options.values, shlex.join(words))
    write_sheet(options.out, data, sheet)
    for row in sheet.rows or [[EMPTY, "nothing found"]]:
        print(": ".join(cell for cell in row if cell))
    for what in missing_files(options.values):
        print(f"not checked: {what}")
    print(f"wrote {options.out}.csv, .md and .tex")


if __name__ == "__main__":
    sys.exit(run_command(main))
