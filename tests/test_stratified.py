"""The stratified bootstrap against a loop over resamples, against scipy, and in cases known beforehand."""

import numpy as np
import pytest
from scipy import stats

from analysis.statistics import (
    FEWEST_SEEDS,
    NO_INTERVAL,
    crossed_bootstrap,
    interquartile_mean,
    seed_widening,
)
from analysis.stratified import (
    STRATIFIED,
    STRATIFIED_PROBLEMS,
    stratified_interquartile_mean,
    stratified_mean,
    trimmed_mean,
)

SIZES = (40, 24, 12, 10)
REPEATS = 4000


def outcomes(seeds: int, spread: float = 0.2, seed: int = 3) -> list[np.ndarray]:
    """Bands of falling accuracy, seeds that differ by `spread` in log-odds; arrays [seeds, problems]."""
    generator = np.random.default_rng(seed)
    shift = generator.normal(0, spread, (seeds, 1))
    bands = []
    for level, size in zip((2.0, 0.7, -0.5, -2.0), SIZES, strict=True):
        odds = level + shift + generator.normal(0, 0.7, (1, size))
        bands.append((generator.random((seeds, size)) < 1 / (1 + np.exp(-odds))).astype(float))
    return bands


def slow_statistic(bands: list[np.ndarray], middle: bool) -> float:
    """Mean of all cells, or of the middle half of the seeds' scores in the bands, written out."""
    if not middle:
        return sum(band.sum() for band in bands) / sum(band.size for band in bands)
    scores = sorted(float(row.mean()) for band in bands for row in band)
    cut = len(scores) // 4
    return sum(scores[cut : len(scores) - cut]) / (len(scores) - 2 * cut)


def slow_interval(bands: list[np.ndarray], middle: bool) -> tuple[float, float]:
    """The rule as a loop, with draws of its own."""
    generator = np.random.default_rng(99)
    seeds = len(bands[0])
    estimate = slow_statistic(bands, middle)
    values = []
    for _ in range(REPEATS):
        problems = [band[:, generator.integers(band.shape[1], size=band.shape[1])] for band in bands]
        value = slow_statistic(problems, middle)
        if seeds >= FEWEST_SEEDS:
            drawn = generator.integers(seeds, size=seeds)
            shift = slow_statistic([band[drawn] for band in bands], middle) - estimate
            value += seed_widening(seeds) * shift
        values.append(value)
    low, high = np.quantile(values, [0.025, 0.975])
    return max(float(low), 0.0), min(float(high), 1.0)


@pytest.mark.parametrize("seeds", [1, 2, 3, 5])
@pytest.mark.parametrize("middle", [False, True])
def test_interval_is_that_of_a_loop(seeds: int, middle: bool) -> None:
    bands = outcomes(seeds)
    found = stratified_interquartile_mean(bands) if middle else stratified_mean(bands)
    low, high = slow_interval(bands, middle)
    assert found.estimate == pytest.approx(slow_statistic(bands, middle))
    tolerance = 0.06 * (high - low)
    assert found.low == pytest.approx(low, abs=tolerance)
    assert found.high == pytest.approx(high, abs=tolerance)
    assert found.method == (STRATIFIED if seeds >= FEWEST_SEEDS else STRATIFIED_PROBLEMS)
    assert (found.seeds, found.problems) == (seeds, sum(SIZES))


def test_problems_part_is_scipys_bootstrap_of_independent_samples() -> None:
    """One seed: scipy draws each band by itself, as strata are drawn."""
    bands = outcomes(1)
    weights = np.array(SIZES) / sum(SIZES)
    theirs = stats.bootstrap(
        [band[0] for band in bands],
        lambda *samples, axis=-1: sum(w * s.mean(axis=axis) for w, s in zip(weights, samples, strict=True)),
        method="percentile",
        n_resamples=20_000,
        rng=np.random.default_rng(1),
    ).confidence_interval
    ours = stratified_mean(bands)
    width = theirs.high - theirs.low
    assert ours.low == pytest.approx(theirs.low, abs=0.04 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.04 * width)


def test_seeds_part_has_the_width_of_students_t() -> None:
    """Problems that all go the same way leave the seeds alone: widths agree with t over their means."""
    generator = np.random.default_rng(8)
    means = np.clip(generator.normal(0.5, 0.02, 12), 0, 1)
    bands = [np.repeat(means[:, None], size, axis=1) for size in SIZES]
    found = stratified_mean(bands)
    half = stats.t.ppf(0.975, 11) * means.std(ddof=1) / np.sqrt(12)
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.05)


def test_one_band_is_the_crossed_bootstrap() -> None:
    whole = np.concatenate(outcomes(5), axis=1)
    one, crossed = stratified_mean([whole]), crossed_bootstrap(whole, bounds=(0.0, 1.0))
    assert one.estimate == pytest.approx(crossed.estimate)
    width = crossed.high - crossed.low
    assert one.low == pytest.approx(crossed.low, abs=0.03 * width)
    assert one.high == pytest.approx(crossed.high, abs=0.03 * width)


def test_strata_narrow_the_interval_where_bands_differ() -> None:
    """Bands without any variance inside: all of the crossed interval is how many problems a band has."""
    bands = [np.full((1, size), level) for size, level in zip((30, 30), (1.0, 0.0), strict=True)]
    assert stratified_mean(bands).method == NO_INTERVAL
    crossed = crossed_bootstrap(np.concatenate(bands, axis=1))
    assert crossed.high - crossed.low > 0.2
    mixed = outcomes(1)
    assert stratified_mean(mixed).high - stratified_mean(mixed).low < 0.95 * (
        crossed_bootstrap(np.concatenate(mixed, axis=1)).high
        - crossed_bootstrap(np.concatenate(mixed, axis=1)).low
    )


def test_trimmed_mean_is_the_interquartile_mean() -> None:
    scores = np.random.default_rng(4).random((7, 5, 4))
    assert list(trimmed_mean(scores)) == pytest.approx([interquartile_mean(one) for one in scores])


def test_bounds_stay_between_0_and_1() -> None:
    bands = [np.array([[1.0] * 19 + [0.0]] * 3), np.array([[1.0] * 9 + [0.0]] * 2 + [[1.0] * 10])]
    found = stratified_mean(bands)
    assert 0 <= found.low < found.estimate < found.high <= 1


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        [np.zeros((2, 3)), np.zeros((3, 3))],
        [np.zeros((2, 0))],
        [np.full((2, 3), np.nan)],
        [np.zeros(3)],
    ],
)
def test_unusable_outcomes_are_refused(wrong: list[np.ndarray]) -> None:
    with pytest.raises(ValueError, match=r"every band|must be finite"):
        stratified_mean(wrong)
