"""Pages of the tables, of all comparisons with SAO, and of the checks on the published values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from analysis.artifacts import PUBLISHED_FILE, Table, load_artifacts
from analysis.comparisons import build_comparisons
from analysis.comparisons import lay_out as lay_out_comparisons
from analysis.load import Logs
from analysis.published import make_checks
from analysis.report.drawings import swatch
from analysis.report.markup import QUOTED, Linker, TableView
from analysis.tables import make_table


@dataclass(frozen=True)
class TablePage:
    """A table of the report: the sheet as a reader sees it, and below it its data line by line."""

    identifier: str
    title: str
    view: TableView
    data: TableView | None = None


def table_pages(logs: Logs, linker: Linker, command: Callable[..., str]) -> list[TablePage]:
    """All tables of the artifacts with a row among the logs, then the comparisons with SAO."""
    pages = []
    for name, table in load_artifacts().tables.items():
        if not has_rows(logs, table):
            continue
        data, sheet = make_table(logs, name, command("tables", "tables", "--artifact", name))
        shown = linker.frame(data.drop(columns=["table"]), f"{sheet.title}: the data of {name}.csv")
        pages.append(TablePage(f"table-{name}", sheet.title, linker.sheet(sheet, _head(linker)), shown))
    names = [page.identifier.removeprefix("table-") for page in pages]
    data = build_comparisons(logs, names)
    sheet = lay_out_comparisons(data, logs, command("comparisons", "tables/comparisons"))
    return [*pages, TablePage("table-comparisons", sheet.title, linker.sheet(sheet))]


def has_rows(logs: Logs, table: Table) -> bool:
    """Whether a row of the table was trained, or evaluated where the table is made from evaluations."""
    evaluated = {path.name for path in logs.folder.glob("evaluations/*")} if table.evaluated else set()
    return bool(set(table.run_rows) & logs.runs.keys() or {row.row for row in table.rows} & evaluated)


def published_page(linker: Linker) -> TablePage:
    """What the checks on the published values found."""
    _, sheet = make_checks(PUBLISHED_FILE.parent, "python -m analysis.published --out published")
    return TablePage("published", sheet.title, linker.sheet(sheet))


def _head(linker: Linker) -> Callable[[Sequence[str]], Markup]:
    """Makes the first cell of a line: the row's colour before its name."""

    def head(line: Sequence[str]) -> Markup:
        name = QUOTED.search(line[0])
        known = name is not None and name.group(1) in linker.rows
        mark = swatch(name.group(1)) + Markup(" ") if name is not None and known else Markup("")
        return mark + linker.text(line[0])

    return head
