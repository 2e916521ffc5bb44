"""Values of scalar answers: exact rationals where the formula is rational, many digits elsewhere.

Two formulas are equal when they agree at points drawn once for all: exactly where both are rational, else to
all digits of a working precision that grows with the largest and smallest number met on the way, so that
1/2004! differs from 1/2006! and 2^2024 + 1 from 2^2024.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import mpmath

from evaluation.math.nodes import Node

Value = Any  # Fraction, mpmath.mpf or mpmath.mpc

GUARD_DIGITS = 60  # digits beyond those that cancellation can eat
ROUNDING_DIGITS = 25  # of the guard digits, those that rounding may spoil
MAX_DIGITS = 30_000
MAX_BITS = 400_000  # of an exact power or factorial
INFINITE = mpmath.inf

_UNARY = {
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "tan": mpmath.tan,
    "cot": mpmath.cot,
    "sec": mpmath.sec,
    "csc": mpmath.csc,
    "arcsin": mpmath.asin,
    "arccos": mpmath.acos,
    "arctan": mpmath.atan,
    "sinh": mpmath.sinh,
    "cosh": mpmath.cosh,
    "tanh": mpmath.tanh,
    "exp": mpmath.exp,
    "ln": mpmath.log,
}
LOG_BASE = "the base of log"  # an own symbol: contests mean 10, e or nothing by a log without a base


class TooLarge(ArithmeticError):
    """A number that no comparison needs: the verdict has to come from elsewhere."""


class Undefined(ArithmeticError):
    """The formula has no value at this point."""


class NotScalar(ValueError):
    """The tree is a list, a set or a relation, not a formula."""


FAILURES = (TooLarge, Undefined, NotScalar, ArithmeticError, ValueError, TypeError, KeyError)


def symbols(node: Node) -> frozenset[str]:
    """Names of the free symbols, with `LOG_BASE` for a logarithm to no stated base."""
    names = {node.value} if node.head == "symbol" else set()
    if node.head == "log" and len(node.args) == 1:
        names.add(LOG_BASE)
    return frozenset(str(name) for name in names).union(*(symbols(child) for child in node.args))


class Evaluator:
    """Evaluates one tree at one point, with a record of the largest decimal exponent met on the way."""

    def __init__(self, point: Mapping[str, Value]) -> None:
        self.point = point
        self.exponent = 0

    def __call__(self, node: Node) -> Value:
        value = self.evaluate(node)
        self.note(value)
        return value

    def note(self, value: Value) -> None:
        if isinstance(value, Fraction):
            bits = abs(value.numerator.bit_length() - value.denominator.bit_length())
            bits = max(bits, value.numerator.bit_length() if value.denominator == 1 else 0)
            self.exponent = max(self.exponent, int(bits * 0.302))
        elif value and not mpmath.isinf(value):
            magnitude = mpmath.mag(value)
            self.exponent = max(self.exponent, int(abs(magnitude) * 0.302))
        if self.exponent > MAX_DIGITS and not isinstance(value, Fraction):
            raise TooLarge("more digits than any answer needs")

    def evaluate(self, node: Node) -> Value:
        head = node.head
        if head == "number":
            return node.value
        if head == "symbol":
            return self.point[str(node.value)]
        if head in ("pi", "e"):
            return mpmath.pi() if head == "pi" else mpmath.e()
        if head == "infinity":
            return INFINITE
        method = getattr(self, head, None)
        if method is not None:
            return method(*(self(child) for child in node.args))
        if head in _UNARY and len(node.args) == 1:
            return self.elementary(head, self(node.args[0]))
        raise NotScalar(head)

    # Every method below takes values and returns a value.

    def elementary(self, head: str, argument: Value) -> Value:
        value = _real(_UNARY[head](real(argument)))
        rounding = mpmath.mpf(10) ** (10 - mpmath.mp.dps)
        if abs(value) * rounding > 1:
            raise Undefined("a pole")
        ordinary = argument and abs(real(argument)) > mpmath.sqrt(rounding)
        return Fraction(0) if ordinary and abs(value) < rounding else value

    def add(self, left: Value, right: Value) -> Value:
        if isinstance(left, Fraction) and isinstance(right, Fraction):
            return left + right
        total, term = real(left) + real(right), real(left)
        if not total or mpmath.isinf(total):
            return total
        lost = int(0.302 * (mpmath.mag(term) - mpmath.mag(total))) if term else 0
        if lost > mpmath.mp.dps - 8:
            return Fraction(0)  # what is left is rounding
        self.exponent = max(self.exponent, lost)
        return total

    def neg(self, value: Value) -> Value:
        return -value

    def degrees(self, value: Value) -> Value:
        return value  # the unit; an angle inside a trigonometric function is in radians already

    def mul(self, left: Value, right: Value) -> Value:
        if isinstance(left, Fraction) and isinstance(right, Fraction):
            return left * right
        return real(left) * real(right)

    def div(self, left: Value, right: Value) -> Value:
        if right == 0:
            raise Undefined("division by zero")
        if isinstance(left, Fraction) and isinstance(right, Fraction):
            return left / right
        return real(left) / real(right)

    def pow(self, base: Value, exponent: Value) -> Value:
        if base == 0:
            if isinstance(exponent, Fraction) and exponent > 0:
                return Fraction(0)
            raise Undefined("a power of zero")
        if isinstance(exponent, Fraction) and exponent.denominator == 1:
            if not isinstance(base, Fraction):
                return real(base) ** int(exponent)
            bits = max(base.numerator.bit_length(), base.denominator.bit_length())
            if abs(exponent) * bits > MAX_BITS and abs(base) != 1:
                raise TooLarge("a power too large to write down")
            return base ** int(exponent)
        if isinstance(exponent, Fraction):
            return self._rational_power(base, exponent)
        if abs(real(exponent) * mpmath.log(abs(real(base)) + 2)) > MAX_DIGITS * 4:
            raise TooLarge("a power too large to write down")
        return _real(mpmath.power(real(base), real(exponent)))

    def _rational_power(self, base: Value, exponent: Fraction) -> Value:
        degree = exponent.denominator
        if isinstance(base, Fraction):
            top, bottom = exact_root(abs(base.numerator), degree), exact_root(base.denominator, degree)
            if top is not None and bottom is not None and (base > 0 or degree % 2):
                return self.pow(Fraction(top if base > 0 else -top, bottom), Fraction(exponent.numerator))
        value = real(base)
        if mpmath.im(value) == 0 and value < 0 and degree % 2:
            return (-1) ** exponent.numerator * mpmath.power(-value, real(exponent))
        return _real(mpmath.power(value, real(exponent)))

    def root(self, value: Value, degree: Value) -> Value:
        if degree == 0:
            raise Undefined("a root of degree zero")
        if value == 0:
            return Fraction(0)
        inverse = 1 / degree if isinstance(degree, Fraction) else 1 / real(degree)
        return (
            self._rational_power(value, inverse)
            if isinstance(inverse, Fraction)
            else self.pow(value, inverse)
        )

    def factorial(self, value: Value) -> Value:
        count = _count(value)
        if count > 20_000:
            raise TooLarge("a factorial too large to write down")
        return Fraction(_factorial(count))

    def double_factorial(self, value: Value) -> Value:
        if value == -1:
            return Fraction(1)
        count = _count(value)
        if count > 20_000:
            raise TooLarge("a factorial too large to write down")
        return Fraction(math.prod(range(count, 0, -2)))

    def binomial(self, top: Value, bottom: Value) -> Value:
        count = _count(bottom)
        if not isinstance(top, Fraction):
            raise Undefined("a binomial coefficient of an irrational number")
        if count > 5000 or abs(top) > 10**9:
            raise TooLarge("a binomial coefficient too large to write down")
        if top.denominator == 1 and top >= 0:
            return Fraction(math.comb(int(top), count))
        return math.prod((top - index for index in range(count)), start=Fraction(1)) / _factorial(count)

    def floor(self, value: Value) -> Value:
        return Fraction(_integer(value, math.floor, mpmath.floor))

    def ceiling(self, value: Value) -> Value:
        return Fraction(_integer(value, math.ceil, mpmath.ceil))

    def abs(self, value: Value) -> Value:
        return abs(value)

    def max(self, *values: Value) -> Value:
        return max(values, key=_ordered)

    def min(self, *values: Value) -> Value:
        return min(values, key=_ordered)

    def gcd(self, *values: Value) -> Value:
        return Fraction(math.gcd(*(_count(value) for value in values)))

    def lcm(self, *values: Value) -> Value:
        return Fraction(math.lcm(*(_count(value) for value in values)))

    def log(self, value: Value, base: Value | None = None) -> Value:
        below = self.point[LOG_BASE] if base is None else base
        if value == 0 or below == 0 or below == 1:
            raise Undefined("a logarithm without a value")
        return _real(mpmath.log(real(value)) / mpmath.log(real(below)))

    def ln(self, value: Value) -> Value:
        if value == 0:
            raise Undefined("a logarithm without a value")
        return Fraction(0) if value == 1 else _real(mpmath.log(real(value)))

    def exp(self, value: Value) -> Value:
        return self.pow(mpmath.e(), value)


def real(value: Value) -> Value:
    """An exact rational as a floating-point number of the working precision; others as they are."""
    return mpmath.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def _real(value: Value) -> Value:
    """`value` without an imaginary part that rounding left."""
    if isinstance(value, mpmath.mpc) and abs(value.imag) <= abs(value.real) * mpmath.mpf(10) ** -(
        mpmath.mp.dps - 15
    ):
        return value.real
    return value


def _ordered(value: Value) -> Value:
    if isinstance(value, mpmath.mpc):
        raise Undefined("complex numbers have no order")
    return real(value)


def _integer(value: Value, exactly: Callable[[Fraction], int], rounded: Callable[[Value], Value]) -> int:
    """Floor or ceiling, of the integer that `value` is but for rounding where it is one."""
    if isinstance(value, Fraction):
        return exactly(value)
    if isinstance(value, mpmath.mpc) or mpmath.isinf(value):
        raise Undefined("no integer part")
    nearest = mpmath.nint(value)
    near = abs(value - nearest) < mpmath.mpf(10) ** -(mpmath.mp.dps // 2)
    return int(nearest if near else rounded(value))


def _count(value: Value) -> int:
    if not isinstance(value, Fraction) or value.denominator != 1 or value < 0:
        raise Undefined("not a natural number")
    return int(value)


@lru_cache(maxsize=256)
def _factorial(count: int) -> int:
    return math.factorial(count)


def exact_root(value: int, degree: int) -> int | None:
    """The integer root, or None where it is not an integer."""
    if degree > 64 or value.bit_length() > 4096:
        return None
    low, high = 0, 1 << (value.bit_length() // degree + 1)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if middle**degree < value else (low, middle)
    return low if low**degree == value else None


# Points ---------------------------------------------------------------------------------------------------

_INTEGERS = (2, 3, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12)
_POSITIVE = tuple(
    Fraction(top, bottom) for top, bottom in ((17, 7), (5, 11), (31, 9), (8, 13), (43, 10), (27, 17))
)
_ANY = (
    Fraction(-19, 8),
    Fraction(11, 6),
    Fraction(-3, 7),
    Fraction(-26, 5),
    Fraction(7, 12),
    Fraction(-9, 4),
)


def points(names: frozenset[str]) -> Iterator[tuple[str, dict[str, Value]]]:
    """Kind ("integer", "positive" or "signed") and values of the symbols, the same for every call.

    Some integer points grow along the alphabet and some against it, so that n - k is now positive, now not.
    """
    ordered = sorted(names)
    for kind, values in (("integer", _INTEGERS), ("positive", _POSITIVE), ("signed", _ANY)):
        for shift in range(11 if kind == "integer" else 6):
            direction = 0 if kind != "integer" or shift < 3 else -1 if shift < 7 else 1
            yield (
                kind,
                {
                    name: Fraction(values[(shift + 5 * index) % len(values)])
                    + index // len(values)
                    + 9 * (index if direction > 0 else len(ordered) - index) * abs(direction)
                    for index, name in enumerate(ordered)
                },
            )


@dataclass(frozen=True)
class Evaluation:
    """Values of several trees at one point; the non-rational ones agree to `digits` with the true ones."""

    values: tuple[Value, ...]
    digits: int


def evaluated(nodes: tuple[Node, ...], point: Mapping[str, Value]) -> Evaluation:
    """Evaluate several trees at one point, with digits enough for what cancels.

    Raises Undefined where one has no value, TooLarge where one cannot be written down.
    """
    digits = GUARD_DIGITS
    while True:
        with mpmath.workdps(digits):
            evaluators = [Evaluator(point) for _ in nodes]
            values = tuple(run(node) for run, node in zip(evaluators, nodes, strict=True))
        exponent = max(run.exponent for run in evaluators)
        needed = GUARD_DIGITS + 2 * exponent
        if digits >= needed or all(isinstance(value, Fraction) for value in values):
            return Evaluation(values, GUARD_DIGITS + exponent - ROUNDING_DIGITS)
        if needed > MAX_DIGITS:
            raise TooLarge("more digits than any answer needs")
        digits = needed


def same_value(first: Value, second: Value, digits: int = GUARD_DIGITS - ROUNDING_DIGITS) -> bool:
    """Whether two values are equal: exactly where both are rational, else to `digits`."""
    if isinstance(first, Fraction) and isinstance(second, Fraction):
        return first == second
    with mpmath.workdps(digits + ROUNDING_DIGITS):
        first, second = real(first), real(second)
        if mpmath.isinf(first) or mpmath.isinf(second):
            return bool(first == second)
        return bool(abs(first - second) <= max(abs(first), abs(second)) * mpmath.mpf(10) ** -digits)


def equal(first: Node, second: Node) -> bool | None:
    """Whether two scalar formulas are the same; None where no comparison decides.

    Free symbols take integer, positive and signed values. Formulas that agree at integers only (floors) or
    at positive values only are left undecided, unless both take roots or logarithms of symbols, which
    contests use for lengths and other positive quantities.
    """
    names = symbols(first) | symbols(second)
    if not names or names == {"i"}:
        return _equal_at((first, second), {"i": mpmath.mpc(0, 1)})
    agreeing = {"integer": 0, "positive": 0, "signed": 0}
    for kind, point in points(names):
        verdict = _equal_at((first, second), point)
        if verdict:
            agreeing[kind] += 1
        elif verdict is not None:
            if kind == "signed" and _takes_branch(first) and _takes_branch(second):
                continue
            return None if kind != "integer" and agreeing["integer"] >= 3 else False
    return True if sum(agreeing.values()) >= 4 else None


def _takes_branch(node: Node) -> bool:
    """Whether a root, a fractional power or a logarithm is taken of a formula with symbols."""
    taken = node.head in ("root", "log", "ln")
    if node.head == "pow":
        exponent = constant(node.args[1])
        taken = isinstance(exponent, Fraction) and exponent.denominator > 1
    if taken and symbols(node.args[0]):
        return True
    return any(_takes_branch(child) for child in node.args)


def _equal_at(nodes: tuple[Node, Node], point: Mapping[str, Value]) -> bool | None:
    try:
        found = evaluated(nodes, point)
    except FAILURES:
        return None
    first, second = found.values
    complex_values = [isinstance(value, mpmath.mpc) and value.imag != 0 for value in found.values]
    if len(point) > 1 and any(complex_values) and not all(complex_values):
        return None
    return same_value(first, second, found.digits)


def constant(node: Node) -> Value | None:
    """The value of a formula without symbols, or None where it has none."""
    if symbols(node):
        return None
    try:
        return evaluated((node,), {}).values[0]
    except FAILURES:
        return None


def rational(node: Node) -> Fraction | None:
    """The value of a formula without symbols where it is rational."""
    value = constant(node)
    return value if isinstance(value, Fraction) else None


def numbers_in(node: Node) -> Iterator[Node]:
    """Every number node of the tree."""
    if node.head == "number":
        yield node
    yield from itertools.chain.from_iterable(numbers_in(child) for child in node.args)
