"""What the analysis commands share: options, exit codes, and the line that says how to run them again."""

import argparse
import difflib
import os
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from analysis.load import AnalysisError

FAILURE = 1
USER_MISTAKE = 2


def parser(module: str, description: str) -> argparse.ArgumentParser:
    """The options of every command: where the runs are and where the output goes."""
    options = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    options.add_argument(
        "--runs", type=Path, required=True, help="folder of one scale's runs, e.g. results/cpu"
    )
    options.add_argument("--out", type=Path, required=True, help="where to write")
    return options


def artifact_parser(module: str, description: str, beside: bool = True) -> argparse.ArgumentParser:
    """`beside_parser`, or without `beside` `parser`, with the choice of one artifact."""
    options = beside_parser(module, description) if beside else parser(module, description)
    options.add_argument("--artifact", help="write this one alone, e.g. table4; without it all")
    return options


def beside_parser(module: str, description: str) -> argparse.ArgumentParser:
    """`parser` with folders of imported runs."""
    options = parser(module, description)
    options.add_argument(
        "--beside",
        type=Path,
        action="append",
        default=[],
        help="folder of imported runs to show beside them, e.g. results/my_30b; may be repeated",
    )
    return options


def pick_artifacts(chosen: str | None, known: Iterable[str]) -> list[str]:
    """The chosen artifact or all; raises AnalysisError for an unknown one."""
    names = list(known)
    if chosen is None:
        return names
    if chosen not in names:
        close = difflib.get_close_matches(chosen, names, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(names)}"
        raise AnalysisError(f"--artifact {chosen}: this command makes no such artifact; {hint}")
    return [chosen]


def regenerate_command(module: str, options: argparse.Namespace, *extra: str) -> str:
    """The command that writes the same output again."""
    beside = [word for folder in getattr(options, "beside", []) for word in ("--beside", str(folder))]
    words = ["python", "-m", module, "--runs", str(options.runs), *beside, "--out", str(options.out), *extra]
    return shlex.join(words)


def run_command(main: Callable[[], None]) -> int:
    """Run `main`; a user's mistake becomes one line on stderr and exit code 2, a failed write code 1.

    Where the reader of its output leaves, as `head` does, it ends without a word, code 1 too.
    """
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that Python's last flush is quiet
        return FAILURE
    except AnalysisError as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_MISTAKE
    except OSError as error:
        if error.filename is None:
            raise
        print(f"error: {error.filename}: {error.strerror}; choose another place with --out", file=sys.stderr)
        return FAILURE
    return 0
