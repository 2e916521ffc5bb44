"""Reading run directories: status, tables as data frames, and what differs from the grid."""

import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sao.config import ConfigError, RunConfig, digest_of, resolve
from sao.runlog_files import RunError, archive_advice, chunks, is_locked, read_json, read_records, whole
from sao.runlog_schema import ACCURACY_COLUMNS, EVALUATION_COLUMNS, METRIC_COLUMNS, Column

if TYPE_CHECKING:
    import pandas as pd

Status = Literal["finished", "running", "failed", "planned", "refused"]


@dataclass(frozen=True)
class RunRecord:
    """What one run directory holds.

    `status_detail` says more in words ("step 40 of 100", the reason of a failure).  The frames `metrics` and
    `evaluations` have the columns of METRIC_COLUMNS and EVALUATION_COLUMNS, and no lines if none was logged.
    `imported` tells a run that was trained elsewhere, whose `accuracies` (ACCURACY_COLUMNS) are means.
    """

    path: Path
    row: str
    scale: str
    seed: int
    config: dict[str, Any]
    status: Status
    status_detail: str
    metrics: "pd.DataFrame"
    evaluations: "pd.DataFrame"
    provenance: dict[str, Any] = field(default_factory=dict)
    imported: dict[str, Any] | None = None
    accuracies: "pd.DataFrame | None" = None


def read_runs(folder: Path, against_grid: bool = False) -> list[RunRecord]:
    """All runs below `folder`/runs, by row and seed; see `read_run`."""
    return [read_run(path, against_grid) for path in run_paths(Path(folder))]


def run_paths(folder: Path, row: str = "*") -> list[Path]:
    """Run directories `folder`/runs/<row>/seed<k> in the order of row and seed."""
    found = [path for path in folder.glob(f"runs/{row}/seed*") if re.fullmatch(r"seed\d+", path.name)]
    return sorted(found, key=lambda path: (path.parent.name, int(path.name.removeprefix("seed"))))


def read_run(path: Path, against_grid: bool = False) -> RunRecord:
    """One run directory, whether it is finished, under way or not begun, live or published.

    With `against_grid` a live run is "refused" where its row, scale and seed have other settings now.  Raises
    RunError, naming the file, where a file is damaged or a sealed one was changed.
    """
    path = Path(path)
    if not (path / "spec.json").exists():
        return _planned(path)
    spec = read_spec(path)
    sealed = (path / "seal.json").exists()
    if sealed:
        _verify_seal(path, spec)
    metrics = read_table(path / "metrics.jsonl", METRIC_COLUMNS, strict=sealed)
    evaluations = read_table(path / "evaluations.jsonl", EVALUATION_COLUMNS, strict=sealed)
    status, detail = _status(path, spec, metrics)
    imported = spec["config"].get("imported")
    published = (path / "metrics.jsonl.gz").exists()
    if against_grid and not published and imported is None and (reason := grid_refusal(path, spec)):
        status, detail = "refused", reason
    file = path / "provenance.json"
    return RunRecord(
        path,
        spec["row"],
        spec["scale"],
        spec["seed"],
        spec["config"],
        status,
        detail,
        metrics,
        evaluations,
        read_json(file) if file.exists() else {},
        imported,
        None if imported is None else read_table(path / "accuracies.jsonl", ACCURACY_COLUMNS, strict=sealed),
    )


def read_spec(path: Path) -> dict[str, Any]:
    """The run's spec.json; RunError where it is damaged or its settings do not have the digest it states."""
    spec = read_json(path / "spec.json")
    if missing := [name for name in ("row", "scale", "seed", "digest", "config") if name not in spec]:
        raise RunError(f"{path / 'spec.json'}: lacks {', '.join(missing)}; {archive_advice(path)}")
    if digest_of(spec["config"]) != spec["digest"]:
        raise RunError(f"{path / 'spec.json'}: was changed by hand; restore it, or {archive_advice(path)}")
    return spec


def refusal(path: Path, config: RunConfig) -> str | None:
    """Why a run of `config` may not use this directory: the difference, and the archive command.

    None where the directory is free or holds a run of the same settings (titles aside).  Raises RunError
    where a sealed run was changed.
    """
    command = f"to train the row anew run: python -m sao.runlog archive {config.row} --scale {config.scale}"
    path = Path(path)
    root = path.resolve().parents[3] if len(path.resolve().parents) > 3 else path
    if root != Path("results").resolve():
        command += f" --results {root}"
    if not (path / "spec.json").exists():
        if any(path.glob("metrics.jsonl*")):
            return f"{path}: holds metrics without a spec.json that says of which settings; {command}"
        return None
    spec = read_spec(path)
    if spec["digest"] == config.digest():
        if (path / "seal.json").exists():
            _verify_seal(path, spec)
        return None
    difference = differences(spec["config"], config)
    return f"{path / 'spec.json'}: holds a run of other settings: {difference}; {command}"


def grid_refusal(path: Path, spec: dict[str, Any]) -> str | None:
    """`refusal` against the settings that the run's row, scale and seed have now."""
    try:
        return refusal(path, resolve(spec["row"], spec["scale"], spec["seed"]))
    except ConfigError as error:
        return f"{path / 'spec.json'}: is no run of the present grid: {error}"


def differences(there: dict[str, Any], config: RunConfig, most: int = 4) -> str:
    """The settings that differ ("objective.clip_high is 0.3 there and 0.28 here"), at most `most` of them."""
    old, new = dict(_flat(there)), dict(_flat(json.loads(json.dumps(config.settings()))))
    found = [
        f"{name} is {_shown(old, name)} there and {_shown(new, name)} here"
        for name in dict.fromkeys((*new, *old))
        if name != "title" and _shown(old, name) != _shown(new, name)
    ]
    more = f", and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


def _flat(block: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in block.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _shown(settings: dict[str, Any], name: str) -> str:
    return json.dumps(settings[name]) if name in settings else "absent"


def read_table(path: Path, columns: dict[str, Column], strict: bool = False) -> "pd.DataFrame":
    """A .jsonl table, or its .jsonl.gz copy where that lies instead, as a frame with the schema's columns.

    Columns of whole numbers hold floats where a null occurs.  `strict` refuses an incomplete last line.
    """
    import pandas as pd

    compressed = path.with_name(f"{path.name}.gz")
    file = compressed if not path.exists() and compressed.exists() else path
    records = read_records(file, strict)
    return pd.DataFrame({name: _values(file, name, column, records) for name, column in columns.items()})


def _values(path: Path, name: str, column: Column, records: list[dict[str, Any]]) -> "pd.Series[Any]":
    """One column; RunError with the line's number where a value is of another type than the schema's."""
    import pandas as pd

    values = [record.get(name) for record in records]
    if strange := set(map(type, values)) - column.value_types:
        number, value = next((line, value) for line, value in enumerate(values, 1) if type(value) in strange)
        raise RunError(
            f"{path}: line {number}: column {name} holds {value!r}, and must be {column.type}; "
            f"restore the file, or {archive_advice(path)}"
        )
    if column.type == "bool":
        return pd.Series(values, dtype="bool")
    if column.type == "int" and None not in values:
        return pd.Series(values, dtype="int64")
    if column.type not in ("int", "float"):
        return pd.Series(values, dtype="object")
    numbers = pd.Series(values, dtype="float64")
    if (endless := (numbers.abs() == math.inf).to_numpy()).any():
        raise RunError(
            f"{path}: line {endless.argmax() + 1}: column {name} holds a number too large to be one; "
            f"restore the file, or {archive_advice(path)}"
        )
    return numbers


def _planned(path: Path) -> RunRecord:
    seed = path.name.removeprefix("seed")
    if any(path.glob("metrics.jsonl*")):
        raise RunError(f"{path}: holds metrics without spec.json; restore it, or move the folder away")
    return RunRecord(
        path,
        path.parent.name,
        path.parents[2].name if len(path.parents) > 2 else "",
        int(seed) if seed.isdigit() else -1,
        {},
        "planned",
        "not begun",
        read_table(path / "metrics.jsonl", METRIC_COLUMNS),
        read_table(path / "evaluations.jsonl", EVALUATION_COLUMNS),
    )


def _status(path: Path, spec: dict[str, Any], metrics: "pd.DataFrame") -> tuple[Status, str]:
    done = int(metrics["step"].iloc[-1]) + 1 if len(metrics) else 0
    progress = f"step {max(done, 0)} of {spec['config']['training']['updates']}"
    if (path / "seal.json").exists():
        return "finished", progress
    if is_locked(path / ".lock"):
        return "running", progress
    if (path / "failure.json").exists():
        return "failed", f"{read_json(path / 'failure.json').get('reason')} ({progress})"
    if len(metrics):
        return "running", f"stopped at {progress}"
    return "planned", "not begun"


def _verify_seal(path: Path, spec: dict[str, Any]) -> None:
    seal = read_json(path / "seal.json")
    if seal.get("digest") != spec["digest"]:
        raise RunError(f"{path / 'seal.json'}: seals other settings than spec.json; {archive_advice(path)}")
    files = seal.get("files", {})
    if not (isinstance(files, dict) and all(isinstance(one, dict) for one in files.values())):
        raise RunError(f"{path / 'seal.json'}: names no checksums of files; {archive_advice(path)}")
    for name, fingerprint in files.items():
        file, compressed = path / name, path / f"{name}.gz"
        if not file.exists() and compressed.exists():
            content = _decompressed(compressed)
            file = compressed
        elif file.exists():
            content = whole(file)
        elif name.endswith(".gz"):
            continue  # schedules and trajectories are not published
        else:
            raise RunError(
                f"{file}: is missing, and the seal names it; restore the file, or {archive_advice(path)}"
            )
        if hashlib.sha256(content).hexdigest() != fingerprint.get("sha256"):
            raise RunError(
                f"{file}: was changed after the run was sealed; restore the file, or {archive_advice(path)}"
            )


def _decompressed(path: Path) -> bytes:
    return b"".join(text for _, text in chunks(path))
