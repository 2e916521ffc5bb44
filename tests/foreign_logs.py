"""Logs as other programs write them: TensorBoard event files and offline runs of Weights & Biases."""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

Row = tuple[int, Mapping[str, float]]

WANDB_SCRIPT = """
import json, sys
import wandb
run = wandb.init(project="test", mode="offline", dir=sys.argv[1])
for row in json.load(sys.stdin):
    run.log(row)
run.finish()
"""


def write_events(folder: Path, rows: Iterable[Row], suffix: str = "") -> Path:
    """One event file with a scalar summary for each (step, values); returns it."""
    writer = EventFileWriter(str(folder), filename_suffix=suffix)
    for step, values in rows:
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        writer.add_event(Event(step=step, summary=Summary(value=scalars)))
    writer.close()
    return Path(writer._file_name)


def write_summaries(folder: Path, step: int, *values: Summary.Value) -> Path:
    """One event file with one event of the given summary values."""
    writer = EventFileWriter(str(folder))
    writer.add_event(Event(step=step, summary=Summary(value=values)))
    writer.close()
    return Path(writer._file_name)


def log_to_wandb(folder: Path, rows_as_json: str) -> Path:
    """Logs rows with `wandb` in offline mode, in a process of its own; returns the run's file."""
    environment = os.environ | {"WANDB_SILENT": "true", "WANDB_DISABLE_GIT": "true"}
    command = [sys.executable, "-c", WANDB_SCRIPT, str(folder)]
    done = subprocess.run(
        command, input=rows_as_json, text=True, capture_output=True, env=environment, cwd=folder, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return next(folder.glob("wandb/offline-run-*/run-*.wandb"))
