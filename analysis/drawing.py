"""Drawing of curves: each row in a colour, line and marker of its own, told apart in grey print too.

The first colours are those of Okabe and Ito.
"""

import textwrap
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation, Transform

from analysis.curves import Curve

FORMATS = ("pdf", "svg", "png")
STYLES: tuple[tuple[str, Any, str], ...] = (
    ("#0072B2", "-", "o"),
    ("#D55E00", "--", "s"),
    ("#009E73", "-.", "^"),
    ("#CC79A7", ":", "D"),
    ("#000000", (0, (5, 1, 1, 1, 1, 1)), "v"),
    ("#E69F00", (0, (4, 1, 1, 1)), "P"),
    ("#56B4E9", (0, (1, 1)), "X"),
    ("#7F7F7F", (0, (7, 2)), "<"),
    ("#8C4B0B", "--", "p"),
    ("#C51B7D", "-.", ">"),
    ("#B8860B", (0, (2, 1)), "d"),
    ("#117733", (0, (4, 1, 1, 1)), "h"),
)
OTHER_ROWS = 7
# One style a row in every figure. A row of the online simulation or of SWE-Bench has that of its method, and
# all policies before training one.
ROW_STYLES = {
    "sao": 0,
    "sao_online": 0,
    "grpo_dis": 1,
    "running_mean": 3,
    "running_mean_online": 3,
    "grpo_vanilla": 2,
    "vapo": 4,
    "sao_critic_1x": 5,
    "sao_full_critic": 8,
    "sao_dis_only": 6,
    "step_average": 9,
    "step_last_token": 10,
    "sao_no_dis": 11,
    "warm_start": 7,
    "sao_swe": 0,
    "grpo_dis_swe": 1,
    "base_swe": 7,
}
# Styles of writing have colours that no row has.
WRITING_STYLES: tuple[tuple[str, Any, str], ...] = (
    ("#999933", "-", "o"),
    ("#332288", "--", "s"),
    ("#44AA99", "-.", "^"),
    ("#882255", ":", "D"),
    ("#555555", (0, (5, 1, 1, 1, 1, 1)), "v"),
)
BENCHMARK_STYLES = (("#333333", ""), ("#777777", "//"), ("#AAAAAA", ".."), ("#CCCCCC", "xx"))
IMPORTED_STYLES = (
    ("#66A61E", (0, (1, 1)), "*"),
    ("#7570B3", (0, (6, 2)), "8"),
    ("#1F3A5F", (0, (3, 1, 1, 1)), "H"),
)
PANEL_WIDTH, PANEL_HEIGHT = 4.4, 3.9
LONGEST_END_LABEL = 12  # characters that fit beside a single panel
END_LABEL_ROOM = 0.08  # of the axis, between the last points of two curves
MARKERS_A_LINE = 8
LEGEND_BELOW = 34  # points from the axis, where its numbers and label end
CAPTION_CHARACTERS_AN_INCH = 19

SETTINGS: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.dpi": 160,
    "font.size": 9,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "svg.hashsalt": "sao",
}


def new_figure(panels: int) -> tuple[Figure, Sequence[Axes]]:
    """A row of panels, drawn without a display."""
    figure = Figure(figsize=(PANEL_WIDTH * panels + 0.6 * (panels == 1), PANEL_HEIGHT), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    return figure, axes


def row_style(row: str) -> tuple[str, Any, str]:
    """Colour, line and marker of a row."""
    return STYLES[row_index(row)]


def row_index(row: str) -> int:
    """A row's place in `STYLES`."""
    return ROW_STYLES.get(row, OTHER_ROWS)


def staleness_colours(oldest: int) -> ScalarMappable:
    """Light for fresh trajectories, dark for those `oldest` updates old or older."""
    return ScalarMappable(Normalize(0, oldest), mpl.colormaps["cividis_r"])


def name_bars(axes: Axes, names: Sequence[str]) -> None:
    """Names below the bars in place of numbers."""
    axes.set_xticks(range(len(names)), names, fontsize=7)
    axes.grid(axis="x", visible=False)


def label_bars(axes: Axes, places: Iterable[float], tops: Iterable[float], values: Iterable[float]) -> None:
    """Each bar's value above its top, with room for it; bars without one have no label."""
    axes.margins(y=0.12)
    above: dict[str, Any] = {"xytext": (0, 3), "textcoords": "offset points", "ha": "center", "fontsize": 7}
    for place, top, value in zip(places, tops, values, strict=True):
        if np.isfinite(value):
            axes.annotate(f"{value:.1f}", (place, top), **above)


def share_colour_bar(axes: Axes, colours: ScalarMappable, label: str) -> None:
    """One colour bar beside all panels of the figure, drawn with its last panel."""
    panels = axes.figure.axes
    if panels[-1] is axes:
        axes.figure.colorbar(colours, ax=panels, label=label, shrink=0.8, extend="max")


def note_below(axes: Axes, text: str) -> None:
    """A line below the panel, where others have their legend."""
    axes.text(0.5, 0, text, transform=_below(axes), ha="center", va="top", fontsize=8)


def draw_curve(
    axes: Axes, curve: Curve, style: int, styles: Sequence[Any] = STYLES, again: bool = False
) -> None:
    """The mean as a line, the range over seeds as a band, and unsmoothed means as faint points.

    A row shown `again` in a panel keeps its colour; its line is dotted and its markers are hollow.
    """
    colour, line, marker = styles[style % len(styles)]
    if curve.points is not None:
        axes.plot(curve.x, curve.points, ".", color=colour, markersize=2.5, alpha=0.3, linewidth=0)
    if curve.seeds > 1:
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
    every = max(1, len(curve.x) // MARKERS_A_LINE)
    axes.plot(
        curve.x,
        curve.mean,
        color=colour,
        linestyle=":" if again else line,
        linewidth=1.6,
        marker=marker,
        markersize=4.5,
        markerfacecolor="#FFFFFF" if again else colour,
        markevery=((style * every // len(styles) + again * every // 2) % every, every),
        label=f"{curve.label} ({_seeds(curve.seeds)})",
    )


def mark_collapses(axes: Axes, x: Sequence[float], y: Sequence[float], label: str) -> None:
    axes.scatter(
        x, y, marker="X", s=55, color="#000000", edgecolors="white", linewidths=0.8, zorder=5, label=label
    )


def mark_edge(axes: Axes, x: float, label: str | None = None) -> None:
    """A dotted line across the panel, in its legend under `label`."""
    axes.axvline(x, color="#555555", linewidth=0.8, linestyle=(0, (2, 3)), label=label)


def shade_phases(axes: Axes, edges: Sequence[float], names: Sequence[str]) -> None:
    """Every second phase between `edges` shaded, and above each what it rewards."""
    left, right = axes.get_xlim()
    for number, ((low, high), name) in enumerate(zip(pairwise(edges), names, strict=True)):
        if number % 2:
            axes.axvspan(low, high, color="#555555", alpha=0.12, linewidth=0)
        axes.text(
            (max(low, left) + min(high, right)) / 2,
            1.015,
            name if number else f"rewarded: {name}",
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="bottom",
            fontsize=7,
            color="#444444",
        )


def label_ends(axes: Axes, curves: Sequence[Curve]) -> bool:
    """Name each curve at its last point, not in the legend; False, and no change, where they do not fit."""
    low, high = axes.get_ylim()
    ends = sorted(float(curve.mean[-1]) for curve in curves)
    close = any(above - below < END_LABEL_ROOM * (high - low) for below, above in pairwise(ends))
    if close or any(len(curve.label) > LONGEST_END_LABEL for curve in curves):
        return False
    lines = {str(line.get_label()): line for line in axes.get_lines()}
    for curve in curves:
        line = lines[f"{curve.label} ({_seeds(curve.seeds)})"]
        axes.annotate(
            f"{curve.label}\n{_seeds(curve.seeds)}",
            (curve.x[-1], curve.mean[-1]),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=line.get_color(),
            annotation_clip=False,
        )
        line.set_label("_named at its end")
    return True


def finish_panel(
    axes: Axes,
    title: str,
    x_label: str,
    y_label: str,
    limits: tuple[float | None, float | None],
    whole_numbers: bool | None,
    empty: bool,
    title_pad: float = 6.0,
) -> None:
    """Titles, limits and legend; `whole_numbers` asks for numbers along x, None keeps the panel's own."""
    axes.set_title(title, fontsize=10, loc="left", pad=title_pad)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_ylim(*limits)
    if whole_numbers is not None:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=whole_numbers))
    if axes.get_legend_handles_labels()[0]:
        below: dict[str, Any] = {"bbox_to_anchor": (0.5, 0), "bbox_transform": _below(axes)}
        axes.legend(loc="upper center", borderaxespad=0, fontsize=8, handlelength=3.2, **below)
    if empty:
        axes.text(0.5, 0.5, "no finished run", transform=axes.transAxes, ha="center", color="#555555")


def write_figure(figure: Figure, stem: Path, line: str) -> None:
    """Write every format of `FORMATS` with `line` below the panels; the same runs give the same bytes."""
    width = int(figure.get_figwidth() * CAPTION_CHARACTERS_AN_INCH)
    figure.supxlabel("\n".join(textwrap.wrap(line, width)), fontsize=6.5, color="#444444")
    stem.parent.mkdir(parents=True, exist_ok=True)
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {"Software": None}}
    for suffix in FORMATS:
        figure.savefig(stem.with_name(f"{stem.name}.{suffix}"), metadata=undated[suffix])


def points_below(curves: Sequence[Curve], limit: float) -> int:
    """How many drawn points lie below the axis."""
    return sum(int(np.sum(points < limit)) for curve in curves if (points := _drawn(curve)) is not None)


def apply_settings() -> None:
    mpl.use("Agg")
    mpl.rcParams.update(SETTINGS)  # type: ignore[arg-type]


def _below(axes: Axes) -> Transform:
    """Places below the panel, x as a share of its width, y from where its labels end."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    return axes.transAxes + ScaledTranslation(0, -LEGEND_BELOW / 72, figure.dpi_scale_trans)


def _drawn(curve: Curve) -> np.ndarray | None:
    return curve.mean if curve.points is None else curve.points


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"
