"""Table 2 as a reader sees it: the paper's values beside ours, paired tests with both standard errors."""

import pandas as pd

from analysis.artifacts import load_artifacts
from analysis.evaluation_table import EVALUATION
from analysis.layout import (
    chance_text,
    difference_text,
    find_line,
    paper_cell,
    points_text,
    row_name,
    value_text,
    variance_text,
    with_imported,
)
from analysis.load import Logs
from analysis.render import EMPTY, Sheet
from analysis.statistics import EXACT, RESAMPLES
from analysis.swe_evaluations import OFFICIAL_BACKEND, PUBLISHED, VERIFIED
from evaluation.math.protocol import TEMPERATURE, TOP_P
from evaluation.swe.comparisons import REFERENCE_ROW
from evaluation.swe.protocol import BENCHMARKS


def lay_out_swe(data: pd.DataFrame, logs: Logs, name: str, command: str) -> Sheet:
    """The sheet of the table; footnotes hold what the paper's values need said."""
    table = load_artifacts().tables[name]
    title = BENCHMARKS[VERIFIED].title
    header = ["row", f"paper: {title} (%)", f"ours: {title} (%)", "resolved tasks"]
    header += [f"difference to {REFERENCE_ROW}", "p, exact McNemar (Holm)"]
    header += ["paired standard error", "unpaired", f"only this row + only {REFERENCE_ROW}", "notes"]
    footnotes: dict[str, str] = {}
    rows = []
    for row in dict.fromkeys(data["row"]):
        lines = data[data["row"] == row]
        ours = find_line(lines, EVALUATION, PUBLISHED or "")
        if ours is not None:
            cells = [row_name(lines, row), paper_cell(lines, PUBLISHED or "", footnotes)]
            rows.append([*cells, *_our_cells(ours), *_compared_cells(ours), str(ours["note"])])
    header, rows = with_imported(data, header, rows, last=1)
    footer = [f"[{mark}] {note}." for note, mark in footnotes.items()]
    footer += [_measured(data), _how_made(data, logs, command)]
    return Sheet(f"{table.place}: {table.title}" if table.place else table.title, header, rows, footer)


def _our_cells(line: pd.Series) -> list[str]:
    """Our value with its interval, or why there is none, and the tasks it stands on."""
    if pd.isna(line["value"]):
        return [str(line["status"]), EMPTY]
    partial = f" ({line['status']})" if line["seeds"] < line["seeds_planned"] else ""
    several = "" if line["seeds"] == 1 else f"{line['seeds']} x "
    tasks = f"{line['resolved']} of {several}{line['problems']}"
    return [value_text(line["value"], line["low"], line["high"]) + partial, tasks]


def _compared_cells(line: pd.Series) -> list[str]:
    if pd.isna(line["difference_to_sao"]):
        return [EMPTY] * 5
    return [
        difference_text(line["difference_to_sao"], line["difference_low"], line["difference_high"]),
        chance_text(line["p"], line["p_holm"]),
        f"{line['se_paired']:.2f}",
        f"{line['se_unpaired']:.2f}",
        f"{line['only_row']} + {line['only_sao']}",
    ]


def _measured(data: pd.DataFrame) -> str:
    """Limits and graders that the values stand on."""
    ours = data[data["value"].notna() & (data["measure"] == EVALUATION)]
    if ours.empty:
        return "No evaluation is complete: a value stands on all 500 tasks, each with a graded patch."
    said = [
        f"At most {line['max_turns']} turns and {line['max_tokens']:,} tokens a task, worked on over "
        f"{line['workspace']}, graded over {line['backend']}"
        for line in ours.to_dict("records")
    ]
    text = f"{'. '.join(dict.fromkeys(said))}. Temperature {TEMPERATURE:g}, top-p {TOP_P:g}."
    if set(ours["backend"]) - {OFFICIAL_BACKEND}:
        text += f" Only tests graded over {OFFICIAL_BACKEND} ran on the official images."
    return text


def _how_made(data: pd.DataFrame, logs: Logs, command: str) -> str:
    counts = data["comparisons"].dropna()
    number = f"the {counts.iloc[0]} comparisons" if len(counts) else "the comparisons"
    found = data["detectable"].dropna()
    detectable = f" Detectable: {', '.join(map(points_text, found))} points." if len(found) else ""
    return (
        f"Scale {logs.scale}. Values are percent of all 500 tasks resolved, with a 95% interval: {EXACT} "
        "over tasks for one run, of several runs crossed bootstrap over seeds and tasks "
        f"({RESAMPLES:,} resamples; with fewer than 3 seeds over tasks only). {variance_text(data)} "
        "Differences are in points, paired by task (and by seed), with both standard errors: of the same "
        "tasks (paired), and as if the two rows had had other tasks (unpaired). Of one pair of runs the "
        "interval excludes 0 just where McNemar's p is below .05. Holm: corrected for "
        f"{number} of this table.{detectable} Regenerate: `{command}`"
    )
