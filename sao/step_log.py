"""What both engines log of a step and of evaluated trajectories: lines of the run directory's tables."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from sao import metrics
from sao.config import RunConfig
from sao.environments.base import Instance
from sao.runlog import METRIC_COLUMNS
from sao.streaming import Taken
from sao.trajectory import Batch, Trajectory


@dataclass(frozen=True)
class Sample:
    """How one attempt at a held-out problem ended; `style` is the one that the environment saw in it."""

    instance: Instance
    status: str
    reward: float
    turns: int
    action_tokens: int
    style: str | int | None = None


@dataclass(frozen=True)
class HeldOut:
    """One attempt at a held-out problem; `trajectory` is None where its environment broke each time."""

    instance: Instance
    trajectory: Trajectory | None
    details: dict[str, str | int] = field(default_factory=dict)

    @property
    def sample(self) -> Sample:
        """How it ended."""
        made = self.trajectory
        if made is None:
            return Sample(self.instance, "environment_error", 0.0, 0, 0)
        style = self.details.get("style")
        return Sample(self.instance, str(made.status), made.reward, made.turns, made.num_action_tokens, style)


def evaluation_lines(samples: Iterable[Sample], benchmark: str, step: int) -> list[dict[str, Any]]:
    """One line of evaluations.jsonl per sample; repetitions of a problem are numbered in the order given."""
    seen: Counter[str] = Counter()
    lines = []
    for sample in samples:
        problem = sample.instance.prompt_id
        lines.append(
            {
                "step": step,
                "benchmark": benchmark,
                "problem_id": problem,
                "run_index": seen[problem],
                "correct": sample.reward > 0,
                "status": sample.status,
                "turns": sample.turns,
                "action_tokens": sample.action_tokens,
                "label": sample.instance.label,
                "style": sample.style,
                "reward": sample.reward,
            }
        )
        seen[problem] += 1
    return lines


def metrics_line(
    run: RunConfig,
    record: dict[str, Any],
    taken: Taken,
    step: int,
    version: int,
    seconds: float,
    totals: dict[str, Any],
) -> dict[str, Any]:
    """The step's line of metrics.jsonl: the trainer's `record`, and what the batch and its schedule tell.

    `version` is that of the weights the step began with, `seconds` the step's wall time, and `totals` holds
    wall_seconds, cpu_seconds and sampler_tokens of the run so far.
    """
    batch = Batch.from_trajectories(taken.trajectories)
    counters = taken.counters
    ticks = max(counters.ticks, 1)
    actions = int(batch.action_mask.sum())
    waits = [taken.tick - rollout.graded_tick for rollout in taken.rollouts]
    record = record | metrics.staleness_statistics(batch.policy_versions, batch.action_mask, version)
    record |= {
        "step": step,
        "version": version,
        "wall_seconds": totals["wall_seconds"],
        "cpu_seconds": totals["cpu_seconds"],
        "tokens_per_second": counters.sampled_tokens / seconds,
        "virtual_ticks": taken.tick,
        "reward_mean": batch.outcome.mean().item(),
        "positive_share": (batch.outcome > 0).double().mean().item(),
        "dropped_stale": counters.dropped_stale,
        "dropped_with_group": counters.dropped_with_group,
        "invalid": counters.invalid,
        "filtered_groups": counters.filtered_groups,
        "truncated": sum(trajectory.status == "truncated" for trajectory in taken.trajectories),
        "trajectories": len(batch),
        "action_tokens": actions,
        "total_tokens": int(batch.lengths.sum()),
        "mean_action_tokens": actions / len(batch),
        "mean_turns": sum(trajectory.turns for trajectory in taken.trajectories) / len(batch),
        "prompts_seen": (step + run.critic_only_steps + 1) * run.prompts_per_batch,
        "queue_wait_mean_ticks": sum(waits) / len(waits),
        "sampler_idle_share": 1 - counters.busy_slot_ticks / (ticks * run.sampler.slots),
        "trainer_idle_share": 1 - counters.trainer_ticks / ticks,
        "sampler_tokens": totals["sampler_tokens"],
    }
    return {name: record.get(name) for name in METRIC_COLUMNS}


def trajectory_lines(
    trajectories: Sequence[Trajectory],
    per_token: dict[str, Tensor | None],
    vocabulary: Sequence[str],
    step: int,
) -> list[dict[str, Any]]:
    """Lines of trajectories.jsonl.gz; `per_token` holds trainer_logprobs, values and advantages.

    These are float [trajectories, tokens], or None where the row has none. `vocabulary` has each id's text.
    """
    lines = []
    for row, trajectory in enumerate(trajectories):
        line = {
            "step": step,
            "problem_id": trajectory.prompt_id,
            "label": trajectory.label,
            "status": str(trajectory.status),
            "reward": trajectory.reward,
            "token_ids": trajectory.token_ids,
            "token_texts": [vocabulary[token] for token in trajectory.token_ids],
            "action_mask": trajectory.action_mask.astype(int),
            "rollout_logprobs": trajectory.rollout_logprobs,
            "policy_versions": trajectory.policy_versions,
        }
        for name, values in per_token.items():
            line[name] = None if values is None else on_actions(values[row], trajectory)
        lines.append(line)
    return lines


def on_actions(values: Tensor, trajectory: Trajectory) -> list[float | None]:
    """The values at the trajectory's action tokens, None elsewhere; `values` float [tokens or more]."""
    actions = trajectory.action_mask.tolist()
    return [
        value if action else None
        for value, action in zip(values[: len(actions)].tolist(), actions, strict=True)
    ]


def progress_line(run: RunConfig, step: int, first_step: int, seconds: float, reward: float) -> str:
    """One line for people: step, reward, speed of this attempt since `first_step`, and the time left."""
    rate = (step - first_step) / seconds
    updates = run.training.updates
    minutes, rest = divmod(round((updates - step) / rate), 60)
    return (
        f"{run.row} seed {run.seed}  step {step}/{updates}  reward {reward:.3f}  "
        f"{rate:.2f} updates/s  {minutes}:{rest:02} left"
    )
