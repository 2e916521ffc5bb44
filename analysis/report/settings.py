"""What a row's settings differ in from SAO's, and the decisions where the paper is silent."""

import json
from collections.abc import Iterator
from typing import Any

from analysis.load import Logs
from analysis.render import EMPTY
from analysis.report.markup import Cell, Linker, TableView
from analysis.table_data import REFERENCE_ROW
from sao.config import ConfigError, load_row
from sao.config_rows import DECISION, RowSettings
from sao.documentation import row_keys

NO_SETTINGS = ("title", "name", "group")


def recorded(logs: Logs, row: str) -> dict[str, Any]:
    """A row's settings by dotted key, as its first run recorded them; from its file where no run has any."""
    for _, run in sorted(logs.runs.get(row, {}).items()):
        if run.record.config:
            kept = {
                name: value for name, value in run.record.config.items() if name in RowSettings.model_fields
            }
            return dict(_flat(kept))
    try:
        return dict(_flat(load_row(row).model_dump(mode="json")))
    except ConfigError:
        return {}


def differences(logs: Logs, row: str, linker: Linker) -> TableView | None:
    """Settings of the row that differ from SAO's; None for SAO itself."""
    if row == REFERENCE_ROW:
        return None
    ours, theirs = recorded(logs, row), recorded(logs, REFERENCE_ROW)
    meanings = _meanings()
    rows = [
        [
            linker.cell(f"`{key}`"),
            linker.cell(shown(theirs, key)),
            linker.cell(shown(ours, key)),
            linker.cell(_meaning(meanings, key, ours)),
        ]
        for key in dict.fromkeys((*theirs, *ours))
        if key not in NO_SETTINGS and shown(theirs, key) != shown(ours, key)
    ]
    return TableView(f"Settings of {row} that differ from sao.yaml", ["key", "SAO", row, "meaning"], rows)


def decisions(logs: Logs, linker: Linker) -> TableView:
    """Every key whose source in the schema is a decision: its value for SAO, and rows with another one."""
    settings = {row: recorded(logs, row) for row in dict.fromkeys((REFERENCE_ROW, *logs.runs))}
    rows = []
    for key, values, meaning, source in row_keys():
        if source != DECISION or key in NO_SETTINGS:
            continue
        is_kind = key.endswith(".kind")
        name = f"{key}: {values.strip('`')}" if is_kind else key
        rows.append(
            [
                linker.cell(f"`{name}`"),
                linker.cell(meaning),
                linker.cell(EMPTY if is_kind else shown(settings[REFERENCE_ROW], key)),
                Cell(linker.text(_others(settings, key, values.strip("`") if is_kind else None)), "long"),
            ]
        )
    return TableView(
        "Decisions where the paper is silent",
        ["key", "meaning", "value of SAO", "rows with another value"],
        rows,
    )


def shown(settings: dict[str, Any], key: str) -> str:
    """A value as JSON, a dash where the row has no such key."""
    return json.dumps(settings[key]) if key in settings else EMPTY


def _others(settings: dict[str, dict[str, Any]], key: str, kind: str | None) -> str:
    """Rows that have the kind, or a value other than SAO's."""
    if kind is not None:
        found = [f"`{row}`" for row, values in settings.items() if values.get(key) == kind]
        return ", ".join(found) or EMPTY
    ours = shown(settings[REFERENCE_ROW], key)
    found = [
        f"`{row}`: {shown(values, key)}"
        for row, values in settings.items()
        if key in values and shown(values, key) != ours
    ]
    return ", ".join(found) or EMPTY


def _meanings() -> dict[tuple[str, str], str]:
    """Meanings by key, and by key and value for kinds."""
    return {
        (key, values.strip("`") if key.endswith(".kind") else ""): said for key, values, said, _ in row_keys()
    }


def _meaning(meanings: dict[tuple[str, str], str], key: str, settings: dict[str, Any]) -> str:
    value = str(settings.get(key)) if key.endswith(".kind") else ""
    return meanings.get((key, value), EMPTY)


def _flat(block: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in block.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
