"""Functions and equations in answers: definitions, assignments, loci, inequalities, chains of equals."""

import itertools
from collections.abc import Sequence

import mpmath

from evaluation.math.families import same_family
from evaluation.math.nodes import Node
from evaluation.math.trees import is_name, renamed
from evaluation.math.values import FAILURES, constant, equal, evaluated, points, real, same_value, symbols
from evaluation.math.verdicts import Opinion, from_equality, right, undecided, wrong

_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_INTEGER_PARAMETERS = frozenset("ijklmnrst")  # letters that run through the integers in "n = 4k + 3"
_ENOUGH = 5  # points at which two equations must be proportional


def assigned_name(node: Node) -> str | None:
    """The name that a definition or an assignment gives a value to."""
    if node.head == "define":
        return str(node.value)
    if node.head == "relation" and node.value == ("=",) and node.args[0].head == "symbol":
        return str(node.args[0].value)
    return None


def assigned_names(node: Node) -> list[str]:
    """The different names in a list whose items all are definitions or assignments, else none."""
    items = node.args if node.head in ("list", "set") else (node,)
    names = [assigned_name(item) for item in items]
    return [] if None in names else list(dict.fromkeys(str(name) for name in names))


def compare_definitions(gold: Node, answer: Node) -> Opinion:
    """`f(x) = ...` against a definition, an equation for the value, or the bare formula."""
    *parameters, body = gold.args
    if answer.head == "define":
        *given, other = answer.args
        if len(given) != len(parameters):
            return wrong("a function of another number of arguments")
        names = {str(old.value): str(new.value) for old, new in zip(given, parameters, strict=True)}
        taken = symbols(other) & (set(names.values()) - set(names))
        if taken:  # a constant that has the name of the gold function's argument
            other = renamed(other, {name: f"{name}*" for name in taken})
        other = renamed(other, names)
    elif answer.head == "relation":
        value = value_of(body, answer)
        if isinstance(value, Opinion):
            return value
        other = value
    elif answer.head in ("tuple", "list", "set", "interval", "union", "named_set", "set_builder"):
        return wrong(f"a {answer.head.replace('_', ' ')} where one function is due")
    else:
        other = answer
    name = str(answer.value) if answer.head == "define" else None
    return _compare_bodies(body, other, frozenset(str(parameter.value) for parameter in parameters), name)


def _compare_bodies(gold: Node, answer: Node, parameters: frozenset[str], name: str | None) -> Opinion:
    """By value, with one-to-one renaming of the free constants that only one side has.

    `name` is that of the answer's function, if it states one.
    """
    if name is not None and name in symbols(answer) - parameters:
        return undecided("a function in terms of its own values")
    opinion = from_equality(equal(gold, answer), "by value")
    mine, theirs = (_free_constants(node, parameters) for node in (gold, answer))
    if opinion.verdict == "right" or not (mine and theirs):
        return opinion
    only_mine, only_theirs = sorted(mine - theirs), sorted(theirs - mine)
    if len(only_mine) == len(only_theirs) <= 2:
        for order in itertools.permutations(only_mine):
            names = dict(zip(only_theirs, order, strict=True))
            if names and equal(gold, renamed(answer, names)):
                return right("equal up to the names of free constants")
    if same_family(gold, answer, parameters) is False:
        return wrong("another family of functions")
    return undecided("functions with free constants that may be one family")


def _free_constants(node: Node, parameters: frozenset[str]) -> frozenset[str]:
    """Symbols that are neither arguments nor, as "bar x", made of them."""
    return frozenset(name for name in symbols(node) if name.rpartition(" ")[2] not in parameters)


def compare_equations(gold: Node, answer: Node) -> Opinion:
    """An assignment or an equation against an equation, or against the bare value of the assignment."""
    operators = gold.value
    if not isinstance(operators, tuple) or set(operators) != {"="}:
        return undecided("a relation that cannot be compared")
    target = gold.args[-1]
    assignment = gold.args[0].head == "symbol"
    if (
        assignment
        and answer.head == "relation"
        and answer.args[0] == gold.args[0]
        and equal(target, answer.args[-1])
    ):
        return right("the same value of the same unknown")
    if answer.head == "define":
        return (
            from_equality(equal(target, answer.args[-1]), "by value") if assignment else wrong("a function")
        )
    if answer.head != "relation":
        if answer.head in ("tuple", "list", "set", "interval", "union"):
            return wrong(f"a {answer.head} where an equation is due")
        if assignment:
            return from_equality(equal(target, answer), "by value")
        if is_name(gold.args[0]) and not symbols(target) and equal(target, answer):
            return undecided("a value where the gold answer is an equation or names that value")
        return wrong("a formula, not an equation")
    if answer.value != ("=",) or len(gold.args) != 2:
        return undecided("relations that cannot be compared")
    if _proportional(gold, answer) is not None:
        return right("the same equation")
    if assignment and answer.args[0] == gold.args[0] and _same_progression(target, answer.args[1]):
        return right("the same integers, their parameter renamed")
    if _proportional_up_to_names(gold, answer):
        return undecided("the same equation in other letters")
    other_unknown = assignment and answer.args[0].head == "symbol" and answer.args[0] != gold.args[0]
    if other_unknown and equal(target, answer.args[1]):
        return undecided("the same value for another unknown")
    return wrong("another equation")


def _same_progression(gold: Node, answer: Node) -> bool:
    """Whether two formulas in one integer parameter each differ by the parameter's letter only."""
    mine, theirs = symbols(gold), symbols(answer)
    if not len(mine) == len(theirs) == 1 or not (mine | theirs) <= _INTEGER_PARAMETERS:
        return False
    return bool(equal(gold, renamed(answer, {min(theirs): min(mine)})))


def _proportional_up_to_names(gold: Node, answer: Node) -> bool:
    """Whether some one-to-one renaming of letters that the gold answer lacks makes the equations the same."""
    only_mine, only_theirs = sorted(symbols(gold) - symbols(answer)), sorted(symbols(answer) - symbols(gold))
    if not 0 < len(only_mine) == len(only_theirs) <= 3:
        return False
    orders = itertools.permutations(only_mine)
    renamings = (dict(zip(only_theirs, order, strict=True)) for order in orders)
    return any(_proportional(gold, renamed(answer, names)) is not None for names in renamings)


def compare_inequalities(gold: Node, answer: Node) -> Opinion:
    """Inequalities of two sides each: the same up to a positive factor, in the same direction."""
    if not all(isinstance(node.value, tuple) and len(node.value) == 1 for node in (gold, answer)):
        return _compare_chains(gold, answer)
    mine, theirs = str(gold.value[0]), str(answer.value[0])  # type: ignore[index]
    if mine not in _FLIPPED or theirs not in _FLIPPED:
        return undecided("conditions that cannot be compared")
    factor = _proportional(gold, answer)
    if factor is None:
        return wrong("another inequality")
    expected = theirs if factor > 0 else _FLIPPED[theirs]
    return right("the same inequality") if mine == expected else wrong("the direction or strictness differs")


def _compare_chains(gold: Node, answer: Node) -> Opinion:
    if gold.value == answer.value and all(equal(*pair) for pair in zip(gold.args, answer.args, strict=True)):
        return right("the same chain of inequalities")
    return undecided("chains of inequalities that cannot be compared")


def _proportional(gold: Node, answer: Node) -> mpmath.mpf | None:
    """The constant quotient of the differences of both sides, or None where it is not constant."""
    first, second = (Node("add", (node.args[0], Node("neg", (node.args[1],)))) for node in (gold, answer))
    if symbols(first) != symbols(second) or any(
        "tuple" in (side.head for side in node.args) for node in (gold, answer)
    ):
        return None
    quotients = []
    for _, point in points(symbols(first)):
        try:
            found = evaluated((first, second), point)
        except FAILURES:
            continue
        one, other = found.values
        if any(isinstance(value, mpmath.mpc) for value in found.values) or (one == 0 and other == 0):
            continue
        if one == 0 or other == 0:
            return None
        with mpmath.workdps(found.digits + 20):
            quotients.append(one / other if not isinstance(one, mpmath.mpf) else one / real(other))
        if not same_value(quotients[0], quotients[-1], found.digits):
            return None
    return real(quotients[0]) if len(quotients) >= _ENOUGH else None


def value_of(gold: Node, answer: Node) -> Node | Opinion:
    """The value that an answer states for a scalar gold answer: itself, or the right end of `x = ... = 5`."""
    if answer.head == "define":
        return answer.args[-1]
    if answer.head != "relation":
        return answer
    operators = answer.value
    if not isinstance(operators, tuple) or not set(operators) <= {"=", "~"}:
        return wrong("a condition where one value is due")
    terms = list(answer.args)
    if "~" in operators:
        exact = terms[: operators.index("~") + 1]
        named = all(is_name(term) for term in exact)
        terms = terms if named and not symbols(gold) else exact
    return _end_of_chain(gold, terms)


def _end_of_chain(gold: Node, terms: Sequence[Node]) -> Node | Opinion:
    """The stated value of a chain of equals, which must agree with itself."""
    first, last = terms[0], terms[-1]
    if len(terms) == 1:
        return first
    if not symbols(gold):
        fixed = [term for term in terms if not symbols(term)]
        if not fixed:
            return wrong("an equation where one value is due")
        if any(equal(term, fixed[0]) is False for term in fixed):
            return wrong("an equation that contradicts itself")
        free = [term for term in terms if symbols(term)]
        if not all(is_name(term) for term in free) or (
            constant(gold) == 0 and any(t.head == "add" for t in free)
        ):
            return wrong("an equation where one value is due")
        return fixed[-1]
    if last.head == "symbol" and first.head != "symbol":
        return first
    return last if is_name(first) else undecided("an equation where a formula is due")
