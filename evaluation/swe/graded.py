"""Evaluations of SWE-Bench with the outcomes of their tasks, as runner and grader left them. No torch."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluation.math.store import StoreError, read_evaluation
from evaluation.swe.outcomes import INFRASTRUCTURE_ERROR, OUTCOMES, RESOLVED
from evaluation.swe.protocol import BENCHMARKS

COMPLETE = "complete"
KEYS = ("row", "seed", "step", "benchmark")


@dataclass(frozen=True)
class Graded:
    """An evaluation with what is known of its tasks, `scores` by task."""

    path: Path
    spec: dict[str, Any]
    scores: dict[str, dict[str, Any]]
    sealed: bool
    failure: str

    @property
    def name(self) -> str:
        return f"{self.spec['row']} seed {self.spec['seed']} step {self.spec['step']}"

    @property
    def counts(self) -> Counter[str]:
        return Counter(score.get("outcome", "") for score in self.scores.values())

    @property
    def status(self) -> str:
        """`complete`, or what is missing for a score."""
        due = BENCHMARKS[self.spec["benchmark"]].problems
        if len(self.spec["samples"]) != due:
            return f"{len(self.spec['samples'])} tasks where the benchmark has {due}"
        if len(self.scores) < due:
            return f"{len(self.scores)} of {due} tasks played"
        if ungraded := self.counts[""]:
            return f"{ungraded} of {due} tasks not graded"
        if broken := self.counts[INFRASTRUCTURE_ERROR]:
            return f"{broken} of {due} tasks with an infrastructure error"
        return COMPLETE if self.sealed else "not sealed"

    @property
    def resolved(self) -> dict[str, bool]:
        return {name: score.get("outcome") == RESOLVED for name, score in self.scores.items()}


def find_graded(folder: Path) -> list[Graded]:
    """Evaluations below a folder, by row, seed, step and benchmark; StoreError for a damaged one."""
    found = [
        _read(spec.parent)
        for spec in folder.glob("*/seed*/step*/*/spec.json")
        if spec.parent.name in BENCHMARKS
    ]
    return sorted(found, key=lambda one: [one.spec[name] for name in KEYS])


def _read(path: Path) -> Graded:
    evaluation = read_evaluation(path)
    spec = evaluation.spec
    place = "/".join(path.parts[-4:])
    if place != f"{spec['row']}/seed{spec['seed']}/step{spec['step']}/{spec['benchmark']}":
        raise StoreError(
            f"{path / 'spec.json'}: is of row {spec['row']}, seed {spec['seed']}, step {spec['step']}, "
            f"benchmark {spec['benchmark']}; move the folder to where it belongs"
        )
    file = path / ("scores.jsonl" if evaluation.sealed else "samples.jsonl")
    scores = _by_task(file, enumerate(evaluation.scores, start=1), spec["samples"])
    outcomes = path / "grading" / "outcomes.jsonl"
    if not evaluation.sealed and outcomes.exists():
        scores |= _by_task(outcomes, _lines(outcomes), spec["samples"], graded=True)
    return Graded(path, spec, scores, evaluation.sealed, evaluation.failure)


def _lines(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbers and records of a file's lines; StoreError for one that is no record."""
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise StoreError(f"{file}: line {number} is damaged; grade the evaluation again")
        yield number, record


def _by_task(
    file: Path, records: Iterable[tuple[int, dict[str, Any]]], due: dict[str, int], graded: bool = False
) -> dict[str, dict[str, Any]]:
    """Records by task; StoreError for a task that is not due or is there twice, or an unknown outcome."""
    scores: dict[str, dict[str, Any]] = {}
    for number, record in records:
        name = record.get("problem_id")
        if name not in due or name in scores:
            fault = "twice" if name in scores else "which spec.json does not ask for"
            raise StoreError(f"{file}: line {number}: holds task {name} {fault}; restore the file")
        if (graded or "outcome" in record) and record.get("outcome") not in OUTCOMES:
            raise StoreError(
                f"{file}: line {number}: outcome is {record.get('outcome')!r}, which is none of "
                f"{', '.join(OUTCOMES)}; grade the evaluation again"
            )
        scores[name] = record
    return scores
