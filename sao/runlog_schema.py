"""Columns of the run directory's tables: one schema for the writer, the reader and docs/run_directory.md."""

import math
from dataclasses import dataclass
from typing import Any, Literal

# Log-ratio bins of width 0.1 from -3 to 3, with one open bin on either side: 62 counts.
LOG_RATIO_EDGES = tuple(round(-3 + 0.1 * i, 1) for i in range(61))

ColumnType = Literal["int", "float", "str", "bool", "list"]

_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
    "list": (list, tuple),
}


@dataclass(frozen=True)
class Column:
    """Type, unit and meaning of one column; `nullable` where it does not apply to every line."""

    type: ColumnType
    unit: str
    meaning: str
    nullable: bool = True

    @property
    def value_types(self) -> set[Any]:
        """Types of the column's values: exactly these, so no bool for a number; null where it may be."""
        return {*_PYTHON_TYPES[self.type], *((type(None),) if self.nullable else ())}


def _required(type: ColumnType, unit: str, meaning: str) -> Column:
    return Column(type, unit, meaning, nullable=False)


METRIC_COLUMNS: dict[str, Column] = {
    "step": _required(
        "int", "updates", "number of the policy update, from 0; critic-only steps are negative"
    ),
    "version": _required("int", "updates", "policy updates done before this one"),
    "wall_seconds": Column("float", "s", "wall time of this run so far, all attempts"),
    "virtual_ticks": Column("int", "ticks", "virtual clock at the end of the step"),
    "reward_mean": Column("float", "reward", "mean reward of the batch's trajectories"),
    "policy_loss": Column("float", "", "policy loss of the batch"),
    "masked_low": Column("float", "share of action tokens", "tokens whose ratio lies at or below the band"),
    "masked_high": Column("float", "share of action tokens", "tokens whose ratio lies at or above the band"),
    "clipped": Column("float", "share of action tokens", "tokens where PPO's clip fired; null for DIS"),
    "ratio_q01": Column("float", "", "1% quantile of the trainer-to-rollout ratio over action tokens"),
    "ratio_q05": Column("float", "", "5% quantile of the ratio"),
    "ratio_q50": Column("float", "", "median of the ratio"),
    "ratio_q95": Column("float", "", "95% quantile of the ratio"),
    "ratio_q99": Column("float", "", "99% quantile of the ratio"),
    "ratio_histogram": Column(
        "list",
        "action tokens",
        "counts of the ratio's logarithm: 60 bins from -3 to 3, an open one on either side",
    ),
    "effective_sample_size": Column(
        "float", "share of action tokens", "(sum r)^2 / (n sum r^2) of the ratios"
    ),
    "mean_abs_log_ratio": Column("float", "nats", "mean size of the ratio's logarithm"),
    "zero_logprob_share": Column(
        "float",
        "share of action tokens",
        "rollout log-probs of exactly 0, which missing ones often are",
    ),
    "entropy": Column("float", "nats", "mean entropy of the policy at action tokens"),
    "policy_grad_norm": Column("float", "", "gradient norm of the policy before clipping"),
    "value_loss": Column(
        "float", "reward^2", "mean squared error before the critic's first update on the batch"
    ),
    "critic_grad_norm": Column(
        "float", "", "gradient norm of the critic's first update on the batch, before clipping"
    ),
    "critic_grad_norm_attention": Column(
        "float", "", "the attention parameters' share of it; 0 where frozen"
    ),
    "critic_grad_norm_rest": Column("float", "", "the other parameters' share of it"),
    "explained_variance_before": Column(
        "float", "", "1 - Var(R - V)/Var(R) before the critic's updates; null if Var(R) = 0"
    ),
    "explained_variance_after": Column("float", "", "the same after the critic's updates"),
    "advantage_abs_mean_before": Column(
        "float", "reward", "mean |return - value| at action tokens before the critic's updates"
    ),
    "advantage_abs_mean_after": Column("float", "reward", "the same after the critic's updates"),
    "value_mean": Column("float", "reward", "mean value at action tokens"),
    "lambda_zero_share": Column(
        "float", "share of trajectories", "trajectories whose lambda was clamped to 0"
    ),
    "positive_share": Column("float", "share of trajectories", "trajectories with a positive reward"),
    "staleness_mean": Column("float", "updates", "mean age of the weights that sampled an action token"),
    "staleness_p95": Column("float", "updates", "95% quantile of that age"),
    "staleness_max": Column("float", "updates", "largest such age"),
    "staleness_histogram": Column(
        "list", "action tokens", "counts of that age: 64 bins of one update, the last one open"
    ),
    "dropped_stale": Column("int", "trajectories", "dropped since the last step for their age"),
    "dropped_with_group": Column(
        "int", "trajectories", "dropped since the last step because their group was given up"
    ),
    "invalid": Column("int", "trajectories", "dropped since the last step for an environment error"),
    "filtered_groups": Column("int", "groups", "replaced by dynamic sampling since the last step"),
    "zero_variance_groups": Column("int", "groups", "groups of the batch whose rewards agree"),
    "truncated": Column("int", "trajectories", "cut by the token or turn limit"),
    "trajectories": Column("int", "trajectories", "size of the batch"),
    "action_tokens": Column("int", "tokens", "sampled by the policy, in the batch"),
    "total_tokens": Column("int", "tokens", "prompts, actions and observations of the batch"),
    "mean_action_tokens": Column("float", "tokens", "action tokens per trajectory"),
    "mean_turns": Column("float", "turns", "actions per trajectory"),
    "prompts_seen": Column("int", "prompts", "prompts trained on so far, repeats included"),
    "queue_wait_mean_ticks": Column("float", "ticks", "mean wait from graded to taken by the trainer"),
    "sampler_idle_share": Column("float", "share of ticks", "slot ticks without a token since the last step"),
    "trainer_idle_share": Column("float", "share of ticks", "ticks since the last step without an update"),
    "tokens_per_second": Column(
        "float", "tokens/s", "tokens sampled since the last step per second of wall time"
    ),
    "cpu_seconds": Column("float", "s", "processor time of this run so far, all attempts"),
    "sampler_tokens": Column("int", "tokens", "decoded by the sampler so far"),
    "learning_rate": Column("float", "", "of the policy; 0 in critic-only steps"),
    "critic_learning_rate": Column("float", "", "of the critic"),
}

WALL_CLOCK_COLUMNS = frozenset({"wall_seconds", "tokens_per_second", "cpu_seconds"})
"""Metrics that differ between two runs of one configuration and seed; all others are identical."""

EVALUATION_COLUMNS: dict[str, Column] = {
    "step": _required("int", "updates", "policy updates done before the evaluation"),
    "benchmark": _required("str", "", "name of the task"),
    "problem_id": _required("str", "", "the held-out instance: a hash of its content"),
    "run_index": _required("int", "", "which of the instance's samples, from 0"),
    "correct": _required("bool", "", "whether the reward is 1"),
    "status": _required("str", "", "completed, truncated or environment_error"),
    "turns": _required("int", "turns", "actions of the trajectory"),
    "action_tokens": _required("int", "tokens", "sampled by the policy"),
    "label": Column("str", "", "difficulty band (locks) or topic (style)"),
    "style": Column("str", "", "style that the policy named; null for locks"),
    "reward": _required("float", "reward", "outcome as the environment scores it"),
}

SCHEDULE_COLUMNS: dict[str, Column] = {
    "kind": _required("str", "", "trajectory, update or load (of new weights by the sampler)"),
    "step": _required("int", "updates", "step that took the trajectory, was computed, or preceded the load"),
    "index": Column("int", "", "order in which the trajectory was started"),
    "slot": Column("int", "", "slot that decoded it"),
    "start_tick": Column("int", "ticks", "first token decoded, or the update began"),
    "end_tick": Column("int", "ticks", "last token decoded, the update ended, or the weights were loaded"),
    "graded_tick": Column("int", "ticks", "reward known, latency included"),
    "taken_tick": Column("int", "ticks", "taken by the trainer"),
    "first_version": Column("int", "updates", "weight version of the first action token"),
    "last_version": Column(
        "int", "updates", "weight version of the last action token, or of the weights loaded"
    ),
    "action_tokens": Column("int", "tokens", "sampled by the policy"),
    "total_tokens": Column("int", "tokens", "prompt, actions and observations"),
    "group_id": Column("int", "", "group the trajectory belongs to"),
}

TRAJECTORY_COLUMNS: dict[str, Column] = {
    "step": _required("int", "updates", "policy updates done before the evaluation"),
    "problem_id": _required("str", "", "the held-out instance"),
    "label": Column("str", "", "difficulty band (locks) or topic (style)"),
    "status": _required("str", "", "completed, truncated or environment_error"),
    "reward": _required("float", "reward", "outcome as the environment scores it"),
    "token_ids": _required("list", "", "prompt, actions and observations in order"),
    "token_texts": _required("list", "", "text of each token"),
    "action_mask": _required("list", "", "1 for tokens sampled by the policy, else 0"),
    "rollout_logprobs": _required(
        "list", "nats", "log-prob when the sampler drew the token; null off actions"
    ),
    "trainer_logprobs": _required("list", "nats", "log-prob under the trainer's weights; null off actions"),
    "values": Column(
        "list", "reward", "the critic's value; null off actions, null as a whole without a critic"
    ),
    "advantages": Column("list", "reward", "advantage; null off actions, null as a whole where undefined"),
    "policy_versions": _required("list", "updates", "weight version that sampled the token; -1 off actions"),
}

TRAINING_TRAJECTORY_COLUMNS: dict[str, Column] = TRAJECTORY_COLUMNS | {
    "step": _required("int", "updates", "number of the policy update that trained on it"),
    "problem_id": _required("str", "", "the training instance"),
    "trainer_logprobs": _required(
        "list", "nats", "log-prob under the trainer's weights just before the update; null off actions"
    ),
    "values": Column(
        "list",
        "reward",
        "the critic's value before its updates on the batch; null off actions, as a whole without a critic",
    ),
    "advantages": Column(
        "list", "reward", "advantage from these values; null off actions, null as a whole where undefined"
    ),
}

DROPPED_COLUMNS: dict[str, Column] = {
    "step": _required("int", "updates", "step before whose batch it was dropped"),
    "reason": _required(
        "str", "", "too_old, or group_given_up: too many of its group ended in an environment error"
    ),
    "action_tokens": _required("int", "tokens", "tokens that the policy sampled in it"),
    "reward": _required("float", "reward", "outcome as the environment scores it"),
}

ACCURACY_COLUMNS: dict[str, Column] = {
    "step": _required("int", "updates", "policy updates done before the evaluation"),
    "benchmark": _required("str", "", "name of the benchmark where the run was trained"),
    "accuracy": _required("float", "share of samples", "mean accuracy; outcomes by problem are not known"),
}

TABLES: dict[str, dict[str, Column]] = {
    "metrics.jsonl": METRIC_COLUMNS,
    "evaluations.jsonl": EVALUATION_COLUMNS,
    "schedule.jsonl.gz": SCHEDULE_COLUMNS,
    "trajectories.jsonl.gz": TRAJECTORY_COLUMNS,
    "training_trajectories.jsonl.gz": TRAINING_TRAJECTORY_COLUMNS,
    "dropped.jsonl.gz": DROPPED_COLUMNS,
}


def checked_record(columns: dict[str, Column], record: dict[str, Any]) -> dict[str, Any]:
    """The record in the schema's order, ready for JSON: array scalars as numbers, NaN and infinity as None.

    Numbers keep seven significant digits, about as many as float32 holds.  Raises ValueError for unknown or
    missing columns, a null where none may be, and values of another type.
    """
    if unknown := sorted(record.keys() - columns.keys()):
        raise ValueError(f"no such column: {', '.join(unknown)}")
    if missing := sorted(columns.keys() - record.keys()):
        raise ValueError(f"the record lacks {', '.join(missing)}; state null where a column does not apply")
    return {name: _checked(name, column, record[name]) for name, column in columns.items()}


def _checked(name: str, column: Column, value: Any) -> Any:
    value = _plain(value)
    if value is None:
        if not column.nullable:
            raise ValueError(f"column {name} is null or not finite, and may not be")
        return None
    if type(value) not in column.value_types:
        raise ValueError(f"column {name} holds {value!r}, and must be {column.type}")
    return float(value) if isinstance(value, int) and column.type == "float" else value


def _plain(value: Any) -> Any:
    if isinstance(value, str | bool | int | None):
        return value
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
