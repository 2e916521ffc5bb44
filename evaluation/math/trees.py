"""Operations on answer trees: renaming, plus-minus signs, and names on the left of equations."""

import itertools
from collections.abc import Iterator, Mapping

from evaluation.math.nodes import Node, Unreadable

_SIGNS = ("plus_minus", "minus_plus")


def renamed(node: Node, names: Mapping[str, str]) -> Node:
    """The tree with symbols renamed, all at once; "bar x" follows x."""
    if node.head == "symbol":
        accent, space, letter = str(node.value).rpartition(" ")
        return Node("symbol", value=accent + space + names.get(letter, letter))
    return Node(node.head, tuple(renamed(child, names) for child in node.args), node.value, node.decimal)


def alternatives(node: Node) -> tuple[Node, ...]:
    """The readings of a tree with plus-minus signs; the tree alone where there is none.

    One sign gives two readings; signs paired by `\\mp` change together, others each for itself. Raises
    Unreadable where several signs stand in a tuple, which may or may not go together.
    """
    signs = list(_signs(node))
    if not signs:
        return (node,)
    if len(signs) > 1 and (node.head == "tuple" or len(signs) > 4):
        raise Unreadable("several plus-minus signs that may or may not go together")
    if "minus_plus" in signs:
        choices = [(up,) * len(signs) for up in (True, False)]
    else:
        choices = list(itertools.product((True, False), repeat=len(signs)))
    return tuple(dict.fromkeys(_chosen(node, iter(choice)) for choice in choices))


def _signs(node: Node) -> Iterator[str]:
    if node.head in _SIGNS:
        yield node.head
    for child in node.args:
        yield from _signs(child)


def _chosen(node: Node, choice: Iterator[bool]) -> Node:
    if node.head in _SIGNS:
        positive = next(choice) == (node.head == "plus_minus")
        child = _chosen(node.args[0], choice)
        return child if positive else Node("neg", (child,))
    return Node(node.head, tuple(_chosen(child, choice) for child in node.args), node.value, node.decimal)


def is_name(node: Node) -> bool:
    """Whether a tree names an unknown (x, f(2), AB, m + n, |S|) rather than states part of an equation."""
    if node.head == "symbol":
        return True
    if node.head in ("number", "pi", "e", "infinity", "define", "relation"):
        return False
    if node.head == "pow":
        return is_name(node.args[0])
    if node.value == "applied":
        return True  # f(2), which reads as a product with a bracket
    return bool(node.args) and all(is_name(child) for child in node.args)
