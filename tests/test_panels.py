"""Panels that are no curves, from made-up runs and schedules with values counted by hand."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_runs import PROBLEMS, write_run, write_warm_start

from analysis import figures
from analysis.distributions import ratio_shares, staleness_shares
from analysis.load import Logs, load_logs
from analysis.schedules import (
    read_schedule,
    run_with_schedule,
    staleness_by_length,
    trained_trajectories,
    window,
)
from sao.runlog import SCHEDULE_COLUMNS, append_records

RATIOS = [0] * 62
RATIOS[0], RATIOS[30], RATIOS[31], RATIOS[61] = 1, 2, 4, 1  # below exp(-3), [-0.1, 0), [0, 0.1), above exp(3)
AGES = [0] * 64
AGES[0], AGES[2] = 3, 1


def line(kind: str, step: int, start: int, end: int, **more: int) -> dict[str, object]:
    columns = {"kind": kind, "step": step, "start_tick": start, "end_tick": end}
    return dict.fromkeys(SCHEDULE_COLUMNS) | columns | more


def trajectory(
    step: int, slot: int, start: int, end: int, version: int, tokens: int = 5
) -> dict[str, object]:
    more = {"slot": slot, "first_version": version, "action_tokens": tokens, "graded_tick": end + 15}
    return line("trajectory", step, start, end, **more)


SCHEDULE = [
    line("load", -1, 0, 10, last_version=0),
    trajectory(-1, 0, 0, 20, 0),
    line("update", -1, 30, 33),
    trajectory(0, 0, 21, 90, 0, tokens=4),
    line("update", 0, 95, 98),
    trajectory(1, 1, 60, 120, 0, tokens=40),
    trajectory(1, 2, 100, 400, 1, tokens=40),
    trajectory(1, 40, 101, 150, 1),
    line("update", 1, 100, 103),
    line("update", 2, 300, 303),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results") / "cpu"
    write_warm_start(folder, "locks", 0.25)
    early_other = [[8, *[0] * 61] if step < 40 else RATIOS for step in range(120)]
    for seed in range(3):
        write_run(
            folder,
            "sao",
            seed,
            (0.4, 0.4, 0.5, 0.5, 0.6),
            ratio_histogram=early_other,
            staleness_histogram=[AGES] * 120,
        )
    append_records(folder / "runs/sao/seed1/schedule.jsonl.gz", SCHEDULE_COLUMNS, SCHEDULE)
    return folder


@pytest.fixture(scope="module")
def logs(folder: Path) -> Logs:
    return load_logs(folder, ["sao"])


def test_ratios_are_pooled_over_the_later_updates(logs: Logs) -> None:
    shares = ratio_shares(logs.finished("sao"))
    seen = shares[shares["share"] > 0]
    assert list(seen["share"]) == [12.5, 25.0, 50.0, 12.5]
    assert list(seen["low"]) == pytest.approx([0, np.exp(-0.1), 1, np.exp(3)])
    assert list(seen["high"]) == pytest.approx([np.exp(-3), 1, np.exp(0.1), np.inf])


def test_staleness_ends_with_the_oldest_token(logs: Logs) -> None:
    shares = staleness_shares(logs.finished("sao"))
    assert shares.to_dict("list") == {"staleness": [0, 1, 2], "share": [75.0, 0.0, 25.0]}


def test_rows_without_distributions_give_no_lines(tmp_path: Path) -> None:
    write_run(tmp_path / "cpu", "grpo_dis", 0, (0.4,) * 5)
    runs = load_logs(tmp_path / "cpu", ["grpo_dis"]).finished("grpo_dis")
    assert ratio_shares(runs).empty and staleness_shares(runs).empty


def test_schedule_is_found_in_whichever_seed_has_it(logs: Logs) -> None:
    run = run_with_schedule(logs.finished("sao"))
    assert run is not None and run.seed == 1
    assert len(read_schedule(run)) == len(SCHEDULE)
    assert run_with_schedule(logs.finished("sao")[:1]) is None


def test_trajectories_of_policy_updates_have_the_age_of_their_oldest_token() -> None:
    trained = trained_trajectories(pd.DataFrame(SCHEDULE))
    assert list(trained["staleness"]) == [0, 1, 0, 0]


def test_window_clips_bars_to_its_ticks_and_slots() -> None:
    """It starts with the middle one of three updates, at tick 100, and lasts 50 ticks."""
    trajectories, updates, first = window(pd.DataFrame(SCHEDULE), ticks=50, slots=32)
    assert first == 100
    columns = ["slot", "start_tick", "end_tick", "graded_tick"]
    assert trajectories[columns].to_numpy().tolist() == [[1, 0, 20, 35], [2, 0, 50, 50]]
    assert updates[["start_tick", "end_tick"]].to_numpy().tolist() == [[0, 3]]


def test_staleness_by_length_takes_bins_of_equal_counts() -> None:
    trained = pd.DataFrame({"action_tokens": [1, 2, 3, 4, 50, 60], "staleness": [0, 0, 1, 3, 5, 9]})
    binned = staleness_by_length(trained, bins=3)
    assert list(binned["tokens"]) == [1.5, 3.5, 55.0]
    assert list(binned["mean"]) == [0.0, 2.0, 7.0]
    assert list(binned["trajectories"]) == [2, 2, 2]
    lone = staleness_by_length(pd.DataFrame({"action_tokens": [7, 7], "staleness": [1, 2]}))
    assert list(lone["mean"]) == [1.5]


def test_bars_are_the_tables_values_beside_the_papers(logs: Logs, tmp_path: Path) -> None:
    figures.draw_figure(logs, "figure1", "updates", tmp_path, "command")
    data = pd.read_csv(tmp_path / "figure1.csv")
    ours = data[data["panel"] == "a"].set_index("row")
    score = 100 * (round(0.5 * PROBLEMS) + round(0.6 * PROBLEMS)) / 2 / PROBLEMS
    assert list(ours.index) == ["warm_start", "sao"]
    assert ours.loc["sao", "value"] == pytest.approx(score) and ours.loc["warm_start", "value"] == 25.0
    assert ours.loc["sao", "low"] < score < ours.loc["sao", "high"]
    paper = data[(data["panel"] == "b") & (data["row"] == "sao")].set_index("benchmark")["value"]
    assert paper["AIME2025"] == 97.3 and paper["IMOAnswerBench"] == 74.0
    assert set(data.loc[data["panel"] == "c", "row"]) == {"base_swe", "grpo_dis_swe", "sao_swe"}


def test_gantt_chart_is_drawn_from_the_schedule_alone(logs: Logs, tmp_path: Path) -> None:
    figures.draw_figure(logs, "figure2", "updates", tmp_path, "command")
    data = pd.read_csv(tmp_path / "figure2.csv")
    assert set(data["panel"]) == {"c"} and set(data["run"]) == {"runs/sao/seed1"}
    assert sorted(data.loc[data["kind"] == "trajectory", "start_tick"]) == [100, 100]
    assert sorted(data.loc[data["kind"] == "trajectory", "graded_tick"]) == [135, 250]
    caption = (tmp_path / "figure2.md").read_text()
    assert "- `grpo_sync`: not run" in caption and "Not shown" in caption
