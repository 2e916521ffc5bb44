"""Families of functions with free constants that enter linearly: 2x^2 + c, A + B/x - x, c(x - 1)(x + 2).

At sample arguments such a family is an affine space of rational vectors; two families are the same exactly
where these spaces are. Constants that a problem has fixed look free here, so that equal spaces prove
nothing, while different ones prove that no choice of constants makes the answers equal.
"""

from collections.abc import Mapping
from fractions import Fraction

from evaluation.math.nodes import Node
from evaluation.math.values import FAILURES, evaluated, points, symbols

Vector = list[Fraction]


def same_family(first: Node, second: Node, parameters: frozenset[str]) -> bool | None:
    """Whether two families agree; None where one is not linear in its constants or not rational."""
    arguments = frozenset(
        name
        for name in symbols(first) | symbols(second) | parameters
        if name.rpartition(" ")[2] in parameters
    )
    samples = [point for kind, point in points(arguments) if kind != "signed"]
    mine, theirs = (_affine_space(node, arguments, samples) for node in (first, second))
    if mine is None or theirs is None:
        return None
    (offset, directions), (other_offset, other_directions) = mine, theirs
    rank = _rank(directions)
    if rank != _rank(other_directions) or rank != _rank(directions + other_directions):
        return False
    difference = [one - other for one, other in zip(offset, other_offset, strict=True)]
    return _rank([*directions, difference]) == rank


def _affine_space(
    node: Node, arguments: frozenset[str], samples: list[dict[str, Fraction]]
) -> tuple[Vector, list[Vector]] | None:
    constants = sorted(symbols(node) - arguments)
    offset = _values(node, samples, dict.fromkeys(constants, Fraction(0)))
    if offset is None:
        return None
    directions: list[Vector] = []
    for name in constants:
        moved = _values(node, samples, dict.fromkeys(constants, Fraction(0)) | {name: Fraction(1)})
        if moved is None:
            return None
        directions.append([one - other for one, other in zip(moved, offset, strict=True)])
    weights = [Fraction(2 * index + 3, index + 2) for index in range(len(constants))]
    probe = _values(node, samples, dict(zip(constants, weights, strict=True)))
    expected = [
        start + sum(weight * direction[row] for weight, direction in zip(weights, directions, strict=True))
        for row, start in enumerate(offset)
    ]
    return (offset, directions) if probe == expected else None


def _values(
    node: Node, samples: list[dict[str, Fraction]], constants: Mapping[str, Fraction]
) -> Vector | None:
    values = []
    for sample in samples:
        try:
            value = evaluated((node,), {**sample, **constants}).values[0]
        except FAILURES:
            return None
        if not isinstance(value, Fraction):
            return None
        values.append(value)
    return values


def _rank(rows: list[Vector]) -> int:
    remaining = [list(row) for row in rows]
    rank = 0
    for column in range(len(rows[0]) if rows else 0):
        pivot = next((row for row in remaining if row[column] != 0), None)
        if pivot is None:
            continue
        remaining.remove(pivot)
        rank += 1
        for row in remaining:
            factor = row[column] / pivot[column]
            if factor:
                row[:] = [value - factor * other for value, other in zip(row, pivot, strict=True)]
    return rank
