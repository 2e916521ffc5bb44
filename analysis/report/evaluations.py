"""Evaluations outside training, on mathematics and SWE benchmarks, where the folder has any."""

import json
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

SHOWN_IN_WORDS = 200


@dataclass(frozen=True)
class EvaluationPage:
    """Tables of the evaluations: mathematics by its summary, other benchmarks by what their folders state."""

    tables: Sequence[TableView]


def evaluation_page(logs: Logs, linker: Linker) -> EvaluationPage | None:
    """None where the folder holds no evaluation. AnalysisError, naming the file, where one is damaged."""
    folders = sorted(path.parent for path in logs.folder.glob(EVALUATION_DATA))
    mathematics = [folder for folder in folders if folder.name in BENCHMARKS]
    others = [folder for folder in folders if folder.name not in BENCHMARKS]
    tables = []
    if mathematics:
        tables.append(_mathematics(mathematics, logs, linker))
    if others:
        tables.append(_others(others, logs, linker))
    return EvaluationPage(tables) if tables else None


def _mathematics(folders: Sequence[Path], logs: Logs, linker: Linker) -> TableView:
    try:
        lines = [summary_line(read_evaluation(folder)) for folder in folders]
    except StoreError as error:
        raise AnalysisError(str(error)) from error
    return _summary(lines, COLUMNS, "Mathematics benchmarks", logs, linker)


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


def _others(folders: Sequence[Path], logs: Logs, linker: Linker) -> TableView:
    """One line an evaluation: its place, whether it is sealed, and what its seal and summary state."""
    lines = []
    for folder in folders:
        seed, step = folder.parents[1].name.removeprefix("seed"), folder.parent.name.removeprefix("step")
        line = {"row": f"`{folder.parents[2].name}`", "seed": seed, "step": step, "benchmark": folder.name}
        sealed = (folder / "seal.json").is_file()
        line["status"] = "sealed" if sealed else "not sealed"
        for name in ("seal.json", "summary.json"):
            line |= _plain_values(folder / name)
        line["folder"] = f"`{folder.relative_to(logs.folder).as_posix()}`"
        lines.append(line)
    header = [*dict.fromkeys(name for line in lines for name in line if name != "folder"), "folder"]
    rows = [[linker.cell(line.get(name, EMPTY)) for name in header] for line in lines]
    return TableView("Other benchmarks", [name.replace("_", " ") for name in header], rows)


def _plain_values(path: Path) -> dict[str, str]:
    """Numbers and short texts of a JSON file's first level; none where it is not there."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise AnalysisError(
            f"{path}: is not valid JSON: {error}; restore the file or evaluate again"
        ) from error
    if not isinstance(content, dict):
        raise AnalysisError(f"{path}: holds no JSON object; restore the file or evaluate again")
    return {
        name: plain(value)
        for name, value in content.items()
        if isinstance(value, (int, float, str)) and len(str(value)) < SHOWN_IN_WORDS
    }
