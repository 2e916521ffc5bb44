"""Panels that are no curves: bars, a schedule as a Gantt chart, distributions, staleness by length.

Each function draws into its axes and returns what it drew as a frame, the data behind the picture.
"""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import drawing
from analysis.artifacts import Panel, Series, load_artifacts, load_published, row_label
from analysis.distributions import ratio_shares, staleness_shares
from analysis.evaluation_table import EVALUATION
from analysis.load import Logs
from analysis.schedules import (
    read_schedule,
    run_with_schedule,
    staleness_by_length,
    trained_trajectories,
    window,
)
from analysis.swe_evaluations import is_software, load_swe
from analysis.swe_table import build_swe_table
from analysis.table_data import ALL_TASKS, SCORE, WARM_START, build_table
from evaluation.math.protocol import BENCHMARKS
from evaluation.swe.protocol import BENCHMARKS as SWE_BENCHMARKS

TITLES = {str(one.published): one.title for one in (*BENCHMARKS.values(), *SWE_BENCHMARKS.values())}
GANTT_TICKS, GANTT_SLOTS = 150, 32
OLDEST_SHOWN = 30  # staleness at the dark end of the Gantt chart's colours


def draw_scores(logs: Logs, panel: Panel, axes: Axes) -> pd.DataFrame:
    """Bars of the rows' values over all tasks as the panel's table gives them, with 95% intervals.

    A trained row shows its score, the warm start its one evaluation.
    """
    rows = [series.row for series in panel.series]
    data = build_table(logs, str(panel.table))
    shown = data["measure"].isin((SCORE, WARM_START)) & (data["column"] == ALL_TASKS) & data["row"].isin(rows)
    frame = data.loc[shown, ["row", "label", "measure", "value", "low", "high", "seeds", "runs"]]
    frame = frame.set_index("row").reindex([row for row in rows if row in set(frame["row"])]).reset_index()
    if frame["value"].isna().all():
        return pd.DataFrame()
    reach = [frame["value"] - frame["low"], frame["high"] - frame["value"]]
    colours = [drawing.row_style(row)[0] for row in frame["row"]]
    axes.bar(frame.index, frame["value"], 0.6, color=colours)
    axes.errorbar(frame.index, frame["value"], reach, fmt="none", color="#222222", capsize=3, linewidth=1)
    drawing.name_bars(axes, [_short(label) for label in frame["label"]])
    drawing.label_bars(axes, frame.index, frame["high"].fillna(frame["value"]), frame["value"])
    return frame


def draw_published(logs: Logs, panel: Panel, axes: Axes) -> pd.DataFrame:
    """Bars of the paper's values: one group a row, one bar a benchmark; on SWE-Bench ours beside them."""
    published = load_published()
    lines = []
    for series in panel.series:
        chosen = published[(published["artifact"] == panel.table) & (published["row"] == series.row)]
        lines.append(chosen[chosen["benchmark"].isin(panel.benchmarks)])
    frame = pd.concat(lines, ignore_index=True)[["row", "label", "benchmark", "value", "note"]]
    rows = list(dict.fromkeys(frame["row"]))
    own = _own_shares(logs, panel).reindex(rows)
    bars = len(panel.benchmarks) + bool(own["value"].notna().any())
    width = 0.8 / bars
    for offset, benchmark in enumerate(panel.benchmarks):
        values = frame[frame["benchmark"] == benchmark].set_index("row")["value"].reindex(rows)
        places = np.arange(len(rows)) + (offset - (bars - 1) / 2) * width
        colour, hatch = drawing.BENCHMARK_STYLES[offset]
        axes.bar(
            places,
            values,
            width,
            label=_bar_label(benchmark, bars, panel),
            color=colour,
            hatch=hatch,
            edgecolor="white",
        )
        if len(panel.benchmarks) == 1:
            drawing.label_bars(axes, places, values, values)
    if bars > len(panel.benchmarks):
        places = np.arange(len(rows)) + (bars - 1) / 2 * width
        reach = [own["value"] - own["low"], own["high"] - own["value"]]
        axes.bar(places, own["value"], width, color=[drawing.row_style(row)[0] for row in rows], label="ours")
        axes.errorbar(places, own["value"], reach, fmt="none", color="#222222", capsize=3, linewidth=1)
        frame = pd.concat([frame, own.dropna(subset="value").reset_index()], ignore_index=True)
        drawing.label_bars(axes, places, own["high"].fillna(own["value"]), own["value"])
    names = frame.drop_duplicates("row").set_index("row")["label"]
    drawing.name_bars(axes, [_short(str(names[row])) for row in rows])
    return frame


def _bar_label(benchmark: str, bars: int, panel: Panel) -> str:
    """A benchmark's name in the legend; none where the panel has no other bars, as its title names it."""
    if bars > len(panel.benchmarks):
        return f"{TITLES[benchmark]}, the paper"
    return TITLES[benchmark] if bars > 1 else "_named in the title"


def _own_shares(logs: Logs, panel: Panel) -> pd.DataFrame:
    """Our shares on SWE-Bench by row, with intervals; empty for other tables and where none is complete."""
    columns = ["label", "benchmark", "value", "low", "high", "runs"]
    if not is_software(load_artifacts().tables[str(panel.table)]):
        return pd.DataFrame(columns=columns, dtype=float)
    data = build_swe_table(logs, load_swe(logs), str(panel.table)).rename(columns={"column": "benchmark"})
    return data[data["measure"] == EVALUATION].set_index("row")[columns]


def draw_gantt(logs: Logs, panel: Panel, axes: Axes) -> pd.DataFrame:
    """Slots and updates of one run over ticks of the virtual clock; shades tell a trajectory's staleness.

    Behind the bars a line leads from the end of each trajectory to its grade.
    """
    shade = drawing.staleness_colours(OLDEST_SHOWN)
    drawing.share_colour_bar(axes, shade, "staleness (updates)")
    run = run_with_schedule(logs.finished(panel.series[0].row))
    if run is None:
        return pd.DataFrame()
    trajectories, updates, first = window(read_schedule(run), GANTT_TICKS, GANTT_SLOTS)
    axes.barh(
        trajectories["slot"],
        trajectories["end_tick"] - trajectories["start_tick"],
        left=trajectories["start_tick"],
        height=0.8,
        color=shade.to_rgba(trajectories["staleness"].to_numpy()),
        edgecolor="white",
        linewidth=0.3,
    )
    waits = trajectories["end_tick"], trajectories["graded_tick"]
    axes.hlines(trajectories["slot"], *waits, color="#888888", linewidth=0.8, zorder=0.9)
    spans = updates["end_tick"] - updates["start_tick"]
    axes.barh(
        np.full(len(updates), GANTT_SLOTS + 1.5),
        spans,
        left=updates["start_tick"],
        height=2.4,
        color="#000000",
    )
    axes.set_yticks([0, 8, 16, 24, GANTT_SLOTS + 1.5], ["0", "8", "16", "24", "trainer"])
    later = (
        run.later_updates[["sampler_idle_share", "trainer_idle_share", "staleness_mean"]].astype(float).mean()
    )
    drawing.note_below(
        axes,
        f"idle: sampler {later['sampler_idle_share']:.0%}, trainer {later['trainer_idle_share']:.0%}; "
        f"mean staleness {later['staleness_mean']:.1f} updates",
    )
    columns = ["kind", "slot", "start_tick", "end_tick", "graded_tick", "step", "staleness"]
    frame = pd.concat([trajectories, updates])[columns]
    frame[["start_tick", "end_tick", "graded_tick"]] += first
    return frame.assign(run=run.directory)


def draw_ratios(logs: Logs, panel: Panel, axes: Axes) -> pd.DataFrame:
    """Share of action tokens by trainer-to-rollout ratio on logarithmic axes, with the rows' DIS band."""
    frames = []
    for series in panel.series:
        shares = ratio_shares(logs.finished(series.row))
        inner = shares[(shares["low"] > 0) & np.isfinite(shares["high"].astype(float))]
        if inner.empty:
            continue
        colour, line, _ = drawing.row_style(series.row)
        edges = [*inner["low"], inner["high"].iloc[-1]]
        axes.stairs(
            inner["share"], edges, color=colour, linestyle=line, linewidth=1.5, label=_label(logs, series)
        )
        frames.append(shares.assign(row=series.row))
    _mark_band(logs, panel, axes)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([0.1, 0.3, 1, 3, 10], ["0.1", "0.3", "1", "3", "10"])
    return pd.concat(frames) if frames else pd.DataFrame()


def draw_staleness(logs: Logs, panel: Panel, axes: Axes) -> pd.DataFrame:
    """Share of action tokens by the age of the weights that sampled them."""
    frames = []
    for series in panel.series:
        shares = staleness_shares(logs.finished(series.row))
        if shares.empty:
            continue
        colour, line, _ = drawing.row_style(series.row)
        edges = np.arange(len(shares) + 1) - 0.5
        axes.stairs(
            shares["share"], edges, color=colour, linestyle=line, linewidth=1.5, label=_label(logs, series)
        )
        frames.append(shares.assign(row=series.row))
    return pd.concat(frames) if frames else pd.DataFrame()


def draw_staleness_by_length(logs: Logs, panel: Panel, axes: Axes) -> pd.DataFrame:
    """Staleness of a trajectory's oldest token against its length, one run a row: mean, and 10% to 90%."""
    frames = []
    for series in panel.series:
        run = run_with_schedule(logs.finished(series.row))
        if run is None:
            continue
        binned = staleness_by_length(trained_trajectories(read_schedule(run)))
        colour, line, marker = drawing.row_style(series.row)
        axes.plot(
            binned["tokens"],
            binned["mean"],
            color=colour,
            linestyle=line,
            marker=marker,
            markersize=4.5,
            label=f"{row_label(series.row)} (seed {run.seed})",
        )
        axes.fill_between(
            binned["tokens"], binned["low"], binned["high"], color=colour, alpha=0.15, linewidth=0
        )
        frames.append(binned.assign(row=series.row, run=run.directory))
    return pd.concat(frames) if frames else pd.DataFrame()


PANELS = {
    "scores": draw_scores,
    "published": draw_published,
    "gantt": draw_gantt,
    "ratios": draw_ratios,
    "staleness": draw_staleness,
    "staleness_by_length": draw_staleness_by_length,
}
INTERVALS = {
    "scores": "whiskers: 95% intervals over seeds and problems, of one evaluation over problems",
    "staleness_by_length": "band of the last panel: 10% to 90% of the trajectories",
}
X_LABELS = {
    "scores": "",
    "published": "",
    "gantt": "ticks of the virtual clock, from mid-training",
    "ratios": "ratio of trainer to sampler",
    "staleness": "age of the weights (updates)",
    "staleness_by_length": "action tokens of the trajectory",
}


def _mark_band(logs: Logs, panel: Panel, axes: Axes) -> None:
    """Lines at the edges of the first row's DIS band."""
    runs = logs.finished(panel.series[0].row)
    objective = runs[0].record.config["objective"] if runs else {}
    if objective.get("kind") == "dis":
        drawing.mark_edge(axes, 1 - objective["eps_low"], "edges of the DIS band")
        drawing.mark_edge(axes, 1 + objective["eps_high"])


def _label(logs: Logs, series: Series) -> str:
    count = len(logs.finished(series.row))
    return f"{series.label or row_label(series.row)} ({count} seed{'s' if count > 1 else ''})"


def _short(label: str) -> str:
    return label.replace(" (", "\n(").replace(" w/", "\nw/").replace(" + ", "\n+ ")
