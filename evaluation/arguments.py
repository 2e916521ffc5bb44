"""Types of the runners' command-line options, for argparse."""

import argparse
import re
from collections.abc import Callable

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def at_least(least: int) -> Callable[[str], int]:
    """A reader of whole numbers from `least` on."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} on")
        return int(text)

    return read


def folder_name(text: str) -> str:
    """A name that may be a folder's: the tables look for evaluations one folder below the row's."""
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} names a folder: use letters, digits, _ . and - alone")
    return text
