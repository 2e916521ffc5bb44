"""What the runs left will cost: CPU time, memory and disk, estimated from logged runs. Imports no torch."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from sao.config import RunConfig
from sao.grid import Grid, Run

# Measured on one core at scale cpu; used where no run of the scale is logged.
SECONDS_PER_TRAJECTORY = 0.0037
SECONDS_PER_CRITIC_PASS = 0.001  # per trajectory: the updates, and one forward for the advantages
PREPARATION_SECONDS = {"warm": 120.0, "values": 20.0}  # by the first word of the step
MEMORY_GB = 0.7  # of one run
FINISHED_MB = 4.0  # of one run on disk
UNDER_WAY_MB = 75.0  # with its two checkpoints


@dataclass(frozen=True)
class Cost:
    """Runs of one row that are left, and the CPU-seconds of one of them; None where nothing tells."""

    row: str
    finished: int
    begun: int
    left: int
    seconds: float | None
    refused: bool


def logged_seconds(folders: Iterable[Path]) -> dict[str, float]:
    """Mean CPU-seconds by row of the finished runs below some folders of one scale."""
    seconds: dict[str, list[float]] = {}
    for folder in folders:
        for seal in folder.glob("runs/*/seed*/seal.json"):
            try:
                hours = json.loads(seal.with_name("provenance.json").read_text(encoding="utf-8"))["cpu_hours"]
            except (OSError, ValueError, KeyError):
                continue
            seconds.setdefault(seal.parents[1].name, []).append(3600 * hours)
    return {row: fmean(values) for row, values in seconds.items()}


def guessed_seconds(settings: RunConfig) -> float | None:
    """CPU-seconds of a run of which nothing is logged, from its trajectories and critic updates.

    None on a GPU, where nothing was measured.
    """
    if settings.device is not None:
        return None
    batches = settings.training.updates + settings.critic_only_steps
    passes = settings.critic.updates_per_batch + 1 if settings.critic else 0
    per_trajectory = SECONDS_PER_TRAJECTORY + passes * SECONDS_PER_CRITIC_PASS
    return batches * settings.training.batch_trajectories * per_trajectory


def costs(grid: Grid) -> list[Cost]:
    """Cost of each row of the grid; runs under way count as a whole."""
    known = logged_seconds([Path(grid.results, "logged", grid.scale), Path(grid.root)])
    found = []
    for row in grid.rows:
        runs = [run for run in grid.runs if run.row == row]
        refused = row in grid.refused
        finished = sum(run.finished for run in runs)
        begun = sum(run.begun for run in runs)
        left = 0 if refused else len(runs) - finished
        found.append(Cost(row, finished, begun, left, known.get(row, _guess(runs[0])), refused))
    return found


def plan_table(grid: Grid) -> str:
    """The plan as text: one line a row, then totals for the paper's rows and for those beyond."""
    if any(run.settings and run.settings.backend == "openrlhf" for run in grid.runs):
        from sao.cluster_plan import plan_lines

        return "\n".join(plan_lines(grid))
    return "\n".join(_local_lines(grid))


def _local_lines(grid: Grid) -> list[str]:
    entries = costs(grid)
    lines = [f"{'row':22}{'runs left':>10}{'finished':>10}{'begun':>7}{'CPU-minutes each':>18}"]
    for entry in entries:
        note = "  refused" if entry.refused else "  beyond the paper" if entry.row in grid.beyond else ""
        minutes = "unknown" if entry.seconds is None else f"{entry.seconds / 60:.1f}"
        counts = f"{entry.left:>10}{entry.finished:>10}{entry.begun:>7}{minutes:>18}"
        lines.append(f"{entry.row:22}{counts}{note}")
    for title, beyond in (("the paper's rows (snakemake)", False), ("beyond (snakemake beyond)", True)):
        chosen = [entry for entry in entries if (entry.row in grid.beyond) == beyond]
        left = sum(entry.left for entry in chosen)
        if any(entry.seconds is None for entry in chosen):
            lines.append(f"{title}: {left} runs left; nothing of this scale is logged to estimate them from")
            continue
        total = sum(entry.left * (entry.seconds or 0.0) for entry in chosen) / 60
        disk = left * FINISHED_MB
        lines.append(f"{title}: {left} runs left, {total:.0f} CPU-minutes, {disk:.0f} MB of disk")
    measured = not any(entry.seconds is None for entry in entries)
    if steps := preparation_left(grid):
        total = sum(PREPARATION_SECONDS[step.split("/")[1].split("_")[0]] for step in steps) / 60
        cost = f": {total:.0f} CPU-minutes" if measured else ""
        lines.append(f"preparation left: {', '.join(steps)}{cost}")
    if measured:
        lines.append(
            f"each run under way (as many as --cores): {MEMORY_GB} GB of memory, "
            f"{UNDER_WAY_MB:.0f} MB of disk"
        )
    return lines + list(grid.refused.values())


def _guess(run: Run) -> float | None:
    return guessed_seconds(run.settings) if run.settings else 0.0


def local_disk_left(grid: Grid) -> float:
    """Bytes that the paper's runs left take on disk with the local engine."""
    return 1e6 * FINISHED_MB * sum(not run.finished for run in grid.runs if run.row not in grid.beyond)


def preparation_left(grid: Grid) -> list[str]:
    """Preparation steps that unfinished runs still need, as <task>/<step>."""
    needed = (step for run in grid.runs if not run.finished for step in run.preparation)
    missing = [Path(step).parent for step in dict.fromkeys(needed) if not Path(step).exists()]
    return [f"{folder.parent.name}/{folder.name}" for folder in missing]
