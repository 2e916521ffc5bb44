"""GPU-hours and disk of runs over OpenRLHF, estimated: see docs/planning.md. Imports no torch."""

from dataclasses import dataclass

from sao.config import RunConfig
from sao.jobs import Request, training_request
from sao.memory import OPTIMIZER_BYTES, count_parameters

# An independent run of Qwen3-30B-A3B took about 10 minutes an update on 32 training GPUs, with trajectories
# of at most 32,768 tokens (results/published/independent_runs.csv, source `reef`).
REFERENCE_MINUTES = 10.0
REFERENCE_GPUS = 32
REFERENCE_TOKENS = 32_768
REFERENCE_ACTIVE = 3_353_032_704  # parameters that one token passes through
COMPARABLE = (0.5, 2.0)  # active parameters over the reference's between which the time is scaled at all
CHECKPOINTS_KEPT = 2


@dataclass(frozen=True)
class Range:
    """An estimate between two bounds, or one measured number as both."""

    low: float
    high: float

    def times(self, factor: float) -> "Range":
        return Range(self.low * factor, self.high * factor)

    def __str__(self) -> str:
        low, high = (_number(value) for value in (self.low, self.high))
        return low if low == high else f"{low} to {high}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value.is_integer() else f"{value:.1f}"


def minutes_per_update(run: RunConfig) -> Range | None:
    """Minutes of one update: measured where the scale says so, else scaled from the reference run.

    The lower and upper bound are trajectories as long as the reference's, and longer in the proportion of
    the greatest lengths. None for models of another size than the reference's.
    """
    if run.job is None or run.cluster is None:
        return None
    if run.job.minutes_per_update is not None:
        return Range(run.job.minutes_per_update, run.job.minutes_per_update)
    size = count_parameters(run.model, run.model.vocabulary_size or 0).active / REFERENCE_ACTIVE
    if not COMPARABLE[0] <= size <= COMPARABLE[1]:
        return None
    minutes = REFERENCE_MINUTES * size * REFERENCE_GPUS / run.cluster.actor.processes
    length = run.sampler.max_tokens / REFERENCE_TOKENS
    return Range(minutes * min(length, 1.0), minutes * max(length, 1.0))


def training_hours(run: RunConfig) -> Range | None:
    """Hours of a whole run, critic-only batches included."""
    minutes = minutes_per_update(run)
    return minutes.times(run.metrics_lines / 60) if minutes else None


def value_pretraining_hours(run: RunConfig) -> Range | None:
    """Hours of pretraining the run's value model, which all rows that freeze the same parameters share."""
    minutes, settings = minutes_per_update(run), run.value_pretraining
    updates = settings.epochs * settings.rollouts / settings.batch_trajectories
    return minutes.times(updates / 60) if minutes else None


def jobs_of(run: RunConfig) -> Range | None:
    """Jobs that a run takes one after the other, where one may last job.hours."""
    hours = training_hours(run)
    if hours is None or run.job is None:
        return None
    return Range(*(float(-(-bound // run.job.hours)) for bound in (hours.low, hours.high)))


@dataclass(frozen=True)
class Disk:
    """Bytes on disk of one run: its checkpoints (one more while it is written) and the exported weights."""

    checkpoint: float
    weights: float
    exports: int

    @property
    def total(self) -> float:
        return (CHECKPOINTS_KEPT + 1) * self.checkpoint + self.exports * self.weights


def disk_of(run: RunConfig, vocabulary_size: int) -> Disk:
    """A checkpoint holds weights in bf16 and the optimizer's float32 state, of policy and critic."""
    parameters = count_parameters(run.model, vocabulary_size)
    checkpoint = (2 + OPTIMIZER_BYTES) * parameters.total
    if run.critic is not None:
        frozen = parameters.attention if run.critic.frozen == "attention" else 0
        checkpoint += 2 * (parameters.total - parameters.head)
        checkpoint += OPTIMIZER_BYTES * (parameters.total - parameters.head - frozen)
    return Disk(float(checkpoint), 2.0 * parameters.total, len(run.evaluation.steps))


def attempts_needed(run: RunConfig) -> int:
    """Attempts that Snakemake allows a run beyond its first: one for a failure, more for short jobs."""
    jobs = jobs_of(run)
    return 1 if jobs is None else int(jobs.high)


def gpu_hours(run: RunConfig, hours: Range) -> Range:
    """GPU-hours of that many hours on the run's nodes."""
    request: Request = training_request(run)
    return hours.times(request.all_gpus)
