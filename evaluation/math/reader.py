"""Reads an answer in LaTeX or plain notation into a tree, strictly: what is not understood is refused.

One recursive descent over tokens, with the implied meanings of contest answers: "3, 7" lists answers,
"(3, 7)" is a pair, "[3, 7)" an interval, "f(x) = x + 1" defines a function, "2\\frac12" is a mixed number.
"""

import re
from fractions import Fraction

from evaluation.math.answers import tidy
from evaluation.math.formulas import CLOSING, GREEK, FormulaParser, tokens_of
from evaluation.math.nodes import Node, Unreadable
from evaluation.math.words import without_wording

MAX_LENGTH = 4000  # characters: the longest answer that is read at all

_RELATIONS = {
    "=": "=",
    "<": "<",
    ">": ">",
    r"\le": "<=",
    r"\ge": ">=",
    r"\ne": "!=",
    r"\in": "in",
    r"\notin": "not in",
    r"\approx": "~",
    r"\equiv": "==",
}
_SET_OPERATIONS = {r"\cup": "union", r"\cap": "intersection", r"\setminus": "difference"}
_SEPARATORS = {",": ",", ";": ",", r"\land": "and", r"\wedge": "and", r"\lor": "or", r"\vee": "or"}


def read(text: str) -> Node:
    """The tree of an answer.

    Answers in words are a "words" node. Raises Unreadable for notation that the reader does not know.
    """
    if len(text) > MAX_LENGTH:
        raise Unreadable(f"longer than {MAX_LENGTH} characters")
    if r"\begin" in text:
        raise Unreadable("an environment")
    cleaned, words = without_wording(_REPEATING.sub(_fraction_of, tidy(text)))
    if words is not None:
        return words_node(words)
    if not cleaned.strip():
        raise Unreadable("empty")
    parser = Parser(tokens_of(cleaned))
    node = parser.answer()
    if parser.peek() is not None:
        raise Unreadable(f"unexpected {parser.peek()!r}")
    return node


_REPEATING = re.compile(r"(?<![\d.])(\d*)\.(\d*)\\overline\s*\{(\d+)\}")


def _fraction_of(found: re.Match[str]) -> str:
    """A repeating decimal, "0.3\\overline{8}", as the fraction that it is."""
    whole, fixed, repeated = found.groups()
    cycle = 10 ** len(repeated) - 1
    value = Fraction(int((whole or "0") + fixed), 10 ** len(fixed)) + Fraction(
        int(repeated), cycle * 10 ** len(fixed)
    )
    return rf"{{\frac{{{value.numerator}}}{{{value.denominator}}}}}"


def words_node(words: str) -> Node:
    """The tree of an answer in words that names a set of numbers, or the words themselves."""
    sets = {"\\R": "R", "\\Z": "Z", "\\Z+": "Z+", "\\Z0": "Z0", "\\Q": "Q", "\\C": "C", "\\empty": "empty"}
    if words in sets:
        return Node("set") if words == "\\empty" else Node("named_set", value=sets[words])
    return Node("words", value=words)


class Parser(FormulaParser):
    """The reader's grammar above formulas: lists, relations, sets, tuples and intervals."""

    # Lists, relations, sets ---------------------------------------------------------------------------

    def answer(self) -> Node:
        """Items apart by commas, "and" or "or"; one item stands for itself."""
        items, joint = [self.nested(self.item)], ","
        while (separator := self.separator()) is not None:
            joint = separator if separator != "," else joint
            if self.peek() is None:
                break
            items.append(self.nested(self.item))
        return items[0] if len(items) == 1 else Node("list", tuple(items), joint)

    def separator(self) -> str | None:
        found = None
        while (text := self.peek()) in _SEPARATORS:
            assert text is not None
            self.take()
            found = _SEPARATORS[text] if found in (None, ",") else found
        return found

    def item(self) -> Node:
        definition = self.definition()
        if definition is not None:
            return definition
        terms, operators = [self.set_expression()], []
        while (text := self.peek()) in _RELATIONS:
            assert text is not None
            self.take()
            operators.append(_RELATIONS[text])
            terms.append(self.set_expression())
        if self.peek() == ":" and not operators and self.colon_is_ratio:
            return self.ratio(terms[0])
        if operators == ["=="] or self.peek() in (r"\pmod", r"\bmod", r"\mod"):
            return self.congruence(terms, operators)
        return Node("relation", tuple(terms), tuple(operators)) if operators else terms[0]

    def definition(self) -> Node | None:
        """`f(x, y) = body`: a letter, names in parentheses and one equals sign, else nothing is taken."""
        start = self.position
        try:
            name = self.name()
            if name is None or self.accept("(") is None:
                raise Unreadable("no function head")
            parameters = [self.name()]
            while self.accept(","):
                parameters.append(self.name())
            if None in parameters or self.accept(")") is None or self.accept("=", r"\equiv") is None:
                raise Unreadable("no function head")
        except Unreadable:
            self.position = start
            return None
        body = self.set_expression()
        while self.accept("="):
            body = self.set_expression()
        symbols = tuple(Node("symbol", value=parameter) for parameter in parameters)
        return Node("define", (*symbols, body), name)

    def name(self) -> str | None:
        """A letter with its subscript and primes, or None."""
        text = self.peek()
        if text is None or not (re.fullmatch(r"[A-Za-z]", text) or text[1:] in GREEK):
            return None
        return self.take().text if text == "e" else str(self.symbol().value)

    def ratio(self, first: Node) -> Node:
        terms = [first]
        while self.accept(":"):
            terms.append(self.sum())
        return Node("ratio", tuple(terms))

    def congruence(self, terms: list[Node], operators: list[str]) -> Node:
        if operators != ["=="]:
            raise Unreadable("remainder notation")
        braced = self.accept("(") is not None
        if self.accept(r"\pmod", r"\bmod", r"\mod") is None:
            if operators == ["=="] and not braced:
                return Node("relation", tuple(terms), ("=",))
            raise Unreadable("congruence without a modulus")
        modulus = self.argument()
        if braced:
            self.expect(")")
        return Node("congruence", (*terms, modulus))

    def set_expression(self) -> Node:
        left = self.sum()
        while (text := self.peek()) in _SET_OPERATIONS:
            assert text is not None
            self.take()
            left = Node(_SET_OPERATIONS[text], (left, self.sum()))
        return left

    # Brackets -----------------------------------------------------------------------------------------

    def brackets(self) -> Node:
        """Parentheses and square brackets: grouping, a tuple, or an interval."""
        opening = self.take().text
        inner = self.answer()
        closing = self.accept(")", "]")
        if closing is None:
            raise Unreadable(f"{opening!r} is not closed")
        items = inner.args if inner.head == "list" else (inner,)
        if inner.head == "list" and inner.value != ",":
            raise Unreadable("alternatives in brackets")
        if len(items) == 1:
            if CLOSING[opening] != closing:
                raise Unreadable("brackets that do not match")
            return inner
        if opening == "(" and closing == ")" and not (len(items) == 2 and _has_infinity(items)):
            return Node("tuple", items)
        if len(items) != 2:
            raise Unreadable("a list in square brackets")
        return Node("interval", items, opening + closing)

    def braces(self) -> Node:
        """`\\{...\\}`: a set by its members or by a condition."""
        if self.accept(r"\}"):
            return Node("set")
        self.open_bars, self.colon_is_ratio = self.open_bars + 1, False
        inner = self.answer()
        self.open_bars, self.colon_is_ratio = self.open_bars - 1, True
        if self.accept(r"\mid", ":", "|"):
            condition = self.answer()
            self.expect(r"\}")
            return Node("set_builder", (inner, condition))
        self.expect(r"\}")
        return Node("set", inner.args if inner.head == "list" else (inner,))

    def named_set(self) -> Node:
        self.expect("{")
        letter = self.take().text
        self.expect("}")
        mark = ""
        while self.peek() in ("^", "_"):
            self.take()
            mark += self.subscript()
        names = {"": letter, "+": letter + "+", ">0": letter + "+", r"\ge0": letter + "0"}
        if letter not in "RZNQC" or mark not in names or (letter == "N" and mark == ""):
            raise Unreadable("a number set with two readings" if letter == "N" else "an unknown number set")
        name = names[mark]
        return Node("named_set", value=name.replace("N", "Z"))


def _has_infinity(items: tuple[Node, ...]) -> bool:
    return any(item.head == "infinity" or (item.args and item.args[0].head == "infinity") for item in items)
