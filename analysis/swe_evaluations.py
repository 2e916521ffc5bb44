"""Evaluations on SWE-Bench Verified: which of a folder count for a row, and what two rows differ by."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

import numpy as np

from analysis.artifacts import ROWS_FOLDER, Table, TableRow, load_artifacts
from analysis.evaluations import NOT_AT_THIS_SCALE, check_scale, training_shortfall
from analysis.load import AnalysisError, Logs, Outcomes
from analysis.rows import NOT_RUN, RowStatus, status_of
from analysis.statistics import (
    EXACT,
    Interval,
    accuracy_interval,
    clustered_standard_error,
    crossed_bootstrap,
    p_value,
)
from evaluation.math.store import StoreError
from evaluation.swe.comparisons import comparable, comparison_line
from evaluation.swe.graded import COMPLETE, Graded, find_graded
from evaluation.swe.protocol import BENCHMARKS
from evaluation.swe.summary import summary_line
from evaluation.swe.targets import scale_benchmarks
from sao.config import ConfigError, load_scale, scale_names

VERIFIED = "swe_bench_verified"
PUBLISHED = BENCHMARKS[VERIFIED].published
MCNEMAR = "exact (McNemar's) and normal, over problems"
OFFICIAL_BACKEND = "docker"


@dataclass(frozen=True)
class SweEvaluations:
    """Evaluations on SWE-Bench Verified below one folder.

    `due`: whether the scale asks for them; `last_step`: policy updates of a trained row, None where no scale
    says, and the latest evaluation counts.
    """

    found: tuple[Graded, ...]
    due: bool
    last_step: int | None

    @property
    def is_empty(self) -> bool:
        return not self.found and not self.due

    def of(self, row: str) -> list[Graded]:
        """Evaluations of a row at every step."""
        return [one for one in self.found if one.spec["row"] == row]


@dataclass(frozen=True)
class SweRow:
    """What a row's evaluations come to: the complete ones by seed, and by seed why others do not count.

    A row without training is one policy: further seeds of it are further runs.
    """

    row: str
    trained: bool
    complete: tuple[Graded, ...]
    status: RowStatus
    reasons: dict[int, str]

    @property
    def backends(self) -> list[str]:
        """Where the tests of the complete evaluations ran."""
        return sorted({summary_line(one)["backend"] for one in self.complete})

    @property
    def outcomes(self) -> Outcomes | None:
        """Resolved tasks [seeds, tasks] as 0 and 1, of a row without training their mean over its runs."""
        if not self.complete:
            return None
        tasks = tuple(self.complete[0].spec["samples"])
        shares = np.array([[float(one.resolved[task]) for task in tasks] for one in self.complete])
        seeds = tuple(one.spec["seed"] for one in self.complete)
        if not self.trained:
            shares, seeds = shares.mean(axis=0, keepdims=True), seeds[:1]
        return Outcomes(seeds, tasks, shares)

    @property
    def interval(self) -> Interval | None:
        """The resolved share: of one run with its exact interval, of several their mean."""
        outcomes = self.outcomes
        if outcomes is None:
            return None
        if len(self.complete) > 1:
            return accuracy_interval(outcomes.shares)
        line = summary_line(self.complete[0])
        value, low, high = (line[name] / 100 for name in ("score", "low", "high"))
        return Interval(value, low, high, 1, len(outcomes.problems), EXACT)


@dataclass(frozen=True)
class Difference:
    """Resolved share of one row less that of another, task by task, with both standard errors.

    `only_first`, `only_second`: tasks that one of the two alone resolves, over all pairs of `seeds`.
    """

    interval: Interval
    se_paired: float
    se_unpaired: float
    only_first: int
    only_second: int
    p: float
    seeds: tuple[int, ...]


def load_swe(logs: Logs) -> SweEvaluations:
    """The folder's evaluations; AnalysisError where one of SWE-Bench is damaged or of another scale."""
    try:
        known = logs.scale in scale_names()
        scale = load_scale(logs.scale) if known else None
        everything = find_graded(logs.folder / "evaluations")
    except (ConfigError, StoreError) as error:
        raise AnalysisError(str(error)) from error
    for one in everything:
        check_scale(logs, one.path, one.spec)
    found = tuple(one for one in everything if one.spec["benchmark"] == VERIFIED)
    due = scale is not None and VERIFIED in scale_benchmarks(scale)
    return SweEvaluations(found, due, scale.evaluation.steps[-1] if scale and due else None)


def is_software(table: Table) -> bool:
    """Whether a table is one of SWE-Bench Verified."""
    return table.benchmarks == [PUBLISHED]


def software_rows(table: Table, evaluations: SweEvaluations) -> list[TableRow]:
    """The table's rows, and before them the other models that were evaluated."""
    listed = {row.row for row in table.rows}
    others = dict.fromkeys(one.spec["row"] for one in evaluations.found)
    foreign = [row for row in others if row not in listed and not (ROWS_FOLDER / f"{row}.yaml").is_file()]
    return [*(TableRow(row=row, kind="reference") for row in foreign), *table.rows]


def read_row(logs: Logs, evaluations: SweEvaluations, row: TableRow) -> SweRow:
    """A row's evaluations and status; AnalysisError where its seeds do not measure the same."""
    trained = row.kind == "run"
    mine = evaluations.of(row.row)
    step = evaluations.last_step if trained and evaluations.last_step is not None else None
    step = max((one.spec["step"] for one in mine), default=None) if step is None else step
    there = {one.spec["seed"]: one for one in mine if one.spec["step"] == step}
    seeds = {*logs.planned_seeds, *logs.runs.get(row.row, {}), *there} if trained else set(there)
    absent = _absence(evaluations, step, [one.spec["step"] for one in mine])
    reasons = {}
    for seed in sorted(seeds) or [0]:
        training = training_shortfall(logs, row.row, seed) if trained and not evaluations.is_empty else ""
        if reason := training or _shortfall(there.get(seed), absent):
            reasons[seed] = reason
    complete = tuple(one for seed, one in sorted(there.items()) if seed not in reasons)
    _check_alike(complete)
    return SweRow(row.row, trained, complete, status_of(sorted(seeds) or [0], reasons), reasons)


def read_named(logs: Logs, evaluations: SweEvaluations, name: str) -> SweRow:
    """`read_row` for a row by its name."""
    tables = [table for table in load_artifacts().tables.values() if is_software(table)]
    known = {row.row: row for table in tables for row in table.rows}
    return read_row(logs, evaluations, known.get(name, TableRow(row=name)))


def difference(first: SweRow, second: SweRow) -> Difference | None:
    """First row less second, paired by seed and task; None where they share no complete seed.

    A row without training stands against every seed of the other. One pair of runs has the exact test of
    `comparison_line`, several have the intervals of the other tables. Raises NotComparable where the two do
    not measure the same.
    """
    pairs = _pairs(first, second)
    if not pairs:
        return None
    if not all(comparable(one, other) for one, other in pairs):
        raise NotComparable(f"{pairs[0][0].path} and {pairs[0][1].path} measure different things")
    lines = [comparison_line(one, other) for one, other in pairs]
    only = sum(line["only_row"] for line in lines), sum(line["only_other"] for line in lines)
    seeds = tuple(dict.fromkeys((one if first.trained else other).spec["seed"] for one, other in pairs))
    if len(pairs) == 1:
        (line,) = lines
        value, low, high = (line[name] / 100 for name in ("difference", "low", "high"))
        interval = Interval(value, low, high, 1, line["tasks"], MCNEMAR)
        return Difference(
            interval, line["se_paired"] / 100, line["se_unpaired"] / 100, *only, line["p_value"], seeds
        )
    shares = [_by_seed(row, seeds) for row in (first, second)]
    differences = shares[0] - shares[1]
    unpaired = hypot(*map(clustered_standard_error, shares))
    paired = clustered_standard_error(differences)
    return Difference(crossed_bootstrap(differences), paired, unpaired, *only, p_value(differences), seeds)


class NotComparable(AnalysisError):
    """Two rows that were played or graded in different ways."""


def _pairs(first: SweRow, second: SweRow) -> list[tuple[Graded, Graded]]:
    """Runs of the same seed; those of a row without training with all of the other."""
    return [
        (one, other)
        for one in first.complete
        for other in second.complete
        if not (first.trained and second.trained) or one.spec["seed"] == other.spec["seed"]
    ]


def _by_seed(row: SweRow, seeds: Sequence[int]) -> np.ndarray:
    """Resolved shares [seeds, tasks] of a row; of one without training the same for every seed."""
    outcomes = row.outcomes
    assert outcomes is not None
    if not row.trained:
        return np.repeat(outcomes.shares, len(seeds), axis=0)
    return outcomes.shares[[outcomes.seeds.index(seed) for seed in seeds]]


def _absence(evaluations: SweEvaluations, step: int | None, steps: Sequence[int]) -> str:
    """What there is to say of an evaluation that is not there."""
    if evaluations.is_empty:
        return NOT_AT_THIS_SCALE
    if steps and step not in steps:
        known = ", ".join(map(str, sorted(set(steps))))
        return f"{NOT_RUN}: the row counts at step {step}, and evaluations are there of step {known}"
    return NOT_RUN


def _shortfall(graded: Graded | None, absent: str) -> str:
    """Why an evaluation makes no score; empty for one that does."""
    if graded is None:
        return absent
    if graded.status == COMPLETE:
        return ""
    if not graded.failure:
        return graded.status
    return f"failed: {graded.status}; {graded.failure.removeprefix(f'{graded.path}: ')}"


def _check_alike(complete: Sequence[Graded]) -> None:
    for other in complete[1:]:
        if not comparable(complete[0], other):
            raise AnalysisError(
                f"{complete[0].path} and {other.path}: have other tasks, limits or graders, so they are not "
                "seeds of one value; move the older one away and evaluate it again"
            )
