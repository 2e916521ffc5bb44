"""Logged numbers of a run trained elsewhere, whatever wrote them: one line a metric and step."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from analysis.load import AnalysisError

Duplicates = Literal["refuse", "last"]


class Reading(NamedTuple):
    """A value that a logger wrote for `metric` at its step."""

    metric: str
    step: int
    value: float


@dataclass(frozen=True)
class Readings:
    """Readings in the order in which they were written, with the files they come from.

    `remarks` say in words what the reader could not use.
    """

    files: tuple[Path, ...]
    readings: Sequence[Reading]
    remarks: list[str] = field(default_factory=list)

    @property
    def metrics(self) -> list[str]:
        return sorted({reading.metric for reading in self.readings})

    def fingerprints(self) -> list[dict[str, Any]]:
        """Name, size in bytes and SHA-256 of each file, as it was read."""
        contents = [(path, path.read_bytes()) for path in self.files]
        return [
            {"file": str(path), "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for path, content in contents
        ]

    def values(self, metric: str, duplicates: Duplicates) -> tuple[pd.Series, int]:
        """A metric's values by step, ascending, and how many readings gave way to a later one.

        The same value twice counts once.  Raises AnalysisError where two readings of a step differ and
        `duplicates` is not "last".
        """
        found: dict[int, float] = {}
        replaced = 0
        for reading in self.readings:
            if reading.metric != metric:
                continue
            before = found.get(reading.step)
            if before is not None and not np.array_equal(before, reading.value, equal_nan=True):
                if duplicates == "refuse":
                    raise AnalysisError(
                        f"{self.files[0].parent}: {metric} was logged twice at step {reading.step}, as "
                        f"{before:g} and {reading.value:g}; with --duplicates last the one written later "
                        "counts, as after a restart from a checkpoint"
                    )
                replaced += 1
            found[reading.step] = reading.value
        series = pd.Series(found, dtype=np.float64).sort_index()
        series.index = series.index.astype("int64")
        return series, replaced


def whole_step(path: Path, metric: str, value: float) -> int:
    """A step as a whole number; AnalysisError where it is none."""
    if not np.isfinite(value) or value != int(value):
        raise AnalysisError(f"{path}: step metric {metric} holds {value:g}, which is no whole number")
    return int(value)


def shown(names: Iterable[str], most: int = 12) -> str:
    """Names in a message, at most `most` of them."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
