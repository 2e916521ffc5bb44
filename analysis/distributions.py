"""Distributions over a row's action tokens: the trainer-to-rollout ratio, and the age of the weights."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.load import Run
from sao.runlog_schema import LOG_RATIO_EDGES


def ratio_shares(runs: Sequence[Run]) -> pd.DataFrame:
    """Share of action tokens (percent) by ratio over the later policy updates, all runs pooled.

    Columns: low and high (bounds of the ratio; 0 and infinity for the open bins), share. No lines where no
    run logged ratios.
    """
    bounds = [0.0, *np.exp(LOG_RATIO_EDGES), np.inf]
    counts = _pooled(runs, "ratio_histogram", len(bounds) - 1)
    lines = {"low": bounds[:-1], "high": bounds[1:], "share": 100 * counts / max(counts.sum(), 1)}
    return pd.DataFrame(lines) if counts.any() else pd.DataFrame(columns=list(lines))


def staleness_shares(runs: Sequence[Run]) -> pd.DataFrame:
    """Share of action tokens (percent) by the age of their weights over the later policy updates, pooled.

    Columns: staleness (whole updates, up to the oldest seen), share. No lines where no run logged it.
    """
    counts = _pooled(runs, "staleness_histogram", 64)
    counts = counts[: np.flatnonzero(counts)[-1] + 1] if counts.any() else counts[:0]
    return pd.DataFrame({"staleness": np.arange(len(counts)), "share": 100 * counts / max(counts.sum(), 1)})


def _pooled(runs: Sequence[Run], column: str, bins: int) -> np.ndarray:
    """Sum of a histogram column over the later updates of all runs, float64 [bins]."""
    counts = np.zeros(bins)
    for run in runs:
        for histogram in run.later_updates[column].dropna():
            counts += np.asarray(histogram, dtype=np.float64)
    return counts
