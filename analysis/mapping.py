"""Which logged metric fills which column of a run directory: one YAML file a framework, and a user's own."""

import difflib
import hashlib
import re
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from analysis.load import AnalysisError
from sao.runlog import METRIC_COLUMNS

FOLDER = Path(__file__).parent / "mappings"
REQUIRED = ("reward_mean",)
NOT_MAPPED = ("step", "version")  # these follow from the step's number


class Source(BaseModel):
    """Where a column comes from: the first of the metrics `from` that was logged, times `factor`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    metrics: list[str] = Field(alias="from", min_length=1)
    factor: float = 1.0
    note: str = ""

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, block: Any) -> Any:
        """A name alone, or one name in place of a list."""
        if isinstance(block, str):
            block = {"from": block}
        if isinstance(block, dict) and isinstance(block.get("from"), str):
            block = block | {"from": [block["from"]]}
        return block


class Mapping(BaseModel):
    """A framework's names.

    `first_update` is its number of the first policy update, `first_evaluation` that of an evaluation right
    after it; `step_metrics` name the W&B metric that counts steps, by the prefix it counts for;
    `ambiguous_evaluations` are numbers that may mean two evaluations and are left out.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    title: str
    first_update: int
    first_evaluation: int
    ambiguous_evaluations: list[int] = []
    step_metrics: dict[str, str] = {}
    same_names: str | None = None
    columns: dict[str, Source]
    accuracies: list[str] = []
    required: list[str] = list(REQUIRED)

    @field_validator("columns", mode="before")
    @classmethod
    def _known_columns(cls, columns: Any) -> Any:
        for name in columns if isinstance(columns, dict) else ():
            _check_column(str(name))
        return columns

    @field_validator("accuracies")
    @classmethod
    def _name_a_benchmark(cls, patterns: list[str]) -> list[str]:
        for pattern in patterns:
            try:
                groups = re.compile(pattern).groupindex
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
            if "benchmark" not in groups:
                raise ValueError(f"{pattern!r} names no benchmark; write (?P<benchmark>...)")
        return patterns

    @model_validator(mode="after")
    def _required_are_mapped(self) -> Self:
        for name in self.required:
            _check_column(name)
            if name not in self.sources():
                raise ValueError(f"required column {name} has no metric under columns")
        return self

    def sources(self) -> dict[str, Source]:
        """Sources of all columns, with those of the same name where the mapping has any."""
        if self.same_names is None:
            return self.columns
        same = {name: Source.model_validate(f"{self.same_names}{name}") for name in importable_columns()}
        return same | self.columns

    def benchmark(self, metric: str) -> str | None:
        """The benchmark whose accuracy a metric is, or None."""
        for pattern in self.accuracies:
            if match := re.fullmatch(pattern, metric):
                return match["benchmark"]
        return None

    def step_metric(self, metric: str) -> str | None:
        """The metric that counts the steps of `metric`, or None where the logger's own step does."""
        prefixes = [prefix for prefix in self.step_metrics if metric.startswith(prefix)]
        return self.step_metrics[max(prefixes, key=len)] if prefixes else None


def importable_columns() -> list[str]:
    """Columns that one logged number a step can fill; histograms cannot."""
    return [
        name for name, column in METRIC_COLUMNS.items() if column.type != "list" and name not in NOT_MAPPED
    ]


def known_mappings() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_mapping(name: str) -> tuple[Mapping, dict[str, Any]]:
    """The mapping called `name` or in the YAML file `name`, and its provenance.

    A file may say `extends: verl`: its columns are added (null takes one away), its other keys replace.
    Raises AnalysisError naming file and key.
    """
    path = FOLDER / f"{name}.yaml" if name in known_mappings() else Path(name)
    if not path.is_file():
        raise AnalysisError(
            f"--mapping {name}: neither a known mapping ({', '.join(known_mappings())}) nor a file"
        )
    block = _read(path)
    base = block.pop("extends", None)
    if base is not None:
        if base not in known_mappings():
            raise AnalysisError(f"{path}: extends: {base}: known are {', '.join(known_mappings())}")
        block = _merged(_read(FOLDER / f"{base}.yaml"), block)
    try:
        mapping = Mapping.model_validate(block)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise AnalysisError(f"{path}: {key + ': ' if key else ''}{first['msg']}") from error
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    resolved = mapping.model_dump(mode="json", by_alias=True)
    return mapping, {"name": name, "sha256": digest, "extends": base, "resolved": resolved}


def _read(path: Path) -> dict[str, Any]:
    try:
        block = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise AnalysisError(f"{path}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise AnalysisError(f"{path}: is not valid YAML: {error}") from error
    if not isinstance(block, dict):
        raise AnalysisError(f"{path}: holds no keys; look at {FOLDER / 'verl.yaml'}")
    return block


def _merged(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    columns = {**base["columns"], **(own.get("columns") or {})}
    return {
        **base,
        **own,
        "columns": {name: source for name, source in columns.items() if source is not None},
    }


def _check_column(name: str) -> None:
    """Raises ValueError for a column that an importer cannot fill."""
    if name in importable_columns():
        return
    if name in NOT_MAPPED:
        raise ValueError(f"{name} follows from the step's number; set first_update")
    if name in METRIC_COLUMNS:
        raise ValueError(f"{name} is a histogram, which cannot be imported")
    close = difflib.get_close_matches(name, importable_columns(), n=1)
    hint = f"; did you mean {close[0]}?" if close else "; docs/run_directory.md lists them"
    raise ValueError(f"{name} is no column of metrics.jsonl{hint}")
