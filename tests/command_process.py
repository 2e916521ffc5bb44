"""Runs `sao.prepare` and `sao.train` in processes that stop where a test wants them to.

The processes are forked from a server that has imported torch once, which saves seconds for each.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sao import config_files, prepare, train
from sao.runlog import RunDirectory

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["sao.local.run", "sao.local.warm_start"])

SECONDS = 900  # for one command, on a machine that may be busy

Moment = tuple[str, int]
"""Where a process gets a signal (see `MOMENTS`), and at which occurrence, from 1."""


def run_command(
    project: Path,
    module: str,
    *arguments: str,
    kill: tuple[Moment, ...] = (),
    interrupt: tuple[Moment, ...] = (),
) -> tuple[int, str]:
    """Exit code (negative: the signal) and output of a command at the project's experiments.

    The process gets a SIGKILL or a SIGINT at the moments given.
    """
    output = project / "output.txt"
    signals = {signal.SIGKILL: kill, signal.SIGINT: interrupt}
    process = SERVER.Process(target=_run, args=(project, module, arguments, output, signals))
    process.start()
    process.join(SECONDS)
    if process.is_alive():
        process.kill()
        raise TimeoutError(f"{module} {' '.join(arguments)}: {output.read_text()}")
    return process.exitcode or 0, output.read_text()


def _run(
    project: Path,
    module: str,
    arguments: tuple[str, ...],
    output: Path,
    signals: dict[signal.Signals, tuple[Moment, ...]],
) -> None:
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(project)
    config_files.EXPERIMENTS = project / "experiments"
    for number, moments in signals.items():
        for moment, occurrence in moments:
            MOMENTS[moment](number, occurrence)
    sys.exit({"sao.prepare": prepare, "sao.train": train}[module].main(list(arguments)))


def _interpose(owner: Any, name: str, occurrence: int, act: Callable[..., None], after: bool = False) -> None:
    """Has `act` run, on the call's arguments, before or after the call of `owner.name` of that number."""
    original, calls = getattr(owner, name), [0]

    def replaced(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        due = calls[0] == occurrence
        if due and not after:
            act(*arguments)
        result = original(*arguments, **named)
        if due and after:
            act(*arguments)
        return result

    setattr(owner, name, replaced)


def _send(number: int) -> Callable[..., None]:
    return lambda *arguments: os.kill(os.getpid(), number)


def _in_the_clock(number: int, occurrence: int) -> None:
    from sao.local.schedule import Schedule

    _interpose(Schedule, "_advance", occurrence, _send(number))


def _before_metrics(number: int, occurrence: int) -> None:
    """Behind the schedule's lines of a step and before its line of metrics."""
    _interpose(RunDirectory, "log_metrics", occurrence, _send(number))


def _after_metrics(number: int, occurrence: int) -> None:
    _interpose(RunDirectory, "log_metrics", occurrence, _send(number), after=True)


def _within_a_line_of_metrics(number: int, occurrence: int) -> None:
    def write_half(directory: RunDirectory, record: dict[str, Any]) -> None:
        with (directory.path / "metrics.jsonl").open("a") as file:
            file.write(f'{{"step": {record["step"]}, "version"')
        os.kill(os.getpid(), number)

    _interpose(RunDirectory, "log_metrics", occurrence, write_half)


def _within_evaluations(number: int, occurrence: int) -> None:
    def write_some(directory: RunDirectory, records: list[dict[str, Any]]) -> None:
        original(directory, records[:3])
        os.kill(os.getpid(), number)

    original = RunDirectory.log_evaluations
    _interpose(RunDirectory, "log_evaluations", occurrence, write_some)


def _before_checkpoint(number: int, occurrence: int) -> None:
    """Behind the evaluation of the same step."""
    _interpose(RunDirectory, "save_checkpoint", occurrence, _send(number))


def _within_checkpoint(number: int, occurrence: int) -> None:
    """The state is written, the folder not yet complete."""
    from sao.local import run

    _interpose(run, "save_state", occurrence, _send(number), after=True)


def _after_checkpoint(number: int, occurrence: int) -> None:
    _interpose(RunDirectory, "save_checkpoint", occurrence, _send(number), after=True)


def _before_seal(number: int, occurrence: int) -> None:
    _interpose(RunDirectory, "seal", occurrence, _send(number))


def _at_the_end_of_the_attempt(number: int, occurrence: int) -> None:
    _interpose(RunDirectory, "end_attempt", occurrence, _send(number))


MOMENTS: dict[str, Callable[[int, int], None]] = {
    "clock": _in_the_clock,
    "before metrics": _before_metrics,
    "within metrics": _within_a_line_of_metrics,
    "metrics": _after_metrics,
    "within evaluations": _within_evaluations,
    "before checkpoint": _before_checkpoint,
    "within checkpoint": _within_checkpoint,
    "checkpoint": _after_checkpoint,
    "seal": _before_seal,
    "end of attempt": _at_the_end_of_the_attempt,
}
