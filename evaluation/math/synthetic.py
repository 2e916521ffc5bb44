"""Generated arithmetic that needs the tool, for models trained here: problems, answers, demonstrations.

Every kind of problem asks for something that is out of reach without running code, in an answer format of one
of the benchmarks: whole numbers (AIME 2025 up to 999, BeyondAIME of any size), fractions (HMMT), several
answers, sets and intervals (IMOAnswerBench).
"""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from evaluation.math.protocol import BENCHMARKS
from sao.environments.base import Instance, content_hash, split_of
from sao.environments.chat_format import Message
from sao.environments.python_math import Problem, question

SEED = 20260708
DIGITS = (2, 3)  # of the numbers in the benchmarks made here
THOUGHT = "think"

Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Kind:
    """A kind of problem over some drawn numbers.

    `code` solves it and prints `printed`, and `written` turns that into the answer as a solution states it.
    """

    name: str
    draw: Callable[[np.random.Generator, int, int], Numbers]
    text: str
    code: str
    printed: Callable[[Numbers], str]
    reference: Callable[[Numbers], str] | None = None
    written: str = "{}"

    def answer(self, numbers: Numbers) -> str:
        """The reference: what the code prints, or the same in LaTeX."""
        return (self.reference or self.printed)(numbers)

    def instance(self, rng: np.random.Generator, digits: tuple[int, int]) -> Instance:
        """Draw a problem whose numbers have `digits` digits, lowest and highest count."""
        return self.of(self.draw(rng, *digits))

    def of(self, numbers: Numbers) -> Instance:
        """The problem over the given numbers."""
        return Instance(content_hash((self.name, numbers)), self.name, (self.name, numbers))


def _number(rng: np.random.Generator, least: int, most: int) -> int:
    digits = int(rng.integers(least, most + 1))
    return int(rng.integers(10 ** (digits - 1), 10**digits))


def _several(count: int) -> Callable[[np.random.Generator, int, int], Numbers]:
    return lambda rng, least, most: tuple(_number(rng, least, most) for _ in range(count))


def _with_common_factor(rng: np.random.Generator, least: int, most: int) -> Numbers:
    """Two numbers whose greatest common divisor is below 1000, as answers of AIME are."""
    factor = int(rng.integers(2, 1000))
    while True:
        first, second = (int(number) for number in rng.integers(2, 10 ** max(most - 2, 1), 2))
        if math.gcd(first, second) == 1:
            return factor * first, factor * second


def _quadratic(rng: np.random.Generator, least: int, most: int) -> Numbers:
    """Sum and product of two roots, so that the product has about the digits asked for."""
    highest = 10 ** max(most / 2, 1)
    low, high = sorted(int(root) for root in rng.choice(np.arange(2, int(highest) + 1), 2, replace=False))
    return low + high, low * high


def _roots(numbers: Numbers) -> tuple[int, int]:
    total, product = numbers
    spread = math.isqrt(total * total - 4 * product)
    return (total - spread) // 2, (total + spread) // 2


def _prime_factors(number: int) -> list[int]:
    factors, divisor = [], 2
    while divisor * divisor <= number:
        if number % divisor == 0:
            factors.append(divisor)
            while number % divisor == 0:
                number //= divisor
        divisor += 1
    return factors + ([number] if number > 1 else [])


def _fraction_sum(numbers: Numbers) -> Fraction:
    return Fraction(numbers[0], numbers[1]) + Fraction(numbers[2], numbers[3])


def _latex(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "remainder",
            _several(2),
            "What is the remainder when {0} * {1} is divided by 1000?",
            "print({0} * {1} % 1000)",
            lambda numbers: str(numbers[0] * numbers[1] % 1000),
        ),
        Kind(
            "common divisor",
            _with_common_factor,
            "What is the greatest common divisor of {0} and {1}?",
            "import math\nprint(math.gcd({0}, {1}))",
            lambda numbers: str(math.gcd(*numbers)),
        ),
        Kind(
            "product",
            _several(2),
            "What is {0} * {1}?",
            "print({0} * {1})",
            lambda numbers: str(numbers[0] * numbers[1]),
        ),
        Kind(
            "sum",
            _several(4),
            "What is {0} + {1} + {2} + {3}?",
            "print({0} + {1} + {2} + {3})",
            lambda numbers: str(sum(numbers)),
        ),
        Kind(
            "fraction",
            _several(4),
            "What is {0}/{1} + {2}/{3} in lowest terms?",
            "from fractions import Fraction\nprint(Fraction({0}, {1}) + Fraction({2}, {3}))",
            lambda numbers: str(_fraction_sum(numbers)),
            reference=lambda numbers: _latex(_fraction_sum(numbers)),
        ),
        Kind(
            "roots",
            _quadratic,
            "Find all solutions of x^2 - {0}x + {1} = 0.",
            'print(*[x for x in range({0}) if x * x - {0} * x + {1} == 0], sep=", ")',
            lambda numbers: str("{}, {}".format(*_roots(numbers))),
        ),
        Kind(
            "interval",
            _quadratic,
            "For which real x is x^2 - {0}x + {1} at most 0? Answer with an interval.",
            "print([x for x in range({0}) if x * x - {0} * x + {1} == 0])",
            lambda numbers: str("[{}, {}]".format(*_roots(numbers))),
        ),
        Kind(
            "prime factors",
            _several(1),
            "What is the set of all prime factors of {0}?",
            'from sympy import primefactors\nprint(*primefactors({0}), sep=", ")',
            lambda numbers: ", ".join(map(str, _prime_factors(numbers[0]))),
            reference=lambda numbers: "\\{" + ", ".join(map(str, _prime_factors(numbers[0]))) + "\\}",
            written="\\{{{}\\}}",
        ),
    )
}

BENCHMARK_KINDS = {
    "aime_2025": ("remainder", "common divisor"),
    "beyond_aime": ("product", "sum"),
    "hmmt_nov_2025": ("fraction", "product"),
    "imo_answerbench": ("roots", "interval", "prime factors", "sum"),
}


def problem_of(instance: Instance, benchmark: str | None = None) -> Problem:
    """The text and reference of an instance; its own benchmark is the first that asks for its kind."""
    name, numbers = instance.payload
    kind = KINDS[name]
    home = next(place for place, kinds in BENCHMARK_KINDS.items() if name in kinds)
    return Problem(
        problem_id=instance.prompt_id,
        benchmark=benchmark or home,
        text=kind.text.format(*numbers),
        answer=kind.answer(numbers),
        label=name,
    )


def right_answer(instance: Instance) -> str:
    """The last message of a solution without a fault."""
    name, numbers = instance.payload
    kind = KINDS[name]
    return f"\\boxed{{{kind.written.format(kind.printed(numbers))}}}"


def load_synthetic(benchmark: str) -> list[Problem]:
    """As many problems as the benchmark has, in its answer formats, of the split that no training sees."""
    names = BENCHMARK_KINDS[benchmark]
    rng = np.random.default_rng([SEED, list(BENCHMARK_KINDS).index(benchmark)])
    found: dict[str, Problem] = {}
    while len(found) < BENCHMARKS[benchmark].problems:
        instance = KINDS[names[len(found) % len(names)]].instance(rng, DIGITS)
        if split_of(instance) == "held_out":
            found[instance.prompt_id] = problem_of(instance, benchmark)
    return list(found.values())


@dataclass(frozen=True)
class Demonstrator:
    """Solves problems with the tool, and errs now and then, so that training has something to mend.

    It answers a share `guess_odds` of the problems without the tool, nearly always wrongly, and slips in one
    digit of the code with `slip_odds`.
    """

    guess_odds: float
    slip_odds: float
    digits: tuple[int, int]

    def solution(self, instance: Instance, rng: np.random.Generator) -> list[Message]:
        """The assistant's and the tool's messages of one solution."""
        name, numbers = instance.payload
        kind = KINDS[name]
        if rng.random() < self.guess_odds:
            guess = _slip(kind.printed(numbers), rng)
            return [_answer(kind.written.format(guess))]
        code = kind.code.format(*numbers)
        printed = kind.printed(numbers)
        if rng.random() < self.slip_odds:
            numbers = _slipped(kind, numbers, self.digits, rng)
            code, printed = kind.code.format(*numbers), kind.printed(numbers)
        call = {"type": "function", "function": {"name": "python", "arguments": {"code": code}}}
        return [
            {"role": "assistant", "content": "", "reasoning_content": THOUGHT, "tool_calls": [call]},
            {"role": "tool", "name": "python", "content": printed},
            _answer(kind.written.format(printed)),
        ]


def corpus(rng: np.random.Generator, count: int, digits: tuple[int, int]) -> Iterable[str]:
    """Texts of problems, calls and answers with the words of the chat template, to train a tokenizer on."""
    kinds = list(KINDS.values())
    for index in range(count):
        kind = kinds[index % len(kinds)]
        instance = kind.instance(rng, digits)
        call, _, answer = Demonstrator(0.0, 0.0, digits).solution(instance, rng)
        yield f"system\nTools: python user\n{question(problem_of(instance))[0]['content']}"
        yield f"assistant\n{THOUGHT}\n\n{json.dumps(call['tool_calls'][0]['function'])}"
        yield f"assistant\n{THOUGHT}\n\n{answer['content']}"


def _answer(answer: str) -> Message:
    return {"role": "assistant", "content": f"\\boxed{{{answer}}}", "reasoning_content": THOUGHT}


def _slip(text: str, rng: np.random.Generator) -> str:
    """The text with one digit changed."""
    places = [place for place, letter in enumerate(text) if letter.isdigit()]
    place = int(rng.choice(places))
    digit = (int(text[place]) + int(rng.integers(1, 10))) % 10
    return f"{text[:place]}{digit}{text[place + 1 :]}"


def _slipped(kind: Kind, numbers: Numbers, digits: tuple[int, int], rng: np.random.Generator) -> Numbers:
    """Numbers with one digit changed, for which the code still prints an answer."""
    if kind.draw is _quadratic:
        return kind.draw(rng, *digits)
    place = int(rng.integers(len(numbers)))
    changed = max(int(_slip(str(numbers[place]), rng)), 2)
    return (*numbers[:place], changed, *numbers[place + 1 :])
