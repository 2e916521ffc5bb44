"""How far an LLM judge agrees with the rules of task `style`, on logged trajectories.

    python -m evaluation.writing.agreement results/logged/cpu/runs/{sao_online,running_mean_online}/seed0 \\
        --judge-url http://127.0.0.1:8000/v1 --judge-model glm-4.7 --out results/agreement

reads the samples of `trajectories.jsonl.gz` of each run, writes their tokens as words, has the judge grade
them, and compares its quality, its style and the reward of both with those of the rules. Writes
agreement.csv (one line a text) and agreement.md; verdicts.jsonl is the judge's log, and what it holds is not
asked again. Texts that are cut, or name no candidate, have no words for a judge: they are counted apart.
"""

import argparse
import csv
import io
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from evaluation.judging import KEY_VARIABLE, RETRIES, TIMEOUT_SECONDS, JudgeError, LoggedJudge
from evaluation.writing.judge import ATTEMPTS, NO_STYLE, WritingJudge
from evaluation.writing.style_texts import Text, TextError, read_texts
from sao.environments.base import EnvironmentFailure
from sao.environments.writing import StyleJudge
from sao.runlog_files import RunError, write_atomic

RESAMPLES, SEED, LEVEL = 10_000, 20260708, 0.95
QUANTITIES = ("quality", "style", "reward")


@dataclass(frozen=True)
class Compared:
    """One text under both judges; empty verdicts of the judge where it gave none."""

    run: str
    step: int
    problem_id: str
    rewarded: str
    rule_quality: int
    rule_style: str
    rule_reward: int
    judge_quality: int | str
    judge_style: str
    judge_reward: int | str
    text: str


def compare(texts: Sequence[Text], judge: StyleJudge) -> list[Compared]:
    """Each text under the rules and the judge; texts on which the judge gives no verdict stay without one."""
    return [_compared(text, judge) for text in texts]


def _compared(text: Text, judge: StyleJudge) -> Compared:
    ours = (int(text.quality), text.style, int(text.reward))
    theirs: tuple[int | str, str, int | str] = ("", "", "")
    try:
        judged = judge.grade(text.request, text.candidates, text.text)
        theirs = (
            int(judged.good),
            judged.style or NO_STYLE,
            int(judged.good and judged.style == text.rewarded),
        )
    except EnvironmentFailure as error:
        print(f"no verdict: {error}", file=sys.stderr)
    return Compared(text.run, text.step, text.problem_id, text.rewarded, *ours, *theirs, text.text)


def cohens_kappa(first: Sequence[Any], second: Sequence[Any]) -> float:
    """Agreement beyond chance, (observed - expected) / (1 - expected); NaN where all verdicts are one."""
    pairs = list(zip(first, second, strict=True))
    observed = sum(a == b for a, b in pairs) / len(pairs)
    labels = set(first) | set(second)
    shares = [(list(first).count(label), list(second).count(label)) for label in labels]
    expected = sum(a * b for a, b in shares) / len(pairs) ** 2
    return (observed - expected) / (1 - expected) if expected < 1 else float("nan")


def agreement(first: Sequence[Any], second: Sequence[Any]) -> dict[str, float]:
    """Share of equal verdicts with the exact binomial interval, and Cohen's kappa with a bootstrap interval.

    Texts are drawn with replacement for kappa; resamples in which kappa is undefined are left out. Raises
    ValueError without texts.
    """
    if not first:
        raise ValueError("there is nothing to compare")
    count = len(first)
    equal = sum(a == b for a, b in zip(first, second, strict=True))
    share = stats.binomtest(equal, count).proportion_ci(LEVEL, method="exact")
    labels = sorted({*map(str, first), *map(str, second)})
    codes = [np.array([labels.index(str(value)) for value in values]) for values in (first, second)]
    low, high = _kappa_interval(codes[0], codes[1], len(labels))
    return {
        "texts": count,
        "agreement": equal / count,
        "agreement_low": float(share.low),
        "agreement_high": float(share.high),
        "kappa": cohens_kappa(first, second),
        "kappa_low": low,
        "kappa_high": high,
    }


def _kappa_interval(first: np.ndarray, second: np.ndarray, labels: int) -> tuple[float, float]:
    """95% percentile interval of kappa over resampled texts; NaN where no resample defines it."""
    table = np.zeros((labels, labels))
    np.add.at(table, (first, second), 1)
    generator = np.random.default_rng(SEED)
    draws = generator.multinomial(len(first), table.ravel() / len(first), size=RESAMPLES)
    shares = draws.reshape(-1, labels, labels) / len(first)
    observed = np.trace(shares, axis1=1, axis2=2)
    expected = (shares.sum(axis=2) * shares.sum(axis=1)).sum(axis=1)
    defined = expected < 1
    if not defined.any():
        return float("nan"), float("nan")
    kappas = (observed[defined] - expected[defined]) / (1 - expected[defined])
    low, high = np.quantile(kappas, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def report(compared: Sequence[Compared], left_out: int, model: str) -> str:
    """The agreement as Markdown."""
    decided = [line for line in compared if line.judge_style]
    lines = [
        "# Agreement of the LLM judge with the rules of task style",
        "",
        "| verdict | texts | equal [95% interval] | Cohen's kappa [95% interval] |",
        "|---|---|---|---|",
    ]
    for name in QUANTITIES if decided else ():
        found = agreement(
            [getattr(line, f"rule_{name}") for line in decided],
            [getattr(line, f"judge_{name}") for line in decided],
        )
        share = " ".join(
            [f"{found['agreement']:.1%}", f"[{found['agreement_low']:.1%}, {found['agreement_high']:.1%}]"]
        )
        kappa = f"{found['kappa']:.2f} [{found['kappa_low']:.2f}, {found['kappa_high']:.2f}]"
        lines.append(f"| {name} | {len(decided)} | {share} | {kappa.replace('nan', 'undefined')} |")
    runs = ", ".join(f"`{run}`" for run in dict.fromkeys(line.run for line in compared))
    silent = len(compared) - len(decided)
    lines += [
        "",
        f"Judge {model}. {len(compared)} texts of {runs}; the judge gave no verdict on {silent} of them. "
        f"{left_out} more samples were cut or named no candidate and have no text. Intervals: exact binomial "
        "for the shares, bootstrap over texts for kappa; several texts answer one request, which neither "
        "accounts for. The style is one of the candidates or none, the reward quality x style for the style "
        "rewarded when the text was sampled.",
    ]
    return "\n".join(lines) + "\n"


def to_csv(compared: Sequence[Compared]) -> str:
    """One line a text."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Compared)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(line) for line in compared)
    return text.getvalue()


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; 0, or 2 after one line about a user's mistake or a judge that cannot be asked."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.writing.agreement", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("runs", type=Path, nargs="+", help="run directories of task style")
    parser.add_argument("--judge-url", required=True, help="base URL of an OpenAI-compatible endpoint")
    parser.add_argument("--judge-model", required=True, help="model at that endpoint")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for agreement.csv, .md, verdicts.jsonl"
    )
    parser.add_argument("--key-variable", default=KEY_VARIABLE, help="environment variable with the API key")
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_SECONDS, help="seconds to wait for an answer"
    )
    parser.add_argument("--per-minute", type=float, help="most requests in a minute")
    options = parser.parse_args(arguments)
    try:
        texts, left_out = read_texts(options.runs)
        client = LoggedJudge(
            options.judge_url,
            options.judge_model,
            options.out / "verdicts.jsonl",
            options.timeout,
            RETRIES,
            options.per_minute,
            ATTEMPTS,
            options.key_variable,
        )
        compared = compare(texts, WritingJudge(client))
        shown = report(compared, left_out, options.judge_model)
        options.out.mkdir(parents=True, exist_ok=True)
        write_atomic(options.out / "agreement.csv", to_csv(compared).encode())
        write_atomic(options.out / "agreement.md", shown.encode())
    except (TextError, JudgeError, RunError) as error:
        print(error, file=sys.stderr)
        return 2
    print(shown, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
