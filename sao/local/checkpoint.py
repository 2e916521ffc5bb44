"""Resume state of a run in the local engine: everything that the rest of the run depends on."""

import io
from pathlib import Path
from typing import Any, Protocol

import torch

from sao.local.trainer import Trainer

FILE = "state.pt"


class Resumable(Protocol):
    """A schedule, whichever clock it goes by."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, saved: dict[str, Any]) -> None: ...


def save_state(folder: Path, trainer: Trainer, schedule: Resumable, totals: dict[str, Any]) -> None:
    """Write trainer, schedule (trajectories under way and their caches included) and the run's totals."""
    state = {"trainer": trainer.state_dict(), "schedule": schedule.state_dict(), "totals": totals}
    buffer = io.BytesIO()
    torch.save(state, buffer)  # written to the file in one piece, so that a full disk is a plain OSError
    (folder / FILE).write_bytes(buffer.getbuffer())


def load_state(folder: Path, trainer: Trainer, schedule: Resumable) -> dict[str, Any]:
    """Restores trainer and schedule; returns the totals.

    The file holds Python objects of this package, written by the run itself: load no checkpoint of another
    origin.
    """
    state = torch.load(folder / FILE, weights_only=False)
    trainer.load_state_dict(state["trainer"])
    schedule.load_state_dict(state["schedule"])
    return state["totals"]
