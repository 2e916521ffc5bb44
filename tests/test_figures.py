"""Figures from made-up runs: the drawn values, captions, formats and repeatability."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from swe_scores import evaluate, outcomes
from synthetic_runs import PROBLEMS, write_run, write_warm_start

from analysis import drawing, figures
from analysis.artifacts import Panel, Series, load_artifacts
from analysis.command import run_command
from analysis.curves import WINDOW, accuracy_curve, metric_curve, style_curves
from analysis.load import Logs, load_logs

STABLE = (0.40, 0.45, 0.50, 0.55, 0.60)
COLLAPSING = (0.50, 0.55, 0.50, 0.20, 0.10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results") / "cpu"
    write_warm_start(folder, "locks", 0.25)
    for seed in range(2):
        reward = [0.3 + 0.1 * seed] * 120
        variance = [None if step == 50 else -5.0 if step == 10 else 0.4 for step in range(120)]
        write_run(
            folder,
            "sao",
            seed,
            [value + 0.1 * seed for value in STABLE],
            reward_mean=reward,
            explained_variance_before=variance,
        )
        write_run(folder, "sao_online", seed, STABLE)
    write_run(folder, "grpo_vanilla", 0, COLLAPSING)
    return folder


@pytest.fixture(scope="module")
def logs(folder: Path) -> Logs:
    return load_logs(folder, ["sao", "grpo_vanilla", "sao_online"])


def panel(smoothing: str = "mean", **more: object) -> Panel:
    return Panel(name="a", quantity="metric", y_label="", smoothing=smoothing, series=[], **more)


def test_accuracy_curve_is_mean_and_range_over_seeds(logs: Logs) -> None:
    curve = accuracy_curve(logs.finished("sao"), "SAO", "updates")
    assert list(curve.x) == [0, 24, 48, 72, 96, 120]
    lowest = 100 * round(0.4 * PROBLEMS) / PROBLEMS
    highest = 100 * round(0.5 * PROBLEMS) / PROBLEMS
    assert (curve.low[1], curve.high[1]) == pytest.approx((lowest, highest))
    assert curve.mean[1] == pytest.approx((lowest + highest) / 2)
    assert curve.mean[0] == curve.low[0] == curve.high[0] == 25.0
    assert curve.seeds == 2


def test_accuracy_against_compute_lies_at_the_compute_spent_by_then(logs: Logs) -> None:
    curve = accuracy_curve(logs.finished("sao"), "SAO", "compute")
    minutes_after_24_updates = 1.2 * (10 + 24) / 60
    assert (curve.x[0], curve.x[1]) == (0.0, pytest.approx(minutes_after_24_updates))
    tokens = accuracy_curve(logs.finished("sao"), "SAO", "tokens")
    assert tokens.x[-1] == pytest.approx(2000 * 130 / 1e6)


def test_metric_is_smoothed_by_seed_and_keeps_its_gaps(logs: Logs) -> None:
    series = Series(row="sao", columns=["explained_variance_before"])
    runs = logs.finished("sao")
    median = metric_curve(runs, series, "", panel("median"), "updates")
    assert np.isnan(median.mean[50]) and np.isfinite(median.mean[[49, 51]]).all()
    assert median.mean[10] == pytest.approx(0.4)
    assert median.points is not None and median.points[10] == pytest.approx(-5.0)
    mean = metric_curve(runs, series, "", panel("mean"), "updates")
    assert mean.mean[10] == pytest.approx((8 * 0.4 - 5.0) / WINDOW)
    assert metric_curve(runs, series, "", panel("none"), "updates").points is None


def test_metric_columns_are_added_and_shown_in_percent(logs: Logs) -> None:
    series = Series(row="sao", columns=["masked_low", "masked_high"])
    curve = metric_curve(logs.finished("sao"), series, "", panel(percent=True), "updates")
    assert curve.mean == pytest.approx(np.full(120, 0.5))


def test_style_shares_add_up(logs: Logs) -> None:
    curves = style_curves(logs.finished("sao_online"), "updates")
    assert [curve.label for curve in curves] == ["academic", "chuunibyou", "classical", "cute"]
    assert np.sum([curve.mean for curve in curves], axis=0) == pytest.approx(np.full(5, 100.0))


def test_every_figure_is_written_in_three_formats_with_its_caption(folder: Path, tmp_path: Path) -> None:
    figures.main(["--runs", str(folder), "--out", str(tmp_path)])
    written = {path.name for path in tmp_path.iterdir()}
    names = list(load_artifacts().figures)
    assert names == [*(f"figure{number}" for number in range(1, 7)), "ratio_and_staleness"]
    beside = {f"figure5_recovery.{suffix}" for suffix in ("csv", "md", "tex")}
    drawn = {f"{name}.{suffix}" for name in names for suffix in ("pdf", "svg", "png", "md", "csv")}
    assert written == drawn | beside
    starts = {"pdf": b"%PDF", "svg": b"<?xml", "png": b"\x89PNG"}
    for suffix, start in starts.items():
        assert all((tmp_path / f"{name}.{suffix}").read_bytes().startswith(start) for name in names)

    caption = (tmp_path / "figure3.md").read_text()
    assert "Scale cpu, task locks, seeds: sao 2, grpo_dis 0, grpo_vanilla 1." in caption
    assert "bands reach from the lowest to the highest seed" in caption
    assert "- `grpo_dis`: not run" in caption
    assert "- `runs/grpo_vanilla/seed0`" in caption
    assert f"python -m analysis.figures --runs {folder} --out {tmp_path} --artifact figure3" in caption
    assert "Panel a: 1 points lie below the axis." in (tmp_path / "figure4.md").read_text()


def test_figures_are_the_same_when_drawn_again(logs: Logs, tmp_path: Path) -> None:
    for place in ("first", "second"):
        figures.draw_figure(logs, "figure3", "compute", tmp_path / place, "command")
    for suffix in ("pdf", "svg", "png"):
        first, second = (tmp_path / place / f"figure3_compute.{suffix}" for place in ("first", "second"))
        assert first.read_bytes() == second.read_bytes()


def test_data_behind_a_figure_is_what_it_draws(logs: Logs, tmp_path: Path) -> None:
    figures.draw_figure(logs, "figure3", "updates", tmp_path, "command")
    data = pd.read_csv(tmp_path / "figure3.csv")
    curve = accuracy_curve(logs.finished("sao"), "SAO", "updates")
    drawn = data[data["series"] == "SAO"]
    assert list(drawn["mean"]) == pytest.approx(list(curve.mean), rel=1e-6)
    assert list(drawn["low"]) == pytest.approx(list(curve.low), rel=1e-6)
    assert set(drawn["seeds"]) == {2}


def test_collapse_is_marked_at_the_seeds_own_accuracy(
    logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked: list[tuple[float, float]] = []
    monkeypatch.setattr(
        figures.drawing, "mark_collapses", lambda axes, x, y, label: marked.extend(zip(x, y, strict=True))
    )
    figures.draw_figure(logs, "figure3", "updates", tmp_path, "command")
    assert marked == [(96, pytest.approx(100 * round(0.2 * PROBLEMS) / PROBLEMS))]


def test_phases_are_shaded_and_named(logs: Logs) -> None:
    composed = figures.compose_figure(logs, "figure5", "updates", "command")
    styles, _, reward = composed.canvas.axes
    for axes in (styles, reward):
        above = [(text.get_text(), text.get_position()[0]) for text in axes.texts][:3]
        assert [name for name, _ in above] == ["rewarded: cute", "chuunibyou", "classical"]
        assert above[1][1] == pytest.approx(60), "the middle of the second of three phases of 120 updates"
        (shade,) = [patch for patch in axes.patches if patch.get_width() == pytest.approx(40)]
        assert shade.get_x() == pytest.approx(40)


def test_no_style_of_writing_has_a_rows_colour() -> None:
    rows, writing = (
        {colour for colour, _, _ in styles} for styles in (drawing.STYLES, drawing.WRITING_STYLES)
    )
    assert not rows & writing and len(writing) == 5


def test_no_two_rows_of_the_figures_have_one_colour() -> None:
    """But for a method's rows in several tables, and for the policies before training."""
    drawn = {
        series.row
        for figure in load_artifacts().figures.values()
        for panel in figure.panels
        for series in panel.series
        if panel.quantity not in ("published", "gantt")
    }
    methods = {row.removesuffix("_online") for row in drawn}
    colours = {row: drawing.row_style(row)[0] for row in methods}
    assert len(methods) == 11 and len(set(colours.values())) == 11
    assert drawing.row_style("sao_online") == drawing.row_style("sao") == drawing.row_style("sao_swe")
    imported = {colour for colour, _, _ in drawing.IMPORTED_STYLES}
    assert len(imported) == 3 and not imported & {colour for colour, _, _ in drawing.STYLES}
    assert not imported & {colour for colour, _, _ in drawing.WRITING_STYLES}


def test_a_row_shown_again_keeps_its_colour_and_has_hollow_markers(tmp_path: Path) -> None:
    folder = tmp_path / "cpu"
    for row in ("sao", "sao_full_critic"):
        write_run(folder, row, 0, STABLE)
    logs = load_logs(folder, ["sao", "sao_full_critic"])
    axes = figures.compose_figure(logs, "figure4", "updates", "command").canvas.axes[1]
    _, first, second = (line for line in axes.get_lines() if not str(line.get_label()).startswith("_"))
    assert first.get_color() == second.get_color() == drawing.row_style("sao_full_critic")[0]
    assert first.get_markerfacecolor() == first.get_color() and second.get_markerfacecolor() == "#FFFFFF"


def test_an_axis_reaches_its_floor_only_where_the_data_do(logs: Logs, tmp_path: Path) -> None:
    """One update has an explained variance of -5; without it all lie at 0.4."""
    assert figures.compose_figure(logs, "figure4", "updates", "command").canvas.axes[0].get_ylim()[0] == -0.5
    folder = tmp_path / "cpu"
    write_run(folder, "sao", 0, STABLE, explained_variance_before=0.4)
    other = load_logs(folder, ["sao"])
    low, high = figures.compose_figure(other, "figure4", "updates", "command").canvas.axes[0].get_ylim()
    assert 0.3 < low < 0.4 < high < 0.5


def test_overlapping_crosses_are_said_to_overlap(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / "cpu", "grpo_vanilla", seed, COLLAPSING)
    logs = load_logs(tmp_path / "cpu", ["grpo_vanilla"])
    axes = figures.compose_figure(logs, "figure3", "updates", "command").canvas.axes[0]
    said = [text.get_text() for text in axes.get_legend().get_texts()]
    assert said == ["collapse of a seed (2 in all, some overlap)"]


def test_curves_are_named_at_their_ends_where_the_names_fit(logs: Logs) -> None:
    """SAO ends at about 65%, GRPO at 10%: far apart; the second seed of one row alone leaves no doubt."""
    axes = figures.compose_figure(logs, "figure3", "updates", "command").canvas.axes[0]
    assert [text.get_text() for text in axes.texts] == ["SAO\n2 seeds", "GRPO\n1 seed"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["collapse of a seed (1 in all)"]
    close = accuracy_curve(logs.finished("sao"), "SAO", "updates")
    for label in ("GRPO", "a label of more letters"):
        canvas = Figure()
        place = canvas.subplots()
        other = replace(close, label=label, mean=close.mean + (1 if label == "GRPO" else 60))
        for curve in (close, other):
            drawing.draw_curve(place, curve, 0)
        assert not drawing.label_ends(place, [close, other]) and not place.texts


def test_figure_1_shows_our_swe_bench_scores_beside_the_papers(tmp_path: Path) -> None:
    folder = tmp_path / "paper_swe"
    evaluate(folder / "evaluations", "sao_swe", outcomes(range(149)), step=200)
    figures.draw_figure(load_logs(folder, ["sao_swe"]), "figure1", "updates", tmp_path, "command")
    drawn = pd.read_csv(tmp_path / "figure1.csv").query("panel == 'c'")
    ours = drawn[drawn["runs"].notna()].iloc[0]
    assert (ours["row"], ours["value"]) == ("sao_swe", pytest.approx(29.8)) and len(drawn) == 4
    assert ours["low"] == pytest.approx(25.82, abs=0.01)
    composed = figures.compose_figure(load_logs(folder, ["sao_swe"]), "figure1", "updates", "command")
    empty, *_, beside = composed.canvas.axes
    assert [text.get_text() for text in empty.texts] == ["no finished run"]
    legend = [text.get_text() for text in beside.get_legend().get_texts()]
    assert legend == ["SWE-Bench Verified, the paper", "ours"]


def test_folder_without_data_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run_command(lambda: figures.main(["--runs", str(tmp_path), "--out", str(tmp_path / "figures")]))
    assert code == 2
    assert "no run here has data; train first" in capsys.readouterr().err
