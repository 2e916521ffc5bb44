"""Public sets that training draws from: loading, pinning, and their overlap with the benchmarks.

    python -m evaluation.training_data check math_prompts [--data-dir FOLDER]
    python -m evaluation.training_data fetch math_prompts [--out FILE]

`experiments/data.yaml` names a set for each use. `check` prints what a set is found to be; `fetch` also
writes the rows to train on without those that a benchmark holds: one JSON object a line, with `id`, `text`
and `answer`, or a task of software engineering (see `evaluation.swe.task_set`). What is read the first time
is recorded in a lock file, and other data is refused afterwards.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation.data_files import (
    UNVERIFIED,
    DataError,
    check_digest,
    download,
    first_reading,
    licence_on_card,
    read_folder,
    read_pins,
    record,
    recorded,
)
from evaluation.math.data import load_benchmark
from evaluation.overlap import BenchmarkIndex, Overlap
from sao.config_files import closest
from sao.runlog import RunError
from sao.runlog_files import write_atomic

if TYPE_CHECKING:
    from evaluation.swe.task_set import TaskSet

REPOSITORY = Path(__file__).resolve().parents[1]
SETS = REPOSITORY / "experiments" / "data.yaml"
LOCK = REPOSITORY / "experiments" / "data.lock.yaml"


@dataclass(frozen=True)
class Row:
    """One row of a set; `answer` is empty where the task has none."""

    id: str
    text: str
    answer: str


@dataclass(frozen=True)
class TrainingSet:
    """A loaded set: all its rows, those that a benchmark holds, and how often a text stands there again."""

    name: str
    title: str
    rows: tuple[Row, ...]
    overlaps: tuple[Overlap, ...]
    repeated: int
    source: str
    revision: str
    sha256: str

    @property
    def kept(self) -> list[Row]:
        """Rows to train on: without overlaps, and each text once."""
        left_out = {overlap.row for overlap in self.overlaps}
        unique = {row.text: row for row in reversed(self.rows) if row.id not in left_out}
        return [row for row in self.rows if unique.get(row.text) is row]

    def report(self) -> list[str]:
        """Lines that say which rows are a benchmark's, and what the set is found to be."""
        found = [
            f"row {overlap.row} is {overlap.problem} of {overlap.benchmark} (shares {overlap.share:.0%})"
            for overlap in self.overlaps
        ]
        return [
            *found,
            f"{self.title}: {len(self.rows)} rows from {self.source} at {self.revision}, "
            f"{len(self.overlaps)} in a benchmark, {self.repeated} repeated, {len(self.kept)} to train on",
        ]

    def write(self, out: Path) -> None:
        """Write the rows to train on as JSON Lines."""
        lines = [json.dumps({"id": row.id, "text": row.text, "answer": row.answer}) for row in self.kept]
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, "".join(line + "\n" for line in lines).encode())


def checksum(rows: Iterable[Row]) -> str:
    """SHA-256 of the (id, text, answer) triples in order."""
    total = hashlib.sha256()
    for row in rows:
        total.update(json.dumps([row.id, row.text, row.answer], ensure_ascii=False).encode() + b"\n")
    return total.hexdigest()


def load(
    name: str,
    data_dir: Path | None = None,
    *,
    benchmarks_dir: Path | None = None,
    sets: Path = SETS,
    lock: Path = LOCK,
    cache_dir: Path | None = None,
) -> TrainingSet:
    """Load a set, check it against its benchmarks and its record. Raises DataError with the mend.

    `data_dir` and `benchmarks_dir` hold local copies to read in place of the network.
    """
    pin = pin_of(name, sets)
    locked = read_pins(lock).get(name, {})
    revision = recorded("revision", pin, locked)
    if data_dir is not None:
        raw, source = read_folder(name, data_dir, cache_dir)
    else:
        raw, source, revision = download(name, pin, revision, cache_dir)
    rows = read_rows(name, raw, pin["columns"], source)
    digest = checksum(rows)
    check_digest(name, source, digest, pin, locked, (sets, lock))
    index = benchmark_index(pin["benchmarks"], benchmarks_dir)
    overlaps = [found for row in rows if (found := index.find(row.id, row.text)) is not None]
    repeated = len(rows) - len({row.text for row in rows})
    loaded = TrainingSet(name, pin["title"], rows, tuple(overlaps), repeated, source, revision, digest)
    if first_reading(revision, pin, locked):
        licence = UNVERIFIED if data_dir is not None else licence_on_card(pin["hub"], revision)
        record(lock, name, _entry(loaded, licence, pin["benchmarks"]))
    return loaded


def fetched_file(name: str, results: str) -> Path:
    """Where a set's rows to train on lie."""
    return Path(results, "data", f"{name}.jsonl")


def fetch_command(name: str, results: str) -> str:
    """The command that puts a set's rows there."""
    return f"python -m evaluation.training_data fetch {name} --out {fetched_file(name, results)}"


def how_to_fetch(name: str, results: str) -> str:
    """What a user has to do who lacks a set's rows."""
    known = read_pins(SETS)
    if name in known:
        return f"fetch it: {fetch_command(name, results)}"
    return f"{SETS.name} has no set {name}{closest(name, known)}; add it there"


def pin_of(name: str, sets: Path = SETS) -> dict[str, Any]:
    """A set's entry; DataError for an unknown name."""
    known = read_pins(sets)
    if name not in known:
        raise DataError(f"{sets.name}: no set {name}{closest(name, known)}")
    return known[name]


def read_rows(
    name: str, raw: Iterable[Mapping[str, Any]], columns: Mapping[str, str], source: str
) -> tuple[Row, ...]:
    """Rows with an id each (the row's number where the set has none); DataError where a column is missing."""
    rows = []
    for number, line in enumerate(raw, start=1):
        missing = [column for column in columns.values() if column not in line]
        if missing:
            raise DataError(
                f"{name} from {source}: no column {' or '.join(missing)}; found {', '.join(line)}"
            )
        identifier = line[columns["id"]] if "id" in columns else number
        answer = line[columns["answer"]] if "answer" in columns else ""
        text = str(line[columns["text"]]).strip()
        if not text:
            raise DataError(
                f"{name} from {source}: row {number} has no {columns['text']}; remove or repair it"
            )
        rows.append(Row(str(identifier), text, str(answer).strip()))
    if len({row.id for row in rows}) < len(rows):
        raise DataError(f"{name} from {source}: the column {columns.get('id')} repeats ids; name another")
    return tuple(rows)


def benchmark_index(names: Iterable[str], benchmarks_dir: Path | None) -> BenchmarkIndex:
    """The benchmarks' problems, from local copies where a folder is given; DataError where one is missing."""
    index = BenchmarkIndex()
    for name in names:
        benchmark = load_benchmark(name, benchmarks_dir)
        index.add(name, [(problem.id, problem.problem) for problem in benchmark.problems])
    return index


def _entry(loaded: TrainingSet, licence: str, benchmarks: list[str]) -> dict[str, Any]:
    counts = {name: sum(overlap.benchmark == name for overlap in loaded.overlaps) for name in benchmarks}
    return {
        "source": loaded.source,
        "revision": loaded.revision,
        "sha256": loaded.sha256,
        "rows": len(loaded.rows),
        "kept": len(loaded.kept),
        "kept_sha256": checksum(loaded.kept),
        "licence_on_card": licence,
        "overlaps": counts,
    }


def fetched_rows(name: str, results: str) -> list[Row]:
    """The rows to train on as `fetch` wrote them, each with a text.

    Raises DataError, with the mend, where the file is missing or damaged, or holds other rows than the lock
    file records; a set that it does not record yet is taken as it is.
    """
    file = fetched_file(name, results)
    if not file.exists():
        raise DataError(f"{file}: is not there; {how_to_fetch(name, results)}")
    try:
        lines = file.read_text(encoding="utf-8").split("\n")  # splitlines would cut texts with a U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read: {error}; {how_to_fetch(name, results)}") from None
    rows = [_row(file, number, line) for number, line in enumerate(lines, start=1) if line]
    expected = read_pins(LOCK).get(name, {}).get("kept_sha256", UNVERIFIED)
    if expected not in (UNVERIFIED, checksum(rows)):
        raise DataError(
            f"{file}: holds other rows than {LOCK.name} records for {name}; {how_to_fetch(name, results)}"
        )
    return rows


def _row(file: Path, number: int, line: str) -> Row:
    try:
        fields = json.loads(line)
        row = Row(str(fields["id"]), fields["text"], str(fields["answer"]))
        if isinstance(row.text, str) and row.text.strip():
            return row
    except (ValueError, KeyError, TypeError):
        pass
    raise DataError(
        f"{file}: line {number}: is no JSON object with id, text and answer; mend or remove the line"
    )


def load_any(name: str, data_dir: Path | None, benchmarks_dir: Path | None) -> "TrainingSet | TaskSet":
    """A set by whichever loader its entry names. Raises DataError with the mend."""
    if pin_of(name, SETS)["loader"] != "swe":
        return load(name, data_dir, benchmarks_dir=benchmarks_dir, sets=SETS, lock=LOCK)
    from evaluation.swe.task_set import load_task_set

    return load_task_set(name, data_dir, benchmarks_dir, sets=SETS, lock=LOCK)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns 0, or 2 for a user's mistake or data that cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.training_data", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("command", choices=["check", "fetch"])
    parser.add_argument("set", help="a name of experiments/data.yaml")
    parser.add_argument("--data-dir", type=Path, help="folder with a local copy of the set")
    parser.add_argument("--benchmarks-dir", type=Path, help="folder with local copies of the benchmarks")
    parser.add_argument("--out", type=Path, help="default: results/data/<set>.jsonl")
    options = parser.parse_args(arguments)
    try:
        loaded = load_any(options.set, options.data_dir, options.benchmarks_dir)
        print("\n".join(loaded.report()))
        if options.command == "fetch":
            out = options.out or fetched_file(options.set, "results")
            loaded.write(out)
            print(f"wrote {out}")
    except (DataError, RunError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
