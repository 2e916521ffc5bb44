"""What a grader says of one answer."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["right", "wrong", "undecided"]


@dataclass(frozen=True)
class Opinion:
    """A verdict with its reason. "undecided" means that no rule here can tell, never that it is wrong."""

    verdict: Verdict
    reason: str


def right(reason: str) -> Opinion:
    """The answer equals the gold answer."""
    return Opinion("right", reason)


def wrong(reason: str) -> Opinion:
    """The answer differs from the gold answer."""
    return Opinion("wrong", reason)


def undecided(reason: str) -> Opinion:
    """The rules cannot tell."""
    return Opinion("undecided", reason)


def from_equality(equality: bool | None, reason: str) -> Opinion:
    """The opinion that follows from a comparison of values with three outcomes."""
    if equality is None:
        return undecided(f"{reason}: no comparison decides")
    return right(f"{reason}: equal") if equality else wrong(f"{reason}: different")
