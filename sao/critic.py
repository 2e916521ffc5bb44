"""The value model: a backbone of its own with a scalar head, frozen parts, and the value loss."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sao.objectives import Normalizer, divisor

Frozen = Literal["attention", "none", "all_but_experts_and_head"]

ATTENTION = re.compile(r"(^|\.)(self_attn|attn|self_attention|attention|linear_attn)\.")
EXPERTS = re.compile(r"(^|\.)experts?\.")
HEAD = re.compile(r"(^|\.)(head|score|value_head|v_head)\.")


class ValueModel(nn.Module):
    """A transformers backbone (`AutoModel`, no language-model head) and a linear head with one output.

    The head starts at zero, so every value is 0 until the first update. Temperature plays no part.
    """

    def __init__(self, backbone: PreTrainedModel) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(backbone.config.hidden_size, 1, dtype=next(backbone.parameters()).dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @classmethod
    def from_policy(cls, policy: PreTrainedModel) -> ValueModel:
        """A value model whose backbone is a copy of a causal language model's; the two share no parameter."""
        backbone: PreTrainedModel = copy.deepcopy(policy.base_model)  # type: ignore[assignment]
        return cls(backbone.requires_grad_(True))

    def forward(self, input_ids: Tensor, **backbone_kwargs: Any) -> Tensor:
        """Values float32 [batch, tokens]; index t is the value of the prefix that ends with token t.

        input_ids: int64 [batch, tokens]; other arguments (attention mask, position ids, ...) go to the
        backbone.
        """
        hidden = self.backbone(input_ids=input_ids, **backbone_kwargs).last_hidden_state
        return self.head(hidden).squeeze(-1).float()


def values_before_tokens(values: Tensor) -> Tensor:
    """Shift values right by one token: index t becomes the value of the prefix before token t.

    That is the state in which token t was chosen. Index 0 has no prefix and is 0. In a packed row the first
    token of each sequence reads the sequence before it; it is a prompt token, whose value nothing uses.
    """
    return nn.functional.pad(values[..., :-1], (1, 0))


def is_attention_parameter(name: str) -> bool:
    """Whether a parameter is part of an attention module: projections and q/k norms, not the layer norms."""
    return ATTENTION.search(name) is not None


def freeze_attention(model: nn.Module) -> list[str]:
    """Freeze every parameter of the attention modules and return their names.

    Call it before the optimizer is built (and before any sharding wrap), so that the frozen parameters are in
    no optimizer group. Raises ValueError if no parameter matches.
    """
    return _freeze(model, is_attention_parameter, "attention")


def freeze_all_but_experts_and_head(model: nn.Module) -> list[str]:
    """Freeze every parameter but those of the experts and of the value head; return the frozen names.

    Call it before the optimizer is built. Raises ValueError if the model has no experts or no head.
    """
    names = [name for name, _ in model.named_parameters()]
    for pattern, kind in ((EXPERTS, "expert"), (HEAD, "value head")):
        if not any(pattern.search(name) for name in names):
            raise ValueError(f"{type(model).__name__} has no {kind} parameters to keep trainable")
    return _freeze(model, lambda name: not (EXPERTS.search(name) or HEAD.search(name)), "other")


def freeze(model: nn.Module, which: Frozen) -> list[str]:
    """Freeze the parts that a row's `critic.frozen` names; return the frozen parameter names."""
    match which:
        case "attention":
            return freeze_attention(model)
        case "all_but_experts_and_head":
            return freeze_all_but_experts_and_head(model)
        case "none":
            return []
    raise ValueError(f'frozen {which!r} is not "attention", "none" or "all_but_experts_and_head"')


def _freeze(model: nn.Module, chosen: Callable[[str], bool], kind: str) -> list[str]:
    frozen = [(name, parameter) for name, parameter in model.named_parameters() if chosen(name)]
    if not frozen:
        raise ValueError(f"{type(model).__name__} has no {kind} parameters to freeze")
    for _, parameter in frozen:
        parameter.requires_grad_(False)
    return [name for name, _ in frozen]


def value_loss(
    values: Tensor,
    returns: Tensor,
    action_mask: Tensor,
    normalizer: Normalizer = None,
    old_values: Tensor | None = None,
    clip: float | None = None,
) -> Tensor:
    """Mean squared error to the return over action tokens, without the factor 1/2.

        loss = (1 / normalizer) sum_t (V_t - R_t)^2

    Tensors are [batch, tokens]; only `values` receives a gradient, and none off the mask, where anything may
    stand. normalizer: as in `sao.objectives`. With clip, each token's error is the larger of that and the
    error of V_old + clamp(V - V_old, -clip, clip), where `old_values` are from before the batch's first
    critic update. Raises ValueError for clip without old_values.
    """
    mask = action_mask.bool()
    error = _squared_error(values, returns, mask)
    if clip is not None:
        if old_values is None:
            raise ValueError("value clipping needs old_values")
        old = torch.where(mask, old_values.detach(), 0)
        clipped = old + (torch.where(mask, values, 0) - old).clamp(-clip, clip)
        error = torch.maximum(error, _squared_error(clipped, returns, mask))
    return error.sum() / divisor(normalizer, mask)


def _squared_error(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    if not values.shape == returns.shape == mask.shape:
        raise ValueError(
            f"values {list(values.shape)}, returns {list(returns.shape)} and "
            f"action mask {list(mask.shape)} must have one shape"
        )
    return (torch.where(mask, values, 0) - torch.where(mask, returns.detach(), 0)).square()
