"""Verdicts on made-up runs whose right verdict is known."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_runs import PROBLEMS, write_run

from analysis import claims
from analysis.artifacts import Claim, load_artifacts
from analysis.claim_tests import TESTS, Effect
from analysis.claims import COLUMNS, judge, verdict
from analysis.load import Logs, Outcomes, load_logs
from analysis.statistics import Interval

HIGH = (0.40, 0.50, 0.55, 0.60, 0.62)
LOW = (0.40, 0.42, 0.40, 0.42, 0.41)
COLLAPSING = (0.50, 0.60, 0.50, 0.10, 0.05)
RECOVERING = (0.60, 0.10, 0.58, 0.60, 0.61)


def claim(test: str, *rows: str, **more: object) -> Claim:
    return Claim(claim="C0", statement="", place="", test=test, rows=list(rows), **more)


def logs_of(folder: Path, *rows: str) -> Logs:
    return load_logs(folder, rows)


def write_seeds(folder: Path, row: str, curve: tuple[float, ...], seeds: int = 3, **metrics: object) -> None:
    for seed in range(seeds):
        shifted = [value + 0.01 * seed for value in curve]
        write_run(folder, row, seed, shifted, **metrics)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [(HIGH, LOW, "reproduced"), (LOW, HIGH, "contradicted"), (HIGH, HIGH, "inconclusive")],
)
def test_score_claim(
    tmp_path: Path, first: tuple[float, ...], second: tuple[float, ...], expected: str
) -> None:
    write_seeds(tmp_path, "sao", first)
    write_seeds(tmp_path, "grpo_dis", second)
    line = judge(logs_of(tmp_path, "sao", "grpo_dis"), claim("score", "sao", "grpo_dis"))
    assert line["verdict"] == expected
    difference = 100 * (np.mean(first[-2:]) - np.mean(second[-2:]))
    assert line["effect"] == pytest.approx(difference, abs=0.8)
    assert line["low"] <= line["effect"] <= line["high"]
    assert line["seeds"] == "0 1 2"
    assert np.isnan(line["detectable"]) == (expected != "inconclusive")
    assert str(line["runs"]).split()[0] == "runs/sao/seed0"


@pytest.mark.parametrize(
    ("curve", "collapse_verdict", "stability_verdict"),
    [
        (COLLAPSING, "reproduced", "contradicted"),
        (HIGH, "contradicted", "reproduced"),
        (RECOVERING, "contradicted", "reproduced"),
    ],
)
def test_collapse_and_stability(
    tmp_path: Path, curve: tuple[float, ...], collapse_verdict: str, stability_verdict: str
) -> None:
    write_seeds(tmp_path, "grpo_vanilla", curve, clipped=0.0)
    logs = logs_of(tmp_path, "grpo_vanilla")
    collapse = judge(logs, claim("collapse", "grpo_vanilla"))
    stability = judge(logs, claim("stability", "grpo_vanilla"))
    assert collapse["verdict"] == collapse_verdict
    assert stability["verdict"] == stability_verdict
    assert collapse["effect"] == pytest.approx(-stability["effect"])


def test_collapse_effect_is_the_share_lost(tmp_path: Path) -> None:
    write_run(tmp_path, "vapo", 0, COLLAPSING)
    line = judge(logs_of(tmp_path, "vapo"), claim("collapse", "vapo"))
    solved = [round(PROBLEMS * share) / PROBLEMS for share in COLLAPSING]
    assert line["effect"] == pytest.approx(100 * (0.7 * solved[1] - (solved[3] + solved[4]) / 2))
    assert "vapo: 1 of 1 seeds collapsed at step 96 (exact interval" in str(line["detail"])


def test_collapse_needs_most_seeds(tmp_path: Path) -> None:
    """A row that falls in one seed of three neither collapses nor is stable."""
    for seed, curve in enumerate((HIGH, HIGH, COLLAPSING)):
        write_run(tmp_path, "grpo_vanilla", seed, curve)
    logs = logs_of(tmp_path, "grpo_vanilla")
    assert judge(logs, claim("collapse", "grpo_vanilla"))["verdict"] == "inconclusive"
    assert judge(logs, claim("stability", "grpo_vanilla"))["verdict"] == "inconclusive"


def test_gap_growth_sees_rows_come_apart_later(tmp_path: Path) -> None:
    write_seeds(tmp_path, "sao", HIGH)
    write_seeds(tmp_path, "grpo_dis", (0.40, 0.45, 0.45, 0.42, 0.42))
    line = judge(logs_of(tmp_path, "sao", "grpo_dis"), claim("gap_growth", "sao", "grpo_dis"))
    assert line["verdict"] == "reproduced"
    assert line["effect"] == pytest.approx(100 * ((0.61 - 0.42) - 0.0), abs=1.0)


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [(1, "one seed: problems only (reproduced)"), (2, "two seeds: problems only (reproduced)")],
)
def test_few_seeds_rest_on_problems(tmp_path: Path, seeds: int, expected: str) -> None:
    write_seeds(tmp_path, "sao", HIGH, seeds)
    write_seeds(tmp_path, "running_mean", LOW)
    line = judge(logs_of(tmp_path, "sao", "running_mean"), claim("score", "sao", "running_mean"))
    assert line["verdict"] == expected
    assert line["interval"] == "bootstrap over problems only"


def test_few_seeds_give_no_interval_for_a_quantity_of_the_run(tmp_path: Path) -> None:
    write_seeds(tmp_path, "sao", HIGH, 2, staleness_mean=4.0)
    write_seeds(tmp_path, "grpo_dis", HIGH, 2, staleness_mean=9.0)
    line = judge(logs_of(tmp_path, "sao", "grpo_dis"), claim("staleness", "grpo_dis", "sao"))
    assert line["verdict"] == "two seeds: no interval"
    assert line["effect"] == pytest.approx(5.0)


def test_masked_share_is_weighted_by_tokens(tmp_path: Path) -> None:
    tokens = [100.0] * 60 + [300.0] * 60
    masked = [0.002] * 60 + [0.004] * 60
    for seed in range(3):
        write_run(tmp_path, "sao", seed, HIGH, action_tokens=[int(n) for n in tokens], masked_low=masked)
    line = judge(logs_of(tmp_path, "sao"), claim("masked_share", "sao", threshold=0.006))
    mean = (0.002 * 100 + 0.004 * 300) / 400 + 0.001
    assert line["effect"] == pytest.approx(100 * (0.006 - mean))
    assert line["verdict"] == "reproduced"
    assert "0.50% in the largest update" in str(line["detail"])


def test_explained_variance_is_the_late_median_without_nulls(tmp_path: Path) -> None:
    late = [0.5, None, -90.0, 0.5] * 10
    for seed in range(3):
        values = [0.0] * 80 + late
        shift = 0.1 + 0.01 * seed
        better = [-0.5] * 80 + [None if value is None else value + shift for value in late]
        write_run(tmp_path, "sao", seed, HIGH, explained_variance_before=better)
        write_run(tmp_path, "sao_critic_1x", seed, HIGH, explained_variance_before=values)
    line = judge(
        logs_of(tmp_path, "sao", "sao_critic_1x"), claim("explained_variance", "sao", "sao_critic_1x")
    )
    assert line["effect"] == pytest.approx(0.11)
    assert line["verdict"] == "reproduced"


def test_gradient_norm_reports_what_is_left_without_attention(tmp_path: Path) -> None:
    for seed in range(3):
        frozen = {"critic_grad_norm": 0.5 + 0.01 * seed, "critic_grad_norm_rest": 0.5}
        write_run(tmp_path, "sao", seed, HIGH, **frozen)
        write_run(tmp_path, "sao_full_critic", seed, HIGH, critic_grad_norm=0.7, critic_grad_norm_rest=0.6)
    line = judge(
        logs_of(tmp_path, "sao", "sao_full_critic"), claim("critic_gradient_norm", "sao_full_critic", "sao")
    )
    assert line["effect"] == pytest.approx(0.19)
    assert line["verdict"] == "reproduced"
    assert "sao_full_critic 0.6, sao 0.5" in str(line["detail"])


def test_reward_after_switch_uses_the_halves_of_the_later_phases(tmp_path: Path) -> None:
    """The phases of 120 updates are 0-39, 40-79 and 80-119; their second halves start at 60 and 100."""
    halves = [0.9] * 40 + [0.1] * 20 + [0.5] * 20 + [0.3] * 20 + [0.7] * 20
    for seed in range(3):
        write_run(tmp_path, "sao_online", seed, HIGH, reward_mean=halves)
        write_run(tmp_path, "running_mean_online", seed, HIGH, reward_mean=0.05 + 0.01 * seed)
    logs = logs_of(tmp_path, "sao_online", "running_mean_online")
    rows = ("sao_online", "running_mean_online")
    first = judge(logs, claim("reward_after_switch", *rows, half="first"))
    second = judge(logs, claim("reward_after_switch", *rows, half="second"))
    assert first["effect"] == pytest.approx(0.2 - 0.06)
    assert second["effect"] == pytest.approx(0.6 - 0.06)
    assert "phase 1, difference of the means: +0.840" in str(first["detail"])


def test_idle_share_is_the_mean_of_sampler_and_trainer_after_the_first_third(tmp_path: Path) -> None:
    start = [1.0] * 40
    for seed in range(3):
        write_run(tmp_path, "sao", seed, HIGH, sampler_idle_share=start + [0.1] * 80, trainer_idle_share=0.3)
        write_run(tmp_path, "sao_sync", seed, HIGH, sampler_idle_share=0.5, trainer_idle_share=0.6)
    line = judge(logs_of(tmp_path, "sao", "sao_sync"), claim("idle_share", "sao_sync", "sao"))
    assert line["effect"] == pytest.approx(100 * (0.55 - 0.2))


def test_pairs_only_seeds_of_both_rows(tmp_path: Path) -> None:
    write_seeds(tmp_path, "sao", HIGH, 3, staleness_mean=4.0)
    write_seeds(tmp_path, "grpo_dis", HIGH, 4, staleness_mean=9.0)
    line = judge(logs_of(tmp_path, "sao", "grpo_dis"), claim("staleness", "grpo_dis", "sao"))
    assert line["seeds"] == "0 1 2"


def test_missing_rows_are_not_run_with_the_reason(tmp_path: Path) -> None:
    write_seeds(tmp_path, "sao", HIGH)
    write_run(tmp_path, "vapo", 0, HIGH[:2], finished=False)
    line = judge(logs_of(tmp_path, "sao", "vapo"), claim("score", "sao", "vapo"))
    assert line["verdict"] == "not run"
    assert "vapo: seed 0: stopped at step 48 of 120" in str(line["detail"])
    assert (
        judge(logs_of(tmp_path, "sao"), claim("swe_bench", "sao_swe", "grpo_dis_swe"))["verdict"] == "not run"
    )


@pytest.mark.parametrize(
    ("low", "high", "upheld", "broken", "expected"),
    [
        (0.01, 0.05, True, False, "reproduced"),
        (0.01, 0.05, False, True, "inconclusive"),
        (-0.05, -0.01, False, True, "contradicted"),
        (-0.05, -0.01, True, False, "inconclusive"),
        (-0.01, 0.05, True, True, "inconclusive"),
        (0.00, 0.05, True, True, "inconclusive"),
    ],
)
def test_verdict_needs_the_interval_and_the_collapse_rule(
    low: float, high: float, upheld: bool, broken: bool, expected: str
) -> None:
    interval = Interval((low + high) / 2, low, high, 5, 256, "crossed")
    effect = Effect("", interval, (0, 1, 2, 3, 4), rule_upheld=upheld, rule_broken=broken)
    assert verdict(effect) == expected


@pytest.mark.parametrize(
    ("curves", "collapsed", "stable"),
    [
        ((HIGH, COLLAPSING, COLLAPSING), (True, False), (False, True)),
        ((HIGH, HIGH, COLLAPSING), (False, True), (False, False)),
        ((HIGH, HIGH, HIGH), (False, True), (True, False)),
    ],
)
def test_collapse_rule_is_judged_by_the_majority(
    tmp_path: Path,
    curves: tuple[tuple[float, ...], ...],
    collapsed: tuple[bool, bool],
    stable: tuple[bool, bool],
) -> None:
    for seed, curve in enumerate(curves):
        write_run(tmp_path, "vapo", seed, curve)
    logs = logs_of(tmp_path, "vapo")
    collapse, stability = (TESTS[test](logs, claim(test, "vapo")) for test in ("collapse", "stability"))
    assert collapse is not None and stability is not None
    assert (collapse.rule_upheld, collapse.rule_broken) == collapsed
    assert (stability.rule_upheld, stability.rule_broken) == stable


def test_differences_pair_each_seed_with_itself() -> None:
    problems = ("a", "b")
    first = Outcomes((1, 2), problems, np.array([[1.0, 1.0], [0.5, 0.5]]))
    second = Outcomes((0, 1, 2), problems, np.array([[0.9, 0.9], [1.0, 0.0], [0.5, 0.25]]))
    difference = first.minus(second)
    assert difference is not None
    assert difference.seeds == (1, 2)
    assert difference.shares.tolist() == [[0.0, 1.0], [0.0, 0.25]]
    assert first.minus(Outcomes((7,), problems, np.zeros((1, 2)))) is None


def test_every_claim_of_the_paper_is_listed_with_a_known_test() -> None:
    listed = load_artifacts().claims
    assert list(dict.fromkeys(claim.claim for claim in listed)) == [f"C{number}" for number in range(1, 17)]
    assert {claim.test for claim in listed} <= TESTS.keys()
    for number in ("C3", "C4", "C6", "C7", "C10"):
        assert len({claim.part for claim in listed if claim.claim == number}) == 2


def test_files_agree_and_name_the_command(tmp_path: Path) -> None:
    write_seeds(tmp_path / "cpu", "sao", HIGH)
    write_seeds(tmp_path / "cpu", "running_mean", LOW)
    stem = tmp_path / "tables" / "claims"
    claims.main(["--runs", str(tmp_path / "cpu"), "--out", str(stem)])
    table = pd.read_csv(stem.with_suffix(".csv"), keep_default_na=False)
    assert tuple(table.columns) == COLUMNS
    decided = table[table["verdict"] != "not run"]
    assert list(decided["claim"]) == ["C5", "C5", "C8"]
    markdown, latex = (stem.with_suffix(suffix).read_text() for suffix in (".md", ".tex"))
    assert f"python -m analysis.claims --runs {tmp_path / 'cpu'} --out {stem}" in markdown
    for text in (markdown, latex):
        assert text.count("reproduced") == list(table["verdict"]).count("reproduced")
        assert f"+{float(decided['effect'].iloc[-1]):.1f}" in text
