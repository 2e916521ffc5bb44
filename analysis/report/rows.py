"""Pages of the rows: settings, runs, curves and sample trajectories."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from markupsafe import Markup

from analysis.artifacts import load_artifacts, row_label
from analysis.load import Logs, Run
from analysis.render import EMPTY
from analysis.report.curves import SmallFigure, row_curves
from analysis.report.drawings import swatch
from analysis.report.markup import Cell, Linker, TableView, row_id, run_id
from analysis.report.settings import differences
from analysis.report.trajectories import Samples, row_samples
from analysis.rows import row_status

RUN_HEADER = ("run", "status", "accuracy by step (%)", "score (%)", "collapse", "CPU-min", "digest")


@dataclass(frozen=True)
class RowPage:
    """`seeds` like `2 of 3`, `note` what became of the others; `shown_in` and `claims` are (id, name)."""

    identifier: str
    row: str
    label: str
    mark: Markup
    seeds: str
    note: str
    score: str
    settings: TableView | None
    runs: TableView
    figures: Sequence[SmallFigure]
    not_logged: Sequence[str]
    samples: Sequence[Samples]
    shown_in: Sequence[tuple[str, str]]
    claims: Sequence[tuple[str, str]]


def row_pages(logs: Logs, claims: pd.DataFrame, linker: Linker) -> list[RowPage]:
    """One page a row of the logs, SAO first, then in the order of the artifacts."""
    return [_row_page(logs, row, claims, linker) for row in ordered_rows(logs)]


def ordered_rows(logs: Logs) -> list[str]:
    """Rows of the logs in the order in which tables, figures and claims name them."""
    artifacts = load_artifacts()
    named = ["sao", *(row for table in artifacts.tables.values() for row in table.run_rows)]
    named += [row for figure in artifacts.figures.values() for row in figure.rows]
    return [row for row in dict.fromkeys((*named, *sorted(logs.runs))) if row in logs.runs]


def _row_page(logs: Logs, row: str, claims: pd.DataFrame, linker: Linker) -> RowPage:
    status = row_status(logs, row)
    finished = logs.finished(row)
    figures, missing = row_curves(logs, row) if finished else ([], [])
    scores = [100 * float(run.score().mean()) for run in finished if len(run.correct)]
    artifacts = load_artifacts()
    shown_in = [
        (f"table-{name}", table.place or table.title)
        for name, table in artifacts.tables.items()
        if row in table.run_rows
    ]
    shown_in += [
        (f"figure-{name}", figure.place if figure.place != "Beyond the paper" else figure.title)
        for name, figure in artifacts.figures.items()
        if row in figure.rows
    ]
    return RowPage(
        identifier=row_id(row),
        row=row,
        label=row_label(row),
        mark=swatch(row),
        seeds=status.seeds,
        note=status.note,
        score=f"{sum(scores) / len(scores):.1f}" if scores else EMPTY,
        settings=differences(logs, row, linker),
        runs=_runs_table(logs, row, linker.folders),
        figures=figures,
        not_logged=missing,
        samples=row_samples(finished),
        shown_in=shown_in,
        claims=_claims_of(row, claims),
    )


def _claims_of(row: str, claims: pd.DataFrame) -> list[tuple[str, str]]:
    """(id, name with verdict) of the claims that rest on the row."""
    found = []
    for claim, line in zip(load_artifacts().claims, claims.to_dict("records"), strict=True):
        if row in claim.rows:
            name = f"{claim.claim} {claim.part}".strip()
            found.append((f"claim-{claim.claim}", f"{name}: {claim.statement} ({line['verdict']})"))
    return found


def _runs_table(logs: Logs, row: str, folders: Mapping[str, str]) -> TableView:
    runs = [run for _, run in sorted(logs.runs[row].items())]
    return TableView(
        f"Runs of {row}",
        RUN_HEADER,
        [_run_cells(run, folders) for run in runs],
        identifiers=[run_id(run.directory) for run in runs],
    )


def _run_cells(run: Run, folders: Mapping[str, str]) -> list[Cell]:
    record = run.record
    folder = Markup('<a href="{}"><code>{}</code></a>').format(folders[run.directory], run.directory)
    trained = run.finished and len(run.correct) > 0
    curve = (
        ", ".join(f"{step}: {100 * value:.1f}" for step, value in run.accuracies.items()) if trained else ""
    )
    cells = [
        record.status if run.finished else f"{record.status}: {record.status_detail}",
        curve or EMPTY,
        f"{100 * run.score().mean():.1f}" if trained else EMPTY,
        ("none" if run.collapse_step is None else f"at step {run.collapse_step}") if trained else EMPTY,
        f"{run.cpu_minutes:.1f}" if trained else EMPTY,
    ]
    digest = Markup("<code>{}</code>").format(_digest(run))
    return [Cell(folder), *(Linker().cell(text) for text in cells), Cell(digest)]


def _digest(run: Run) -> str:
    from sao.config import digest_of

    return digest_of(run.record.config)[:12] if run.record.config else EMPTY
