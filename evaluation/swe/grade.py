"""Grades the patches of an evaluation with the official harness, and seals it.

    python -m evaluation.swe.grade results/paper_swe/evaluations/sao_swe/seed0/step400/swe_bench_verified
    python -m evaluation.swe.grade FOLDER --backend bubblewrap
    python -m evaluation.swe.grade FOLDER --from-logs

Logs and the harness's own report are kept in FOLDER/grading. With --from-logs they are read again and no
container is started. There is no score while a task is missing or its grading met an infrastructure error:
the same command tries those again. Exit codes: 0 sealed, 1 tasks are missing or not graded, 2 a user's
mistake.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluation.math.store import (
    SamplesMissing,
    SampleStore,
    StoreError,
    read_evaluation,
    read_samples,
    without_texts,
)
from evaluation.swe.outcomes import (
    EMPTY_PATCH,
    INFRASTRUCTURE_ERROR,
    MANY_EMPTY_PATCHES,
    OUTCOMES,
    RESOLVED,
)
from evaluation.swe.plan import TASKS, VERIFIED
from evaluation.swe.protocol import TEST_SECONDS
from evaluation.swe.report import PAGE, write_page
from evaluation.swe.tasks import Task, TaskError, load_tasks
from evaluation.swe.versions import HARNESS, VersionError, require
from sao.runlog_files import RunError, write_atomic

GRADING = "grading"  # folder of logs below an evaluation's


class NotGraded(StoreError):
    """Tasks are left whose grading says nothing of their patches."""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Options of `python -m evaluation.swe.grade`."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.swe.grade", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", type=Path, help="an evaluation's folder")
    parser.add_argument("--backend", choices=("docker", "bubblewrap"), default="docker")
    parser.add_argument("--images", type=Path, help="folder of the images, with --backend bubblewrap")
    parser.add_argument("--workers", type=int, default=4, help="tasks graded at once")
    parser.add_argument("--timeout", type=int, default=TEST_SECONDS, help="seconds for a task's tests")
    parser.add_argument("--from-logs", action="store_true", help="read the logs again; starts no container")
    return parser.parse_args(arguments)


def scored(sample: Mapping[str, Any], verdict: Mapping[str, Any], backend: str) -> dict[str, Any]:
    """A sample without texts, with its verdict."""
    graded = {"backend": backend, "outcome": verdict["outcome"], "reasons": verdict["reasons"]}
    right = verdict["outcome"] == RESOLVED
    return (
        without_texts(dict(sample))
        | graded
        | {
            "tests": verdict["tests"],
            "verdict": "right" if right else "wrong",
        }
    )


def grade_folder(options: argparse.Namespace) -> str:
    """Grade and seal; returns what became of the tasks in words.

    Raises NotGraded or SamplesMissing where there is no score, after what could be graded is written.
    """
    from evaluation.swe.grading import Grading, docker_reason, grade, regrade

    folder = options.folder
    spec = read_evaluation(folder).spec
    backend = _logged_backend(folder) if options.from_logs else options.backend
    if options.backend == "docker" and not options.from_logs and (reason := docker_reason()):
        raise StoreError(reason)
    with SampleStore(folder, spec) as store:
        tasks = _tasks(folder, spec)
        samples = {sample["problem_id"]: sample for sample in read_samples(folder)}
        patches = {name: sample["response_text"] for name, sample in samples.items()}
        grading = Grading(
            folder / GRADING,
            spec["policy"]["model"],
            backend,
            options.images or folder / TASKS / "images",
            options.workers,
            options.timeout,
        )
        verdicts = (regrade if options.from_logs else grade)(grading, tasks, patches)
        scores = [scored(samples[name], verdict.fields(), backend) for name, verdict in verdicts.items()]
        lines = [json.dumps(score) + "\n" for score in scores]
        write_atomic(folder / GRADING / "outcomes.jsonl", "".join(lines).encode())
        write_page(folder, spec, samples, scores)
        counts = Counter(score["outcome"] for score in scores)
        if left := counts[INFRASTRUCTURE_ERROR]:
            (folder / "seal.json").unlink(missing_ok=True)
            raise NotGraded(
                f"{folder}: {left} of {len(scores)} tasks met an infrastructure error, so that there is no "
                f"score; {PAGE} says what it was; the same command tries them again"
            )
        store.seal(scores)
    return _in_words(counts, spec, backend)


def _logged_backend(folder: Path) -> str:
    """What the logs were made with."""
    file = folder / GRADING / "outcomes.jsonl"
    try:
        return str(json.loads(file.read_text().splitlines()[0])["backend"])
    except (OSError, ValueError, LookupError) as error:
        raise StoreError(f"{file}: holds no outcome; grade once without --from-logs") from error


def _tasks(folder: Path, spec: dict[str, Any]) -> list[Task]:
    file = folder / TASKS / "tasks.jsonl"
    tasks = load_tasks(file, complete=spec["benchmark"] == VERIFIED)
    if [task.instance_id for task in tasks] != list(spec["samples"]):
        raise StoreError(f"{file}: holds other tasks than spec.json; restore the file")
    return tasks


def _in_words(counts: Mapping[str, int], spec: dict[str, Any], backend: str) -> str:
    total = sum(counts.values())
    text = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts.get(outcome))
    text = f"{spec['row']} seed {spec['seed']} step {spec['step']} {spec['benchmark']}: {text} of {total}"
    text += f"; {100 * counts.get(RESOLVED, 0) / total:.1f}% resolved"
    if backend != "docker":
        text += f" (graded over {backend}, not over the official images)"
    if counts.get(EMPTY_PATCH, 0) > MANY_EMPTY_PATCHES * total:
        text += f"\nwarning: {counts[EMPTY_PATCH]} empty patches; a fault of the run is likely"
    return text


def main(arguments: list[str] | None = None) -> int:
    """Command line; see the module's text for exit codes."""
    options = parse(arguments)
    try:
        require(HARNESS)
        print(grade_folder(options))
    except (NotGraded, SamplesMissing) as error:
        print(error, file=sys.stderr)
        return 1
    except (StoreError, RunError, TaskError, VersionError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
