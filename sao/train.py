"""Command that trains one run: `python -m sao.train --row vapo --scale cpu --seed 0`.

A stopped run continues from its latest checkpoint when the same command is given again, and then logs the
same metrics as one that was never stopped.
"""

import argparse
import contextlib
import shlex
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from sao import config
from sao.config_tasks import MathTask, SWETask, WritingTask
from sao.openrlhf import InstallationError
from sao.prepare import require_preparations
from sao.runlog import RunDirectory, RunError, RunFailure


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns 0, 1 for a run that failed, 2 for a user's mistake, 130 when interrupted."""
    parser = argparse.ArgumentParser(prog="python -m sao.train", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--row", required=True)
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", default="results")
    options = parser.parse_args(arguments)
    command = f"python -m sao.train {shlex.join(sys.argv[1:] if arguments is None else arguments)}"
    try:
        run = config.resolve(options.row, options.scale, options.seed)
        path = Path(options.results) / run.scale / "runs" / run.row / f"seed{run.seed}"
        with RunDirectory.open(path, run, command) as directory:
            return train_and_seal(directory, options.results)
    except (config.ConfigError, InstallationError, RunError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted before training began; the same command starts it", file=sys.stderr)
        return 130


def train_and_seal(directory: RunDirectory, results: str) -> int:
    """Trains what is left of a run and seals it; a failure is recorded for the tables and returns 1."""
    if directory.is_complete():
        directory.seal()
        return 0
    attempt = make_attempt(directory, results)
    run = directory.config
    require_preparations(run, results)
    check_environment(run, results)
    directory.begin_attempt(training_data(run, results))
    try:
        attempt.train()
        directory.end_attempt("finished", attempt.cpu_seconds(), attempt.gpu_seconds())
        directory.seal()
        return 0
    except KeyboardInterrupt:
        status, code, reason = (
            "interrupted",
            130,
            "interrupted; the same command goes on from the latest checkpoint",
        )
    except (RunFailure, RunError) as error:
        status, code, reason = "failed", 1, str(error)
    except Exception as error:
        status, code, reason = "failed", 1, f"{type(error).__name__}: {error}"
        with directory.attempt_log_path.open("a") as log:
            traceback.print_exc(file=log)
    with interrupts_ignored():
        if status == "failed":
            directory.fail(reason)
        directory.end_attempt(status, attempt.cpu_seconds(), attempt.gpu_seconds(), reason)
        print(f"{run.row} seed {run.seed}: {reason}", file=sys.stderr)
    return code


def check_environment(run: config.RunConfig, results: str) -> None:
    """Raises ConfigError where the task lacks data, model, tool or judge, before any engine asks for them."""
    from sao.environments import check_machine, make_environment

    try:
        make_environment(run.task, run.model, results)
        check_machine(run.task)
    except config.ConfigError:
        raise
    except ValueError as error:
        raise config.ConfigError(f"scale {run.scale}: tasks: {error}") from error


def training_data(run: config.RunConfig, results: str) -> dict[str, str] | None:
    """Name and digest of the fetched rows that a run trains on; None for tasks without any."""
    if isinstance(run.task, SWETask):
        from evaluation.swe.contamination import file_digest
        from evaluation.training_data import fetched_file

        return {"set": run.task.data, "file_sha256": file_digest(fetched_file(run.task.data, results))}
    if not isinstance(run.task, MathTask | WritingTask):
        return None
    from evaluation.training_data import checksum, fetched_rows

    return {"set": run.task.data, "rows_sha256": checksum(fetched_rows(run.task.data, results))}


class Attempt(Protocol):
    """What an engine makes of one attempt at a run."""

    def train(self) -> None:
        """Runs the remaining steps; raises RunFailure where the run cannot go on."""

    def cpu_seconds(self) -> float:
        """Processor time of this attempt, in seconds."""

    def gpu_seconds(self) -> float:
        """GPU time of this attempt, in seconds."""


def make_attempt(directory: RunDirectory, results: str) -> Attempt:
    """The attempt by the engine that the run's scale names; InstallationError where that is not installed."""
    if directory.config.backend == "local":
        from sao.local.run import LocalAttempt

        return LocalAttempt(directory, results)
    from sao.openrlhf.launch import LaunchAttempt

    return LaunchAttempt(directory, results)


@contextlib.contextmanager
def interrupts_ignored() -> Iterator[None]:
    """A second Ctrl-C or SIGTERM waits until the end of the attempt is recorded, which takes no time."""
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    # A cluster's scheduler ends jobs so: the attempt's hours are recorded as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
