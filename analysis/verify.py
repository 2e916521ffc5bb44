"""Whether tables, figures and a report are what their runs give: makes them again and compares every byte.

    python -m analysis.verify results/logged/cpu
    python -m analysis.verify results/plots/cpu --runs results/logged/cpu

Nothing is stored for it, so nothing can be edited along with a number. Each artifact is made anew in a
temporary folder from the runs, with the command that its own Markdown states as its text.
"""

import argparse
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from pathlib import Path

import matplotlib

from analysis.artifacts import PUBLISHED_FILE, load_artifacts
from analysis.claims import write_claims
from analysis.command import pick_artifacts, run_command
from analysis.comparisons import write_comparisons
from analysis.curves import X_LABELS, XAxis
from analysis.differences import first_difference, stated_command, stated_matplotlib
from analysis.drawing import FORMATS
from analysis.figures import draw_figure
from analysis.load import AnalysisError, Logs, load_logs
from analysis.published import make_checks
from analysis.render import write_sheet
from analysis.report.pages import render, rows_to_read
from analysis.row import describe_row
from analysis.tables import write_table

FOLDERS = ("tables", "figures", "rows")
REPORT, REPORT_OPTIONS = "report.html", ("runs", "out", "beside")
OTHERS = ("math_scores", "math_problems", "swe_scores", "swe_comparisons")  # made by evaluation's commands


@dataclass(frozen=True)
class Artifact:
    """What one command writes below a folder: `stem` without suffix, and how it is made there again.

    `write` takes the logs, the stem in the temporary folder, and the command to state.
    """

    module: str
    stem: str
    write: Callable[[Logs, Path, str], None]


@dataclass(frozen=True)
class Found:
    """What a comparison came to: `differing` are faults by file, `unchecked` files with the reason."""

    equal: int
    differing: list[str]
    unchecked: dict[str, str]


def known_artifacts(rows: list[str]) -> Iterator[Artifact]:
    """Every artifact that may lie below a folder of results, those of `rows` among them."""
    artifacts = load_artifacts()
    for name in artifacts.tables:
        yield Artifact("analysis.tables", f"tables/{name}", partial(_table, name))
    for name, axis in product(artifacts.figures, X_LABELS):
        stem = f"figures/{name}" if axis == "updates" else f"figures/{name}_{axis}"
        yield Artifact("analysis.figures", stem, partial(_figure, name, axis))
    yield Artifact("analysis.claims", "tables/claims", write_claims)
    yield Artifact("analysis.claims", "tables/claims_beyond", write_claims)
    yield Artifact("analysis.comparisons", "tables/comparisons", _comparisons)
    yield Artifact("analysis.published", "tables/published", _published)
    for row in rows:
        yield Artifact("analysis.row", f"rows/{row}", partial(_row, row))
    yield Artifact("analysis.report", "report", _report)


def verify(folder: Path, runs: Path, remade: Path) -> Found:
    """Make what lies in `folder` again from `runs` below `remade`, and compare the two.

    Raises AnalysisError where there is nothing to compare or the runs cannot be read.
    """
    there = sorted(_files(folder))
    names = {path.relative_to(folder).with_suffix("").as_posix() for path in there}
    rows = sorted({path.name for kind in ("runs", "evaluations") for path in (runs / kind).glob("*")})
    chosen = [one for one in known_artifacts(rows) if {one.stem, f"{one.stem}_recovery"} & names]
    if not chosen:
        raise AnalysisError(f"{folder}: holds no table, figure or report; make them first: snakemake tables")
    read: dict[tuple[str, ...], Logs] = {}
    unchecked: dict[str, str] = {}
    for artifact in chosen:
        command = _stated(folder, artifact)
        beside = tuple(_options(command, "--beside"))
        if beside not in read:
            others = [Path(other) for other in beside]
            read[beside] = load_logs(runs, rows_to_read(runs, others), others)
        artifact.write(read[beside], remade / artifact.stem, command)
        unchecked |= _unchecked(folder, artifact, there)
    return _compare(folder, remade, there, unchecked)


def _compare(folder: Path, remade: Path, there: list[Path], unchecked: dict[str, str]) -> Found:
    made = {path.relative_to(remade).as_posix(): path for path in _files(remade)}
    equal, differing = 0, []
    for path in there:
        name = path.relative_to(folder).as_posix()
        again = made.pop(name, None)
        if path.stem in OTHERS:
            unchecked[name] = "made by another command"
        elif name in unchecked:
            continue
        elif again is None:
            differing.append(f"{path}: no command makes this file of these runs")
        elif (found := path.read_bytes()) != (expected := again.read_bytes()):
            differing.append(f"{path}: {first_difference(found, expected, path.suffix)}")
        else:
            equal += 1
    missing = [f"{folder / name}: is missing, the runs give it" for name in sorted(made)]
    return Found(equal, differing + missing, unchecked)


def _files(folder: Path) -> Iterator[Path]:
    """Files that hold artifacts; hidden and unfinished ones are none."""
    found = [path for name in FOLDERS for path in (folder / name).glob("*")] + [folder / REPORT]
    return (path for path in found if path.is_file() and not path.name.startswith("."))


def _stated(folder: Path, artifact: Artifact) -> str:
    """The command that the artifact says it was made with."""
    suffix = ".html" if artifact.stem == "report" else ".md"
    file = folder / f"{artifact.stem}{suffix}"
    return stated_command(_text(file), artifact.module)


def _unchecked(folder: Path, artifact: Artifact, there: list[Path]) -> dict[str, str]:
    """Files of an artifact that tell nothing of the runs, with the reason.

    Where the Markdown is missing, which states the command, all that quote it; pictures that another version
    of Matplotlib drew.
    """
    stem = folder / artifact.stem
    mine = [path for path in there if path.with_suffix("") in (stem, Path(f"{stem}_recovery"))]
    drawn = stated_matplotlib(_text(stem.with_suffix(".svg")))
    if stem.with_suffix(".md") not in mine and stem.with_suffix(".html") not in mine:
        left, reason = [path for path in mine if path.suffix != ".csv"], "quotes a command that is missing"
    elif drawn in ("", matplotlib.__version__):
        return {}
    else:
        left = [path for path in mine if path.suffix.removeprefix(".") in FORMATS]
        reason = f"drawn by Matplotlib {drawn}, here is {matplotlib.__version__}"
    return {path.relative_to(folder).as_posix(): reason for path in left}


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def _options(command: str, name: str) -> list[str]:
    """Values of an option in a command, in their order."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise AnalysisError(
            f"stated command {command!r}: cannot be read: {error}; write the artifact again"
        ) from error
    return [value for option, value in pairwise(words) if option == name]


def _table(name: str, logs: Logs, stem: Path, command: str) -> None:
    write_table(logs, name, stem, command)


def _figure(name: str, axis: XAxis, logs: Logs, stem: Path, command: str) -> None:
    draw_figure(logs, name, axis, stem.parent, command)


def _comparisons(logs: Logs, stem: Path, command: str) -> None:
    chosen = next(iter(_options(command, "--artifact")), None)
    write_comparisons(logs, pick_artifacts(chosen, load_artifacts().tables), stem, command)


def _published(logs: Logs, stem: Path, command: str) -> None:
    write_sheet(stem, *make_checks(PUBLISHED_FILE.parent, command))


def _row(row: str, logs: Logs, stem: Path, command: str) -> None:
    stem.parent.mkdir(parents=True, exist_ok=True)
    stem.with_suffix(".md").write_text(describe_row(logs, row, command), encoding="utf-8")


def _report(logs: Logs, stem: Path, command: str) -> None:
    """The page, with links from the place at which it says that it was written."""
    runs, out, beside = ([Path(value) for value in _options(command, f"--{name}")] for name in REPORT_OPTIONS)
    if not (runs and out):
        raise AnalysisError(f"{REPORT}: does not state the command that made it; write the report again")
    stated = argparse.Namespace(runs=runs[0], out=out[0], beside=beside)
    stem.with_suffix(".html").write_text(render(logs, stated), encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.verify",
        description="Check that tables, figures and a report are what the runs give.",
    )
    parser.add_argument("folder", type=Path, help="holds tables/, figures/ or report.html, e.g. results/cpu")
    parser.add_argument("--runs", type=Path, help="folder of the runs, where they lie elsewhere")
    options = parser.parse_args(arguments)
    runs = options.runs or options.folder
    with tempfile.TemporaryDirectory() as remade:
        found = verify(options.folder, runs, Path(remade))
    for name, reason in found.unchecked.items():
        print(f"not checked: {options.folder / name}: {reason}")
    for fault in found.differing:
        print(fault, file=sys.stderr)
    if found.differing:
        raise AnalysisError(
            f"{options.folder}: {len(found.differing)} of {found.equal + len(found.differing)} files are not "
            f"what the runs in {runs} give; restore them, or make them again"
        )
    print(f"{options.folder}: {found.equal} files are what the runs give, byte for byte")


if __name__ == "__main__":
    sys.exit(run_command(main))
