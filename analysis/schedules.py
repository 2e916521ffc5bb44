"""The schedule of a run on its virtual clock: which slot decoded when, and how old trajectories were."""

import numpy as np
import pandas as pd

from analysis.load import Run
from sao.runlog import SCHEDULE_COLUMNS, read_table

NAME = "schedule.jsonl"


def run_with_schedule(runs: list[Run]) -> Run | None:
    """The first of `runs` that has its schedule; published runs have it for one seed of a few rows."""
    return next((run for run in runs if any(run.record.path.glob(f"{NAME}*"))), None)


def read_schedule(run: Run) -> pd.DataFrame:
    """Lines of the schedule log with the columns of SCHEDULE_COLUMNS; raises RunError where it is damaged."""
    return read_table(run.record.path / NAME, SCHEDULE_COLUMNS)


def trained_trajectories(schedule: pd.DataFrame) -> pd.DataFrame:
    """Trajectories that policy updates took, with the `staleness` of their oldest action token in updates.

    The version of the weights before update s is s, so the oldest token's staleness is s - first_version.
    """
    trained = schedule[(schedule["kind"] == "trajectory") & (schedule["step"] >= 0)].copy()
    trained["staleness"] = trained["step"] - trained["first_version"]
    return trained


def window(schedule: pd.DataFrame, ticks: int, slots: int) -> tuple[pd.DataFrame, pd.DataFrame, int]:
    """(trajectories of the first `slots` slots, updates, first tick) of `ticks` ticks from mid-training on.

    The window begins with the update at the middle of the policy updates.
    """
    updates = schedule[(schedule["kind"] == "update") & (schedule["step"] >= 0)]
    first = int(updates["start_tick"].iloc[len(updates) // 2])
    trained = trained_trajectories(schedule)
    trained = trained[trained["slot"] < slots]
    return _overlapping(trained, first, ticks), _overlapping(updates, first, ticks), first


def _overlapping(spans: pd.DataFrame, first: int, ticks: int) -> pd.DataFrame:
    inside = (spans["end_tick"] > first) & (spans["start_tick"] < first + ticks)
    clipped = spans[inside].copy()
    columns = ["start_tick", "end_tick", "graded_tick"]
    clipped[columns] = clipped[columns].clip(first, first + ticks) - first
    return clipped


def staleness_by_length(trained: pd.DataFrame, bins: int = 10) -> pd.DataFrame:
    """Mean and count of the oldest token's staleness by length, in quantile bins of the action tokens.

    Columns: tokens (mean length of the bin), mean, low and high (10% and 90% quantile), trajectories.
    """
    length = trained["action_tokens"].astype(float)
    edges = np.unique(length.quantile(np.linspace(0, 1, bins + 1)))
    groups = trained.groupby(np.searchsorted(edges[1:-1], length))
    staleness = groups["staleness"]
    return pd.DataFrame(
        {
            "tokens": groups["action_tokens"].mean(),
            "mean": staleness.mean(),
            "low": staleness.quantile(0.1),
            "high": staleness.quantile(0.9),
            "trajectories": staleness.size(),
        }
    ).reset_index(drop=True)
