"""Speed of grading, on the samples of one checkpoint and on the pairs that no integer comparison settles.

    python benchmarks/grading.py [--workers 2]

The mix is 7,760 responses: AIME 480 and BeyondAIME 400 with integers, HMMT 480 with 14 of 30 integers,
IMOAnswerBench 6,400 with 58 % integers, the rest drawn from the table of pairs, graded by vote. Responses of
one checkpoint repeat each other: `mix` compares equal pairs once, as grading does; `mix, all different` is a
quarter of it without equal ones. `hard set` is the table's pairs that need a grader, once each, by vote.
Exits 1 below 150 pairs a second on the mix or 20 on the hard set, for two cores' worth of CPU time: wall
clock, printed too, means little on a machine that does other work.
"""

import argparse
import csv
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from evaluation.math.answers import extract_answer, integer_of
from evaluation.math.graders import Ballot, Pair, grade_pair
from evaluation.math.grading_pool import GradingPool

TABLE = Path(__file__).resolve().parents[1] / "tests" / "data" / "grading_pairs.csv"
CORES = 2
MIX_TARGET, HARD_TARGET = 150, 20  # pairs a second
THINKING = "We try small cases, and find the bound with equality. " * 200
BENCHMARKS = {  # samples, share of integer gold answers
    "aime_2025": (480, 1.0),
    "beyond_aime": (400, 1.0),
    "hmmt_nov_2025": (480, 14 / 30),
    "imo_answerbench": (6400, 0.58),
}
Response = tuple[str, str, str]  # benchmark, gold answer, response


def timed_pair(pair: Pair) -> tuple[Ballot, float]:
    """The ballot and the CPU seconds that it took."""
    start = time.process_time()
    ballot = grade_pair(pair)
    return ballot, time.process_time() - start


def hard_pairs() -> list[tuple[str, str]]:
    """Gold answer and prediction of the table's pairs in which one side is no integer."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        rows = [(row["gold"], row["prediction"]) for row in csv.DictReader(file)]
    return [
        row
        for row in rows
        if r"\boxed" not in row[1] and not all(integer_of(part) is not None for part in row)
    ]


def checkpoint(generator: random.Random, different: bool) -> list[Response]:
    """The responses of one checkpoint; `different` takes a quarter, in which no two pairs are equal."""
    hard = [pair for pair in hard_pairs() if integer_of(pair[0]) is None]
    responses = []
    for benchmark, (samples, integers) in BENCHMARKS.items():
        for index in range(samples // 4 if different else samples):
            if index % 100 < 100 * integers:
                gold = str(generator.randrange(1000))
                answer = gold if generator.random() < 0.7 else str(generator.randrange(1000))
            else:
                gold, answer = generator.choice(hard)
                if different:  # spaces that no comparison sees, in an order of their own
                    answer += "".join(rf"\{',;'[index >> bit & 1]}" for bit in range(12))
            responses.append((benchmark, gold, rf"{THINKING}</think> The answer is $\boxed{{{answer}}}$."))
    return responses


def grade(responses: list[Response], pool: GradingPool[Pair, tuple[Ballot, float]]) -> tuple[float, float]:
    """Wall and CPU seconds, of this process and the workers, to grade all responses."""
    start, cpu = time.perf_counter(), time.process_time()
    futures = {}
    for benchmark, gold, response in responses:
        answer = extract_answer(response, "stop").answer
        assert answer is not None
        if integer_of(gold) is not None and integer_of(answer) is not None:
            continue
        pair = Pair(gold, answer, vote=benchmark == "imo_answerbench")
        if pair not in futures:
            futures[pair] = pool.submit(pair)
    workers = sum(future.result()[1] for future in futures.values())
    return time.perf_counter() - start, time.process_time() - cpu + workers


def report(name: str, pairs: int, seconds: tuple[float, float]) -> float:
    """Print one line; the pairs a second of two cores' worth of CPU time."""
    wall, cpu = seconds
    rate = CORES * pairs / cpu
    print(
        f"{name}: {pairs} pairs in {wall:.1f} s of wall time ({pairs / wall:.0f} a second), "
        f"{cpu:.1f} s of CPU time: {1e3 * cpu / pairs:.2f} ms a pair, {rate:.0f} a second on {CORES} cores"
    )
    return rate


def main() -> int:
    parser = argparse.ArgumentParser(description="Speed of grading.")
    parser.add_argument("--workers", type=int, default=CORES)
    options = parser.parse_args()
    generator = random.Random(0)
    runs: dict[str, Callable[[], list[Response]]] = {
        "mix": lambda: checkpoint(generator, different=False),
        "mix, all different": lambda: checkpoint(generator, different=True),
        "hard set": lambda: [("imo_answerbench", g, rf"\boxed{{{a}}}") for g, a in hard_pairs()],
    }
    rates = {}
    for name, make in runs.items():
        responses = make()
        with GradingPool(timed_pair, options.workers) as pool:
            pool.submit(Pair("1/2", "2/4", vote=True)).result()  # the workers are up
            rates[name] = report(name, len(responses), grade(responses, pool))
    return 0 if rates["mix"] >= MIX_TARGET and rates["hard set"] >= HARD_TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
