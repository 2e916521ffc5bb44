"""Text and tables as HTML: rows and runs named in a cell become links to their place in the report."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd
from markupsafe import Markup, escape

from analysis.load import Logs
from analysis.render import EMPTY, Sheet

QUOTED = re.compile(r"`([^`]*)`")
RUN = re.compile(r"runs/(?P<row>\w+)/seed(?P<seed>\d+)")
NUMBER = re.compile(r"[+-]?\d[\d.,]*(e[+-]?\d+)?%?")
LONG_CELL = 40
FEWEST_LINES_TO_FILTER = 8


@dataclass(frozen=True)
class Cell:
    """One cell; `kind` is a class of the style sheet: number, long, or empty for plain text."""

    html: Markup
    kind: str = ""


@dataclass(frozen=True)
class TableView:
    """A table of the page; the first cell of a line heads it. `identifiers` are ids of the lines, if any."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    footer: Sequence[Markup] = ()
    identifiers: Sequence[str] = ()

    @property
    def filtered(self) -> bool:
        return len(self.rows) >= FEWEST_LINES_TO_FILTER

    def is_numeric(self, column: int) -> bool:
        """Whether all cells of a column stand at the right."""
        return bool(self.rows) and all(line[column].kind == "number" for line in self.rows)


@dataclass(frozen=True)
class Linker:
    """Knows what has a place in the report: ids of rows, and of runs by their directory."""

    rows: frozenset[str] = frozenset()
    runs: frozenset[str] = frozenset()
    folders: Mapping[str, str] = field(default_factory=dict)

    def text(self, text: str) -> Markup:
        """`text` as HTML; what stands in backquotes as code, linked where it is a row or a run."""
        parts: list[Markup] = []
        end = 0
        for match in QUOTED.finditer(text):
            parts += [escape(text[end : match.start()]), self.name(match.group(1))]
            end = match.end()
        return Markup("").join([*parts, escape(text[end:])])

    def name(self, name: str) -> Markup:
        """A row's id or a run's directory as a link, anything else as code."""
        code = Markup("<code>{}</code>").format(name)
        if name in self.rows:
            return Markup('<a href="#{}">{}</a>').format(row_id(name), code)
        if name in self.runs:
            return Markup('<a href="#{}">{}</a>').format(run_id(name), code)
        return code

    def runs_of(self, directories: str) -> Markup:
        """Links to runs whose directories stand in one text, apart by spaces: seeds behind each row."""
        rows: dict[str, list[Markup]] = {}
        others = []
        for directory in directories.split():
            match = RUN.fullmatch(directory)
            if match is None or directory not in self.runs:
                others.append(self.name(directory))
                continue
            seed = Markup('<a href="#{}" aria-label="{}">{}</a>').format(
                run_id(directory), directory, match["seed"]
            )
            rows.setdefault(match["row"], []).append(seed)
        seeds = [
            Markup("<code>{}</code> seeds {}").format(row, Markup(", ").join(links))
            for row, links in rows.items()
        ]
        return Markup("; ").join([*seeds, *others])

    def sheet(self, sheet: Sheet, head: Callable[[Sequence[str]], Markup] | None = None) -> TableView:
        """A sheet as table; `head` makes the first cell from a line's texts."""
        rows = []
        for line in sheet.rows:
            cells = [self.cell(text) for text in line]
            rows.append([Cell(head(line)), *cells[1:]] if head else cells)
        return TableView(sheet.title, sheet.header, rows, [self.text(note) for note in sheet.footer])

    def frame(self, data: pd.DataFrame, caption: str) -> TableView:
        """The data of a table as its CSV has it, runs linked."""
        rows = [
            [
                Cell(self.runs_of(str(value)), "long") if name == "runs" else self.cell(plain(value))
                for name, value in line.items()
            ]
            for line in data.to_dict("records")
        ]
        return TableView(caption, [str(column).replace("_", " ") for column in data.columns], rows)

    def cell(self, text: str) -> Cell:
        kind = "number" if is_number(text) else "long" if len(text) > LONG_CELL else ""
        return Cell(self.text(text), kind)


def linker_of(logs: Logs, folders: Mapping[str, str]) -> Linker:
    """Links to every row and run of the logs; `folders` are the runs' folders relative to the report."""
    runs = [run.directory for seeds in logs.runs.values() for run in seeds.values()]
    return Linker(frozenset(logs.runs), frozenset(runs), folders)


def row_id(row: str) -> str:
    return f"row-{row}"


def run_id(directory: str) -> str:
    """`run-sao-0` of `runs/sao/seed0`; other directories keep their letters and digits."""
    match = RUN.fullmatch(directory)
    if match:
        return f"run-{match['row']}-{match['seed']}"
    return "run-" + re.sub(r"[^\w-]+", "-", directory).strip("-")


def is_number(text: str) -> bool:
    """Whether a cell is to stand at the right: a number, perhaps with an interval, or nothing."""
    first = text.split(" [")[0].strip()
    return text == EMPTY or NUMBER.fullmatch(first) is not None


def plain(value: object) -> str:
    """A value as the CSV writes it, a dash where there is none."""
    if pd.isna(value):  # type: ignore[call-overload]
        return EMPTY
    return (f"{value:.6g}" if isinstance(value, float) else str(value)) or EMPTY


def numbered(names: Iterable[str]) -> str:
    """Names in one text, a dash without any."""
    return ", ".join(names) or EMPTY
