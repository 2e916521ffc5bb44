"""Curves of one row for its page, each a small figure beside SAO's mean, and what it ends at in words."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis import drawing
from analysis.artifacts import Panel, Series, Smoothing, row_label
from analysis.curves import WINDOW, Curve, accuracy_curve, metric_curve
from analysis.load import Logs, Run
from analysis.report.drawings import inline_svg
from analysis.table_data import REFERENCE_ROW

MOST_POINTS = 250
SIZE = (3.6, 2.5)


@dataclass(frozen=True)
class Quantity:
    """A metric to draw: the sum of `columns`, times 100 where it is a share."""

    title: str
    unit: str
    columns: tuple[str, ...]
    percent: bool = False
    smoothing: Smoothing = "mean"
    floor: float | None = None

    def panel(self, row: str) -> Panel:
        series = [Series(row=row, columns=list(self.columns))]
        return Panel(
            name=self.columns[0],
            quantity="metric",
            y_label=self.unit,
            percent=self.percent,
            smoothing=self.smoothing,
            series=series,
        )


QUANTITIES = (
    Quantity("Training reward", "mean reward of the batch", ("reward_mean",)),
    Quantity("Entropy of the policy", "nats", ("entropy",)),
    Quantity("Staleness of the tokens", "updates", ("staleness_mean",)),
    Quantity(
        "Explained variance before the critic's updates",
        "dimensionless",
        ("explained_variance_before",),
        smoothing="median",
        floor=-0.5,
    ),
    Quantity("Tokens masked", "share of action tokens (%)", ("masked_low", "masked_high"), percent=True),
    Quantity("Tokens clipped", "share of action tokens (%)", ("clipped",), percent=True),
    Quantity("Size of the log-ratio", "nats", ("mean_abs_log_ratio",)),
    Quantity("Gradient norm of the policy", "before clipping", ("policy_grad_norm",)),
    Quantity("Gradient norm of the critic", "before clipping", ("critic_grad_norm",)),
    Quantity("Loss of the critic", "reward squared", ("value_loss",)),
    Quantity("Length of a trajectory", "action tokens", ("mean_action_tokens",)),
    Quantity("Idle share of the sampler", "% of slot ticks", ("sampler_idle_share",), percent=True),
)


@dataclass(frozen=True)
class SmallFigure:
    title: str
    svg: Markup
    summary: str


def row_curves(logs: Logs, row: str) -> tuple[list[SmallFigure], list[str]]:
    """The row's curves, and the titles of those that its runs did not log."""
    runs = logs.finished(row)
    reference = [] if row == REFERENCE_ROW else _same_task(logs.finished(REFERENCE_ROW), runs)
    figures, missing = [], []
    if all(len(run.correct) for run in runs):
        figures.append(_accuracy(runs, reference, row))
    for quantity in QUANTITIES:
        if _logged(runs, quantity):
            figures.append(_metric(runs, reference, row, quantity))
        else:
            missing.append(quantity.title.lower())
    return figures, missing


def comparison(
    logs: Logs, rows: Sequence[str], title: str, name: str, columns: Sequence[str]
) -> Markup | None:
    """Curves of several rows in one small figure: of a metric, or of held-out accuracy without `columns`."""
    curves = []
    for row in rows:
        runs = logs.finished(row)
        quantity = Quantity(title, "", tuple(columns)) if columns else None
        if not runs or (quantity and not _logged(runs, quantity)):
            continue
        label = row_label(row)
        if quantity:
            curve = metric_curve(runs, quantity.panel(row).series[0], label, quantity.panel(row), "updates")
        else:
            curve = accuracy_curve(runs, label, "updates")
        curves.append((row, thinned(curve)))
    if not curves:
        return None
    canvas, axes = _canvas((5.2, 3.2))
    for row, curve in curves:
        drawing.draw_curve(axes, curve, drawing.row_index(row))
    _finish(axes, title, "")
    axes.legend(fontsize=7, handlelength=3.2)
    return inline_svg(canvas, name, f"{title} of {' and '.join(row_label(row) for row, _ in curves)}")


def thinned(curve: Curve, most: int = MOST_POINTS) -> Curve:
    """Means of neighbours at no more than `most` places, the band reaching over all; no unsmoothed points."""
    size = max(1, -(-len(curve.x) // most))
    starts = np.arange(0, len(curve.x), size)
    counts = np.diff([*starts, len(curve.x)])

    def mean(values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values, starts) / counts

    return replace(
        curve,
        x=mean(curve.x),
        mean=mean(curve.mean),
        low=np.minimum.reduceat(curve.low, starts),
        high=np.maximum.reduceat(curve.high, starts),
        points=None,
    )


def _accuracy(runs: list[Run], reference: list[Run], row: str) -> SmallFigure:
    curve = accuracy_curve(runs, row_label(row), "updates")
    beside = accuracy_curve(reference, "SAO", "updates") if reference else None
    canvas, axes = _canvas(SIZE)
    _draw(axes, curve, beside, row)
    collapsed = [(run, run.collapse.position) for run in runs if run.collapse is not None]
    drawing.mark_collapses(
        axes,
        [run.accuracies.index[position] for run, position in collapsed],
        [100 * run.accuracies.iloc[position] for run, position in collapsed],
        "",
    )
    axes.set_ylim(bottom=0)
    title, unit = "Held-out accuracy", "% of problems solved"
    _finish(axes, title, unit)
    said = f"; a cross marks where a seed collapsed ({len(collapsed)} of {len(runs)})" if collapsed else ""
    summary = _ending(curve, unit, last=1) + said + "."
    return SmallFigure(title, _svg(canvas, row, "accuracy", title), summary)


def _metric(runs: list[Run], reference: list[Run], row: str, quantity: Quantity) -> SmallFigure:
    panel = quantity.panel(row)
    curve = metric_curve(runs, panel.series[0], row_label(row), panel, "updates")
    beside = None
    if reference and _logged(reference, quantity):
        beside = thinned(metric_curve(reference, panel.series[0], "SAO", panel, "updates"))
    canvas, axes = _canvas(SIZE)
    _draw(axes, thinned(curve), beside, row)
    below = ""
    if quantity.percent:
        axes.set_ylim(0, None if np.nanmax(curve.high) > 0 else 1)
    if quantity.floor is not None and (hidden := drawing.points_below([curve], quantity.floor)):
        axes.set_ylim(bottom=quantity.floor)
        below = f"; {hidden} points lie below the axis"
    _finish(axes, quantity.title, quantity.unit)
    summary = _ending(curve, quantity.unit, last=WINDOW) + below + "."
    return SmallFigure(quantity.title, _svg(canvas, row, quantity.columns[0], quantity.title), summary)


def _draw(axes: Axes, curve: Curve, beside: Curve | None, row: str) -> None:
    if beside is not None:
        colour, _, _ = drawing.row_style(REFERENCE_ROW)
        axes.plot(beside.x, beside.mean, color=colour, linewidth=0.9, alpha=0.6)
    drawing.draw_curve(axes, curve, drawing.row_index(row))


def _ending(curve: Curve, unit: str, last: int) -> str:
    """What the curve ends at: the mean of its last values over all seeds, and the range of the seeds."""
    known = np.flatnonzero(np.isfinite(curve.mean))[-last:]
    if not known.size:
        return "No value"
    mean, low, high = curve.mean[known].mean(), curve.low[known].min(), curve.high[known].max()
    where = "At the last evaluation" if last == 1 else f"Over the last {known.size} updates"
    seeds = f" (seeds from {low:.3g} to {high:.3g})" if curve.seeds > 1 else " (one seed)"
    return f"{where}: {mean:.3g}{seeds}, {unit}"


def _logged(runs: Sequence[Run], quantity: Quantity) -> bool:
    return bool(runs) and all(
        run.policy_updates[column].notna().any() for run in runs for column in quantity.columns
    )


def _same_task(reference: list[Run], runs: list[Run]) -> list[Run]:
    """Runs of the reference row, where they are of the task of `runs`."""
    tasks = {run.record.config.get("task", {}).get("name") for run in [*reference, *runs]}
    return reference if len(tasks) == 1 else []


def _canvas(size: tuple[float, float]) -> tuple[Figure, Axes]:
    drawing.apply_settings()
    figure = Figure(figsize=size)
    left, bottom = (
        0.68 / size[0],
        0.48 / size[1],
    )  # inches for the labels; a layout engine takes twice the time
    margins = {"left": left, "right": 0.97, "top": 1 - 0.28 / size[1], "bottom": bottom}
    return figure, figure.subplots(gridspec_kw=margins)


def _finish(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_xlabel("policy updates", fontsize=8)
    axes.set_ylabel(unit, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5))


def _svg(canvas: Figure, row: str, name: str, title: str) -> Markup:
    return inline_svg(canvas, f"{row}-{name}", f"{title} of {row_label(row)}")
