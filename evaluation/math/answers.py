"""Final answers in model responses: extraction, plain integers, and one spelling for one formula.

Extraction follows the strict rule: the last `\\boxed{}` after the thinking block, or nothing. A number that
merely comes last counts only where `lenient` asks for it, and never for a score of its own.
"""

import re
from dataclasses import dataclass
from typing import Literal

Status = Literal["answered", "truncated", "no_answer"]

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BETWEEN_BOXES = re.compile(r"(?:[\s,;$.]|\\\(|\\\)|\\,|\\;|\\quad|\\text\s*\{\s*(?:and|or)\s*\}|and|or|&)*")
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?")
_ANNOUNCED = re.compile(
    r"(?:final\s+answer|answer)\b(?:\s+is)?\s*[:=]?\s*([^\n]*?\S)\s*(?=\.?\s*(?:\n|$))", re.IGNORECASE
)
_BOLD = re.compile(r"\*\*([^*\n]+)\*\*")


@dataclass(frozen=True)
class Extraction:
    """The final answer of one response.

    `answer` is None unless `status` is "answered". "truncated" means that the response ended inside its
    thinking or, cut at a limit, without a box; `reason` says which rule decided.
    """

    answer: str | None
    status: Status
    reason: str


def extract_answer(
    response: str,
    finish_reason: str | None = None,
    *,
    thinking_opened: bool = False,
    lenient: bool = False,
) -> Extraction:
    """Return the final answer of `response`.

    Only text after the last `</think>` counts; a thinking block that never ends holds no answer. With
    `thinking_opened` the chat template opened the block in the prompt, so that a response without `</think>`
    never left it. `finish_reason` "length" marks responses cut at the token limit, "turns" conversations cut
    at the turn limit. `lenient` falls back on an announced answer, the last bold text or the last number, for
    comparison with graders that do so.
    """
    _, closed, text = response.rpartition("</think>")
    if not closed and (thinking_opened or "<think>" in response):
        return Extraction(None, "truncated", "the thinking block never ends")
    answer, reason = _boxed(text)
    if answer is None and lenient:
        answer = _last_resort(text)
        reason = "no box, lenient reading" if answer is not None else reason
    if answer is not None:
        return Extraction(answer, "answered", reason)
    if finish_reason in ("length", "turns"):
        limit = "token" if finish_reason == "length" else "turn"
        return Extraction(None, "truncated", f"cut at the {limit} limit: {reason}")
    return Extraction(None, "no_answer", reason)


def _boxed(text: str) -> tuple[str | None, str]:
    """The content of the last box; boxes joined by nothing but "and", "or" or commas are one list."""
    boxes: list[tuple[int, int, str | None]] = []
    position = 0
    while found := _BOX.search(text, position):
        end, content = _argument(text, found.end())
        boxes.append((found.start(), end, content))
        position = end
    if not boxes:
        return None, "no box"
    start, _, content = boxes.pop()
    if content is None:
        return None, "the last box is not closed"
    contents = [_unboxed(content).strip()]
    while boxes and contents[0]:
        previous_start, previous_end, previous = boxes.pop()
        if previous is None or not _BETWEEN_BOXES.fullmatch(text, previous_end, start):
            break
        contents.insert(0, _unboxed(previous).strip())
        start = previous_start
    distinct = list(dict.fromkeys(contents))
    answer = ", ".join(distinct)
    if not answer:
        return None, "the last box is empty"
    return answer, "last box" if len(distinct) == 1 else f"{len(distinct)} boxes in a row"


def _argument(text: str, position: int) -> tuple[int, str | None]:
    """End and content of the TeX argument at `position`; the content is None when a brace stays open."""
    if position >= len(text):
        return len(text), None
    if text[position] != "{":
        token = re.compile(r"\\[A-Za-z]+|\d+|.", re.DOTALL).match(text, position)
        assert token is not None
        return token.end(), token.group()
    depth = 0
    index = position
    while index < len(text):
        if text[index] == "\\":
            index += 2
            continue
        depth += (text[index] == "{") - (text[index] == "}")
        index += 1
        if depth == 0:
            return index, text[position + 1 : index - 1]
    return len(text), None


def _unboxed(text: str) -> str:
    """`text` with boxes inside it replaced by their contents."""
    while found := _BOX.search(text):
        end, content = _argument(text, found.end())
        text = text[: found.start()] + (content or "") + text[end:]
    return text


def _last_resort(text: str) -> str | None:
    announced = _ANNOUNCED.findall(text)
    if announced and re.search(r"\d|\\", announced[-1]):
        return announced[-1].replace("*", "").strip(" .$") or None
    bold = [found for found in _BOLD.findall(text) if re.search(r"\d", found)]
    if bold:
        return bold[-1].strip(" .$") or None
    numbers = _NUMBER.findall(text)
    return numbers[-1] if numbers else None


_DECORATION = re.compile(
    r"\\(?:displaystyle|textstyle|left|right|[bB]igg?[lr]?|limits|nolimits|mathopen|mathclose|phantom\{\})"
    r"(?![A-Za-z])"
)
_REWRITES = {
    r"\\[dtc]frac(?![A-Za-z])": r"\\frac",
    r"\\[dt]binom(?![A-Za-z])": r"\\binom",
    r"\\(?:leqslant|leqq|leq)(?![A-Za-z])": r"\\le",
    r"\\(?:geqslant|geqq|geq)(?![A-Za-z])": r"\\ge",
    r"\\(?:lt)(?![A-Za-z])": "<",
    r"\\(?:gt)(?![A-Za-z])": ">",
    r"\\neq(?![A-Za-z])": r"\\ne",
    r"\\lbrace(?![A-Za-z])": r"\\{",
    r"\\rbrace(?![A-Za-z])": r"\\}",
    r"\\[lr]vert(?![A-Za-z])|\\vert(?![A-Za-z])": "|",
    r"\\(?:varnothing|O)(?![A-Za-z])": r"\\emptyset",
    r"\\backslash(?![A-Za-z])": r"\\setminus",
    r"\\(?:dots|dotsc|dotsb|cdots|hdots)(?![A-Za-z])|\.\.\.|…": r"\\ldots",
    r"\\var(phi|epsilon|theta|rho|sigma|kappa)(?![A-Za-z])": r"\\\1",
    r"\\(?:textbf|textrm|textit|textnormal|mbox|texttt)(?![A-Za-z])": r"\\text",
    r"\\(?:mathbf|boldsymbol|bm|mathit|mathsf|mathcal)(?![A-Za-z])": r"\\mathrm",
    r"\\(?:R|reals|Reals)(?![A-Za-z])": r"\\mathbb{R}",
    r"\\([ZNQC])(?![A-Za-z])": r"\\mathbb{\1}",
    r"\\(?:mathbb|mathrm)\s*\{?([RZNQC])\}?(?=$|[^A-Za-z}])": r"\\mathbb{\1}",
    r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})|°|\\degree(?![A-Za-z])": r"\\degree ",
    r"(?<=\d)(?:\{,\}|\\[,!])(?=\d{3}(?!\d))": "",
    r"\\(?:lparen)(?![A-Za-z])": "(",
    r"\\(?:rparen)(?![A-Za-z])": ")",
}
_REWRITE_PATTERNS = [(re.compile(pattern), replacement) for pattern, replacement in _REWRITES.items()]
_UNICODE = str.maketrans(
    {
        "\N{MINUS SIGN}": "-",
        "\N{EN DASH}": "-",
        "\N{MULTIPLICATION SIGN}": r"\times ",
        "\N{MIDDLE DOT}": r"\cdot ",
        "\N{DOT OPERATOR}": r"\cdot ",
        "\N{DIVISION SIGN}": r"\div ",
        "\N{GREEK SMALL LETTER PI}": r"\pi ",
        "\N{INFINITY}": r"\infty ",
        "\N{LESS-THAN OR EQUAL TO}": r"\le ",
        "\N{GREATER-THAN OR EQUAL TO}": r"\ge ",
        "\N{NOT EQUAL TO}": r"\ne ",
        "\N{ALMOST EQUAL TO}": r"\approx ",
        "\N{PLUS-MINUS SIGN}": r"\pm ",
        "\N{MINUS-OR-PLUS SIGN}": r"\mp ",
        "\N{SQUARE ROOT}": r"\sqrt ",
        "\N{UNION}": r"\cup ",
        "\N{INTERSECTION}": r"\cap ",
        "\N{ELEMENT OF}": r"\in ",
        "\N{EMPTY SET}": r"\emptyset ",
        "\N{LEFT FLOOR}": r"\lfloor ",
        "\N{RIGHT FLOOR}": r"\rfloor ",
        "\N{LEFT CEILING}": r"\lceil ",
        "\N{RIGHT CEILING}": r"\rceil ",
        "\N{DOUBLE-STRUCK CAPITAL R}": r"\mathbb{R}",
        "\N{DOUBLE-STRUCK CAPITAL Z}": r"\mathbb{Z}",
        "\N{DOUBLE-STRUCK CAPITAL N}": r"\mathbb{N}",
        "\N{DOUBLE-STRUCK CAPITAL Q}": r"\mathbb{Q}",
        "\N{GREEK SMALL LETTER ALPHA}": r"\alpha ",
        "\N{GREEK SMALL LETTER BETA}": r"\beta ",
        "\N{GREEK SMALL LETTER LAMDA}": r"\lambda ",
        "\N{GREEK SMALL LETTER THETA}": r"\theta ",
        "\N{GREEK SMALL LETTER RHO}": r"\rho ",
        "\N{GREEK SMALL LETTER PHI}": r"\phi ",
        "\N{SUPERSCRIPT TWO}": "^{2}",
        "\N{SUPERSCRIPT THREE}": "^{3}",
        "\N{FULLWIDTH COMMA}": ",",
        "\N{FULLWIDTH LEFT PARENTHESIS}": "(",
        "\N{FULLWIDTH RIGHT PARENTHESIS}": ")",
        "\u00a0": " ",
        "\u2009": " ",
    }
)


def tidy(text: str) -> str:
    """Bring spelling variants of LaTeX and Unicode to one form, keeping spaces, words and structure."""
    text = re.sub("\N{SQUARE ROOT}" + r"\s*(\d+|[A-Za-z])", r"\\sqrt{\1}", text).translate(_UNICODE)
    text = re.sub(r"(?<!\\)\$|\\[()\[\]]", " ", text)
    for pattern, replacement in _REWRITE_PATTERNS:
        text = pattern.sub(replacement, text)
    text = _DECORATION.sub(" ", text)
    text = re.sub(r"(?<=\d)(?:\s|\\[,;:! ])+(?=\d{3}(?!\d))", _join_thousands, text)
    text = re.sub(r"\\(?:[,;:!>]|quad(?![A-Za-z])|qquad(?![A-Za-z])|\s)|~", " ", text)
    if _GROUPED_LIST.fullmatch(text.strip()) and re.search(r",\d", text):
        text = re.sub(r",(?=\d)", "", text)
    return text.strip().rstrip(".;,").strip()


# A list such as "60,750, 854,130": a space after every comma that separates, none inside the numbers.
_GROUPED_LIST = re.compile(r"\d{1,3}(?:,\d{3})+(?:,\s+\d{1,3}(?:,\d{3})+)+")


def _join_thousands(found: re.Match[str]) -> str:
    """Drop the space in "12 345", but not one that follows more than three digits or stands in "4 125 7"."""
    text, start = found.string, found.start()
    leading = re.search(r"\d+$", text[:start])
    following = re.match(r"\d{3}", text[found.end() :])
    if (
        leading
        and following
        and len(leading.group()) <= 3
        and not text[: leading.start()].endswith((".", "^", "_"))
    ):
        return ""
    return found.group()


def same_text(first: str, second: str) -> bool:
    """Tell whether two answers are the same formula up to spelling variants, spaces and needless braces."""
    return _squeezed(first) == _squeezed(second)


def _squeezed(text: str) -> str:
    text = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", tidy(text))
    text = re.sub(r"([\^_])\{(\w)\}", r"\1\2", text)
    # A space may only go where it separates nothing: "2 3" is not "23", "\pi r" is not "\pir".
    return re.sub(r"\s+(?![A-Za-z0-9])|(?<![A-Za-z0-9])\s+", "", text)


_INTEGER = re.compile(r"[-+]?\d+(?:\.0*)?")
_GROUPED = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.0*)?")


def integer_of(text: str) -> int | None:
    """The integer that `text` spells, or None.

    Accepts dollar signs, thousands separators ("1,037", "1{,}037", "1\\,037"), leading zeros, a trailing
    point and `\\text{}` around the digits; nothing else, so that a formula never passes for an integer.
    """
    if len(text) > 200 or not any(character.isdigit() for character in text):
        return None
    plain = text.strip()
    if not _INTEGER.fullmatch(plain):
        plain = re.sub(r"\\(?:text|mathrm)\s*\{\s*([-+\d,.]*)\s*\}", r"\1", tidy(plain.replace(r"\$", "")))
        plain = re.sub(r"^([-+])\s+", r"\1", plain.strip("{} "))
        if _GROUPED.fullmatch(plain):
            plain = plain.replace(",", "")
        if not _INTEGER.fullmatch(plain):
            return None
    return int(plain.split(".")[0])
