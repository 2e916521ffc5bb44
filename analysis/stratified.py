"""Bootstrap over seeds and problems, problems drawn within their difficulty bands.

Outcomes are one array x [seeds, problems] for each band, the seeds the same in all. A statistic is taken of
the scores [seeds, bands]; a resample's value is the statistic plus its shift when seeds are drawn (jointly
for all bands, widened as Student's t asks at that number of seeds) plus its shift when problems are drawn
within each band. For the mean over all problems this is `statistics.crossed_bootstrap` with problems
stratified: how many problems a band has is fixed, as it was when the held-out set was drawn.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from scipy import stats

from analysis.statistics import (
    FEWEST_SEEDS,
    LEVEL,
    NO_INTERVAL,
    RESAMPLES,
    SEED,
    Array,
    Interval,
    seed_widening,
)

STRATIFIED = "stratified bootstrap over seeds and problems"
STRATIFIED_PROBLEMS = "stratified bootstrap over problems only"
TRIMMED = 0.25
ROUNDING = 1e-12  # of sums in another order; shares of answers differ by more

Statistic = Callable[[Array], Array]


def stratified_mean(bands: Sequence[Array]) -> Interval:
    """Mean over all problems of `bands`, arrays [seeds, problems of the band], with its interval."""
    _checked(bands)
    sizes = np.array([band.shape[1] for band in bands])
    weights = sizes / sizes.sum()
    return stratified_bootstrap(bands, lambda scores: scores.mean(axis=-2) @ weights)


def stratified_interquartile_mean(bands: Sequence[Array]) -> Interval:
    """Interquartile mean of the scores of all seeds in all bands, with its interval."""
    return stratified_bootstrap(bands, trimmed_mean)


def trimmed_mean(scores: Array) -> Array:
    """Mean of the middle half of scores [..., seeds, bands], over both of the last axes."""
    flat = scores.reshape(*scores.shape[:-2], -1)
    return np.asarray(stats.trim_mean(flat, TRIMMED, axis=-1))


def stratified_bootstrap(bands: Sequence[Array], statistic: Statistic) -> Interval:
    """`statistic` of the scores [seeds, bands] with its percentile interval, clipped to [0, 1].

    `statistic` maps scores [..., seeds, bands] to [...]. Fewer than `FEWEST_SEEDS` seeds: problems alone are
    drawn. Outcomes that are all the same leave nothing to draw and have no interval. Raises ValueError for
    bands of unlike seeds, empty ones or values that are not finite.
    """
    seeds = _checked(bands)
    scores = np.stack([band.mean(axis=1) for band in bands], axis=1)
    estimate = float(statistic(scores))
    problems = sum(band.shape[1] for band in bands)
    drawn = [_shares(band.shape[1], position) @ band.T for position, band in enumerate(bands)]
    shifts = statistic(np.stack(drawn, axis=2)) - estimate
    method = STRATIFIED_PROBLEMS
    if seeds >= FEWEST_SEEDS:
        method = STRATIFIED
        shifts = shifts + seed_widening(seeds) * (statistic(scores[_seeds(seeds)]) - estimate)
    if np.ptp(shifts) < ROUNDING:
        return Interval(estimate, np.nan, np.nan, seeds, problems, NO_INTERVAL)
    low, high = np.quantile(shifts, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(estimate, max(estimate + low, 0.0), min(estimate + high, 1.0), seeds, problems, method)


def _checked(bands: Sequence[Array]) -> int:
    """The number of seeds that all bands share."""
    for band in bands:
        if band.ndim != 2 or band.size == 0 or not np.isfinite(band).all():
            raise ValueError(f"outcomes must be finite [seeds, problems], found shape {band.shape}")
    if len({band.shape[0] for band in bands}) != 1:
        raise ValueError("every band needs outcomes of the same seeds, and at least one band is needed")
    return bands[0].shape[0]


@lru_cache(maxsize=64)
def _shares(problems: int, position: int) -> Array:
    """Share of each problem of the band at `position` in every resample, float [resamples, problems]."""
    generator = np.random.default_rng([SEED, 3, position, problems])
    counts = generator.multinomial(problems, np.full(problems, 1 / problems), size=RESAMPLES)
    return counts / problems


@lru_cache(maxsize=64)
def _seeds(seeds: int) -> np.ndarray:
    """Positions of the seeds drawn, int [resamples, seeds]."""
    return np.random.default_rng([SEED, 4, seeds]).integers(seeds, size=(RESAMPLES, seeds))
