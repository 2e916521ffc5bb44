"""Table 2: one line a row, from its evaluations on SWE-Bench Verified."""

import numpy as np
import pandas as pd

from analysis.artifacts import TableRow, load_artifacts, row_label
from analysis.evaluation_table import EVALUATION
from analysis.imported import imported_lines
from analysis.load import Logs
from analysis.swe_evaluations import (
    PUBLISHED,
    NotComparable,
    SweEvaluations,
    SweRow,
    difference,
    read_row,
    software_rows,
)
from analysis.table_data import COLUMNS, Line, correct_for_comparisons, empty_line, paper_lines, value_fields
from evaluation.swe.comparisons import REFERENCE_ROW
from evaluation.swe.outcomes import EMPTY_PATCH, MANY_EMPTY_PATCHES
from evaluation.swe.summary import summary_line

NUMBERS = ("seeds_planned", "resolved", "only_row", "only_sao", "max_tokens", "max_turns")
ERRORS = ("se_paired", "se_unpaired")
TEXTS = ("backend", "workspace", "data")
SWE_COLUMNS = (*COLUMNS, *NUMBERS, *ERRORS, *TEXTS)

NO_PAIR = f"no difference: {REFERENCE_ROW} has no complete evaluation of the same seed"
NOT_COMPARABLE = f"no difference: other tasks, limits or graders than those of {REFERENCE_ROW}"


def build_swe_table(
    logs: Logs, evaluations: SweEvaluations, name: str, only: str | None = None
) -> pd.DataFrame:
    """One line a row and measure with `SWE_COLUMNS`; values, bounds and errors in percent or points.

    `only` names the one row to build. `difference_to_sao` and what belongs to it are to the row of SAO that
    the table holds.
    """
    table = load_artifacts().tables[name]
    reference = read_row(logs, evaluations, next(row for row in table.rows if row.row == REFERENCE_ROW))
    lines = []
    for row in software_rows(table, evaluations):
        if only in (None, row.row):
            shared: Line = {"table": name, "row": row.row, "kind": row.kind}
            ours = _our_line(logs, row, read_row(logs, evaluations, row), reference)
            lines += [_empty() | shared | line for line in [*paper_lines(name, table, row), ours]]
    if only is None:
        correct_for_comparisons(lines)
    lines += [_empty() | {"table": name} | line for line in imported_lines(logs.imported, table, only)]
    return pd.DataFrame(lines, columns=list(SWE_COLUMNS))


def _empty() -> Line:
    return {
        **empty_line(),
        **dict.fromkeys(NUMBERS, pd.NA),
        **dict.fromkeys(ERRORS, np.nan),
        **dict.fromkeys(TEXTS, ""),
    }


def _our_line(logs: Logs, row: TableRow, found: SweRow, reference: SweRow) -> Line:
    line: Line = {
        "label": row_label(row.row),
        "measure": EVALUATION,
        "column": PUBLISHED,
        "status": status_text(found),
        "note": "; ".join([found.status.note] * _says_more(found) + _many_empty_patches(found)),
        "seeds": found.status.finished,
        "seeds_planned": found.status.planned,
    }
    if found.interval is None:
        return line
    line |= value_fields(found.interval) | _measured_fields(logs, found)
    return line if row.row == REFERENCE_ROW else line | _compared_fields(found, reference, str(line["note"]))


def status_text(found: SweRow) -> str:
    """How many seeds count, or why none does: `1 of 1 seeds`, `490 of 500 tasks played`, `not run`."""
    if not found.complete:
        reasons = {reason.split(":")[0] for reason in found.reasons.values()}
        return reasons.pop() if len(reasons) == 1 else f"{found.status.seeds} seeds"
    if found.trained:
        return f"{found.status.seeds} seeds"
    return "one policy" if len(found.complete) == 1 else f"one policy, {len(found.complete)} runs"


def _says_more(found: SweRow) -> bool:
    """Whether the reasons hold more than the status does."""
    return bool(found.complete) or len(set(found.reasons.values())) > 1 or ":" in found.status.note


def _many_empty_patches(found: SweRow) -> list[str]:
    """A word on each evaluation of which more than a tenth handed nothing in."""
    counted = [(graded.name, graded.counts[EMPTY_PATCH], len(graded.scores)) for graded in found.complete]
    return [
        f"{name}: {empty} of {tasks} patches are empty, so that a fault of the run is likely"
        for name, empty, tasks in counted
        if empty > MANY_EMPTY_PATCHES * tasks
    ]


def _measured_fields(logs: Logs, found: SweRow) -> Line:
    summaries = [summary_line(graded) for graded in found.complete]
    first = summaries[0]
    return {
        "step": first["step"],
        "resolved": sum(summary["resolved"] for summary in summaries),
        "runs": " ".join(graded.path.relative_to(logs.folder).as_posix() for graded in found.complete),
        **{name: first[name] for name in ("max_tokens", "max_turns", "backend", "data")},
        "workspace": ", ".join(sorted({summary["workspace"] for summary in summaries})),
    }


def _compared_fields(found: SweRow, reference: SweRow, note: str) -> Line:
    """The difference to SAO's row with its test and both standard errors, or why there is none."""
    notes = [note] if note else []
    try:
        compared = difference(found, reference)
    except NotComparable:
        return {"note": "; ".join([*notes, NOT_COMPARABLE])}
    if compared is None:
        return {"note": "; ".join([*notes, NO_PAIR])}
    interval = compared.interval
    return {
        "difference_to_sao": 100 * interval.estimate,
        "difference_low": 100 * interval.low,
        "difference_high": 100 * interval.high,
        "difference_interval": interval.method,
        "difference_seeds": len(compared.seeds),
        "se_paired": 100 * compared.se_paired,
        "se_unpaired": 100 * compared.se_unpaired,
        "only_row": compared.only_first,
        "only_sao": compared.only_second,
        "p": compared.p,
        "detectable": 100 * interval.detectable,
    }
