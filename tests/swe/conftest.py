"""What the tests of SWE-Bench share. Releases are checked before any of them is imported."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from evaluation.swe.sandbox import MARK
from evaluation.swe.versions import AGENT, HARNESS, require

require(AGENT | HARNESS)
sys.path.append(str(Path(__file__).parents[1]))  # programs that the main environment's tests run too
os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that run in a sandbox below a folder."""
    mark = f"{MARK}={folder}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(variable.startswith(mark) for variable in (process / "environ").read_bytes().split(b"\0")):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # ended meanwhile
            continue
    return found


def eventually(condition: Callable[[], bool], seconds: float = 10) -> bool:
    """Whether the condition comes true in time: the kernel ends a namespace's processes one by one."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return condition()
