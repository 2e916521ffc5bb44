"""Puts the pages together and writes the file."""

import argparse
import base64
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from analysis.artifacts import load_artifacts
from analysis.command import regenerate_command
from analysis.load import Logs
from analysis.recovery import build_recovery, switching_rows
from analysis.recovery import lay_out as lay_out_recovery
from analysis.report import trajectories
from analysis.report.claims import claim_pages, claims_table
from analysis.report.drawings import figure_svg
from analysis.report.evaluations import evaluation_page
from analysis.report.markup import Linker, TableView, linker_of, row_id, run_id
from analysis.report.provenance import provenance
from analysis.report.rows import RowPage, ordered_rows, row_pages
from analysis.report.settings import decisions
from analysis.report.tables import published_page, table_pages
from sao.runlog_files import write_atomic

SCRIPT, STYLE, PAGE = "report.js", "report.css", "report.html"


@dataclass(frozen=True)
class FigureView:
    identifier: str
    title: str
    svg: Markup
    caption: Markup
    view: TableView | None = None


def rows_to_read(folder: Path, beside: Iterable[Path]) -> list[str]:
    """Every row with a folder of runs, in `folder` or in those beside it."""
    found = {path.name for place in (folder, *beside) for path in place.glob("runs/*") if path.is_dir()}
    return sorted(found)


def write_report(logs: Logs, options: argparse.Namespace) -> int:
    """Write the report to `options.out`; returns its size in bytes. The same logs give the same bytes."""
    content = render(logs, options).encode()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(options.out, content)
    return len(content)


def render(logs: Logs, options: argparse.Namespace) -> str:
    """The page as text."""
    environment = Environment(
        loader=PackageLoader("analysis.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.globals |= {
        "row_id": row_id,
        "run_id": run_id,
        "token_html": trajectories.token_html,
        "token_header": trajectories.TOKEN_HEADER,
        "legend": trajectories.legend(),
    }
    script, style = (environment.get_template(name).render() for name in (SCRIPT, STYLE))
    linker = linker_of(logs, _folders(logs, options.out.parent))
    environment.filters |= {"text": linker.text}
    return environment.get_template(PAGE).render(
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=Markup(style),
        **_content(logs, linker, options),
    )


def _content(logs: Logs, linker: Linker, options: argparse.Namespace) -> dict[str, object]:
    def command(module: str, out: str, *extra: str) -> str:
        placed = argparse.Namespace(runs=options.runs, beside=options.beside, out=options.out.parent / out)
        return regenerate_command(f"analysis.{module}", placed, *extra)

    claims, claims_view = claims_table(logs, linker, command("claims", "tables/claims"))
    rows = row_pages(logs, claims, linker)
    return {
        "scale": logs.scale,
        "command": regenerate_command("analysis.report", options),
        "facts": _facts(logs, rows),
        "unfinished": [page for page in rows if page.note],
        "tables": table_pages(logs, linker, command),
        "figures": _figures(logs, linker, command),
        "claims": claim_pages(logs, claims, linker, command("claims", "tables/claims")),
        "claims_view": claims_view,
        "rows": rows,
        "decisions": decisions(logs, linker),
        "published": published_page(linker),
        "provenance": provenance(logs, linker),
        "evaluations": evaluation_page(logs, linker),
        "imported": logs.imported,
    }


def _folders(logs: Logs, place: Path) -> dict[str, str]:
    """Run directories as links relative to the folder that the report lies in."""
    runs = [run for seeds in logs.runs.values() for run in seeds.values()]
    return {
        run.directory: Path(os.path.relpath(run.record.path.absolute(), place.absolute())).as_posix() + "/"
        for run in runs
    }


def _facts(logs: Logs, rows: Sequence[RowPage]) -> list[tuple[str, str]]:
    """What the report stands on, in a few numbers."""
    runs = [run for row in ordered_rows(logs) for run in logs.finished(row)]
    tasks = dict.fromkeys(run.record.config["task"]["name"] for run in runs)
    problems = sorted({len(run.correct.columns) for run in runs if len(run.correct)})
    seeds = sorted({len(logs.finished(page.row)) for page in rows} - {0})
    return [
        ("scale", logs.scale),
        ("tasks", ", ".join(tasks) or "none finished"),
        ("rows", str(len(rows))),
        ("finished runs", str(len(runs))),
        ("finished seeds a row", " or ".join(map(str, seeds)) or "none"),
        ("held-out problems an evaluation", " or ".join(map(str, problems)) or "none"),
    ]


def _figures(logs: Logs, linker: Linker, command: Callable[..., str]) -> list[FigureView]:
    views = []
    for name, figure in load_artifacts().figures.items():
        if not set(figure.rows) & logs.runs.keys():
            continue
        title = f"{figure.place}: {figure.title}"
        svg, caption = figure_svg(logs, name, title, command("figures", "figures", "--artifact", name))
        view = None
        if figure.mark_switches:
            rows = switching_rows(figure)
            again = command("figures", "figures", "--artifact", name)
            view = linker.sheet(lay_out_recovery(build_recovery(logs, rows), logs, rows, again))
        views.append(FigureView(f"figure-{name}", title, svg, caption_html(caption, linker), view))
    return views


def caption_html(caption: str, linker: Linker) -> Markup:
    """A caption's Markdown, title left out: paragraphs, lists, and indented commands."""
    blocks: list[Markup] = []
    for block in caption.split("\n\n")[1:]:
        lines = [line for line in block.splitlines() if line.strip()]
        if lines and all(line.startswith("- ") for line in lines):
            runs = [match[1] for line in lines if (match := re.fullmatch(r"- `(runs/[^`]*)`", line))]
            if len(runs) == len(lines):
                blocks.append(Markup("<p>{}.</p>").format(linker.runs_of(" ".join(runs))))
                continue
            items = Markup("").join(Markup("<li>{}</li>").format(linker.text(line[2:])) for line in lines)
            blocks.append(Markup("<ul>{}</ul>").format(items))
        elif lines and block.startswith("    "):
            blocks.append(Markup("<pre>{}</pre>").format(escape(block.strip())))
        elif lines:
            blocks.append(Markup("<p>{}</p>").format(linker.text(" ".join(lines))))
    return Markup("").join(blocks)
