"""OpenRLHF's own command line, run with this package's classes in the places of OpenRLHF's.

Its parser and checks stand below `if __name__ == "__main__"` and cannot be imported, so the module is run,
and what it looks up while it runs is replaced first.
"""

import contextlib
import runpy
import sys
from collections.abc import Callable, Iterator
from typing import Any

import sao.openrlhf.ready  # noqa: F401

# isort: split
import openrlhf.utils
import ray

COMMAND = "openrlhf.cli.train_ppo_ray"


class _Parsed(Exception):
    """Carries the parsed arguments out of OpenRLHF's command."""


def run(flags: list[str], make_strategy: Callable[[Any], Any]) -> None:
    """Run OpenRLHF's training command; `make_strategy` gets its checked arguments and starts it all."""
    with _replaced(openrlhf.utils, "get_strategy", make_strategy), _replaced(sys, "argv", [COMMAND, *flags]):
        sys.modules.pop(COMMAND, None)
        runpy.run_module(COMMAND, run_name="__main__", alter_sys=True)


def parse(flags: list[str]) -> Any:
    """The arguments as OpenRLHF's own parser and checks leave them, without starting anything."""

    def stop(arguments: Any) -> None:
        raise _Parsed(arguments)

    with _replaced(ray, "is_initialized", lambda: True):
        try:
            run(flags, stop)
        except _Parsed as parsed:
            return parsed.args[0]
    raise RuntimeError(f"{COMMAND} ended before it made its strategy")


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)
