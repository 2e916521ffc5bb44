"""Evaluations of a results folder on mathematics benchmarks, as outcomes by seed and problem."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.artifacts import ROWS_FOLDER, TableRow
from analysis.load import EVALUATION_DATA, AnalysisError, Logs, Outcomes
from analysis.rows import NOT_RUN, RowStatus, status_of, unfinished_reason
from evaluation.math.protocol import BENCHMARKS
from evaluation.math.store import Evaluation, StoreError
from evaluation.math.targets import scale_benchmarks
from evaluation.summary import COMPLETE, find_evaluations, outcome_matrix, summary_line
from sao.config import ConfigError, load_scale, scale_names

LIMITS = ("max_tokens", "max_turns", "temperature", "top_p")
NOT_AT_THIS_SCALE = "not at this scale"


@dataclass(frozen=True)
class Evaluations:
    """Evaluations below one folder.

    `due`: benchmarks that the scale asks for; `last_step`: policy updates of a trained row, None at a scale
    without a file, where the latest evaluation counts.
    """

    found: tuple[Evaluation, ...]
    due: tuple[str, ...]
    last_step: int | None

    def of(self, row: str, benchmark: str | None = None) -> list[Evaluation]:
        """Evaluations of a row at every step, on one benchmark or on all."""
        return [
            one for one in self.found if one.spec["row"] == row and benchmark in (None, one.spec["benchmark"])
        ]

    def foreign_rows(self) -> list[str]:
        """Rows of models from elsewhere, which no file defines: reference models behind an endpoint."""
        rows = dict.fromkeys(one.spec["row"] for one in self.found)
        return [row for row in rows if not (ROWS_FOLDER / f"{row}.yaml").is_file()]

    def step(self, row: TableRow) -> int | None:
        """The step at which a row counts; None where it has no evaluation and no scale says."""
        if row.kind == "run" and self.last_step is not None:
            return self.last_step
        return max((one.spec["step"] for one in self.of(row.row)), default=None)


@dataclass(frozen=True)
class Cell:
    """What a row's evaluations on one benchmark come to.

    `outcomes` are the complete ones [seeds, problems], runs averaged within a problem; None without one.
    A row without training is one policy: further seeds of it are further runs. `reasons` says by seed why
    others do not count.
    """

    complete: tuple[Evaluation, ...]
    outcomes: Outcomes | None
    status: RowStatus
    reasons: dict[int, str]

    @property
    def summaries(self) -> list[dict[str, Any]]:
        return [summary_line(evaluation) for evaluation in self.complete]

    @property
    def measured(self) -> dict[str, Any]:
        """What a difference must agree in: the problems with their corrections, and the limits."""
        return _measured(self.complete[0])

    @property
    def runs(self) -> int:
        """Samples of each problem and policy."""
        samples = [summary["runs"] for summary in self.summaries]
        return sum(samples) // len(self.outcomes.seeds) if self.outcomes else 0


def load_evaluations(logs: Logs) -> Evaluations | None:
    """The evaluations of a scale with benchmarks; None at a scale without, whose tables stand on its task.

    At a scale without a file, a folder with evaluations has all benchmarks. Raises AnalysisError where an
    evaluation is damaged.
    """
    due, last_step = _asked_for(logs)
    if not due:
        return None
    try:
        found = find_evaluations(logs.folder / "evaluations")
    except StoreError as error:
        raise AnalysisError(str(error)) from error
    for one in found:
        check_scale(logs, one.path, one.spec)
    return Evaluations(tuple(found), due, last_step)


def read_cell(logs: Logs, evaluations: Evaluations, row: TableRow, benchmark: str) -> Cell:
    """Outcomes and status of a row on a benchmark; AnalysisError where its seeds do not measure the same."""
    step, trained = evaluations.step(row), row.kind == "run"
    all_steps = evaluations.of(row.row, benchmark)
    there = {one.spec["seed"]: one for one in all_steps if one.spec["step"] == step}
    seeds = sorted(_trained_seeds(logs, evaluations, row.row, step) if trained else there) or [0]
    absent = _absence(evaluations, benchmark, step, [one.spec["step"] for one in all_steps])
    reasons = {}
    for seed in seeds:
        training = training_shortfall(logs, row.row, seed) if trained and absent != NOT_AT_THIS_SCALE else ""
        if reason := training or _shortfall(there.get(seed), absent):
            reasons[seed] = reason
    complete = tuple(there[seed] for seed in seeds if seed not in reasons)
    return Cell(complete, _outcomes(complete, trained), status_of(seeds, reasons), reasons)


def _asked_for(logs: Logs) -> tuple[tuple[str, ...], int | None]:
    """Benchmarks due, and the last step of trained rows."""
    if logs.scale not in scale_names():
        return (tuple(BENCHMARKS), None) if any(logs.folder.glob(EVALUATION_DATA)) else ((), None)
    try:
        scale = load_scale(logs.scale)
    except ConfigError as error:
        raise AnalysisError(str(error)) from error
    return scale_benchmarks(scale), scale.evaluation.steps[-1]


def _trained_seeds(logs: Logs, evaluations: Evaluations, row: str, step: int | None) -> set[int]:
    """Seeds that a trained row should have on every benchmark."""
    evaluated = {one.spec["seed"] for one in evaluations.of(row) if one.spec["step"] == step}
    return {*logs.planned_seeds, *logs.runs.get(row, {}), *evaluated}


def check_scale(logs: Logs, path: Path, spec: Mapping[str, Any]) -> None:
    """Raise AnalysisError for an evaluation of another scale than the folder's."""
    if spec.get("scale", logs.scale) != logs.scale:
        raise AnalysisError(
            f"{path / 'spec.json'}: is of scale {spec['scale']}, in a folder of scale {logs.scale}; move it "
            "to where it belongs"
        )


def training_shortfall(logs: Logs, row: str, seed: int) -> str:
    """Why the run that an evaluation would be of does not count; empty where it does, or is not here."""
    run = logs.runs.get(row, {}).get(seed)
    if run is None or run.finished:
        return ""
    reason = unfinished_reason(logs, row, seed)
    return "" if reason == NOT_RUN else reason


def _absence(evaluations: Evaluations, benchmark: str, step: int | None, steps: Sequence[int]) -> str:
    """What there is to say of an evaluation that is not there."""
    if steps and step not in steps:
        known = ", ".join(map(str, sorted(set(steps))))
        return f"{NOT_RUN}: the row counts at step {step}, and evaluations are there of step {known}"
    return NOT_RUN if steps or benchmark in evaluations.due else NOT_AT_THIS_SCALE


def _shortfall(evaluation: Evaluation | None, absent: str) -> str:
    """Why an evaluation makes no score; empty for one that does."""
    if evaluation is None:
        return absent
    status = str(summary_line(evaluation)["status"])
    if status == COMPLETE:
        return ""
    if not evaluation.failure:
        return status
    said = evaluation.failure.removeprefix(f"{evaluation.path}: ")
    return f"failed: {status}; {said}"


def _outcomes(complete: tuple[Evaluation, ...], trained: bool) -> Outcomes | None:
    if not complete:
        return None
    first = complete[0]
    for other in complete[1:]:
        if _measured(other) != _measured(first):
            raise AnalysisError(
                f"{_name(first.path)} and {_name(other.path)}: are of other problems, corrections or limits, "
                "so they are not seeds of one value; move the older one away and evaluate it again"
            )
    shares = np.stack([outcome_matrix(one).mean(axis=1) for one in complete])
    seeds = tuple(one.spec["seed"] for one in complete)
    if not trained:
        shares, seeds = shares.mean(axis=0, keepdims=True), seeds[:1]
    return Outcomes(seeds, tuple(first.spec["samples"]), shares)


def _measured(evaluation: Evaluation) -> dict[str, Any]:
    protocol = evaluation.spec["protocol"]
    return {"data": evaluation.spec["data"], "limits": {name: protocol.get(name) for name in LIMITS}}


def _name(path: Path) -> str:
    return "/".join(path.parts[-5:])
