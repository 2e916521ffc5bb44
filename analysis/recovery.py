"""How long the training reward takes to come back after each switch of the rewarded style.

The reward is smoothed by a trailing mean of `WINDOW` updates. Its level before a switch is the best smoothed
reward of any update before it. A run has recovered at the first update, from the phase's lowest smoothed
reward on, at which it is back at half of that level. Batches right behind a switch still hold texts begun,
and rewarded, before it; this is why the lowest point comes first. The time counts from the switch and ends
with the phase: a run that did not come back is censored there. Every time enters the mean cut at the phase's
length (the restricted mean, which is the Kaplan-Meier one where all are censored at the same time), a lower
bound of the mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from analysis.artifacts import Figure, row_label
from analysis.claim_tests import phases
from analysis.curves import WINDOW
from analysis.load import Logs, Run
from analysis.render import EMPTY, Sheet
from analysis.statistics import FEWEST_SEEDS, Interval, student_t

SHARE = 0.5
OWN, COMMON = "own", "common"
COLUMNS = (
    "switch",
    "at_update",
    "phase_updates",
    "level",
    "row",
    "minus",
    "share_of",
    "seeds",
    "recovered",
    "censored",
    "time",
    "low",
    "high",
    "interval",
    "runs",
)
FOOTER = (
    f"Time: updates from the switch until the trailing mean of {WINDOW} updates of the training reward is "
    f"back, after its lowest in the phase, at {SHARE:.0%} of the best it was before the switch. Level 'own': "
    "each run's own best; 'common': the mean of the best of all runs listed, so that a row that had learnt "
    "less has no lower bar. A run that is not back when the phase ends is censored; it enters with the "
    "phase's length, so a mean with censored runs is a lower bound. Variance shown: seeds (Student's t, "
    f"paired for differences; no interval below {FEWEST_SEEDS} seeds or where all times are equal). The rule "
    "was written after the runs were made and is part of no verdict."
)


@dataclass(frozen=True)
class Recovery:
    """Updates from a switch until the reward is back; `censored`: it was not when the phase ended."""

    updates: int
    censored: bool


def smoothed_reward(run: Run) -> pd.Series:
    """Trailing mean of `WINDOW` updates of a run's training reward, by update."""
    rewards = run.policy_updates.set_index("step")["reward_mean"].astype(float)
    return rewards.rolling(WINDOW, min_periods=1).mean()


def level_before(run: Run, switch: int) -> float:
    """Best smoothed reward before the switch that begins phase `switch` (1 or 2)."""
    first = phases(run)[switch].index[0]
    full = smoothed_reward(run).loc[: first - 1].iloc[WINDOW - 1 :]
    return float(full.max())


def recovery(run: Run, switch: int, level: float) -> Recovery:
    """Recovery of the smoothed reward to `SHARE` of `level` in the phase that the switch begins.

    A reward that never falls below counts 0 updates.
    """
    phase = smoothed_reward(run).loc[phases(run)[switch].index].to_numpy()
    lowest = int(np.argmin(phase))
    if phase[lowest] >= SHARE * level:
        return Recovery(0, False)
    back = np.flatnonzero(phase[lowest:] >= SHARE * level)
    return Recovery(lowest + int(back[0]), False) if back.size else Recovery(len(phase), True)


def build_recovery(logs: Logs, rows: Sequence[str]) -> pd.DataFrame:
    """Recovery times of `rows` after each switch and their paired differences, with the columns `COLUMNS`.

    Empty where no row has a finished run.
    """
    runs = {row: logs.finished(row) for row in rows if logs.finished(row)}
    if not runs:
        return pd.DataFrame(columns=list(COLUMNS))
    lines: list[dict[str, Any]] = []
    for switch in range(1, len(phases(next(iter(runs.values()))[0]))):
        lines += _switch_lines(runs, switch)
    return pd.DataFrame(lines, columns=list(COLUMNS))


def first_phase_sentences(logs: Logs, rows: Sequence[str]) -> list[str]:
    """For each pair of rows a sentence: whose training reward is ahead in the first phase, by how much."""
    return [_ahead(logs, first, second) for first, second in combinations(rows, 2)]


def lay_out(data: pd.DataFrame, logs: Logs, rows: Sequence[str], command: str) -> Sheet:
    """The recovery times as text cells, and below them who is ahead in the first phase."""
    header = ["switch", "level", "row", "share of (reward)", "seeds", "recovered", "updates [95% interval]"]
    cells = [_cells(line) for line in data.to_dict("records")]
    footer = [f"Scale {logs.scale}. {FOOTER}", *first_phase_sentences(logs, rows), f"Regenerate: `{command}`"]
    return Sheet("Recovery after each switch of the rewarded style", header, cells, footer)


def switching_rows(figure: Figure) -> list[str]:
    """The rows whose training reward a figure with switches draws."""
    drawn = [series for panel in figure.panels for series in panel.series if "reward_mean" in series.columns]
    return list(dict.fromkeys(series.row for series in drawn))


def _switch_lines(runs: dict[str, list[Run]], switch: int) -> list[dict[str, Any]]:
    levels = {row: {run.seed: level_before(run, switch) for run in found} for row, found in runs.items()}
    shared = float(np.mean([level for found in levels.values() for level in found.values()]))
    phase = phases(next(iter(runs.values()))[0])[switch]
    common = {"switch": switch, "at_update": int(phase.index[0]), "phase_updates": len(phase)}
    lines = []
    for kind in (OWN, COMMON):
        bars = levels if kind == OWN else {row: dict.fromkeys(found, shared) for row, found in levels.items()}
        times = {
            row: {run.seed: recovery(run, switch, bars[row][run.seed]) for run in found}
            for row, found in runs.items()
        }
        for row, found in runs.items():
            line = common | {"level": kind, "row": row, "minus": "", "share_of": _mean(bars[row].values())}
            lines.append(line | _time_fields(times[row]) | {"runs": _directories(found)})
        for first, second in combinations(runs, 2):
            line = common | {"level": kind, "row": first, "minus": second, "share_of": np.nan}
            both = _directories([*runs[first], *runs[second]])
            lines.append(line | _difference_fields(times[first], times[second]) | {"runs": both})
    return lines


def _time_fields(times: dict[int, Recovery]) -> dict[str, Any]:
    censored = sum(time.censored for time in times.values())
    counts = {"seeds": len(times), "recovered": len(times) - censored, "censored": censored}
    return counts | _interval_fields([float(time.updates) for time in times.values()])


def _difference_fields(first: dict[int, Recovery], second: dict[int, Recovery]) -> dict[str, Any]:
    """Paired differences of the times; `recovered` counts the pairs in which neither is censored."""
    seeds = sorted(first.keys() & second.keys())
    whole = sum(not (first[seed].censored or second[seed].censored) for seed in seeds)
    counts = {"seeds": len(seeds), "recovered": whole, "censored": len(seeds) - whole}
    return counts | _interval_fields([float(first[seed].updates - second[seed].updates) for seed in seeds])


def _interval_fields(values: list[float]) -> dict[str, Any]:
    if not values:
        return {"time": np.nan, "low": np.nan, "high": np.nan, "interval": "no common seed"}
    interval = student_t(values)
    if len(set(values)) == 1:  # a width of 0 would only say that all were cut at the same update
        return {"time": interval.estimate, "low": np.nan, "high": np.nan, "interval": "all equal"}
    return {
        "time": interval.estimate,
        "low": interval.low,
        "high": interval.high,
        "interval": interval.method,
    }


def _ahead(logs: Logs, first: str, second: str) -> str:
    rewards = [
        {run.seed: float(phases(run)[0].mean()) for run in logs.finished(row)} for row in (first, second)
    ]
    seeds = sorted(rewards[0].keys() & rewards[1].keys())
    if not seeds:
        return f"Phase 1: {second} against {first}: no finished seed in common."
    gap = student_t([rewards[1][seed] - rewards[0][seed] for seed in seeds])
    count = f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}"
    where = f"{gap.estimate:+.3f}"
    where += f" [{gap.low:.3f}, {gap.high:.3f}]" if gap.has_bounds else ", no interval"
    return (
        f"Phase 1, before the first switch: {row_label(second)} (`{second}`) is {_sign(gap)} "
        f"{row_label(first)} (`{first}`); difference of the mean training reward {where} "
        f"(Student's t, paired, {count})."
    )


def _sign(gap: Interval) -> str:
    """`ahead of` or `behind` as the estimate says, and what the interval leaves of it."""
    word = "ahead of" if gap.estimate > 0 else "behind" if gap.estimate < 0 else "level with"
    if gap.has_bounds and gap.low <= 0 <= gap.high and gap.estimate:
        return f"not clearly ahead of or behind (in the mean {word})"
    return word


def _cells(line: dict[Any, Any]) -> list[str]:
    row = f"`{line['row']}`" + (f" - `{line['minus']}`, paired" if line["minus"] else "")
    share = EMPTY if np.isnan(line["share_of"]) else f"{line['share_of']:.3f}"
    return [
        f"{line['switch']}, update {line['at_update']}",
        str(line["level"]),
        row,
        share,
        str(line["seeds"]),
        f"{line['recovered']} of {line['seeds']}",
        _time_text(line),
    ]


def _time_text(line: dict[Any, Any]) -> str:
    if np.isnan(line["time"]):
        return EMPTY
    number = f"{line['time']:+.1f}" if line["minus"] else f"{line['time']:.1f}"
    if line["censored"] and not line["minus"]:
        number = f"at least {number}"
    if not np.isnan(line["low"]):
        return f"{number} [{line['low']:.1f}, {line['high']:.1f}]"
    none_back = line["recovered"] == 0 and line["censored"]
    return f"{number} (none is back within {line['phase_updates']})" if none_back else number


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))


def _directories(runs: Sequence[Run]) -> str:
    return " ".join(run.directory for run in runs)
