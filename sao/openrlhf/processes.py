"""Errors and processor time of a run's many processes."""

from typing import Any

import psutil
import ray

from sao.openrlhf import InstallationError
from sao.runlog_files import RunError


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
