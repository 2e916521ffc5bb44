"""Grades patches with the official harness, `swebench.harness.run_evaluation`, as it is.

The harness writes below the working folder, so one process grades one evaluation at a time. Its results are
kept by the name of a run, which here holds a digest of the patches: other patches are never given old
verdicts.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from swebench.harness import run_evaluation
from swebench.harness.constants import LOG_REPORT, LOG_TEST_OUTPUT, RUN_EVALUATION_LOG_DIR
from swebench.harness.reporting import make_run_report

from evaluation.swe.bubblewrap_backend import BubblewrapClient
from evaluation.swe.control import controlled, runner_fails_it
from evaluation.swe.outcomes import INFRASTRUCTURE_ERROR, RESOLVED, SUSPECT
from evaluation.swe.tasks import Task, write_tasks
from evaluation.swe.verdicts import Verdict, settled, verdict_of
from sao.runlog_files import write_atomic
from sao.temporary_folder import delete

BACKENDS = ("docker", "bubblewrap")
CONTROL = "control"  # folder of the logs of controls, below that of the logs
OPEN_FILES = 4096
ROUNDS = 2  # tasks with an infrastructure error are tried once more


@dataclass(frozen=True)
class Grading:
    """How to grade: `folder` takes the logs; `images` holds the tasks' files for backend bubblewrap.

    In `training` no words in a log make an attempt one that is sampled again. With `control`, tasks that are
    resolved are run again with a test that has to fail.
    """

    folder: Path
    model: str
    backend: str = "docker"
    images: Path = Path("images")
    workers: int = 4
    timeout: int = 1800
    training: bool = False
    control: bool = True

    def run_id(self, patches: Mapping[str, str]) -> str:
        """Name of the harness's run: other patches, another backend or time limit have another name."""
        content = json.dumps([self.backend, self.timeout, sorted(patches.items())])
        return f"{self.backend}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"

    def logs(self, patches: Mapping[str, str], instance: str) -> Path:
        """Folder of the harness's logs of one task."""
        run = RUN_EVALUATION_LOG_DIR / self.run_id(patches) / self.model.replace("/", "__")
        return self.folder / run / instance


def grade(grading: Grading, tasks: Sequence[Task], patches: Mapping[str, str]) -> dict[str, Verdict]:
    """Verdicts by task of all patches; what has logs of the same run is read from there.

    Tasks with an infrastructure error are run again; those left with one keep it.
    """
    known = [task for task in tasks if task.instance_id in patches]
    verdicts = read_verdicts(grading, known, patches)
    for _ in range(ROUNDS):
        due = [task for task in known if verdicts[task.instance_id].outcome == INFRASTRUCTURE_ERROR]
        if not due:
            break
        for task in due:
            _forget(grading.logs(patches, task.instance_id))
        _run_harness(grading, known, patches, due)
        verdicts |= read_verdicts(grading, due, patches)
    verdicts = _settled(grading, known, patches, verdicts)
    return _controlled(grading, known, patches, verdicts, grade) if grading.control else verdicts


def regrade(grading: Grading, tasks: Sequence[Task], patches: Mapping[str, str]) -> dict[str, Verdict]:
    """Verdicts from the logs that are there, parsed again by the harness; starts no container."""
    known = [task for task in tasks if task.instance_id in patches]
    logged = [task for task in known if (grading.logs(patches, task.instance_id) / LOG_TEST_OUTPUT).exists()]
    if logged:
        _run_harness(grading, known, patches, logged, from_logs=True)
    verdicts = _settled(grading, known, patches, read_verdicts(grading, known, patches))
    return _controlled(grading, known, patches, verdicts, regrade) if grading.control else verdicts


def _controlled(
    grading: Grading,
    tasks: Sequence[Task],
    patches: Mapping[str, str],
    verdicts: Mapping[str, Verdict],
    run: Callable[[Grading, Sequence[Task], Mapping[str, str]], dict[str, Verdict]],
) -> dict[str, Verdict]:
    """Verdicts after a control of the runner; by `regrade`, where the logs have one.

    A task whose runner does not fail the test with the reference patch either tells nothing.
    """
    resolved = {task.instance_id: task for task in tasks if verdicts[task.instance_id].outcome == RESOLVED}
    passing = _passing_controls(grading, resolved, patches, run)
    references = {name: str(resolved[name].row["patch"]) for name in passing}
    usable = {name: patch for name, patch in references.items() if patch not in ("", patches[name])}
    unusable = _passing_controls(grading, {name: resolved[name] for name in usable}, usable, run)
    return {
        name: passing[name] if name in passing and name not in unusable else verdict
        for name, verdict in verdicts.items()
    }


def _passing_controls(
    grading: Grading,
    tasks: Mapping[str, Task],
    patches: Mapping[str, str],
    run: Callable[[Grading, Sequence[Task], Mapping[str, str]], dict[str, Verdict]],
) -> dict[str, Verdict]:
    """Verdicts on the tasks whose control is not seen to fail: suspect, or not run to an end."""
    apart = replace(grading, folder=grading.folder / CONTROL, control=False)
    chosen = {name: patches[name] for name in tasks}
    controls = [control for name, task in tasks.items() if (control := controlled(task, chosen[name]))]
    if run is regrade:
        controls = [
            task for task in controls if (apart.logs(chosen, task.instance_id) / LOG_TEST_OUTPUT).exists()
        ]
    if not controls:
        return {}
    found = {}
    for name, verdict in run(apart, controls, chosen).items():
        file = apart.logs(chosen, name) / LOG_TEST_OUTPUT
        log = file.read_text(errors="replace") if file.exists() else ""
        if verdict.outcome == INFRASTRUCTURE_ERROR:
            found[name] = Verdict(INFRASTRUCTURE_ERROR, [f"control: {reason}" for reason in verdict.reasons])
        elif not runner_fails_it(tasks[name], chosen[name], log):
            found[name] = Verdict(
                SUSPECT, ["a test that cannot pass is not reported as failed"], verdict.tests
            )
    return found


def read_verdicts(grading: Grading, tasks: Sequence[Task], patches: Mapping[str, str]) -> dict[str, Verdict]:
    """Verdicts as the logs stand."""
    return {
        task.instance_id: verdict_of(task, patches[task.instance_id], grading.logs(patches, task.instance_id))
        for task in tasks
    }


def _forget(logs: Path) -> None:
    """Delete a task's report and output: the harness skips what has a report, also one of a failure."""
    for name in (LOG_REPORT, LOG_TEST_OUTPUT):
        (logs / name).unlink(missing_ok=True)


def _settled(
    grading: Grading, tasks: Sequence[Task], patches: Mapping[str, str], verdicts: Mapping[str, Verdict]
) -> dict[str, Verdict]:
    names = {task.instance_id: task for task in tasks}
    return {
        name: settled(verdict, names[name], grading.logs(patches, name), grading.training)
        for name, verdict in verdicts.items()
    }


def _run_harness(
    grading: Grading,
    tasks: Sequence[Task],
    patches: Mapping[str, str],
    due: Sequence[Task],
    from_logs: bool = False,
) -> None:
    grading.folder.mkdir(parents=True, exist_ok=True)
    write_tasks(grading.folder / "tasks.jsonl", tasks)
    predictions = {
        name: {"instance_id": name, "model_patch": patch, "model_name_or_path": grading.model}
        for name, patch in patches.items()
    }
    lines = [json.dumps(prediction) + "\n" for prediction in predictions.values()]
    write_atomic(grading.folder / "predictions.jsonl", "".join(lines).encode())
    run_id = grading.run_id(patches)
    with contextlib.chdir(grading.folder), _backend(grading, from_logs):
        run_evaluation.main(
            dataset_name="tasks.jsonl",
            split="test",
            instance_ids=[task.instance_id for task in due],
            predictions_path="predictions.jsonl",
            max_workers=grading.workers,
            open_file_limit=OPEN_FILES,
            run_id=run_id,
            timeout=grading.timeout,
            rewrite_reports=from_logs,
            modal=False,
        )
        make_run_report(predictions, [task.row for task in tasks], run_id)


@contextlib.contextmanager
def _backend(grading: Grading, from_logs: bool) -> Iterator[None]:
    """Docker as it is; or bubblewrap in place of docker's client for the time of a run."""
    if grading.backend == "docker" and not from_logs:
        yield
        return
    containers = grading.folder / "containers"
    delete(containers)  # of a run that was killed
    client = BubblewrapClient(grading.images.absolute(), containers.absolute())
    original: dict[str, Any] = {
        name: getattr(run_evaluation, name) for name in ("_docker_client", "cleanup_container")
    }
    try:
        run_evaluation._docker_client = lambda: client
        run_evaluation.cleanup_container = _cleanup
        yield
    finally:
        for name, value in original.items():
            setattr(run_evaluation, name, value)
        client.close()
        delete(containers)


def _cleanup(client: BubblewrapClient, container: Any, logger: Any) -> None:
    if container:
        container.remove()


def docker_reason() -> str:
    """Why Docker cannot be used here; empty where it can."""
    import docker

    try:
        docker.from_env().ping()
    except docker.errors.DockerException as error:
        return (
            f"Docker cannot be used ({error}); start it, or give --backend bubblewrap, marked in the results"
        )
    return ""


__all__ = ["BACKENDS", "Grading", "docker_reason", "grade", "read_verdicts", "regrade"]
