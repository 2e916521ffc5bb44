"""A Python tool for models: one sandboxed interpreter per trajectory, forked from a warm process.

    with PythonTool(SandboxLimits(seconds_per_call=10)) as tool, tool.open_session() as session:
        session.run("x = 6")
        session.run("x * 7").output  # "42\n"

What is isolated how, and what is not, is in docs/sandbox.md. Linux only; needs numpy and sympy.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
from collections import deque
from dataclasses import asdict, dataclass, fields
from typing import Literal, Self

from evaluation.math.sandbox_command import SandboxError, server_command, server_environment, session_uids
from evaluation.math.sandbox_messages import receive, send

Status = Literal["ok", "error", "timeout", "memory", "output", "killed"]

START_SECONDS = 120  # for the warm process; without compiled bytecode sympy alone takes ten
ANSWER_SECONDS = 30  # beyond a call's own limit, after which its session is given up
CODE_CHARACTERS = OUTPUT_CHARACTERS = 1_000_000
SPARE_SESSIONS = 4  # being prepared while others are in use
ALLOW = (
    "allow unprivileged user namespaces (docs/sandbox.md), or accept plain processes with sandbox "
    '"none", which lets code that a model wrote do all that you can'
)


@dataclass(frozen=True)
class SandboxLimits:
    """Limits of one session; raises ValueError for one that is not positive or too large."""

    seconds_per_call: float = 30.0  # wall clock
    cpu_seconds: float = 30.0  # per call, all processes together
    memory_mb: int = 1024  # per session, beyond the warm interpreter's own
    processes: int = 16  # processes and threads of a session
    output_characters: int = 20_000  # per call; the middle of a longer output is left out
    scratch_mb: int = 64  # the scratch folder, and the largest file

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"{field.name} must be positive, not {getattr(self, field.name)}")
        if self.output_characters > OUTPUT_CHARACTERS:
            raise ValueError(f"output_characters must be {OUTPUT_CHARACTERS} at most")


@dataclass(frozen=True)
class ToolResult:
    """What the model is shown of one call, and how the call ended.

    status: ok; error (the code raised); timeout (wall clock or CPU time); memory; output (it never stopped
    printing); killed (the code ended its interpreter, or had too many processes).
    """

    output: str
    status: Status
    unsandboxed: bool


class Link:
    """The connection to one session's supervisor, process 1 of the session."""

    def __init__(self, scratch: str | None) -> None:
        self.scratch = scratch  # a folder of the host's, for plain processes alone
        self.socket, self.theirs = socket.socketpair()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.handle: int | None = None  # of the supervisor

    def wait(self) -> str | None:
        """Waits until the session can take a call; says what went wrong, or None."""
        self.socket.settimeout(START_SECONDS)
        try:
            process = sender(self.socket)
            answer = receive(self.socket) or {"status": "failed", "output": "no answer"}
            if answer["status"] != "ready":
                return str(answer["output"])
            self.handle = os.pidfd_open(process)
        except OSError as error:
            return str(error)
        return None

    def end(self) -> None:
        """Ends every process of the session. Safe while another thread waits for a call."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        if self.handle is None:
            return
        if self.scratch:  # outside a namespace the supervisor has to end the others itself
            readable(self.handle, 1)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)

    def close(self) -> None:
        """Ends the session and drops its files."""
        self.end()
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None
        self.socket.close()
        self.theirs.close()
        if self.scratch:
            shutil.rmtree(self.scratch, ignore_errors=True)


class PythonTool:
    """Owner of the warm process. Sessions may be opened and used from any thread.

    sandbox: "bubblewrap", or "none" for plain processes, which every result then says. Raises SandboxError
    where the sandbox asked for cannot be had.
    """

    def __init__(self, limits: SandboxLimits | None = None, sandbox: str = "bubblewrap") -> None:
        if sandbox not in ("bubblewrap", "none"):
            raise SandboxError(f'sandbox: unknown value {sandbox!r}; use "bubblewrap" or "none"')
        self.limits = limits or SandboxLimits()
        self.sandbox = sandbox
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._spare: deque[Link] = deque()
        self._closed = False
        self._start()
        try:
            self.open_session().close()  # namespaces within the sandbox may be refused though bubblewrap ran
        except SandboxError:
            self.close()
            raise

    @property
    def unsandboxed(self) -> bool:
        return self.sandbox == "none"

    def open_session(self) -> Session:
        """A new interpreter with an empty namespace and an empty scratch folder."""
        return Session(self)

    def close(self) -> None:
        """Ends the warm process and every session."""
        with self._lock:
            self._closed = True
            self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        first_uid, uids = session_uids()
        with tempfile.TemporaryFile() as log, theirs:
            server = subprocess.Popen(
                server_command(theirs.fileno(), self.sandbox, first_uid, uids),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env=server_environment(),
                start_new_session=True,  # an interrupt at the terminal is ours to handle
            )
            theirs.close()
            control.settimeout(START_SECONDS)
            try:
                ready = control.recv(64)
            except TimeoutError:
                ready = b""
            if ready != b"ready":
                server.kill()
                server.wait()
                control.close()
                log.seek(0)
                lines = log.read().decode(errors="replace").strip().splitlines() or ["no answer"]
                raise SandboxError(f"the {self.sandbox} sandbox does not start: {lines[-1]}; {ALLOW}")
        self._server, self._control = server, control

    def _gone(self, within: float = 0) -> bool:
        """Whether the warm process has ended, or does so within some seconds. It sends nothing by then."""
        return self._control is None or readable(self._control.fileno(), within)

    def _stop(self) -> None:
        while self._spare:
            self._spare.popleft().close()
        if self._control:
            self._control.close()
        if self._server:
            try:
                self._server.wait(5)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
        self._server = self._control = None

    def _link(self) -> Link:
        """A session that can take a call. The next ones are asked for ahead: forks wait on a busy machine."""
        with self._lock:
            if self._closed:
                raise SandboxError("the Python tool is closed")
            if self._gone():
                self._stop()
                self._start()
            while len(self._spare) <= SPARE_SESSIONS:
                self._spare.append(self._ask())
            link = self._spare.popleft()
        if (fault := link.wait()) is not None:
            link.close()
            raise SandboxError(f"no session in the {self.sandbox} sandbox: {fault}; {ALLOW}")
        return link

    def _ask(self) -> Link:
        """Sends the warm process a request for one more session."""
        assert self._control
        try:
            link = Link(tempfile.mkdtemp(prefix="python-tool-") if self.unsandboxed else None)
        except OSError as error:  # two open files a session: many sessions need a higher ulimit -n
            raise SandboxError(f"no session of the Python tool: {error}") from error
        request = json.dumps({"limits": asdict(self.limits), "scratch": link.scratch}).encode()
        try:
            socket.send_fds(self._control, [request], [link.theirs.fileno()])
        except OSError as error:
            link.close()
            raise SandboxError(f"the warm process of the Python tool is gone: {error}") from error
        link.theirs.close()
        return link


class Session:
    """One trajectory's interpreter: variables, imports and files last from call to call."""

    def __init__(self, tool: PythonTool) -> None:
        self._tool = tool
        self._lock = threading.Lock()
        self._closed = False
        self._link: Link | None = tool._link()

    def run(self, code: str) -> ToolResult:
        """Runs `code` and blocks until it ended. Raises SandboxError where the tool, not the code, failed."""
        if len(code) > CODE_CHARACTERS:
            return self._result(f"The code is longer than {CODE_CHARACTERS} characters.", "error")
        with self._lock:
            if self._closed:
                raise SandboxError("the session is closed")
            if self._link is None:
                self._link = self._tool._link()
            self._link.socket.settimeout(self._tool.limits.seconds_per_call + ANSWER_SECONDS)
            try:
                send(self._link.socket, {"code": code})
                answer = receive(self._link.socket)
            except OSError:
                answer = None
            if answer is None:
                self._link.close()
                self._link = None  # the next call finds a new interpreter
                if self._closed or self._tool._gone(within=0.5):
                    raise SandboxError("the session was closed, or the warm process ended, during a call")
                return self._result("The session ended. Variables, imports and files are lost.", "killed")
        return self._result(answer["output"], answer["status"])

    def close(self) -> None:
        """Ends every process of the session and drops its files. A call in progress raises SandboxError."""
        self._closed = True
        link = self._link
        if link:
            link.end()
        with self._lock:
            if self._link:
                self._link.close()
                self._link = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _result(self, output: str, status: Status) -> ToolResult:
        return ToolResult(output, status, self._tool.unsandboxed)


def readable(handle: int, seconds: float) -> bool:
    """Whether a file descriptor can be read, is closed at its other end or here, within some seconds."""
    poller = select.poll()
    poller.register(max(handle, 0), select.POLLIN)
    return handle < 0 or bool(poller.poll(1000 * seconds))


def sender(channel: socket.socket) -> int:
    """Process id, as seen from here, of who sent what is next to read; reads nothing. 0 where unknown."""
    _, ancillary, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(12), socket.MSG_PEEK)
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return int(struct.unpack("3i", data[:12])[0])
    return 0
