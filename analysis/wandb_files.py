"""Offline runs of Weights & Biases (`run-*.wandb`) as readings; needs the extra `importers`."""

import json
import struct
import zlib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from analysis.load import AnalysisError
from analysis.mapping import Mapping
from analysis.readings import Reading, Readings, whole_step

# The file is a LevelDB log of protobuf records; `wandb` ships the records' types and, since 0.31, no reader.
BLOCK = 32768
FILE_HEADER = struct.Struct("<4sHB")
RECORD_HEADER = struct.Struct("<IHB")
IDENTIFIER, MAGIC = b":W&B", 0xBEE1
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
INTERNAL = "_"


def read_wandb_run(source: Path, mapping: Mapping, incomplete_end: bool) -> Readings:
    """Numbers of an offline run's history; `source` is the run's folder or its `.wandb` file.

    A metric's step is that of `mapping.step_metric`, or W&B's own.  Raises AnalysisError where the file is no
    run or is damaged; one that a killed run left incomplete is read up to there with `incomplete_end`.
    """
    Record = import_module("wandb.proto.wandb_internal_pb2").Record
    file = _file(source)
    readings: list[Reading] = []
    remarks: list[str] = []
    others: set[str] = set()
    ended = False
    for content in _records(file, incomplete_end, remarks):
        record = Record.FromString(content)
        ended |= record.WhichOneof("record_type") == "exit"
        if record.WhichOneof("record_type") == "history":
            readings += _row(file, _items(record.history), record.history.step.num, mapping, others)
    if not ended and not remarks:
        remarks.append(f"{file.name} does not say that the run ended: it was killed or is under way")
    if others:
        remarks.append(f"no numbers, or without their step, left out: {', '.join(sorted(others))}")
    if not readings:
        raise AnalysisError(f"{file}: the run logged no numbers")
    return Readings((file,), readings, remarks)


def _file(source: Path) -> Path:
    if source.is_file():
        return source
    if not source.is_dir():
        raise AnalysisError(f"{source}: there is no such file or folder")
    files = sorted(source.glob("run-*.wandb"))
    if not files:
        raise AnalysisError(
            f"{source}: holds no offline run (run-....wandb); name the folder offline-run-..."
        )
    if len(files) > 1:
        raise AnalysisError(
            f"{source}: holds several runs ({', '.join(file.name for file in files)}); name one"
        )
    return files[0]


def _items(history: Any) -> dict[str, Any]:
    """Values of one history line by name; parts of a nested name are joined by dots, as W&B shows them."""
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in history.item}


def _row(
    file: Path, items: dict[str, Any], own_step: int, mapping: Mapping, others: set[str]
) -> list[Reading]:
    readings = []
    counters = set(mapping.step_metrics.values())
    for metric, value in items.items():
        if metric.startswith(INTERNAL) or metric in counters:
            continue
        counter = mapping.step_metric(metric)
        step = own_step if counter is None else items.get(counter)
        if isinstance(value, bool) or not isinstance(value, int | float) or step is None:
            others.add(metric)
        else:
            readings.append(Reading(metric, whole_step(file, counter or "_step", step), float(value)))
    return readings


def _records(file: Path, incomplete_end: bool, remarks: list[str]) -> Iterator[bytes]:
    """Contents of the file's records; a damaged one is an error, an incomplete last one unless allowed."""
    data = file.read_bytes()
    if data[:4] != IDENTIFIER or len(data) < FILE_HEADER.size or FILE_HEADER.unpack_from(data)[1] != MAGIC:
        raise AnalysisError(f"{file}: is no W&B run file (run-....wandb)")
    content, expected = b"", (FULL, FIRST)
    for offset, kind, part in _fragments(file, data):
        if part is None:
            break
        if kind not in expected:
            raise AnalysisError(f"{file}: is damaged at byte {offset}: a record's parts are out of order")
        content = part if kind in (FULL, FIRST) else content + part
        expected = (FULL, FIRST) if kind in (FULL, LAST) else (MIDDLE, LAST)
        if kind in (FULL, LAST):
            yield content
    else:
        if expected == (FULL, FIRST):
            return
    if not incomplete_end:
        raise AnalysisError(
            f"{file}: ends in an incomplete record; copy the whole file, or import what comes before with "
            "--incomplete-end"
        )
    remarks.append(f"{file.name} ends in an incomplete record, which was left out")


def _fragments(file: Path, data: bytes) -> Iterator[tuple[int, int, bytes | None]]:
    """(offset, kind, content) of each fragment; None as content where the file ends within it."""
    offset = FILE_HEADER.size
    while offset < len(data):
        left = BLOCK - offset % BLOCK
        if left < RECORD_HEADER.size:  # the rest of a block that is too short for a header is padding
            offset += left
            continue
        start, end = offset + RECORD_HEADER.size, offset + RECORD_HEADER.size
        if start <= len(data):
            checksum, length, kind = RECORD_HEADER.unpack_from(data, offset)
            end = start + length
        if start > len(data) or end > len(data):
            yield offset, FULL, None
            return
        part = data[start:end]
        if kind not in (FULL, FIRST, MIDDLE, LAST) or zlib.crc32(part, zlib.crc32(bytes([kind]))) != checksum:
            raise AnalysisError(
                f"{file}: is damaged at byte {offset}: a checksum does not fit; restore the file"
            )
        yield offset, kind, part
        offset = end
