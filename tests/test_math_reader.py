"""The reader and the values of what it reads, against values worked out beside the text that is read."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.math.nodes import Node, Unreadable, number
from evaluation.math.reader import read
from evaluation.math.regions import complement, intersection, region_of, same_region, union
from evaluation.math.values import constant, equal, rational

Formula = tuple[str, Fraction]  # LaTeX and its value

WHOLE = st.integers(0, 30).map(lambda n: (str(n), Fraction(n)))


def combined(parts: st.SearchStrategy[Formula]) -> st.SearchStrategy[Formula]:
    """Sums, differences, products, quotients, powers and brackets of formulas, every operand braced."""

    def join(pair: tuple[Formula, Formula], operation: str) -> Formula | None:
        (left, x), (right, y) = pair
        left, right = rf"\left({left}\right)", rf"({right})"
        if operation == "/":
            return (rf"\frac{{{left}}}{{{right}}}", x / y) if y else None
        if operation == "slash":
            return (f"{left}/{right}", x / y) if y else None
        if operation == "implied":
            return f"{left}{right}", x * y
        if operation == "^":
            small = (
                y.denominator == 1
                and 0 <= y <= 4
                and (x or y)
                and max(abs(x.numerator), x.denominator) < 10**6
            )
            return (f"{left}^{{{right}}}", x**y) if small else None
        return {
            "+": (f"{left} + {right}", x + y),
            "-": (f"{left} - {right}", x - y),
            "*": (rf"{left} \cdot {right}", x * y),
        }[operation]

    operations = st.sampled_from(["+", "-", "*", "/", "slash", "implied", "^"])
    made = st.tuples(st.tuples(parts, parts), operations).map(lambda drawn: join(*drawn))
    return made.filter(lambda formula: formula is not None).map(lambda formula: formula or ("0", Fraction(0)))


FORMULAS = st.recursive(WHOLE, combined, max_leaves=8)


@given(FORMULAS)
def test_rational_formulas_have_their_value(formula: Formula) -> None:
    text, value = formula
    assert rational(read(text)) == value
    assert equal(read(text), number(value)) is True
    assert equal(read(text), number(value + Fraction(1, 10**40))) is False


@given(FORMULAS, FORMULAS)
def test_lists_and_brackets_keep_their_entries(first: Formula, second: Formula) -> None:
    for text, head in ((f"{first[0]}, {second[0]}", "list"), (rf"\{{{first[0]}, {second[0]}\}}", "set")):
        node = read(text)
        assert node.head == head
        assert [rational(item) for item in node.args] == [first[1], second[1]]
    assert read(f"({first[0]}, {second[0]})").head == "tuple"
    assert read(f"[{first[0]}, {second[0]})").value == "[)"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"-3^2", -9),
        (r"2^{-1}", Fraction(1, 2)),
        ("2^10", 1024),
        (r"\frac12", Fraction(1, 2)),
        (r"\frac1{12}", Fraction(1, 12)),
        (r"\sqrt4", 2),
        (r"\sqrt[3]{-27}", -3),
        (r"8^{2/3}", 4),
        (r"1\frac{3}{4}", Fraction(7, 4)),
        (r"-1\frac{3}{4}", Fraction(-7, 4)),
        (r"0.\overline{3}", Fraction(1, 3)),
        (r"1.2\overline{45}", Fraction(137, 110)),
        (r"|{-3}| + |2|", 5),
        (r"2|{-3}|", 6),
        (r"\lfloor -3.5 \rfloor", -4),
        (r"\lceil -3.5 \rceil", -3),
        (r"\lfloor \log_2 8 \rfloor", 3),
        (r"\binom{5}{2}", 10),
        (r"{5 \choose 2}", 10),
        ("0!", 1),
        ("7!!", 105),
        ("(-1)!!", 1),
        (r"10\%", Fraction(1, 10)),
        (r"\gcd(12, 18) + \operatorname{lcm}(4, 6)", 18),
        (r"6 \div 4", Fraction(3, 2)),
        (r"2 \cdot 3^2", 18),
        ("6/2/3", 1),
    ],
)
def test_notation_and_its_value(text: str, value: int | Fraction) -> None:
    assert rational(read(text)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"\sqrt2", math.sqrt(2)),
        (r"e^2", math.e**2),
        (r"\mathrm{e}^{-1}", 1 / math.e),
        (r"2\pi", 2 * math.pi),
        (r"\sin^2 1", math.sin(1) ** 2),
        (r"\sin^{-1} 1", math.pi / 2),
        (r"\cos 60^\circ", 0.5),
        (r"\tan\frac{\pi}{8}", math.tan(math.pi / 8)),
        (r"\ln 2", math.log(2)),
        (r"\log_3 5", math.log(5, 3)),
        (r"\sin 1 \cos 1", math.sin(1) * math.cos(1)),
        (r"\sqrt{2}\sqrt{3}", math.sqrt(6)),
    ],
)
def test_notation_and_its_irrational_value(text: str, value: float) -> None:
    found = constant(read(text))
    assert found is not None
    assert math.isclose(float(found), value, rel_tol=1e-14)


@pytest.mark.parametrize(
    "text",
    [
        "3 4",
        "1/2a",
        r"a/bc",
        r"2 \cdot 1\frac{3}{4}",
        "1 + 2 + \\cdots + n",
        r"p_1 \cdots p_k",
        "1010_2",
        "(1, 2",
        "(1, 2]]",
        "[1, 2, 3]",
        r"\{1, 2",
        "2^n!",
        "2^3^4",
        "1 +",
        r"\mathbb{N}",
        r"\underbrace{2 \cdots 2}_{n}",
        r"\begin{pmatrix} 1 \end{pmatrix}",
        "(" * 200 + "1" + ")" * 200,
        "x" * 5000,
        "",
    ],
)
def test_notation_with_two_readings_or_none_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        read(text)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("x^2 - 1", "(x-1)(x+1)", True),
        ("x^2 - 1", "(x-1)(x-1)", False),
        ("2^{2024}x + 1", "2^{2024}x + 2", False),
        (r"2^{2024} + \sqrt{2}", r"2^{2024} + \sqrt{3}", False),
        (r"\frac{1}{2004!}", r"\frac{1}{2006!}", False),
        (r"e^{-1000}", r"e^{-1001}", False),
        (r"1 + e^{-1000}", "1", False),
        (r"(1+e^{-1000}) - 1", r"e^{-1000}", True),
        (r"\cos\frac{\pi}{2}", "0", True),
        (r"\tan\frac{\pi}{2}", "0", None),
        (r"\frac{1}{x-x}", "1", None),
        (r"|x|", "x", None),
        (r"\sqrt{x^2}", "x", None),
        (r"\sqrt{ab}", r"\sqrt{a}\sqrt{b}", True),
        (r"\lfloor x \rfloor", "x", None),
        ("9^{9^{9^{9}}}", "1", None),
        ("(10^{10})!", "3", None),
        ("n!", "n(n-1)!", True),
        (r"\binom{n}{k}", r"\frac{n!}{k!(n-k)!}", True),
        (r"\binom{n}{k}", r"\binom{n}{n-k}", True),
        (r"\binom{n}{k}", r"\binom{n}{k+1}", False),
        ("(1+i)^2", "2i", True),
        ("R", "r", False),
    ],
)
def test_equality_of_formulas(first: str, second: str, same: bool | None) -> None:
    assert equal(read(first), read(second)) is same


@st.composite
def intervals(draw: st.DrawFn) -> tuple[str, set[Fraction]]:
    """An interval and the half-integers from -8 to 8 that it holds."""
    low = draw(st.integers(-6, 5))
    high = draw(st.integers(low + 1, 6))
    left, right = draw(st.sampled_from("[(")), draw(st.sampled_from("])"))
    inside = {Fraction(n, 2) for n in range(2 * low, 2 * high + 1)}
    outside = ({Fraction(low)} if left == "(" else set()) | ({Fraction(high)} if right == ")" else set())
    return f"{left}{low}, {high}{right}", inside - outside


GRID = {Fraction(n, 2) for n in range(-16, 17)}


@settings(max_examples=40)
@given(intervals(), intervals())
def test_set_operations_on_intervals_are_those_on_their_points(
    first: tuple[str, set[Fraction]], second: tuple[str, set[Fraction]]
) -> None:
    left, right = region_of(read(first[0])), region_of(read(second[0]))

    def points(region: object) -> set[Fraction]:
        return {
            point
            for point in GRID
            if intersection(region, region_of(Node("set", (number(point),))))  # type: ignore[arg-type]
        }

    assert points(union(left, right)) == first[1] | second[1]
    assert points(intersection(left, right)) == first[1] & second[1]
    assert points(complement(left)) == GRID - first[1]
    assert same_region(complement(complement(left)), left)
    assert same_region(left, right) == (first[0] == second[0])
    text = rf"{first[0]} \cup {second[0]}"
    assert same_region(region_of(read(text)), union(right, left))
