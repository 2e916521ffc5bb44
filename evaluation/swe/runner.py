"""Command that lets a model work on the tasks of SWE-Bench through OpenHands, a conversation for each task.

    python -m evaluation.swe.runner --row sao_swe --scale paper_swe --step 400 --model sao_swe \\
        --endpoint http://node7:8000/v1 \\
        --image ghcr.io/openhands/eval-agent-server:TAG-{instance}-source-minimal
    python -m evaluation.swe.runner --row trial --scale swe_tiny --benchmark swe_tiny --workspace local \\
        --endpoint http://127.0.0.1:8000/v1 --model NAME

Every task is kept as soon as it is done; a stopped run goes on where it was when the same command is given
again, tasks under way from their start. `python -m evaluation.swe.grade FOLDER` grades the patches. Exit
codes: 0 all tasks are played, 1 some are missing, 2 a user's mistake, 130 interrupted.
"""

import asyncio
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import Any

from evaluation.endpoint import Endpoint, EndpointError, EndpointFailure
from evaluation.math.store import SampleStore, StoreError
from evaluation.swe.plan import Plan, PlanError, key_of, parse
from evaluation.swe.tasks import Task
from evaluation.swe.versions import AGENT, VersionError, require
from sao.environments.base import EnvironmentFailure
from sao.runlog_files import RunError, write_atomic
from sao.temporary_folder import delete

ATTEMPTS = 3  # at a task, where something breaks that says nothing about the model
PAUSE_SECONDS = 5.0  # before the second; twice as long before the third
FAILURES_IN_A_ROW = 8  # tasks that all attempts failed, after which something is broken
WORK = "work"  # folder of what is under way; nothing in it is needed later


class Runner:
    """Plays the tasks that a store lacks, `concurrency` at a time."""

    def __init__(self, plan: Plan, store: SampleStore) -> None:
        from evaluation.swe.conversation import Limits, Model
        from evaluation.swe.workspaces import WorkspaceOptions

        options = plan.options
        self.store, self.spec = store, plan.spec
        self.tasks = {task.instance_id: task for task in plan.tasks}
        self.concurrency = options.concurrency
        self.workspace = WorkspaceOptions(
            options.workspace,
            plan.folder / WORK,
            plan.images,
            options.image,
            options.server,
            key_of(options.server_key_variable),
            options.endpoint,
        )
        self.model = Model(
            options.endpoint,
            options.model or options.row,
            key_of(options.key_variable, "none"),
            options.timeout,
            keep_reasoning=plan.spec["protocol"]["keep_reasoning"],
        )
        self.limits = Limits(options.max_turns, options.wall_seconds)
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.failures_in_a_row = 0

    def run(self) -> None:
        """Play all that is missing; EndpointFailure where nothing works any more."""
        waiting = iter(self.store.missing)
        workers = min(self.concurrency, len(self.store.missing))
        with ThreadPoolExecutor(workers, "task") as executor:
            futures = [executor.submit(self._work, waiting) for _ in range(workers)]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                self.stop.set()
        for future in futures:
            future.result()

    def _work(self, waiting: Iterator[tuple[str, int]]) -> None:
        while not self.stop.is_set():
            with self.lock:
                key = next(waiting, None)
            if key is None:
                return
            self._task(self.tasks[key[0]])

    def _task(self, task: Task) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._play(task)
            except EnvironmentFailure as error:
                if self.stop.is_set():
                    return
                with self.lock:
                    self.store.append_error((task.instance_id, 0), attempt, str(error))
                self._report(f"{task.instance_id}: attempt {attempt} failed: {error}")
                if attempt == ATTEMPTS:
                    self._give_up(error)
                elif self.stop.wait(PAUSE_SECONDS * 2 ** (attempt - 1)):
                    return
            else:
                return

    def _play(self, task: Task) -> None:
        from evaluation.swe.conversation import play
        from evaluation.swe.records import append_output, output_line, sample_record
        from evaluation.swe.workspaces import open_workspace

        started, clock = time.time(), time.monotonic()
        workspace = open_workspace(self.workspace, task, self.stop)
        try:
            played = play(task, workspace, self.model, self.limits, self.stop)
        finally:
            workspace.close()
        sample = sample_record(task, self.spec, played, time.monotonic() - clock)
        with self.lock:
            append_output(self.store.path, output_line(task, self.spec, played, started))
            self.store.append(sample)
            self.failures_in_a_row = 0
        files = ", ".join(played.handed_in.dropped)
        left_out = f"; left out of the patch: {files}" if files else ""
        self._report(f"{task.instance_id}: {played.ending} after {played.turns} turns{left_out}")

    def _report(self, text: str) -> None:
        print(f"{len(self.store.done)}/{len(self.store.due)} tasks  {text}", flush=True)

    def _give_up(self, error: Exception) -> None:
        with self.lock:
            self.failures_in_a_row += 1
            if self.failures_in_a_row >= FAILURES_IN_A_ROW:
                raise EndpointFailure(
                    f"{FAILURES_IN_A_ROW} tasks in a row failed, the last with: {error}; "
                    "the same command goes on"
                )


def write_predictions(store: SampleStore) -> None:
    """predictions.jsonl in the harness's form, by task as in the data; written once all tasks are played."""
    import json

    from evaluation.math.store import read_samples

    patches = {sample["problem_id"]: sample["response_text"] for sample in read_samples(store.path)}
    model = store.spec["policy"]["model"]
    lines = [
        json.dumps({"instance_id": name, "model_patch": patches[name], "model_name_or_path": model}) + "\n"
        for name, _ in store.due
    ]
    write_atomic(store.path / "predictions.jsonl", "".join(lines).encode())


def main(arguments: list[str] | None = None) -> int:
    """Command line; see the module's text for exit codes."""
    options = parse(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    try:
        require(AGENT)
        with ExitStack() as stack:
            plan = Plan.of(options)
            store = stack.enter_context(SampleStore(plan.folder, plan.spec))
            if store.missing:
                stack.enter_context(store.attempt(f"python -m evaluation.swe.runner {shlex.join(words)}"))
                _run(plan, store)
            if store.missing:
                raise EndpointFailure(
                    f"{plan.folder}: {len(store.missing)} of {len(store.due)} tasks are missing; "
                    "errors.jsonl says why; the same command tries them again"
                )
            write_predictions(store)
            print(f"{plan.folder}: all tasks are played; grade them with python -m evaluation.swe.grade")
    except EndpointFailure as error:
        print(error, file=sys.stderr)
        return 1
    except (PlanError, EndpointError, StoreError, RunError, VersionError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130
    return 0


def _run(plan: Plan, store: SampleStore) -> None:
    from evaluation.swe.records import cut_output
    from evaluation.swe.workspaces import WorkspaceError, check

    plan.write_tasks()
    work = plan.folder / WORK
    delete(work)  # of a runner that was killed
    work.mkdir()
    cut_output(plan.folder, store.done)
    asyncio.run(_check_endpoint(plan))
    try:
        runner = Runner(plan, store)
        check(runner.workspace)
        runner.run()
    except WorkspaceError as error:
        raise PlanError(str(error)) from error
    finally:
        delete(work)


async def _check_endpoint(plan: Plan) -> None:
    options = plan.options
    key = key_of(options.key_variable, "none")
    async with Endpoint(options.endpoint, options.model or options.row, key) as endpoint:
        await endpoint.check(options.max_tokens)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(main())
