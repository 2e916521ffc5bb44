"""Trees of answers: what the reader makes of a text, and what the graders compare."""

from dataclasses import dataclass
from fractions import Fraction


class Unreadable(ValueError):
    """The text is not an answer in notation that the reader knows."""


@dataclass(frozen=True)
class Node:
    """One node of an answer's tree.

    Scalars: "number" (a Fraction), "symbol" (a str), "infinity", "pi", "e", and operations by name: "add",
    "mul", "div", "pow", "neg", "plus_minus", "minus_plus", "root", "factorial", "double_factorial",
    "binomial", "floor", "ceiling", "abs", "degrees", "log" and the elementary functions.
    Structures: "list" (value "and", "or" or ","), "set", "tuple", "interval" (value such as "[)"), "union",
    "intersection", "difference", "named_set", "relation" (value: the operators), "define" (value: function
    name; parameters, then body), "congruence", "set_builder", "dots", "ratio" and "words".
    """

    head: str
    args: tuple["Node", ...] = ()
    value: object = None
    decimal: bool = False


def vocabulary(words: str) -> frozenset[str]:
    """The words of a text as a set."""
    return frozenset(words.split())


STRUCTURES = vocabulary(
    "list set tuple interval union intersection difference named_set relation define congruence "
    "set_builder dots ratio words"
)


def scalar(node: Node) -> Node:
    """`node`, refused where a list, a set or a relation stands in a formula."""
    if node.head in STRUCTURES:
        raise Unreadable(f"a {node.head.replace('_', ' ')} inside a formula")
    return node


def number(value: int | Fraction) -> Node:
    """The node of an exact number."""
    return Node("number", value=Fraction(value))


def in_radians(node: Node) -> Node:
    """The tree with degree signs taken as pi/180; elsewhere they only name the unit."""
    args = tuple(in_radians(child) for child in node.args)
    if node.head == "degrees":
        return Node("mul", (args[0], Node("div", (Node("pi"), number(180)))))
    return Node(node.head, args, node.value, node.decimal)
