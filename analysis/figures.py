"""Figures of the paper from logged runs.

    python -m analysis.figures --runs results/cpu --out results/cpu/figures [--artifact figure3] [--x compute]

writes each figure as PDF, SVG and PNG, and its caption as Markdown.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from analysis import drawing
from analysis.artifacts import Figure, Panel, Series, load_artifacts, row_label
from analysis.command import artifact_parser, pick_artifacts, regenerate_command, run_command
from analysis.curves import (
    WINDOW,
    X_LABELS,
    Curve,
    XAxis,
    accuracy_curve,
    metric_curve,
    style_curves,
)
from analysis.imported import captions, imported_curves
from analysis.load import Logs, Run, load_logs
from analysis.panels import INTERVALS, PANELS
from analysis.panels import X_LABELS as PANEL_X_LABELS
from analysis.recovery import build_recovery, first_phase_sentences, switching_rows
from analysis.recovery import lay_out as lay_out_recovery
from analysis.render import write_sheet
from analysis.rows import row_status
from sao.environments.style import PHASES

PLAIN_PAD, PHASED_PAD = 6.0, 16.0  # of a panel's title, in points
CROSS_HEIGHT = 1.0  # of a collapse's cross, in points of accuracy


@dataclass(frozen=True)
class ComposedFigure:
    """A drawn figure, not yet written: `line` goes below its panels, `frames` hold their data."""

    canvas: Canvas
    line: str
    caption: str
    frames: list[pd.DataFrame]


def draw_figure(logs: Logs, name: str, axis: XAxis, out: Path, command: str) -> Path:
    """Draw figure `name` into `out`; returns its path without suffix. OSError where it cannot be written."""
    composed = compose_figure(logs, name, axis, command)
    stem = out / (name if axis == "updates" else f"{name}_{axis}")
    drawing.write_figure(composed.canvas, stem, composed.line)
    stem.with_suffix(".md").write_text(composed.caption, encoding="utf-8")
    write_data(stem.with_suffix(".csv"), composed.frames)
    if load_artifacts().figures[name].mark_switches and axis == "updates":
        _write_recovery(logs, load_artifacts().figures[name], out / f"{name}_recovery", command)
    return stem


def compose_figure(logs: Logs, name: str, axis: XAxis, command: str) -> ComposedFigure:
    """Figure `name` with its caption and data; `command` is what makes it again."""
    figure = load_artifacts().figures[name]
    drawing.apply_settings()
    canvas, axes = drawing.new_figure(len(figure.panels))
    remarks: list[str] = []
    frames: list[pd.DataFrame] = []
    for panel, place in zip(figure.panels, axes, strict=True):
        title = panel.title if len(figure.panels) == 1 else f"({panel.name}) {panel.title}"
        if panel.quantity in PANELS:
            data = PANELS[panel.quantity](logs, panel, place)
            label, whole_numbers = PANEL_X_LABELS[panel.quantity], None
        else:
            curves = _draw_panel(logs, panel, place, axis)
            if len(figure.panels) == 1 and curves:
                place.set_ylim(*_limits(panel, place))
                drawing.label_ends(place, curves)
            remarks += _remarks(panel, curves)
            data = pd.concat([curve.frame() for curve in curves]) if curves else pd.DataFrame()
            label, whole_numbers = X_LABELS[axis], axis == "updates"
        phased = figure.mark_switches and axis == "updates" and _draw_phases(logs, panel, place)
        drawing.finish_panel(
            place,
            title,
            label,
            panel.y_label,
            _limits(panel, place),
            whole_numbers,
            data.empty,
            PHASED_PAD if phased else PLAIN_PAD,
        )
        frames.append(data.assign(panel=panel.name))
    remarks += [figure.remark] if figure.remark else []
    if figure.mark_switches:
        remarks += first_phase_sentences(logs, switching_rows(figure))
    line = f"{_where(logs, figure)}{_band(logs, figure)}. {command}"
    return ComposedFigure(canvas, line, _caption(logs, figure, list(dict.fromkeys(remarks)), command), frames)


def write_data(path: Path, frames: list[pd.DataFrame]) -> None:
    """The numbers behind a figure, the panels below each other, rounded as the logs are."""
    data = pd.concat(frames, ignore_index=True)
    first = [column for column in ("panel", "row", "series") if column in data]
    data = data[[*first, *(column for column in data if column not in first)]]
    data.to_csv(path, index=False, float_format="%.7g", lineterminator="\n")


def _write_recovery(logs: Logs, figure: Figure, stem: Path, command: str) -> None:
    """The times of recovery after the figure's switches, as CSV, Markdown and LaTeX beside it."""
    rows = switching_rows(figure)
    data = build_recovery(logs, rows)
    write_sheet(stem, data, lay_out_recovery(data, logs, rows, command))


def _draw_panel(logs: Logs, panel: Panel, axes: Axes, axis: XAxis) -> list[Curve]:
    curves: list[Curve] = []
    for position, series in enumerate(panel.series):
        runs = logs.finished(series.row)
        if not runs:
            continue
        drawn = _curves(runs, panel, series, axis)
        again = series.row in [other.row for other in panel.series[:position]]
        for offset, curve in enumerate(drawn):
            if panel.quantity == "style_shares":
                drawing.draw_curve(axes, curve, offset, drawing.WRITING_STYLES)
            else:
                drawing.draw_curve(axes, curve, drawing.row_index(series.row), again=again)
        curves += drawn
    beside = imported_curves(logs.imported, panel, axis)
    for offset, curve in enumerate(beside):
        drawing.draw_curve(axes, curve, offset, drawing.IMPORTED_STYLES)
    curves += beside
    if panel.mark_collapse:
        _draw_collapses(logs, panel, axes, axis)
    return curves


def _curves(runs: Sequence[Run], panel: Panel, series: Series, axis: XAxis) -> list[Curve]:
    label = series.label or row_label(series.row)
    if panel.quantity == "accuracy":
        return [accuracy_curve(runs, label, axis)]
    if panel.quantity == "style_shares":
        return style_curves(runs, axis)
    return [metric_curve(runs, series, label, panel, axis)]


def _limits(panel: Panel, axes: Axes) -> tuple[float | None, float | None]:
    """Ends of the y axis: as the panel says, and not below its floor."""
    if panel.floor is None:
        return panel.y_limits
    return max(panel.floor, axes.get_ylim()[0]), panel.y_limits[1]


def _draw_collapses(logs: Logs, panel: Panel, axes: Axes, axis: XAxis) -> None:
    """A cross where a seed's curve collapsed, at that seed's accuracy."""
    collapsed = [run for series in panel.series for run in logs.finished(series.row) if run.collapse]
    if not collapsed:
        return
    curves = [accuracy_curve([run], "", axis) for run in collapsed]
    positions = [run.collapse.position for run in collapsed if run.collapse]
    x = [curve.x[position] for curve, position in zip(curves, positions, strict=True)]
    y = [curve.mean[position] for curve, position in zip(curves, positions, strict=True)]
    places = {(round(across), round(up / CROSS_HEIGHT)) for across, up in zip(x, y, strict=True)}
    hidden = ", some overlap" if len(places) < len(collapsed) else ""
    drawing.mark_collapses(axes, x, y, f"collapse of a seed ({len(collapsed)} in all{hidden})")


def _draw_phases(logs: Logs, panel: Panel, axes: Axes) -> bool:
    """A line at each update where the rewarded style switches, and its name above; whether there are any."""
    runs = [run for series in panel.series for run in logs.finished(series.row)]
    if not runs:
        return False
    task = runs[0].record.config["task"]
    switches = [share * runs[0].updates for share in task["switch_points"]]
    for switch in switches:
        drawing.mark_edge(axes, switch)
    rewarded = task.get("rewarded") or [phase.rewarded for phase in PHASES]
    drawing.shade_phases(axes, [0.0, *switches, float(runs[0].updates)], rewarded)
    return True


def _remarks(panel: Panel, curves: Sequence[Curve]) -> list[str]:
    """What a reader of the panel must know: band, smoothing, gaps, points outside the axis."""
    remarks = []
    if any(curve.seeds > 1 for curve in curves):
        remarks.append("Lines are means over seeds, bands reach from the lowest to the highest seed.")
    if any(curve.points is not None for curve in curves):
        remarks.append(
            f"Panel {panel.name}: each seed is smoothed by a centred moving {panel.smoothing} of {WINDOW} "
            "updates; points are unsmoothed means over seeds."
        )
    if panel.quantity == "style_shares":
        remarks.append("Above the panels stands the style that each phase rewards; the second one is shaded.")
    if panel.mark_collapse:
        remarks.append("A cross marks where a seed collapsed (below 70% of its best so far, for good).")
    columns = {column for series in panel.series for column in series.columns}
    if "explained_variance_before" in columns:
        remarks.append("Explained variance is undefined, a gap, where the rewards of a batch agree.")
    if "clipped" in columns:
        remarks.append(
            "VAPO's clipped share is near 0 by construction: the trainer recomputes pi_old for each batch."
        )
    if panel.floor is not None and (below := drawing.points_below(curves, panel.floor)):
        remarks.append(f"Panel {panel.name}: {below} points lie below the axis.")
    return remarks


def _where(logs: Logs, figure: Figure) -> str:
    """Scale, task and finished seeds of a figure's rows."""
    tasks = {run.record.config["task"]["name"] for row in figure.rows for run in logs.finished(row)}
    seeds = ", ".join(f"{row} {len(logs.finished(row))}" for row in figure.rows)
    return f"Scale {logs.scale}, task {' and '.join(sorted(tasks)) or 'not started'}, seeds: {seeds}"


def _band(logs: Logs, figure: Figure) -> str:
    """What bands and whiskers reach over."""
    curves = any(panel.quantity not in PANELS for panel in figure.panels)
    several = curves and any(len(logs.finished(row)) > 1 for row in figure.rows)
    said = ["bands from the lowest to the highest seed"] if several else []
    said += [INTERVALS[panel.quantity] for panel in figure.panels if panel.quantity in INTERVALS]
    return "".join(f"; {text}" for text in said)


def _caption(logs: Logs, figure: Figure, remarks: list[str], command: str) -> str:
    statuses = {row: row_status(logs, row) for row in figure.rows}
    missing = [f"- `{row}`: {status.note}" for row, status in statuses.items() if status.note]
    runs = [f"- `{run.directory}`" for row in figure.rows for run in logs.finished(row)]
    lines = [f"# {figure.place}: {figure.title}", "", f"{_where(logs, figure)}.", *(["", " ".join(remarks)])]
    lines += ["", "Not shown:", "", *missing] if missing else []
    lines += captions(logs.imported, figure)
    lines += ["", "Regenerate:", "", f"    {command}", "", "Runs:", "", *runs]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = artifact_parser("analysis.figures", "Draw the figures as PDF, SVG and PNG.")
    parser.add_argument("--x", choices=list(X_LABELS), default="updates", help="what the x axis counts")
    options = parser.parse_args(arguments)
    figures = load_artifacts().figures
    names = pick_artifacts(options.artifact, figures)
    logs = load_logs(options.runs, [row for name in names for row in figures[name].rows], options.beside)
    for name in names:
        extra = ["--artifact", name] + (["--x", options.x] if options.x != "updates" else [])
        command = regenerate_command("analysis.figures", options, *extra)
        stem = draw_figure(logs, name, options.x, options.out, command)
        print(f"wrote {stem} as {', '.join(drawing.FORMATS)}")


if __name__ == "__main__":
    sys.exit(run_command(main))
