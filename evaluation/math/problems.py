"""Problems of a benchmark, their checksum, and reviewed corrections of known faults in the data."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from evaluation.data_files import DataError
from evaluation.math.nodes import Unreadable
from evaluation.math.reader import read


@dataclass(frozen=True)
class Problem:
    """One problem with its gold answer as the source spells it, or as a patch corrects it."""

    id: str
    problem: str
    answer: str
    category: str | None = None

    @property
    def judge_only(self) -> bool:
        """Whether the gold answer is in words or in notation that rules cannot compare.

        Rules then recognise an answer in the same words, and leave every other to a judge.
        """
        try:
            return read(self.answer).head == "words"
        except Unreadable:
            return True


def checksum(problems: Sequence[Problem]) -> str:
    """SHA-256 of the (id, problem, answer) triples in order, line ends and outer white space aside."""
    rows = [
        [part.replace("\r\n", "\n").strip() for part in (problem.id, problem.problem, problem.answer)]
        for problem in problems
    ]
    return hashlib.sha256(json.dumps(rows, ensure_ascii=False).encode()).hexdigest()


@dataclass(frozen=True)
class PatchSet:
    """Corrections of single rows. `name` goes wherever scores on the corrected rows go."""

    name: str
    patches: tuple[dict[str, Any], ...]
    reviewed: tuple[dict[str, Any], ...]

    def apply(self, problems: Sequence[Problem]) -> tuple[Problem, ...]:
        """The problems with corrected rows. Raises DataError where a row is not what was corrected."""
        rows = {problem.id: problem for problem in problems}
        for patch in self.patches:
            row = rows.get(patch["id"])
            if row is None:
                raise DataError(f"patch set {self.name}: no row {patch['id']}; the data is another version")
            for name, value in patch["was"].items():
                found = (getattr(row, name) or "").strip()
                if found != value:
                    raise DataError(
                        f"patch set {self.name}: {row.id} has {name} {found!r}, not {value!r}; "
                        "review the patch against this version of the data"
                    )
            rows[row.id] = replace(row, **patch["now"])
        return tuple(rows.values())


def read_patches(path: Path) -> PatchSet:
    """A patch file. Raises DataError where an entry lacks a field."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    for patch in content["patches"]:
        missing = {"id", "was", "now", "reason", "source"} - patch.keys()
        if missing or patch["was"].keys() != patch["now"].keys():
            raise DataError(
                f"{path}: the patch of {patch.get('id')} needs id, was, now (same keys), reason, source"
            )
    return PatchSet(content["name"], tuple(content["patches"]), tuple(content.get("reviewed", ())))
