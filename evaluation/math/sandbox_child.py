"""The fork server of the Python tool: a warm interpreter in bubblewrap that forks one session per request.

    python -c BOOT '{"path": [...], "control": 3, "namespaced": true, "first_uid": null, "uids": 0}'

Each packet on the control socket carries a session's limits and its socket. The server sees nothing of the
sessions afterwards, and ends when the control socket closes.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn

from evaluation.math import sandbox_isolation as isolation
from evaluation.math.sandbox_messages import send
from evaluation.math.sandbox_supervisor import Supervisor


def warm_up() -> None:
    """Imports what sessions find loaded, and lets sympy build what its first calls would build in each."""
    import mpmath  # noqa: F401
    import numpy.fft
    import numpy.linalg
    import numpy.random  # noqa: F401
    import sympy

    x = sympy.symbols("x")
    sympy.solve(x**2 - x - 1, x)
    sympy.simplify(sympy.integrate(sympy.sin(x) * sympy.exp(x), x))
    sympy.factorint(2025)
    gc.collect()
    gc.freeze()  # a collection would touch, and so copy, every page in every session


def start_session(
    host: socket.socket, request: dict[str, Any], uid: int | None, namespaced: bool
) -> NoReturn:
    """Becomes the session's supervisor; a failure before that is told to the host."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if namespaced:
            isolation.enter_namespaces(uid)
            if os.fork():
                os._exit(0)
            isolation.mount_session(request["limits"]["scratch_mb"])
        else:
            os.chdir(request["scratch"])
        session = Supervisor(host, request["limits"], namespaced)
        session.start()
    except OSError as error:
        send(host, {"status": "failed", "output": str(error)})
        os._exit(1)
    session.serve()


def serve(control: socket.socket, namespaced: bool, uids: Iterator[int | None]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # what it forks ends without leaving a zombie
    control.send(b"ready")
    while True:
        data, handles, _, _ = socket.recv_fds(control, 1 << 16, 1)
        if not data:
            return
        uid = next(uids)
        if os.fork() == 0:
            try:
                control.close()
                start_session(socket.socket(fileno=handles[0]), json.loads(data), uid, namespaced)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(handles[0])


def main() -> None:
    settings = json.loads(sys.argv[1])
    sys.path[0] = ""  # the model may import what it wrote to its scratch folder, not this package
    sys.argv = [""]
    warm_up()
    first, count = settings["first_uid"], settings["uids"]
    uids = itertools.cycle([None] if first is None else range(first, first + count))
    serve(socket.socket(fileno=settings["control"]), settings["namespaced"], uids)
