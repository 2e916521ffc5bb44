"""Grades responses: verdict, extracted answer and reason for every sample.

    python -m evaluation.math.grading regrade SAMPLES.jsonl [--out FILE] [--lenient] [--decimals]

A sample is a line with benchmark, problem_id, run_index, gold, response_text and finish_reason; grading adds
the fields of `GRADE_FIELDS` and needs no model. Integers are compared as integers, everything else by two
graders in processes that can be killed. On IMOAnswerBench both vote and their disagreements are listed.
"undecided" is a verdict of its own: it counts as wrong in a rule-only score and is what a judge may settle.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from evaluation.math.answers import extract_answer, integer_of
from evaluation.math.graders import Ballot, Pair, grade_pair
from evaluation.math.grading_pool import LIMIT_SECONDS, GradingPool, StartFailure, WorkerFailure
from evaluation.math.judge import Judge, JudgeError
from evaluation.math.verdicts import Opinion, Verdict, undecided

VOTING_BENCHMARKS = frozenset({"imo_answerbench", "imo_answerbench_v1"})
SAMPLE_FIELDS = ("benchmark", "problem_id", "run_index", "gold", "response_text", "finish_reason")
GRADE_FIELDS = (
    "verdict",
    "extracted_answer",
    "answer_status",
    "reason",
    "votes",
    "disagreement",
    "lenient_verdict",
    "judge",
)


class SampleError(ValueError):
    """A samples file that cannot be graded; the message names file, line and what to mend."""


@dataclass(frozen=True)
class Grade:
    """The grade of one response.

    `verdict` is "right", "wrong" or "undecided"; `status` says whether there was an answer at all
    ("answered", "truncated", "no_answer"); `votes` holds the opinion of each grader that was asked.
    """

    verdict: Verdict
    answer: str | None
    status: str
    reason: str
    votes: dict[str, Opinion] = field(default_factory=dict)

    @property
    def disagreement(self) -> bool:
        """Whether one grader says right and the other wrong."""
        return {"right", "wrong"} <= {vote.verdict for vote in self.votes.values()}

    def fields(self) -> dict[str, Any]:
        """The grade as fields of a sample."""
        return {
            "verdict": self.verdict,
            "extracted_answer": self.answer,
            "answer_status": self.status,
            "reason": self.reason,
            "votes": {
                name: {"verdict": vote.verdict, "reason": vote.reason} for name, vote in self.votes.items()
            },
            "disagreement": self.disagreement,
        }


class Grader:
    """Grades responses of any benchmark, from any thread, with its own pool of worker processes.

    Equal pairs of gold answer and answer are compared once. Use it as a context manager.
    """

    def __init__(
        self, workers: int | None = None, decimals: bool = False, limit_seconds: float = LIMIT_SECONDS
    ) -> None:
        self.decimals = decimals
        self._pool: GradingPool[Pair, Ballot] = GradingPool(grade_pair, workers, limit_seconds)
        self._known: dict[Pair, Any] = {}

    def __enter__(self) -> "Grader":
        return self

    def __exit__(self, *problem: object) -> None:
        self._pool.close()

    def grade(
        self,
        benchmark: str,
        gold: str,
        response: str,
        finish_reason: str | None = None,
        *,
        thinking_opened: bool = False,
        lenient: bool = False,
    ) -> Grade:
        """Grade one response against the gold answer; `evaluation.math.answers` explains the options.

        Raises StartFailure where no process can be started to compare in.
        """
        extraction = extract_answer(response, finish_reason, thinking_opened=thinking_opened, lenient=lenient)
        if extraction.answer is None:
            return Grade("wrong", None, extraction.status, extraction.reason)
        opinion, votes = self._compare(benchmark, gold, extraction.answer)
        return Grade(opinion.verdict, extraction.answer, extraction.status, opinion.reason, votes)

    def prepare(self, samples: Iterable[tuple[str, str, str]]) -> None:
        """Queue the comparison of (benchmark, gold, answer) triples, to be collected by `grade`."""
        for benchmark, gold, answer in samples:
            if _integers(gold, answer) is None:
                self._ballot(self._pair(benchmark, gold, answer))

    def _pair(self, benchmark: str, gold: str, answer: str) -> Pair:
        return Pair(gold, answer, vote=benchmark in VOTING_BENCHMARKS, decimals=self.decimals)

    def _ballot(self, pair: Pair) -> Any:
        if pair not in self._known:
            self._known[pair] = self._pool.submit(pair)
        return self._known[pair]

    def _compare(self, benchmark: str, gold: str, answer: str) -> tuple[Opinion, dict[str, Opinion]]:
        integers = _integers(gold, answer)
        if integers is not None:
            return integers, {}
        pair = self._pair(benchmark, gold, answer)
        try:
            ballot = self._ballot(pair).result()
        except WorkerFailure as failure:
            ballot = self._without_math_verify(pair, str(failure))
        except StartFailure:
            self._known.pop(pair, None)  # another attempt may find a worker
            raise
        return ballot.opinion, ballot.votes

    def _without_math_verify(self, pair: Pair, problem: str) -> Ballot:
        """The exact grader's opinion where math-verify hangs or dies, as it does on towers of powers."""
        lost = undecided(problem)
        try:
            ballot = self._ballot(replace(pair, exact_only=True)).result()
        except WorkerFailure as failure:
            return Ballot(undecided(str(failure)), {"exact": undecided(str(failure)), "math_verify": lost})
        opinion = lost if ballot.opinion.verdict == "undecided" else ballot.opinion
        return Ballot(opinion, {**ballot.votes, "math_verify": lost})


def _integers(gold: str, answer: str) -> Opinion | None:
    """The comparison of two integers; None where one side is none."""
    expected, given = integer_of(gold), integer_of(answer)
    if expected is None or given is None:
        return None
    if expected == given:
        return Opinion("right", "the same integer")
    return Opinion("wrong", "another integer")


# Regrading ------------------------------------------------------------------------------------------------


def read_samples(path: Path) -> Iterator[dict[str, Any]]:
    """The samples of a JSON Lines file. Raises SampleError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as problem:
        raise SampleError(f"{path}: {problem.strerror}") from None
    for number, line in enumerate(lines, start=1):
        try:
            sample = json.loads(line)
        except json.JSONDecodeError as problem:
            raise SampleError(
                f"{path}:{number}: not JSON ({problem.msg}); remove or repair the line"
            ) from None
        missing = [name for name in SAMPLE_FIELDS if not isinstance(sample, dict) or name not in sample]
        if missing:
            raise SampleError(f"{path}:{number}: no field {', '.join(missing)}")
        yield sample


def regrade(
    samples: list[dict[str, Any]], grader: Grader, lenient: bool = False, judge: Judge | None = None
) -> Iterator[dict[str, Any]]:
    """Yield every sample with fresh grade fields, earlier ones dropped, in the given order.

    `lenient` adds the verdict under the lenient extraction. A judge is asked about undecided samples that
    carry their problem's text; its verdict stands beside the rules' verdict, never in its place.
    """
    extractions = [extract_answer(s["response_text"], s["finish_reason"], lenient=lenient) for s in samples]
    grader.prepare(
        (sample["benchmark"], sample["gold"], extraction.answer)
        for sample, extraction in zip(samples, extractions, strict=True)
        if extraction.answer is not None
    )
    for sample in samples:
        arguments = (sample["benchmark"], sample["gold"], sample["response_text"], sample["finish_reason"])
        opened = bool(sample.get("thinking_opened", False))
        grade = grader.grade(*arguments, thinking_opened=opened)
        graded = {name: value for name, value in sample.items() if name not in GRADE_FIELDS} | grade.fields()
        if lenient:
            graded["lenient_verdict"] = grader.grade(*arguments, thinking_opened=opened, lenient=True).verdict
        if judge is not None and grade.verdict == "undecided" and grade.answer is not None:
            graded["judge"] = judge.ask(sample.get("problem", ""), sample["gold"], grade.answer).fields()
        yield graded


def summary(graded: list[dict[str, Any]]) -> str:
    """Counts by benchmark, and every disagreement of the graders."""
    lines = []
    for benchmark in sorted({sample["benchmark"] for sample in graded}):
        mine = [sample for sample in graded if sample["benchmark"] == benchmark]
        verdicts = Counter(sample["verdict"] for sample in mine)
        statuses = Counter(sample["answer_status"] for sample in mine)
        split = [sample for sample in mine if sample["disagreement"]]
        lines.append(
            f"{benchmark}: {len(mine)} samples, {verdicts['right']} right, {verdicts['wrong']} wrong "
            f"({statuses['truncated']} truncated, {statuses['no_answer']} without an answer), "
            f"{verdicts['undecided']} undecided; the graders disagree on {len(split)}"
        )
        judged = Counter(sample["judge"]["verdict"] for sample in mine if sample.get("judge"))
        if judged:
            lines.append(
                f"  judge: {judged['right']} right, {judged['wrong']} wrong, {judged['undecided']} no verdict"
            )
        if any("lenient_verdict" in sample for sample in mine):
            right = sum(sample["lenient_verdict"] == "right" for sample in mine)
            lines.append(f"  under the lenient extraction: {right} right")
        lines += [
            f"  {sample['problem_id']} run {sample['run_index']}: gold {sample['gold']!r}, "
            f"answer {sample['extracted_answer']!r}: "
            + ", ".join(f"{name} {vote['verdict']}" for name, vote in sample["votes"].items())
            for sample in split
        ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m evaluation.math.grading", description="Grade samples.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("regrade", help="grade a samples file again, without a model")
    command.add_argument("samples", type=Path)
    command.add_argument("--out", type=Path, help="default: SAMPLES.graded.jsonl beside the file")
    command.add_argument("--workers", type=int, help="worker processes; default: one per core")
    command.add_argument(
        "--lenient", action="store_true", help="report the lenient extraction beside the strict"
    )
    command.add_argument("--decimals", action="store_true", help="accept rounded decimals for exact numbers")
    command.add_argument("--judge-url", help="OpenAI-compatible endpoint that judges undecided samples")
    command.add_argument("--judge-model", help="model name at that endpoint")
    command.add_argument(
        "--judge-prompt", type=Path, help="file with {problem}, {gold}, {answer}, in place of our instruction"
    )
    options = parser.parse_args(arguments)
    target = options.out or options.samples.with_suffix(".graded.jsonl")
    try:
        if bool(options.judge_url) != bool(options.judge_model):
            raise SampleError("--judge-url and --judge-model go together; give both or neither")
        judge = (
            Judge(
                options.judge_url,
                options.judge_model,
                target.with_suffix(".judge.jsonl"),
                prompt=options.judge_prompt,
            )
            if options.judge_url
            else None
        )
        samples = list(read_samples(options.samples))
        with Grader(options.workers, options.decimals) as grader:
            graded = list(regrade(samples, grader, options.lenient, judge))
    except (SampleError, JudgeError, StartFailure) as problem:
        print(problem, file=sys.stderr)
        return 2
    unfinished = target.with_suffix(".part")
    unfinished.write_text("".join(json.dumps(sample) + "\n" for sample in graded), encoding="utf-8")
    unfinished.replace(target)
    print(summary(graded))
    print(f"written to {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
