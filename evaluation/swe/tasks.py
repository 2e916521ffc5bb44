"""Tasks in the format of SWE-Bench 5: rows of the published data set or of a local file."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HUB = "SWE-bench/SWE-bench_Verified"
FIELDS = (
    "instance_id",
    "repo",
    "version",
    "base_commit",
    "problem_statement",
    "patch",
    "test_patch",
    "FAIL_TO_PASS",
    "PASS_TO_PASS",
    "image",
    "eval_script",
    "log_parser",
    "eval_type",
)

MAY_BE_EMPTY = {"version", "patch", "test_patch"}  # in training data; SWE-Bench Verified has all


class TaskError(Exception):
    """Task data that cannot be used; the message names the file and the mend."""


@dataclass(frozen=True)
class Task:
    """One row, with the fields that the runner needs by name."""

    row: dict[str, Any]

    @property
    def instance_id(self) -> str:
        return str(self.row["instance_id"])

    @property
    def image(self) -> str:
        return str(self.row["image"])

    @property
    def base_commit(self) -> str:
        return str(self.row["base_commit"])

    @property
    def problem(self) -> str:
        return str(self.row["problem_statement"])


def load_tasks(file: Path | None = None, complete: bool = True) -> list[Task]:
    """Tasks of a .jsonl, .json or .parquet file, or SWE-Bench Verified itself; TaskError for bad data.

    Unless `complete`, version, patch and test_patch may be empty, as in rows of SWE-smith and R2E-Gym.
    """
    rows = _read(file) if file else _download()
    tasks = [Task(_checked(row, place, file or HUB, complete)) for place, row in enumerate(rows)]
    names = [task.instance_id for task in tasks]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise TaskError(f"{file or HUB}: holds {twice[0]} twice; remove one")
    return tasks


def tasks_digest(tasks: Sequence[Task]) -> str:
    """SHA-256 in hex of all rows in order."""
    text = json.dumps([task.row for task in tasks], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def write_tasks(file: Path, tasks: Sequence[Task]) -> None:
    """The rows as the .jsonl file that the harness reads."""
    file.write_text("".join(json.dumps(task.row, default=str) + "\n" for task in tasks))


def _read(file: Path) -> list[dict[str, Any]]:
    try:
        if file.suffix == ".parquet":
            import pyarrow.parquet

            return pyarrow.parquet.read_table(file).to_pylist()
        text = file.read_text()
        rows = (
            [json.loads(line) for line in text.split("\n") if line.strip()]
            if file.suffix == ".jsonl"
            else json.loads(text)
        )
    except (OSError, ValueError) as error:
        raise TaskError(f"{file}: cannot be read: {error}") from error
    if not isinstance(rows, list):
        raise TaskError(f"{file}: holds no list of tasks")
    return rows


def _download() -> list[dict[str, Any]]:
    from datasets import load_dataset

    try:
        return list(load_dataset(HUB, split="test"))
    except Exception as error:  # the hub's client has no common class of errors
        raise TaskError(f"{HUB}: cannot be loaded: {error}; give a local copy with --tasks FILE") from error


def _checked(row: Any, place: int, origin: Path | str, complete: bool) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise TaskError(f"{origin}: row {place} is no object")
    if lacking := [name for name in FIELDS if _lacks(row, name, complete)]:
        raise TaskError(
            f"{origin}: row {place} ({row.get('instance_id', 'without instance_id')}) lacks "
            f"{', '.join(lacking)}; use data in the format of SWE-Bench 5, such as {HUB}"
        )
    return row


def _lacks(row: dict[str, Any], name: str, complete: bool) -> bool:
    value = row.get(name)
    return value is None or (value == "" and (complete or name not in MAY_BE_EMPTY))
