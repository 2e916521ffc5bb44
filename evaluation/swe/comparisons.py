"""Paired tests between evaluations of the same SWE-Bench tasks. Imports no torch and no OpenHands."""

from collections.abc import Sequence
from itertools import combinations
from math import sqrt
from typing import Any

import pandas as pd
from scipy.stats import binomtest, norm

from analysis.statistics import LEVEL, clopper_pearson, holm
from evaluation.swe.graded import COMPLETE, Graded

REFERENCE_ROW = "sao_swe"
COLUMNS: dict[str, str] = {
    "row": "row, and its seed and step",
    "other": "row that it is compared with",
    "benchmark": "name of the benchmark",
    "tasks": "tasks of both",
    "difference": "score of row less score of other (points)",
    "low": "lower end of its 95% interval (points): excludes 0 just where p_value is below 0.05",
    "high": "upper end",
    "se_paired": "standard error of the difference, tasks drawn anew for both together (points)",
    "se_unpaired": "the same if the tasks of the two were others (points)",
    "only_row": "tasks that row alone resolves",
    "only_other": "tasks that other alone resolves",
    "discordant": "tasks that one of the two alone resolves (%)",
    "p_value": "exact McNemar test, two-sided, uncorrected",
    "p_holm": f"p_value corrected by Holm's rule for the comparisons with {REFERENCE_ROW} of one seed and "
    "step, which Table 2 shows; empty for other pairs",
    "comparisons": "number of these comparisons",
}


def comparison_lines(found: Sequence[Graded]) -> list[dict[str, Any]]:
    """Lines of all pairs that measure the same: complete, of the same tasks and protocol, graded alike."""
    complete = [graded for graded in found if graded.status == COMPLETE]
    pairs = [(one, other) for one, other in combinations(complete, 2) if comparable(one, other)]
    lines = [comparison_line(*pair) for pair in pairs]
    families: dict[tuple[Any, ...], list[int]] = {}
    for place, pair in enumerate(pairs):
        if family := _family(*pair):
            families.setdefault(family, []).append(place)
    for places in families.values():
        corrected = holm([lines[place]["p_value"] for place in places])
        for place, p_holm in zip(places, corrected, strict=True):
            lines[place] |= {"p_holm": float(p_holm), "comparisons": len(places)}
    return lines


def comparison_line(one: Graded, other: Graded) -> dict[str, Any]:
    """One line of swe_comparisons.csv, of two complete evaluations of the same tasks, not yet corrected."""
    ours, theirs = one.resolved, other.resolved
    tasks = len(ours)
    only_one = sum(ours[name] and not theirs[name] for name in ours)
    only_other = sum(theirs[name] and not ours[name] for name in ours)
    discordant = only_one + only_other
    shares = [sum(resolved.values()) / tasks for resolved in (ours, theirs)]
    unpaired = sqrt(sum(share * (1 - share) for share in shares) / tasks)
    low, high = difference_interval(only_one, only_other, tasks)
    return {
        "row": one.name,
        "other": other.name,
        "benchmark": one.spec["benchmark"],
        "tasks": tasks,
        "difference": 100 * (only_one - only_other) / tasks,
        "low": 100 * low,
        "high": 100 * high,
        "se_paired": 100 * paired_error(only_one, only_other, tasks),
        "se_unpaired": 100 * unpaired,
        "only_row": only_one,
        "only_other": only_other,
        "discordant": 100 * discordant / tasks,
        "p_value": float(binomtest(only_one, discordant, 0.5).pvalue) if discordant else 1.0,
        "p_holm": float("nan"),
        "comparisons": pd.NA,
    }


def paired_error(only_one: int, only_other: int, tasks: int) -> float:
    """Standard error of the difference of two shares of `tasks`, from those that one alone resolves."""
    return sqrt(only_one + only_other - (only_one - only_other) ** 2 / tasks) / tasks


def difference_interval(only_one: int, only_other: int, tasks: int) -> tuple[float, float]:
    """95% interval of the difference of two shares of the same tasks, within [-1, 1].

    The wider, at each end, of two: the exact one given the number of tasks that one alone resolves, whose
    test is McNemar's, and the normal one, which knows that this number varies too. No such task: as many as
    none in `tasks` leaves possible.
    """
    discordant = only_one + only_other
    if not discordant:
        most = clopper_pearson(0, tasks).high
        return -most, most
    won = clopper_pearson(only_one, discordant)
    exact = [(2 * end - 1) * discordant / tasks for end in (won.low, won.high)]
    half_width = norm.ppf((1 + LEVEL) / 2) * paired_error(only_one, only_other, tasks)
    difference = (only_one - only_other) / tasks
    return (
        max(min(exact[0], difference - half_width), -1.0),
        min(max(exact[1], difference + half_width), 1.0),
    )


def detectable_difference(discordant: float, tasks: int) -> float:
    """Smallest true difference of two shares that one pair of runs would show in 80% of repeats, about.

    `discordant`: share of the tasks that one of the two alone resolves.
    """
    return float(norm.ppf((1 + LEVEL) / 2) + norm.ppf(0.80)) * sqrt(discordant / tasks)


def comparable(one: Graded, other: Graded) -> bool:
    """Whether two evaluations measure the same: tasks, protocol but for the workspace, and backend."""
    return _measured(one) == _measured(other)


def _measured(graded: Graded) -> Any:
    spec = graded.spec
    protocol = {name: value for name, value in spec["protocol"].items() if name != "sandbox"}
    backends = {score.get("backend") for score in graded.scores.values()}
    return spec["benchmark"], spec["data"]["tasks_sha256"], protocol, backends, list(spec["samples"])


def _family(one: Graded, other: Graded) -> tuple[Any, ...] | None:
    """What a pair is corrected with: SAO's seed and step, where the other row has the same or no training."""
    if (one.spec["row"] == REFERENCE_ROW) == (other.spec["row"] == REFERENCE_ROW):
        return None
    sao, against = (one, other) if one.spec["row"] == REFERENCE_ROW else (other, one)
    place = sao.spec["seed"], sao.spec["step"]
    if against.spec["step"] and (against.spec["seed"], against.spec["step"]) != place:
        return None
    return sao.spec["benchmark"], *place
