"""Errors, ports and processor time of a run's many processes."""

import random
import socket
from pathlib import Path
from typing import Any

import psutil
import ray

from sao.openrlhf import InstallationError
from sao.runlog_files import RunError

FIRST_PORT = 20_000  # Ray's workers listen below it
KERNELS_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
PORT_TRIES = 1000


def free_port() -> int:
    """A port of this machine that nobody listens at, below those that the kernel gives out itself.

    Data-parallel ranks meet at it seconds after it was chosen; one of the kernel's own could by then be
    another process's. Raises OSError where none was found.
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


def get_or_raise_cause(refs: list[Any]) -> Any:
    """`ray.get`; raises what a remote method raised, so that a full disk there is an OSError here."""
    try:
        return ray.get(refs)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, OSError):
            raise error.cause from error
        raise


def reason_of(error: BaseException) -> str:
    """What went wrong, in one line, whichever process it went wrong in."""
    while isinstance(error, ray.exceptions.RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    lines = str(error).strip().splitlines() or [type(error).__name__]
    plain = isinstance(error, RuntimeError | ValueError | RunError | InstallationError)
    return lines[0] if plain else f"{type(error).__name__}: {lines[0]}"


def processor_seconds(driver: int) -> float:
    """Processor time, in seconds, of the driver's process and all below it on this machine that still run."""
    total = 0.0
    try:
        root = psutil.Process(driver)
        processes = [root, *root.children(recursive=True)]
    except psutil.Error:
        return total
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total
