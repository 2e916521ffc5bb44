"""Table 1 at scales with mathematics benchmarks: one line a row and benchmark, from their evaluations."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.artifacts import Table, TableRow, load_artifacts, row_label
from analysis.evaluations import Cell, Evaluations, read_cell
from analysis.imported import imported_lines
from analysis.load import Logs, Outcomes
from analysis.statistics import accuracy_interval
from analysis.table_data import (
    COLUMNS,
    REFERENCE_ROW,
    Line,
    correct_for_comparisons,
    difference_fields,
    empty_line,
    paper_lines,
    value_fields,
)
from evaluation.math.protocol import BENCHMARKS

EVALUATION = "evaluation"
OWN_COLUMNS = (
    "seeds_planned",
    "runs_per_problem",
    "undecided",
    "data",
    "revision",
    "patch_set",
    "max_tokens",
    "max_turns",
)
EVALUATION_COLUMNS = (*COLUMNS, *OWN_COLUMNS)
OUR_LABELS = {"base_python": "Base w/ python", "base_no_python": "Base w/o python"}
"""The paper's names of these rows are those of its model."""

NO_PAIR = f"no difference: {REFERENCE_ROW} has no complete evaluation of the same seed"
NOTHING_TO_RESAMPLE = f"no difference: all outcomes differ alike from those of {REFERENCE_ROW}"
NOT_COMPARABLE = f"no difference: other problems, corrections or limits than those of {REFERENCE_ROW}"


def build_evaluation_table(
    logs: Logs, evaluations: Evaluations, name: str, only: str | None = None
) -> pd.DataFrame:
    """One line a row, measure and benchmark with `EVALUATION_COLUMNS`; values and bounds in percent.

    `only` names the one row to build. Imported rows come last, as `row@scale`, and enter no difference.
    """
    table = load_artifacts().tables[name]
    lines = []
    for row in table_rows(table, evaluations):
        if only in (None, row.row):
            ours = [] if _is_left_out(row, evaluations) else _our_lines(logs, evaluations, table, row)
            shared: Line = {"table": name, "row": row.row, "kind": row.kind}
            lines += [_empty() | shared | line for line in paper_lines(name, table, row) + ours]
    if only is None:
        correct_for_comparisons(lines)
    lines += [_empty() | {"table": name} | line for line in imported_lines(logs.imported, table, only)]
    return pd.DataFrame(lines, columns=list(EVALUATION_COLUMNS))


def table_rows(table: Table, evaluations: Evaluations) -> list[TableRow]:
    """The table's rows, the other models that were evaluated behind the reference models."""
    listed = [row for row in table.rows if row.kind != "warm_start"]  # here the SFT rows
    names = {row.row for row in listed}
    others = [TableRow(row=row, kind="reference") for row in evaluations.foreign_rows() if row not in names]
    references = [row for row in listed if row.kind == "reference"]
    return [*references, *others, *(row for row in listed if row.kind != "reference")]


def benchmark_names(table: Table) -> dict[str, str]:
    """The table's benchmarks: names of their evaluations by the paper's names."""
    names = {benchmark.published: name for name, benchmark in BENCHMARKS.items()}
    return {published: names[published] for published in table.benchmarks}


def _is_left_out(row: TableRow, evaluations: Evaluations) -> bool:
    """Reference models are shown where somebody evaluated them."""
    return row.kind == "reference" and not evaluations.of(row.row)


def _empty() -> Line:
    numbers = ("seeds_planned", "runs_per_problem", "max_tokens", "max_turns")
    return {
        **empty_line(),
        **dict.fromkeys(OWN_COLUMNS, ""),
        **dict.fromkeys(numbers, pd.NA),
        "undecided": np.nan,
    }


def _our_lines(logs: Logs, evaluations: Evaluations, table: Table, row: TableRow) -> list[Line]:
    sao = next(entry for entry in table.rows if entry.row == REFERENCE_ROW)
    lines = []
    for published, benchmark in benchmark_names(table).items():
        cell = read_cell(logs, evaluations, row, benchmark)
        line: Line = {
            "label": OUR_LABELS.get(row.row, row_label(row.row)),
            "measure": EVALUATION,
            "column": published,
            "status": status_text(row, cell),
            "note": cell.status.note if _says_more(cell) else "",
            "seeds": cell.status.finished,
            "seeds_planned": cell.status.planned if row.kind == "run" else 1,
        }
        if cell.outcomes is not None:
            reference = None if row == sao else read_cell(logs, evaluations, sao, benchmark)
            line |= _measured_fields(logs, cell) | _compared_fields(row, cell, cell.outcomes, reference, line)
        lines.append(line)
    return lines


def status_text(row: TableRow, cell: Cell) -> str:
    """How many seeds count, or in a word why none does: `2 of 3 seeds`, `not run`, `failed`."""
    if cell.outcomes is None:
        words = {reason.split(":")[0] for reason in cell.reasons.values()}
        return words.pop() if len(words) == 1 else f"{cell.status.seeds} seeds"
    return f"{cell.status.seeds} seeds" if row.kind == "run" else "one policy"


def _says_more(cell: Cell) -> bool:
    """Whether the reasons hold more than the status does."""
    return cell.outcomes is not None or len(set(cell.reasons.values())) > 1 or ":" in cell.status.note


def _measured_fields(logs: Logs, cell: Cell) -> Line:
    assert cell.outcomes is not None
    spec = cell.complete[0].spec
    return {
        **value_fields(accuracy_interval(cell.outcomes.shares)),
        "step": spec["step"],
        "runs_per_problem": cell.runs,
        "undecided": float(np.mean([summary["undecided"] for summary in cell.summaries])),
        "data": spec["data"]["source"],
        "revision": spec["data"].get("revision") or "",
        "patch_set": spec["data"]["patch_set"] or "",
        "max_tokens": spec["protocol"]["max_tokens"],
        "max_turns": spec["protocol"]["max_turns"],
        "runs": " ".join(one.path.relative_to(logs.folder).as_posix() for one in cell.complete),
    }


def _compared_fields(
    row: TableRow, cell: Cell, outcomes: Outcomes, reference: Cell | None, line: Line
) -> Line:
    """The difference to the reference row, paired by seed and problem, or a note that says why there is none.

    A row without training is one policy, which stands against every seed of the reference row.
    """
    if reference is None:
        return {}
    notes = [str(line["note"])] if line["note"] else []
    if reference.outcomes is None:
        return {"note": "; ".join([*notes, NO_PAIR])}
    if cell.measured != reference.measured:
        return {"note": "; ".join([*notes, NOT_COMPARABLE])}
    if row.kind != "run":
        outcomes = _for_each_seed(outcomes, reference.outcomes.seeds)
    fields = difference_fields(outcomes, reference.outcomes, tested=True)
    if fields and fields["difference_low"] == fields["difference_high"]:
        return {
            "note": "; ".join([*notes, NOTHING_TO_RESAMPLE])
        }  # an interval of no width would claim too much
    if not fields:
        notes.append(NO_PAIR)
    elif row.kind == "run" and fields["difference_seeds"] != len(outcomes.seeds):
        notes.append(f"difference on the {fields['difference_seeds']} seeds of both rows")
    return fields | {"note": "; ".join(notes)}


def _for_each_seed(outcomes: Outcomes, seeds: Sequence[int]) -> Outcomes:
    return replace(outcomes, seeds=tuple(seeds), shares=np.repeat(outcomes.shares, len(seeds), axis=0))
