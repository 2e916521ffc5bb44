"""Recovery after the switches of the rewarded style, on made-up rewards whose times are known."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_runs import write_run

from analysis import figures
from analysis.load import Logs, load_logs
from analysis.recovery import build_recovery, first_phase_sentences, level_before, recovery

CURVE = (0.3, 0.3, 0.3, 0.3, 0.3)
ROWS = ("sao_online", "running_mean_online")
LEARNT = 0.6


def rewards(delays: tuple[int | None, int | None], level: float = LEARNT) -> list[float]:
    """Phases of 40 updates: `level` in the first; after each switch 0 until `delay` updates passed."""
    first = [level] * 40
    for delay in delays:
        first += [0.0] * 40 if delay is None else [0.0] * delay + [level] * (40 - delay)
    return first


def logs_of(folder: Path, **by_row: list[list[float]]) -> Logs:
    for row, seeds in by_row.items():
        for seed, reward in enumerate(seeds):
            write_run(folder, row, seed, CURVE, reward_mean=reward)
    return load_logs(folder, list(by_row))


def slow_time(reward: list[float], switch: int, level: float) -> int | None:
    """Updates until the mean of the latest 9 is half of `level`, by loops alone; None if it is not."""
    means = [sum(reward[max(0, s - 8) : s + 1]) / len(reward[max(0, s - 8) : s + 1]) for s in range(120)]
    phase = means[40 * switch : 40 * switch + 40]
    lowest = phase.index(min(phase))
    for update in range(lowest, 40):
        if phase[update] >= level / 2:
            return update if phase[lowest] < level / 2 else 0
    return None


def test_time_counts_from_the_switch_to_the_mean_of_nine(tmp_path: Path) -> None:
    run = logs_of(tmp_path, sao_online=[rewards((10, 25))]).finished("sao_online")[0]
    assert level_before(run, 1) == level_before(run, 2) == pytest.approx(LEARNT)
    # 5 of 9 updates at the level bring the mean to more than half of it.
    assert recovery(run, 1, LEARNT).updates == 10 + 4
    assert recovery(run, 2, LEARNT).updates == 25 + 4


def test_times_are_those_of_a_slow_loop(tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    for delays in ((0, 3), (12, None), (35, 37)):
        noisy = [float(value) for value in np.array(rewards(delays)) + generator.uniform(0, 0.2, 120)]
        folder = tmp_path / str(delays)
        run = logs_of(folder, sao_online=[noisy]).finished("sao_online")[0]
        for switch in (1, 2):
            for level in (0.3, LEARNT, 1.2):
                time = recovery(run, switch, level)
                slow = slow_time([float(f"{value:.7g}") for value in noisy], switch, level)
                assert (None if time.censored else time.updates) == slow
                assert time.updates == 40 or not time.censored


def test_old_texts_behind_a_switch_are_no_recovery(tmp_path: Path) -> None:
    """The reward holds on for six updates, as in batches of texts begun before the switch, and then falls."""
    reward = [LEARNT] * 46 + [0.0] * 74
    run = logs_of(tmp_path, sao_online=[reward]).finished("sao_online")[0]
    assert recovery(run, 1, LEARNT).censored


def test_censored_runs_enter_with_the_phases_length_and_are_counted(tmp_path: Path) -> None:
    slow, never = rewards((20, 10)), rewards((None, 10))
    logs = logs_of(tmp_path, sao_online=[slow, slow, never], running_mean_online=[never] * 3)
    data = build_recovery(logs, ROWS).set_index(["switch", "level", "row", "minus"])
    line = data.loc[(1, "own", "sao_online", "")]
    assert (line["recovered"], line["censored"]) == (2, 1)
    assert line["time"] == pytest.approx((24 + 24 + 40) / 3)
    half = 4.302653 * np.std([24, 24, 40], ddof=1) / np.sqrt(3)
    assert line["high"] - line["time"] == pytest.approx(half, rel=1e-5)
    none = data.loc[(1, "own", "running_mean_online", "")]
    assert (none["time"], none["interval"], none["recovered"]) == (40, "all equal", 0)
    assert np.isnan(none["low"]) and np.isnan(none["high"])
    gap = data.loc[(1, "own", "sao_online", "running_mean_online")]
    assert gap["time"] == pytest.approx(-32 / 3)


def test_common_level_asks_the_same_of_every_row(tmp_path: Path) -> None:
    """A row that had learnt a third as much is back at its own level, and not at the common one."""
    logs = logs_of(
        tmp_path,
        sao_online=[rewards((10, 10))] * 3,
        running_mean_online=[rewards((10, 10), level=0.2)] * 3,
    )
    data = build_recovery(logs, ROWS).set_index(["switch", "level", "row", "minus"])
    assert data.loc[(1, "own", "running_mean_online", ""), "censored"] == 0
    common = data.loc[(1, "common", "running_mean_online", "")]
    assert common["share_of"] == pytest.approx(0.4)
    assert common["censored"] == 3 or common["time"] > 14


def test_sentence_says_who_is_ahead_in_the_first_phase(tmp_path: Path) -> None:
    better = [[0.5 + 0.01 * seed] * 120 for seed in range(3)]
    worse = [[0.3] * 120] * 3
    (behind,) = first_phase_sentences(
        logs_of(tmp_path / "a", sao_online=better, running_mean_online=worse), ROWS
    )
    assert "is behind" in behind and "-0.210 [" in behind and "3 seeds" in behind
    (ahead,) = first_phase_sentences(
        logs_of(tmp_path / "b", sao_online=worse, running_mean_online=better), ROWS
    )
    assert "is ahead of" in ahead and "+0.210 [" in ahead
    mixed = [[0.1] * 120, [0.5] * 120, [0.4] * 120]
    (open_,) = first_phase_sentences(
        logs_of(tmp_path / "c", sao_online=worse, running_mean_online=mixed), ROWS
    )
    assert "is not clearly ahead of or behind" in open_
    (alone,) = first_phase_sentences(
        logs_of(tmp_path / "d", sao_online=worse[:1], running_mean_online=better[:1]), ROWS
    )
    assert "no interval" in alone and "1 seed)" in alone


def test_figure_5_writes_them_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "cpu"
    logs_of(folder, sao_online=[rewards((10, 25))] * 2, running_mean_online=[rewards((20, None))] * 2)
    figures.main(["--runs", str(folder), "--out", str(tmp_path / "figures"), "--artifact", "figure5"])
    data = pd.read_csv(tmp_path / "figures/figure5_recovery.csv")
    assert set(data["row"]) == set(ROWS) and set(data["switch"]) == {1, 2}
    shown = (tmp_path / "figures/figure5_recovery.md").read_text(encoding="utf-8")
    assert "at least 40.0 (none is back within 40)" in shown
    assert "Phase 1, before the first switch" in shown
    assert "Phase 1, before the first switch" in (tmp_path / "figures/figure5.md").read_text(encoding="utf-8")
    assert (tmp_path / "figures/figure5_recovery.tex").exists()


def test_no_finished_run_leaves_an_empty_table(tmp_path: Path) -> None:
    write_run(tmp_path, "sao_online", 0, CURVE[:2], finished=False)
    assert build_recovery(load_logs(tmp_path, ROWS), ROWS).empty
