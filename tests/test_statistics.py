"""Intervals against closed forms, scipy and simulation; the collapse rule on curves made by hand."""

import numpy as np
import pytest
from scipy import stats

from analysis import statistics
from analysis.statistics import (
    accuracy_interval,
    clopper_pearson,
    crossed_bootstrap,
    find_collapse,
    seed_widening,
    student_t,
)


def test_one_seed_matches_the_normal_interval_of_a_mean_over_problems() -> None:
    outcomes = np.repeat([0.0, 1.0], [160, 240])[None]
    interval = crossed_bootstrap(outcomes)
    half_width = 1.959964 * np.sqrt(0.6 * 0.4 / 400)
    assert interval.estimate == pytest.approx(0.6)
    assert interval.low == pytest.approx(0.6 - half_width, abs=0.003)
    assert interval.high == pytest.approx(0.6 + half_width, abs=0.003)
    assert interval.method == statistics.PROBLEMS_ONLY
    assert (interval.seeds, interval.problems) == (1, 400)


def test_problem_part_agrees_with_scipy_bootstrap() -> None:
    outcomes = np.random.default_rng(3).random((1, 80))
    reference = stats.bootstrap(
        (outcomes[0],), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    interval = crossed_bootstrap(outcomes)
    assert interval.low == pytest.approx(reference.low, abs=0.004)
    assert interval.high == pytest.approx(reference.high, abs=0.004)


def test_seeds_without_spread_over_problems_approach_students_t() -> None:
    seed_means = np.linspace(-0.2, 0.2, 10)
    interval = crossed_bootstrap(np.repeat(seed_means[:, None], 50, axis=1))
    reference = stats.ttest_1samp(seed_means, 0.0).confidence_interval(0.95)
    assert interval.high == pytest.approx(reference.high, rel=0.06)
    assert interval.low == pytest.approx(reference.low, rel=0.06)


def test_seed_widening_values() -> None:
    assert seed_widening(3) == pytest.approx(np.sqrt(1.5) * 4.302653 / 1.959964, rel=1e-6)
    assert seed_widening(5) == pytest.approx(np.sqrt(1.25) * 2.776445 / 1.959964, rel=1e-6)
    assert seed_widening(10_000) == pytest.approx(1.0, abs=1e-3)


def test_two_seeds_are_not_resampled() -> None:
    outcomes = np.array([[0.0] * 50, [1.0] * 50])
    interval = crossed_bootstrap(outcomes, bounds=(0.0, 1.0))
    assert interval.method == statistics.PROBLEMS_ONLY
    assert interval.low == interval.high == pytest.approx(0.5)


def test_pairing_narrows_the_interval_of_a_difference() -> None:
    generator = np.random.default_rng(5)
    difficulty = generator.random(200)
    first = (generator.random((4, 200)) < np.clip(difficulty + 0.1, 0, 1)).astype(float)
    second = (generator.random((4, 200)) < difficulty).astype(float)
    paired = crossed_bootstrap(first - second)
    shuffled = crossed_bootstrap(first - second[:, generator.permutation(200)])
    assert paired.estimate == pytest.approx(shuffled.estimate)
    assert paired.high - paired.low < 0.85 * (shuffled.high - shuffled.low)


def test_resamples_are_repeatable_and_ignore_the_order_of_seeds() -> None:
    outcomes = np.random.default_rng(6).random((3, 40))
    assert crossed_bootstrap(outcomes) == crossed_bootstrap(outcomes)
    reordered = crossed_bootstrap(outcomes[::-1])
    assert reordered.low == pytest.approx(crossed_bootstrap(outcomes).low, abs=0.01)


@pytest.mark.parametrize(("seeds", "seed_spread"), [(3, 0.3), (5, 0.1), (5, 0.6)])
def test_interval_covers_a_true_difference_of_zero(seeds: int, seed_spread: float) -> None:
    """The interval excludes 0 about once in twenty times when two rows differ by nothing but noise."""
    generator = np.random.default_rng(7)

    def draw_row(difficulty: np.ndarray) -> np.ndarray:
        logits = difficulty + generator.normal(0, seed_spread, (seeds, 1))
        return (generator.random((seeds, 128)) < 1 / (1 + np.exp(-logits))).astype(float)

    covered = 0
    for _ in range(200):
        difficulty = generator.normal(0, 2, 128)
        interval = crossed_bootstrap(draw_row(difficulty) - draw_row(difficulty))
        covered += interval.low <= 0 <= interval.high
    assert covered / 200 > 0.91


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "spread", "documented"),
    [
        (3, 0.0, 0.99),
        (3, 0.1, 0.99),
        (3, 0.25, 0.95),
        (3, 0.5, 0.96),
        (5, 0.0, 1.00),
        (5, 0.1, 0.98),
        (5, 0.25, 0.97),
        (5, 0.5, 0.95),
    ],
)
def test_coverage_is_as_documented(seeds: int, spread: float, documented: float) -> None:
    """The table of docs/statistics.md; `spread` is the seeds' standard deviation in logits."""
    generator = np.random.default_rng([seeds, int(100 * spread)])

    def draw_row(difficulty: np.ndarray) -> np.ndarray:
        odds = 1 / (1 + np.exp(-(difficulty + generator.normal(0, spread, (seeds, 1)))))
        return ((generator.random((seeds, 256)) < odds) * 1.0 + (generator.random((seeds, 256)) < odds)) / 2

    covered = 0
    for _ in range(1000):
        difficulty = generator.normal(0, 2, 256)
        interval = crossed_bootstrap(draw_row(difficulty) - draw_row(difficulty))
        covered += interval.low <= 0 <= interval.high
    assert covered / 1000 == pytest.approx(documented, abs=0.006)


@pytest.mark.parametrize("outcomes", [np.zeros((0, 3)), np.zeros(4), np.array([[np.nan, 1.0]])])
def test_bad_outcomes_are_refused(outcomes: np.ndarray) -> None:
    with pytest.raises(ValueError, match="finite"):
        crossed_bootstrap(outcomes)


def test_all_wrong_uses_the_exact_interval() -> None:
    interval = accuracy_interval(np.zeros((3, 33)))
    assert (interval.estimate, interval.low) == (0.0, 0.0)
    assert interval.high == pytest.approx(1 - 0.025 ** (1 / 33))
    assert interval.method == statistics.EXACT
    assert accuracy_interval(np.ones((3, 33))).low == pytest.approx(0.025 ** (1 / 33))


def test_accuracy_interval_stays_within_zero_and_one() -> None:
    outcomes = np.zeros((3, 30))
    outcomes[0, 0] = 1.0
    assert accuracy_interval(outcomes).low >= 0.0


@pytest.mark.parametrize(("successes", "trials"), [(0, 5), (3, 5), (5, 5), (1, 3)])
def test_clopper_pearson_agrees_with_scipy(successes: int, trials: int) -> None:
    reference = stats.binomtest(successes, trials).proportion_ci(method="exact")
    interval = clopper_pearson(successes, trials)
    assert interval.low == pytest.approx(reference.low)
    assert interval.high == pytest.approx(reference.high)


def test_student_t_agrees_with_scipy() -> None:
    values = [0.3, 0.5, 0.1, 0.4]
    reference = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    interval = student_t(values)
    assert (interval.low, interval.high) == pytest.approx((reference.low, reference.high))
    assert not student_t([0.3, 0.5]).has_bounds


def test_detectable_effect_is_the_eighty_percent_power_size() -> None:
    interval = statistics.Interval(0.01, -0.03, 0.05, 5, 256, statistics.CROSSED)
    assert interval.detectable == pytest.approx(0.04 * (1.959964 + 0.841621) / 1.959964, rel=1e-5)


@pytest.mark.parametrize(
    ("curve", "position"),
    [
        ([0.5, 0.6, 0.7, 0.7], None),
        ([0.5, 0.6, 0.41, 0.3], 2),
        ([0.6, 0.43, 0.41], 2),
        ([0.6, 0.2, 0.52, 0.55], None),
        ([0.6, 0.2, 0.50, 0.51], 1),
        ([0.6, 0.2, 0.55, 0.1], 3),
        ([0.5, 0.5, 0.5, 0.34], 3),
        ([0.0, 0.0, 0.0], None),
        ([], None),
        ([0.4], None),
    ],
)
def test_collapse_rule(curve: list[float], position: int | None) -> None:
    collapse = find_collapse(curve)
    assert (None if collapse is None else collapse.position) == position


def test_collapse_names_the_evaluation_before_it() -> None:
    collapse = find_collapse([0.3, 0.8, 0.7, 0.1, 0.05])
    assert collapse is not None
    assert (collapse.best_position, collapse.before, collapse.position) == (1, 2, 3)
