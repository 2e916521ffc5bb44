"""The paper's evaluation protocol: benchmarks, their number of problems, runs of each, sampling, limits."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Benchmark:
    """`problems` sampled `runs` times each; a score over any other number of samples is no score.

    `published` is None for a benchmark that the paper has no value for.
    """

    name: str
    title: str
    published: str | None  # its name in results/published
    problems: int
    runs: int

    @property
    def samples(self) -> int:
        return self.problems * self.runs


BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("aime_2025", "AIME 2025", "AIME2025", 30, 16),
        Benchmark("beyond_aime", "BeyondAIME", "BeyondAIME", 100, 4),
        Benchmark("hmmt_nov_2025", "HMMT Nov. 2025", "HMMT_Nov_2025", 30, 16),
        Benchmark("imo_answerbench", "IMOAnswerBench", "IMOAnswerBench", 400, 16),
        Benchmark("imo_answerbench_v1", "IMOAnswerBench, first version", None, 400, 16),
    )
}
"""By name."""

TEMPERATURE = 1.0
TOP_P = 1.0
MAX_TOKENS = 131_072
MAX_TURNS = 50
