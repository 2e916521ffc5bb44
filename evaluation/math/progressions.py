"""Lists with dots (1, 2, ..., n) and residue classes (n = 3 mod 4)."""

import itertools
from collections.abc import Sequence
from fractions import Fraction

from evaluation.math.nodes import Node, number
from evaluation.math.values import equal, rational
from evaluation.math.verdicts import Opinion, right, undecided, wrong

MOST_TERMS = 5000


def compare(gold: Node, answer: Node) -> Opinion:
    """Compare two lists of which one has dots: by first term, step and last term, or term by term."""
    if answer.head not in ("list", "set"):
        return undecided("a list with dots against another notation")
    mine, theirs = _terms(gold.args), _terms(answer.args)
    if mine is not None and theirs is not None:
        return right("the same terms") if mine == theirs else wrong("other terms")
    ends = [_ends(node.args) for node in (gold, answer)]
    if ends[0] is None or ends[1] is None:
        return undecided("dots whose rule is not clear")
    equalities = [equal(one, other) for one, other in zip(ends[0], ends[1], strict=True)]
    if all(equalities):
        return right("the same first term, step and last term")
    return (
        wrong("another first term, step or last term")
        if False in equalities
        else undecided("terms that cannot be compared")
    )


def _ends(items: Sequence[Node]) -> tuple[Node, Node, Node] | None:
    """First term, step and last term of `a, a + d, ..., z`."""
    if len(items) < 3 or items[-2].head != "dots" or any(item.head == "dots" for item in items[:-2]):
        return None
    shown = items[:-2]
    step = Node("add", (shown[1], Node("neg", (shown[0],)))) if len(shown) > 1 else number(1)
    for earlier, later in itertools.pairwise(shown):
        if not equal(Node("add", (later, Node("neg", (earlier,)))), step):
            return None
    return shown[0], step, items[-1]


def _terms(items: Sequence[Node]) -> frozenset[Fraction] | None:
    """All terms, where they are rational and few enough to write down."""
    if all(item.head != "dots" for item in items):
        values = [rational(item) for item in items]
        written = frozenset(value for value in values if value is not None)
        return written if None not in values else None
    ends = _ends(items)
    if ends is None:
        return None
    first, step, last = (rational(end) for end in ends)
    if first is None or not step or last is None:
        return None
    count = (last - first) / step
    if count.denominator != 1 or not 0 <= count <= MOST_TERMS:
        return None
    return frozenset(first + index * step for index in range(int(count) + 1))


def compare_congruences(gold: Node, answer: Node) -> Opinion:
    """Residue classes of the same unknown by modulus and residue."""
    if gold.head != answer.head:
        return undecided("a residue class against another notation")
    (unknown, residue, modulus), (other, given, other_modulus) = gold.args, answer.args
    mine, theirs, m, other_m = (rational(node) for node in (residue, given, modulus, other_modulus))
    if unknown != other or mine is None or theirs is None or not m or other_m is None:
        return undecided("residue classes that cannot be compared")
    if m != other_m:
        return wrong("another modulus")
    return right("the same residue class") if (mine - theirs) % m == 0 else wrong("another residue")
