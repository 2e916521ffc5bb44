"""Pages of the claims: one a claim, with its parts, their intervals as a drawing, and its rows."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from analysis import drawing
from analysis.artifacts import Claim, load_artifacts
from analysis.claims import NOT_MEASURED, NOT_RUN, build_claims, layout
from analysis.load import Logs
from analysis.render import Sheet
from analysis.report.curves import comparison
from analysis.report.drawings import inline_svg
from analysis.report.markup import Cell, Linker, TableView
from analysis.report.tables import has_rows

# What a claim's page draws beside the intervals, by the claim's test; others show held-out accuracy.
DRAWN: dict[str, tuple[str, tuple[str, ...]]] = {
    "masked_share": ("Share of tokens masked", ("masked_low", "masked_high")),
    "explained_variance": ("Explained variance before the critic's updates", ("explained_variance_before",)),
    "critic_gradient_norm": ("Gradient norm of the critic", ("critic_grad_norm",)),
    "reward_after_switch": ("Training reward", ("reward_mean",)),
    "staleness": ("Staleness of the tokens, updates", ("staleness_mean",)),
    "idle_share": ("Idle share of the sampler", ("sampler_idle_share",)),
}
VERDICTS = {
    "reproduced": "yes",
    "contradicted": "no",
    "inconclusive": "open",
    NOT_RUN: "none",
    NOT_MEASURED: "none",
}


@dataclass(frozen=True)
class ClaimPage:
    """`verdicts`: (words, class of the style sheet) by part; `artifacts`: (id, place) of what shows it."""

    identifier: str
    name: str
    statement: str
    place: str
    verdicts: Sequence[tuple[str, str]]
    view: TableView
    intervals: Markup | None
    curves: Sequence[Markup]
    rows: Sequence[str]
    artifacts: Sequence[tuple[str, str]]


def claims_table(logs: Logs, linker: Linker, command: str) -> tuple[pd.DataFrame, TableView]:
    """The claims with their verdicts: data, and the table with each claim linked to its page."""
    data = build_claims(logs)
    sheet = layout(data, logs, command)
    identifiers = [f"part-{place}" for place in range(len(data))]
    runs = [Cell(linker.runs_of(str(runs)), "long") for runs in data["runs"]]
    view = linker.sheet(sheet, _link_to_page)
    rows = [[*line, cell] for line, cell in zip(view.rows, runs, strict=True)]
    return data, TableView(view.caption, [*view.header, "runs"], rows, view.footer, identifiers)


def claim_pages(logs: Logs, data: pd.DataFrame, linker: Linker, command: str) -> list[ClaimPage]:
    """One page a claim, in the order of the artifacts."""
    claims = load_artifacts().claims
    sheet = layout(data, logs, command)
    pages = []
    for name in dict.fromkeys(claim.claim for claim in claims):
        places = [place for place, claim in enumerate(claims) if claim.claim == name]
        mine = [claims[place] for place in places]
        lines = data.iloc[places].to_dict("records")
        part = Sheet(
            f"Claim {name}: parts", sheet.header, [sheet.rows[place] for place in places], sheet.footer
        )
        view = linker.sheet(part)
        runs = [Cell(linker.runs_of(str(line["runs"])), "long") for line in lines]
        rows = [[*line, cell] for line, cell in zip(view.rows, runs, strict=True)]
        pages.append(
            ClaimPage(
                identifier=f"claim-{name}",
                name=name,
                statement="; ".join(dict.fromkeys(claim.statement for claim in mine)),
                place=", ".join(dict.fromkeys(place for claim in mine for place in claim.place.split(", "))),
                verdicts=[(_part_verdict(line), verdict_class(str(line["verdict"]))) for line in lines],
                view=TableView(view.caption, [*view.header, "runs"], rows, view.footer),
                intervals=_intervals(name, lines),
                curves=_curves(logs, name, mine),
                rows=list(dict.fromkeys(row for claim in mine for row in claim.rows)),
                artifacts=_artifacts(logs, mine),
            )
        )
    return pages


def verdict_class(verdict: str) -> str:
    """Class of the style sheet; verdicts that rest on few seeds, and others, count as open."""
    return VERDICTS.get(verdict.split(";")[0], "open")


def _link_to_page(line: Sequence[str]) -> Markup:
    return Markup('<a href="#claim-{}">{}</a>').format(line[0].split()[0], line[0])


def _part_verdict(line: dict[Hashable, Any]) -> str:
    return f"{line['part']}: {line['verdict']}" if line["part"] else str(line["verdict"])


def _intervals(name: str, lines: Sequence[dict[Hashable, Any]]) -> Markup | None:
    """Effects with their intervals against 0, one line a part; parts of different units side by side."""
    shown = [line for line in lines if np.isfinite(line["effect"])]
    if not shown:
        return None
    drawing.apply_settings()
    canvas = Figure(figsize=(5.2, 0.5 + 0.85 * len(shown)), layout="constrained")
    places = np.atleast_1d(canvas.subplots(len(shown), 1))
    for axes, line in zip(places, shown, strict=True):
        axes.axvline(0, color="#555555", linewidth=1, linestyle=(0, (2, 3)))
        if np.isfinite(line["low"]):
            axes.plot([line["low"], line["high"]], [0, 0], color="#333333", linewidth=2)
        axes.plot([line["effect"]], [0], "o", color="#333333", markersize=6)
        axes.set_yticks([])
        axes.set_ylim(-1, 1)
        axes.margins(x=0.15)
        axes.tick_params(labelsize=8)
        unit = "" if line["unit"] == "1" else f", {line['unit']}"
        axes.set_title(f"{line['part'] or 'effect'}{unit}: {line['verdict']}", fontsize=8, loc="left")
    said = "Effects with 95% intervals; right of the dotted line, at 0, is the paper's direction"
    return inline_svg(canvas, f"intervals-{name}", f"{said}, claim {name}")


def _curves(logs: Logs, name: str, parts: Sequence[Claim]) -> list[Markup]:
    """What the parts compare, each quantity once."""
    drawn: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for claim in parts:
        quantity = DRAWN.get(claim.test, ("Held-out accuracy (%)", ()))
        drawn.setdefault(quantity, []).extend(claim.rows)
    figures = [
        comparison(logs, list(dict.fromkeys(rows)), title, f"claim-{name}-{place}", columns)
        for place, ((title, columns), rows) in enumerate(drawn.items())
    ]
    return [figure for figure in figures if figure is not None]


def _artifacts(logs: Logs, parts: Sequence[Claim]) -> list[tuple[str, str]]:
    """(id, place) of the tables and figures of this report that the claim's places in the paper name."""
    said = ", ".join(claim.place for claim in parts)
    artifacts = load_artifacts()
    tables = [
        (f"table-{name}", table.place) for name, table in artifacts.tables.items() if has_rows(logs, table)
    ]
    figures = [
        (f"figure-{name}", figure.place)
        for name, figure in artifacts.figures.items()
        if set(figure.rows) & logs.runs.keys()
    ]
    return [(identifier, place) for identifier, place in tables + figures if place and place in said]
