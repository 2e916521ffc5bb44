"""Variance components against loops; the minimum detectable difference against known power and simulation."""

import numpy as np
import pytest
from scipy import stats

from analysis.power import VarianceComponents, minimum_detectable_difference, variance_components
from analysis.statistics import crossed_bootstrap


def test_components_are_those_of_an_analysis_of_variance_by_loops() -> None:
    generator = np.random.default_rng(1)
    x = (
        generator.normal(0, 1, (4, 6))
        + 2 * generator.normal(0, 1, (4, 1))
        + 3 * generator.normal(0, 1, (1, 6))
    )
    grand = sum(x[s, p] for s in range(4) for p in range(6)) / 24
    seeds = [sum(x[s, p] for p in range(6)) / 6 for s in range(4)]
    problems = [sum(x[s, p] for s in range(4)) / 4 for p in range(6)]
    between_seeds = 6 * sum((mean - grand) ** 2 for mean in seeds) / 3
    between_problems = 4 * sum((mean - grand) ** 2 for mean in problems) / 5
    left = sum((x[s, p] - seeds[s] - problems[p] + grand) ** 2 for s in range(4) for p in range(6)) / 15
    found = variance_components(x)
    assert found.residual == pytest.approx(left)
    assert found.seeds == pytest.approx((between_seeds - left) / 6)
    assert found.problems == pytest.approx((between_problems - left) / 4)


def test_components_of_a_large_sample_are_the_true_ones() -> None:
    generator = np.random.default_rng(2)
    x = generator.normal(0, 0.5, (300, 400))
    x += generator.normal(0, 0.2, (300, 1)) + generator.normal(0, 0.3, (1, 400))
    found = variance_components(x)
    assert [found.seeds**0.5, found.problems**0.5, found.residual**0.5] == pytest.approx(
        [0.2, 0.3, 0.5], rel=0.1
    )


def test_negative_components_are_zero_and_one_seed_has_none() -> None:
    # Seed means that agree exactly vary less than the noise of single answers lets them.
    assert variance_components(np.array([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]])).seeds == 0.0
    with pytest.raises(ValueError, match="two seeds"):
        variance_components(np.ones((1, 5)))


@pytest.mark.parametrize(("seeds", "effect"), [(3, 3.264044), (5, 1.681997), (10, 0.996002)])
def test_seeds_alone_give_the_power_of_the_t_test(seeds: int, effect: float) -> None:
    """statsmodels 0.14: TTestPower().solve_power(nobs=seeds, alpha=0.05, power=0.8)."""
    found = minimum_detectable_difference(VarianceComponents(0.04, 0.0, 0.0), seeds, 50)
    assert found == pytest.approx(0.2 * effect, rel=1e-3)


def test_one_seed_rests_on_problems_alone() -> None:
    components = VarianceComponents(100.0, 0.09, 0.16)
    normal = (stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) * np.sqrt(0.25 / 5000)
    assert minimum_detectable_difference(components, 1, 5000) == pytest.approx(normal, rel=1e-3)


def test_more_of_anything_shows_smaller_differences() -> None:
    components = VarianceComponents(0.001, 0.02, 0.14)
    base = minimum_detectable_difference(components, 3, 100)
    assert minimum_detectable_difference(components, 5, 100) < base
    assert minimum_detectable_difference(components, 3, 200) < base
    assert minimum_detectable_difference(components, 3, 100, level=0.99) > base
    assert minimum_detectable_difference(VarianceComponents(0.0, 0.0, 0.0), 3, 100) == 0.0


@pytest.mark.parametrize(
    ("seeds", "components"),
    [(3, VarianceComponents(0.0009, 0.01, 0.14)), (5, VarianceComponents(0.0, 0.01, 0.14))],
)
def test_intervals_find_the_difference_in_four_of_five_repeats(
    seeds: int, components: VarianceComponents
) -> None:
    generator = np.random.default_rng(3)
    difference = minimum_detectable_difference(components, seeds, 100)
    found = 0
    for _ in range(200):
        x = difference + generator.normal(0, components.residual**0.5, (seeds, 100))
        x += generator.normal(0, components.seeds**0.5, (seeds, 1))
        x += generator.normal(0, components.problems**0.5, (1, 100))
        found += crossed_bootstrap(x).low > 0
    assert found / 200 == pytest.approx(0.80, abs=0.09)
