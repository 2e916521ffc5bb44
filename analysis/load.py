"""Logged runs of one scale, as learning curves of outcomes by problem."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from analysis.errors import AnalysisError
from analysis.log_check import check_copies, check_scales, read_checked, read_warm_start
from analysis.statistics import Collapse, find_collapse
from sao.runlog import RunError, RunRecord

SCALES_FOLDER = Path(__file__).parents[1] / "experiments" / "scales"
RUN_DATA, EVALUATION_DATA = "runs/*/seed*/metrics.jsonl*", "evaluations/*/seed*/step*/*/spec.json"
EARLY_SHARE = 0.4


@dataclass(frozen=True)
class Outcomes:
    """Shares of correct answers [seeds, problems] in [0, 1], with the seeds and problem ids of its axes."""

    seeds: tuple[int, ...]
    problems: tuple[str, ...]
    shares: np.ndarray

    def minus(self, other: "Outcomes") -> "Outcomes | None":
        """Paired difference on the seeds of both, or None where they share no seed.

        Raises AnalysisError when the problems differ, since nothing can then be paired.
        """
        if self.problems != other.problems:
            raise AnalysisError(
                "two rows were evaluated on different held-out problems, so they cannot be paired; "
                "archive the older one (python -m sao.runlog archive ROW --scale SCALE) and train it again"
            )
        seeds = tuple(seed for seed in self.seeds if seed in other.seeds)
        if not seeds:
            return None
        mine = [self.seeds.index(seed) for seed in seeds]
        theirs = [other.seeds.index(seed) for seed in seeds]
        return Outcomes(seeds, self.problems, self.shares[mine] - other.shares[theirs])


@dataclass(frozen=True)
class WarmStart:
    """The evaluation of the policy that all runs of a task start from; `outcomes` [problems]."""

    directory: str
    outcomes: pd.Series
    bands: dict[str, str]


@dataclass(frozen=True)
class Run:
    """One run with its outcomes by step and problem.

    `correct` [evaluation steps, problems] holds shares of correct answers; its first line is step 0, the
    shared warm start, where that was evaluated.
    """

    record: RunRecord
    directory: str
    correct: pd.DataFrame
    bands: dict[str, str]

    @property
    def seed(self) -> int:
        return self.record.seed

    @property
    def finished(self) -> bool:
        return self.record.status == "finished"

    @property
    def updates(self) -> int:
        return int(self.record.config["training"]["updates"])

    @property
    def early_step(self) -> int:
        """The step at 40% of training, read off the config and never off the curve."""
        return round(EARLY_SHARE * self.updates)

    @cached_property
    def accuracies(self) -> pd.Series:
        """Held-out accuracy by evaluation step."""
        return self.correct.mean(axis=1)

    @cached_property
    def collapse(self) -> Collapse | None:
        return find_collapse(list(self.accuracies))

    @property
    def collapse_step(self) -> int | None:
        return None if self.collapse is None else int(self.correct.index[self.collapse.position])

    @cached_property
    def policy_updates(self) -> pd.DataFrame:
        """Metrics of the policy updates, without the critic-only steps before them."""
        metrics = self.record.metrics
        return metrics[metrics["step"] >= 0] if len(metrics) else metrics

    @property
    def later_updates(self) -> pd.DataFrame:
        """Metrics of the policy updates without the first third, in which the queue starts up."""
        return self.policy_updates[self.policy_updates["step"] >= self.updates / 3]

    @property
    def cpu_minutes(self) -> float:
        """CPU-minutes of the whole run, NaN where none was logged."""
        metrics = self.record.metrics
        return float(metrics["cpu_seconds"].iloc[-1]) / 60 if len(metrics) else float("nan")

    def at(self, step: int) -> pd.Series:
        """Outcomes by problem after `step` updates; raises AnalysisError where none were logged."""
        if step not in self.correct.index:
            known = ", ".join(str(known) for known in self.correct.index)
            raise AnalysisError(
                f"{self.directory}: no evaluation at step {step} (there are: {known}); "
                "add the step to evaluation.steps of the scale and train the row again"
            )
        return self.correct.iloc[list(self.correct.index).index(step)]

    def last(self) -> pd.Series:
        return self.at(self.updates)

    def early(self) -> pd.Series:
        return self.at(self.early_step)

    def score(self) -> pd.Series:
        """Outcomes by problem, mean of the last two held-out evaluations of training."""
        return self.correct[self.correct.index > 0].iloc[-2:].mean()

    def best(self) -> pd.Series:
        return self.correct.iloc[int(np.argmax(self.accuracies))]

    def before_collapse(self) -> pd.Series:
        """Outcomes of the last evaluation before the collapse; raises ValueError for a run that did not."""
        if self.collapse is None:
            raise ValueError(f"{self.directory} did not collapse")
        return self.correct.iloc[self.collapse.before]


@dataclass(frozen=True)
class ImportedRow:
    """Runs of one row and scale that were trained elsewhere, under a label of their own, by seed.

    They are shown beside this suite's rows and never counted among them. A run's `correct` is empty: of each
    of the `benchmarks` only means are known, as runs with one column.
    """

    row: str
    scale: str
    label: str
    runs: tuple[Run, ...]
    benchmarks: dict[str, tuple[Run, ...]]


@dataclass(frozen=True)
class Logs:
    """Runs of one folder (`results/<scale>` or `results/logged/<scale>`), by row and seed.

    `imported` rows are those of this folder and of the folders named beside it.
    """

    folder: Path
    scale: str
    runs: dict[str, dict[int, Run]]
    warm_starts: dict[str, WarmStart]
    planned_seeds: tuple[int, ...]
    imported: tuple[ImportedRow, ...] = ()

    def finished(self, row: str) -> list[Run]:
        """Finished runs of a row in the order of their seeds."""
        return [run for _, run in sorted(self.runs.get(row, {}).items()) if run.finished]

    def outcomes(
        self, row: str, take: Callable[[Run], pd.Series], band: str | None = None
    ) -> Outcomes | None:
        """Outcomes of a row's finished runs, `take` reading one run's; None without a finished run."""
        return stack_outcomes(self.finished(row), take, band)


def stack_outcomes(
    runs: Iterable[Run], take: Callable[[Run], pd.Series], band: str | None = None
) -> Outcomes | None:
    """Outcomes of `runs` side by side, of one difficulty band or of all problems; None where none is left."""
    runs = list(runs)
    taken = [take(run) for run in runs]
    if not taken:
        return None
    for run, outcomes in zip(runs, taken, strict=True):
        if not outcomes.index.equals(taken[0].index):
            raise AnalysisError(
                f"{run.directory}: evaluated on other problems than {runs[0].directory}; "
                "archive the older run (python -m sao.runlog archive ROW --scale SCALE) and train it again"
            )
    kept = [problem for problem in taken[0].index if band is None or runs[0].bands.get(problem) == band]
    if not kept:
        return None
    shares = np.stack([outcomes[kept].to_numpy(dtype=np.float64) for outcomes in taken])
    return Outcomes(tuple(run.seed for run in runs), tuple(kept), shares)


def load_logs(folder: Path, rows: Iterable[str], beside: Iterable[Path] = ()) -> Logs:
    """Read the runs of `rows` below `folder`, the warm starts, and the imported runs in the folders `beside`.

    Raises AnalysisError where no run or evaluation in the folder has data, whatever its row, a file read is
    damaged, or a folder beside it holds no imported run.
    """
    rows = list(dict.fromkeys(rows))
    if not any(any(folder.glob(data)) for data in (RUN_DATA, EVALUATION_DATA)):
        raise AnalysisError(
            f"{folder}: no run here has data; train first (snakemake --cores 2) or name a folder of logged "
            "runs (--runs results/logged/cpu)"
        )
    try:
        found = _read_rows(folder, rows)
        warm_starts = _load_warm_starts(folder)
        imported = [record for record in found if record.imported is not None]
        for other in beside:
            imported += _read_imported(other, rows)
    except RunError as error:
        raise AnalysisError(str(error)) from error
    records = [record for record in found if record.imported is None]
    check_scales(records)
    check_copies(folder)
    runs: dict[str, dict[int, Run]] = {}
    for record in records:
        start = warm_starts.get(record.config.get("task", {}).get("name", ""))
        runs.setdefault(record.row, {})[record.seed] = _make_run(record, start)
    scale = records[0].scale if records else _scale_of_evaluations(folder)
    return Logs(folder, scale, runs, warm_starts, _planned_seeds(scale), _imported_rows(imported))


def _read_rows(folder: Path, rows: list[str]) -> list[RunRecord]:
    paths = [path for row in rows for path in sorted(folder.glob(f"runs/{row}/seed*"))]
    return [read_checked(path) for path in paths]


def _read_imported(folder: Path, rows: list[str]) -> list[RunRecord]:
    if not any(folder.glob("runs/*/seed*/accuracies.jsonl*")):
        raise AnalysisError(
            f"{folder}: holds no imported run, and only those can be shown beside other runs; import one "
            "(python -m analysis.importers) or name its folder"
        )
    return [record for record in _read_rows(folder, rows) if record.imported is not None]


def _imported_rows(records: list[RunRecord]) -> tuple[ImportedRow, ...]:
    """Imported runs grouped by row, scale and label, in the order in which they were found."""
    groups: dict[tuple[str, str, str], list[RunRecord]] = {}
    for record in records:
        label = str((record.imported or {})["label"])
        groups.setdefault((record.row, record.scale, label), []).append(record)
    return tuple(
        ImportedRow(row, scale, label, tuple(_bare_run(record) for record in group), _benchmark_runs(group))
        for (row, scale, label), group in groups.items()
    )


def _bare_run(record: RunRecord, correct: pd.DataFrame | None = None) -> Run:
    return Run(record, str(record.path), pd.DataFrame() if correct is None else correct, {})


def _benchmark_runs(records: list[RunRecord]) -> dict[str, tuple[Run, ...]]:
    """By benchmark the runs that report it, each with its accuracies [evaluation steps, 1]."""
    found: dict[str, list[Run]] = {}
    for record in records:
        if record.accuracies is None:
            continue
        for benchmark, lines in record.accuracies.groupby("benchmark"):
            correct = lines.set_index("step")[["accuracy"]].sort_index()
            found.setdefault(str(benchmark), []).append(_bare_run(record, correct))
    return {benchmark: tuple(runs) for benchmark, runs in found.items()}


def load_run(path: Path) -> Run:
    """One finished run directory by itself, without the warm start's point before its evaluations.

    Raises AnalysisError where the folder holds no run, the run is not finished, or a file of it is damaged.
    """
    if not (path / "spec.json").is_file():
        raise AnalysisError(
            f"{path}: is no run directory, it has no spec.json; name one like results/cpu/runs/sao/seed0"
        )
    record = read_checked(path, against_grid=False)
    if record.status != "finished":
        raise AnalysisError(
            f"{path}: is not finished ({record.status}: {record.status_detail}); finish it first: python -m "
            f"sao.train --row {record.row} --scale {record.scale} --seed {record.seed}"
        )
    return replace(_make_run(record, None), directory=str(path))


def _make_run(record: RunRecord, start: WarmStart | None) -> Run:
    directory = f"runs/{record.row}/seed{record.seed}"
    if record.evaluations.empty:
        return Run(record, directory, pd.DataFrame(), {})
    correct = _by_step_and_problem(record.evaluations)
    if start is not None and 0 not in correct.index:
        if not start.outcomes.index.equals(correct.columns):
            raise AnalysisError(
                f"{start.directory}: evaluated on other problems than {directory}; "
                "prepare the warm start again (python -m sao.prepare warm-start)"
            )
        correct = pd.concat([start.outcomes.to_frame(0).T, correct])
    return Run(record, directory, correct, _bands(record.evaluations))


def _by_step_and_problem(evaluations: pd.DataFrame) -> pd.DataFrame:
    """Share of correct answers [steps, problems], averaged over the runs of each problem."""
    return (
        evaluations.astype({"correct": float})
        .groupby(["step", "problem_id"])["correct"]
        .mean()
        .unstack("problem_id")
    )


def _bands(evaluations: pd.DataFrame) -> dict[str, str]:
    labels = evaluations.drop_duplicates("problem_id")
    return dict(zip(labels["problem_id"], labels["label"], strict=True))


def _load_warm_starts(folder: Path) -> dict[str, WarmStart]:
    """Warm starts by task name."""
    starts = {}
    for directory in sorted(folder.glob("prepare/*/warm_start")):
        evaluations = read_warm_start(directory)
        if evaluations.empty:
            continue
        outcomes = _by_step_and_problem(evaluations).iloc[-1]
        name = directory.relative_to(folder).as_posix()
        starts[directory.parent.name] = WarmStart(name, outcomes, _bands(evaluations))
    return starts


def _scale_of_evaluations(folder: Path) -> str:
    """The scale that the first evaluation names, or else the folder's name."""
    spec = next(iter(sorted(folder.glob(EVALUATION_DATA))), None)
    try:
        named = json.loads(spec.read_bytes()).get("scale") if spec else None
    except (ValueError, AttributeError):
        named = None  # whoever reads the evaluation says what is wrong with it
    return str(named or folder.resolve().name)


def _planned_seeds(scale: str) -> tuple[int, ...]:
    """Seeds that the scale's file asks for, or its base's; empty for a scale without a file."""
    name: str | None = scale
    while name is not None:
        path = SCALES_FOLDER / f"{name}.yaml"
        if not path.is_file():
            return ()
        block = yaml.safe_load(path.read_text(encoding="utf-8"))
        if "seeds" in block:
            return tuple(block["seeds"])
        name = block.get("extends")
    return ()
