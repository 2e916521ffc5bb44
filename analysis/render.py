"""One sheet of text cells as Markdown and as LaTeX, beside its data as CSV."""

from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

EMPTY = "\N{EN DASH}"

LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    EMPTY: "--",
}


@dataclass(frozen=True)
class Sheet:
    """A table as a reader sees it: title, header, rows of cells, and lines below it."""

    title: str
    header: list[str]
    rows: list[list[str]]
    footer: list[str] = field(default_factory=list)


def to_markdown(sheet: Sheet) -> str:
    lines = [f"# {sheet.title}", "", _markdown_line(sheet.header), "|" + "---|" * len(sheet.header)]
    lines += [_markdown_line(row) for row in sheet.rows]
    for note in sheet.footer:
        lines += ["", note]
    return "\n".join(lines) + "\n"


def to_latex(sheet: Sheet) -> str:
    """A `table*` with booktabs rules, shrunk to the text width; needs the packages booktabs and graphicx."""
    columns = "l" * len(sheet.header)
    body = [_latex_line(row) for row in sheet.rows]
    notes = [rf"\par\smallskip\footnotesize {latex_escape(note)}" for note in sheet.footer]
    return "\n".join(
        [
            r"\begin{table*}",
            r"\centering",
            rf"\caption{{{latex_escape(sheet.title)}}}",
            r"\resizebox{\textwidth}{!}{%",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            _latex_line(sheet.header),
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}}",
            *notes,
            r"\end{table*}",
            "",
        ]
    )


def latex_escape(text: str) -> str:
    """`text` with each character that LaTeX reads as a command replaced, without Markdown's backquotes."""
    return "".join(LATEX_SPECIAL.get(character, character) for character in text.replace("`", ""))


def write_sheet(stem: Path, data: pd.DataFrame, sheet: Sheet) -> None:
    """Write `<stem>.csv` with the data and `<stem>.md`, `<stem>.tex` with the sheet."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    data.to_csv(stem.with_suffix(".csv"), index=False, float_format="%.6g", lineterminator="\n")
    stem.with_suffix(".md").write_text(to_markdown(sheet), encoding="utf-8")
    stem.with_suffix(".tex").write_text(to_latex(sheet), encoding="utf-8")


def _markdown_line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _latex_line(cells: list[str]) -> str:
    return " & ".join(latex_escape(cell) for cell in cells) + r" \\"
