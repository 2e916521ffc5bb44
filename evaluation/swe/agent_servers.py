"""Starts agent servers inside sandboxes, in a moment each: they are forked from one process."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluation.swe.sandbox import MEMORY_BYTES, PROCESSES, Sandbox

ROOT = Path(__file__).parents[2]
MESSAGE_BYTES = 1 << 16
MODEL_PORT = 1023  # the model's inside: the last one that no process inside can take for itself


class ServerParent:
    """The process that agent servers of kind local are forked from; ends with this one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "evaluation.swe.server_parent", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                cwd=ROOT,
            )
        self._answer()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def start(
        self, sandbox: Sandbox, inside: int, variables: Mapping[str, str], directory: str, log: Path
    ) -> tuple[int, socket.socket]:
        """Start a server in an open sandbox, of which `inside` is a process.

        Returns the port at which it is reached from here, and a socket that listens inside at MODEL_PORT.
        Raises RuntimeError where that fails.
        """
        wanted = {
            "process": inside,
            "user": sandbox.user.outside,
            "environment": dict(variables),
            "directory": directory,
            "log": str(log.absolute()),
            "model_port": MODEL_PORT,
            "memory_bytes": MEMORY_BYTES,
            "processes": PROCESSES,
        }
        with self._lock:
            self._channel.sendall(json.dumps(wanted).encode())
            answer, files = self._answer()
        if reason := answer.get("error"):
            raise RuntimeError(f"{reason}: {log.read_text(errors='replace')[-500:]}")
        return int(answer["port"]), socket.socket(fileno=files[0])

    def _answer(self) -> tuple[dict[str, Any], list[int]]:
        message, files, _, _ = socket.recv_fds(self._channel, MESSAGE_BYTES, 1)
        if not message:
            raise RuntimeError("the parent of the agent servers ended")
        return json.loads(message), files


_parents: list[ServerParent] = []
_parents_lock = threading.Lock()


def server_parent() -> ServerParent:
    """The one parent of this process's agent servers."""
    with _parents_lock:
        if not _parents or not _parents[-1].running:
            _parents.append(ServerParent())
        return _parents[-1]
