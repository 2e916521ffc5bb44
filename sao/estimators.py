"""What a row means for rewards, critic and advantages: its settings, to the formulas of the method modules.

Both engines call these functions on a whole batch; `run` is the resolved configuration, `batch` the padded
trajectories.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sao import advantages, metrics
from sao.config import RunConfig
from sao.config_rows import (
    GAE,
    FullSequenceGAE,
    GroupNormalized,
    RunningMean,
    SkipObservationGAE,
    StepLevelGAE,
)
from sao.rewards import overlong_penalty
from sao.trajectory import Batch, Status, Trajectory, place_outcome

Values = tuple[Tensor, Tensor]
"""V before each token, float32 [batch, tokens], and V behind the last action token, float32 [batch]."""
Record = dict[str, Any]
"""Metrics of one step, by the column names of the run log's schema."""


def make_running_mean(run: RunConfig) -> advantages.RunningMean | None:
    """The row's running-mean baseline, empty; None for rows without one."""
    estimator = run.advantage
    if not isinstance(estimator, RunningMean):
        return None
    return advantages.RunningMean(estimator.window, estimator.per_prompt)


def shaped_rewards(run: RunConfig, batch: Batch) -> Tensor:
    """Rewards [batch, tokens], less DAPO's penalty on overlong trajectories where the row asks for it."""
    if not run.sampling.overlong_shaping:
        return batch.rewards
    limits = run.overlong
    penalty = overlong_penalty(
        batch.num_action_tokens, limits.max_action_tokens, limits.buffer_tokens, limits.penalty
    )
    return place_outcome(batch.outcome + penalty, batch.action_mask)


def trained_positions(estimator: GAE, batch: Batch) -> Tensor:
    """Tokens that the value loss covers, bool [batch, tokens]."""
    if isinstance(estimator, FullSequenceGAE):
        return advantages.full_sequence_mask(batch.action_mask)
    if isinstance(estimator, StepLevelGAE) and estimator.step_value == "last":
        return advantages.step_last_tokens(batch.action_mask, batch.step_ids)
    return batch.action_mask


def critic_targets(estimator: GAE, rewards: Tensor, positions: Tensor) -> Tensor:
    """Return from each trained token, [batch, tokens], 0 elsewhere; positions: `trained_positions`."""
    return advantages.returns(rewards, positions, estimator.gamma)


def critic_learning_rate(run: RunConfig, step: int) -> float:
    """Linear warm-up over the critic-only steps (those below 0), then the constant rate of the row.

    In value pretraining, which has no other steps, a linear decay from its own rate.
    """
    assert run.critic is not None
    if run.pretrains_values:
        return run.value_pretraining.learning_rate * -step / run.critic.critic_only_steps
    rate = run.training.learning_rate * run.critic.learning_rate_factor
    if step >= 0:
        return rate
    return rate * (1 + (step + 1) / run.critic.critic_only_steps)


def value_fit(when: str, estimator: GAE, values: Tensor, rewards: Tensor, batch: Batch) -> Record:
    """How well values [batch, tokens] predict the returns of action tokens; `when` is "before" or "after"."""
    mask = batch.action_mask
    action_returns = advantages.returns(rewards, mask, estimator.gamma)
    return {
        f"explained_variance_{when}": metrics.explained_variance(values, action_returns, mask),
        f"advantage_abs_mean_{when}": (action_returns - values)[mask].abs().mean().item(),
    }


def estimate_advantages(
    run: RunConfig,
    trajectories: Sequence[Trajectory],
    batch: Batch,
    rewards: Tensor,
    values: Values | None,
    running_mean: advantages.RunningMean | None,
) -> tuple[Tensor, Record]:
    """Advantages float32 [batch, tokens] by the row's estimator, whitened where the row asks for it.

    Give the whole batch that one policy update trains on. The rewards enter `running_mean`, each after its
    own baseline was read. Also returns the estimator's metrics.
    """
    estimator = run.advantage
    record: Record = {}
    if isinstance(estimator, GroupNormalized):
        unusable = advantages.zero_variance_groups(batch.outcome, batch.group_ids)
        record["zero_variance_groups"] = len(unusable)
        estimates = advantages.group_normalized(rewards.sum(1), batch.group_ids)[:, None]
    elif isinstance(estimator, RunningMean):
        assert running_mean is not None
        estimates = above_running_mean(running_mean, trajectories, rewards.sum(1))[:, None]
    else:
        assert values is not None  # rows with GAE have a critic
        estimates = _generalized(estimator, trajectories, batch, rewards, values, record)
    estimates = estimates * batch.action_mask
    return (advantages.whiten(estimates, batch.action_mask) if estimator.whiten else estimates), record


def _generalized(
    estimator: SkipObservationGAE | FullSequenceGAE | StepLevelGAE,
    trajectories: Sequence[Trajectory],
    batch: Batch,
    rewards: Tensor,
    values: Values,
    record: Record,
) -> Tensor:
    mask, gamma, alpha = batch.action_mask, estimator.gamma, estimator.alpha
    if isinstance(estimator, StepLevelGAE):
        return advantages.step_level_gae(
            values[0], rewards, mask, batch.step_ids, gamma, alpha, estimator.step_value
        )
    lam = advantages.length_adaptive_lambda(batch.num_action_tokens, alpha)
    record["lambda_zero_share"] = (lam == 0).double().mean().item()
    truncated = torch.tensor([t.status == Status.TRUNCATED for t in trajectories], device=mask.device)
    bootstrap = torch.where(truncated, values[1], 0) if estimator.bootstrap_truncated else None
    skips = isinstance(estimator, SkipObservationGAE)
    compute = advantages.skip_observation_gae if skips else advantages.full_sequence_gae
    return compute(values[0], rewards, mask, gamma, lam, bootstrap)


def above_running_mean(
    running_mean: advantages.RunningMean, trajectories: Sequence[Trajectory], rewards: Tensor
) -> Tensor:
    """Reward minus the running mean before it, float32 [batch]; each reward then enters the mean."""
    differences = []
    for trajectory, reward in zip(trajectories, rewards.tolist(), strict=True):
        differences.append(reward - running_mean.baseline(trajectory.prompt_id))
        running_mean.update(trajectory.prompt_id, reward)
    return torch.tensor(differences, device=rewards.device)
