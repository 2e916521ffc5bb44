"""Intervals and tests against closed forms, scipy and loops; the collapse rule on curves made by hand."""

from itertools import combinations, product

import numpy as np
import pytest
from scipy import stats

from analysis import statistics
from analysis.statistics import (
    accuracy_interval,
    clopper_pearson,
    clustered_standard_error,
    crossed_bootstrap,
    find_collapse,
    holm,
    interquartile_mean,
    p_value,
    seed_widening,
    sign_flips,
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


def test_p_value_of_seeds_alone_is_that_of_students_t() -> None:
    seed_means = np.array([0.02, 0.09, 0.05, 0.11])
    differences = np.repeat(seed_means[:, None], 30, axis=1)
    assert p_value(differences) == pytest.approx(stats.ttest_1samp(seed_means, 0.0).pvalue, rel=1e-6)


def test_p_value_of_problems_alone_is_that_of_the_normal_distribution() -> None:
    outcomes = np.random.default_rng(8).normal(0.05, 0.3, 200)
    error = outcomes.std() / np.sqrt(200)
    expected = 2 * stats.norm.sf(abs(outcomes.mean()) / error)
    assert p_value(np.repeat(outcomes[None], 3, axis=0)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("seeds", [3, 5])
def test_p_value_and_interval_tell_the_same(seeds: int) -> None:
    """Shifted so that 0 lies a tenth of the half-width inside or outside either end of the interval."""
    noise = np.random.default_rng(9).normal(0, 0.3, (seeds, 100))
    noise += np.random.default_rng(10).normal(0, 0.05, (seeds, 1))
    interval = crossed_bootstrap(noise)
    margin = (interval.high - interval.low) / 20
    for end in (interval.low, interval.high):
        inwards = margin if end == interval.low else -margin
        assert p_value(noise - end - inwards) > 0.05
        assert p_value(noise - end + inwards) < 0.05


def test_p_value_at_its_ends() -> None:
    assert p_value(np.zeros((3, 20))) == 1.0
    assert p_value(np.full((3, 20), 0.5)) == 0.0
    balanced = np.tile([1.0, -1.0], (3, 10))
    assert p_value(balanced) == 1.0
    with pytest.raises(ValueError, match="finite"):
        p_value(np.array([[np.nan, 1.0]]))


def test_few_seeds_flip_signs_of_the_problem_means() -> None:
    differences = np.array([[0.5, 1.0, -0.5, 0.0, 1.0, 0.5], [0.5, 0.0, -0.5, 0.5, 1.0, 0.0]])
    means = [0.5, 0.5, -0.5, 0.25, 1.0, 0.25]
    sums = [
        abs(sum(sign * value for sign, value in zip(signs, means, strict=True)))
        for signs in product((-1, 1), repeat=6)
    ]
    expected = sum(value >= abs(sum(means)) - 1e-12 for value in sums) / 64
    assert p_value(differences) == pytest.approx(expected)


def test_sign_flips_of_unit_differences_are_the_exact_test_of_mcnemar() -> None:
    differences = np.array([1.0] * 9 + [-1.0] * 3 + [0.0] * 40)
    assert sign_flips(differences) == pytest.approx(stats.binomtest(9, 12).pvalue)
    many = np.array([1.0] * 60 + [-1.0] * 38 + [0.0] * 100)
    assert sign_flips(many) == pytest.approx(stats.binomtest(60, 98).pvalue, abs=0.006)
    assert sign_flips(many) == sign_flips(many)
    assert sign_flips(np.array([0.0, 0.0])) == sign_flips(np.array([0.0, 1.0])) == 1.0


def test_holm_is_the_closed_test_of_bonferroni() -> None:
    """A comparison's corrected p is the largest Bonferroni p of any set of comparisons that holds it."""
    values = [0.01, 0.04, 0.03, 0.005, 0.2]
    for index, corrected in enumerate(holm(values)):
        sets = [s for size in range(1, 6) for s in combinations(range(5), size) if index in s]
        assert corrected == pytest.approx(max(min(1.0, len(s) * min(values[i] for i in s)) for s in sets))
    # statsmodels 0.14: multipletests(values, method="holm")
    assert holm(values) == pytest.approx([0.04, 0.09, 0.09, 0.025, 0.2])


def test_holm_of_none_one_and_impossible_values() -> None:
    assert holm([]).size == 0
    assert holm([0.3]) == pytest.approx([0.3])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    for wrong in ([1.2], [-0.1], [float("nan")]):
        with pytest.raises(ValueError, match="must lie in"):
            holm(wrong)


def test_interquartile_mean_by_hand() -> None:
    scores = np.random.default_rng(11).random((4, 5))
    middle = sorted(scores.ravel().tolist())[5:15]
    assert interquartile_mean(scores) == pytest.approx(sum(middle) / 10)
    ruined = np.where(scores == scores.min(), -100.0, scores)
    assert interquartile_mean(ruined) == pytest.approx(sum(middle) / 10)
    with pytest.raises(ValueError, match="finite"):
        interquartile_mean(np.array([]))


def test_clustered_error_is_the_sandwich_over_single_answers() -> None:
    outcomes = np.random.default_rng(4).random((5, 40))
    mean = outcomes.mean()
    scores = [sum(float(outcomes[run, problem] - mean) for run in range(5)) for problem in range(40)]
    sandwich = np.sqrt(40 / 39 * sum(score**2 for score in scores)) / (5 * 40)
    assert clustered_standard_error(outcomes) == pytest.approx(sandwich)
    # statsmodels 0.14: OLS on a constant with cov_type="cluster", groups = problems
    assert clustered_standard_error(outcomes) == pytest.approx(0.01788746469338133)
    repeated = np.repeat(outcomes[:1], 8, axis=0)
    assert clustered_standard_error(repeated) == pytest.approx(clustered_standard_error(outcomes[:1]))
    assert np.isnan(clustered_standard_error(np.array([[1.0], [0.0]])))
