"""Worker processes that can be killed: a task that hangs, even in C code, costs its worker and nothing else.

Each worker is long-lived and driven by one thread of the caller, which waits a limited time for the result,
kills the process when it does not come, and starts another. Tasks may be handed in from any thread.
"""

import multiprocessing
import os
import queue
import resource
import signal
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Generic, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

LIMIT_SECONDS = 10.0
START_SECONDS = 180.0  # imports on a busy machine
MEMORY_BYTES = 4 << 30  # address space of one worker
GRACE_SECONDS = 5.0  # after which a worker ends itself, should its parent be gone


class WorkerFailure(Exception):
    """A task has no result: "timeout", or the way its worker died."""


class StartFailure(RuntimeError):
    """No worker can be started, which says nothing about any task."""


class GradingPool(Generic[Task, Result]):
    """Runs `function(task)` in `workers` processes, at most `limit_seconds` of wall time each.

    `function` is a module-level function; its module is loaded before the workers fork, so that a killed
    one is replaced within milliseconds. Futures fail with `WorkerFailure`, or with `StartFailure` where there
    is no worker to be had. Use it as a context manager.
    """

    def __init__(
        self,
        function: Callable[[Task], Result],
        workers: int | None = None,
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        self.function = function
        self.limit_seconds = limit_seconds
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([function.__module__])
        self._tasks: queue.SimpleQueue[tuple[Task, Future[Result]] | None] = queue.SimpleQueue()
        count = workers or len(os.sched_getaffinity(0))
        self._threads = [threading.Thread(target=self._drive, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, task: Task) -> "Future[Result]":
        """Queue one task."""
        future: Future[Result] = Future()
        self._tasks.put((task, future))
        return future

    def map(self, tasks: Iterable[Task]) -> "list[Future[Result]]":
        """Queue many tasks; the futures come in their order."""
        return [self.submit(task) for task in tasks]

    def close(self) -> None:
        """Finish what is queued, then end the workers."""
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> "GradingPool[Task, Result]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _drive(self) -> None:
        """One thread's work: a worker process, and the tasks that it gets."""
        worker: _Worker | None = None
        while (entry := self._tasks.get()) is not None:
            task, future = entry
            if not future.set_running_or_notify_cancel():
                continue
            try:
                worker = worker or _Worker(self._context, self.function, self.limit_seconds)
                future.set_result(worker.run(task))
            except WorkerFailure as failure:
                if worker is not None:
                    worker.kill()
                worker = None
                future.set_exception(failure)
            except Exception as problem:  # raised by the function itself
                future.set_exception(problem)
        if worker is not None:
            worker.kill()


class _Worker:
    """One process with its end of the pipe."""

    def __init__(self, context: Any, function: Callable[[Any], Any], limit_seconds: float) -> None:
        self.limit_seconds = limit_seconds
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, function, limit_seconds), daemon=True)
        self.process.start()
        theirs.close()
        try:
            if not self.pipe.poll(START_SECONDS):
                raise WorkerFailure(f"not ready in {START_SECONDS:.0f} s")
            self._receive()
        except WorkerFailure as failure:
            self.kill()
            raise StartFailure(
                f"the processes that grade do not start: {failure}; a script of your own that grades needs "
                'the line `if __name__ == "__main__":` around its work'
            ) from None

    def run(self, task: Any) -> Any:
        """The function's result. Raises WorkerFailure, or what the function raised."""
        self.pipe.send(task)
        if not self.pipe.poll(self.limit_seconds):
            raise WorkerFailure(f"timeout: no result within {self.limit_seconds:g} s")
        succeeded, value = self._receive()
        if not succeeded:
            raise value
        return value

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.join()
        self.pipe.close()

    def _receive(self) -> Any:
        try:
            return self.pipe.recv()
        except EOFError:
            self.process.join(1)
            raise WorkerFailure(f"the worker died (exit code {self.process.exitcode})") from None


def _serve(pipe: Connection, function: Callable[[Any], Any], limit_seconds: float) -> None:
    """A worker's life: tasks in, results out, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, also inside C code
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = [limit for limit in (MEMORY_BYTES, soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    pipe.send("ready")
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_REAL, limit_seconds + GRACE_SECONDS)
        try:
            answer = (True, function(task))
        except Exception as problem:
            answer = (False, problem)
        signal.setitimer(signal.ITIMER_REAL, 0)
        pipe.send(answer)
