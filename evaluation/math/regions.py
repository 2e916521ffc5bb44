"""Regions of the real line: intervals, unions, inequalities and number sets as disjoint pieces.

The bounds are values of `evaluation.math.values`, so that [0, sqrt 2) and 0 <= x < 2^(1/2) are the same.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cmp_to_key

import mpmath

from evaluation.math.nodes import Node
from evaluation.math.values import GUARD_DIGITS, Value, constant, real, same_value, symbols

INFINITY = mpmath.inf
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}


class NoRegion(ValueError):
    """The tree is no subset of the real line with constant bounds."""


@dataclass(frozen=True)
class Piece:
    """All reals between two values; a point has equal closed bounds."""

    low: Value
    high: Value
    low_closed: bool
    high_closed: bool


Region = tuple[Piece, ...]  # disjoint, ascending, with no two pieces that touch
LINE: Region = (Piece(-INFINITY, INFINITY, False, False),)


def region_of(node: Node, tuples_are_intervals: bool = True) -> Region:
    """The region that a tree denotes; a pair is an open interval where asked. Raises NoRegion."""
    if node.head == "interval" or (node.head == "tuple" and tuples_are_intervals and len(node.args) == 2):
        brackets = str(node.value) if node.head == "interval" else "()"
        return _interval(node.args[0], node.args[1], brackets[0] == "[", brackets[1] == "]")
    if node.head == "set":
        return union(*((Piece(value, value, True, True),) for value in map(_bound, node.args)))
    if node.head == "named_set" and node.value in ("R", "R+", "R0"):
        low = -INFINITY if node.value == "R" else mpmath.mpf(0)
        return (Piece(low, INFINITY, node.value == "R0", False),)
    if node.head == "set_builder":
        return _set_builder(node)
    if node.head == "relation":
        return relation_region(node)
    if node.head == "list":
        return _listed(node)
    if node.head in ("union", "intersection", "difference"):
        left, right = (region_of(child) for child in node.args)
        if node.head == "union":
            return union(left, right)
        return intersection(left, right if node.head == "intersection" else complement(right))
    raise NoRegion(node.head)


def quantity(node: Node) -> Node | None:
    """What a relation or a list of relations bounds: the one term that is not constant."""
    if node.head == "list":
        found = {quantity(item) for item in node.args}
        return found.pop() if len(found) == 1 else None
    if node.head != "relation":
        return None
    variable = [term for term in node.args if symbols(term)]
    return variable[0] if len(variable) == 1 else None


def is_unknown(node: Node) -> bool:
    """Whether a term is an unknown, x or f(0), and not a formula such as |x| or x^2."""
    return node.head == "symbol" or (node.value == "applied" and not symbols(node.args[1]))


def as_points(node: Node) -> Node | None:
    """A union of sets of numbers by its members; None where it holds an interval."""
    if node.head == "set":
        return node
    members = [as_points(child) for child in node.args] if node.head == "union" else [None]
    found = [member for member in members if member is not None]
    return (
        Node("set", tuple(item for member in found for item in member.args))
        if len(found) == len(members)
        else None
    )


def same_region(first: Region, second: Region) -> bool:
    """Whether two regions have the same pieces."""
    return len(first) == len(second) and all(
        one.low_closed == other.low_closed
        and one.high_closed == other.high_closed
        and same_value(one.low, other.low)
        and same_value(one.high, other.high)
        for one, other in zip(first, second, strict=True)
    )


def same_integers(first: Region, second: Region) -> bool:
    """Whether two regions with integer bounds hold the same integers from 1 on."""
    bounds = [bound for piece in first + second for bound in (piece.low, piece.high)]
    finite = [bound for bound in bounds if not mpmath.isinf(real(bound))]
    if not all(isinstance(bound, Fraction) and bound.denominator == 1 for bound in finite):
        return False
    last = int(min(max(map(abs, finite), default=0) + 3, 2000))
    return all(_contains(first, n) == _contains(second, n) for n in range(1, last))


def relation_region(node: Node) -> Region:
    """The values of the one non-constant term of a chain such as `a < x <= b` or `x \\in S`."""
    operators = node.value
    assert isinstance(operators, tuple)
    places = [index for index, term in enumerate(node.args) if symbols(term)]
    if len(places) != 1 or quantity(node) is None:
        raise NoRegion("a relation of several unknowns")
    place = places[0]
    if operators in (("in",), ("not in",)) and place == 0:
        inside = region_of(node.args[1])
        return inside if operators == ("in",) else complement(inside)
    region = LINE
    for index, operator in enumerate(operators):
        if operator not in _FLIPPED or not index <= place <= index + 1:
            raise NoRegion("a chain that does not bound its unknown on both sides")
        on_left = index == place
        bound = _bound(node.args[index + 1] if on_left else node.args[index])
        region = intersection(region, _half_line(operator if on_left else _FLIPPED[operator], bound))
    return region


def union(*regions: Region) -> Region:
    """The set union."""
    pieces = sorted((piece for region in regions for piece in region), key=cmp_to_key(_by_low))
    merged: list[Piece] = []
    for piece in pieces:
        if merged and _touch(merged[-1], piece):
            merged[-1] = _joined(merged[-1], piece)
        else:
            merged.append(piece)
    return tuple(merged)


def intersection(first: Region, second: Region) -> Region:
    """The set intersection."""
    return union(*(_common(one, other) for one in first for other in second))


def complement(region: Region) -> Region:
    """All reals outside the region."""
    low, low_closed = -INFINITY, False
    pieces = []
    for piece in region:
        pieces.append(Piece(low, piece.low, low_closed, not piece.low_closed))
        low, low_closed = piece.high, not piece.high_closed
    pieces.append(Piece(low, INFINITY, low_closed, False))
    return tuple(piece for piece in pieces if not _empty(piece))


def _bound(node: Node) -> Value:
    value = constant(node)
    if value is None or isinstance(value, mpmath.mpc):
        raise NoRegion("a bound that is no real constant")
    return value


def _interval(low: Node, high: Node, low_closed: bool, high_closed: bool) -> Region:
    piece = Piece(_bound(low), _bound(high), low_closed, high_closed)
    if _empty(piece):
        raise NoRegion("bounds in the wrong order")
    return (_opened(piece),)


def _opened(piece: Piece) -> Piece:
    """`piece` with infinite bounds open, however they were written."""
    low, high = (not mpmath.isinf(real(bound)) for bound in (piece.low, piece.high))
    return replace(piece, low_closed=piece.low_closed and low, high_closed=piece.high_closed and high)


def _half_line(operator: str, bound: Value) -> Region:
    point = (Piece(bound, bound, True, True),)
    if operator in ("=", "!="):
        return point if operator == "=" else complement(point)
    closed = operator.endswith("=")
    if operator.startswith("<"):
        return (Piece(-INFINITY, bound, False, closed),)
    return (Piece(bound, INFINITY, closed, False),)


def _set_builder(node: Node) -> Region:
    head, condition = node.args
    domain: Region = LINE
    if head.head == "relation" and head.value == ("in",):
        domain, head = region_of(head.args[1]), head.args[0]
    bounded = quantity(condition)
    if head.head != "symbol" or bounded != head:
        raise NoRegion("a set by a condition on something else")
    return intersection(domain, region_of(condition))


def _listed(node: Node) -> Region:
    """Several conditions: all of them where that is possible and nothing says "or", else any of them."""
    if quantity(node) is None:
        raise NoRegion("conditions on several unknowns")
    regions = [region_of(item) for item in node.args]
    both = regions[0]
    for region in regions[1:]:
        both = intersection(both, region)
    points_only = all(same_value(piece.low, piece.high) for piece in both)
    if node.value == "or" or not both or (points_only and node.value != "and"):
        return union(*regions)
    return both


def _compare(first: Value, second: Value) -> int:
    if same_value(first, second):
        return 0
    with mpmath.workdps(GUARD_DIGITS):
        return -1 if real(first) < real(second) else 1


def _by_low(first: Piece, second: Piece) -> int:
    return _compare(first.low, second.low) or int(second.low_closed) - int(first.low_closed)


def _touch(left: Piece, right: Piece) -> bool:
    order = _compare(right.low, left.high)
    return order < 0 or (order == 0 and (left.high_closed or right.low_closed))


def _joined(left: Piece, right: Piece) -> Piece:
    order = _compare(left.high, right.high)
    if order == 0:
        return replace(left, high_closed=left.high_closed or right.high_closed)
    return left if order > 0 else replace(left, high=right.high, high_closed=right.high_closed)


def _common(one: Piece, other: Piece) -> Region:
    low_order, high_order = _compare(one.low, other.low), _compare(one.high, other.high)
    lower = one if low_order > 0 or (low_order == 0 and not one.low_closed) else other
    upper = one if high_order < 0 or (high_order == 0 and not one.high_closed) else other
    piece = Piece(lower.low, upper.high, lower.low_closed, upper.high_closed)
    return () if _empty(piece) else (piece,)


def _empty(piece: Piece) -> bool:
    order = _compare(piece.low, piece.high)
    return order > 0 or (order == 0 and not (piece.low_closed and piece.high_closed))


def _contains(region: Region, n: int) -> bool:
    for piece in region:
        above = _compare(mpmath.mpf(n), piece.low)
        below = _compare(mpmath.mpf(n), piece.high)
        if (above > 0 or (above == 0 and piece.low_closed)) and (
            below < 0 or (below == 0 and piece.high_closed)
        ):
            return True
    return False
