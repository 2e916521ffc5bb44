"""Evaluations outside training, on mathematics and SWE benchmarks, where the folder has any."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.load import EVALUATION_DATA, AnalysisError, Logs
from analysis.render import EMPTY
from analysis.report.markup import Linker, TableView, plain
from evaluation.math.protocol import BENCHMARKS
from evaluation.math.store import StoreError, read_evaluation
from evaluation.summary import COLUMNS, summary_line
from evaluation.swe.summary import COLUMNS as SWE_COLUMNS
from evaluation.swe.summary import COMPARISON_COLUMNS, comparison_lines, find_graded, with_paper
from evaluation.swe.summary import summary_line as swe_line


@dataclass(frozen=True)
class EvaluationPage:
    """Tables of the evaluations, by the summaries of mathematics and of SWE-Bench."""

    tables: Sequence[TableView]


def evaluation_page(logs: Logs, linker: Linker) -> EvaluationPage | None:
    """None where the folder holds no evaluation. AnalysisError, naming the file, where one is damaged."""
    folders = sorted(path.parent for path in logs.folder.glob(EVALUATION_DATA))
    mathematics = [folder for folder in folders if folder.name in BENCHMARKS]
    tables = [_mathematics(mathematics, logs, linker)] if mathematics else []
    tables += _swe(logs, linker)
    return EvaluationPage(tables) if tables else None


def _mathematics(folders: Sequence[Path], logs: Logs, linker: Linker) -> TableView:
    try:
        lines = [summary_line(read_evaluation(folder)) for folder in folders]
    except StoreError as error:
        raise AnalysisError(str(error)) from error
    return _summary(lines, COLUMNS, "Mathematics benchmarks", logs, linker)


def _swe(logs: Logs, linker: Linker) -> list[TableView]:
    """Scores of SWE-Bench, and its paired tests where two evaluations can be compared."""
    try:
        found = find_graded(logs.folder / "evaluations")
    except StoreError as error:
        raise AnalysisError(str(error)) from error
    tables = {
        "SWE-Bench": (with_paper(list(map(swe_line, found))), SWE_COLUMNS),
        "SWE-Bench, compared task by task": (comparison_lines(found), COMPARISON_COLUMNS),
    }
    return [_summary(*table, title, logs, linker) for title, table in tables.items() if table[0]]


def _summary(
    lines: Sequence[dict[str, Any]], columns: dict[str, str], title: str, logs: Logs, linker: Linker
) -> TableView:
    """Lines of a summary's CSV without the columns that none fills; below them what each column means."""
    names = [name for name in columns if any(plain(line[name]) != EMPTY for line in lines)]
    rows = [[linker.cell(_place(logs, line, name)) for name in names] for line in lines]
    footer = [linker.text("; ".join(f"{name}: {columns[name]}" for name in names) + ".")]
    return TableView(title, [name.replace("_", " ") for name in names], rows, footer)


def _place(logs: Logs, line: dict[str, Any], name: str) -> str:
    if name == "folder":
        return f"`{Path(line[name]).relative_to(logs.folder).as_posix()}`"
    return f"`{line[name]}`" if name == "row" else plain(line[name])
