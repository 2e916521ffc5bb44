"""Policy losses: DIS, PPO clip, GSPO, IcePop, truncated importance sampling, and the positive-example loss.

Conventions shared by all of them:

- `logprobs`, `rollout_logprobs`, `old_logprobs` and `advantages` are float [batch, tokens], `action_mask` is
bool
  [batch, tokens]. Only `logprobs` receives a gradient.
- A loss is a sum over action tokens divided by `normalizer`, by default the number of action tokens of the
tensors
  given. Micro-batches or ranks that are given the number of action tokens of the global batch add up to the
  gradient of the whole batch, however it is split.
- Positions off the mask may hold anything, NaN and infinity included: they add exactly 0 to loss and
gradient.
- `stats` holds detached 0-d integer tensors, each a number of action tokens ("action_tokens", "masked_low",
  "masked_high", "clipped", "capped"). Add them over micro-batches; divide by "action_tokens" for a share.
- Half precision is computed in float32; shapes that differ raise ValueError.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

Stats = dict[str, Tensor]
Normalizer = Tensor | float | None

# The difference of two float32 log-probabilities of a few nats is exact to about 1e-6: a log-ratio that near
# to an edge of the band counts as lying on it, which is outside.
BAND_EDGE_TOLERANCE = 1e-6
# Beyond exp(20) a ratio carries no information, but its product with an advantage may overflow.
LOG_RATIO_LIMIT = 20.0


def dis_loss(
    logprobs: Tensor,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    action_mask: Tensor,
    eps_low: float,
    eps_high: float,
    normalizer: Normalizer = None,
) -> tuple[Tensor, Stats]:
    """Direct double-sided importance sampling, eq. 1-3 of arXiv:2607.07508.

        r_t  = exp(log pi_theta(a_t) - log pi_rollout(a_t))
        f(r) = r if 1 - eps_low < r < 1 + eps_high, else 0, whatever the sign of the advantage
        loss = -(1 / normalizer) sum_t stop_gradient(f(r_t)) A_t log pi_theta(a_t)

    Masked tokens stay in the normalizer; their loss and gradient are exactly 0, also where the ratio
    overflows. Stats: action_tokens, masked_low (ratio at or below the band), masked_high.
    """
    mask = checked_mask(action_mask, logprobs, rollout_logprobs, advantages)
    logprobs = _at_least_float32(logprobs)
    log_ratio = _log_ratio(logprobs.detach(), rollout_logprobs, mask)
    below, above = outside_band(log_ratio, 1 - eps_low, 1 + eps_high)
    kept = mask & ~below & ~above
    weight = torch.where(kept, log_ratio, 0).exp() * torch.where(kept, advantages.detach(), 0)
    loss = -(weight * torch.where(kept, logprobs, 0)).sum() / divisor(normalizer, mask)
    return loss, _counts(mask, masked_low=below, masked_high=above)


def ppo_clip_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    action_mask: Tensor,
    clip_low: float,
    clip_high: float,
    normalizer: Normalizer = None,
) -> tuple[Tensor, Stats]:
    """PPO's clipped objective with separate bounds ("clip-higher", arXiv:2503.14476).

        r_t  = exp(log pi_theta(a_t) - log pi_old(a_t))
        loss = -(1 / normalizer) sum_t min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t)

    Stats: action_tokens, clipped (tokens whose clipped term is the smaller one, so that their gradient is 0).
    """
    mask = checked_mask(action_mask, logprobs, old_logprobs, advantages)
    log_ratio = _log_ratio(_at_least_float32(logprobs), old_logprobs, mask)
    objective, clipped = _clipped_objective(log_ratio, advantages, mask, clip_low, clip_high)
    return -objective.sum() / divisor(normalizer, mask), _counts(mask, clipped=clipped)


def gspo_loss(
    logprobs: Tensor,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    action_mask: Tensor,
    clip_low: float,
    clip_high: float,
    normalizer: Normalizer = None,
) -> tuple[Tensor, Stats]:
    """Group sequence policy optimisation (arXiv:2507.18071), averaged over action tokens.

        s    = exp(mean over a row's action tokens of log pi_theta(a_t) - log pi_rollout(a_t))
        loss = -(1 / normalizer) sum_t min(s A_t, clip(s, 1 - clip_low, 1 + clip_high) A_t)

    The gradient flows through s, so each token receives s / (tokens of the row) of it. A row must not be cut
    over micro-batches. Stats: action_tokens, clipped (action tokens of clipped sequences).
    """
    mask = checked_mask(action_mask, logprobs, rollout_logprobs, advantages)
    log_ratio = _log_ratio(_at_least_float32(logprobs), rollout_logprobs, mask)
    row_tokens = mask.sum(dim=-1, keepdim=True).clamp(min=1)
    sequence_log_ratio = (log_ratio.sum(dim=-1, keepdim=True) / row_tokens).expand_as(log_ratio)
    objective, clipped = _clipped_objective(sequence_log_ratio, advantages, mask, clip_low, clip_high)
    return -objective.sum() / divisor(normalizer, mask), _counts(mask, clipped=clipped)


def icepop_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    action_mask: Tensor,
    band_low: float,
    band_high: float,
    clip_low: float,
    clip_high: float,
    normalizer: Normalizer = None,
) -> tuple[Tensor, Stats]:
    """IcePop: PPO's clipped objective times k_t = pi_old(a_t) / pi_rollout(a_t) inside a band, 0 outside.

        loss = -(1 / normalizer) sum_t [band_low < k_t < band_high] k_t min(r_t A_t, clip(r_t) A_t)

    r_t and its clip are those of `ppo_clip_loss`; k_t carries no gradient.
    Stats: action_tokens, clipped (inside the band and clipped), masked_low, masked_high.
    """
    mask = checked_mask(action_mask, logprobs, old_logprobs, rollout_logprobs, advantages)
    mismatch = _log_ratio(_at_least_float32(old_logprobs.detach()), rollout_logprobs, mask)
    below, above = outside_band(mismatch, band_low, band_high)
    kept = mask & ~below & ~above
    correction = torch.where(kept, mismatch, 0).exp()
    log_ratio = _log_ratio(_at_least_float32(logprobs), old_logprobs, kept)
    objective, clipped = _clipped_objective(log_ratio, advantages, kept, clip_low, clip_high)
    loss = -(correction * objective).sum() / divisor(normalizer, mask)
    return loss, _counts(mask, clipped=clipped, masked_low=below, masked_high=above)


def tis_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    action_mask: Tensor,
    cap: float,
    clip_low: float,
    clip_high: float,
    normalizer: Normalizer = None,
) -> tuple[Tensor, Stats]:
    """Truncated importance sampling: PPO's clipped objective times min(pi_old(a_t) / pi_rollout(a_t), cap).

        loss = -(1 / normalizer) sum_t min(k_t, cap) min(r_t A_t, clip(r_t) A_t)

    The correction k_t carries no gradient. Stats: action_tokens, clipped, capped (tokens with k_t above the
    cap).
    """
    mask = checked_mask(action_mask, logprobs, old_logprobs, rollout_logprobs, advantages)
    mismatch = _log_ratio(_at_least_float32(old_logprobs.detach()), rollout_logprobs, mask)
    correction = mismatch.clamp(max=math.log(cap)).exp()
    log_ratio = _log_ratio(_at_least_float32(logprobs), old_logprobs, mask)
    objective, clipped = _clipped_objective(log_ratio, advantages, mask, clip_low, clip_high)
    loss = -(correction * objective).sum() / divisor(normalizer, mask)
    return loss, _counts(mask, clipped=clipped, capped=mismatch > math.log(cap))


def positive_example_loss(
    logprobs: Tensor, action_mask: Tensor, positive: Tensor, normalizer: Normalizer = None
) -> Tensor:
    """Language-model loss on the action tokens of positive rows (VAPO, arXiv:2504.05118).

        loss = -(1 / normalizer) sum over action tokens of positive rows of log pi_theta(a_t)

    positive: bool [batch]. The default normalizer counts the action tokens of all rows, as everywhere in this
    module; give the number in positive rows for VAPO's own average.
    """
    mask = checked_mask(action_mask, logprobs)
    if positive.shape != mask.shape[:1]:
        raise ValueError(f"positive has shape {list(positive.shape)}, expected [{mask.shape[0]}]")
    chosen = mask & positive.bool()[:, None]
    return -torch.where(chosen, _at_least_float32(logprobs), 0).sum() / divisor(normalizer, mask)


def checked_mask(action_mask: Tensor, *tensors: Tensor) -> Tensor:
    """The mask as bool. Raises ValueError when a tensor has another shape (it might broadcast)."""
    for tensor in tensors:
        if tensor.shape != action_mask.shape:
            raise ValueError(
                f"shape {list(tensor.shape)} differs from the action mask's {list(action_mask.shape)}"
            )
    return action_mask.bool()


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _log_ratio(logprobs: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """Log-ratio to a reference that gets no gradient; 0 off the mask, where either side may be NaN."""
    return torch.where(mask, logprobs, 0) - torch.where(mask, reference.detach(), 0)


def outside_band(log_ratio: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Tokens at or below, and at or above, the open band (low, high) of ratios; NaN is neither, to show."""
    log_low = math.log(low) if low > 0 else -math.inf
    below = log_ratio <= log_low + BAND_EDGE_TOLERANCE
    above = log_ratio >= math.log(high) - BAND_EDGE_TOLERANCE
    return below, above


def _clipped_objective(
    log_ratio: Tensor, advantages: Tensor, mask: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """min(r A, clip(r) A) per token, 0 off the mask, and the tokens where the clip fired."""
    ratio = torch.where(mask, log_ratio, 0).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    advantages = torch.where(mask, advantages.detach(), 0)
    unclipped = ratio * advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    return torch.minimum(unclipped, clipped), clipped < unclipped


def divisor(normalizer: Normalizer, mask: Tensor) -> Tensor:
    """The normalizer as a tensor, the number of tokens on the mask by default; 1 in place of 0."""
    count = mask.sum() if normalizer is None else torch.as_tensor(normalizer, device=mask.device)
    return torch.where(count > 0, count, 1)


def _counts(mask: Tensor, **tokens: Tensor) -> Stats:
    stats = {name: (mask & chosen).sum() for name, chosen in tokens.items()}
    return {"action_tokens": mask.sum(), **stats}
