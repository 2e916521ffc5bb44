"""The folder of one evaluation: every sample as it was made, then the scores and the seal.

results/<scale>/evaluations/<row>/seed<k>/step<n>/<benchmark>/
    spec.json          what is measured: policy, protocol, data; written first, with its digest
    samples.jsonl      one line a sample with its texts, appended and flushed
    errors.jsonl       failures of endpoint, tool or grader; they are no samples
    scores.jsonl       the samples without texts, in order; written once all are there
    provenance.json    command, code, packages, hardware and data of every attempt
    failure.json       why the last attempt failed; removed when a new one begins
    seal.json          digest, number of samples, checksums; written last, by rename
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sao import provenance
from sao.runlog_files import append_lines, lock, write_atomic, write_json, writing

SPECIFICATION, SAMPLES, ERRORS, SCORES = "spec.json", "samples.jsonl", "errors.jsonl", "scores.jsonl"
FAILURE = "failure.json"
TEXT_FIELDS = ("messages", "problem", "response_text")

Key = tuple[str, int]
"""Problem and run of a sample."""


class StoreError(Exception):
    """The folder cannot be used as it is; the message names the file and the mend."""


class SamplesMissing(StoreError):
    """An evaluation ended without all of its samples."""


@dataclass(frozen=True)
class Evaluation:
    """What a folder holds; `scores` are the samples without texts, by problem (as in the data) and run.

    `failure` says why the last attempt failed; empty where it did not, or is under way.
    """

    path: Path
    spec: dict[str, Any]
    scores: list[dict[str, Any]]
    sealed: bool
    failure: str = ""


def digest(spec: dict[str, Any]) -> str:
    """SHA-256 in hex of a spec as canonical JSON."""
    canonical = json.dumps(spec, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass
class SampleStore:
    """Writes one evaluation's folder; one process at a time holds it. Open with `with`.

    `spec["samples"]` lists the samples due as [problem, runs]. Raises StoreError where the folder holds an
    evaluation of something else.
    """

    path: Path
    spec: dict[str, Any]
    done: set[Key] = field(default_factory=set)
    _lock: int | None = None

    def __enter__(self) -> Self:
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self._lock = lock(self.path / ".lock")
        try:
            self._check_spec()
            _drop_incomplete_end(self.path / SAMPLES)
            self.done = self._keys()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def due(self) -> list[Key]:
        """All samples of the evaluation, all problems' first run before the second."""
        due = self.spec["samples"]
        return [(problem, run) for run in range(max(due.values())) for problem in due if run < due[problem]]

    @property
    def missing(self) -> list[Key]:
        """Samples that are not there yet."""
        return [key for key in self.due if key not in self.done]

    @property
    def sealed(self) -> bool:
        return (self.path / "seal.json").exists()

    def append(self, sample: dict[str, Any]) -> None:
        """Add a sample; ValueError for one that is there already or not due."""
        key = (sample["problem_id"], sample["run_index"])
        if key in self.done or not 0 <= key[1] < self.spec["samples"].get(key[0], 0):
            raise ValueError(f"sample {key} is there already or not due")
        append_lines(self.path / SAMPLES, [json.dumps(sample, allow_nan=False)])
        self.done.add(key)

    def append_error(self, key: Key, attempt: int, message: str) -> None:
        """Record a failure that is no answer of the model."""
        error = {"time": _now(), "problem_id": key[0], "run_index": key[1], "attempt": attempt}
        append_lines(self.path / ERRORS, [json.dumps(error | {"message": message})])

    @contextmanager
    def attempt(self, command: str) -> Iterator[None]:
        """Note command, code, packages, hardware and data, and why the attempt fails if it does.

        An interrupt is no failure.
        """
        file = self.path / "provenance.json"
        attempts = _read_object(file)["attempts"] if file.exists() else []
        data = self.spec.get("data")
        attempts.append({"start": _now(), "command": command, **provenance.collect(), "data": data})
        write_json(file, {"attempts": attempts})
        (self.path / FAILURE).unlink(missing_ok=True)
        try:
            yield
        except Exception as error:
            write_json(self.path / FAILURE, {"reason": str(error), "time": _now()})
            raise

    def seal(self, scores: Iterable[dict[str, Any]] | None = None) -> None:
        """Write the scores (those of the samples unless others are given) and the seal.

        Raises SamplesMissing unless all samples are there.
        """
        if self.missing:
            raise SamplesMissing(
                f"{self.path}: {len(self.missing)} of {len(self.due)} samples are missing, without which "
                f"there is no score; {ERRORS} says why; the same command tries them again"
            )
        self.done = self._keys()
        (self.path / "seal.json").unlink(missing_ok=True)  # new scores need a new one
        if scores is None:
            scores = map(without_texts, read_samples(self.path))
        write_scores(self.path, self.spec, scores)
        files = {name: _fingerprint(self.path / name) for name in (SPECIFICATION, SAMPLES, SCORES)}
        seal = {"status": "finished", "digest": digest(self.spec), "samples": len(self.done), "files": files}
        write_json(self.path / "seal.json", seal)

    def _check_spec(self) -> None:
        file = self.path / SPECIFICATION
        if not file.exists():
            write_json(file, {"digest": digest(self.spec), **self.spec})
            return
        found = _read_spec(file)
        if found == self.spec:
            return
        names = [name for name in self.spec.keys() | found.keys() if self.spec.get(name) != found.get(name)]
        shown = "; ".join(
            f"{name} {_brief(found.get(name))}, now {_brief(self.spec.get(name))}" for name in sorted(names)
        )
        raise StoreError(
            f"{self.path}: holds samples of another evaluation ({shown}); move it away to measure anew"
        )

    def _keys(self) -> set[Key]:
        keys = Counter((sample["problem_id"], sample["run_index"]) for sample in read_samples(self.path))
        for kind, found in (
            ("twice", [key for key, count in keys.items() if count > 1]),
            (f"which {SPECIFICATION} does not ask for", sorted(keys.keys() - set(self.due), key=str)),
        ):
            if found:
                problem, run = found[0]
                raise StoreError(
                    f"{self.path / SAMPLES}: holds run {run} of problem {problem} {kind}; restore the file"
                )
        return set(keys)


def read_samples(path: Path) -> Iterator[dict[str, Any]]:
    """All samples with their texts, in the order of writing; an incomplete last line is left out.

    Raises StoreError where a line is damaged.
    """
    file = path / SAMPLES
    if not file.exists():
        return
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                sample = json.loads(line)
            except ValueError:
                sample = None
            if not isinstance(sample, dict) or not sample.keys() >= {"problem_id", "run_index", "verdict"}:
                raise StoreError(
                    f"{file}: line {number} is damaged; restore the file, or move the folder away"
                )
            yield sample


def without_texts(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample without what was said."""
    return {name: value for name, value in sample.items() if name not in TEXT_FIELDS}


def write_scores(path: Path, spec: dict[str, Any], scores: Iterable[dict[str, Any]]) -> None:
    """Write scores.jsonl, by problem as in the data and by run."""
    place = {problem: number for number, problem in enumerate(spec["samples"])}
    ordered = sorted(scores, key=lambda score: (place[score["problem_id"]], score["run_index"]))
    lines = [json.dumps(score, allow_nan=False) + "\n" for score in ordered]
    write_atomic(path / SCORES, "".join(lines).encode())


def read_evaluation(path: Path) -> Evaluation:
    """The evaluation in a folder, finished or not; StoreError where a sealed file was changed."""
    spec = _read_spec(path / SPECIFICATION)
    seal = path / "seal.json"
    if not seal.exists():
        scores = list(map(without_texts, read_samples(path)))
        return Evaluation(path, spec, scores, sealed=False, failure=_read_failure(path / FAILURE))
    for name, expected in _read_object(seal)["files"].items():
        if _fingerprint(path / name) != expected:
            raise StoreError(
                f"{path / name}: was changed after it was sealed; restore it, or move the folder away"
            )
    lines = (path / SCORES).read_text().splitlines()
    return Evaluation(path, spec, [json.loads(line) for line in lines], sealed=True)


def _read_spec(file: Path) -> dict[str, Any]:
    spec = _read_object(file)
    if spec.pop("digest", None) != digest(spec):
        raise StoreError(f"{file}: was changed after it was written; restore it, or move the folder away")
    return spec


def _read_failure(file: Path) -> str:
    if not file.exists():
        return ""
    try:
        return str(json.loads(file.read_bytes())["reason"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{file}: cannot be read: {error}; remove it") from None


def _read_object(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise StoreError(f"{file}: cannot be read: {error}; restore it, or move the folder away") from None
    if not isinstance(content, dict):
        raise StoreError(f"{file}: holds no JSON object; restore it, or move the folder away")
    return content


def _drop_incomplete_end(file: Path) -> None:
    """Cut off what a killed writer left behind the last complete line."""
    if not file.exists():
        return
    with file.open("rb+") as lines:
        end = 0
        for line in lines:
            end += len(line) if line.endswith(b"\n") else 0
        lines.truncate(end)


def _fingerprint(file: Path) -> str | None:
    if not file.exists():
        return None
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
