"""Whether a training text is one of a benchmark's problems: equal, or sharing most of its word sequences."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

WORDS = 8  # length of a word sequence
LEAST_SHARE = (
    0.5  # share of a problem's sequences in a training text from which it counts as the same problem
)

_WORD = re.compile(r"[^\W_]+")
_SPACING = re.compile(r"\\(?:left|right|displaystyle|quad|qquad|text|mathrm|[,;:! ])")


@dataclass(frozen=True)
class Overlap:
    """A training row that is a benchmark's problem; `share` is 1 where the texts are equal."""

    row: str
    benchmark: str
    problem: str
    share: float


def words(text: str) -> tuple[str, ...]:
    """Words and numbers of a text in lower case, without LaTeX spacing, punctuation and accents' forms."""
    plain = unicodedata.normalize("NFKC", _SPACING.sub(" ", text)).lower()
    return tuple(_WORD.findall(plain))


def sequences(text: tuple[str, ...]) -> set[tuple[str, ...]]:
    """All sequences of `WORDS` words; empty for a shorter text."""
    return {text[start : start + WORDS] for start in range(len(text) - WORDS + 1)}


class BenchmarkIndex:
    """Problems of several benchmarks, indexed by their word sequences."""

    def __init__(self) -> None:
        self._equal: dict[tuple[str, ...], tuple[str, str]] = {}
        self._holders: defaultdict[tuple[str, ...], set[tuple[str, str]]] = defaultdict(set)
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, benchmark: str, problems: Iterable[tuple[str, str]]) -> None:
        """Add (id, text) pairs of a benchmark."""
        for identifier, text in problems:
            parts, key = words(text), (benchmark, identifier)
            self._equal.setdefault(parts, key)
            found = sequences(parts)
            self._counts[key] = len(found)
            for sequence in found:
                self._holders[sequence].add(key)

    def find(self, row: str, text: str) -> Overlap | None:
        """The problem that a training text is, if any: the equal one, else the one it shares most with."""
        parts = words(text)
        if parts in self._equal:
            return Overlap(row, *self._equal[parts], 1.0)
        shared: defaultdict[tuple[str, str], int] = defaultdict(int)
        for sequence in sequences(parts):
            for key in self._holders.get(sequence, ()):
                shared[key] += 1
        best = max(shared, key=lambda key: shared[key] / self._counts[key], default=None)
        if best is None or shared[best] / self._counts[best] < LEAST_SHARE:
            return None
        return Overlap(row, *best, shared[best] / self._counts[best])
