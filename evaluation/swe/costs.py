"""What SWE-Bench will cost to play and grade: at most by the protocol's limits, and as measured. No torch."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any

from evaluation.math.store import read_samples
from evaluation.swe.comparisons import detectable_difference
from evaluation.swe.plan import CONCURRENCY
from evaluation.swe.protocol import BENCHMARKS, MAX_TOKENS, MAX_TURNS, TEST_SECONDS, WALL_SECONDS
from sao.config import Scale
from sao.jobs import evaluation_request

GRADERS = 2  # tasks graded at once in the workflow
IMAGES_GB = 120  # free disk that swebench's documentation asks for; once, for all evaluations
HOUR = 3600
DISCORDANT = (0.10, 0.20)  # shares of tasks that one of two rows alone resolves, for what can be shown


@dataclass(frozen=True)
class Measured:
    """Means of a task over those played so far.

    `turns`: answers; `sampled`: tokens of them; `read`: tokens of all requests, mostly from the prefix cache.
    """

    tasks: int
    turns: float
    sampled: float
    read: float
    seconds: float


@dataclass(frozen=True)
class Left:
    """An evaluation without a seal: `tasks` of `due` are not played yet."""

    name: str
    tasks: int
    due: int


def cost_lines(scale: Scale, seals: Iterable[str]) -> list[str]:
    """The evaluations left of a scale: sizes, hours, GPU-hours and disk; none where all are sealed.

    `seals`: those of all evaluations that the scale asks for. Raises StoreError for damaged samples.
    """
    folders = [Path(seal).parent for seal in seals]
    left = [_left(folder) for folder in folders if not (folder / "seal.json").exists()]
    if not left:
        return []
    gpus = evaluation_request(scale).gpus
    first = left[0]
    lines = [
        f"SWE-Bench left: {len(left)} evaluations of {first.due} tasks, each of at most {MAX_TURNS} turns "
        f"and {MAX_TOKENS:,} tokens: at most {first.due * MAX_TURNS:,} answers of the model and "
        f"{first.due * MAX_TOKENS / 1e6:.1f} million tokens of context an evaluation"
    ]
    lines += [f"  {one.name}: {one.tasks} of {one.due} tasks to play{_limits(one, gpus)}" for one in left]
    lines.append(
        f"  (at most: {WALL_SECONDS // HOUR} hours of a task's wall clock, {CONCURRENCY} at once, and "
        f"{TEST_SECONDS // 60} minutes of its tests, {GRADERS} at once; an engine of {gpus} GPUs serves the "
        "model while it plays; what is tried again comes on top)"
    )
    lines.append(_measured_line(scale, left, measure(folders), gpus))
    shown = [100 * detectable_difference(share, first.due) for share in DISCORDANT]
    lines.append(
        f"  what two rows can show: differences from {shown[0]:.1f} points on, where {DISCORDANT[0]:.0%} of "
        f"the tasks are resolved by one of them alone, and from {shown[1]:.1f}, where {DISCORDANT[1]:.0%} "
        "are (in about 80% of repeats)"
    )
    lines.append(
        f"  disk: {IMAGES_GB} GB for images, which swebench's documentation asks for, once; the agent "
        "server's layers on top of them were not measured"
    )
    return lines


def measure(folders: Iterable[Path]) -> Measured | None:
    """Means over all samples of some evaluations, finished or not; None without any."""
    samples: list[dict[str, Any]] = [sample for folder in folders for sample in read_samples(folder)]
    if not samples:
        return None
    names = ("turns", "action_tokens", "prompt_tokens", "seconds")
    means = (fmean(sample[name] for sample in samples) for name in names)
    return Measured(len(samples), *means)


def longest_hours(tasks: int, seconds: float, at_once: int) -> float:
    """Hours after which `tasks` that take at most `seconds` each are done, `at_once` at a time."""
    return ceil(tasks / at_once) * seconds / HOUR


def _left(folder: Path) -> Left:
    row, seed, step, benchmark = folder.parts[-4:]
    due = BENCHMARKS[benchmark].problems
    return Left(f"{row} {seed} {step}", due - sum(1 for _ in read_samples(folder)), due)


def _limits(left: Left, gpus: int) -> str:
    playing = longest_hours(left.tasks, WALL_SECONDS, CONCURRENCY)
    grading = longest_hours(left.due, TEST_SECONDS, GRADERS)
    return f", at most {playing:,.0f} hours, {gpus * playing:,.0f} GPU-hours; grading at most {grading:,.0f}"


def _measured_line(scale: Scale, left: list[Left], measured: Measured | None, gpus: int) -> str:
    """Hours and GPU-hours that are likely, from the scale's throughput or from what was played here."""
    tasks, job = sum(one.tasks for one in left), scale.job
    if job is not None and job.engine_tokens_per_second and job.tokens_per_trajectory:
        hours = tasks * job.tokens_per_trajectory / job.engine_tokens_per_second / HOUR
        return (
            f"  likely: {hours:,.0f} GPU-hours for all, from job.tokens_per_trajectory and "
            "job.engine_tokens_per_second"
        )
    if measured is None:
        return (
            "  likely: not estimated before a task is played here, or job.tokens_per_trajectory and "
            "job.engine_tokens_per_second are measured"
        )
    hours = tasks * measured.seconds / CONCURRENCY / HOUR
    return (
        f"  likely: {hours:,.1f} hours, {gpus * hours:,.0f} GPU-hours for all, from the {measured.tasks} "
        f"tasks played here: {measured.turns:.1f} turns, {measured.sampled:,.0f} tokens sampled and "
        f"{measured.read:,.0f} read, {measured.seconds / 60:.1f} minutes a task"
    )
