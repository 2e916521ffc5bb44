"""One step on a batch: critic updates, advantages and the policy update.

Every formula comes from the method modules; here stands only their order, which is method.md's: the critic
first, then the advantages from its re-forwarded values, then one policy update.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3MoeForCausalLM

from sao import metrics
from sao.config import RunConfig
from sao.config_rows import GAE
from sao.critic import ValueModel
from sao.estimators import Record, estimate_advantages, make_running_mean, shaped_rewards
from sao.local.critic_trainer import CriticTrainer
from sao.local.packed_batch import PackedBatch, optimizer_step, policy_logprobs, prefix_values
from sao.policy_objective import policy_loss
from sao.trajectory import Trajectory


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
        self.running_mean = make_running_mean(run)
        if isinstance(run.advantage, GAE):
            assert (
                run.critic is not None and value_model is not None
            )  # the config refuses GAE without a critic
            self.critic = CriticTrainer(run, run.critic, run.advantage, value_model)

    def update(self, trajectories: Sequence[Trajectory], step: int) -> Record:
        """One step; steps below 0 train the critic alone. Returns the step's metrics."""
        data = PackedBatch.from_trajectories(trajectories, self.policy.device)
        rewards = shaped_rewards(self.run, data.batch)
        record: Record = {}
        values = self.critic.update(data, rewards, step, record) if self.critic else None
        if step >= 0:
            estimates, estimator_record = estimate_advantages(
                self.run, trajectories, data.batch, rewards, values, self.running_mean
            )
            record |= estimator_record
            self._update_policy(data, estimates, record)
        return record

    def _update_policy(self, data: PackedBatch, estimates: Tensor, record: Record) -> None:
        counts: dict[str, Tensor] = {}
        tokens: list[tuple[Tensor, ...]] = []
        losses, norms = [], []
        for part, part_estimates, old_logprobs in self._minibatches(data, estimates):
            logprobs, entropies = policy_logprobs(self.policy, part)
            mask, rollout = part.batch.action_mask, part.batch.rollout_logprobs
            loss, stats = policy_loss(
                self.run, logprobs, old_logprobs, rollout, part_estimates, mask, part.batch.outcome
            )
            step_norms = optimizer_step(self.policy, self.optimizer, loss, self.run.optimizer.gradient_clip)
            losses.append(loss.item())
            norms.append(step_norms["all"])
            tokens.append((logprobs.detach()[mask], rollout[mask], entropies[mask]))
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
        estimates, _ = estimate_advantages(
            self.run, trajectories, data.batch, data.batch.rewards, values, self.running_mean
        )
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
