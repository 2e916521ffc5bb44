"""Intervals and tests over seeds and problems, and the rule that calls a learning curve collapsed.

Outcomes are arrays x [seeds, problems]: the share of correct answers of one seed's run on one held-out
problem, or the difference of two rows on the same seed and problem. `docs/statistics.md` says why each rule
is as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

LEVEL = 0.95
RESAMPLES = 10_000
SEED = 20260708
FEWEST_SEEDS = 3

SMALLEST_LOG_P = -600.0

COLLAPSE_SHARE = 0.70
RECOVERY_SHARE = 0.85

CROSSED = "crossed bootstrap over seeds and problems"
PROBLEMS_ONLY = "bootstrap over problems only"
STUDENT_T = "Student's t over seeds"
EXACT = "Clopper-Pearson"
NO_INTERVAL = "no interval"

SEEDS_AND_PROBLEMS, SEEDS, PROBLEMS, NONE = "seeds and problems", "seeds", "problems", "none"
VARIANCE = {
    CROSSED: SEEDS_AND_PROBLEMS,
    PROBLEMS_ONLY: PROBLEMS,
    STUDENT_T: SEEDS,
    EXACT: PROBLEMS,
    NO_INTERVAL: NONE,
}
"""Whose variance an interval of `accuracy_interval`, `crossed_bootstrap` or `student_t` shows, by method."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95% interval.

    `low` and `high` are NaN where the design gives no interval. `seeds` and `problems` are the counts it
    rests on (0 problems: a quantity of the whole run).
    """

    estimate: float
    low: float
    high: float
    seeds: int
    problems: int
    method: str

    @property
    def has_bounds(self) -> bool:
        return bool(np.isfinite(self.low) and np.isfinite(self.high))

    @property
    def detectable(self) -> float:
        """Smallest effect that the design would have shown in 80% of repeats: (z.975 + z.80) standard errors.

        The half-width of the interval stands for z.975 standard errors.
        """
        half_width = (self.high - self.low) / 2
        return half_width * (1 + stats.norm.ppf(0.80) / stats.norm.ppf(0.5 + LEVEL / 2))

    def negated(self) -> "Interval":
        return Interval(-self.estimate, -self.high, -self.low, self.seeds, self.problems, self.method)


@dataclass(frozen=True)
class Collapse:
    """Where a curve collapsed: positions of the collapsed evaluation and of the best one before it."""

    position: int
    best_position: int

    @property
    def before(self) -> int:
        """Position of the last evaluation before the collapse."""
        return self.position - 1


def crossed_bootstrap(outcomes: Array, bounds: tuple[float, float] = (-1.0, 1.0)) -> Interval:
    """Mean of `outcomes` [seeds, problems] with its percentile interval, clipped to `bounds`.

    Seeds are drawn with replacement, and problems jointly for all seeds; a resample's value is the mean plus
    the shift of the seed means, widened as Student's t asks at that number of seeds, plus the shift of the
    problem means. Fewer than `FEWEST_SEEDS` seeds: problems alone are drawn.

    Raises ValueError for an empty or non-finite array.
    """
    seeds, problems = _shape(outcomes)
    mean = float(outcomes.mean())
    shifts = _problem_shares(problems) @ (outcomes.mean(axis=0) - mean)
    method = PROBLEMS_ONLY
    if seeds >= FEWEST_SEEDS:
        method = CROSSED
        shifts = shifts + seed_widening(seeds) * (_seed_shares(seeds) @ (outcomes.mean(axis=1) - mean))
    low, high = np.quantile(shifts, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(mean, max(mean + low, bounds[0]), min(mean + high, bounds[1]), seeds, problems, method)


def accuracy_interval(outcomes: Array) -> Interval:
    """Mean accuracy of `outcomes` [seeds, problems] in [0, 1] with its interval.

    Outcomes that are all wrong or all right leave nothing to resample: the exact binomial interval over
    problems takes the bootstrap's place.
    """
    seeds, problems = _shape(outcomes)
    mean = float(outcomes.mean())
    if mean in (0.0, 1.0):
        exact = clopper_pearson(round(mean * problems), problems)
        return Interval(mean, exact.low, exact.high, seeds, problems, EXACT)
    return crossed_bootstrap(outcomes, bounds=(0.0, 1.0))


def student_t(values: Sequence[float]) -> Interval:
    """Mean of one value a seed with Student's t interval, n - 1 degrees of freedom; none for few seeds."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0 or not np.isfinite(array).all():
        raise ValueError("one finite value a seed is needed")
    mean = float(array.mean())
    if array.size < FEWEST_SEEDS:
        return Interval(mean, np.nan, np.nan, array.size, 0, NO_INTERVAL)
    half_width = stats.t.ppf((1 + LEVEL) / 2, array.size - 1) * array.std(ddof=1) / sqrt(array.size)
    return Interval(mean, mean - half_width, mean + half_width, array.size, 0, STUDENT_T)


def clopper_pearson(successes: int, trials: int) -> Interval:
    """Share of `successes` with the exact binomial interval; `seeds` holds the number of trials."""
    if not 0 <= successes <= trials or trials == 0:
        raise ValueError(f"{successes} successes of {trials} trials make no share")
    tail = (1 - LEVEL) / 2
    low = stats.beta.ppf(tail, successes, trials - successes + 1) if successes else 0.0
    high = stats.beta.ppf(1 - tail, successes + 1, trials - successes) if successes < trials else 1.0
    return Interval(successes / trials, float(low), float(high), trials, 0, EXACT)


def p_value(differences: Array) -> float:
    """Two-sided p-value that the mean of paired `differences` [seeds, problems] is 0.

    The share of error at which the interval of `crossed_bootstrap` would just touch 0, with quantiles of
    Student's t for the seeds' part and of the normal distribution for the problems' part in place of
    resamples, which have no far tail. Fewer than `FEWEST_SEEDS` seeds: `sign_flips` of the problems' means.

    Raises ValueError for an empty or non-finite array.
    """
    seeds, problems = _shape(differences)
    if seeds < FEWEST_SEEDS:
        return sign_flips(differences.mean(axis=0))
    mean = float(differences.mean())
    by_seed = float(differences.mean(axis=1).var(ddof=1)) / seeds
    by_problem = float(differences.mean(axis=0).var(ddof=0)) / problems

    def beyond(log_error: float) -> float:
        tail = exp(log_error) / 2
        half_width = sqrt(
            stats.t.isf(tail, seeds - 1) ** 2 * by_seed + stats.norm.isf(tail) ** 2 * by_problem
        )
        return half_width - abs(mean)

    if mean == 0:
        return 1.0
    if beyond(SMALLEST_LOG_P) < 0:
        return 0.0
    return exp(optimize.brentq(beyond, SMALLEST_LOG_P, 0.0))


def sign_flips(differences: Array) -> float:
    """Two-sided p-value that paired `differences` [problems] are symmetric about 0, by flipping their signs.

    Exact where 2 to the number of differences is at most `RESAMPLES`; zeros do not count, all zeros give 1.
    """
    nonzero = differences[differences != 0]
    if nonzero.size < 2:
        return 1.0  # either sign of a single difference is as likely, and scipy asks for two
    generator = np.random.default_rng([SEED, 2, differences.size])
    test = stats.permutation_test(
        (nonzero,),
        lambda values, axis: np.mean(values, axis=axis),
        permutation_type="samples",
        n_resamples=RESAMPLES,
        vectorized=True,
        rng=generator,
    )
    return float(test.pvalue)


def holm(p_values: Sequence[float]) -> Array:
    """p-values corrected for their number by Holm's rule, in the order given; float [comparisons].

    The chance of a single false rejection among all of them stays below the level, however they depend on
    each other. Raises ValueError for values outside [0, 1].
    """
    given = np.asarray(p_values, dtype=np.float64)
    if given.size and not ((given >= 0) & (given <= 1)).all():
        raise ValueError("p-values must lie in [0, 1]")
    order = np.argsort(given, kind="stable")
    left = np.arange(given.size, 0, -1)
    adjusted = np.empty_like(given)
    adjusted[order] = np.minimum(np.maximum.accumulate(left * given[order]), 1.0)
    return adjusted


def interquartile_mean(scores: Array) -> float:
    """Mean of the middle half of all `scores`, of any shape: the lowest and highest quarter are left out."""
    if scores.size == 0 or not np.isfinite(scores).all():
        raise ValueError(f"scores must be finite, found shape {scores.shape}")
    return float(stats.trim_mean(scores, 0.25, axis=None))


def clustered_standard_error(outcomes: Array) -> float:
    """Standard error of the mean of `outcomes` [runs, problems], problems drawn anew with all their runs.

    Runs of one problem depend on each other, so the problem is what counts; NaN for a single problem.
    """
    _, problems = _shape(outcomes)
    return float(outcomes.mean(axis=0).std(ddof=1) / sqrt(problems)) if problems > 1 else float("nan")


def seed_widening(seeds: int) -> float:
    """Factor that turns the percentile bootstrap over `seeds` values into Student's t width.

    sqrt(n / (n - 1)) undoes the bootstrap's division by n; t / z replaces the normal quantile.
    """
    quantile = (1 + LEVEL) / 2
    return float(sqrt(seeds / (seeds - 1)) * stats.t.ppf(quantile, seeds - 1) / stats.norm.ppf(quantile))


def find_collapse(accuracies: Sequence[float]) -> Collapse | None:
    """First evaluation below 70% of the best before it, if no later one exceeds 85% of that best."""
    for position in range(1, len(accuracies)):
        best_position = int(np.argmax(accuracies[:position]))
        best = accuracies[best_position]
        recovered = any(later > RECOVERY_SHARE * best for later in accuracies[position + 1 :])
        if accuracies[position] < COLLAPSE_SHARE * best and not recovered:
            return Collapse(position, best_position)
    return None


def _shape(outcomes: Array) -> tuple[int, int]:
    if outcomes.ndim != 2 or outcomes.size == 0 or not np.isfinite(outcomes).all():
        raise ValueError(f"outcomes must be finite [seeds, problems], found shape {outcomes.shape}")
    return outcomes.shape[0], outcomes.shape[1]


@lru_cache(maxsize=64)
def _problem_shares(problems: int) -> Array:
    """Share of each problem in every resample, float [resamples, problems]."""
    return _shares(problems, stream=0)


@lru_cache(maxsize=64)
def _seed_shares(seeds: int) -> Array:
    """Share of each seed in every resample, float [resamples, seeds]."""
    return _shares(seeds, stream=1)


def _shares(size: int, stream: int) -> Array:
    generator = np.random.default_rng([SEED, stream, size])
    counts = generator.multinomial(size, np.full(size, 1 / size), size=RESAMPLES)
    return counts / size
