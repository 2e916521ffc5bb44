"""The plan of a scale over OpenRLHF as text: GPUs, nodes, GPU-hours, memory, disk. Imports no torch."""

from collections.abc import Iterable

from sao.cluster_costs import (
    Range,
    disk_of,
    gpu_hours,
    jobs_of,
    minutes_per_update,
    training_hours,
    value_pretraining_hours,
)
from sao.config import RunConfig
from sao.costs import preparation_left
from sao.grid import Grid
from sao.jobs import training_request
from sao.memory import critic_trainer, engine, policy_trainer
from sao.openrlhf.sft_flags import traces_file

UNKNOWN = "not estimated"
SMALL_VOCABULARY = 128  # tasks without text have about a hundred tokens


def vocabulary_size(run: RunConfig) -> int:
    """Tokens of the model's vocabulary, about, where only the task's tokenizer knows."""
    if run.model.vocabulary_size is not None:
        return run.model.vocabulary_size
    return run.task.vocabulary_size if run.task.environment == "python_math" else SMALL_VOCABULARY


def settings_of(grid: Grid, row: str) -> RunConfig:
    """Settings of the row's first run; the grid is one that trains."""
    settings = next(run.settings for run in grid.runs if run.row == row)
    assert settings is not None
    return settings


def plan_lines(grid: Grid) -> list[str]:
    """One line a row, totals, preparation, memory per GPU, disk, refusals."""
    titles = ("runs left", "finished", "begun", "nodes", "GPUs", "jobs each", "hours each", "GPU-hours each")
    widths = (10, 10, 7, 7, 6, 11, 14, 20)
    lines = [
        f"{'row':22}" + "".join(f"{title:>{width}}" for title, width in zip(titles, widths, strict=True))
    ]
    for row in grid.rows:
        cells = _row_cells(grid, row)
        note = "  refused" if row in grid.refused else "  beyond the paper" if row in grid.beyond else ""
        line = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        lines.append(f"{row:22}{line}{note}")
    for title, rows in (
        ("the paper's rows (snakemake)", grid.paper_rows()),
        ("beyond (snakemake beyond)", grid.beyond_rows()),
    ):
        lines += [_total(grid, title, rows)] if rows else []
    lines += _preparation_lines(grid)
    lines += [_source(settings_of(grid, grid.rows[0])), *memory_lines(_largest(grid))]
    return lines + list(grid.refused.values())


def _largest(grid: Grid) -> RunConfig:
    """The run that takes the most nodes; of those the one that trains the most parameters of a critic."""
    runs = [settings_of(grid, row) for row in grid.rows]
    return max(
        runs, key=lambda run: (training_request(run).nodes, bool(run.critic and run.critic.frozen == "none"))
    )


def _left(grid: Grid, row: str) -> int:
    if row in grid.refused:
        return 0
    return sum(not run.finished for run in grid.runs if run.row == row)


def _row_cells(grid: Grid, row: str) -> list[str]:
    runs = [run for run in grid.runs if run.row == row]
    settings = settings_of(grid, row)
    request, hours = training_request(settings), training_hours(settings)
    return [
        str(_left(grid, row)),
        str(sum(run.finished for run in runs)),
        str(sum(run.begun for run in runs)),
        str(request.nodes),
        str(request.all_gpus),
        str(jobs_of(settings) or "-"),
        str(hours or "-"),
        str(gpu_hours(settings, hours) if hours else "-"),
    ]


def disk_left(grid: Grid) -> float:
    """Bytes that the runs left take on disk, of all rows that the paper has."""
    rows = [row for row in grid.paper_rows() if settings_of(grid, row).backend == "openrlhf"]
    sizes = {row: disk_of(settings_of(grid, row), _vocabulary(grid, row)).total for row in rows}
    return sum(_left(grid, row) * size_of_run for row, size_of_run in sizes.items())


def _total(grid: Grid, title: str, rows: Iterable[str]) -> str:
    left = {row: _left(grid, row) for row in rows}
    disk = sum(
        count * disk_of(settings_of(grid, row), _vocabulary(grid, row)).total for row, count in left.items()
    )
    hours = {row: training_hours(settings_of(grid, row)) for row in left}
    text = f"{title}: {sum(left.values())} runs left, "
    if any(value is None for value in hours.values()):
        text += f"GPU-hours {UNKNOWN} (state job.minutes_per_update once it is measured)"
    else:
        each = [gpu_hours(settings_of(grid, row), hours[row] or Range(0, 0)).times(left[row]) for row in left]
        text += (
            f"{Range(sum((one.low for one in each), 0.0), sum((one.high for one in each), 0.0))} GPU-hours"
        )
    return f"{text}, {size(disk)} of disk"


def _vocabulary(grid: Grid, row: str) -> int:
    return vocabulary_size(settings_of(grid, row))


def _preparation_lines(grid: Grid) -> list[str]:
    lines = []
    for step in preparation_left(grid):
        name = step.split("/")[1]
        if name == "warm_start":
            lines += _traces_line(grid)
            what = "fine-tuning; its cost depends on the traces, and is not estimated"
            if settings_of(grid, grid.rows[0]).sft is None:
                what = "supervised warm start by the local engine"
            lines.append(f"preparation left: {step}: {what}")
            continue
        run = next(
            run.settings
            for run in grid.runs
            if run.settings and any(step in preparation for preparation in run.preparation)
        )
        hours = value_pretraining_hours(run)
        cost = f"{hours} hours, {gpu_hours(run, hours)} GPU-hours" if hours else UNKNOWN
        lines.append(f"preparation left: {step}: {cost}")
    return lines


def _traces_line(grid: Grid) -> list[str]:
    sft = settings_of(grid, grid.rows[0]).sft
    if sft is None or traces_file(sft, grid.results).exists():
        return []
    attempts = f"{sft.samples_per_problem} attempts of {sft.teacher} at every problem of {sft.data}"
    return [f"preparation left: traces: {attempts}; their cost depends on their length, and is not estimated"]


def _source(run: RunConfig) -> str:
    minutes = minutes_per_update(run)
    if minutes is None:
        return f"minutes per update: {UNKNOWN} for this size; state job.minutes_per_update once measured"
    if run.job and run.job.minutes_per_update:
        return f"minutes per update: {minutes}, as job.minutes_per_update says"
    return (
        f"minutes per update: {minutes}, scaled from an independent run of this model: about 10 minutes on "
        "32 training GPUs with at most 32,768 tokens (docs/planning.md)"
    )


def memory_lines(run: RunConfig) -> list[str]:
    """Memory per GPU of each kind of process, by part, and what the scale's GPUs have."""
    if run.job is None or run.cluster is None or run.device is None:
        return ["memory per GPU: this scale uses none"]
    vocabulary = vocabulary_size(run)
    trainers = {"policy": policy_trainer(run, vocabulary)}
    if run.critic is not None:
        trainers["critic"] = critic_trainer(run, vocabulary)
    totals: dict[str, float] = {}
    lines = [
        f"memory per GPU (GB of {run.job.gpu_memory_gb:g}), trajectories of {run.sampler.max_tokens:,} "
        f"tokens, row {run.row}:"
    ]
    for name, part in trainers.items():
        totals[name] = part.total
        avoided = part.logits_avoided + part.router_loss_avoided
        lines.append(
            f"  {name}: weights {_gb(part.weights)}, gradients {_gb(part.gradients)}, optimizer "
            f"{_gb(part.optimizer)}, gathered layers {_gb(part.gathered)}, activations "
            f"{_gb(part.activations)}, logits {_gb(part.logits_chunk)}: {_gb(part.total)} "
            f"(not held: full logits and router loss, {_gb(avoided)})"
        )
    served = engine(run, vocabulary)
    totals["engine"] = served.total
    lines.append(
        f"  engine: weights {_gb(served.weights)}, KV cache and working memory {_gb(served.cache)}: "
        f"{_gb(served.total)} (all engines hold {served.full_trajectories:,.0f} trajectories of full length, "
        f"sampler.slots is {run.sampler.slots})"
    )
    if run.cluster.one_node:
        totals = {"all processes on one GPU": sum(totals.values())}
    for name, total in totals.items():
        if total > run.job.gpu_memory_gb * 1e9:
            lines.append(
                f"  {name}: {_gb(total)} GB are more than a GPU has; raise the processes, or "
                "openrlhf.ring_attention"
            )
    if served.cache <= 0:
        lines.append(
            "  engine: no room for a KV cache; raise cluster.engines.tensor_parallel or memory_share"
        )
    return lines


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.1f}"


def size(size_bytes: float) -> str:
    """A size on disk in GB, or TB from 1,000 GB on."""
    return f"{size_bytes / 1e12:.1f} TB" if size_bytes >= 1e12 else f"{size_bytes / 1e9:.1f} GB"
