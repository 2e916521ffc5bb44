"""Imported runs in figures and tables: curves and lines of their own, beside this suite's rows."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.artifacts import Figure, Panel, Series, Table
from analysis.curves import X_COLUMNS, Curve, XAxis, accuracy_curve, metric_curve
from analysis.load import ImportedRow, Run

KIND = "imported"
NO_INTERVAL = "no interval: outcomes by problem are not known"


def label_of(row: ImportedRow) -> str:
    """The label with the word that tells an imported run in every legend and table."""
    return f"{row.label} (imported)"


def imported_curves(imported: Sequence[ImportedRow], panel: Panel, axis: XAxis) -> list[Curve]:
    """One curve a benchmark, or one a metric series, of each imported row that the panel shows."""
    curves = []
    for series in panel.series:
        for row in (row for row in imported if row.row == series.row):
            if panel.quantity == "accuracy":
                curves += [
                    accuracy_curve(runs, f"{label_of(row)}: {benchmark}", axis)
                    for benchmark, runs in row.benchmarks.items()
                    if _has_axis(runs, axis)
                ]
            elif panel.quantity == "metric" and _has_series(row, series) and _has_axis(row.runs, axis):
                curves.append(metric_curve(row.runs, series, _series_label(row, series), panel, axis))
    return curves


def beside_claims(imported: Sequence[ImportedRow]) -> list[str]:
    """A sentence for each imported row, with its last accuracies: no claim rests on it."""
    sentences = []
    for row in imported:
        last = [
            f"{benchmark} {100 * float(np.mean([run.accuracies.iloc[-1] for run in runs])):.1f}%"
            for benchmark, runs in row.benchmarks.items()
        ]
        sentences.append(f"Beside, in no verdict: {label_of(row)}, {', '.join(last) or 'no accuracies'}.")
    return sentences


def captions(imported: Sequence[ImportedRow], figure: Figure) -> list[str]:
    """Lines of a figure's caption: each imported run with its log, and what it lacks."""
    lines = []
    for row in (row for row in imported if row.row in figure.rows):
        lines += [f"- `{run.directory}`: {_origin(run)}" for run in row.runs]
        lines += [f"- {label_of(row)}: no {name}" for name in _lacking(row, figure)]
    if not lines:
        return []
    return [
        "",
        "Imported: trained elsewhere, on another model and task; this suite has not checked their settings:",
        "",
        *lines,
    ]


def imported_lines(
    imported: Sequence[ImportedRow], table: Table, only: str | None = None
) -> list[dict[str, object]]:
    """A table's lines of imported rows, or of those of row `only`.

    For each benchmark the last accuracy and the mean of the last two.
    """
    lines = []
    shown = [row for row in table.run_rows if only in (None, row)]
    for row in (row for row in imported if row.row in shown):
        for benchmark, runs in row.benchmarks.items():
            trained = [run for run in runs if (run.accuracies.index > 0).any()]
            last = [run.accuracies.iloc[-1] for run in trained]
            score = [run.accuracies[run.accuracies.index > 0].iloc[-2:].mean() for run in trained]
            for measure, values in (("last step", last), ("score", score)):
                lines.append(_line(row, benchmark, measure, values, trained))
    return lines


def _line(
    row: ImportedRow, benchmark: str, measure: str, values: list[float], runs: list[Run]
) -> dict[str, object]:
    collapsed = [run for run in runs if run.collapse is not None]
    note = NO_INTERVAL
    if collapsed:
        note += f"; collapsed in {len(collapsed)} of {len(runs)} seeds"
    return {
        "row": f"{row.row}@{row.scale}",
        "label": label_of(row),
        "kind": KIND,
        "measure": measure,
        "column": benchmark,
        "step": max((int(run.accuracies.index[-1]) for run in runs), default=pd.NA),
        "value": 100 * float(np.mean(values)) if values else np.nan,
        "seeds": len(values),
        "status": KIND,
        "note": note,
        "runs": " ".join(run.directory for run in runs),
    }


def _series_label(row: ImportedRow, series: Series) -> str:
    return label_of(row) if series.label is None else f"{label_of(row)}: {' + '.join(series.columns)}"


def _has_series(row: ImportedRow, series: Series) -> bool:
    return all(run.record.metrics[column].notna().any() for run in row.runs for column in series.columns)


def _has_axis(runs: Sequence[Run], axis: XAxis) -> bool:
    """Whether all runs logged what the x axis counts."""
    if axis == "updates":
        return True
    column, _ = X_COLUMNS[axis]
    return all(run.policy_updates[column].notna().all() for run in runs)


def _lacking(row: ImportedRow, figure: Figure) -> list[str]:
    """What the figure shows of the row and the imported runs did not log."""
    lacking = []
    for panel in figure.panels:
        for series in (series for series in panel.series if series.row == row.row):
            if panel.quantity == "accuracy" and not row.benchmarks:
                lacking.append("held-out accuracy")
            if panel.quantity == "metric" and not _has_series(row, series):
                lacking += [
                    column for column in series.columns if not _has_series(row, _only(series, column))
                ]
            if panel.quantity == "style_shares":
                lacking.append("shares of styles")
    return list(dict.fromkeys(lacking))


def _only(series: Series, column: str) -> Series:
    return series.model_copy(update={"columns": [column]})


def _origin(run: Run) -> str:
    files = run.record.provenance.get("imported_from", [])
    names = ", ".join(f"{file['file']} (SHA-256 {file['sha256'][:12]}...)" for file in files)
    return f"{(run.record.imported or {}).get('format')} log {names}"
