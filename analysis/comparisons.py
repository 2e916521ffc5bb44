"""Every comparison of a table with SAO: interval, p-value, and p-value corrected for the table's number.

    python -m analysis.comparisons --runs results/cpu --out results/cpu/tables/comparisons

writes comparisons.csv, .md and .tex: one line a row and table, for the score over all held-out problems.
"""

import sys
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.artifacts import load_artifacts, row_label
from analysis.command import artifact_parser, pick_artifacts, regenerate_command, run_command
from analysis.evaluation_table import EVALUATION
from analysis.layout import difference_text
from analysis.load import Logs, Run, load_logs
from analysis.render import EMPTY, Sheet, write_sheet
from analysis.rows import row_status
from analysis.statistics import (
    clustered_standard_error,
    crossed_bootstrap,
    holm,
    interquartile_mean,
    p_value,
)
from analysis.swe_evaluations import is_software, load_swe
from analysis.swe_table import build_swe_table
from analysis.table_data import REFERENCE_ROW

COLUMNS = (
    "table",
    "row",
    "label",
    "seeds",
    "problems",
    "score",
    "standard_error_problems",
    "interquartile_mean",
    "difference_to_sao",
    "difference_low",
    "difference_high",
    "difference_interval",
    "difference_seeds",
    "p",
    "p_holm",
    "comparisons",
    "note",
    "runs",
)
FOOTER = (
    "Variance shown: of scores problems alone, of differences seeds and problems (n in the CSV). "
    "Score: mean of the last two evaluations, percent of held-out problems. Its standard error is clustered "
    "by problem: seeds are held fixed, problems vary. Interquartile mean: over seeds and difficulty bands. "
    "Differences are in points, paired by seed and problem, with 95% intervals over seeds and problems; p: "
    "the error at which that interval would just touch 0; with fewer than 3 seeds both are over problems "
    "alone. p, Holm: corrected for the comparisons of the same table."
)
SOFTWARE_FOOTER = (
    " Table 2: shares of 500 tasks resolved, compared with its own row of SAO; one pair of runs has the "
    "exact McNemar test."
)


def build_comparisons(logs: Logs, names: list[str]) -> pd.DataFrame:
    """One line a row of each table in `names`, the reference row first, with the columns `COLUMNS`."""
    lines = [line for name in names for line in _table_lines(logs, name)]
    return pd.DataFrame(lines, columns=list(COLUMNS))


def band_scores(logs: Logs, row: str) -> np.ndarray:
    """Scores of a row's finished seeds in each difficulty band; float [seeds, bands], or [seeds, 1]."""
    task = str(logs.finished(row)[0].record.config["task"]["name"])
    bands: list[str | None] = list(load_artifacts().bands.get(task, [])) or [None]
    outcomes = [logs.outcomes(row, Run.score, band) for band in bands]
    return np.stack([band.shares.mean(axis=1) for band in outcomes if band is not None], axis=1)


def lay_out(data: pd.DataFrame, logs: Logs, command: str) -> Sheet:
    """The comparisons as text cells."""
    header = ["table", "row", "seeds", "score (%)", "standard error", "interquartile mean (%)"]
    header += ["difference to sao", "p", "p, Holm", "comparisons", "notes"]
    rows = [_cells(line) for line in data.to_dict("records")]
    tables = load_artifacts().tables
    software = any(is_software(tables[name]) for name in set(data["table"]))
    footer = f"Scale {logs.scale}. {FOOTER}{SOFTWARE_FOOTER if software else ''} Regenerate: `{command}`"
    return Sheet(f"Comparisons with {REFERENCE_ROW} at scale {logs.scale}", header, rows, [footer])


def write_comparisons(logs: Logs, names: list[str], stem: Path, command: str) -> None:
    """Write the comparisons as `<stem>.csv`, `.md` and `.tex`; `command` is what makes them again."""
    data = build_comparisons(logs, names)
    write_sheet(stem, data, lay_out(data, logs, command))


def _table_lines(logs: Logs, name: str) -> list[dict[str, Any]]:
    table = load_artifacts().tables[name]
    if is_software(table):
        return _software_lines(logs, name)
    rows = table.run_rows
    ordered = sorted(rows, key=lambda row: row != REFERENCE_ROW)
    lines = [_line(logs, name, row) for row in ordered]
    compared = [line for line in lines if not np.isnan(line["p"])]
    for line, adjusted in zip(compared, holm([line["p"] for line in compared]), strict=True):
        line |= {"p_holm": float(adjusted), "comparisons": len(compared)}
    return lines


def _software_lines(logs: Logs, name: str) -> list[dict[str, Any]]:
    """Table 2's comparisons, which are with its own row of SAO; none at a scale without SWE-Bench."""
    evaluations = load_swe(logs)
    if evaluations.is_empty:
        return []
    data = build_swe_table(logs, evaluations, name)
    ours = data[data["measure"] == EVALUATION].rename(columns={"value": "score"})
    lines = ours.reindex(columns=list(COLUMNS)).to_dict("records")
    return [{str(name): value for name, value in line.items()} for line in lines]


def _line(logs: Logs, name: str, row: str) -> dict[str, Any]:
    numbers = dict.fromkeys(COLUMNS[5:11], np.nan) | {"p": np.nan, "p_holm": np.nan}
    line: dict[str, Any] = dict.fromkeys(COLUMNS, "") | numbers
    line |= {"problems": pd.NA, "difference_seeds": pd.NA, "comparisons": pd.NA}
    line |= {"table": name, "row": row, "label": row_label(row), "seeds": 0}
    line["note"] = row_status(logs, row).note
    outcomes = logs.outcomes(row, Run.score)
    if outcomes is None:
        return line
    line |= {
        "seeds": len(outcomes.seeds),
        "problems": len(outcomes.problems),
        "score": 100 * float(outcomes.shares.mean()),
        "standard_error_problems": 100 * clustered_standard_error(outcomes.shares),
        "interquartile_mean": 100 * interquartile_mean(band_scores(logs, row)),
        "runs": " ".join(run.directory for run in logs.finished(row)),
    }
    reference = None if row == REFERENCE_ROW else logs.outcomes(REFERENCE_ROW, Run.score)
    difference = None if reference is None else outcomes.minus(reference)
    if difference is None:
        return line
    interval = crossed_bootstrap(difference.shares)
    return line | {
        "difference_to_sao": 100 * interval.estimate,
        "difference_low": 100 * interval.low,
        "difference_high": 100 * interval.high,
        "difference_interval": interval.method,
        "difference_seeds": interval.seeds,
        "p": p_value(difference.shares),
    }


def _cells(line: dict[Hashable, Any]) -> list[str]:
    return [
        str(line["table"]),
        f"{line['label']} (`{line['row']}`)",
        str(line["seeds"]),
        _percent(line["score"]),
        _percent(line["standard_error_problems"]),
        _percent(line["interquartile_mean"]),
        difference_text(line["difference_to_sao"], line["difference_low"], line["difference_high"]),
        _chance(line["p"]),
        _chance(line["p_holm"]),
        EMPTY if pd.isna(line["comparisons"]) else str(line["comparisons"]),
        str(line["note"]),
    ]


def _percent(value: float) -> str:
    return EMPTY if np.isnan(value) else f"{value:.1f}"


def _chance(value: float) -> str:
    return EMPTY if np.isnan(value) else f"{value:.2g}"


def main(arguments: list[str] | None = None) -> None:
    parser = artifact_parser("analysis.comparisons", "Write the tables' comparisons with SAO.", beside=False)
    options = parser.parse_args(arguments)
    tables = load_artifacts().tables
    names = pick_artifacts(options.artifact, tables)
    logs = load_logs(options.runs, [REFERENCE_ROW, *(row for name in names for row in tables[name].run_rows)])
    extra = ["--artifact", options.artifact] if options.artifact else []
    command = regenerate_command("analysis.comparisons", options, *extra)
    write_comparisons(logs, names, options.out, command)
    print(f"wrote {options.out}.csv, .md and .tex")


if __name__ == "__main__":
    sys.exit(run_command(main))
