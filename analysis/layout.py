"""A table's data as a reader sees it: one line a row, the paper's values beside ours."""

import numpy as np
import pandas as pd

from analysis.artifacts import load_artifacts
from analysis.imported import KIND as IMPORTED
from analysis.load import Logs
from analysis.render import EMPTY, Sheet
from analysis.statistics import RESAMPLES
from analysis.table_data import (
    ALL_TASKS,
    BEFORE_COLLAPSE,
    EARLY,
    LAST,
    PAPER,
    REFERENCE_ROW,
    SCORE,
    WARM_START,
    table_columns,
    task_of,
)


def lay_out(data: pd.DataFrame, logs: Logs, name: str, command: str) -> Sheet:
    """The sheet of table `name`; footnotes hold what the paper's values need said."""
    table = load_artifacts().tables[name]
    first_measure = EARLY if table.early_step else LAST
    columns = list(table_columns(load_artifacts(), table, logs))
    footnotes: dict[str, str] = {}
    header = ["row", *(f"paper: {benchmark} (%)" for benchmark in table.benchmarks)]
    header += [f"{column}, {first_measure} (%)" for column in columns]
    header += [f"{ALL_TASKS}, {LAST} (%)"] if table.early_step else []
    header += ["score: mean of last two (%)"]
    header += [f"difference to sao, {EARLY}"] if table.early_step else []
    header += ["difference to sao, score", "p (Holm)", "detectable", "interquartile mean (%)"]
    header += [f"{BEFORE_COLLAPSE} (%)", "seeds", "CPU-min a run", "notes"]

    rows = []
    for row in table.rows:
        lines = data[data["row"] == row.row]
        if lines.empty:
            continue
        cells = [row_name(lines, row.row)]
        cells += [paper_cell(lines, benchmark, footnotes) for benchmark in table.benchmarks]
        shown = WARM_START if row.kind == "warm_start" else first_measure
        cells += [_value_cell(lines, shown, column) for column in columns]
        cells += [_value_cell(lines, LAST, ALL_TASKS)] if table.early_step else []
        cells += [_value_cell(lines, SCORE, ALL_TASKS)]
        cells += [_difference_cell(lines, EARLY)] if table.early_step else []
        cells += [_difference_cell(lines, SCORE), *_statistics_cells(lines)]
        cells += [_value_cell(lines, BEFORE_COLLAPSE, ALL_TASKS)]
        rows.append([*cells, _seeds_cell(lines), _compute_cell(lines), _notes_cell(lines, row.kind)])
    header, rows = with_imported(data, header, rows, last=3)  # seeds, CPU-minutes and notes
    title = f"{table.place}: {table.title}" if table.place else table.title
    footer = [f"[{mark}] {note}." for note, mark in footnotes.items()]
    footer += [table.remark] if table.remark else []
    return Sheet(
        title,
        header,
        rows,
        [*footer, _how_made(data, logs, task_of(logs, table), command)],
    )


def with_imported(
    data: pd.DataFrame, header: list[str], rows: list[list[str]], last: int
) -> tuple[list[str], list[list[str]]]:
    """The header and rows with a line for each imported row, and columns for its benchmarks.

    These columns stand before the `last` ones, of which the last holds notes.
    """
    imported = data[data["kind"] == IMPORTED]
    if imported.empty:
        return header, rows
    shown = [
        (benchmark, measure) for benchmark in dict.fromkeys(imported["column"]) for measure in (LAST, SCORE)
    ]
    added = [f"{benchmark}, {measure} (%)" for benchmark, measure in shown]
    position = len(header) - last
    rows = [[*row[:position], *[EMPTY] * len(added), *row[position:]] for row in rows]
    for (row, _), lines in imported.groupby(["row", "label"], sort=False):
        values = [_value_cell(lines, measure, benchmark) for benchmark, measure in shown]
        cells = [row_name(lines, str(row)), *[EMPTY] * (position - 1), *values]
        ending = [str(lines["seeds"].max()), *[EMPTY] * (last - 2)] if last > 1 else []
        rows.append([*cells, *ending, "; ".join(dict.fromkeys(lines["note"]))])
    return [*header[:position], *added, *header[position:]], rows


def value_text(value: float, low: float, high: float) -> str:
    """`57.3 [54.0, 60.1]`; without bounds the value alone, a dash without a value."""
    if np.isnan(value):
        return EMPTY
    return f"{value:.1f}" if np.isnan(low) else f"{value:.1f} [{low:.1f}, {high:.1f}]"


def difference_text(value: float, low: float, high: float) -> str:
    """`+7.3 [4.0, 10.1]`, or a dash without a difference."""
    return EMPTY if np.isnan(value) else f"{value:+.1f} [{low:.1f}, {high:.1f}]"


def chance_text(p: float, p_holm: float) -> str:
    """`0.03 (0.09)`: a p-value and its correction; a dash for what is not there."""
    return EMPTY if np.isnan(p) else f"{p:.2g} ({EMPTY if np.isnan(p_holm) else f'{p_holm:.2g}'})"


def points_text(value: float) -> str:
    """Points with one decimal, a dash without a value."""
    return EMPTY if np.isnan(value) else f"{value:.1f}"


def row_name(lines: pd.DataFrame, row: str) -> str:
    """Label and id of a row."""
    return f"{lines['label'].iloc[-1]} (`{row}`)"


def find_line(lines: pd.DataFrame, measure: str, column: str) -> pd.Series | None:
    """The line of one measure and column among those of a row."""
    found = lines[(lines["measure"] == measure) & (lines["column"] == column)]
    return None if found.empty else found.iloc[0]


def paper_cell(lines: pd.DataFrame, benchmark: str, footnotes: dict[str, str]) -> str:
    """The paper's value with the mark of what needs said; `footnotes` takes marks by note."""
    line = find_line(lines, PAPER, benchmark)
    if line is None or np.isnan(line["value"]):
        return EMPTY
    note = line["note"].removeprefix("reference model").lstrip("; ")
    if not note:
        return f"{line['value']:.1f}"
    mark = footnotes.setdefault(note, "abcdefghijklmnopqrstuvwxyz"[len(footnotes)])
    return f"{line['value']:.1f} [{mark}]"


def _value_cell(lines: pd.DataFrame, measure: str, column: str) -> str:
    line = find_line(lines, measure, column)
    return EMPTY if line is None else value_text(line["value"], line["low"], line["high"])


def _difference_cell(lines: pd.DataFrame, measure: str) -> str:
    line = find_line(lines, measure, ALL_TASKS)
    if line is None:
        return EMPTY
    return difference_text(line["difference_to_sao"], line["difference_low"], line["difference_high"])


def _statistics_cells(lines: pd.DataFrame) -> list[str]:
    """p-value with Holm's correction, detectable difference and interquartile mean of a row's score."""
    line = find_line(lines, SCORE, ALL_TASKS)
    if line is None:
        return [EMPTY] * 3
    middle = (line["interquartile_mean"], line["interquartile_low"], line["interquartile_high"])
    return [chance_text(line["p"], line["p_holm"]), points_text(line["detectable"]), value_text(*middle)]


def _seeds_cell(lines: pd.DataFrame) -> str:
    counted = [status for status in lines["status"] if status.endswith(" seeds")]
    return counted[0].removesuffix(" seeds") if counted else EMPTY


def _compute_cell(lines: pd.DataFrame) -> str:
    minutes = lines["cpu_minutes"].dropna()
    if minutes.empty:
        return EMPTY
    return f"{minutes.iloc[0]:.1f}" if minutes.iloc[0] >= 0.05 else "< 0.1"


def _notes_cell(lines: pd.DataFrame, kind: str) -> str:
    if kind == "reference":
        return "reference model"
    ours = lines[lines["measure"] != PAPER]
    if kind != "run":
        return str(ours["status"].iloc[0])
    paired = set(ours["difference_seeds"].dropna())
    notes = list(dict.fromkeys(note for note in ours["note"] if note))
    finished = set(ours.loc[ours["measure"] != BEFORE_COLLAPSE, "seeds"].dropna())
    if paired and paired != finished:
        notes.append(f"difference on the {min(paired)} seeds of both rows")
    if not paired and max(finished) and lines["row"].iloc[0] != REFERENCE_ROW:
        notes.append(f"no difference: {REFERENCE_ROW} has no finished run of the same seed")
    return "; ".join(notes)


def _how_made(data: pd.DataFrame, logs: Logs, task: str, command: str) -> str:
    """The line below every table: scale, task, seeds, problems, interval, command."""
    run = data[(data["kind"] == "run") & (data["measure"] != BEFORE_COLLAPSE)]
    counts = sorted(set(run["seeds"].dropna()) - {0})
    seeds = " or ".join(map(str, counts)) or "none"
    problems = run.loc[run["column"] == ALL_TASKS, "problems"].dropna()
    return (
        f"Scale {logs.scale}, task {task or 'not started'}, finished seeds a row: {seeds}, "
        f"{'no' if problems.empty else problems.max()} held-out problems. Values are percent of problems "
        "solved, the mean over seeds with its 95% interval: crossed bootstrap over seeds and problems "
        f"({RESAMPLES:,} resamples; with fewer than 3 seeds over problems only). {variance_text(data)} "
        f"Differences are in points, paired by seed and problem. {tests_text(data)} Interquartile mean: "
        "middle half of the scores of all seeds in all difficulty bands, interval over seeds and over "
        "problems drawn within the bands; the mean's interval made the same way is in the CSV "
        f"(stratified_low, stratified_high). Regenerate: `{command}`"
    )


def tests_text(data: pd.DataFrame) -> str:
    """What the columns of p and of the detectable difference say, and how many comparisons the table has."""
    counts = data["comparisons"].dropna()
    number = f"the {counts.iloc[0]} comparisons" if len(counts) else "the comparisons"
    return (
        "p: the error at which the interval of the difference would just touch 0 (fewer than 3 seeds: sign "
        f"flips over problems); Holm: corrected for {number} of this table. Detectable: the smallest true "
        "difference in points that the design would show in 80% of repeats, at the spread of its own runs."
    )


def variance_text(data: pd.DataFrame) -> str:
    """Whose variance the intervals of a table show, and n."""
    ours = data[(data["variance"] != "") & (data["measure"] != WARM_START)]
    if ours.empty:
        return "Variance shown: none."
    said = []
    for variance, lines in ours.groupby("variance"):
        counts = " or ".join(map(str, sorted(set(lines["seeds"]))))
        problems = sorted(set(lines["problems"]))
        span = str(problems[-1]) if len(problems) == 1 else f"{problems[0]} to {problems[-1]}"
        seeds = "seed" if counts == "1" else "seeds"
        said.append(f"{variance} (n = {counts} {seeds} x {span} problems)")
    return f"Variance shown: {'; '.join(said)}."
