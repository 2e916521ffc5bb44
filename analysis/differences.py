"""Where a file differs from what it should be: the line, and in tables the cell, with both values."""

import csv
import re
from html import unescape
from itertools import zip_longest

SHOWN, BEFORE = 80, 30  # characters of a long cell, and how many of them stand before the difference
SEPARATORS = {".md": "|", ".tex": "&"}
MATPLOTLIB = re.compile(r"Matplotlib v([\w.+]+)")


def first_difference(found: bytes, made: bytes, suffix: str) -> str:
    """Both values at the first line that differs, and how many do; `suffix` says how a line has cells.

    For pictures, which are no text, only that they differ. The two must differ.
    """
    if suffix not in {".csv", ".md", ".tex", ".html"}:
        return "is not the picture that the runs give"
    pairs = list(zip_longest(_lines(found), _lines(made)))
    places = [place for place, (ours, theirs) in enumerate(pairs) if ours != theirs]
    ours, theirs = pairs[places[0]]
    header = _cells(pairs[0][1] or "", suffix) if suffix == ".csv" else []
    where = f"line {places[0] + 1}"
    if ours is None:
        return f"{where}: is missing, the runs give {_short(theirs, '')}"
    if theirs is None:
        return f"{where}: holds {_short(ours, '')}, the runs give no such line"
    column, ours, theirs = _first_cell(ours, theirs, suffix)
    where += f", column {header[column]}" if column is not None and column < len(header) else ""
    more = f" ({len(places)} lines differ)" if len(places) > 1 else ""
    return f"{where}: holds {_short(ours, theirs)}, the runs give {_short(theirs, ours)}{more}"


def stated_command(text: str, module: str) -> str:
    """The command of `module` that a Markdown or HTML file says it was made with; empty for none."""
    match = re.search(rf"python -m {re.escape(module)} [^`<\n]+", text)
    return unescape(match[0]).strip() if match else ""


def stated_matplotlib(svg: str) -> str:
    """The version of Matplotlib that drew an SVG; empty where it does not say."""
    match = MATPLOTLIB.search(svg)
    return match[1] if match else ""


def _lines(content: bytes) -> list[str]:
    return content.decode(errors="backslashreplace").split("\n")


def _cells(line: str, suffix: str) -> list[str]:
    if suffix == ".csv":
        return next(csv.reader([line]), [])
    return line.split(SEPARATORS[suffix]) if suffix in SEPARATORS else [line]


def _first_cell(ours: str, theirs: str, suffix: str) -> tuple[int | None, str, str]:
    """Column and both values of the first cell that differs; the whole lines where they have other cells."""
    cells, others = _cells(ours, suffix), _cells(theirs, suffix)
    if len(cells) == len(others) > 1:
        for column, (cell, other) in enumerate(zip(cells, others, strict=True)):
            if cell != other:
                return column, cell.strip(" "), other.strip(" ")
    return None, ours, theirs


def _short(text: str | None, other: str | None) -> str:
    """`text` in quotes; of a long one what stands around its difference to `other`."""
    text = text or ""
    pairs = enumerate(zip(text, other or "", strict=False))
    same = next((place for place, (ours, theirs) in pairs if ours != theirs), 0)
    start = max(same - BEFORE, 0) if len(text) > SHOWN else 0
    cut = text[start : start + SHOWN]
    return ("..." if start else "") + repr(cut) + ("..." if start + SHOWN < len(text) else "")
