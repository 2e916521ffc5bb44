"""Words beside a formula that leave it as it is: leading phrases, remarks, units, clauses that declare.

They work on text whose words are marked as `\\word{...}`. What restricts or changes the formula stays.
"""

import re

from evaluation.math.nodes import vocabulary

WORD = re.compile(r"\\word\{([^{}]*)\}")
_RUN = re.compile(r"(?:\\word\{[^{}]*\}[\s,.]*)+")

# Words that may stand alone before the value: "The answer is 5".
LEADING = vocabulary(
    "the final answer answers is are equals value values result sum product area volume maximum "
    "minimum max min largest smallest greatest number of total length ratio probability perimeter "
    "therefore thus hence so only possible solution solutions all set only"
)
# Words after a value that change it or restrict it, so that they are never mistaken for its unit.
MEANINGFUL = vocabulary(
    "not no if iff for when where unless except excluding with without mod modulo base percent hundred "
    "thousand million billion trillion dozen times squared cubed half halves third quarter more less "
    "greater fewer least most than at to from is are only all any some every each odd even prime "
    "primes composite positive negative nonnegative otherwise approximately about roughly near "
    "factorial plus minus over divided multiple multiples power powers such that which depends "
    "infinity infinite infinitely many does do exist otherwise but either neither nor both pi root "
    "between through"
)
# Units that may follow a letter too ("a cm"); after a number any noun phrase counts as its unit.
UNITS = vocabulary("cm mm km cm2 degree degrees deg units unit inches feet miles meters metres")
# What a clause may consist of that only declares a free constant: "where c is any real constant".
DECLARING = vocabulary(
    "where with for some any all every each arbitrary is are a an be being in the real reals complex "
    "constant constants number numbers parameter parameters fixed free can given and let denotes"
)
# Words that a leading sentence may not hold: "The answer is not 5", "It is at least 5".
_TURNING = vocabulary(
    "not no at about approximately roughly more less than if when unless either neither except without "
    "times half"
)


def singular(word: str) -> str:
    """The word without a plural s."""
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def without_lead(marked: str) -> str:
    """Drop a phrase before the value: "The answer is", "Area =", "all" before a condition."""
    stripped = marked.lstrip()
    found = _RUN.match(stripped)
    if found is None:
        return marked
    words, rest = WORD.findall(found.group()), stripped[found.end() :]
    if not rest.strip():
        return marked
    named = re.match(r"\s*[:=]\s*", rest)
    if named is not None and not any(
        word in MEANINGFUL - {"is", "are", "all", "only", "such"} for word in words
    ):
        return rest[named.end() :]
    if all(word in LEADING for word in words):
        return rest.lstrip(" :")
    if words[-1] in ("is", "are", "equals") and not any(word in _TURNING for word in words):
        return rest.lstrip(" :")
    counted = re.match(r"\s*[ijklmnKMN]\s*(?:<|>|\\[lg]e(?![A-Za-z]))", rest)
    if words in (["all", "integers"], ["all", "integer"]) and counted:
        return rest
    return marked


def without_remarks(marked: str) -> str:
    """Drop remarks in brackets made of harmless words, such as "(constant)", and "only" at the end."""

    def drop(found: re.Match[str]) -> str:
        words = WORD.findall(found.group())
        return found.group() if any(word in MEANINGFUL for word in words) else " "

    marked = re.sub(r"\(\s*(?:\\word\{[^{}]*\}\s*)+\)", drop, marked)
    return re.sub(r"(?<=\S)\s*\\word\{only\}\s*$", "", marked)


_PIECE = re.compile(
    r"\\word\{([^{}]*)\}|\\mathbb\{[A-Z]\}|\\in(?![A-Za-z])|\\forall(?![A-Za-z])|[A-Za-z](?:_\w)?|\s+|."
)
_CLAUSE = re.compile(r"[,;(\s]*(\\word\{(?:where|with|for)\}|\\forall(?![A-Za-z]))")
_NEXT_NAME = re.compile(r",\s*[A-Za-z](?:_\w)?\s*(?=$|[,)]|\\word|\\in(?![A-Za-z]))")


_NEXT_CONDITION = re.compile(r",\s*[A-Za-z](?:_\w)?\s*(?:[<>]|\\(?:le|ge|ne|in)(?![A-Za-z]))")
_QUANTIFIER = re.compile(r"\\word\{for\}\s*\\word\{(?:all|every|any)\}|\\forall")
_DOMAINS = vocabulary("integer integers rational rationals natural")  # of a function's argument


def without_clauses(marked: str) -> str:
    """Drop clauses such as "where c is a constant" or "for all x"; a clause that restricts stays."""
    start = 0
    while (found := _CLAUSE.search(marked, start)) is not None:
        end = _clause_end(marked, found.start(1))
        opened = "(" in marked[found.start() : found.start(1)]
        if end is None or not marked[: found.start()].strip() or (opened and marked[end : end + 1] != ")"):
            start = found.end()
            continue
        marked = marked[: found.start()] + " " + marked[end + opened :]
        start = found.start()
    constant = r"[,;(\s]*[A-Za-z](?:_\w)?\s*(?:\\word\{(?:is|a|an|any|real|constant|arbitrary)\}\s*)+\)?\s*$"
    if re.search(r"constant|arbitrary", marked):
        marked = re.sub(constant, "", marked)
    return _without_membership(marked)


def _without_membership(marked: str) -> str:
    """Drop "..., c \\in R" at the end, which declares a constant or an argument; a condition's stays."""
    names = "RC" if re.search(r"[<>]|\\(?:le|ge|ne)(?![A-Za-z])", marked) else "RCZ"
    declared = rf"(?<=[^,;(\s])\s*[,;(]+\s*[A-Za-z](?:_\w)?\s*\\in\s*\\mathbb\{{[{names}]\}}\s*\)?\s*$"
    return re.sub(declared, "", marked)


def _clause_end(marked: str, position: int) -> int | None:
    """Where the clause at `position` ends, or None when it says more than that a letter is free."""
    allowed = DECLARING | _DOMAINS if _QUANTIFIER.match(marked, position) else DECLARING
    while position < len(marked):
        piece = _PIECE.match(marked, position)
        assert piece is not None
        text, word = piece.group(), piece.group(1)
        another = _NEXT_NAME.match(marked, position)
        if another is not None:
            position = another.end()
            continue
        if text in ",;)" or word in ("and", "or"):
            return None if _NEXT_CONDITION.match(marked, position) else position
        declares = word in allowed or re.fullmatch(r"\s+|[A-Za-z](_\w)?|\\(in|forall|mathbb\{[A-Z]\})", text)
        if not declares:
            return None
        position = piece.end()
    return position


def unit_words(marked: str) -> list[str]:
    """The words after a value at the end of the text, none of which changes it."""
    found = re.search(r"[\d})]\s*((?:\\word\{[^{}]*\}\s*)+)$", marked)
    words = WORD.findall(found.group(1)) if found is not None else []
    return [] if any(word in MEANINGFUL for word in words) else words


def without_units(text: str) -> str:
    """Drop units and counted nouns after values."""

    def drop(found: re.Match[str]) -> str:
        before, words = text[: found.start()].rstrip(), WORD.findall(found.group())
        ends = re.match(
            r"\s*(?:\^\s*\{?[23]\}?)?\s*(?:$|[,;)]|\\l(?:and|or)(?![A-Za-z]))", text[found.end() :]
        )
        if not before or ends is None or any(word in MEANINGFUL for word in words):
            return found.group()
        if all(word in UNITS for word in words):
            return ""
        return "" if re.search(r"[\d})]$|\\pi$", before) and len(words) <= 4 else found.group()

    text = re.sub(r"\\word\{(cm|mm|km|m|units?)\}\s*\^\s*\{?[23]\}?", r"\\word{\1}", text)
    return re.sub(r"(?:\\word\{[^{}]*\}\s*)+", drop, text)
