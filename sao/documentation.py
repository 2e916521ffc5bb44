"""Tables of docs/configuration.md and docs/run_directory.md, generated from the schemas.

    python -m sao.documentation           writes the tables into the documents
    python -m sao.documentation --check   exits 1 where a document is out of date

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; everything else is written by hand.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sao.config_files import ROOT, models_in
from sao.config_rows import RowConfig
from sao.config_scales import ArithmeticTask, GeneratedWritingTask, LocksTask, ScaleConfig, StyleTask
from sao.config_tasks import MathTask, SWETask, TinySWETask, WritingTask
from sao.runlog_schema import ACCURACY_COLUMNS, TABLES, Column

DOCUMENTS = (ROOT / "docs" / "configuration.md", ROOT / "docs" / "run_directory.md")
_MARKED = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def tables() -> dict[str, str]:
    """Markdown by name of the table."""
    found = {name: _columns(columns) for name, columns in TABLES.items()}
    found["accuracies.jsonl"] = _columns(ACCURACY_COLUMNS)
    found["row"] = _keys(RowConfig)
    found["scale"] = _keys(ScaleConfig)
    found["locks"], found["style"] = _keys(LocksTask), _keys(StyleTask)
    found["arithmetic"] = _keys(ArithmeticTask)
    found["generated_writing"] = _keys(GeneratedWritingTask)
    found["math"], found["swe"], found["writing"] = _keys(MathTask), _keys(SWETask), _keys(WritingTask)
    found["swe_tiny"] = _keys(TinySWETask)
    return found


def filled(document: str) -> str:
    """The document with every marked table as the schema has it now; KeyError for an unknown name."""
    known = tables()
    return _MARKED.sub(lambda match: match.group(1) + known[match.group(2)] + match.group(3), document)


def row_keys() -> list[tuple[str, str, str, str]]:
    """(dotted key, values, meaning, source) of every setting of a row; a `kind` has a line for each value."""
    return [
        (key.strip("`"), values, meaning, source)
        for key, values, meaning, source in _key_lines(RowConfig, "")
    ]


def _columns(columns: dict[str, Column]) -> str:
    lines = [
        [f"`{name}`", column.type + ("" if column.nullable else ", never null"), column.unit, column.meaning]
        for name, column in columns.items()
    ]
    return _markdown(["column", "type", "unit", "meaning"], lines)


def _keys(model: type[BaseModel]) -> str:
    lines = list(_key_lines(model, ""))
    headers = ["key", "values", "meaning", "source"]
    if not any(line[3] for line in lines):
        headers, lines = headers[:3], [line[:3] for line in lines]
    return _markdown(headers, lines)


def _key_lines(model: type[BaseModel], prefix: str) -> list[list[str]]:
    lines: list[list[str]] = []
    for name, field in model.model_fields.items():
        if model in (RowConfig, ScaleConfig) and name in ("name", "tasks"):
            continue  # a file's name is no key, and tasks have tables of their own
        variants = models_in(field.annotation)
        if not variants:
            lines.append([f"`{prefix}{name}`", _values(field), field.description or "", _source(field)])
        elif len(variants) == 1:
            lines += _key_lines(variants[0], f"{prefix}{name}.")
        else:
            lines += _variant_lines(variants, f"{prefix}{name}.")
    return lines


def _variant_lines(variants: list[type[BaseModel]], prefix: str) -> list[list[str]]:
    """One line for each kind, then one for each key with the kinds that have it where not all do."""
    kinds: list[list[str]] = []
    keys: dict[str, list[str]] = {}
    owners: dict[str, list[str]] = {}
    for variant in variants:
        kind = get_args(variant.model_fields["kind"].annotation)[0]
        for line in _key_lines(variant, prefix):
            if line[0] == f"`{prefix}kind`":
                kinds.append(line)
            else:
                keys.setdefault(line[0], line)
                owners.setdefault(line[0], []).append(kind)
    for key, line in keys.items():
        if len(owners[key]) < len(variants):
            line[2] += f" ({', '.join(owners[key])})"
    return kinds + list(keys.values())


def _values(field: FieldInfo) -> str:
    text = _type_name(field.annotation)
    for attribute, sign in (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below")):
        limits = [getattr(limit, attribute) for limit in field.metadata if hasattr(limit, attribute)]
        text += "".join(f", {sign} {limit}" for limit in limits)
    if not field.is_required():
        default = field.get_default()
        text += ", may be left out" if default is None else f", default {_yaml(default)}"
    return text


def _type_name(annotation: Any) -> str:
    if annotation is type(None):
        return "null"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin is tuple:
        return f"list of {_type_name(arguments[0])}s"
    if origin is dict:
        return f"mapping of {_type_name(arguments[0])}s to {_type_name(arguments[1])}s"
    if arguments:
        return " or ".join(_type_name(argument) for argument in arguments)
    return {int: "whole number", float: "number", bool: "true or false", str: "text"}[annotation]


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _source(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    return str(extra.get("source", "")) if isinstance(extra, dict) else ""


def _markdown(headers: list[str], lines: list[list[str]]) -> str:
    cells = [
        headers,
        ["---"] * len(headers),
        *([text.replace("|", "\\|") for text in line] for line in lines),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns 0, or 1 where `--check` finds a document out of date."""
    parser = argparse.ArgumentParser(
        prog="python -m sao.documentation", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 where a document is out of date"
    )
    options = parser.parse_args(arguments)
    outdated = [
        path
        for path in DOCUMENTS
        if filled(path.read_text(encoding="utf-8")) != path.read_text(encoding="utf-8")
    ]
    for path in outdated:
        _report(path, options.check)
    return 1 if outdated and options.check else 0


def _report(path: Path, check: bool) -> None:
    if check:
        print(f"{path.relative_to(ROOT)}: is out of date; run python -m sao.documentation", file=sys.stderr)
        return
    path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote the tables of {path.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main())
