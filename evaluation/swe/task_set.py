"""A public set of tasks to train on: converted, compared with SWE-Bench Verified, and recorded.

    python -m evaluation.training_data fetch swe_tasks [--data-dir FOLDER] [--benchmarks-dir FOLDER]

This is what that command does with a set whose `loader` is `swe`. Its `source` names the reader
(`evaluation.swe.datasets`); the comparison is that of `evaluation.swe.contamination`.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluation.data_files import (
    UNVERIFIED,
    DataError,
    check_digest,
    download,
    first_reading,
    licence_on_card,
    read_folder,
    read_pins,
    record,
    recorded,
)
from evaluation.swe.contamination import (
    VERIFIED,
    Findings,
    all_verified,
    compare,
    in_words,
    load_verified,
    record_check,
)
from evaluation.swe.datasets import Row, convert, counted, write_rows
from evaluation.swe.tasks import TaskError


@dataclass(frozen=True)
class TaskSet:
    """All tasks of a set, of them the benchmark's, and how many rows no task could be made of, by reason."""

    title: str
    tasks: list[Row]
    left_out: Counter[str]
    findings: Findings
    source: str
    revision: str
    sha256: str

    @property
    def kept(self) -> list[Row]:
        """Tasks to train on: without the benchmark's, and each id once."""
        clean = [task for place, task in enumerate(self.tasks) if place not in self.findings.contaminated]
        first = {task["instance_id"]: task for task in reversed(clean)}
        return [task for task in clean if first[task["instance_id"]] is task]

    def report(self) -> list[str]:
        """Lines that name the benchmark's tasks and say what the set is found to be."""
        left_out = [counted(self.left_out)] if self.left_out else []
        return [
            *left_out,
            *in_words(self.tasks, self.findings),
            f"{self.title} from {self.source} at {self.revision}: {len(self.kept)} tasks to train on",
        ]

    def write(self, out: Path) -> None:
        """Write the tasks to train on as JSON Lines, and beside them that they were compared."""
        out.parent.mkdir(parents=True, exist_ok=True)
        write_rows(out, self.kept)
        record_check(out, len(self.kept), self.findings)


def load_task_set(
    name: str, data_dir: Path | None, benchmarks_dir: Path | None, *, sets: Path, lock: Path
) -> TaskSet:
    """Load a set of tasks and compare it with the benchmark. Raises DataError with the mend.

    `data_dir` and `benchmarks_dir` hold local copies to read in place of the network; `sets` and `lock` are
    the files of pins and of what was read before.
    """
    pin, locked = read_pins(sets)[name], read_pins(lock).get(name, {})
    verified, (rows, source, revision) = _all_or_what_is_missing(
        lambda: _verified(benchmarks_dir),
        lambda: _rows(name, pin, recorded("revision", pin, locked), data_dir),
    )
    try:
        tasks, left_out = convert(pin["source"], (dict(row) for row in rows), source)
    except TaskError as error:
        raise DataError(f"{name} from {error}") from None
    digest = checksum(tasks)
    check_digest(name, source, digest, pin, locked, (sets, lock))
    found = TaskSet(pin["title"], tasks, left_out, compare(tasks, verified), source, revision, digest)
    if first_reading(revision, pin, locked):
        licence = UNVERIFIED if data_dir is not None else licence_on_card(pin["hub"], revision)
        record(lock, name, _entry(found, licence))
    return found


def _all_or_what_is_missing(*readers: Callable[[], Any]) -> list[Any]:
    """What each reader reads; DataError with the messages of all that fail, so that one mend is for all."""
    read, problems = [], []
    for reader in readers:
        try:
            read.append(reader())
        except DataError as problem:
            problems.append(str(problem))
    if problems:
        raise DataError("\n".join(problems))
    return read


def checksum(tasks: Iterable[Row]) -> str:
    """SHA-256 in hex of converted tasks in order, with all their fields."""
    total = hashlib.sha256()
    for task in tasks:
        total.update(json.dumps(task, sort_keys=True).encode() + b"\n")
    return total.hexdigest()


def _rows(
    name: str, pin: Mapping[str, Any], revision: str, data_dir: Path | None
) -> tuple[Iterable[Mapping[str, Any]], str, str]:
    """Rows as published, their source and revision."""
    if data_dir is not None:
        return *read_folder(name, data_dir, None), revision
    return download(name, pin, revision, None, "name its folder with --data-dir (data= in the workflow)")


def _verified(benchmarks_dir: Path | None) -> list[Row]:
    """Id, repository and commit of the benchmark's 500 tasks, from a local copy where a folder is given."""
    try:
        if benchmarks_dir is None:
            return load_verified(None)
        rows, origin = read_folder(VERIFIED, benchmarks_dir, None)
        return all_verified([dict(row) for row in rows], origin)
    except TaskError as error:
        raise DataError(str(error)) from None


def _entry(found: TaskSet, licence: str) -> dict[str, Any]:
    return {
        "source": found.source,
        "revision": found.revision,
        "sha256": found.sha256,
        "rows": len(found.tasks) + found.left_out.total(),
        "kept": len(found.kept),
        "kept_sha256": checksum(found.kept),
        "licence_on_card": licence,
        "overlaps": {VERIFIED: len(found.findings.contaminated)},
    }
