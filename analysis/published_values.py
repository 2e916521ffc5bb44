"""The published values, each with the line of the file it comes from, and the run counts behind them."""

import csv
from dataclasses import dataclass
from math import floor
from pathlib import Path

from analysis.artifacts import load_artifacts
from analysis.load import AnalysisError

CAPTION = "caption"
OWN_RUN = "own run"
REFERENCE = "reference model"
OTHERS = "run of others"
REPEATED = "repeated elsewhere"

OPTIONAL_FILES = {
    "captions.csv": "captions of the paper's tables and figures",
    "curves.csv": "curves read off the paper's figures",
}
"""What the checks read where it lies beside the values; of these the curves are not shipped."""

FILES = {
    "paper.csv": ("artifact", "row", "label", "benchmark", "value", "source"),
    "independent_runs.csv": ("source", "row", "benchmark", "value"),
    "relabelled.csv": ("place", "label", "benchmark", "value", "source"),
    "run_counts.csv": ("file", "source", "benchmark", "problems", "runs"),
    "captions.csv": ("artifact", "caption", "source"),
    "curves.csv": ("artifact", "row", "label", "phase", "step", "value", "source"),
}


@dataclass(frozen=True)
class Value:
    """One published number as printed: `text` in percent, from line `line` of `file`.

    `place`: table or source. `row`: its id, empty where only a label is given. `origin`: whose number it is.
    """

    file: str
    line: int
    place: str
    row: str
    label: str
    benchmark: str
    text: str
    origin: str

    @property
    def number(self) -> float:
        return float(self.text)

    @property
    def decimals(self) -> int:
        return len(self.text.partition(".")[2])

    @property
    def is_own_run(self) -> bool:
        return self.origin == OWN_RUN

    @property
    def rounding(self) -> float:
        """Largest distance of the printed from the exact value."""
        return 0.5 * 10.0**-self.decimals + 1e-9

    def agrees(self, other: "Value") -> bool:
        """Whether both may be the same number, printed with their decimals."""
        return abs(self.number - other.number) <= max(self.rounding, other.rounding)

    def run_count(self, counts: list["RunCount"]) -> "RunCount | None":
        """The run count behind the value, None where none is stated."""
        file = "paper.csv" if self.origin == REPEATED else self.file
        found = [
            count
            for count in counts
            if count.file == file and count.source in ("", self.place) and count.benchmark == self.benchmark
        ]
        return found[0] if found else None


@dataclass(frozen=True)
class RunCount:
    """How many answers a benchmark's score is the mean of: `problems` times `runs`."""

    file: str
    source: str
    benchmark: str
    problems: int
    runs: int

    @property
    def samples(self) -> int:
        return self.problems * self.runs

    def nearest(self, value: Value) -> int:
        """The number of right answers whose share is nearest to the value."""
        return floor(value.number / 100 * self.samples + 0.5)

    def fits(self, value: Value) -> bool:
        """Whether some number of right answers gives the value as printed, halves rounded either way."""
        return abs(100 * self.nearest(value) / self.samples - value.number) <= value.rounding

    def tells(self, value: Value) -> bool:
        """Whether a number with that many decimals could miss the grid at all."""
        return 100 / self.samples > 2 * value.rounding


@dataclass(frozen=True)
class CurvePoint:
    """One point of a published curve, from line `line` of curves.csv; `phase` counts from 1."""

    line: int
    artifact: str
    row: str
    label: str
    phase: int
    step: float
    value: float


def load_values(folder: Path) -> list[Value]:
    """All reported values of the folder's files, in order; cells that the paper leaves empty are left out.

    Raises AnalysisError, naming file and line, for a missing file or column, or a value that is no number
    from 0 to 100.
    """
    references = {
        entry.published_row
        for table in load_artifacts().tables.values()
        for entry in table.rows
        if entry.kind == "reference"
    }
    values = []
    for line, cells in _read(folder / "paper.csv"):
        origin = REFERENCE if cells["row"] in references else OWN_RUN
        values.append(
            _value("paper.csv", line, cells["artifact"], cells["row"], cells["label"], cells, origin)
        )
    for line, cells in _read(folder / "independent_runs.csv"):
        source, row = cells["source"], cells["row"]
        values.append(_value("independent_runs.csv", line, source, row, row, cells, OTHERS))
    for line, cells in _read(folder / "relabelled.csv"):
        values.append(_value("relabelled.csv", line, cells["place"], "", cells["label"], cells, REPEATED))
    return [value for value in values if value.text]


def load_run_counts(folder: Path) -> list[RunCount]:
    """The run counts of run_counts.csv; AnalysisError, naming the line, where one is no whole number."""
    counts = []
    path = folder / "run_counts.csv"
    for line, cells in _read(path):
        for name in ("problems", "runs"):
            if not cells[name].isdigit() or int(cells[name]) < 1:
                raise AnalysisError(f"{path}: line {line}: {name} is {cells[name]!r}; write a whole number")
        counts.append(
            RunCount(
                cells["file"], cells["source"], cells["benchmark"], int(cells["problems"]), int(cells["runs"])
            )
        )
    return counts


def load_captions(folder: Path) -> list[Value]:
    """Captions of captions.csv, or their fingerprints, as `text`; none where there is no such file."""
    return [
        Value("captions.csv", line, cells["artifact"], "", "caption", "", cells["caption"], CAPTION)
        for line, cells in _read_optional(folder / "captions.csv")
    ]


def load_curves(folder: Path) -> list[CurvePoint]:
    """The points of curves.csv; none where the folder has no such file.

    Raises AnalysisError, naming the line, where phase, step or value is no number.
    """
    points = []
    path = folder / "curves.csv"
    for line, cells in _read_optional(path):
        try:
            phase, step, height = int(cells["phase"]), float(cells["step"]), float(cells["value"])
        except ValueError as error:
            raise AnalysisError(f"{path}: line {line}: {error}; write numbers") from error
        points.append(CurvePoint(line, cells["artifact"], cells["row"], cells["label"], phase, step, height))
    return points


def missing_files(folder: Path) -> list[str]:
    """What could be checked if the folder had it, in words."""
    lacking = [name for name in OPTIONAL_FILES if not (folder / name).is_file()]
    return [f"{OPTIONAL_FILES[name]} ({name} is not there)" for name in lacking]


def _read_optional(path: Path) -> list[tuple[int, dict[str, str]]]:
    return _read(path) if path.is_file() else []


def _value(
    file: str, line: int, place: str, row: str, label: str, cells: dict[str, str], origin: str
) -> Value:
    return Value(file, line, place, row, label, cells["benchmark"], cells["value"], origin)


def _read(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Line number and cells of every record of a CSV file, values checked."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            header = reader.fieldnames or []
            if missing := [name for name in FILES[path.name] if name not in header]:
                raise AnalysisError(
                    f"{path}: line 1: lacks the column {', '.join(missing)}; restore the file"
                )
            records = [(reader.line_num, cells) for cells in reader]
    except OSError as error:
        raise AnalysisError(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise AnalysisError(f"{path}: is no CSV file in UTF-8: {error}; restore the file") from error
    for line, cells in records:
        if None in cells or None in cells.values():
            raise AnalysisError(f"{path}: line {line}: has not {len(header)} cells; restore the file")
        if path.name != "curves.csv" and cells.get("value") and not _is_percent(cells["value"]):
            raise AnalysisError(
                f"{path}: line {line}: value is {cells['value']!r}; write a number from 0 to 100, or nothing"
            )
    return records


def _is_percent(text: str) -> bool:
    digits = text.replace(".", "", 1)
    return digits.isascii() and digits.isdigit() and float(text) <= 100
