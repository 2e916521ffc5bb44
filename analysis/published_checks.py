"""The checks on published values; each finds its cases by a rule and knows none of them beforehand."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from math import prod
from statistics import mean, median

from analysis.published_values import OWN_RUN, REPEATED, CurvePoint, RunCount, Value

OFF_GRID = "off the grid"
COPIED = "copied cell"
DISAGREEING = "tables disagree"
MISLABELLED = "wrong label"
SAME_CAPTION = "repeated caption"
FINGERPRINT = "sha256:"
BASELINE_AHEAD = "baseline ahead"

METHOD_ROWS = ("sao", "sao_online")

FEWEST_EQUAL_CELLS = 2
HUNDRED = 100


@dataclass(frozen=True)
class Finding:
    """What a check found about one value, in words."""

    kind: str
    value: Value
    detail: str


def off_grid(values: list[Value], counts: list[RunCount]) -> list[Finding]:
    """Values that no number of right answers gives, at the stated number of problems and runs."""
    findings = []
    for value in values:
        count = value.run_count(counts)
        if count is None or count.fits(value):
            continue
        nearest = count.nearest(value)
        share = HUNDRED * nearest / count.samples
        findings.append(
            Finding(
                OFF_GRID,
                value,
                f"no k of {count.samples} ({count.problems} problems x {count.runs} runs) gives it: "
                f"{nearest} would be {share:.{value.decimals + 1}f} ({value.origin})",
            )
        )
    return findings


def own_runs_by_chance(values: Iterable[Value], counts: list[RunCount]) -> float:
    """Chance that random digits in place of all these values would lie on their grids."""
    shares = []
    for value in values:
        count = value.run_count(counts)
        if count is not None and count.tells(value):
            shares.append((count.samples + 1) / (HUNDRED * 10**value.decimals + 1))
    return prod(shares)


def copied_cells(values: list[Value]) -> list[Finding]:
    """Cells of a table's row that repeat another row's in two benchmarks or more, but not in all.

    One equal pair may be chance. Of the two rows the copy is the one whose repeated cells stand out more from
    its other cells, by the measure of the table's other rows.
    """
    findings = []
    for place in dict.fromkeys(value.place for value in values if value.file == "paper.csv"):
        rows = _rows(value for value in values if value.place == place)
        for first, second in combinations(rows, 2):
            equal = [name for name in rows[first] if _equal(rows[first][name], rows[second].get(name))]
            if len(equal) < FEWEST_EQUAL_CELLS or len(equal) == min(len(rows[first]), len(rows[second])):
                continue
            original, copy = sorted((first, second), key=lambda row: _oddness(rows, row, equal))
            findings += [_copied(rows[copy][name], rows[original][name]) for name in equal]
    return findings


def disagreeing_tables(values: list[Value]) -> list[Finding]:
    """Values of one row and benchmark that differ between two tables by more than rounding."""
    findings = []
    paper = [value for value in values if value.file == "paper.csv"]
    for first, second in combinations(paper, 2):
        same = (first.row, first.benchmark) == (second.row, second.benchmark)
        if same and first.place != second.place and not first.agrees(second):
            detail = f"{first.place} has {first.text} ({first.file}:{first.line})"
            findings.append(Finding(DISAGREEING, second, detail))
    return findings


def wrong_labels(values: list[Value]) -> list[Finding]:
    """Values repeated elsewhere under a label whose row in the paper's tables has another value, or none.

    Only where another row of the tables has exactly that value on the benchmark.
    """
    findings = []
    tables = [value for value in values if value.file == "paper.csv"]
    for value in (value for value in values if value.origin == REPEATED):
        cells = [cell for cell in tables if cell.benchmark == value.benchmark]
        under_label = [cell for cell in cells if cell.label == value.label]
        owners = [cell for cell in cells if cell.agrees(value)]
        if any(cell.agrees(value) for cell in under_label) or not owners:
            continue
        there = ", ".join(cell.text for cell in under_label) or "no value"
        detail = (
            f"'{value.label}' has {there} in the tables; {value.text} is "
            f"'{owners[0].label}' ({owners[0].place}, {owners[0].file}:{owners[0].line})"
        )
        findings.append(Finding(MISLABELLED, value, detail))
    return findings


def repeated_captions(captions: list[Value]) -> list[Finding]:
    """Captions that another table or figure has before them, whatever their numbers and spaces."""
    findings = []
    for first, second in combinations(captions, 2):
        same = caption_fingerprint(first.text) == caption_fingerprint(second.text)
        if first.place != second.place and same:
            detail = f"is the caption of {first.place} too ({first.file}:{first.line})"
            findings.append(Finding(SAME_CAPTION, second, detail))
    return findings


def baselines_ahead(points: list[CurvePoint]) -> list[Finding]:
    """Phases of a published figure in which a baseline's curve is higher in the mean than the method's."""
    findings = []
    for artifact, phase in dict.fromkeys((point.artifact, point.phase) for point in points):
        curves: dict[str, list[CurvePoint]] = {}
        for point in points:
            if (point.artifact, point.phase) == (artifact, phase):
                curves.setdefault(point.row, []).append(point)
        means = {row: mean(point.value for point in curve) for row, curve in curves.items()}
        for method in (row for row in curves if row in METHOD_ROWS):
            for row in (row for row in curves if row not in METHOD_ROWS and means[row] > means[method]):
                findings.append(
                    _ahead(curves[row], curves[method][0].label, phase, means[row], means[method])
                )
    return findings


def _ahead(curve: list[CurvePoint], method: str, phase: int, height: float, other: float) -> Finding:
    first = curve[0]
    value = Value(
        "curves.csv", first.line, first.artifact, first.row, first.label, "", f"{height:.3g}", OWN_RUN
    )
    return Finding(
        BASELINE_AHEAD, value, f"phase {phase}: mean {height:.3g} against {other:.3g} of '{method}'"
    )


def caption_fingerprint(caption: str) -> str:
    """`sha256:` and 16 digits of the digest of a caption's words in lower case, without its number.

    A fingerprint is its own: captions.csv may hold either.
    """
    if caption.startswith(FINGERPRINT):
        return caption
    words = re.sub(r"^\s*(table|figure)\s*\w+\s*[.:]?", "", caption.lower()).split()
    return FINGERPRINT + hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]


def _rows(values: Iterable[Value]) -> dict[str, dict[str, Value]]:
    rows: dict[str, dict[str, Value]] = {}
    for value in values:
        rows.setdefault(value.row, {})[value.benchmark] = value
    return rows


def _equal(first: Value, second: Value | None) -> bool:
    return second is not None and first.text == second.text


def _oddness(rows: dict[str, dict[str, Value]], row: str, repeated: list[str]) -> float:
    """How far the gap between a row's repeated and other cells is from the median gap of all rows."""
    gaps = {}
    for name, cells in rows.items():
        inside = [value.number for benchmark, value in cells.items() if benchmark in repeated]
        outside = [value.number for benchmark, value in cells.items() if benchmark not in repeated]
        if inside and outside:
            gaps[name] = mean(inside) - mean(outside)
    return abs(gaps[row] - median(gaps.values())) if row in gaps else 0.0


def _copied(value: Value, original: Value) -> Finding:
    detail = (
        f"repeats '{original.label}' ({original.file}:{original.line}) together with another cell of the "
        "row, and does not fit the row's other cells: most likely a copying error"
    )
    return Finding(COPIED, value, detail)
