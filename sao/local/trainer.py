"""One step on a batch: critic updates, advantages and the policy update.

Every formula comes from the method modules; here stands only their order, which is method.md's: the critic
first, then the advantages from its re-forwarded values, then one policy update.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3MoeForCausalLM

from sao import advantages, metrics, objectives
from sao.config import RunConfig
from sao.config_rows import (
    DIS,
    GAE,
    GSPO,
    TIS,
    FullSequenceGAE,
    GroupNormalized,
    IcePop,
    PPOClip,
    RunningMean,
    SkipObservationGAE,
    StepLevelGAE,
)
from sao.critic import ValueModel
from sao.local.critic_trainer import CriticTrainer, Values
from sao.local.packed_batch import PackedBatch, Record, optimizer_step, policy_logprobs, prefix_values
from sao.rewards import overlong_penalty
from sao.trajectory import Batch, Status, Trajectory, place_outcome


class Trainer:
    """Policy and its optimizer, and the row's baseline: a critic, a running mean, or the group."""

    def __init__(self, run: RunConfig, policy: Qwen3MoeForCausalLM, value_model: ValueModel | None) -> None:
        self.run, self.policy = run, policy
        self.optimizer = torch.optim.AdamW(
            policy.parameters(),
            lr=run.training.learning_rate,
            betas=run.optimizer.betas,
            weight_decay=run.optimizer.weight_decay,
        )
        self.critic: CriticTrainer | None = None
        self.running_mean: advantages.RunningMean | None = None
        estimator = run.advantage
        if isinstance(estimator, RunningMean):
            self.running_mean = advantages.RunningMean(estimator.window, estimator.per_prompt)
        elif isinstance(estimator, GAE):
            assert (
                run.critic is not None and value_model is not None
            )  # the config refuses GAE without a critic
            self.critic = CriticTrainer(run, run.critic, estimator, value_model)

    def update(self, trajectories: Sequence[Trajectory], step: int) -> Record:
        """One step; steps below 0 train the critic alone. Returns the step's metrics."""
        data = PackedBatch.from_trajectories(trajectories, self.policy.device)
        rewards = self._shaped_rewards(data.batch)
        record: Record = {}
        values = self.critic.update(data, rewards, step, record) if self.critic else None
        if step >= 0:
            estimates = self._advantages(data, rewards, values, record)
            self._update_policy(data, estimates, record)
        return record

    def _shaped_rewards(self, batch: Batch) -> Tensor:
        """Rewards [batch, tokens], less DAPO's penalty on overlong trajectories where the row asks for it."""
        if not self.run.sampling.overlong_shaping:
            return batch.rewards
        limits = self.run.overlong
        penalty = overlong_penalty(
            batch.num_action_tokens, limits.max_action_tokens, limits.buffer_tokens, limits.penalty
        )
        return place_outcome(batch.outcome + penalty, batch.action_mask)

    def _advantages(
        self, data: PackedBatch, rewards: Tensor, values: Values | None, record: Record
    ) -> Tensor:
        """Advantages float32 [batch, tokens] by the row's estimator, whitened where the row asks for it."""
        estimator, batch = self.run.advantage, data.batch
        if isinstance(estimator, GroupNormalized):
            unusable = advantages.zero_variance_groups(batch.outcome, batch.group_ids)
            record["zero_variance_groups"] = len(unusable)
            estimates = advantages.group_normalized(rewards.sum(1), batch.group_ids)[:, None]
        elif isinstance(estimator, RunningMean):
            estimates = self._above_running_mean(data.trajectories, rewards.sum(1))[:, None]
        else:
            assert values is not None  # rows with GAE have a critic
            estimates = self._generalized_advantages(data, rewards, values, estimator, record)
        estimates = estimates * batch.action_mask
        return advantages.whiten(estimates, batch.action_mask) if estimator.whiten else estimates

    def _generalized_advantages(
        self,
        data: PackedBatch,
        rewards: Tensor,
        values: Values,
        estimator: SkipObservationGAE | FullSequenceGAE | StepLevelGAE,
        record: Record,
    ) -> Tensor:
        batch, mask = data.batch, data.batch.action_mask
        gamma, alpha = estimator.gamma, estimator.alpha
        if isinstance(estimator, StepLevelGAE):
            return advantages.step_level_gae(
                values[0], rewards, mask, batch.step_ids, gamma, alpha, estimator.step_value
            )
        lam = advantages.length_adaptive_lambda(batch.num_action_tokens, alpha)
        record["lambda_zero_share"] = (lam == 0).double().mean().item()
        truncated = torch.tensor(
            [t.status == Status.TRUNCATED for t in data.trajectories], device=mask.device
        )
        bootstrap = torch.where(truncated, values[1], 0) if estimator.bootstrap_truncated else None
        skips = isinstance(estimator, SkipObservationGAE)
        compute = advantages.skip_observation_gae if skips else advantages.full_sequence_gae
        return compute(values[0], rewards, mask, gamma, lam, bootstrap)

    def _above_running_mean(self, trajectories: Sequence[Trajectory], rewards: Tensor) -> Tensor:
        """Reward minus the running mean before it, float32 [batch]; each reward then enters the mean."""
        assert self.running_mean is not None
        differences = []
        for trajectory, reward in zip(trajectories, rewards.tolist(), strict=True):
            differences.append(reward - self.running_mean.baseline(trajectory.prompt_id))
            self.running_mean.update(trajectory.prompt_id, reward)
        return torch.tensor(differences, device=rewards.device)

    def _update_policy(self, data: PackedBatch, estimates: Tensor, record: Record) -> None:
        counts: dict[str, Tensor] = {}
        tokens: list[tuple[Tensor, ...]] = []
        losses, norms = [], []
        for part, part_estimates, old_logprobs in self._minibatches(data, estimates):
            logprobs, entropies = policy_logprobs(self.policy, part)
            loss, stats = self._policy_loss(part.batch, logprobs, old_logprobs, part_estimates)
            step_norms = optimizer_step(self.policy, self.optimizer, loss, self.run.optimizer.gradient_clip)
            losses.append(loss.item())
            norms.append(step_norms["all"])
            mask = part.batch.action_mask
            tokens.append((logprobs.detach()[mask], part.batch.rollout_logprobs[mask], entropies[mask]))
            counts = {name: counts.get(name, 0) + count for name, count in stats.items()}
        record["learning_rate"] = self.run.training.learning_rate
        record["policy_loss"] = sum(losses) / len(losses)
        record["policy_grad_norm"] = sum(norms) / len(norms)
        logprobs, rollout_logprobs, entropies = (torch.cat(parts) for parts in zip(*tokens, strict=True))
        actions = torch.ones_like(logprobs, dtype=torch.bool)
        record |= metrics.ratio_statistics(logprobs, rollout_logprobs, actions)
        record["entropy"] = entropies.mean().item()
        for name in ("masked_low", "masked_high", "clipped"):
            record[name] = counts[name].item() / len(logprobs) if name in counts else None

    def _minibatches(
        self, data: PackedBatch, estimates: Tensor
    ) -> list[tuple[PackedBatch, Tensor, Tensor | None]]:
        """Parts of the batch, their advantages, and the trainer's log-probs before any part was trained on.

        With one part these log-probs are those of the update's own forward (None), which saves a forward.
        """
        count = self.run.minibatches_per_batch
        if count == 1:
            return [(data, estimates, None)]
        parts: list[tuple[PackedBatch, Tensor, Tensor | None]] = []
        for rows in torch.arange(len(data.batch)).chunk(count):
            part = PackedBatch.from_trajectories(
                [data.trajectories[row] for row in rows.tolist()], self.policy.device
            )
            with torch.no_grad():
                old_logprobs, _ = policy_logprobs(self.policy, part)
            parts.append((part, estimates[rows, : part.batch.token_ids.shape[1]], old_logprobs))
        return parts

    def _policy_loss(
        self, batch: Batch, logprobs: Tensor, old_logprobs: Tensor | None, estimates: Tensor
    ) -> tuple[Tensor, objectives.Stats]:
        settings, mask, rollout = self.run.objective, batch.action_mask, batch.rollout_logprobs
        old = logprobs.detach() if old_logprobs is None else old_logprobs
        match settings:
            case DIS():
                band = settings.eps_low, settings.eps_high
                loss, stats = objectives.dis_loss(logprobs, rollout, estimates, mask, *band)
            case PPOClip():
                reference = rollout if settings.reference == "rollout" else old
                clip = settings.clip_low, settings.clip_high
                loss, stats = objectives.ppo_clip_loss(logprobs, reference, estimates, mask, *clip)
            case GSPO():
                clip = settings.clip_low, settings.clip_high
                loss, stats = objectives.gspo_loss(logprobs, rollout, estimates, mask, *clip)
            case IcePop():
                limits = settings.band_low, settings.band_high, settings.clip_low, settings.clip_high
                loss, stats = objectives.icepop_loss(logprobs, old, rollout, estimates, mask, *limits)
            case TIS():
                limits_and_cap = settings.cap, settings.clip_low, settings.clip_high
                loss, stats = objectives.tis_loss(logprobs, old, rollout, estimates, mask, *limits_and_cap)
        if settings.positive_example_coefficient:
            imitation = objectives.positive_example_loss(logprobs, mask, batch.outcome > 0)
            loss = loss + settings.positive_example_coefficient * imitation
        return loss, stats

    @torch.no_grad()
    def inspect(self, trajectories: Sequence[Trajectory]) -> dict[str, Tensor | None]:
        """Trainer log-probs, values and advantages [batch, tokens] of trajectories, for logs; trains nothing.

        Without a critic there are no values, and no advantages of single trajectories.
        """
        data = PackedBatch.from_trajectories(trajectories, self.policy.device)
        logprobs, _ = policy_logprobs(self.policy, data)
        if self.critic is None:
            return {"trainer_logprobs": logprobs, "values": None, "advantages": None}
        values = prefix_values(self.critic.value_model, data)
        estimates = self._advantages(data, data.batch.rewards, values, {})
        return {"trainer_logprobs": logprobs, "values": values[0], "advantages": estimates}

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer states and running mean."""
        state = {"policy": self.policy.state_dict(), "optimizer": self.optimizer.state_dict()}
        if self.critic is not None:
            state["critic"] = self.critic.state_dict()
        if self.running_mean is not None:
            state["running_mean"] = self.running_mean.state_dict()
        return state

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name, state in saved.items():
            getattr(self, name).load_state_dict(state)
