"""Grader on math-verify, behind guards against the answers that the library is known to take for others.

The library reads with its own grammar and compares with SymPy; nothing of the exact grader is used. It has
no time limit of its own here (its signals fail outside the main thread and do not stop C code): run it in
`evaluation.math.grading_pool`. Where a guard applies, or where a "not equal" may only mean that the library
did not see through the notation, the opinion is "undecided".
"""

import logging
import re
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended.sets import FiniteSet
from math_verify import LatexExtractionConfig, parse, verify

from evaluation.math.answers import same_text, tidy
from evaluation.math.verdicts import Opinion, right, undecided, wrong

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own time limit is off

_EXTRACTION = [LatexExtractionConfig(boxed_match_priority=-1)]
_DIGITS = 60  # of the comparison that a positive verdict on numbers has to pass
_UNSAFE = {
    "words": r"\\text|(?<![\\A-Za-z])[A-Za-z]{3,}",
    "dots": r"\\ldots",
    "a double factorial": r"!!",
    "a tower of powers": r"\^[^\^]{0,12}\^[^\^]{0,12}\^",
    "a prime": r"'",
    "a ratio": r":",
    "a greatest common divisor or least common multiple": r"gcd|lcm",
    "upright letters": r"\\mathrm|\\operatorname",
    "numbers side by side": r"\d\s+\d|\)\s*\(\s*\d",
    "a letter d in an exponent": r"\^\{?\w*d",
    "a binary or other base": r"\d_",
    "a congruence": r"\\equiv|mod",
    "a slash before a product": r"/\s*\d+\s*[A-Za-z(\\]",
}
_UNSAFE_PATTERNS = {name: re.compile(pattern) for name, pattern in _UNSAFE.items()}
_COMMAND = re.compile(r"\\[A-Za-z]+")


def grade_with_math_verify(gold: str, answer: str) -> Opinion:
    """Compare two answers with math-verify."""
    if same_text(gold, answer):
        return right("the same text")
    problem = _unsafe(gold, answer)
    if problem is not None:
        return undecided(f"math-verify misreads {problem}")
    expected, given = _parsed(gold), _parsed(answer)
    if expected is None or given is None:
        return undecided("math-verify cannot read it")
    kinds = [_kind(expected, gold), _kind(given, answer)]
    agree = bool(verify(expected, given, timeout_seconds=None))
    return _guarded(agree, expected, given, kinds)


def _unsafe(gold: str, answer: str) -> str | None:
    """What in the two texts the library is known to misread, or None."""
    texts = [tidy(gold), tidy(answer)]
    bare = [_COMMAND.sub(" ", text) for text in texts]
    letters = set("".join(re.findall(r"[A-Za-z]", "".join(bare))))
    if any(letter.swapcase() in letters for letter in letters):
        return "capital and small letters"
    for name, pattern in _UNSAFE_PATTERNS.items():
        if any(pattern.search(text) for text in texts):
            return name
    return None


@lru_cache(maxsize=2048)
def _parsed(text: str) -> Any:
    """The library's reading of the whole answer, or None."""
    found = parse(f"${tidy(text)}$", _EXTRACTION, fallback_mode="no_fallback", parsing_timeout=None)
    return found[0] if found and not isinstance(found[0], str) else None


def _kind(parsed: Any, text: str) -> str:
    """ "number", "formula", "tuple", "set", "interval", "relation" or "other", brackets counted."""
    if isinstance(parsed, sympy.Tuple):
        return "tuple"
    if isinstance(parsed, FiniteSet | sympy.FiniteSet):
        bracketed = re.fullmatch(r"\(.*,.*\)", tidy(text).replace(" ", "")) and "),(" not in text.replace(
            " ", ""
        )
        return "tuple" if bracketed else "set"
    if isinstance(parsed, sympy.Set):
        return "interval"
    if isinstance(parsed, sympy.logic.boolalg.Boolean):
        return "relation"
    if isinstance(parsed, sympy.Expr):
        return "formula" if parsed.free_symbols else "number"
    return "other"


def _guarded(agree: bool, expected: Any, given: Any, kinds: list[str]) -> Opinion:
    if kinds == ["number", "number"]:
        return _compare_numbers(agree, expected, given)
    if not agree:
        if kinds == ["formula", "formula"] and _differ_at_integers(expected, given):
            return wrong("math-verify: different formulas")
        if kinds == ["set", "set"] and len(expected.args) != len(given.args):
            return wrong("math-verify: another number of answers")
        return undecided("math-verify sees no equality")
    if kinds[0] != kinds[1]:
        return undecided(f"math-verify equates a {kinds[0]} with a {kinds[1]}")
    if _has_decimal(given) and not _has_decimal(expected):
        return undecided("math-verify equates a decimal with an exact value")
    return right("math-verify: equal")


def _differ_at_integers(expected: Any, given: Any) -> bool:
    """Whether two formulas in the same symbols have different real values at positive integers."""
    if expected.free_symbols != given.free_symbols:
        return True
    for start in (7, 12):
        ordered = sorted(expected.free_symbols, key=str)
        point = {symbol: sympy.Integer(start + 4 * index) for index, symbol in enumerate(ordered)}
        values = [sympy.N(formula.subs(point).doit(), 30) for formula in (expected, given)]
        if not all(value.is_real for value in values):
            return False
        if abs(values[0] - values[1]) > sympy.Float(10) ** -15 * max(abs(values[0]), abs(values[1])):
            return True
    return False


def _has_decimal(parsed: Any) -> bool:
    return bool(parsed.atoms(sympy.Float)) if isinstance(parsed, sympy.Basic) else False


def _compare_numbers(agree: bool, expected: Any, given: Any) -> Opinion:
    """Numbers: an agreement has to hold exactly, or to many digits relative to their size."""
    difference = _exact(expected) - _exact(given)
    if not difference.is_real:
        return undecided("math-verify: numbers that are not real")
    if difference.is_Rational:
        same = difference == 0
    else:
        size = abs(sympy.N(_exact(expected), 20))
        error = abs(sympy.N(difference, _DIGITS, maxn=5 * _DIGITS))
        if not error.is_number or not size.is_number or size > sympy.Float(10) ** 15:
            return undecided("math-verify: a number too large to be compared by its digits")
        same = bool(error <= size * sympy.Float(10) ** (20 - _DIGITS))
    if same:
        return right("math-verify: equal numbers")
    return (
        wrong("math-verify: different numbers")
        if not agree
        else wrong("equal to math-verify, but not exactly")
    )


def _exact(value: Any) -> Any:
    """`value` evaluated, its decimals taken at their word."""
    exact = value.replace(lambda part: isinstance(part, sympy.Float), lambda part: sympy.Rational(str(part)))
    return exact.doit()
