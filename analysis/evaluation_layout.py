"""Table 1 at scales with mathematics benchmarks, as a reader sees it: the paper's values beside ours."""

from collections.abc import Iterable

import pandas as pd

from analysis.artifacts import Table, load_artifacts
from analysis.evaluation_table import EVALUATION, benchmark_names
from analysis.imported import KIND as IMPORTED
from analysis.layout import (
    chance_text,
    difference_text,
    find_line,
    paper_cell,
    row_name,
    tests_text,
    value_text,
    variance_text,
    with_imported,
)
from analysis.load import Logs
from analysis.render import EMPTY, Sheet
from analysis.statistics import RESAMPLES
from analysis.table_data import REFERENCE_ROW
from evaluation.math.protocol import BENCHMARKS, TEMPERATURE, TOP_P
from evaluation.summary import origin

SYNTHETIC = "synthetic"
GENERATED = (
    "Synthetic problems are generated here, under the names and with the sizes of the benchmarks; the "
    "paper's values are of the published problems and of another model."
)


def lay_out_evaluations(data: pd.DataFrame, logs: Logs, name: str, command: str) -> Sheet:
    """The sheet of an evaluated table; footnotes hold what the paper's values need said."""
    table = load_artifacts().tables[name]
    footnotes: dict[str, str] = {}
    rows = []
    for row in dict.fromkeys(data.loc[data["kind"] != IMPORTED, "row"]):
        lines = data[data["row"] == row]
        cells = [row_name(lines, row)]
        for published in table.benchmarks:
            ours = find_line(lines, EVALUATION, published)
            cells += [paper_cell(lines, published, footnotes), *_our_cells(ours)]
        rows.append([*cells, _samples_cell(lines, table), _notes_cell(lines)])
    header, rows = with_imported(data, _header(data, table), rows, last=2)  # seeds and notes
    footer = [f"[{mark}] {note}." for note, mark in footnotes.items()]
    footer += [GENERATED] if SYNTHETIC in set(data["data"]) else []
    footer += [_measured(data, table), _how_made(data, logs, command)]
    title = f"{table.place}: {table.title}" if table.place else table.title
    return Sheet(title, header, rows, footer)


def _header(data: pd.DataFrame, table: Table) -> list[str]:
    header = ["row"]
    for published, benchmark in benchmark_names(table).items():
        title = BENCHMARKS[benchmark].title
        sources = set(data.loc[data["column"] == published, "data"]) - {""}
        kind = ", synthetic" if sources == {SYNTHETIC} else ""
        header += [
            f"paper: {title} (%)",
            f"ours: {title}{kind} (%)",
            f"{title}: difference to {REFERENCE_ROW}",
        ]
    return [*header, "seeds x runs", "notes"]


def _our_cells(line: pd.Series | None) -> list[str]:
    """Our value, or why there is none, and its difference to the reference row."""
    if line is None:
        return [EMPTY, EMPTY]
    if pd.isna(line["value"]):
        return [line["status"], EMPTY]
    value = value_text(line["value"], line["low"], line["high"])
    partial = f" ({line['status']})" if line["seeds"] < line["seeds_planned"] else ""
    difference = difference_text(line["difference_to_sao"], line["difference_low"], line["difference_high"])
    if not pd.isna(line["p"]):
        difference += f"; p (Holm) {chance_text(line['p'], line['p_holm'])}"
    return [value + partial, difference]


def _samples_cell(lines: pd.DataFrame, table: Table) -> str:
    """`3 x 16` a benchmark, in their order."""
    ours = [find_line(lines, EVALUATION, published) for published in table.benchmarks]
    counts = [
        EMPTY
        if line is None or pd.isna(line["runs_per_problem"])
        else f"{line['seeds']} x {line['runs_per_problem']}"
        for line in ours
    ]
    return EMPTY if set(counts) == {EMPTY} else ", ".join(counts)


def _notes_cell(lines: pd.DataFrame) -> str:
    """Each note once, with the benchmarks it holds for where others differ."""
    ours = lines[lines["measure"] == EVALUATION]
    notes = ["reference model"] if lines["kind"].iloc[0] == "reference" else []
    titles = _titles()
    for note in dict.fromkeys(note for note in ours["note"] if note):
        benchmarks = [titles[column] for column in ours.loc[ours["note"] == note, "column"]]
        notes.append(note if len(benchmarks) == len(ours) else f"{', '.join(benchmarks)}: {note}")
    if undecided := [
        f"{titles[line['column']]} {line['undecided']:.1f}%"
        for line in ours.to_dict("records")
        if line["undecided"] > 0
    ]:
        notes.append(f"undecided answers, not counted as right: {', '.join(undecided)}")
    return "; ".join(notes)


def _titles() -> dict[str, str]:
    return {one.published: one.title for one in BENCHMARKS.values() if one.published is not None}


def _measured(data: pd.DataFrame, table: Table) -> str:
    """Problems, corrections and limits that the values stand on."""
    ours = data[data["value"].notna() & (data["measure"] == EVALUATION)]
    if ours.empty:
        return "No evaluation is complete."
    parts = []
    for published, benchmark in benchmark_names(table).items():
        lines = ours[ours["column"] == published].to_dict("records")
        parts += _by_rows((origin(benchmark, line["data"], line["patch_set"]), line["row"]) for line in lines)
    limits = [
        (f"At most {line['max_tokens']:,} tokens and {line['max_turns']} turns a sample.", line["row"])
        for line in ours.to_dict("records")
    ]
    return " ".join([*parts, *_by_rows(limits), f"Temperature {TEMPERATURE:g}, top-p {TOP_P:g}."])


def _by_rows(said: Iterable[tuple[str, str]]) -> list[str]:
    """Each text once; where there are several, with the rows that it is true of."""
    rows: dict[str, dict[str, None]] = {}
    for text, row in said:
        rows.setdefault(text, {})[row] = None
    if len(rows) == 1:
        return list(rows)
    return [f"{text.rstrip('.')} ({', '.join(there)})." for text, there in rows.items()]


def _detectable_range(data: pd.DataFrame) -> str:
    found = data["detectable"].dropna()
    if found.empty:
        return "No row has two seeds in common with another, which a detectable difference needs."
    return f"Detectable here: {found.min():.1f} to {found.max():.1f} points, each in the CSV."


def _how_made(data: pd.DataFrame, logs: Logs, command: str) -> str:
    return (
        f"Scale {logs.scale}. Values are percent of samples right, runs averaged within a problem, the mean "
        "over seeds and problems with its 95% interval: crossed bootstrap over seeds and problems "
        f"({RESAMPLES:,} resamples; with fewer than 3 seeds over problems only). {variance_text(data)} "
        "A value stands on all samples of the protocol; seeds x runs of a problem are listed by benchmark. "
        "Differences are in points, paired by seed and problem; a row without training is one policy, which "
        f"stands against each seed of {REFERENCE_ROW}. {tests_text(data)} "
        f"{_detectable_range(data)} Regenerate: `{command}`"
    )
