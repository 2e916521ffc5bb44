"""The scaffold of training: OpenHands and the harness in worker processes of their own Python environment.

Importing OpenHands takes ten seconds, and two releases of its packages cannot share an environment with an
engine, so workers live on from task to task and are spoken to in lines of JSON. A worker runs one task at a
time, below a folder of its own. One that gives no answer in time is killed with all that it started, and
another takes its place. A watching process does the same for all of them when this program is gone.
"""

import json
import os
import queue
import select
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from evaluation.swe.outcomes import INFRASTRUCTURE_ERROR, RESOLVED
from evaluation.swe.protocol import MAX_TURNS, TEST_SECONDS, WALL_SECONDS
from sao.environments.base import EnvironmentFailure
from sao.environments.swe import Attempt, ModelAddress, Row
from sao.temporary_folder import TemporaryFolder, delete

WORKER = "evaluation.swe.training_worker"
ROOT = Path(__file__).parents[2]
START_SECONDS = 600  # for a worker's imports on a busy machine
TEST_RUNS = 3  # of an attempt's patch: its tests, their control, and that of the reference patch
GRACE_SECONDS = 300  # for what a worker does beside the agent's time and the tests': start, stop, diff


class WorkerError(Exception):
    """The workers cannot be started; the message is the worker's own."""


@dataclass(frozen=True)
class ScaffoldSettings:
    """`python` is the interpreter of the environment that holds OpenHands and the harness.

    `max_turns` counts answers of the model, `wall_seconds` and `test_seconds` limit the agent's work on a
    task and the run of its tests. `workspace`, `images`, `image` and `server` are those of
    `evaluation.swe.workspaces`, `backend` that of `evaluation.swe.grading`.
    """

    python: Path
    max_turns: int = MAX_TURNS
    wall_seconds: int = WALL_SECONDS
    test_seconds: int = TEST_SECONDS
    workspace: str = "docker"
    backend: str = "docker"
    images: Path | None = None
    image: str = ""
    server: str = ""


class OpenHandsScaffold:
    """`workers` attempts at once; open with `with`. Attempts beyond that wait for a worker."""

    def __init__(self, settings: ScaffoldSettings, workers: int, folder: Path | None = None) -> None:
        self.settings, self.count = settings, workers
        self._idle: queue.Queue[Worker] = queue.Queue()
        self._all: list[Worker] = []
        self._lock = threading.Lock()
        self._closed = False
        self._temporary = TemporaryFolder("swe-training-", folder)
        self.folder = self._temporary.path

    def __enter__(self) -> Self:
        try:
            self._all = [self._start(self.folder / str(place)) for place in range(self.count)]
            for worker in self._all:
                worker.wait_until_ready()
                self._idle.put(worker)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all workers, whatever they do, and delete what they left."""
        with self._lock:
            self._closed = True
            for worker in self._all:
                worker.kill()
        self._temporary.close()

    def attempt(self, row: Row, address: ModelAddress) -> Attempt:
        """Run and grade one task in an idle worker."""
        with self._worker() as worker:
            answer = worker.ask({"row": row, "address": asdict(address)})
        if reason := answer.get("failure"):
            raise EnvironmentFailure(str(reason))
        if answer["outcome"] == INFRASTRUCTURE_ERROR:
            raise EnvironmentFailure(f"grading failed: {'; '.join(answer['reasons'])}")
        return Attempt(
            ending=answer["ending"],
            outcome=answer["outcome"],
            resolved=answer["outcome"] == RESOLVED,
            turns=answer["turns"],
            seconds=answer["seconds"],
        )

    def _start(self, folder: Path) -> "Worker":
        """Start a worker and have it watched."""
        worker = Worker(self.settings, folder)
        self._temporary.watch(worker.group)
        return worker

    @contextmanager
    def _worker(self) -> Iterator["Worker"]:
        worker = self._idle.get()
        try:
            if not worker.running:
                worker = self._replaced(worker)
            yield worker
        finally:
            self._idle.put(worker)

    def _replaced(self, worker: "Worker") -> "Worker":
        with self._lock:
            if self._closed:
                raise EnvironmentFailure("the scaffold is closed")
            fresh = self._start(worker.folder)
            self._all[self._all.index(worker)] = fresh
        fresh.wait_until_ready()
        return fresh


class Worker:
    """A process of the other environment, in a session of its own, and the folder that it may fill."""

    def __init__(self, settings: ScaffoldSettings, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._log = (folder.parent / f"{folder.name}.log").open("wb")
        told = {name: str(value) for name, value in asdict(settings).items() if value is not None}
        self._process = subprocess.Popen(
            [str(settings.python), "-m", WORKER, json.dumps(told | {"folder": str(folder)})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )

    @property
    def group(self) -> int:
        """The process group of the worker and of what it starts in its session."""
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait_until_ready(self) -> None:
        """Wait for the worker's imports; WorkerError where it does not come up."""
        try:
            self._answer(START_SECONDS)
        except EnvironmentFailure as failure:
            raise WorkerError(f"{self.settings.python}: the worker does not start: {failure}") from failure

    def ask(self, task: dict[str, Any]) -> dict[str, Any]:
        """The worker's answer; EnvironmentFailure where it ends or hangs, and then it is dead."""
        assert self._process.stdin
        limit = self.settings.wall_seconds + TEST_RUNS * self.settings.test_seconds + GRACE_SECONDS
        try:
            self._process.stdin.write(json.dumps(task, default=str).encode() + b"\n")
            self._process.stdin.flush()
            return self._answer(limit)
        except (OSError, ValueError, EnvironmentFailure) as error:
            self.kill()
            raise EnvironmentFailure(f"the worker was ended: {error}") from error

    def _answer(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout
        readable, _, _ = select.select([self._process.stdout], [], [], seconds)
        if not readable:
            raise EnvironmentFailure(f"no answer within {seconds:g} s")
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise EnvironmentFailure(self._last_words())
        return json.loads(line)

    def _last_words(self) -> str:
        lines = Path(self._log.name).read_text(errors="replace").strip().splitlines() or ["no message"]
        return lines[-1][:300]

    def kill(self) -> None:
        """End the worker and all of its session; its sandboxes end with it. Deletes its folder."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            pipe.close()
        self._log.close()
        delete(self.folder)
