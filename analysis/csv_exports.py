"""CSV exports of metrics as readings: one line a step, one column a metric."""

import csv
from pathlib import Path

import pandas as pd

from analysis.load import AnalysisError
from analysis.mapping import Mapping
from analysis.readings import Reading, Readings, shown, whole_step

STEP_COLUMNS = ("step", "Step", "_step", "global_step")


def read_csv_export(source: Path, mapping: Mapping, step_column: str | None) -> Readings:
    """Numbers of a CSV file; empty cells are no readings, `nan` is one.

    A metric's step is that of `mapping.step_metric` where the file has it, else `step_column`, else the first
    of STEP_COLUMNS that is there.  Raises AnalysisError naming line and column where a cell is no number.
    """
    table = _table(source)
    chosen = _step_column(source, table, step_column)
    readings = []
    counters = {chosen, *mapping.step_metrics.values()}
    for line, row in enumerate(table.to_dict("records"), start=2):
        for metric, cell in row.items():
            if metric in counters or cell == "":
                continue
            counter = mapping.step_metric(str(metric))
            counter = counter if counter in table.columns and step_column is None else chosen
            if row[counter] == "":
                raise AnalysisError(f"{source}: line {line}: {metric} has a value and {counter} is empty")
            step = whole_step(source, str(counter), _number(source, line, counter, row[counter]))
            readings.append(Reading(str(metric), step, _number(source, line, metric, cell)))
    if not readings:
        raise AnalysisError(f"{source}: holds no numbers beside {chosen}")
    return Readings((source,), readings)


def _table(source: Path) -> pd.DataFrame:
    try:
        with open(source, newline="", encoding="utf-8") as file:
            names = next(csv.reader(file), [])
        table = pd.read_csv(source, dtype=str, keep_default_na=False)
    except OSError as error:
        raise AnalysisError(f"{source}: cannot be read: {error.strerror}") from error
    except (ValueError, csv.Error) as error:
        raise AnalysisError(f"{source}: is no CSV file: {error}") from error
    if repeated := [name for name in names if names.count(name) > 1]:  # pandas would rename the second
        raise AnalysisError(f"{source}: column {repeated[0]} is there twice; rename or drop one")
    return table


def _step_column(source: Path, table: pd.DataFrame, wanted: str | None) -> str:
    candidates = STEP_COLUMNS if wanted is None else (wanted,)
    for name in candidates:
        if name in table.columns:
            return name
    raise AnalysisError(
        f"{source}: has no column {' or '.join(candidates)} that counts steps; name it with --step-column; "
        f"there are: {shown(table.columns)}"
    )


def _number(source: Path, line: int, column: object, cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise AnalysisError(f"{source}: line {line}: {column} holds {cell!r}, which is no number") from None
