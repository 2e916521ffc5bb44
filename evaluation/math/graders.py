"""One answer, two graders: what each says and what follows. Runs in the workers of the grading pool."""

from collections.abc import Callable
from dataclasses import dataclass, field

from evaluation.math.exact_grader import grade_exact
from evaluation.math.math_verify_grader import grade_with_math_verify
from evaluation.math.verdicts import Opinion, undecided


@dataclass(frozen=True)
class Pair:
    """What has to be compared.

    `vote` asks both graders, else math-verify is asked only where the exact grader gives up; `exact_only`
    never asks it. `decimals` lets rounded decimals stand for numbers.
    """

    gold: str
    answer: str
    vote: bool = False
    decimals: bool = False
    exact_only: bool = False


@dataclass(frozen=True)
class Ballot:
    """The verdict on one pair and the opinion of each grader that was asked."""

    opinion: Opinion
    votes: dict[str, Opinion] = field(default_factory=dict)

    @property
    def disagreement(self) -> bool:
        """Whether one grader says right and the other wrong."""
        return {"right", "wrong"} <= {vote.verdict for vote in self.votes.values()}


def grade_pair(pair: Pair) -> Ballot:
    """Ask the graders. An undecided grader leaves the verdict to the other; a split vote is undecided."""
    votes = {"exact": _careful(grade_exact, pair.gold, pair.answer, pair.decimals)}
    if not pair.exact_only and (pair.vote or votes["exact"].verdict == "undecided"):
        votes["math_verify"] = _careful(grade_with_math_verify, pair.gold, pair.answer)
    decided = {name: vote for name, vote in votes.items() if vote.verdict != "undecided"}
    if len({vote.verdict for vote in decided.values()}) > 1:
        reasons = "; ".join(f"{name} says {vote.verdict} ({vote.reason})" for name, vote in votes.items())
        return Ballot(undecided(f"the graders disagree: {reasons}"), votes)
    return Ballot(next(iter(decided.values()), votes["exact"]), votes)


def _careful(grader: Callable[..., Opinion], *arguments: str | bool) -> Opinion:
    """The grader's opinion; what it cannot digest is undecided, never wrong."""
    try:
        return grader(*arguments)
    except MemoryError:
        return undecided("out of memory")
    except Exception as problem:  # the libraries raise whatever comes to them
        return undecided(f"{type(problem).__name__} in the grader: {problem}"[:200])
