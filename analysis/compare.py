"""Two finished runs side by side: settings that differ, curves, and a test paired by held-out problem.

    python -m analysis.compare results/cpu/runs/sao/seed0 results/cpu/runs/grpo_dis/seed0 [--out comparison]

prints Markdown; with `--out` also writes it to that folder, with the curves as a figure and as curves.csv.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import drawing
from analysis.artifacts import Panel, Series, row_label
from analysis.command import run_command
from analysis.curves import WINDOW, X_LABELS, accuracy_curve, metric_curve
from analysis.layout import difference_text
from analysis.load import AnalysisError, Run, load_run
from analysis.render import EMPTY, Sheet, to_markdown
from analysis.statistics import crossed_bootstrap, holm, p_value
from sao.runlog import METRIC_COLUMNS

SCORE = "score: mean of the last two"
ACCURACY = "held-out accuracy"
CURVES = ("reward_mean", "entropy", "staleness_mean")
METRICS = (
    "reward_mean",
    "entropy",
    "policy_grad_norm",
    "masked_low",
    "masked_high",
    "clipped",
    "effective_sample_size",
    "explained_variance_before",
    "critic_grad_norm",
    "value_mean",
    "staleness_mean",
    "truncated",
    "mean_action_tokens",
    "mean_turns",
    "sampler_idle_share",
    "trainer_idle_share",
)
ONE_RUN_EACH = (
    "Differences are A - B, with 95% intervals and p-values over problems alone, paired by problem: one run "
    "each says nothing of other seeds (for those: python -m analysis.comparisons). Where single answers are "
    "sampled, their noise is part of both. Holm: p-values of the steps corrected for their number."
)


def compare(first: Run, second: Run) -> str:
    """Markdown: who the two are, settings that differ, evaluations by step, means of the later updates.

    Raises AnalysisError where the runs are not comparable.
    """
    check_comparable(first, second)
    sheets = [
        _runs_sheet(first, second),
        _settings_sheet(first, second),
        _evaluations_sheet(first, second),
        _metrics_sheet(first, second),
    ]
    return "\n".join(["# Run A against run B", "", *("#" + to_markdown(sheet) for sheet in sheets)])


def check_comparable(first: Run, second: Run) -> None:
    """Raises AnalysisError for the same run twice, other tasks, other problems, or no step in common."""
    both = f"{first.directory} and {second.directory}"
    if Path(first.directory).resolve() == Path(second.directory).resolve():
        raise AnalysisError(f"{first.directory}: is named twice; name two runs")
    tasks = [run.record.config["task"]["name"] for run in (first, second)]
    if tasks[0] != tasks[1]:
        raise AnalysisError(
            f"{both}: were trained on other tasks ({tasks[0]} and {tasks[1]}); name two runs of one task"
        )
    for run in (first, second):
        if run.correct.empty:
            raise AnalysisError(f"{run.directory}: has no evaluations; name a run that was evaluated")
    if not first.correct.columns.equals(second.correct.columns):
        shared = len(first.correct.columns.intersection(second.correct.columns))
        raise AnalysisError(
            f"{both}: were evaluated on other held-out problems ({shared} in common of "
            f"{first.correct.shape[1]} and {second.correct.shape[1]}), so nothing can be paired; "
            "name runs of scales with the same task block"
        )
    if not common_steps(first, second):
        raise AnalysisError(
            f"{both}: have no evaluation step in common; give evaluation.steps of their scales one in common"
        )


def common_steps(first: Run, second: Run) -> list[int]:
    return [int(step) for step in first.correct.index if step in second.correct.index]


def setting_differences(first: dict[str, Any], second: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Settings that differ, as (dotted name, value in the first, value in the second); titles aside.

    A dash stands for null and for a setting that a run does not have.
    """
    old, new = (pd.json_normalize(settings).to_dict("records")[0] for settings in (first, second))
    shown = [(str(name), _shown(old, name), _shown(new, name)) for name in dict.fromkeys([*old, *new])]
    return [(name, a, b) for name, a, b in shown if name != "title" and a != b]


def paired_lines(first: Run, second: Run) -> list[dict[str, Any]]:
    """Accuracies at each common step and of the score, with difference, interval, p and p after Holm."""
    pairs = [(str(step), first.at(step), second.at(step)) for step in common_steps(first, second)]
    lines = [_paired_line(name, a, b) for name, a, b in pairs]
    for line, adjusted in zip(lines, holm([line["p"] for line in lines]), strict=True):
        line["holm"] = float(adjusted)
    return [*lines, _paired_line(SCORE, first.score(), second.score())]


def curve_table(first: Run, second: Run) -> pd.DataFrame:
    """The drawn curves before smoothing, with the columns quantity, step, a, b; accuracies as shares."""
    parts = [_joined(ACCURACY, first.accuracies, second.accuracies)]
    for name in CURVES:
        a, b = (run.policy_updates.set_index("step")[name].astype(float) for run in (first, second))
        parts.append(_joined(name, a, b))
    return pd.concat(parts, ignore_index=True)


def write_comparison(first: Run, second: Run, text: str, out: Path, command: str) -> None:
    """Write comparison.md, curves.csv and the figure of the curves into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "comparison.md").write_text(text, encoding="utf-8")
    table = curve_table(first, second)
    table.to_csv(out / "curves.csv", index=False, float_format="%.6g", lineterminator="\n")
    drawing.apply_settings()
    canvas, axes = drawing.new_figure(1 + len(CURVES))
    for position, (name, run) in enumerate((("A", first), ("B", second))):
        label = f"{name}: {_name(run)}"
        drawing.draw_curve(axes[0], accuracy_curve([run], label, "updates"), position)
        for place, panel in zip(axes[1:], map(_panel, CURVES), strict=True):
            curve = metric_curve([run], panel.series[0], label, panel, "updates")
            drawing.draw_curve(place, curve, position)
    drawing.finish_panel(axes[0], "", X_LABELS["updates"], f"{ACCURACY} (%)", (0.0, None), True, False)
    for place, panel in zip(axes[1:], map(_panel, CURVES), strict=True):
        drawing.finish_panel(place, "", X_LABELS["updates"], panel.y_label, (None, None), True, False)
    smoothed = f"Metrics are centred moving means of {WINDOW} updates, points single updates"
    drawing.write_figure(canvas, out / "curves", f"{smoothed}. {command}")


def _runs_sheet(first: Run, second: Run) -> Sheet:
    rows = [
        [
            name,
            run.directory,
            row_label(run.record.row),
            str(run.record.row),
            run.record.scale,
            str(run.seed),
            str(run.updates),
            "none" if run.collapse_step is None else f"at step {run.collapse_step}",
            f"{run.cpu_minutes:.1f}",
            str((run.record.provenance.get("git") or {}).get("commit") or EMPTY)[:10],
        ]
        for name, run in (("A", first), ("B", second))
    ]
    header = ["run", "directory", "title", "row", "scale", "seed", "updates", "collapse", "CPU-min", "commit"]
    return Sheet("Runs", header, rows)


def _settings_sheet(first: Run, second: Run) -> Sheet:
    differing = setting_differences(first.record.config, second.record.config)
    rows = [[f"`{name}`", left, right] for name, left, right in differing]
    footer = [] if rows else ["The two runs have the same settings."]
    return Sheet("Settings that differ", ["setting", "A", "B"], rows, footer)


def _evaluations_sheet(first: Run, second: Run) -> Sheet:
    rows = [
        [
            line["evaluation"],
            f"{line['a']:.1f}",
            f"{line['b']:.1f}",
            difference_text(line["difference"], line["low"], line["high"]),
            f"{line['only_a']} : {line['only_b']}",
            f"{line['p']:.2g}",
            f"{line['holm']:.2g}" if "holm" in line else EMPTY,
        ]
        for line in paired_lines(first, second)
    ]
    problems = first.correct.shape[1]
    header = ["step", "A (%)", "B (%)", "A - B (points)", "better in A : in B (problems)", "p", "p, Holm"]
    return Sheet(f"Held-out evaluations ({problems} problems)", header, rows, [ONE_RUN_EACH])


def _metrics_sheet(first: Run, second: Run) -> Sheet:
    rows = []
    for name in METRICS:
        a, b = _later_mean(first, name), _later_mean(second, name)
        if not (np.isnan(a) and np.isnan(b)):
            rows.append([f"`{name}`", _number(a), _number(b), METRIC_COLUMNS[name].unit])
    note = "Later updates: the last two thirds of each run's policy updates; nulls are left out."
    return Sheet("Mean over the later updates", ["metric", "A", "B", "unit"], rows, [note])


def _paired_line(name: str, a: pd.Series, b: pd.Series) -> dict[str, Any]:
    differences = (a - b).to_numpy(dtype=np.float64)
    interval = crossed_bootstrap(differences[None])
    return {
        "evaluation": name,
        "a": 100 * float(a.mean()),
        "b": 100 * float(b.mean()),
        "difference": 100 * interval.estimate,
        "low": 100 * interval.low,
        "high": 100 * interval.high,
        "only_a": int((differences > 0).sum()),
        "only_b": int((differences < 0).sum()),
        "p": p_value(differences[None]),
    }


def _joined(quantity: str, a: pd.Series, b: pd.Series) -> pd.DataFrame:
    joined = pd.concat([a.rename("a"), b.rename("b")], axis=1).sort_index()
    return joined.rename_axis("step").reset_index().assign(quantity=quantity)[["quantity", "step", "a", "b"]]


def _panel(column: str) -> Panel:
    unit = METRIC_COLUMNS[column].unit
    label = f"{column} ({unit})" if unit else column
    return Panel(name=column, quantity="metric", y_label=label, series=[Series(row="", columns=[column])])


def _later_mean(run: Run, column: str) -> float:
    updates = run.policy_updates
    return float(updates.loc[updates["step"] >= run.updates / 3, column].astype(float).mean())


def _name(run: Run) -> str:
    return f"{run.record.row}, {run.record.scale}, seed {run.seed}"


def _shown(settings: dict[Hashable, Any], name: Hashable) -> str:
    value = settings.get(name)
    return EMPTY if value is None else json.dumps(value)


def _number(value: float) -> str:
    return EMPTY if np.isnan(value) else f"{value:.4g}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.compare", description="Compare two finished runs of one task."
    )
    parser.add_argument("run_a", type=Path, help="run directory, e.g. results/cpu/runs/sao/seed0")
    parser.add_argument("run_b", type=Path, help="run directory to compare it with")
    parser.add_argument("--out", type=Path, help="folder for comparison.md, curves.csv and the figure")
    options = parser.parse_args(arguments)
    first, second = load_run(options.run_a), load_run(options.run_b)
    text = compare(first, second)
    if options.out is not None:
        words = ["python", "-m", "analysis.compare", first.directory, second.directory]
        command = shlex.join([*words, "--out", str(options.out)])
        write_comparison(first, second, text, options.out, command)
    print(text)
    if options.out is not None:
        print(f"wrote {options.out}/comparison.md, curves.csv and curves.{', .'.join(drawing.FORMATS)}")


if __name__ == "__main__":
    sys.exit(run_command(main))
