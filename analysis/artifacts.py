"""`experiments/artifacts.yaml`: which rows, columns, panels and tests make each table, figure and claim."""

from functools import cache
from pathlib import Path
from typing import Literal

import pandas as pd
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from analysis.load import AnalysisError

ROOT = Path(__file__).parents[1]
ARTIFACTS_FILE = ROOT / "experiments" / "artifacts.yaml"
ROWS_FOLDER = ROOT / "experiments" / "rows"
PUBLISHED_FILE = ROOT / "results" / "published" / "paper.csv"

ClaimTest = Literal[
    "collapse",
    "stability",
    "score",
    "gap_growth",
    "masked_share",
    "explained_variance",
    "critic_gradient_norm",
    "reward_after_switch",
    "staleness",
    "idle_share",
    "swe_bench",
]


Smoothing = Literal["mean", "median", "none"]


class _Block(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TableRow(_Block):
    """A row of a table; `published` is its id in the paper's values where that differs."""

    row: str
    kind: Literal["run", "reference", "base", "sft", "warm_start"] = "run"
    published: str | None = None

    @property
    def published_row(self) -> str:
        return self.published or self.row


class Table(_Block):
    """`columns`: every difficulty band and all tasks, or all tasks and the hardest band.

    `evaluated`: at scales with the table's benchmarks, columns and values are of their evaluations.
    """

    title: str
    place: str | None = None
    benchmarks: list[str] = []
    columns: Literal["bands", "hardest"]
    early_step: bool = False
    evaluated: bool = False
    remark: str = ""
    rows: list[TableRow]

    @property
    def run_rows(self) -> list[str]:
        return [entry.row for entry in self.rows if entry.kind == "run"]


class Series(_Block):
    """A line of a panel; several metric `columns` are added up."""

    row: str
    columns: list[str] = []
    label: str | None = None


class Panel(_Block):
    """`quantity`: what is drawn; `table` and `benchmarks` choose the values of a panel of bars.

    The y axis ends at `y_limits`, and where the lower one is null at the data, but never below `floor`.
    """

    name: str
    title: str = ""
    quantity: Literal[
        "accuracy",
        "metric",
        "style_shares",
        "scores",
        "published",
        "gantt",
        "ratios",
        "staleness",
        "staleness_by_length",
    ]
    table: str | None = None
    benchmarks: list[str] = []
    y_label: str
    y_limits: tuple[float | None, float | None] = (None, None)
    floor: float | None = None
    smoothing: Smoothing = "mean"
    percent: bool = False
    mark_collapse: bool = False
    series: list[Series]


class Figure(_Block):
    title: str
    place: str
    mark_switches: bool = False
    remark: str = ""
    panels: list[Panel]

    @property
    def rows(self) -> list[str]:
        """Trained rows that the figure shows; those of the paper's values and the warm start are none."""
        ours = [panel for panel in self.panels if panel.quantity != "published"]
        rows = dict.fromkeys(series.row for panel in ours for series in panel.series)
        return [row for row in rows if row != "warm_start"]


class Claim(_Block):
    """`rows`: the effect is the first row's quantity minus the second's, or the only row's."""

    claim: str
    part: str = ""
    statement: str
    place: str
    test: ClaimTest
    rows: list[str]
    threshold: float | None = None
    half: Literal["first", "second"] | None = None


class Artifacts(_Block):
    bands: dict[str, list[str]]
    tables: dict[str, Table]
    figures: dict[str, Figure]
    claims: list[Claim]


@cache
def load_artifacts(path: Path = ARTIFACTS_FILE) -> Artifacts:
    """Read and validate the artifacts file; raises AnalysisError naming file and key."""
    try:
        return Artifacts.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise AnalysisError(f"{path}: cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise AnalysisError(f"{path}: is not valid YAML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise AnalysisError(f"{path}: {key}: {first['msg']}") from error


@cache
def row_label(row: str) -> str:
    """The title in a row's file; for rows that are not trained here the paper's name."""
    if row == "warm_start":
        return "Warm start (SFT)"
    path = ROWS_FOLDER / f"{row}.yaml"
    if path.is_file():
        return str(yaml.safe_load(path.read_text(encoding="utf-8"))["title"])
    published = load_published()
    names = published.loc[published["row"] == row, "label"]
    return row if names.empty else str(names.iloc[0])


@cache
def load_published(path: Path = PUBLISHED_FILE) -> pd.DataFrame:
    """The paper's values, one line a table, row and benchmark; values in percent, NaN where not reported."""
    try:
        return pd.read_csv(path, keep_default_na=True).fillna({"note": ""})
    except OSError as error:
        raise AnalysisError(f"{path}: cannot be read: {error.strerror}") from error
