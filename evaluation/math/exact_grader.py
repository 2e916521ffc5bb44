"""Grader by structure and exact values: both answers are read whole, and compared kind by kind.

Lists and sets match in any order, tuples in theirs, intervals as sets of reals whatever their notation,
functions up to the names of argument and free constants, formulas by value. It shares no code with
math-verify, neither to read nor to compare.
"""

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache

import mpmath

from evaluation.math import functions, progressions, regions
from evaluation.math.answers import integer_of, same_text, tidy
from evaluation.math.nodes import STRUCTURES, Node, Unreadable, in_radians, number
from evaluation.math.reader import read
from evaluation.math.trees import alternatives, is_name, renamed
from evaluation.math.values import constant, equal, numbers_in, rational, real, symbols
from evaluation.math.verdicts import Opinion, from_equality, right, undecided, wrong
from evaluation.math.words import units_of

_REGIONS = ("interval", "union", "intersection", "difference", "named_set")
_INEQUALITIES = ("<", "<=", ">", ">=", "!=", "in", "not in")
_INTEGER_NAMES = frozenset("ijklmnKMN")  # letters that usually stand for integers
_OPPOSITES = (("odd", "even"), ("prime", "composite"), ("yes", "no"), ("true", "false"))


@lru_cache(maxsize=4096)
def _read(text: str) -> Node:
    return _unwrapped(read(text))


def grade_exact(gold: str, answer: str, decimals: bool = False) -> Opinion:
    """Compare two answers. `decimals` lets a rounded decimal (three digits or more) stand for a number."""
    if same_text(gold, answer):
        return right("the same text")
    try:
        expected = _read(gold)
    except Unreadable as problem:
        return undecided(f"gold answer not readable: {problem}")
    integer = integer_of(answer)
    try:
        given = number(integer) if integer is not None and _is_scalar(expected) else _read(answer)
    except Unreadable as problem:
        return undecided(f"answer not readable: {problem}")
    gold_integer = integer_of(gold)
    if gold_integer is not None and _is_scalar(given):
        expected = number(gold_integer)
    gold_unit, unit = units_of(tidy(gold)), units_of(tidy(answer))
    if gold_unit and unit and gold_unit != unit:
        return undecided(f"the units differ: {gold_unit} and {unit}")
    if decimals and _rounds_to(expected, given):
        return right("a rounded decimal")
    try:
        return compare(expected, given)
    except Unreadable as problem:
        return undecided(str(problem))


def compare(gold: Node, answer: Node) -> Opinion:
    """Compare two trees by the kind of the gold answer."""
    gold, answer = _expanded(gold), _expanded(answer)
    if "words" in (gold.head, answer.head):
        return _compare_words(gold, answer)
    if "congruence" in (gold.head, answer.head):
        return progressions.compare_congruences(gold, answer)
    if "ratio" in (gold.head, answer.head):
        return _compare_ratios(gold, answer)
    if _is_region(gold):
        return _compare_regions(gold, answer)
    if gold.head in ("list", "set"):
        return _compare_lists(gold, answer)
    if gold.head == "tuple":
        return _compare_tuples(gold, answer)
    if gold.head == "define":
        return functions.compare_definitions(gold, answer)
    if gold.head == "relation":
        return functions.compare_equations(gold, answer)
    if gold.head == "set_builder":
        return _compare_set_builders(gold, answer)
    return _compare_scalars(gold, answer)


# Kinds ----------------------------------------------------------------------------------------------------


def _is_scalar(node: Node) -> bool:
    return node.head not in STRUCTURES


def _is_inequality(node: Node) -> bool:
    return node.head == "relation" and any(operator in _INEQUALITIES for operator in _operators(node))


def _operators(node: Node) -> tuple[str, ...]:
    return node.value if isinstance(node.value, tuple) else ()


def _is_region(node: Node) -> bool:
    if node.head in _REGIONS or _is_inequality(node):
        return True
    if node.head == "set_builder":
        return node.args[0].head != "tuple"
    return node.head == "list" and any(_is_inequality(item) for item in node.args)


def _unwrapped(node: Node) -> Node:
    """`S = {1, 2}` and `x \\in {1, 2}` by their right sides; a set of one member by its member."""
    if node.head == "relation" and _operators(node) in (("=",), ("in",)) and is_name(node.args[0]):
        value = node.args[1]
        if value.head in ("set", "named_set") or (_operators(node) == ("=",) and value.head in _REGIONS):
            return _unwrapped(value)
    if (
        node.head == "relation"
        and _operators(node) == ("=",)
        and all(side.head == "tuple" for side in node.args)
    ):
        left, value = node.args
        if any(name.head == "dots" for name in left.args):
            return value
        if len(left.args) == len(value.args) and all(map(is_name, left.args)):
            return Node("tuple", value.args, value=tuple(str(name.value) for name in left.args))
    if node.head in ("set", "list") and len(node.args) == 1 and node.args[0].head != "dots":
        return _unwrapped(node.args[0])
    if node.head == "list":
        return Node("list", tuple(_unwrapped(item) for item in node.args), node.value)
    return node


def _expanded(node: Node) -> Node:
    """Plus-minus signs as lists of alternatives."""
    items = node.args if node.head in ("list", "set") else (node,)
    expanded = [alternative for item in items for alternative in alternatives(item)]
    if len(expanded) == len(items):
        return node
    return Node("list", tuple(expanded), node.value if node.head == "list" else ",")


# Lists and tuples -----------------------------------------------------------------------------------------


def _compare_lists(gold: Node, answer: Node) -> Opinion:
    if any(item.head == "dots" for item in (*gold.args, *answer.args)):
        return progressions.compare(gold, answer)
    if answer.head == "tuple":
        if answer.value is None:
            return wrong("a tuple where several answers are due")
        assert isinstance(answer.value, tuple)
        pairs = zip(answer.value, answer.args, strict=True)
        answer = Node(
            "list", tuple(Node("relation", (Node("symbol", value=n), v), ("=",)) for n, v in pairs), ","
        )
    if answer.head in ("union", "intersection", "difference"):
        answer = regions.as_points(answer) or answer
    if _is_region(answer):
        region_only = _is_inequality(answer) or answer.head == "list"
        return (
            undecided("conditions where a list is due")
            if region_only
            else wrong("a region where a list is due")
        )
    gold_names, names = functions.assigned_names(gold), functions.assigned_names(answer)
    items = answer.args if answer.head in ("list", "set") else (answer,)
    if len(gold_names) > 1:
        return _compare_assignments(gold, Node("list", items, ","), gold_names)
    if len(names) > 1 and not gold_names:
        return undecided("values of several unknowns where several answers are due")
    return match_unordered(gold.args, items, compare)


def _compare_assignments(gold: Node, answer: Node, names: Sequence[str]) -> Opinion:
    """Values of several unknowns, or several functions of different names: name by name."""
    given = functions.assigned_names(answer)
    if sorted(set(given)) != sorted(set(names)):
        return undecided("the names differ from those of the gold answer")
    opinions = []
    for name in sorted(set(names)):
        mine, theirs = (
            [item for item in node.args if functions.assigned_name(item) == name] for node in (gold, answer)
        )
        opinions.append(match_unordered(mine, theirs, compare))
    return _weakest(opinions, "every named value")


def match_unordered(
    gold: Sequence[Node], answer: Sequence[Node], agree: Callable[[Node, Node], Opinion]
) -> Opinion:
    """Match two lists in any order, repeated items counted once."""
    gold, answer = _distinct(gold, agree), _distinct(answer, agree)
    unused = list(answer)
    open_items, doubt = 0, ""
    for item in gold:
        opinions = [agree(item, candidate) for candidate in unused]
        matching = [index for index, opinion in enumerate(opinions) if opinion.verdict == "right"]
        if matching:
            unused.pop(matching[0])
            continue
        doubts = [opinion.reason for opinion in opinions if opinion.verdict == "undecided"]
        if not doubts:
            return wrong(f"{len(answer)} answers for {len(gold)}, one of the gold answers is not among them")
        open_items, doubt = open_items + 1, doubts[0]
    if open_items:
        return undecided(doubt)
    if unused:
        return wrong(f"{len(answer)} answers for {len(gold)}")
    return right(f"all of {len(gold)} answers")


def _distinct(items: Sequence[Node], agree: Callable[[Node, Node], Opinion]) -> list[Node]:
    kept: list[Node] = []
    for item in items:
        if not any(item == other or agree(other, item).verdict == "right" for other in kept):
            kept.append(item)
    return kept


def _weakest(opinions: Sequence[Opinion], reason: str) -> Opinion:
    for verdict in ("wrong", "undecided"):
        for opinion in opinions:
            if opinion.verdict == verdict:
                return opinion
    return right(reason)


def _compare_tuples(gold: Node, answer: Node) -> Opinion:
    if answer.head == "tuple":
        if len(answer.args) != len(gold.args):
            return wrong(f"{len(answer.args)} entries for {len(gold.args)}")
        pairs = zip(gold.args, answer.args, strict=True)
        return _weakest([compare(*pair) for pair in pairs], "every entry of the tuple")
    if _is_region(answer) and len(gold.args) == 2:
        return _compare_regions(gold, answer)
    if answer.head == "list" and len(answer.args) == len(gold.args) and not functions.assigned_names(answer):
        bare = [item.args[-1] if item.head == "relation" else item for item in answer.args]
        opinions = [compare(*pair) for pair in zip(gold.args, bare, strict=True)]
        if all(opinion.verdict == "right" for opinion in opinions):
            return undecided("the entries of the tuple without brackets")
    if answer.head == "relation" or (answer.head == "list" and functions.assigned_names(answer)):
        return _compare_named(gold, answer)
    return wrong(f"a {answer.head.replace('_', ' ')} where a tuple is due")


def _compare_named(gold: Node, answer: Node) -> Opinion:
    """`a = 2, b = 3` for (a, b) = (2, 3); a tuple whose entries have no names leaves their order open."""
    items = answer.args if answer.head == "list" else (answer,)
    given = {functions.assigned_name(item): item.args[-1] for item in items}
    names = gold.value if isinstance(gold.value, tuple) else ()
    if len(names) != len(gold.args) or len(given) != len(items) or given.keys() != set(names):
        return undecided("named values for a tuple")
    pairs = zip(names, gold.args, strict=True)
    return _weakest([compare(entry, given[name]) for name, entry in pairs], "every named entry of the tuple")


# Regions --------------------------------------------------------------------------------------------------


def _compare_regions(gold: Node, answer: Node) -> Opinion:
    named = [node.value if node.head == "named_set" else None for node in (gold, answer)]
    if None not in named:
        return right("the same number set") if named[0] == named[1] else wrong("another number set")
    subjects = [regions.quantity(node) for node in (gold, answer)]
    if None not in subjects and subjects[0] != subjects[1]:
        if all(subject is not None and subject.head == "symbol" for subject in subjects):
            return undecided("conditions on different unknowns")
        return _compare_conditions(gold, answer, "different quantities")
    if None in subjects and not all(subject is None or regions.is_unknown(subject) for subject in subjects):
        return undecided("a condition on a formula, not on an unknown")
    try:
        expected, given = regions.region_of(gold), regions.region_of(answer)
    except regions.NoRegion as problem:
        return _compare_conditions(gold, answer, str(problem))
    if regions.same_region(expected, given):
        return right("the same set of reals")
    counted = all(subject is not None and str(subject.value) in _INTEGER_NAMES for subject in subjects)
    if counted and regions.same_integers(expected, given):
        return undecided("the same integers, but not the same reals")
    return wrong("another set of reals")


def _compare_conditions(gold: Node, answer: Node, problem: str) -> Opinion:
    """Regions with symbolic bounds, by their parts."""
    if _is_inequality(gold) and _is_inequality(answer):
        return functions.compare_inequalities(gold, answer)
    if gold.head == answer.head == "interval" or {gold.head, answer.head} == {"interval", "tuple"}:
        brackets = [str(node.value) if node.head == "interval" else "()" for node in (gold, answer)]
        if brackets[0] != brackets[1] or len(answer.args) != len(gold.args):
            return wrong("the brackets differ")
        pairs = zip(gold.args, answer.args, strict=True)
        return _weakest([compare(*pair) for pair in pairs], "both bounds of the interval")
    if gold.head == "set_builder":
        return _compare_set_builders(gold, answer)
    if any(item.head == "dots" for item in answer.args):
        return undecided("dots where a region is due")
    if (
        gold.head == "named_set"
        or answer.head in ("named_set", "set_builder", *_REGIONS)
        or _is_region(answer)
    ):
        return undecided(f"sets that cannot be compared: {problem}")
    return wrong(f"a {answer.head.replace('_', ' ')} where a region is due")


def _compare_set_builders(gold: Node, answer: Node) -> Opinion:
    head, condition = gold.args
    if answer.head != "set_builder":
        if answer.head == "relation":
            return compare(condition, answer)
        return undecided("a set by its condition against another notation")
    given_head, given = answer.args
    names = [[str(part.value) for part in (node.args or (node,))] for node in (head, given_head)]
    if head.head != given_head.head or len(names[0]) != len(names[1]):
        return wrong("sets of different things")
    return compare(condition, renamed(given, dict(zip(names[1], names[0], strict=True))))


# Scalars and words ----------------------------------------------------------------------------------------


def _compare_scalars(gold: Node, answer: Node) -> Opinion:
    value = functions.value_of(gold, answer)
    if isinstance(value, Opinion):
        return value
    if not _is_scalar(value):
        return wrong(f"a {value.head.replace('_', ' ')} where one value is due")
    opinion = from_equality(equal(gold, value), "by value")
    if opinion.verdict == "wrong" and equal(in_radians(gold), in_radians(value)):
        return right("the same angle in degrees and radians")
    if opinion.verdict == "wrong" and any(node.decimal for node in numbers_in(value)):
        return wrong("a decimal that is not the exact value")
    return opinion


def _rounds_to(gold: Node, answer: Node) -> bool:
    """Whether `answer` is a decimal that the value of `gold` rounds to."""
    answer = answer.args[-1] if answer.head == "relation" else answer
    sign, literal = (-1, answer.args[0]) if answer.head == "neg" else (1, answer)
    value = constant(gold) if _is_scalar(gold) else None
    if value is None or not literal.decimal or isinstance(value, mpmath.mpc):
        return False
    assert isinstance(literal.value, Fraction)
    places = next((k for k in range(1, 60) if (literal.value * 10**k).denominator == 1), 60)
    if len(str(literal.value * 10**places)) < 3:
        return False
    with mpmath.workdps(80):
        return bool(abs(real(value) - sign * real(literal.value)) <= mpmath.mpf(10) ** -places * 0.5000001)


def _compare_ratios(gold: Node, answer: Node) -> Opinion:
    """Ratios and times of day: only the same terms are right; 6:4 against 3:2 is left to a judge."""
    if gold.head == answer.head and len(gold.args) == len(answer.args):
        pairs = list(zip(gold.args, answer.args, strict=True))
        if all(equal(*pair) for pair in pairs):
            return right("the same ratio")
        terms = [(rational(one), rational(other)) for one, other in pairs]
        quotients = {one / other for one, other in terms if one is not None and other}
        if len(quotients) == 1 and all(one is not None and other for one, other in terms):
            return undecided("the same ratio in other terms")
        return wrong("another ratio")
    return undecided("a ratio against another notation")


def _compare_words(gold: Node, answer: Node) -> Opinion:
    if gold.head == answer.head:
        if gold.value == answer.value:
            return right("the same words")
        mine, theirs = str(gold.value).split(), str(answer.value).split()
        for pair in (*_OPPOSITES, *(pair[::-1] for pair in _OPPOSITES)):
            if [pair[1] if word == pair[0] else word for word in mine] == theirs and pair[0] in mine:
                return wrong(f"{pair[1]} where {pair[0]} is due")
        return undecided("answers in different words")
    if gold.head == "words":
        return undecided("the gold answer is in words")
    if _is_scalar(gold) and symbols(gold) == frozenset() and not re.search(r"\d|text:", str(answer.value)):
        return wrong("words where a number is due")
    return undecided("the answer is in words")
