"""The critic's side of a step: its updates on a batch, and the values that advantages are made from."""

from typing import Any

import torch
from torch import Tensor

from sao import advantages, critic, metrics
from sao.config import RunConfig
from sao.config_rows import GAE, Critic, FullSequenceGAE, StepLevelGAE
from sao.local.packed_batch import PackedBatch, Record, optimizer_step, prefix_values, set_learning_rate
from sao.trajectory import Batch

Values = tuple[Tensor, Tensor]
"""V before each token, float32 [batch, tokens], and V behind the last action token, float32 [batch]."""


class CriticTrainer:
    """Value model and its optimizer; the parameters that the row freezes are in no optimizer group."""

    def __init__(
        self, run: RunConfig, settings: Critic, estimator: GAE, value_model: critic.ValueModel
    ) -> None:
        self.run, self.settings, self.estimator, self.value_model = run, settings, estimator, value_model
        critic.freeze(value_model, settings.frozen)
        self.learning_rate = run.training.learning_rate * settings.learning_rate_factor
        self.optimizer = torch.optim.AdamW(
            [parameter for parameter in value_model.parameters() if parameter.requires_grad],
            lr=self.learning_rate,
            betas=run.optimizer.betas,
            weight_decay=run.optimizer.weight_decay,
        )

    def update(self, data: PackedBatch, rewards: Tensor, step: int, record: Record) -> Values:
        """The batch's critic updates, which come before its advantages; adds their metrics to `record`.

        The first update's forward also gives the values before the updates. Returns the values that the row's
        advantages use: re-forwarded after the updates, or those before them.
        """
        rate = self._learning_rate(step)
        set_learning_rate(self.optimizer, rate)
        positions = self.trained_positions(data.batch)
        targets = advantages.returns(rewards, positions, self.estimator.gamma)
        values, final_values = prefix_values(self.value_model, data)
        before = values.detach(), final_values.detach()
        first = self._step(values, targets, positions, before[0])
        for _ in range(self.settings.updates_per_batch - 1):
            values, _ = prefix_values(self.value_model, data)
            self._step(values, targets, positions, before[0])
        with torch.no_grad():
            after = prefix_values(self.value_model, data)
        record |= first | {"critic_learning_rate": rate, "value_mean": after[0][positions].mean().item()}
        action_returns = advantages.returns(rewards, data.batch.action_mask, self.estimator.gamma)
        self._add_fit("before", before[0], action_returns, data.batch, record)
        self._add_fit("after", after[0], action_returns, data.batch, record)
        return after if self.settings.advantages_after_updates else before

    def _learning_rate(self, step: int) -> float:
        """Linear warm-up over the critic-only steps (those below 0), then constant."""
        if step >= 0:
            return self.learning_rate
        return self.learning_rate * (1 + (step + 1) / self.settings.critic_only_steps)

    def trained_positions(self, batch: Batch) -> Tensor:
        """Tokens that the value loss covers, bool [batch, tokens]."""
        if isinstance(self.estimator, FullSequenceGAE):
            return advantages.full_sequence_mask(batch.action_mask)
        if isinstance(self.estimator, StepLevelGAE) and self.estimator.step_value == "last":
            return advantages.step_last_tokens(batch.action_mask, batch.step_ids)
        return batch.action_mask

    def _step(self, values: Tensor, targets: Tensor, positions: Tensor, old_values: Tensor) -> Record:
        loss = critic.value_loss(
            values, targets, positions, old_values=old_values, clip=self.settings.value_clip
        )
        clip = self.run.optimizer.gradient_clip
        norms = optimizer_step(self.value_model, self.optimizer, loss, clip)
        return {
            "value_loss": loss.item(),
            "critic_grad_norm": norms["all"],
            "critic_grad_norm_attention": norms["attention"],
            "critic_grad_norm_rest": norms["rest"],
        }

    @staticmethod
    def _add_fit(when: str, values: Tensor, action_returns: Tensor, batch: Batch, record: Record) -> None:
        mask = batch.action_mask
        record[f"explained_variance_{when}"] = metrics.explained_variance(values, action_returns, mask)
        record[f"advantage_abs_mean_{when}"] = (action_returns - values)[mask].abs().mean().item()

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimizer state."""
        return {"value_model": self.value_model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.value_model.load_state_dict(saved["value_model"])
        self.optimizer.load_state_dict(saved["optimizer"])
