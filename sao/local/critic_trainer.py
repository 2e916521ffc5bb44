"""The critic's side of a step: its updates on a batch, and the values that advantages are made from."""

from typing import Any

import torch
from torch import Tensor

from sao import critic
from sao.config import RunConfig
from sao.config_rows import GAE, Critic
from sao.estimators import (
    Record,
    Values,
    critic_learning_rate,
    critic_targets,
    trained_positions,
    value_fit,
)
from sao.local.packed_batch import PackedBatch, optimizer_step, prefix_values, set_learning_rate


class CriticTrainer:
    """Value model and its optimizer; the parameters that the row freezes are in no optimizer group."""

    def __init__(
        self, run: RunConfig, settings: Critic, estimator: GAE, value_model: critic.ValueModel
    ) -> None:
        self.run, self.settings, self.estimator, self.value_model = run, settings, estimator, value_model
        critic.freeze(value_model, settings.frozen)
        self.optimizer = torch.optim.AdamW(
            [parameter for parameter in value_model.parameters() if parameter.requires_grad],
            lr=critic_learning_rate(run, 0),
            betas=run.optimizer.betas,
            weight_decay=run.optimizer.weight_decay,
        )

    def update(self, data: PackedBatch, rewards: Tensor, step: int, record: Record) -> Values:
        """The batch's critic updates, which come before its advantages; adds their metrics to `record`.

        The first update's forward also gives the values before the updates. Returns the values that the row's
        advantages use: re-forwarded after the updates, or those before them.
        """
        rate = critic_learning_rate(self.run, step)
        set_learning_rate(self.optimizer, rate)
        positions = trained_positions(self.estimator, data.batch)
        targets = critic_targets(self.estimator, rewards, positions)
        values, final_values = prefix_values(self.value_model, data)
        before = values.detach(), final_values.detach()
        first = self._step(values, targets, positions, before[0])
        for _ in range(self.settings.updates_per_batch - 1):
            values, _ = prefix_values(self.value_model, data)
            self._step(values, targets, positions, before[0])
        with torch.no_grad():
            after = prefix_values(self.value_model, data)
        record |= first | {"critic_learning_rate": rate, "value_mean": after[0][positions].mean().item()}
        record |= value_fit("before", self.estimator, before[0], rewards, data.batch)
        record |= value_fit("after", self.estimator, after[0], rewards, data.batch)
        return after if self.settings.advantages_after_updates else before

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

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimizer state."""
        return {"value_model": self.value_model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.value_model.load_state_dict(saved["value_model"])
        self.optimizer.load_state_dict(saved["optimizer"])
