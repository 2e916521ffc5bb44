"""What a design can show before it is trained: variance components and the minimum detectable difference.

A paired difference of two rows is taken as x[s, p] = difference + seed[s] + problem[p] + residual[s, p],
the last three independent with mean 0. `docs/statistics.md` says where the numbers come from.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from scipy import optimize, stats

from analysis.statistics import FEWEST_SEEDS, LEVEL, Array

POWER = 0.80
MIDPOINTS = (np.arange(4000) + 0.5) / 4000


@dataclass(frozen=True)
class VarianceComponents:
    """Variances of a paired difference: of seeds, of problems, and of what is left of single outcomes."""

    seeds: float
    problems: float
    residual: float


def variance_components(differences: Array) -> VarianceComponents:
    """Components of `differences` [seeds, problems] by the moments of a two-way analysis of variance.

    Negative estimates, as small designs give them, are set to 0. Raises ValueError for fewer than two seeds
    or problems.
    """
    seeds, problems = differences.shape
    if seeds < 2 or problems < 2:
        raise ValueError(f"two seeds and two problems are needed, found {seeds} and {problems}")
    by_seed = differences.mean(axis=1, keepdims=True)
    by_problem = differences.mean(axis=0, keepdims=True)
    left = differences - by_seed - by_problem + differences.mean()
    residual = float((left**2).sum()) / ((seeds - 1) * (problems - 1))
    return VarianceComponents(
        max(0.0, float(by_seed.var(ddof=1)) - residual / problems),
        max(0.0, float(by_problem.var(ddof=1)) - residual / seeds),
        residual,
    )


def minimum_detectable_difference(
    components: VarianceComponents, seeds: int, problems: int, level: float = LEVEL
) -> float:
    """Smallest true difference whose interval at `level` excludes 0 in 80% of repeats of this design.

    The interval is the one of `statistics.crossed_bootstrap`, its width as large as these components make it
    on average. Fewer than `FEWEST_SEEDS` seeds: over problems alone, so nothing of other seeds is in it.
    """
    tail = (1 - level) / 2
    by_seed = (components.seeds + components.residual / problems) / seeds
    by_problem = (components.problems + components.residual / seeds) / problems
    true_variance = by_seed + by_problem - components.residual / (seeds * problems)
    parts = [(stats.norm.isf(tail) ** 2 * by_problem, problems - 1)]
    if seeds < FEWEST_SEEDS:
        true_variance = by_problem
    else:
        parts.append((stats.t.isf(tail, seeds - 1) ** 2 * by_seed, seeds - 1))
    squared_width = sum(part for part, _ in parts)
    if true_variance == 0:
        return 0.0
    freedom = squared_width**2 / sum(part**2 / own for part, own in parts)  # Satterthwaite
    threshold = sqrt(squared_width / true_variance)
    shift = optimize.brentq(
        lambda shift: _share_found(shift, threshold, freedom) - POWER, 0.0, 10 + 10 * threshold
    )
    return float(shift) * sqrt(true_variance)


def detectable_difference(differences: Array) -> float:
    """`minimum_detectable_difference` of paired `differences` [seeds, problems] for their own design.

    NaN for fewer than two seeds or problems, which say nothing of how much these vary.
    """
    seeds, problems = differences.shape
    if min(seeds, problems) < 2:
        return float("nan")
    return minimum_detectable_difference(variance_components(differences), seeds, problems)


def _share_found(shift: float, threshold: float, freedom: float) -> float:
    """How often the interval excludes 0 where the true difference is `shift` true standard errors.

    `threshold`: the interval's half-width in true standard errors. It varies as a chi distribution with
    `freedom` degrees of freedom, averaged over here, for scipy's noncentral t is NaN at a large shift.
    """
    widths = np.sqrt(stats.chi2.ppf(MIDPOINTS, freedom) / freedom)
    above = stats.norm.sf(threshold * widths - shift)
    below = stats.norm.cdf(-threshold * widths - shift)
    return float((above + below).mean())


def pooled(parts: list[VarianceComponents]) -> VarianceComponents:
    """Mean of each component over comparisons."""
    return VarianceComponents(
        float(np.mean([part.seeds for part in parts])),
        float(np.mean([part.problems for part in parts])),
        float(np.mean([part.residual for part in parts])),
    )
