"""The test of each claim: an effect with its interval, signed so that the paper's direction is positive.

A test takes the logs and the claim and returns its `Effect`, or None where a row it needs has no finished
run.
`docs/statistics.md` states the rules in words.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from analysis.artifacts import Claim
from analysis.load import AnalysisError, Logs, Run, stack_outcomes
from analysis.statistics import (
    COLLAPSE_SHARE,
    Interval,
    clopper_pearson,
    crossed_bootstrap,
    student_t,
)
from analysis.swe_evaluations import (
    MCNEMAR,
    OFFICIAL_BACKEND,
    NotComparable,
    difference,
    load_swe,
    read_named,
)

POINTS = "points"
FACTORS = {POINTS: 100.0}


@dataclass(frozen=True)
class Effect:
    """`rule_upheld` and `rule_broken`: what the collapse rule adds to an interval above or below 0.

    `sources`: folders below the logs that it comes from, where these are not the runs of `seeds`.
    """

    test: str
    interval: Interval
    seeds: tuple[int, ...]
    unit: str = POINTS
    detail: str = ""
    rule_upheld: bool = True
    rule_broken: bool = True
    sources: tuple[str, ...] = ()


def score(logs: Logs, claim: Claim) -> Effect | None:
    """Score of the first row minus the second's, paired by seed and problem."""
    first, second = claim.rows
    notes = [_early_difference(logs, first, second)]
    for runs in (logs.finished(first), logs.finished(second)):
        notes += [collapse_count(runs)] if any(run.collapse for run in runs) else []
    return _paired_outcomes(logs, claim, Run.score, "score (mean of the last two evaluations)", notes)


def gap_growth(logs: Logs, claim: Claim) -> Effect | None:
    """Gap between the rows in the last third of the evaluations minus the gap in the first third."""

    def late_minus_early(run: Run) -> pd.Series:
        steps = run.correct.index
        early = run.correct[(steps > 0) & (steps <= run.updates / 3)]
        late = run.correct[steps > 2 * run.updates / 3]
        if early.empty or late.empty:
            raise AnalysisError(
                f"{run.directory}: no evaluation in the first or the last third of {run.updates} updates; "
                "add steps to evaluation.steps of the scale"
            )
        return late.mean() - early.mean()

    return _paired_outcomes(logs, claim, late_minus_early, "accuracy, last third minus first third", [])


def collapse(logs: Logs, claim: Claim) -> Effect | None:
    """The share lost: 70% of the best evaluation minus the score; above 0 for a collapsed row."""
    runs = logs.finished(claim.rows[0])
    margin = _margin(runs)
    if margin is None:
        return None
    collapsed = sum(run.collapse is not None for run in runs)
    majority = collapsed > len(runs) / 2
    clipped = _mean_over_runs(runs, lambda run: _column_mean(run.policy_updates, "clipped"))
    notes = [collapse_count(runs)]
    if np.isfinite(clipped):
        notes.append(f"clipped {clipped:.3%} of the action tokens (near 0 by construction)")
    clamped = _mean_over_runs(runs, lambda run: _column_mean(run.policy_updates, "lambda_zero_share"))
    if np.isfinite(clamped):
        notes.append(f"lambda clamped to 0 in {clamped:.0%} of the trajectories")
    return Effect(
        f"0.70 x best evaluation - score of {claim.rows[0]}, and the collapse rule",
        margin.negated(),
        tuple(run.seed for run in runs),
        detail="; ".join(notes),
        rule_upheld=majority,
        rule_broken=not majority,
    )


def stability(logs: Logs, claim: Claim) -> Effect | None:
    """The margin above 70% of the best evaluation; above 0 for a row that kept its score."""
    runs = logs.finished(claim.rows[0])
    margin = _margin(runs)
    if margin is None:
        return None
    collapsed = sum(run.collapse is not None for run in runs)
    return Effect(
        f"score - 0.70 x best evaluation of {claim.rows[0]}, and the collapse rule",
        margin,
        tuple(run.seed for run in runs),
        detail=collapse_count(runs),
        rule_upheld=collapsed == 0,
        rule_broken=collapsed > len(runs) / 2,
    )


def masked_share(logs: Logs, claim: Claim) -> Effect | None:
    """Threshold minus the share of action tokens outside the band, weighted by action tokens."""
    runs = logs.finished(claim.rows[0])
    threshold = claim.threshold
    if not runs or threshold is None:
        return None

    def share(run: Run) -> pd.Series:
        return run.policy_updates["masked_low"] + run.policy_updates["masked_high"]

    means = [float(np.average(share(run), weights=run.policy_updates["action_tokens"])) for run in runs]
    largest = max(float(share(run).max()) for run in runs)
    return Effect(
        f"{threshold:.1%} - share of action tokens masked, {claim.rows[0]}",
        student_t([threshold - mean for mean in means]),
        tuple(run.seed for run in runs),
        detail=f"masked {np.mean(means):.2%} on average, {largest:.2%} in the largest update",
    )


def explained_variance(logs: Logs, claim: Claim) -> Effect | None:
    """Median explained variance before the updates over the last third of training."""

    def late_median(run: Run) -> float:
        late = run.policy_updates[run.policy_updates["step"] >= 2 * run.updates / 3]
        return float(late["explained_variance_before"].astype(float).median())

    return _paired_metric(logs, claim, late_median, "median explained variance, last third", "1")


def critic_gradient_norm(logs: Logs, claim: Claim) -> Effect | None:
    """Mean gradient norm of the critic over the policy updates."""

    def mean_of(column: str) -> Callable[[Run], float]:
        return lambda run: _column_mean(run.policy_updates, column)

    first, second = claim.rows
    rest = [_mean_over_runs(logs.finished(row), mean_of("critic_grad_norm_rest")) for row in claim.rows]
    note = (
        f"without the attention parameters: {first} {rest[0]:.3g}, {second} {rest[1]:.3g} "
        "(a frozen part's norm is absent by construction)"
    )
    return _paired_metric(logs, claim, mean_of("critic_grad_norm"), "mean critic gradient norm", "1", [note])


def reward_after_switch(logs: Logs, claim: Claim) -> Effect | None:
    """Mean training reward over one half of the phases after a switch."""

    def reward(run: Run) -> float:
        return float(pd.concat([_half(phase, claim.half) for phase in phases(run)[1:]]).mean())

    def first_phase(run: Run) -> float:
        return float(phases(run)[0].mean())

    first, second = (_mean_over_runs(logs.finished(row), first_phase) for row in claim.rows)
    note = f"phase 1, difference of the means: {first - second:+.3f}"
    return _paired_metric(
        logs, claim, reward, f"mean training reward, {claim.half} half of phases 2 and 3", "1", [note]
    )


def staleness(logs: Logs, claim: Claim) -> Effect | None:
    """Mean staleness of the tokens after the first third of training."""

    def mean(run: Run) -> float:
        return _column_mean(run.later_updates, "staleness_mean")

    notes = [_means_note(logs, claim, mean)]
    return _paired_metric(logs, claim, mean, "mean staleness, later updates", "updates", notes)


def idle_share(logs: Logs, claim: Claim) -> Effect | None:
    """Mean of the sampler's and the trainer's idle shares after the first third of training."""

    def mean_of(*columns: str) -> Callable[[Run], float]:
        return lambda run: float(np.mean([_column_mean(run.later_updates, column) for column in columns]))

    notes = [
        f"{part}: {_means_note(logs, claim, mean_of(f'{part}_idle_share'))}"
        for part in ("sampler", "trainer")
    ]
    both = mean_of("sampler_idle_share", "trainer_idle_share")
    return _paired_metric(
        logs, claim, both, "idle share of sampler and trainer, later updates", POINTS, notes
    )


def swe_bench(logs: Logs, claim: Claim) -> Effect | None:
    """Share of SWE-Bench Verified that the first row resolves minus the second's, paired by task."""
    evaluations = load_swe(logs)
    first, second = (read_named(logs, evaluations, row) for row in claim.rows)
    try:
        compared = difference(first, second)
    except NotComparable:
        return None
    if compared is None:
        return None
    tests = "exact McNemar p" if compared.interval.method == MCNEMAR else "p"
    errors = f"{100 * compared.se_paired:.2f} points paired, {100 * compared.se_unpaired:.2f} unpaired"
    details = [
        f"standard error {errors}",
        f"tasks that one alone resolves: {compared.only_first} + {compared.only_second}",
        f"{tests} {compared.p:.2g}",
        *(f"{row.row}: {row.status.note}" for row in (first, second) if row.status.note),
        *(f"graded over {backend}" for backend in first.backends if backend != OFFICIAL_BACKEND),
    ]
    used = [one for row in (first, second) for one in row.complete if one.spec["seed"] in compared.seeds]
    return Effect(
        f"resolved tasks: {first.row} - {second.row}, paired by task",
        compared.interval,
        compared.seeds,
        detail="; ".join(details),
        sources=tuple(one.path.relative_to(logs.folder).as_posix() for one in used),
    )


def collapse_count(runs: Sequence[Run]) -> str:
    """How many of `runs`, all of one row, collapsed, with the exact interval of that share."""
    if not runs:
        return ""
    steps = [run.collapse_step for run in runs if run.collapse_step is not None]
    share = clopper_pearson(len(steps), len(runs))
    text = f"{runs[0].record.row}: {len(steps)} of {len(runs)} seeds collapsed"
    where = ""
    if steps:
        span = f"step {min(steps)}" if len(set(steps)) == 1 else f"steps {min(steps)} to {max(steps)}"
        where = f" at {span}"
    return f"{text}{where} (exact interval {share.low:.0%} to {share.high:.0%})"


TESTS: dict[str, Callable[[Logs, Claim], Effect | None]] = {
    "collapse": collapse,
    "stability": stability,
    "score": score,
    "gap_growth": gap_growth,
    "masked_share": masked_share,
    "explained_variance": explained_variance,
    "critic_gradient_norm": critic_gradient_norm,
    "reward_after_switch": reward_after_switch,
    "staleness": staleness,
    "idle_share": idle_share,
    "swe_bench": swe_bench,
}


def _paired_outcomes(
    logs: Logs, claim: Claim, take: Callable[[Run], pd.Series], quantity: str, notes: list[str]
) -> Effect | None:
    first, second = (logs.outcomes(row, take) for row in claim.rows)
    difference = first.minus(second) if first is not None and second is not None else None
    if difference is None:
        return None
    return Effect(
        f"{quantity}: {claim.rows[0]} - {claim.rows[1]}, paired",
        crossed_bootstrap(difference.shares),
        difference.seeds,
        detail="; ".join(note for note in notes if note),
    )


def _paired_metric(
    logs: Logs,
    claim: Claim,
    value: Callable[[Run], float],
    quantity: str,
    unit: str,
    notes: Sequence[str] = (),
) -> Effect | None:
    first, second = ({run.seed: value(run) for run in logs.finished(row)} for row in claim.rows)
    pairs = {seed: first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())}
    usable = {seed: pair for seed, pair in pairs.items() if np.isfinite(pair)}
    if not usable:
        return None
    left_out = [f"seed {seed} has no value" for seed in pairs.keys() - usable.keys()]
    return Effect(
        f"{quantity}: {claim.rows[0]} - {claim.rows[1]}, paired by seed",
        student_t(list(usable.values())),
        tuple(usable),
        unit,
        "; ".join([*notes, *left_out]),
    )


def _margin(runs: Sequence[Run]) -> Interval | None:
    """Score minus 70% of the best evaluation, the best one fixed before resampling."""
    outcomes = stack_outcomes(runs, lambda run: run.score() - COLLAPSE_SHARE * run.best())
    return None if outcomes is None else crossed_bootstrap(outcomes.shares)


def _early_difference(logs: Logs, first: str, second: str) -> str:
    outcomes = [logs.outcomes(row, Run.early) for row in (first, second)]
    difference = outcomes[0].minus(outcomes[1]) if outcomes[0] and outcomes[1] else None
    if difference is None:
        return ""
    interval = crossed_bootstrap(difference.shares)
    return (
        f"at 40% of the steps {100 * interval.estimate:+.1f} "
        f"[{100 * interval.low:.1f}, {100 * interval.high:.1f}]"
    )


def phases(run: Run) -> list[pd.Series]:
    """Training reward by phase, phases ending where the rewarded style switches."""
    rewards = run.policy_updates.set_index("step")["reward_mean"]
    switches = [share * run.updates for share in run.record.config["task"]["switch_points"]]
    edges = [0.0, *switches, float(run.updates)]
    return [rewards[(rewards.index >= low) & (rewards.index < high)] for low, high in pairwise(edges)]


def _half(phase: pd.Series, half: str | None) -> pd.Series:
    middle = (len(phase) + 1) // 2
    return phase.iloc[:middle] if half == "first" else phase.iloc[middle:]


def _column_mean(metrics: pd.DataFrame, column: str) -> float:
    return float(metrics[column].astype(float).mean()) if len(metrics) else float("nan")


def _mean_over_runs(runs: Sequence[Run], value: Callable[[Run], float]) -> float:
    values = [value(run) for run in runs]
    finite = [value for value in values if np.isfinite(value)]
    return float(np.mean(finite)) if finite else float("nan")


def _means_note(logs: Logs, claim: Claim, value: Callable[[Run], float]) -> str:
    return ", ".join(f"{row} {_mean_over_runs(logs.finished(row), value):.3g}" for row in claim.rows)
