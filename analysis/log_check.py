"""Whether a run lies where it belongs and its tables are whole: faults by file and line.

A seal's checksums find any change of a finished run. These checks say where in the file a fault is, and find
runs that were put into the wrong folder or sealed by other means than the suite's own.
"""

import hashlib
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.errors import AnalysisError
from sao.runlog import EVALUATION_COLUMNS, METRIC_COLUMNS, RunError, RunRecord, read_run, read_table
from sao.runlog_files import RepeatedKeyError, chunks, decoded, read_json, whole
from sao.runlog_schema import Column, checked_record

TABLES = {"metrics.jsonl": METRIC_COLUMNS, "evaluations.jsonl": EVALUATION_COLUMNS}
ROUNDING = 1e-6  # of the seven digits that logs keep
SAMPLE = ["step", "benchmark", "problem_id", "run_index"]


def read_checked(path: Path, against_grid: bool = True) -> RunRecord:
    """One run directory; `against_grid` refuses live ones whose settings are others now.

    Raises AnalysisError, naming the file and where it can the line, for a damaged, changed, misplaced or
    incomplete run.
    """
    with _faults_named(path):
        record = read_run(path, against_grid)
    if record.config and path.name.startswith("seed"):
        _check_place(record)
    if record.status == "finished" and record.imported is None:
        _check_whole(record)
    return record


def read_warm_start(folder: Path) -> pd.DataFrame:
    """The evaluations of a warm start, checked against its seal; empty where it was not evaluated.

    Raises AnalysisError, naming the file and where it can the line, where they were damaged or changed.
    """
    file = _file(folder, "evaluations.jsonl")
    if file is None:
        return pd.DataFrame()
    with _faults_named(folder):
        lines = read_table(folder / "evaluations.jsonl", EVALUATION_COLUMNS, strict=True)
        sealed = read_json(folder / "seal.json").get("files")
        content = b"".join(text for _, text in chunks(file)) if file.suffix == ".gz" else whole(file)
        checksum = sealed.get("evaluations.jsonl") if isinstance(sealed, dict) else None
        if hashlib.sha256(content).hexdigest() != checksum:
            raise RunError(f"{file}: is not what seal.json beside it names; restore the file")
    if said := _contradiction(lines):
        raise AnalysisError(f"{file}: {said}; restore the file")
    return lines


@contextmanager
def _faults_named(folder: Path) -> Iterator[None]:
    """Turn what a reader finds into an AnalysisError that names the first faulty line of the tables."""
    try:
        yield
    except (RunError, ValueError, TypeError, OverflowError) as error:
        fault = next(faulty_lines(folder), "")
        if not isinstance(error, RunError):
            raise AnalysisError(f"{fault or f'{folder}: {error}'}; restore the file") from error
        known = fault and fault not in str(error)
        raise AnalysisError(f"{error} (first fault: {fault})" if known else str(error)) from error


def check_copies(folder: Path) -> None:
    """Raise AnalysisError where two runs of a folder have the same metrics, which hold wall-clock times."""
    seen: dict[str, Path] = {}
    for seal in sorted(folder.glob("runs/*/seed*/seal.json")):
        try:
            checksum = json.loads(seal.read_bytes())["files"]["metrics.jsonl"]["sha256"]
        except (ValueError, LookupError, TypeError):
            continue  # whoever reads the run says what is wrong with its seal
        first = seen.setdefault(str(checksum), seal.parent)
        if first != seal.parent:
            file = _file(seal.parent, "metrics.jsonl")
            raise AnalysisError(f"{file}: is a copy of that of {first}; restore it, or train the run again")


def check_scales(records: list[RunRecord]) -> None:
    """Raise AnalysisError where runs of one folder are of several scales."""
    begun = [record for record in records if record.config]
    for record in begun[1:]:
        if record.scale != begun[0].scale:
            raise AnalysisError(
                f"{record.path / 'spec.json'}: is of scale {record.scale}, {begun[0].path} of scale "
                f"{begun[0].scale}; runs of one folder are of one scale: move it to where it belongs"
            )


def faulty_lines(path: Path) -> Iterator[str]:
    """Faults of a run directory's tables in words, each with its file and line, the first of a file first."""
    for name, columns in TABLES.items():
        file = _file(path, name)
        if file is not None:
            yield from _faults(file, columns)


def _faults(file: Path, columns: dict[str, Column]) -> Iterator[str]:
    lines, cut = _lines(file)
    seen: dict[Any, int] = {}
    previous: int | None = None
    lacking = {name: None for name, column in columns.items() if column.nullable}  # older logs have fewer
    for number, line in enumerate(lines, start=1):
        try:
            record = _record(line)
            checked_record(columns, lacking | record)
        except (ValueError, TypeError) as error:
            yield f"{file}: line {number}: {error}"
            continue
        key = tuple(record[name] for name in (SAMPLE if columns is EVALUATION_COLUMNS else ["step"]))
        if key in seen:
            yield f"{file}: line {number}: repeats line {seen[key]}"
        elif previous is not None and record["step"] < previous:
            yield f"{file}: line {number}: step {record['step']} comes after step {previous}"
        seen.setdefault(key, number)
        previous = record["step"]
    if cut:
        yield f"{file}: line {len(lines) + 1}: ends before the line does"


def _record(line: bytes) -> dict[str, Any]:
    """The record on a line; raises ValueError that says what it is instead."""
    try:
        record = decoded(line)
    except RepeatedKeyError:
        raise
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise ValueError("not valid JSON")
    return record


def _lines(file: Path) -> tuple[list[bytes], bool]:
    """Complete lines of a plain or compressed file, and whether it ends within one or is damaged there."""
    data, cut = file.read_bytes(), False
    if file.suffix == ".gz":
        data, cut = _decompressed(data)
    lines = data.split(b"\n")
    return lines[:-1], cut or bool(lines[-1])


def _decompressed(data: bytes) -> tuple[bytes, bool]:
    """What can be read of gzip members, and whether the last one is damaged or cut."""
    parts = []
    while data:
        member = zlib.decompressobj(wbits=31)
        try:
            parts.append(member.decompress(data))
        except zlib.error:
            return b"".join(parts), True
        if not member.eof:
            return b"".join(parts), True
        data = member.unused_data
    return b"".join(parts), False


def _file(path: Path, name: str) -> Path | None:
    return next((file for file in (path / name, path / f"{name}.gz") if file.is_file()), None)


def _check_place(record: RunRecord) -> None:
    """A run's folder must be named after its row and seed: that is where tables say that it lies."""
    row, seed = record.path.parent.name, record.path.name
    if (row, seed) != (record.row, f"seed{record.seed}"):
        raise AnalysisError(
            f"{record.path / 'spec.json'}: is of row {record.row}, seed {record.seed}, in folder "
            f"{row}/{seed}; move the folder to where it belongs"
        )


def _check_whole(record: RunRecord) -> None:
    """A finished run has every update, and every problem once at every evaluation."""
    seal = json.loads((record.path / "seal.json").read_bytes())
    if unsealed := sorted(set(TABLES) - set(seal.get("files") or {})):
        raise AnalysisError(
            f"{record.path / 'seal.json'}: names no checksum of {', '.join(unsealed)}; restore the file, or "
            "train the run again"
        )
    steps, updates = record.metrics["step"], int(record.config["training"]["updates"])
    expected = pd.Series(range(updates - len(steps), updates))
    if steps.empty or steps.iloc[0] > 0 or not steps.reset_index(drop=True).equals(expected):
        lacking = sorted(set(range(updates)) - set(steps))
        said = f"lacks step {lacking[0]}" if lacking else "does not hold all steps in their order"
        _raise(record, "metrics.jsonl", said)
    lines = record.evaluations
    counts = lines.groupby("step", sort=False)["problem_id"].nunique()
    if lines.duplicated(SAMPLE).any() or not lines["step"].is_monotonic_increasing or counts.nunique() > 1:
        totals = {int(step): int(count) for step, count in zip(counts.index, counts, strict=True)}
        few, many = min(totals, key=totals.__getitem__), max(totals, key=totals.__getitem__)
        said = f"has {totals[few]} problems at step {few} and {totals[many]} at step {many}"
        _raise(record, "evaluations.jsonl", said)
    if said := _contradiction(lines):
        _raise(record, "evaluations.jsonl", said)
    if said := _impossible(record.metrics):
        _raise(record, "metrics.jsonl", said)


def _contradiction(lines: pd.DataFrame) -> str:
    """The first line of evaluations that disagrees with itself or with other lines; empty for none."""
    firsts = lines.drop_duplicates("problem_id").set_index("problem_id")
    steps = lines.groupby("problem_id")["step"].transform("nunique")
    rules = {
        "correct disagrees with the reward": lines["correct"] != (lines["reward"] > 0),
        "benchmark is not that of line 1": lines["benchmark"] != lines["benchmark"].iloc[0],
        "label is not that of the problem's first line": lines["label"].fillna("")
        != lines["problem_id"].map(firsts["label"]).fillna(""),
        "problem_id is missing at other steps": (steps < lines["step"].nunique()) & (steps == steps.min()),
        "repeats an earlier line": lines.duplicated(SAMPLE),
    }
    return _first(rules)


def _impossible(metrics: pd.DataFrame) -> str:
    """The first line of metrics with a share outside 0 to 1; empty for none."""
    shares = [name for name, column in METRIC_COLUMNS.items() if column.unit.startswith("share")]
    beyond = (metrics[shares] < 0) | (metrics[shares] > 1 + ROUNDING)
    return _first({f"column {name} holds a share outside 0 to 1": beyond[name] for name in shares})


def _first(rules: dict[str, "pd.Series[bool]"]) -> str:
    """The first line that breaks a rule, and which; tables hold one line of their file in each of theirs."""
    broken = [(int(found.to_numpy().argmax()) + 1, rule) for rule, found in rules.items() if found.any()]
    return f"line {min(broken)[0]}: {min(broken)[1]}" if broken else ""


def _raise(record: RunRecord, name: str, said: str) -> None:
    file = _file(record.path, name) or record.path / name
    fault = next(_faults(file, TABLES[name]), "") if file.is_file() else ""
    raise AnalysisError(f"{fault or f'{file}: {said}'}; restore the file, or train the run again")
