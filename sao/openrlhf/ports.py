"""Ports of this machine at which processes of a run meet; imports no Ray."""

import random
import socket
from pathlib import Path

FIRST_PORT = 20_000  # Ray's workers listen below it
KERNELS_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
PORT_TRIES = 1000


def free_port() -> int:
    """A port of this machine that nobody listens at, below those that the kernel gives out itself.

    It is listened at seconds after it was chosen; one of the kernel's own could by then be another
    process's. Raises OSError where none was found.
    """
    lowest_of_kernel = int(KERNELS_PORTS.read_text().split()[0])
    if lowest_of_kernel <= FIRST_PORT:
        return _bound(0)
    for _ in range(PORT_TRIES):
        try:
            return _bound(random.SystemRandom().randrange(FIRST_PORT, lowest_of_kernel))
        except OSError:
            continue
    raise OSError(f"no port is free between {FIRST_PORT} and {lowest_of_kernel - 1}")


def _bound(port: int) -> int:
    with socket.socket() as listener:
        listener.bind(("", port))
        return listener.getsockname()[1]
