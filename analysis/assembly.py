"""Readings of a run trained elsewhere as the tables of a run directory, with an account of each metric."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from analysis.load import AnalysisError
from analysis.mapping import Mapping, Source
from analysis.readings import Duplicates, Readings, shown
from sao.runlog import METRIC_COLUMNS


@dataclass
class Account:
    """What an import did: `filled` columns with their metric, columns whose metric was `absent`, metrics that
    were `unmapped`, and per metric the counts of values `not_finite` (null in the table) and `replaced`.
    """

    filled: dict[str, dict[str, Any]] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    benchmarks: dict[str, str] = field(default_factory=dict)
    unmapped: list[str] = field(default_factory=list)
    not_finite: Counter[str] = field(default_factory=Counter)
    replaced: Counter[str] = field(default_factory=Counter)
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Assembled:
    """Records of `metrics.jsonl` and `accuracies.jsonl`."""

    metrics: list[dict[str, Any]]
    accuracies: list[dict[str, Any]]
    account: Account


def assemble(
    readings: Readings, mapping: Mapping, first_update: int | None, duplicates: Duplicates
) -> Assembled:
    """Tables of the run; update `first_update` of its logger (the mapping's without one) becomes step 0.

    Raises AnalysisError where a required column is missing, altogether or at a step that others have, and for
    values that their column cannot hold.
    """
    shift = mapping.first_update if first_update is None else first_update
    account = Account(remarks=list(readings.remarks))
    columns: dict[str, pd.Series] = {}
    for name, source in mapping.sources().items():
        metric = next((metric for metric in source.metrics if metric in readings.metrics), None)
        if metric is None:
            account.absent.append(name)
            continue
        values = _values(readings, metric, duplicates, account)
        values.index = values.index - shift
        columns[name] = _fitting(name, metric, values * source.factor)
        account.filled[name] = _origin(source, metric, values)
    _require(readings, mapping, account, columns)
    accuracies = _accuracies(readings, mapping, shift - mapping.first_update, duplicates, account)
    used = {origin["metric"] for origin in account.filled.values()} | set(account.benchmarks.values())
    account.unmapped = [metric for metric in readings.metrics if metric not in used]
    return Assembled(_records(columns), accuracies, account)


def _origin(source: Source, metric: str, values: pd.Series) -> dict[str, Any]:
    origin = {"metric": metric, "factor": source.factor, "values": int(values.notna().sum())}
    return origin | ({"note": source.note} if source.note else {})


def _values(readings: Readings, metric: str, duplicates: Duplicates, account: Account) -> pd.Series:
    values, replaced = readings.values(metric, duplicates)
    finite = np.isfinite(values)
    if replaced:
        account.replaced[metric] = replaced
    if not finite.all():
        account.not_finite[metric] = int((~finite).sum())
    return values.where(finite)


def _fitting(name: str, metric: str, values: pd.Series) -> pd.Series:
    """The values, where the column can hold them: whole numbers, shares between 0 and 1."""
    column = METRIC_COLUMNS[name]
    known = values.dropna()
    if column.type == "int" and (odd := known[known != known.round()]).size:
        raise AnalysisError(
            f"{metric} holds {odd.iloc[0]:g} at step {odd.index[0]}, and column {name} takes whole numbers"
        )
    if column.unit.startswith("share") and (odd := known[(known < 0) | (known > 1)]).size:
        raise AnalysisError(
            f"{metric} holds {odd.iloc[0]:g} at step {odd.index[0]}, and column {name} is a {column.unit} "
            "from 0 to 1; give it a factor in your mapping (0.01 for percent)"
        )
    return values


def _require(readings: Readings, mapping: Mapping, account: Account, columns: dict[str, pd.Series]) -> None:
    """Raises AnalysisError where a required column has no metric, or lacks steps that other columns have."""
    for name in mapping.required:
        metrics = mapping.sources()[name].metrics
        if name in account.absent:
            raise AnalysisError(
                f"{readings.files[0]}: has no metric {' or '.join(metrics)} for the required column {name} "
                f"(mapping of {mapping.title}); name another under columns in your own mapping; logged were: "
                f"{shown(readings.metrics)}"
            )
        for other, values in columns.items():
            if (missing := values.index.difference(columns[name].index)).size:
                raise AnalysisError(
                    f"{readings.files[0]}: the required column {name} ({account.filled[name]['metric']}) has "
                    f"no value at step {missing[0]}, where {other} ({account.filled[other]['metric']}) has "
                    "one; do the two count different steps?"
                )


def _accuracies(
    readings: Readings, mapping: Mapping, shift: int, duplicates: Duplicates, account: Account
) -> list[dict[str, Any]]:
    """Records by benchmark and step; an evaluation right after the first update is at step 1."""
    records = []
    for metric in readings.metrics:
        benchmark = mapping.benchmark(metric)
        if benchmark is None:
            continue
        if benchmark in account.benchmarks:
            raise AnalysisError(
                f"{metric} and {account.benchmarks[benchmark]} both give the accuracy of {benchmark}; narrow "
                "accuracies in your mapping"
            )
        account.benchmarks[benchmark] = metric
        values = _values(readings, metric, duplicates, account).dropna()
        for number, value in zip(values.index.astype(int), values, strict=True):
            if number in mapping.ambiguous_evaluations:
                account.remarks.append(
                    f"{metric} at {number} left out: it may be before training or after the first update"
                )
                continue
            if not 0 <= value <= 1:
                raise AnalysisError(
                    f"{metric} holds {value:g}, and an accuracy lies between 0 and 1; take it out of "
                    "accuracies in your mapping"
                )
            step = int(number) - mapping.first_evaluation - shift + 1
            records.append({"step": step, "benchmark": benchmark, "accuracy": float(value)})
    return sorted(records, key=lambda record: (record["benchmark"], record["step"]))


def _records(columns: dict[str, pd.Series]) -> list[dict[str, Any]]:
    table = pd.DataFrame(columns).sort_index()
    records = []
    for step, row in table.iterrows():
        record: dict[str, Any] = dict.fromkeys(METRIC_COLUMNS)
        record |= {"step": int(step), "version": max(int(step), 0)}  # type: ignore[call-overload]
        for name, value in row.dropna().items():
            record[str(name)] = int(value) if METRIC_COLUMNS[str(name)].type == "int" else float(value)
        records.append(record)
    return records
