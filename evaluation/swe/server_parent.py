"""Process that has OpenHands' agent server imported, and starts one in a sandbox in a moment.

    python -m evaluation.swe.server_parent

The import takes ten seconds of processor time, and each task has a server of its own. Each line of input, a
JSON object, asks for a server: {"process": id of a process in the sandbox, "environment": {...},
"directory": "...", "port": 8000, "log": file, "memory_bytes": ...}. It is forked from here, gets the
sandbox's limit of memory, enters its namespaces and gives up its rights there, so that it ends with the
sandbox. The answer is a line, empty or with what went wrong. Ends with its input.
"""

import ctypes
import importlib
import json
import os
import pkgutil
import resource
import struct
import sys
import tempfile
import traceback
from typing import Any

from evaluation.swe.versions import AGENT, require

NAMESPACES = ("user", "mnt", "pid", "ipc", "uts")
PR_SET_NO_NEW_PRIVS, CAPABILITY_VERSION = 38, 0x20080522


def main() -> None:
    """Import, then start servers until the input ends."""
    require(AGENT)
    preload()
    sys.path[:] = [place for place in sys.path if place.startswith((sys.prefix, sys.base_prefix))]
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _start(json.loads(line))
        _, status = os.waitpid(child, 0)
        print("" if status == 0 else "the agent server could not enter its sandbox; see its log", flush=True)


def preload() -> None:
    """Import what the server imports, but the module that reads the settings."""
    import openhands.agent_server as server

    for module in pkgutil.iter_modules(server.__path__):
        if module.name.endswith("_router"):
            importlib.import_module(f"{server.__name__}.{module.name}")
    for name in ("agent_server.__main__", "tools.preset.default", "agent_server.middleware"):
        importlib.import_module(f"openhands.{name}")


def _start(wanted: dict[str, Any]) -> None:
    """In the child: enter the sandbox, fork the server, end."""
    log = os.open(wanted["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, target)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (wanted["memory_bytes"],) * 2)
        _enter(wanted["process"])
        if os.fork():
            os._exit(0)
        _give_up_rights()
        os.setsid()
        os.chdir(wanted["directory"])
        _serve(wanted["environment"], wanted["port"])
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(1)


def _enter(process: int) -> None:
    """Join a process's namespaces; those that are the same already cannot be joined again."""
    places = [(f"/proc/{process}/ns/{name}", f"/proc/self/ns/{name}") for name in NAMESPACES]
    files = [os.open(there, os.O_RDONLY) for there, here in places if os.readlink(there) != os.readlink(here)]
    for file in files:
        os.setns(file)  # type: ignore[attr-defined]  # new in Python 3.12
        os.close(file)


def _give_up_rights() -> None:
    """Drop all capabilities for good: within the sandbox's namespaces they would open it."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("Ii", CAPABILITY_VERSION, 0)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.capset(header, bytes(24)):
        raise OSError(ctypes.get_errno(), "cannot give up capabilities")


def _serve(environment: dict[str, str], port: int) -> None:
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # an import may have settled on the caller's folder, which is not inside
    from openhands.agent_server import __main__ as server
    from openhands.agent_server import config

    config._default_config = None  # an import may have read the settings of this process
    sys.argv = ["agent_server", "--host", "127.0.0.1", "--port", str(port)]
    server.main()


if __name__ == "__main__":
    main()
