"""The controller's part of a checkpoint; policy and critic write theirs beside it through DeepSpeed."""

import contextlib
import errno
import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

FILE = "controller.pt"


@contextlib.contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Raises a failed write of torch, which has an error of its own, as the OSError that it was."""
    try:
        yield
    except RuntimeError as error:
        if "PytorchStreamWriter" not in str(error) and "unexpected pos" not in str(error):
            raise
        code = errno.ENOSPC if shutil.disk_usage(folder).free < 2**20 else errno.EIO
        raise OSError(code, os.strerror(code), str(folder)) from error


def save_controller(
    folder: Path,
    stream: dict[str, Any],
    running_mean: dict[str, Any] | None,
    totals: dict[str, Any],
) -> None:
    """Write the stream's state, the running mean's where the row has one, and the run's totals."""
    buffer = io.BytesIO()
    torch.save({"stream": stream, "running_mean": running_mean, "totals": totals}, buffer)
    (folder / FILE).write_bytes(buffer.getbuffer())  # in one piece, so that a full disk is a plain OSError


def load_controller(folder: Path) -> tuple[dict[str, Any], Any, dict[str, Any]]:
    """(stream, running mean, totals) as `save_controller` wrote them.

    The file holds Python objects of this package, written by the run itself: load no checkpoint of another
    origin.
    """
    saved = torch.load(folder / FILE, weights_only=False)
    return saved["stream"], saved["running_mean"], saved["totals"]
