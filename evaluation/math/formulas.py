"""Formulas of answers: tokens and the recursive descent over sums, products, powers and functions.

Notation with two readings ("1/2a", "3 4", a sum with dots) is refused instead of guessed.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from evaluation.math.nodes import Node, Unreadable, in_radians, number, scalar, vocabulary

MAX_DEPTH = 60

_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<number>\d+(?:\.\d+)?|\.\d+)|(?P<command>\\[A-Za-z]+|\\.)|(?P<letter>[A-Za-z])|(?P<other>.)",
    re.DOTALL,
)
GREEK = vocabulary(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon "
    "phi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell"
)
FUNCTIONS = vocabulary(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log lg exp max min gcd lcm"
)
_TRIGONOMETRIC = vocabulary("sin cos tan cot sec csc")
_INVERSES = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}
_ACCENTS = ("bar", "overline", "hat", "tilde", "vec", "widehat", "underline")
CLOSING = {"(": ")", "[": "]", r"\{": r"\}", "{": "}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil", "|": "|"}
_MIXED_NUMBER = re.compile(
    r"\d+\\frac(?:\{(\d+)\}\{(\d+)\}|(\d)(\d)(?!\d)|\{(\d+)\}(\d)(?!\d)|(\d)\{(\d+)\})"
)


@dataclass(frozen=True)
class Token:
    """A lexeme and its kind: "number", "command", "letter" or "other"."""

    text: str
    kind: str


def tokens_of(text: str) -> list[Token]:
    """Split tidied text; a digit run is one token, every letter a token of its own."""
    found = ((str(match.lastgroup), match.group()) for match in _TOKEN.finditer(text))
    return [Token(lexeme, kind) for kind, lexeme in found if kind != "space"]


class FormulaParser(ABC):
    """Recursive descent over the tokens of one answer, as far as scalars go.

    What stands in brackets and groups is a whole answer again; `answer` and the bracketed structures are
    the reader's.
    """

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.position = 0
        self.depth = 0
        self.open_bars = 0
        self.colon_is_ratio = True

    # Token stream -----------------------------------------------------------------------------------

    def peek(self, ahead: int = 0) -> str | None:
        index = self.position + ahead
        return self.tokens[index].text if index < len(self.tokens) else None

    def take(self) -> Token:
        if self.position >= len(self.tokens):
            raise Unreadable("ends too early")
        self.position += 1
        return self.tokens[self.position - 1]

    def accept(self, *texts: str) -> str | None:
        if self.peek() in texts and self.peek() is not None:
            return self.take().text
        return None

    def expect(self, text: str) -> None:
        if self.accept(text) is None:
            raise Unreadable(f"{text!r} expected, {self.peek()!r} found")

    def nested(self, parse: Callable[[], Node]) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable("nested too deeply")
        node = parse()
        self.depth -= 1
        return node

    @abstractmethod
    def answer(self) -> Node:
        """A list, a relation or a formula."""

    @abstractmethod
    def brackets(self) -> Node:
        """What stands in round or square brackets."""

    @abstractmethod
    def braces(self) -> Node:
        """What stands in braces of a set."""

    @abstractmethod
    def named_set(self) -> Node:
        """The number set whose letter follows."""

    # Arithmetic ---------------------------------------------------------------------------------------

    def sum(self) -> Node:
        sign = self.accept("+", "-", r"\pm", r"\mp")
        left = self.signed(sign, self.product())
        while (text := self.peek()) in ("+", "-", r"\pm", r"\mp"):
            assert text is not None
            self.take()
            if self.peek() == r"\ldots":
                raise Unreadable("a sum with dots")
            right = self.product()
            left = Node("add", (scalar(left), scalar(self.signed(text, right))))
        return left

    def signed(self, sign: str | None, node: Node) -> Node:
        heads = {"-": "neg", r"\pm": "plus_minus", r"\mp": "minus_plus"}
        return Node(heads[sign], (scalar(node),)) if sign in heads else node

    def product(self) -> Node:
        left = self.mixed_number() or self.power()
        divided = False
        while (text := self.peek()) is not None:
            if text in (r"\cdot", r"\times", "*", r"\div", "/"):
                self.take()
                slash = text in (r"\div", "/")
                if self.peek() == r"\ldots":
                    raise Unreadable("a product with dots")
                sign = self.accept("-")
                right = self.signed(sign, self.power())
                left = Node("div" if slash else "mul", (scalar(left), scalar(right)))
                divided = slash
            elif self.starts_factor(text):
                if divided:
                    raise Unreadable("a slash before an implied product")
                applied = left.head == "symbol" and text == "("
                left = Node("mul", (scalar(left), self.implied_factor()), "applied" if applied else None)
            else:
                break
        return left

    def implied_factor(self) -> Node:
        previous, following = self.tokens[self.position - 1], self.tokens[self.position]
        if previous.kind == "number" and following.kind == "number":
            raise Unreadable("two numbers side by side")
        if self.mixed_number_at(self.position - 1):
            raise Unreadable("a mixed number inside a product")
        return scalar(self.power())

    def starts_factor(self, text: str) -> bool:
        token = self.tokens[self.position]
        if token.kind in ("number", "letter"):
            return True
        if text in ("(", "[", "{", r"\lfloor", r"\lceil", r"\frac", r"\sqrt", r"\binom", r"\pi", r"\mathrm"):
            return True
        if text in (r"\infty", r"\angle", r"\triangle", r"\operatorname", r"\overline", r"\bar"):
            return True
        if text == "|":
            return self.open_bars == 0
        return text[:1] == "\\" and (text[1:] in GREEK or text[1:] in FUNCTIONS or text[1:] in _ACCENTS)

    def mixed_number(self) -> Node | None:
        """`1\\frac34`: an integer directly before a proper fraction of integers."""
        if not self.mixed_number_at(self.position):
            return None
        whole = number(int(self.take().text))
        fraction = self.power()
        if fraction.head != "div":
            raise Unreadable("a power after a mixed number")
        return Node("add", (whole, fraction))

    def mixed_number_at(self, position: int) -> bool:
        text = "".join(token.text for token in self.tokens[position : position + 8])
        found = _MIXED_NUMBER.match(text)
        if found is None:
            return False
        top, bottom = (int(part) for part in found.groups() if part is not None)
        return 0 < top < bottom

    def power(self) -> Node:
        base = self.postfix(self.atom())
        if self.accept("^") or (self.peek() == "*" and self.peek(1) == "*" and self.take() and self.take()):
            sign = self.accept("-")
            exponent = self.signed(sign, self.argument(whole_number=True))
            if self.peek() == "!":
                raise Unreadable("a factorial of a power or of its exponent")
            return self.postfix(Node("pow", (scalar(base), scalar(exponent))))
        return base

    def postfix(self, node: Node) -> Node:
        while (text := self.peek()) in ("!", r"\degree", r"\%", "%"):
            self.take()
            if text == "!" and self.accept("!"):
                node = Node("double_factorial", (node,))
            elif text == "!":
                node = Node("factorial", (node,))
            elif text == r"\degree":
                node = Node("degrees", (node,))
            else:
                node = Node("div", (node, number(100)))
        return node

    def argument(self, whole_number: bool = False) -> Node:
        """A TeX argument: a group, or one token (one digit of a number, as TeX reads it).

        `whole_number` takes all digits, which is what `2^10` means outside typeset text.
        """
        if self.accept("{"):
            node = self.nested(self.answer)
            self.expect("}")
            return node
        if (
            self.position < len(self.tokens)
            and self.tokens[self.position].kind == "number"
            and not whole_number
        ):
            token = self.take()
            if len(token.text) > 1:
                if not token.text.isdigit():
                    raise Unreadable("a decimal as a bare argument")
                self.position -= 1
                self.tokens[self.position : self.position + 1] = [
                    Token(digit, "number") for digit in token.text
                ]
                self.take()
            return number(int(token.text[0]))
        return self.atom()

    # Atoms --------------------------------------------------------------------------------------------

    def atom(self) -> Node:
        token = self.take()
        text = token.text
        if token.kind == "number":
            return self.numeral(text)
        if text in ("(", "["):
            self.position -= 1
            return self.nested(self.brackets)
        if text == "{":
            return self.group()
        if text == r"\{":
            return self.nested(self.braces)
        if text == "|":
            return self.enclosed("abs", "|")
        if text in (r"\lfloor", r"\lceil"):
            return self.enclosed("floor" if text == r"\lfloor" else "ceiling", CLOSING[text])
        if token.kind == "letter" or text[1:] in GREEK or text[1:] in _ACCENTS:
            self.position -= 1
            return self.symbol()
        return self.command(text)

    def numeral(self, text: str) -> Node:
        if self.peek() == "_":
            raise Unreadable("a numeral in another base")
        if self.peek() == r"\overline" and text.endswith("."):
            raise Unreadable("a repeating decimal")
        return Node("number", value=Fraction(text), decimal="." in text)

    def command(self, text: str) -> Node:
        name = text[1:]
        if name == "frac":
            top = self.argument()
            return Node("div", (scalar(top), scalar(self.argument())))
        if name == "sqrt":
            return self.root()
        if name == "binom":
            top = self.argument()
            return Node("binomial", (scalar(top), scalar(self.argument())))
        if name in FUNCTIONS:
            return self.function(name)
        if name in ("infty", "pi"):
            return Node("infinity" if name == "infty" else "pi")
        if name == "ldots":
            return Node("dots")
        if name == "emptyset":
            return Node("set")
        if name == "mathbb":
            return self.named_set()
        if name in ("angle", "triangle", "measuredangle"):
            return self.named_figure(name)
        if name in ("mathrm", "operatorname"):
            return self.roman()
        raise Unreadable(f"unknown notation {text!r}")

    def named_figure(self, name: str) -> Node:
        letters = ""
        while self.position < len(self.tokens) and self.tokens[self.position].kind == "letter":
            letters += self.take().text
        return Node("symbol", value=f"{name} {letters}")

    def roman(self) -> Node:
        self.expect("{")
        letters = ""
        while self.peek() != "}":
            letters += self.take().text
        self.expect("}")
        if letters in FUNCTIONS:
            return self.function(letters)
        if letters == "e":
            return Node("e")
        if len(letters) == 1 and letters.isalpha():
            return Node("symbol", value=letters)
        raise Unreadable(f"unknown name {letters!r}")

    def root(self) -> Node:
        degree = number(2)
        if self.accept("["):
            degree = self.sum()
            self.expect("]")
        return Node("root", (scalar(self.argument()), scalar(degree)))

    def function(self, name: str) -> Node:
        base = None
        if name in ("log", "lg"):
            base = number(10) if name == "lg" else None
            if self.accept("_"):
                base = self.argument()
        exponent = None
        if self.accept("^"):
            sign = self.accept("-")
            exponent = self.signed(sign, self.argument())
        arguments = self.function_arguments()
        if name in _TRIGONOMETRIC:
            arguments = tuple(in_radians(argument) for argument in arguments)
        name = {"lg": "log", "ln": "ln"}.get(name, name)
        if exponent == Node("neg", (number(1),)) and name in _INVERSES:
            name, exponent = _INVERSES[name], None
        if name in ("max", "min", "gcd", "lcm"):
            node = Node(name, arguments)
        elif len(arguments) != 1:
            raise Unreadable(f"{name} of several values")
        else:
            node = Node(name, (*arguments, base) if base is not None else arguments)
        return node if exponent is None else Node("pow", (node, exponent))

    def function_arguments(self) -> tuple[Node, ...]:
        """What a function is applied to: a bracket, or an implied product up to the next function."""
        if self.peek() in ("(", "{", r"\{"):
            closing = CLOSING[self.take().text]
            inner = self.nested(self.answer)
            self.expect(closing)
            return inner.args if inner.head == "list" else (inner,)
        node = self.mixed_number() or self.power()
        while (text := self.peek()) is not None and self.starts_factor(text):
            if text[1:] in FUNCTIONS or text in ("(", "["):
                break
            node = Node("mul", (node, self.implied_factor()))
        return (node,)

    def symbol(self) -> Node:
        token = self.take()
        text = token.text
        if text[1:] in _ACCENTS:
            inner = self.argument()
            if inner.head != "symbol":
                raise Unreadable(f"{text} over a formula")
            text = "bar" if text in (r"\overline", r"\bar") else text[1:]
            return Node("symbol", value=f"{text} {inner.value}")
        name = text.lstrip("\\")
        if self.accept("_"):
            name += "_" + self.subscript()
        while self.accept("'") or (self.peek() == "^" and self.peek(1) == r"\prime"):
            if self.peek() == "^":
                self.position += 2
            name += "'"
        return Node("e") if name == "e" else Node("symbol", value=name)

    def subscript(self) -> str:
        if not self.accept("{"):
            return self.take().text
        text, depth = "", 1
        while True:
            token = self.take()
            depth += (token.text == "{") - (token.text == "}")
            if depth == 0:
                return text
            text += token.text if token.text != "," else ""  # a_{i,j} is a_{ij}

    def group(self) -> Node:
        """A TeX group `{...}`, with `\\choose` inside it; "{1, 2}" in plain text is a set."""
        inner = self.nested(self.answer)
        if self.accept(r"\choose"):
            inner = Node("binomial", (inner, self.nested(self.answer)))
        self.expect("}")
        return Node("set", inner.args) if inner.head == "list" else inner

    def enclosed(self, head: str, closing: str) -> Node:
        bars, self.open_bars = self.open_bars, int(closing == "|")
        inner = self.nested(self.sum)
        self.open_bars = bars
        self.expect(closing)
        return Node(head, (inner,))
