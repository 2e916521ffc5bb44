"""Words in answers: connectives, units, phrases and clauses that say nothing new, and answers in words.

`without_wording` leaves a formula where only such words stood beside it. Everything else is an answer in
words: a few name number sets or "no solution"; the others get one canonical spelling, so that "n is odd"
and "all odd n" agree, and nothing more is concluded from them.
"""

import itertools
import re
from collections.abc import Callable

from evaluation.math.clauses import (
    DECLARING,
    LEADING,
    MEANINGFUL,
    UNITS,
    WORD,
    singular,
    unit_words,
    without_clauses,
    without_lead,
    without_remarks,
    without_units,
)
from evaluation.math.nodes import vocabulary

_MATH_NAMES = "sqrt sin cos tan cot sec csc arcsin arccos arctan ln log lg exp max min gcd lcm pi infty binom"
_CONNECTIVES = {"and": r" \land ", "or": r" \lor "}

_UNIT_SYNONYMS = {
    "degree": "deg",
    "unit": "",
    "square unit": "",
    "way": "",
    "meter": "m",
    "metre": "m",
    "centimeter": "cm",
    "centimetre": "cm",
    "inche": "inch",
    "feet": "foot",
    "ft": "foot",
}
_SHORT_WORDS = vocabulary("or no of if")  # others of two letters may be products: "ax + by"
# Words known in bare text, outside \text{}: every other run of two or three letters is a product.
_BARE_WORDS = (
    LEADING
    | MEANINGFUL
    | UNITS
    | DECLARING
    | vocabulary(
        "or and an as be by in it no of on we yes true false none ways way even numbers integers "
        "integer real rational irrational perfect square squares cube cubes form forms natural taking "
        "empty card triangle isosceles equilateral exists there solutions solution nothing"
    )
) - {"max", "min", "deg"}

_EMPTY = re.compile(
    r"(?:there (?:is|are|exists?) )?no(?:ne|thing)?(?: (?:such )?"
    r"(?:real |positive |integer |valid |natural |possible )*"
    r"(?:solution|value|integer|number|function|polynomial|pair|triple|n|x)?s?)?(?: exists?)?|"
    r"(?:it )?does not exist|do not exist|the empty set|empty set"
)
_NUMBER_SETS = {
    r"all (?:the )?(?:real numbers?|reals?)(?: numbers)?(?: [a-z])?": r"\R",
    r"all (?:the )?integers?(?: [a-z])?": r"\Z",
    r"all (?:the )?positive integers?(?: [a-z])?|(?:any|every) positive integer(?: [a-z])?": r"\Z+",
    r"all (?:the )?non-?negative integers?(?: [a-z])?": r"\Z0",
    r"all (?:the )?rational numbers?(?: [a-z])?|all (?:the )?rationals": r"\Q",
    r"all (?:the )?complex numbers?(?: [a-z])?": r"\C",
}
_FILL = vocabulary("the a an is are be must all every any each that which such those exactly only")
_NUMERALS = {"one": "1", "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7"} | {
    "eight": "8",
    "nine": "9",
    "ten": "10",
}


def without_wording(text: str) -> tuple[str, str | None]:
    """(formula, None), or ("", canonical words) where words remain that carry meaning.

    `text` is tidied. Connectives become `\\land` and `\\lor`; leading phrases, units and clauses that only
    declare a constant are dropped.
    """
    marked = without_clauses(_marked(text))
    if not WORD.search(marked):
        return marked, None
    phrase = _plain(marked)
    for pattern, name in _NUMBER_SETS.items():
        if re.fullmatch(pattern, phrase):
            return "", name
    if _EMPTY.fullmatch(phrase):
        return "", r"\empty"
    formula = without_lead(without_remarks(marked))
    formula = re.sub(r"(\\word\{(?:and|or)\}\s*)\\word\{all\}", r"\1", formula)
    formula = WORD.sub(lambda found: _CONNECTIVES.get(found.group(1), found.group()), formula)
    formula = without_units(formula)
    if WORD.search(formula):
        return "", _canonical(marked)
    return formula.strip().rstrip(".;,").strip(), None


def units_of(text: str) -> str:
    """The unit named after the value, in one spelling; "" where there is none."""
    words = [singular(word) for word in unit_words(_marked(text))]
    unit = " ".join(words)
    return _UNIT_SYNONYMS.get(unit, unit)


def _marked(text: str) -> str:
    """`text` with every word as `\\word{...}` in lower case and plain function names as commands."""
    names = _MATH_NAMES.replace(" ", "|")
    text = re.sub(r"\\text\s*\{([^{}]*)\}", lambda found: _mark_words(found.group(1), everything=True), text)
    named = rf"(?<![A-Za-z])({names})(?![A-Za-z])"
    text = _outside_commands(text, lambda part: re.sub(named, r"\\\1", part))
    return _outside_commands(text, _mark_words)


def _outside_commands(text: str, change: Callable[[str], str]) -> str:
    parts = re.split(r"(\\(?:word|mathrm|operatorname)\s*\{[^{}]*\}|\\[A-Za-z]+)", text)
    return "".join(part if index % 2 else change(part) for index, part in enumerate(parts))


def _mark_words(text: str, everything: bool = False) -> str:
    """Mark words; `everything` marks all letter runs but vertex names, as inside `\\text{}`."""
    runs = re.findall(r"[A-Za-z]+", text)
    prose = everything or any(len(run) > 2 and _is_word(run) for run in runs)

    def mark(found: re.Match[str]) -> str:
        run = found.group()
        if len(run) == 1 and not (everything and run == "a"):
            return run
        if run.isupper() and run.lower() not in _BARE_WORDS:
            return run  # a segment or triangle by its vertices
        known = _is_word(run) and (prose or len(run) > 2 or run in _SHORT_WORDS)
        return rf" \word{{{run.lower()}}} " if everything or known else run

    if everything:
        text = re.sub(r"(?<=[A-Za-z])-(?=[A-Za-z])", " ", f" {text} ")
    return re.sub(r"[A-Za-z]+", mark, text)


def _is_word(run: str) -> bool:
    """Whether letters outside `\\text{}` are a word rather than a product such as "abc" or "pqrs"."""
    if run.lower() in _BARE_WORDS:
        return True
    neighbours = all(ord(later) - ord(earlier) == 1 for earlier, later in itertools.pairwise(run))
    return len(run) > 3 and re.search(r"[aeiouAEIOU]", run) is not None and not neighbours


def _plain(marked: str) -> str:
    return " ".join(WORD.sub(r"\1", marked).replace(".", " ").split()).lower()


def _canonical(marked: str) -> str:
    """Words without fill, apart by "and", "or" and commas, in sorted order; formulas keep their text."""
    text = re.sub(r"\\word\{(?:and|or)\}|[,;]", " , ", marked)
    plain = WORD.sub(r"\1", text)
    if re.search(r"[^A-Za-z0-9\s,.'-]", plain):
        return "text: " + "".join(plain.split())
    segments = set()
    for segment in plain.rstrip(". ").split(","):
        words = [singular(_NUMERALS.get(word, word)) for word in segment.lower().replace(".", " ").split()]
        kept = [word for word in words if word not in _FILL and not re.fullmatch(r"[a-z]", word)]
        bare = [word for word in kept if word not in ("number", "integer")]
        segments.add(" ".join(bare or kept))
    return " | ".join(sorted(segments - {""}))
