"""Grades a finished evaluation again from its samples, without the model, and seals the new scores.

    python -m evaluation.math.regrade results/cpu_math/evaluations/sao/seed0/step120/imo_answerbench
    python -m evaluation.math.regrade FOLDER --judge-url http://127.0.0.1:8000/v1 --judge-model glm-4.7

samples.jsonl stays as it is; scores.jsonl takes the new grades. A judge is asked about undecided answers,
and its verdicts stand beside those of the rules; its replies are kept in judge.jsonl, and none is asked for
twice.
"""

import argparse
import sys
from pathlib import Path

from evaluation.math.grading import Grader, regrade, summary
from evaluation.math.grading_pool import StartFailure
from evaluation.math.judge import Judge, JudgeError
from evaluation.math.store import SampleStore, StoreError, read_evaluation, read_samples, without_texts
from sao.runlog_files import RunError


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns 0, or 2 for a user's mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.math.regrade", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--judge-url", help="OpenAI-compatible endpoint that judges undecided answers")
    parser.add_argument("--judge-model", help="model at that endpoint")
    parser.add_argument(
        "--judge-prompt", type=Path, help="file with {problem}, {gold}, {answer}, in place of our instruction"
    )
    options = parser.parse_args(arguments)
    if bool(options.judge_url) != bool(options.judge_model):
        parser.error("--judge-url and --judge-model go together")
    try:
        judge = None
        if options.judge_url:
            replies = options.folder / "judge.jsonl"
            judge = Judge(options.judge_url, options.judge_model, replies, prompt=options.judge_prompt)
        with SampleStore(options.folder, read_evaluation(options.folder).spec) as store, Grader() as grader:
            graded = list(regrade(list(read_samples(options.folder)), grader, judge=judge))
            store.seal(map(without_texts, graded))
    except (StoreError, RunError, JudgeError, StartFailure) as error:
        print(error, file=sys.stderr)
        return 2
    print(summary(graded))
    return 0


if __name__ == "__main__":
    sys.exit(main())
