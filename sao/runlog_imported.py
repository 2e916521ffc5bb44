"""Run directories of runs trained elsewhere: what was logged and where it came from, nothing else."""

import hashlib
import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sao import provenance
from sao.config import digest_of
from sao.runlog_files import RunError, sync_tree, write_json
from sao.runlog_schema import ACCURACY_COLUMNS, METRIC_COLUMNS, Column, checked_record

WRITE_ERROR = "cannot be written: {}; mend that, or choose another folder with --results"


def write_imported_run(
    path: Path,
    row: str,
    scale: str,
    seed: int,
    imported: dict[str, Any],
    origin: dict[str, Any],
    metrics: list[dict[str, Any]],
    accuracies: list[dict[str, Any]],
) -> None:
    """Writes a sealed run directory with `imported` in its spec.json, which marks it for every reader.

    The only setting it states is the number of policy updates, as logged; `origin` and the code and time of
    the import make its provenance.json.  The folder gets its name once complete.  Raises RunError where it
    exists or cannot be written, ValueError for records that do not fit METRIC_COLUMNS or ACCURACY_COLUMNS.
    """
    path = Path(path)
    if path.exists():
        raise RunError(
            f"{path}: is there already, and is not overwritten; move it away, or choose another name or seed"
        )
    tables = {
        "metrics.jsonl": _lines(METRIC_COLUMNS, metrics),
        "accuracies.jsonl": _lines(ACCURACY_COLUMNS, accuracies),
    }
    config = {"training": {"updates": metrics[-1]["step"] + 1}, "imported": imported}
    spec = {"row": row, "scale": scale, "seed": seed, "digest": digest_of(config), "config": config}
    temporary = path.with_name(f".{path.name}.importing")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        write_json(temporary / "spec.json", spec)
        write_json(temporary / "provenance.json", {**origin, "importing": _importing()})
        for name, content in tables.items():
            (temporary / name).write_bytes(content)
        _seal(temporary, digest_of(config), ("spec.json", *tables))
        sync_tree(temporary)
        temporary.rename(path)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise RunError(f"{path}: {WRITE_ERROR.format(error.strerror or error)}") from error


def _importing() -> dict[str, Any]:
    """Code and time of the import; the run's own code and hardware are not known."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": provenance.git_state(provenance.ROOT),
        "packages": provenance.package_versions(),
    }


def _lines(columns: dict[str, Column], records: list[dict[str, Any]]) -> bytes:
    lines = [json.dumps(checked_record(columns, record), allow_nan=False) for record in records]
    return "".join(f"{line}\n" for line in lines).encode()


def _seal(folder: Path, digest: str, names: tuple[str, ...]) -> None:
    files = {}
    for name in names:
        content = (folder / name).read_bytes()
        lines = content.count(b"\n") if name.endswith(".jsonl") else None
        files[name] = {"lines": lines, "sha256": hashlib.sha256(content).hexdigest()}
    write_json(folder / "seal.json", {"digest": digest, "status": "finished", "files": files})
