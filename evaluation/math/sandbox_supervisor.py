"""Process 1 of a session: starts the interpreter, hands it cells, holds limits, and alone speaks to the host.

The model's code shares a process with the interpreter, so nothing that comes from there is trusted: the
answer to a cell carries no more than a letter, and output is whatever was written to a pipe. Between cells
every process is stopped or ended. Whatever goes wrong here ends the process, and with it the session.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import select
import signal
import socket
import time
from dataclasses import dataclass
from typing import NoReturn

from evaluation.math import sandbox_isolation as isolation
from evaluation.math import sandbox_worker
from evaluation.math.sandbox_cell import Cell, Output, usage
from evaluation.math.sandbox_messages import receive, send

CHECK_SECONDS = 0.05  # between looks at memory, CPU time and processes
GRACE_SECONDS = 2.0  # from an interrupt, which keeps variables, to the kill, which does not


@dataclass
class Worker:
    """A running interpreter, as its supervisor sees it."""

    process: int
    handle: int  # file descriptor that becomes readable when the process ends
    channel: socket.socket
    output: int
    inherited_pages: int
    status: int | None = None  # of waitpid, once ended
    lost: bool = False  # it ended, cannot be heard, or must be killed

    def close(self) -> None:
        self.channel.close()
        os.close(self.handle)
        os.close(self.output)


class Supervisor:
    """Serves one session. `namespaced` says that this is process 1 of a PID namespace of its own."""

    def __init__(self, host: socket.socket, limits: dict[str, int], namespaced: bool) -> None:
        self.host = host
        self.limits = limits
        self.namespaced = namespaced
        self.worker: Worker | None = None
        if namespaced and os.getpid() != 1:
            raise RuntimeError("not the first process of a PID namespace")  # it signals every process it sees

    def start(self) -> None:
        """Starts the first interpreter. Raises OSError where it cannot be confined."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)  # the kernel keeps unhandled signals from process 1
        isolation.hide_from_debuggers()
        self.worker = self.start_worker()

    def serve(self) -> NoReturn:
        send(self.host, {"status": "ready"})
        while (request := receive(self.host)) is not None:
            send(self.host, self.call(request["code"]))
        self.end()

    def end(self) -> NoReturn:
        self.kill()
        os._exit(0)

    # Processes

    def processes(self) -> list[int]:
        if self.namespaced:
            return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]
        return [self.worker.process] if self.worker else []

    def signal_all(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.namespaced:
                os.kill(-1, number)
            elif self.worker:
                os.killpg(self.worker.process, number)

    def reap(self) -> None:
        """Collects ended processes, orphans of the session among them."""
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if self.worker and ended[0] == self.worker.process:
                    self.worker.status = ended[1]
        except ChildProcessError:
            pass

    def kill(self) -> None:
        """Ends every process of the session but this one."""
        self.signal_all(signal.SIGKILL)
        try:
            while True:
                ended = os.waitpid(-1, 0)
                if self.worker and ended[0] == self.worker.process:
                    self.worker.status = self.worker.status or ended[1]
        except ChildProcessError:
            pass

    def kill_leftovers(self) -> None:
        """Ends what a cell started and left behind. All are stopped by now, so none can start another."""
        assert self.worker
        for process in self.processes():
            if process != self.worker.process:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        self.reap()

    def start_worker(self) -> Worker:
        channel, theirs = socket.socketpair()
        output, their_output = os.pipe()
        process = os.fork()
        if process == 0:
            try:
                self.become_worker(theirs, their_output)
            finally:
                os._exit(1)
        theirs.close()
        os.close(their_output)
        if (started := channel.recv(4096)) != b"ready":
            raise OSError(errno.EPERM, started.decode() or "no interpreter")
        channel.setblocking(False)
        os.set_blocking(output, False)
        with open(f"/proc/{process}/statm") as file:
            inherited = int(file.read().split()[1])
        return Worker(process, os.pidfd_open(process), channel, output, inherited)

    def become_worker(self, channel: socket.socket, output: int) -> NoReturn:
        try:
            self.confine()
        except OSError as error:
            channel.sendall(str(error).encode())
            os._exit(1)
        channel.sendall(b"ready")
        keep = sorted((channel.fileno(), output))
        for low, high in itertools.pairwise([2, *keep, 1 << 20]):
            os.closerange(low + 1, high)
        sandbox_worker.serve(channel, output)

    def confine(self) -> None:
        if not self.namespaced:
            os.setpgid(0, 0)
        isolation.show_to_itself()
        isolation.die_with_parent()
        processes = self.limits["processes"] if self.namespaced else None
        isolation.limit_resources(self.limits["memory_mb"], processes, self.limits["scratch_mb"])
        if self.namespaced:
            isolation.drop_privileges()

    # Cells

    def call(self, code: str) -> dict[str, str]:
        """Runs one cell and says how it ended, with the output cut to the limit."""
        worker = self.worker = self.worker or self.start_worker()
        self.reap()
        self.read_output(worker, None)  # threads may have written after the last answer
        before = usage([worker.process], worker.inherited_pages)
        cell = Cell(code, self.limits, before.cpu_seconds)
        self.signal_all(signal.SIGCONT)
        self.watch(worker, cell)
        self.signal_all(signal.SIGSTOP)
        self.read_output(worker, cell.output)
        if cell.ending is not None:
            self.kill_leftovers()
            return cell.report(None)
        self.kill()
        worker.close()
        self.worker = None
        return cell.report(os.waitstatus_to_exitcode(worker.status or 0))

    def watch(self, worker: Worker, cell: Cell) -> None:
        """Returns when the cell has ended, or when the interpreter has or must be killed."""
        poller = select.poll()
        poller.register(self.host, select.POLLIN)
        poller.register(worker.handle, select.POLLIN)
        poller.register(worker.output, select.POLLIN)
        poller.register(worker.channel, select.POLLIN | select.POLLOUT)
        next_check = time.monotonic() + CHECK_SECONDS
        while cell.ending is None:
            for source, event in poller.poll(1000 * CHECK_SECONDS):
                if source == worker.channel.fileno():
                    exchange(worker, cell, poller, event)
                elif source == worker.output:
                    self.read_output(worker, cell.output)
                elif source == worker.handle:
                    worker.lost = True
                elif not self.host.recv(1, socket.MSG_PEEK):
                    self.end()
            now = time.monotonic()
            if now > next_check:
                self.check(worker, cell, now)
                next_check = now + CHECK_SECONDS
            if worker.lost:
                return

    def check(self, worker: Worker, cell: Cell, now: float) -> None:
        """Holds the limits: interrupts the cell, or gives up the interpreter."""
        self.reap()
        excess = cell.excess(usage(self.processes(), worker.inherited_pages), now)
        if excess is None or worker.status is not None:
            return
        if cell.stop is None:
            cell.stop = excess
            cell.deadline = now + GRACE_SECONDS
            os.kill(worker.process, signal.SIGINT)
            worker.lost = not excess.gently
        else:
            worker.lost = now > cell.deadline or not excess.gently

    def read_output(self, worker: Worker, output: Output | None) -> None:
        """Moves what is in the pipe to `output`, or drops it."""
        for _ in range(16):  # a pipe's worth; an endless writer must not keep the supervisor here
            try:
                data = os.read(worker.output, 65536)
            except BlockingIOError:
                return
            if not data:
                return
            if output:
                output.add(data)


def exchange(worker: Worker, cell: Cell, poller: select.poll, event: int) -> None:
    """Sends what is left of the request and reads the answer. A worker that closed the channel is lost."""
    try:
        if event & select.POLLOUT and cell.request:
            cell.request = cell.request[worker.channel.send(cell.request) :]
            if not cell.request:
                poller.modify(worker.channel, select.POLLIN)
        if event & ~select.POLLOUT:
            data = worker.channel.recv(4096)
            cell.read_answer(data)
            if not data:
                worker.lost = True
    except BlockingIOError:
        pass
    except OSError:
        worker.lost = True
