"""Process that has OpenHands' agent server imported, and starts one in a sandbox in a moment.

    python -m evaluation.swe.server_parent FILE_DESCRIPTOR

The import takes ten seconds of processor time, and each task has a server of its own. Each message on the
socket, a JSON object, asks for a server: {"process": id of a process in the sandbox, "user": id on this
machine or null, "environment": {...}, "directory": "...", "log": file, "model_port": ...,
"memory_bytes": ..., "processes": ...}. It is forked from here, gets the sandbox's limits, enters its
namespaces and gives up its rights there, so that it ends with the sandbox.

The two networks meet in two sockets alone. The server serves on one that was opened outside, which nothing
inside can reach. The other listens inside, on the model's port, and is handed to who asked, who passes
its connections on. The answer is {"port": the server's, outside} with that socket, or {"error": "..."}. Ends
with its input.
"""

import ctypes
import importlib
import json
import os
import pkgutil
import resource
import socket
import struct
import sys
import tempfile
import traceback
from typing import Any

from evaluation.swe.versions import AGENT, require

NAMESPACES = ("user", "mnt", "pid", "ipc", "uts", "net")
PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, CAPABILITY_VERSION = 4, 38, 0x20080522
MESSAGE_BYTES = 1 << 16
LOOPBACK = "127.0.0.1"


def main() -> None:
    """Import, then start servers until the input ends."""
    require(AGENT)
    preload()
    sys.path[:] = [place for place in sys.path if place.startswith((sys.prefix, sys.base_prefix))]
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.sendall(b"{}")
    while message := channel.recv(MESSAGE_BYTES):
        child = os.fork()
        if child == 0:
            _start(json.loads(message), channel)
        _, status = os.waitpid(child, 0)
        if status:
            answer = {"error": "the agent server could not enter its sandbox; see its log"}
            channel.sendall(json.dumps(answer).encode())


def preload() -> None:
    """Import what the server imports, but the module that reads the settings."""
    import openhands.agent_server as server

    for module in pkgutil.iter_modules(server.__path__):
        if module.name.endswith("_router"):
            importlib.import_module(f"{server.__name__}.{module.name}")
    for name in ("agent_server.__main__", "tools.preset.default", "agent_server.middleware"):
        importlib.import_module(f"openhands.{name}")


def _start(wanted: dict[str, Any], channel: socket.socket) -> None:
    """In the child: enter the sandbox, fork the server, answer, end."""
    log = os.open(wanted["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, target)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (wanted["memory_bytes"],) * 2)
        server = socket.create_server((LOOPBACK, 0), backlog=128)
        _enter(wanted["process"])
        model = socket.create_server((LOOPBACK, wanted["model_port"]), backlog=128)
        if os.fork():
            answer = {"port": server.getsockname()[1]}
            socket.send_fds(channel, [json.dumps(answer).encode()], [model.fileno()])
            os._exit(0)
        channel.close()
        model.close()
        resource.setrlimit(resource.RLIMIT_NPROC, (wanted["processes"],) * 2)
        _give_up_rights(wanted["user"])
        os.setsid()
        os.chdir(wanted["directory"])
        _serve(wanted["environment"], server)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(1)


def _enter(process: int) -> None:
    """Join a process's namespaces; those that are the same already cannot be joined again.

    The user's comes first, as it gives the rights to join the others; root, whose sandbox has none, has them.
    """
    places = [(f"/proc/{process}/ns/{name}", f"/proc/self/ns/{name}") for name in NAMESPACES]
    files = [os.open(there, os.O_RDONLY) for there, here in places if os.readlink(there) != os.readlink(here)]
    for file in files:
        os.setns(file)  # type: ignore[attr-defined]  # new in Python 3.12
        os.close(file)


def _give_up_rights(user: int | None) -> None:
    """Become the sandbox's user and drop all capabilities for good: in its namespaces they would open it.

    Others of the same user may not look into the server, or take its sockets, which lead outside.
    """
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("Ii", CAPABILITY_VERSION, 0)
    for failed in (
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        libc.capset(header, bytes(24)),
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0),
    ):
        if failed:
            raise OSError(ctypes.get_errno(), "cannot give up capabilities")


def _serve(environment: dict[str, str], listener: socket.socket) -> None:
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # an import may have settled on the caller's folder, which is not inside
    from openhands.agent_server import __main__ as server
    from openhands.agent_server import config

    class Server(server.LoggingServer):
        """Listens where it was told to, in place of a port of its own."""

        def run(self, sockets: list[socket.socket] | None = None) -> None:
            super().run(sockets=[listener])

    server.LoggingServer = Server
    config._default_config = None  # an import may have read the settings of this process
    sys.argv = ["agent_server", "--host", LOOPBACK, "--port", str(listener.getsockname()[1])]
    server.main()


if __name__ == "__main__":
    main()
