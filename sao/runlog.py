"""The run directory: spec, provenance, streamed tables, checkpoints and the seal; nothing finished is lost.

`RunDirectory` writes one, `read_run` and `read_runs` read them.  Commands: `python -m sao.runlog --help`.
Files and columns are described in docs/run_directory.md.
"""

import hashlib
import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sao import provenance
from sao.config import RunConfig
from sao.runlog_files import (
    RunError,
    RunFailure,
    append_lines,
    cut_back,
    ends_incomplete,
    lock,
    read_json,
    read_records,
    sync,
    sync_tree,
    write_json,
    writing,
)
from sao.runlog_imported import write_imported_run
from sao.runlog_reader import RunRecord, read_run, read_runs, read_table, refusal
from sao.runlog_schema import (
    ACCURACY_COLUMNS,
    DROPPED_COLUMNS,
    EVALUATION_COLUMNS,
    METRIC_COLUMNS,
    SCHEDULE_COLUMNS,
    TABLES,
    TRAINING_TRAJECTORY_COLUMNS,
    TRAJECTORY_COLUMNS,
    WALL_CLOCK_COLUMNS,
    Column,
    checked_record,
)

__all__ = [
    "ACCURACY_COLUMNS",
    "DROPPED_COLUMNS",
    "EVALUATION_COLUMNS",
    "METRIC_COLUMNS",
    "SCHEDULE_COLUMNS",
    "TABLES",
    "TRAINING_TRAJECTORY_COLUMNS",
    "TRAJECTORY_COLUMNS",
    "WALL_CLOCK_COLUMNS",
    "Column",
    "RunDirectory",
    "RunError",
    "RunFailure",
    "RunRecord",
    "append_records",
    "read_run",
    "read_runs",
    "read_table",
    "refusal",
    "write_imported_run",
]

CHECKPOINTS_KEPT = 2
_CHECKPOINT = re.compile(r"checkpoint-(-?\d+)")


def append_records(path: Path, columns: dict[str, Column], records: list[dict[str, Any]]) -> None:
    """Appends records to a .jsonl or .jsonl.gz table and flushes them.

    Raises ValueError for records that do not fit the columns, RunError when the disk refuses.
    """
    lines = [json.dumps(checked_record(columns, record), allow_nan=False) for record in records]
    if lines:
        append_lines(path, lines)


class RunDirectory:
    """One run's directory, held by one process at a time; made by `open`, a context manager."""

    def __init__(self, path: Path, config: RunConfig, command: str, lock_descriptor: int | None) -> None:
        self.path = path
        self.config = config
        self.command = command
        self.attempt = 0
        self._lock = lock_descriptor  # None in a process that writes for the one that holds it

    @classmethod
    def open(cls, path: Path, config: RunConfig, command: str) -> Self:
        """Creates the directory with its spec.json, or continues the one that is there.

        Raises RunError where it holds a run of other settings (with the difference and the archive command),
        is sealed already, or is in use by another process.
        """
        path = Path(path)
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
        directory = cls(path, config, command, lock(path / ".lock"))
        try:
            directory._prepare()
        except BaseException:
            directory.close()
            raise
        return directory

    def _prepare(self) -> None:
        if reason := refusal(self.path, self.config):
            raise RunError(reason)
        if (self.path / "seal.json").exists():
            raise RunError(f"{self.path}: is finished and sealed; there is nothing left to train")
        if not (self.path / "spec.json").exists():
            spec = {"row": self.config.row, "scale": self.config.scale, "seed": self.config.seed}
            spec |= {"digest": self.config.digest(), "config": self.config.settings()}
            write_json(self.path / "spec.json", spec)
        for leftover in self.path.glob(".*.tmp"):
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()

    @property
    def lock_descriptors(self) -> tuple[int, ...]:
        """The lock's descriptor, for a process that shall hold it too."""
        return () if self._lock is None else (self._lock,)

    def close(self) -> None:
        """Releases the lock; later calls do nothing."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def log_metrics(self, record: dict[str, Any]) -> None:
        """Appends one line of METRIC_COLUMNS, best as the last act of its step: it marks the step as done.

        Every column must be there, None where it does not apply.
        """
        append_records(self.path / "metrics.jsonl", METRIC_COLUMNS, [record])

    def log_evaluations(self, records: list[dict[str, Any]]) -> None:
        """Appends lines of EVALUATION_COLUMNS, one per problem and sample."""
        append_records(self.path / "evaluations.jsonl", EVALUATION_COLUMNS, records)

    def log_schedule(self, records: list[dict[str, Any]]) -> None:
        """Appends lines of SCHEDULE_COLUMNS, best all lines of one step in one call."""
        append_records(self.path / "schedule.jsonl.gz", SCHEDULE_COLUMNS, records)

    def log_trajectories(self, records: list[dict[str, Any]]) -> None:
        """Appends lines of TRAJECTORY_COLUMNS, best all lines of one evaluation in one call."""
        append_records(self.path / "trajectories.jsonl.gz", TRAJECTORY_COLUMNS, records)

    def log_training_trajectories(self, records: list[dict[str, Any]]) -> None:
        """Appends lines of TRAINING_TRAJECTORY_COLUMNS, best all lines of one update in one call."""
        append_records(self.path / "training_trajectories.jsonl.gz", TRAINING_TRAJECTORY_COLUMNS, records)

    def log_dropped(self, records: list[dict[str, Any]]) -> None:
        """Appends lines of DROPPED_COLUMNS, one per finished trajectory that was dropped."""
        if records:
            append_records(self.path / "dropped.jsonl.gz", DROPPED_COLUMNS, records)

    def checkpoints(self) -> list[tuple[int, Path]]:
        """(step, folder) of the complete checkpoints, oldest first."""
        found = []
        for folder in self.path.glob("checkpoint-*"):
            match = _CHECKPOINT.fullmatch(folder.name)
            if match and _is_complete_checkpoint(folder):
                found.append((int(match.group(1)), folder))
        return sorted(found)

    def latest_checkpoint(self) -> tuple[int, Path] | None:
        """Step and folder of the latest complete checkpoint; incomplete ones are ignored."""
        found = self.checkpoints()
        return found[-1] if found else None

    def save_checkpoint(self, step: int, write: Callable[[Path], None]) -> Path:
        """Has `write` fill a folder and makes it the checkpoint of `step`, the number of policy updates done.

        `write` opens its files itself, so that a full disk is an OSError; incomplete folders are never seen.
        The tables reach the disk first.  The folder gets its name once complete; the two latest are kept.
        """
        target, temporary = self.path / f"checkpoint-{step}", self.path / f".checkpoint-{step}.tmp"
        with writing(target):
            self._sync_tables()
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            write(temporary)
            sizes = {
                str(file.relative_to(temporary)): file.stat().st_size for file in _files_below(temporary)
            }
            write_json(temporary / "complete.json", {"step": step, "bytes": sizes})
            sync_tree(temporary)
            shutil.rmtree(target, ignore_errors=True)  # only an incomplete one can be there
            temporary.rename(target)
            sync(self.path)
            for _, old in self.checkpoints()[:-CHECKPOINTS_KEPT]:
                shutil.rmtree(old)
        return target

    def rewind(self, step: int) -> int:
        """Cuts the tables back to what was logged when the checkpoint of `step` was written, to resume there.

        `step` is the number of policy updates done (-critic_only_steps for a start from scratch): metrics,
        schedule, training and dropped trajectories keep lines below it, evaluations and trajectories lines
        up to it.
        An incomplete last line is dropped.  Returns the number of metrics lines dropped.  Raises RunError for
        a damaged line, or where the metrics lack lines that the checkpoint presupposes.
        """
        first = -self.config.critic_only_steps
        logged = len(read_records(self.path / "metrics.jsonl"))
        of_updates = ("schedule.jsonl.gz", "training_trajectories.jsonl.gz", "dropped.jsonl.gz")
        for name in ("metrics.jsonl", *of_updates):
            cut_back(self.path / name, lambda line: line < step)
        for name in ("evaluations.jsonl", "trajectories.jsonl.gz"):
            cut_back(self.path / name, lambda line: first < step and line <= step)
        steps = [record["step"] for record in self._records("metrics.jsonl")]
        if steps != list(range(first, step)):
            raise RunError(
                f"{self.path / 'metrics.jsonl'}: lacks lines that checkpoint-{step} presupposes "
                f"(steps {first} to {step - 1} are due); restore the file, or {self._archive_command()}"
            )
        return logged - len(steps)

    def weights_path(self, step: int) -> Path:
        """Folder for the policy's weights after `step` updates."""
        return self.path / "weights" / f"step-{step}"

    def begin_attempt(self, data: dict[str, Any] | None = None) -> int:
        """Records command, code, packages, hardware and start in provenance.json; returns its number.

        `data` names the set that the run trains on, and the digest of its rows; RunError where an earlier
        attempt had others.
        """
        file = self.path / "provenance.json"
        record = read_json(file) if file.exists() else {"attempts": []}
        if record.get("data", data) != data:
            raise RunError(
                f"{self.path}: was begun with other data than {data}: {record['data']}; restore that, or "
                "move the folder away to begin anew"
            )
        attempts = record["attempts"]
        if attempts and attempts[-1]["end"] is None:
            attempts[-1]["status"] = "stopped"
        self.attempt = len(attempts) + 1
        attempts.append(
            {"number": self.attempt, "start": _now(), "end": None, "status": "running"}
            | {"cpu_seconds": None, "gpu_seconds": None, "reason": None}
        )
        write_json(
            file,
            {"command": self.command, **provenance.collect()}
            | ({"data": data} if data else {})
            | {**_hours(attempts), "attempts": attempts},
        )
        (self.path / "failure.json").unlink(missing_ok=True)
        return self.attempt

    def end_attempt(
        self, status: str, cpu_seconds: float, gpu_seconds: float = 0.0, reason: str | None = None
    ) -> None:
        """Records how the attempt ended and what it used; call it before `seal`."""
        file = self.path / "provenance.json"
        record = read_json(file)
        record["attempts"][-1] |= {"end": _now(), "status": status, "reason": reason}
        record["attempts"][-1] |= {"cpu_seconds": cpu_seconds, "gpu_seconds": gpu_seconds}
        write_json(file, {**record, **_hours(record["attempts"])})

    @property
    def attempt_log_path(self) -> Path:
        """Log file of the attempt that `begin_attempt` started."""
        return self.path / f"attempt-{self.attempt}.log"

    def fail(self, reason: str) -> None:
        """Records that the run failed and why; tables print it until a new attempt begins."""
        write_json(self.path / "failure.json", {"reason": reason, "time": _now()})

    def _records(self, name: str) -> list[dict[str, Any]]:
        """Records of a table; RunError where a line has not the table's columns."""
        path = self.path / name
        records = read_records(path)
        for number, record in enumerate(records, start=1):
            if odd := sorted(record.keys() ^ TABLES[name].keys()):
                raise RunError(
                    f"{path}: line {number}: unknown or missing columns: {', '.join(odd)}; restore the file, "
                    f"or {self._archive_command()}"
                )
        return records

    def missing(self) -> list[str]:
        """What a complete run still lacks, in words; empty when it may be sealed."""
        lacks = [f"{name} ends in an incomplete line" for name in TABLES if ends_incomplete(self.path / name)]
        steps = [record["step"] for record in self._records("metrics.jsonl")]
        if steps != list(range(-self.config.critic_only_steps, self.config.training.updates)):
            lacks.append(f"metrics.jsonl holds {len(steps)} of {self.config.metrics_lines} lines")
        lines = Counter(record["step"] for record in self._records("evaluations.jsonl"))
        most = max(lines.values(), default=1)  # every evaluation samples the same problems
        if due := [step for step in self.config.evaluation.steps if lines[step] < most]:
            lacks.append(f"evaluations.jsonl lacks lines of steps {due}")
        return lacks

    def is_complete(self) -> bool:
        """Whether all lines are there, so that the run can be sealed without training."""
        return not self.missing()

    def seal(self) -> None:
        """Writes seal.json by rename, then removes the checkpoints; RunError where lines are missing."""
        if lacks := self.missing():
            raise RunError(
                f"{self.path}: cannot be sealed: {'; '.join(lacks)}; start the run again to complete it"
            )
        self._sync_tables()
        files = {
            name: _fingerprint(self.path / name)
            for name in ("spec.json", *TABLES)
            if (self.path / name).exists()
        }
        write_json(
            self.path / "seal.json", {"digest": self.config.digest(), "status": "finished", "files": files}
        )
        for _, folder in self.checkpoints():
            shutil.rmtree(folder, ignore_errors=True)

    def _sync_tables(self) -> None:
        for name in TABLES:
            if (self.path / name).exists():
                sync(self.path / name)

    def _archive_command(self) -> str:
        return f"run: python -m sao.runlog archive {self.config.row} --scale {self.config.scale}"


def _is_complete_checkpoint(folder: Path) -> bool:
    try:
        sizes = json.loads((folder / "complete.json").read_bytes())["bytes"]
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _fingerprint(path: Path) -> dict[str, Any]:
    """Lines and SHA-256 of a file as it lies on the disk."""
    lines = len(read_records(path, strict=True)) if path.name in TABLES else None
    return {"lines": lines, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def _hours(attempts: list[dict[str, Any]]) -> dict[str, float]:
    """Hours of processor and GPU that the ended attempts used."""
    return {
        f"{device}_hours": round(sum(attempt[f"{device}_seconds"] or 0 for attempt in attempts) / 3600, 6)
        for device in ("cpu", "gpu")
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    from sao.runlog_commands import main

    sys.exit(main())
