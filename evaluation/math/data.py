"""Loads the benchmarks through `datasets`, checks them, and corrects known faults.

    python -m evaluation.math.data check imo_answerbench [--data-dir FOLDER] [--unpatched]

`experiments/benchmarks.yaml` says where each benchmark comes from and what its rows hash to. Rows come from
the hub or the owner's file, cached by `datasets`, or from a file in `data_dir` (jsonl, csv or parquet, under
the benchmark's name). Whatever has no checksum yet gets one at its first reading, in a lock file.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluation.data_files import (
    UNVERIFIED,
    DataError,
    check_digest,
    download,
    read_folder,
    read_pins,
    record,
    recorded,
)
from evaluation.math.data_checks import Finding, check_problems
from evaluation.math.problems import Problem, checksum, read_patches

REPOSITORY = Path(__file__).resolve().parents[2]
PINS = REPOSITORY / "experiments" / "benchmarks.yaml"
LOCK = REPOSITORY / "experiments" / "benchmarks.lock.yaml"
PATCHES = Path(__file__).resolve().parent / "patches"


@dataclass(frozen=True)
class Benchmark:
    """A loaded benchmark: its problems, where they came from, and what was done to them.

    `patch_set` names the corrections that the rows carry, or is None; scores travel with it. `sha256` is of
    the rows as read, before corrections.
    """

    name: str
    title: str
    problems: tuple[Problem, ...]
    source: str
    revision: str
    sha256: str
    patch_set: str | None
    findings: tuple[Finding, ...]


def benchmark_names(pins: Path = PINS) -> list[str]:
    """Names of the benchmarks that can be loaded."""
    return list(read_pins(pins))


def load_benchmark(
    name: str,
    data_dir: Path | None = None,
    *,
    patched: bool = True,
    cache_dir: Path | None = None,
    pins: Path = PINS,
    lock: Path = LOCK,
) -> Benchmark:
    """Load one benchmark. Raises DataError for data that is missing, changed or damaged.

    `data_dir` reads a file there instead of the network. `patched=False` leaves known faults in, for scores
    on the data as published.
    """
    benchmark = read_benchmark(name, data_dir, patched=patched, cache_dir=cache_dir, pins=pins, lock=lock)
    errors = [finding for finding in benchmark.findings if finding.severity == "error"]
    if errors and patched:
        raise DataError(f"{name} from {benchmark.source}: {len(errors)} faults, first: {errors[0]}")
    return benchmark


def read_benchmark(
    name: str, data_dir: Path | None, *, patched: bool, cache_dir: Path | None, pins: Path, lock: Path
) -> Benchmark:
    """As `load_benchmark`, with damaged rows as findings instead of an exception."""
    known = read_pins(pins)
    if name not in known:
        raise DataError(f"no benchmark {name!r}; there are {', '.join(known)}")
    pin = known[name]
    locked = read_pins(lock).get(name, {})
    revision = recorded("revision", pin, locked)
    if data_dir is not None:
        rows, source = read_folder(name, data_dir, cache_dir)
    else:
        rows, source, revision = download(name, pin, revision, cache_dir)
    problems = _problems(name, rows, pin["columns"], source)
    digest = checksum(problems)
    check_digest(name, source, digest, pin, locked, (pins, lock))
    findings = check_problems(problems, pin["rows"], pin["answers"])
    patch_set = None
    if patched and "patches" in pin:
        patches = read_patches(PATCHES / pin["patches"])
        problems, patch_set = patches.apply(problems), patches.name
        findings = check_problems(problems, pin["rows"], pin["answers"])
    unrecorded = recorded("sha256", pin, locked) == UNVERIFIED or (
        pin["revision"] == locked.get("revision") == UNVERIFIED and revision != UNVERIFIED
    )
    if unrecorded and not any(finding.severity == "error" for finding in findings):
        entry = {"revision": revision, "sha256": digest, "rows": len(problems), "source": source}
        record(lock, name, entry)
    return Benchmark(name, pin["title"], problems, source, revision, digest, patch_set, tuple(findings))


def _problems(
    name: str, rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str], source: str
) -> tuple[Problem, ...]:
    """Rows as problems; integer answers and ids become text, missing ids the row's number."""
    problems = []
    for number, row in enumerate(rows, start=1):
        missing = [columns[key] for key in ("problem", "answer") if columns[key] not in row]
        if missing:
            raise DataError(f"{name} from {source}: no column {' or '.join(missing)}; found {', '.join(row)}")
        category = row.get(columns.get("category", ""))
        problems.append(
            Problem(
                id=str(row.get(columns.get("id", ""), number)),
                problem=str(row[columns["problem"]]),
                answer=str(row[columns["answer"]]).strip(),
                category=", ".join(category) if isinstance(category, list) else category,
            )
        )
    return tuple(problems)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m evaluation.math.data", description="Benchmark data.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("check", help="load a benchmark and print what its rows are found to be")
    command.add_argument("benchmark", help=", ".join(benchmark_names()))
    command.add_argument("--data-dir", type=Path, help="folder that holds the benchmark's file")
    command.add_argument("--unpatched", action="store_true", help="leave out the corrections of known faults")
    options = parser.parse_args(arguments)
    try:
        benchmark = read_benchmark(
            options.benchmark,
            options.data_dir,
            patched=not options.unpatched,
            cache_dir=None,
            pins=PINS,
            lock=LOCK,
        )
    except DataError as problem:
        print(problem, file=sys.stderr)
        return 2
    for finding in benchmark.findings:
        print(finding)
    counts = Counter(finding.severity for finding in benchmark.findings)
    print(
        f"{benchmark.title}: {len(benchmark.problems)} problems from {benchmark.source} at "
        f"{benchmark.revision}, SHA-256 {benchmark.sha256[:12]}..., "
        f"patch set {benchmark.patch_set or 'none'}: "
        f"{counts['error']} errors, {counts['warning']} warnings, {counts['note']} judge_only"
    )
    return 1 if counts["error"] else 0


if __name__ == "__main__":
    sys.exit(main())
