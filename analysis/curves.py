"""Curves of figures: a quantity against updates, compute or tokens, as mean and range over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from analysis.artifacts import Panel, Series, Smoothing
from analysis.load import Run

XAxis = Literal["updates", "compute", "tokens"]
X_LABELS: dict[XAxis, str] = {
    "updates": "policy updates",
    "compute": "compute of the run (CPU-minutes)",
    "tokens": "sampled tokens (millions)",
}
X_COLUMNS: dict[XAxis, tuple[str, float]] = {
    "compute": ("cpu_seconds", 1 / 60),
    "tokens": ("sampler_tokens", 1e-6),
}
WINDOW = 9
FEWEST_UPDATES_TO_SMOOTH = 30


@dataclass(frozen=True)
class Curve:
    """One line: `mean`, `low` and `high` over seeds at `x`; `points`: the means before any smoothing."""

    label: str
    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    points: np.ndarray | None
    seeds: int

    def frame(self) -> pd.DataFrame:
        """The curve as lines: series, x, mean, low, high, unsmoothed mean, seeds."""
        points = self.mean if self.points is None else self.points
        columns = {"x": self.x, "mean": self.mean, "low": self.low, "high": self.high, "unsmoothed": points}
        return pd.DataFrame(columns).assign(series=self.label, seeds=self.seeds)


def accuracy_curve(runs: Sequence[Run], label: str, axis: XAxis) -> Curve:
    """Held-out accuracy in percent at the evaluation steps that all runs share; `runs` not empty."""
    values = pd.concat([100 * run.accuracies.rename(run.seed) for run in runs], axis=1, join="inner")
    return _summarise(label, values, _positions(runs, values.index, axis, shift=-1))


def style_curves(runs: Sequence[Run], axis: XAxis) -> list[Curve]:
    """Share of held-out samples in each style, in percent; samples that name no style make up the rest."""
    shares = [_style_shares(run) for run in runs]
    styles = sorted({style for share in shares for style in share.columns})
    curves = []
    for style in styles:
        columns = [share.get(style, pd.Series(0.0, share.index)) for share in shares]
        values = pd.concat(columns, axis=1, join="inner", keys=[run.seed for run in runs])
        positions = _positions(runs, values.index, axis, shift=-1)
        curves.append(_summarise(style, 100 * values, positions))
    return curves


def metric_curve(runs: Sequence[Run], series: Series, label: str, panel: Panel, axis: XAxis) -> Curve:
    """Sum of the series' metric columns by policy update, smoothed as the panel asks."""
    values = pd.concat([_metric(run, series.columns) for run in runs], axis=1, join="inner")
    values.columns = pd.Index([run.seed for run in runs])
    scale = 100 if panel.percent else 1
    smoothing = panel.smoothing if len(values) >= FEWEST_UPDATES_TO_SMOOTH else "none"
    return _summarise(label, scale * values, _positions(runs, values.index, axis, shift=0), smoothing)


def _style_shares(run: Run) -> pd.DataFrame:
    """Share of each style among a run's held-out samples [steps, styles]."""
    evaluations = run.record.evaluations
    counts = evaluations.groupby(["step", "style"]).size().unstack(fill_value=0)
    return counts.div(evaluations.groupby("step").size(), axis=0)


def _metric(run: Run, columns: list[str]) -> pd.Series:
    metrics = run.policy_updates.set_index("step")
    return metrics[columns].astype(float).sum(axis=1, skipna=False)


def _positions(runs: Sequence[Run], steps: pd.Index, axis: XAxis, shift: int) -> np.ndarray:
    """Where each step lies on the x axis, the mean over runs.

    Evaluation step n comes after the update of step n - 1 (`shift` -1); step 0, the warm start, lies at 0.
    """
    if axis == "updates":
        return steps.to_numpy(dtype=np.float64)
    column, factor = X_COLUMNS[axis]
    wanted = steps + shift
    reached = [
        run.policy_updates.set_index("step")[column].astype(float).reindex(wanted).to_numpy() for run in runs
    ]
    positions = factor * np.mean(reached, axis=0)
    return np.where(wanted < 0, 0.0, positions)


def _summarise(label: str, values: pd.DataFrame, x: np.ndarray, smoothing: Smoothing = "none") -> Curve:
    """Mean and range over the columns (seeds), each smoothed first; a gap where no seed has a value."""
    smoothed = values
    if smoothing != "none":
        window = values.rolling(WINDOW, center=True, min_periods=1)
        smoothed = (window.median() if smoothing == "median" else window.mean()).where(values.notna())
    return Curve(
        label,
        x,
        smoothed.mean(axis=1).to_numpy(),
        smoothed.min(axis=1).to_numpy(),
        smoothed.max(axis=1).to_numpy(),
        values.mean(axis=1).to_numpy() if smoothing != "none" else None,
        values.shape[1],
    )
