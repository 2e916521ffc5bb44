"""What the tests of the Python tool share: a small tool, and the host's view of a session's processes."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evaluation.math.sandbox import PythonTool, SandboxLimits, Session

LIMITS = SandboxLimits(
    seconds_per_call=60, cpu_seconds=0.3, memory_mb=64, processes=12, output_characters=2000, scratch_mb=8
)
MISSING = "bubblewrap is not installed: apt-get install bubblewrap"
needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason=MISSING)


@contextlib.contextmanager
def open_tool(limits: SandboxLimits = LIMITS) -> Iterator[PythonTool]:
    """A tool in bubblewrap, or a skipped test where that is not installed."""
    if shutil.which("bwrap") is None:
        pytest.skip(MISSING)
    with PythonTool(limits) as tool:
        yield tool


def processes_of(session: Session) -> list[int]:
    """The host's ids of a session's processes, its supervisor first."""
    assert session._link and session._link.handle is not None
    lines = Path(f"/proc/self/fdinfo/{session._link.handle}").read_text().splitlines()
    found = [int(line.split()[1]) for line in lines if line.startswith("Pid:")]
    for process in found:  # grows meanwhile
        found += children_of(process)
    return found


def server_of(tool: PythonTool) -> list[int]:
    """The host's ids of the process that the tool started and of bubblewrap's first process inside."""
    assert tool._server
    return [tool._server.pid, *children_of(tool._server.pid)]


def children_of(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def state_of(process: int) -> str:
    """The letter of the kernel's process states; Z also for a process that is no more."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def all_gone(processes: list[int]) -> bool:
    return all(state_of(process) == "Z" for process in processes)


def eventually(condition: Callable[[], bool], seconds: float = 10) -> bool:
    """Whether `condition` comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()
