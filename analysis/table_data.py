"""The data of a table: one line a row, measure and column, each with the runs it comes from."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from analysis.artifacts import Artifacts, Table, TableRow, load_artifacts, load_published, row_label
from analysis.imported import imported_lines
from analysis.load import Logs, Outcomes, Run, stack_outcomes
from analysis.power import detectable_difference
from analysis.rows import NOT_RUN, row_status
from analysis.statistics import VARIANCE, Interval, accuracy_interval, crossed_bootstrap, holm, p_value
from analysis.stratified import stratified_interquartile_mean, stratified_mean

COLUMNS = (
    "table",
    "row",
    "label",
    "kind",
    "measure",
    "column",
    "step",
    "value",
    "low",
    "high",
    "interval",
    "seeds",
    "problems",
    "difference_to_sao",
    "difference_low",
    "difference_high",
    "difference_interval",
    "difference_seeds",
    "cpu_minutes",
    "status",
    "note",
    "runs",
    "variance",
    "interquartile_mean",
    "interquartile_low",
    "interquartile_high",
    "stratified_low",
    "stratified_high",
    "p",
    "p_holm",
    "comparisons",
    "detectable",
)
STATISTICS = COLUMNS[COLUMNS.index("interquartile_mean") :]
"""Columns of the values that a table compares: scores over all tasks, or evaluations on benchmarks."""
REFERENCE_ROW = "sao"

ALL_TASKS = "all tasks"
PAPER = "paper"
WARM_START = "warm start"
EARLY = "40% of the steps"
LAST = "last step"
SCORE = "score"
BEFORE_COLLAPSE = "before the collapse"

NOT_DEFINED = "not defined at this scale"
ONE_SFT_ROW = "at this scale the row warm_start"

Line = dict[str, object]


def build_table(logs: Logs, name: str, only: str | None = None) -> pd.DataFrame:
    """One line a row, measure and column with the columns `COLUMNS`; values and bounds in percent.

    `only` names the one row to build. Imported rows come last, as `row@scale`, and enter no difference.
    """
    artifacts = load_artifacts()
    table = artifacts.tables[name]
    columns = table_columns(artifacts, table, logs)
    lines = []
    for row in (row for row in table.rows if only in (None, row.row)):
        for line in paper_lines(name, table, row) + _our_lines(logs, table, row, columns):
            lines.append(empty_line() | {"table": name, "row": row.row, "kind": row.kind} | line)
    if only is None:
        correct_for_comparisons(lines)
    for line in imported_lines(logs.imported, table, only):
        lines.append(empty_line() | {"table": name} | line)
    return pd.DataFrame(lines, columns=list(COLUMNS))


def correct_for_comparisons(lines: list[Line]) -> None:
    """Give the lines that hold a p-value their number and Holm's correction for it, in place."""
    tested = {index: p for index, line in enumerate(lines) if isinstance(p := line["p"], float) and p == p}
    for index, adjusted in zip(tested, holm(list(tested.values())), strict=True):
        lines[index] |= {"p_holm": float(adjusted), "comparisons": len(tested)}


def table_columns(artifacts: Artifacts, table: Table, logs: Logs) -> dict[str, str | None]:
    """Our columns of a table, from their names to the difficulty band each is limited to."""
    bands = artifacts.bands.get(task_of(logs, table), [])
    if table.columns == "bands":
        return {**{band: band for band in bands}, ALL_TASKS: None}
    hardest = {f"hardest band ({bands[-1]})": bands[-1]} if bands else {}
    return {ALL_TASKS: None, **hardest}


def task_of(logs: Logs, table: Table) -> str:
    """Name of the task of a table's rows; empty before any of them has been started."""
    for row in table.rows:
        for run in logs.runs.get(row.row, {}).values():
            if run.record.config:
                return str(run.record.config["task"]["name"])
    return ""


def empty_line() -> Line:
    """A line without values."""
    numbers = {name: np.nan for name in COLUMNS if name.startswith("difference_") or name in STATISTICS}
    return {
        **dict.fromkeys(COLUMNS, ""),
        **numbers,
        **dict.fromkeys(("step", "seeds", "problems", "difference_seeds", "comparisons"), pd.NA),
        **dict.fromkeys(("value", "low", "high", "cpu_minutes"), np.nan),
        "difference_interval": "",
    }


def paper_lines(name: str, table: Table, row: TableRow) -> list[Line]:
    """The paper's values of a row on the table's benchmarks."""
    published = load_published()
    values = published[(published["artifact"] == name) & (published["row"] == row.published_row)]
    return [
        {
            "label": line["label"],
            "measure": PAPER,
            "column": line["benchmark"],
            "value": line["value"],
            "status": "not reported" if np.isnan(line["value"]) else "published",
            "note": line["note"],
        }
        for line in values.to_dict("records")
        if line["benchmark"] in table.benchmarks
    ]


def _our_lines(logs: Logs, table: Table, row: TableRow, columns: dict[str, str | None]) -> list[Line]:
    label = row_label(row.row)
    if row.kind == "reference":
        return []
    if row.kind in ("base", "sft"):
        reason = NOT_DEFINED if row.kind == "base" else ONE_SFT_ROW
        return [{"label": label, "measure": LAST, "column": ALL_TASKS, "status": reason}]
    if row.kind == "warm_start":
        return _warm_start_lines(logs, table, columns)
    status = row_status(logs, row.row)
    common = {"label": label, "status": f"{status.seeds} seeds", "note": status.note}
    if not status.finished:
        measure = EARLY if table.early_step else LAST
        return [common | {"measure": measure, "column": column, "seeds": 0} for column in columns]
    return [common | line for line in _measured_lines(logs, table, row.row, columns)]


def _warm_start_lines(logs: Logs, table: Table, columns: dict[str, str | None]) -> list[Line]:
    start = logs.warm_starts.get(task_of(logs, table))
    common: Line = {"label": row_label("warm_start"), "measure": WARM_START}
    if start is None:
        return [common | {"column": column, "seeds": 0, "status": NOT_RUN} for column in columns]
    lines = []
    for column, band in columns.items():
        kept = [problem for problem in start.outcomes.index if band in (None, start.bands.get(problem))]
        if not kept:
            continue
        interval = accuracy_interval(start.outcomes[kept].to_numpy(dtype=np.float64)[None])
        shared: Line = {"column": column, "step": 0, "status": "shared by all seeds", "runs": start.directory}
        lines.append(common | shared | value_fields(interval))
    return lines


def _measured_lines(logs: Logs, table: Table, row: str, columns: dict[str, str | None]) -> list[Line]:
    runs = logs.finished(row)
    measures: dict[str, Callable[[Run], pd.Series]] = {LAST: Run.last, SCORE: Run.score}
    if table.early_step:
        measures = {EARLY: Run.early, **measures}
    steps = {EARLY: runs[0].early_step, LAST: runs[0].updates, SCORE: runs[0].updates}
    common = {
        "cpu_minutes": float(np.mean([run.cpu_minutes for run in runs])),
        "runs": " ".join(run.directory for run in runs),
    }
    lines = []
    for measure, take in measures.items():
        for column, band in columns.items():
            fields = _compared_fields(logs, row, take, band, tested=measure == SCORE and band is None)
            if fields is not None:
                place: Line = {"measure": measure, "column": column, "step": steps[measure]}
                lines.append(common | place | fields)
    return lines + _collapse_lines(runs, common, columns)


def _compared_fields(
    logs: Logs, row: str, take: Callable[[Run], pd.Series], band: str | None, tested: bool
) -> Line | None:
    """Value of a row with its interval and its paired difference to the reference row.

    `tested`: with the statistics of the value that the table compares.
    """
    outcomes = logs.outcomes(row, take, band)
    if outcomes is None:
        return None
    reference = None if row == REFERENCE_ROW else logs.outcomes(REFERENCE_ROW, take, band)
    fields = value_fields(accuracy_interval(outcomes.shares)) | difference_fields(outcomes, reference, tested)
    return fields | stratified_fields(logs, row, take) if tested else fields


def stratified_fields(logs: Logs, row: str, take: Callable[[Run], pd.Series]) -> Line:
    """Interquartile mean over seeds and difficulty bands, and intervals with problems drawn within bands."""
    task = str(logs.finished(row)[0].record.config["task"]["name"])
    bands: list[str | None] = list(load_artifacts().bands.get(task, [])) or [None]
    outcomes = [found.shares for band in bands if (found := logs.outcomes(row, take, band)) is not None]
    middle, mean = stratified_interquartile_mean(outcomes), stratified_mean(outcomes)
    return {
        "interquartile_mean": 100 * middle.estimate,
        "interquartile_low": 100 * middle.low,
        "interquartile_high": 100 * middle.high,
        "stratified_low": 100 * mean.low,
        "stratified_high": 100 * mean.high,
    }


def value_fields(interval: Interval) -> Line:
    """An accuracy in percent with its interval."""
    return {
        "value": 100 * interval.estimate,
        "low": 100 * interval.low,
        "high": 100 * interval.high,
        "interval": interval.method,
        "seeds": interval.seeds,
        "problems": interval.problems,
        "variance": VARIANCE[interval.method],
    }


def difference_fields(outcomes: Outcomes, reference: Outcomes | None, tested: bool = False) -> Line:
    """The paired difference to the reference in points; empty where the two share no seed.

    `tested`: with its p-value, and the smallest difference that this design would show.
    """
    if reference is None:
        return {}
    difference = outcomes.minus(reference)
    if difference is None:
        return {}
    interval = crossed_bootstrap(difference.shares)
    return {
        "difference_to_sao": 100 * interval.estimate,
        "difference_low": 100 * interval.low,
        "difference_high": 100 * interval.high,
        "difference_interval": interval.method,
        "difference_seeds": interval.seeds,
    } | (tested_fields(difference.shares) if tested else {})


def tested_fields(differences: np.ndarray) -> Line:
    """p-value of paired differences [seeds, problems], and their design's detectable difference in points."""
    return {"p": p_value(differences), "detectable": 100 * detectable_difference(differences)}


def _collapse_lines(runs: list[Run], common: Line, columns: dict[str, str | None]) -> list[Line]:
    """The last evaluation before the collapse, over the seeds that collapsed."""
    collapsed = [run for run in runs if run.collapse is not None]
    if not collapsed:
        return []
    steps = ", ".join(str(run.collapse_step) for run in collapsed)
    note = f"collapsed in {len(collapsed)} of {len(runs)} seeds (at step {steps})"
    lines = []
    for column, band in columns.items():
        outcomes = stack_outcomes(collapsed, Run.before_collapse, band)
        if outcomes is None:
            continue
        fields = value_fields(accuracy_interval(outcomes.shares))
        where = {"runs": " ".join(run.directory for run in collapsed), "note": note}
        lines.append(common | {"measure": BEFORE_COLLAPSE, "column": column} | fields | where)
    return lines
