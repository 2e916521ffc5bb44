"""A batch of trajectories in packed layout; the forwards and optimizer step that policy and critic share."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import Qwen3MoeForCausalLM

from sao import metrics
from sao.critic import ValueModel
from sao.local.model import PackedTokens
from sao.logprobs import token_logprobs
from sao.trajectory import Batch, Trajectory, last_action_index


class TrainingError(RuntimeError):
    """A loss or gradient is not finite; the message gives both."""


@dataclass(frozen=True)
class PackedBatch:
    """Trajectories, padded and packed; `before` [batch, tokens] holds the packed place of each prefix."""

    trajectories: Sequence[Trajectory]
    batch: Batch
    packed: PackedTokens
    before: Tensor

    @classmethod
    def from_trajectories(cls, trajectories: Sequence[Trajectory], device: torch.device) -> "PackedBatch":
        """Pad, pack and index the trajectories, on the device of the model that reads them."""
        batch = Batch.from_trajectories(trajectories).to(device)
        packed = PackedTokens.from_padded(batch.token_ids, batch.lengths)
        return cls(trajectories, batch, packed, packed.places_before())


def selected_logprobs(
    policy: Qwen3MoeForCausalLM, packed: PackedTokens, token_ids: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of the tokens on `mask`, each float32 [tokens on the mask] in row order.

    `token_ids` int64 and `mask` bool are [batch, tokens]; the output layer runs on these tokens alone.
    """
    hidden = policy.model(**packed.backbone_inputs()).last_hidden_state[0]
    return token_logprobs(hidden[packed.places_before()[mask]], policy.lm_head.weight, token_ids[mask])


def policy_logprobs(policy: Qwen3MoeForCausalLM, data: PackedBatch) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of the batch's action tokens, float32 [batch, tokens], 0 elsewhere."""
    mask = data.batch.action_mask
    flat = selected_logprobs(policy, data.packed, data.batch.token_ids, mask)
    logprobs, entropies = (
        torch.zeros(mask.shape, device=mask.device).masked_scatter(mask, part) for part in flat
    )
    return logprobs, entropies


def prefix_values(value_model: ValueModel, data: PackedBatch) -> tuple[Tensor, Tensor]:
    """V before each token, float32 [batch, tokens], and V behind the last action token, float32 [batch]."""
    packed = value_model(**data.packed.backbone_inputs())[0]
    last = last_action_index(data.batch.action_mask).clamp_min(0)
    final = packed[data.packed.slots.gather(1, last[:, None])[:, 0]]
    return packed[data.before], final


def optimizer_step(
    module: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor, clip: float
) -> dict[str, float]:
    """Backward, clip and step; returns the gradient norms before clipping ("all", "attention", "rest").

    Raises TrainingError, before the weights change, when the loss or a gradient is not finite.
    """
    optimizer.zero_grad()
    loss.backward()
    norms = metrics.gradient_norms(module.named_parameters())
    if not (math.isfinite(loss.item()) and math.isfinite(norms["all"])):
        raise TrainingError(f"loss {loss.item():g} or its gradient norm {norms['all']:g} is not finite")
    nn.utils.clip_grad_norm_(module.parameters(), clip)
    optimizer.step()
    return norms


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every parameter group this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate
