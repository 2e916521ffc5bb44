"""Advantages: skip-observation, full-sequence and step-level GAE, group normalisation and running-mean
baselines.

Unless stated otherwise `values` and `rewards` are float [batch, tokens] and `action_mask` is bool [batch,
tokens]. `values[:, t]` is the value of the prefix before token t (see `sao.critic.values_before_tokens`).
Results are 0 off the action tokens, carry no gradient and have the dtype of `values`, half precision becoming
float32. Positions off the mask may hold NaN or infinity; a row without action tokens gets zeros.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Literal

import torch
from torch import Tensor

from sao.objectives import checked_mask
from sao.scan import scan_from_the_end

SCAN_TOKENS = 2**19  # whole rows of about this many tokens are scanned at once, to stay within the caches


def length_adaptive_lambda(num_action_tokens: Tensor, alpha: float) -> Tensor:
    """lambda = 1 - 1 / (alpha * l), clamped to [0, 1): float64 [batch] for l action tokens, int [batch].

    Raises ValueError for alpha <= 0 or a length below 1.
    """
    if alpha <= 0:
        raise ValueError(f"alpha {alpha} must be positive")
    lengths = torch.as_tensor(num_action_tokens)
    if (lengths < 1).any():
        raise ValueError(
            "a trajectory without action tokens has no length-adaptive lambda; drop it from the batch"
        )
    return (1 - 1 / (alpha * lengths.double())).clamp(min=0)


@torch.no_grad()
def skip_observation_gae(
    values: Tensor,
    rewards: Tensor,
    action_mask: Tensor,
    gamma: float,
    lam: float | Tensor,
    final_values: Tensor | None = None,
) -> Tensor:
    """GAE over the concatenated action tokens, eq. 4-5 of arXiv:2607.07508.

        delta_t = r_t + gamma V(next action token) - V(this action token)
        A_t     = delta_t + gamma lambda A(next action token)

    Observation tokens take no part: one factor gamma * lambda joins the last token of an action to the first
    of the next. lam: float or [batch]. final_values: [batch], the value after the last action token; 0 by
    default, which is right for a terminated trajectory and for a truncated one without bootstrap.
    """
    mask = checked_mask(action_mask, values, rewards)
    dtype = torch.promote_types(values.dtype, torch.float32)
    batch, tokens = mask.shape
    lam = torch.as_tensor(lam, dtype=torch.float64, device=mask.device).expand(batch)
    if final_values is None:
        final_values = torch.zeros_like(lam)
    advantages = torch.empty(mask.shape, dtype=dtype, device=mask.device)
    rows_at_once = max(SCAN_TOKENS // max(tokens, 1), 1)
    for start in range(0, batch, rows_at_once):
        rows = slice(start, start + rows_at_once)
        _gae(
            values[rows].to(dtype),
            rewards[rows].to(dtype),
            mask[rows],
            gamma,
            lam[rows],
            final_values[rows].double(),
            out=advantages[rows],
        )
    return advantages


def _gae(
    values: Tensor,
    rewards: Tensor,
    mask: Tensor,
    gamma: float,
    lam: Tensor,
    final_values: Tensor,
    out: Tensor,
) -> None:
    """`skip_observation_gae` of some rows, written to `out`."""
    decay = gamma * lam
    dtype = values.dtype
    keep_bits = mask.to(torch.int64 if dtype == torch.float64 else torch.int32)
    is_action = keep_bits.to(dtype)
    keep_bits.neg_()
    # With G = A + V, an action token hands H = gamma ((1 - lambda) V + lambda G) to the one before and gets
    # H' from the one after it. G = r + H', so H = gamma (1 - lambda) V + gamma lambda (r + H') on actions and
    # H = H' elsewhere. Rounding errors of V do not add up as lambda nears 1, as they do in a sum of deltas.
    handed = (values * (gamma * (1 - lam)).to(dtype)[:, None]).addcmul_(rewards, decay.to(dtype)[:, None])
    _zero_off_mask(handed, keep_bits)
    received_last = gamma * final_values
    handed = scan_from_the_end(handed, is_action, decay, received_last)
    torch.sub(rewards, values, out=out)
    out[:, :-1] += handed[:, 1:]
    out[:, -1] += received_last
    _zero_off_mask(out, keep_bits)


def returns(rewards: Tensor, action_mask: Tensor, gamma: float) -> Tensor:
    """Discounted return from each action token, [batch, tokens]: the critic's target with lambda_critic = 1.

    Observation tokens are skipped: they neither discount nor reset the return, and rewards on them are
    ignored.
    """
    return skip_observation_gae(torch.zeros_like(rewards), rewards, action_mask, gamma, 1.0)


def full_sequence_gae(
    values: Tensor,
    rewards: Tensor,
    action_mask: Tensor,
    gamma: float,
    lam: float | Tensor,
    final_values: Tensor | None = None,
) -> Tensor:
    """Plain GAE from the first to the last action token, through the observation tokens between them.

    The ablation of `skip_observation_gae`: values and rewards of observation tokens count, and each
    observation token adds a factor gamma * lambda. Advantages are 0 off the action tokens.
    """
    span = full_sequence_mask(action_mask)
    return skip_observation_gae(values, rewards, span, gamma, lam, final_values).masked_fill_(
        ~action_mask.bool(), 0
    )


def full_sequence_mask(action_mask: Tensor) -> Tensor:
    """Tokens from each row's first to its last action token, bool [batch, tokens]."""
    actions = action_mask.long()
    return (actions.cumsum(1) > 0) & (actions.flip(1).cumsum(1).flip(1) > 0)


@torch.no_grad()
def step_level_gae(
    values: Tensor,
    rewards: Tensor,
    action_mask: Tensor,
    step_ids: Tensor,
    gamma: float,
    alpha: float,
    step_value: Literal["mean", "last"] = "mean",
) -> Tensor:
    """GAE over steps, one step per action; all tokens of a step share its advantage (appendix A.1 of
    arXiv:2607.07508).

        delta_i = R_i + gamma V(S_{i+1}) - V(S_i),   lambda = 1 - 1 / (alpha * number of steps)

    V(S_i) is the mean of the step's token values, or the value at its last token; R_i is the sum of its
    rewards. step_ids: int [batch, tokens], equal within a step and different in consecutive ones; ignored off
    the mask.
    """
    if step_value not in ("mean", "last"):
        raise ValueError(f'step_value {step_value!r} is neither "mean" nor "last"')
    mask = checked_mask(action_mask, values, rewards, step_ids)
    last_tokens = step_last_tokens(mask, step_ids)
    number_of_steps = last_tokens.sum(dim=1)
    # Tokens up to and including a step's last one have seen as many last tokens as there are steps before it.
    step_index = last_tokens.long().cumsum(1) - last_tokens.long()
    step_index = torch.where(mask, step_index, 0)
    width = max(int(number_of_steps.max()), 1) if len(mask) else 1

    def sum_by_step(tokens: Tensor) -> Tensor:
        return torch.zeros(len(mask), width, dtype=torch.float64, device=mask.device).scatter_add_(
            1, step_index, tokens.double()
        )

    weighted = last_tokens if step_value == "last" else mask
    step_values = sum_by_step(torch.where(weighted, values, 0)) / sum_by_step(weighted).clamp(min=1)
    step_rewards = sum_by_step(torch.where(mask, rewards, 0))
    is_step = torch.arange(width, device=mask.device) < number_of_steps[:, None]
    lam = length_adaptive_lambda(number_of_steps.clamp(min=1), alpha)
    advantages = skip_observation_gae(step_values, step_rewards, is_step, gamma, lam)
    return torch.where(mask, advantages.gather(1, step_index), 0).to(values.dtype)


def step_last_tokens(action_mask: Tensor, step_ids: Tensor) -> Tensor:
    """The last action token of every step, bool [batch, tokens]."""
    mask = action_mask.bool()
    length = mask.shape[1]
    positions = torch.arange(length, device=mask.device)
    # The next action token at or after t, then after t; `length` if there is none.
    upcoming = torch.where(mask, positions, length).flip(1).cummin(1).values.flip(1)
    following = torch.full_like(upcoming, length)
    following[:, :-1] = upcoming[:, 1:]
    padded_steps = torch.cat([step_ids, torch.zeros_like(step_ids[:, :1])], dim=1)
    same_step = (following < length) & (padded_steps.gather(1, following) == step_ids)
    return mask & ~same_step


@torch.no_grad()
def whiten(advantages: Tensor, action_mask: Tensor, eps: float = 1e-8) -> Tensor:
    """Advantages with mean 0 and standard deviation 1 (n - 1) over the action tokens of the batch given.

    Give the global batch that the step trains on. A single action token or equal advantages give 0; so do
    positions off the mask.
    """
    mask = checked_mask(action_mask, advantages)
    chosen = advantages[mask].double()
    if len(chosen) < 2:
        return torch.zeros_like(advantages)
    whitened = (chosen - chosen.mean()) / (chosen.std() + eps)
    return torch.zeros_like(advantages).masked_scatter_(mask, whitened.to(advantages.dtype))


@torch.no_grad()
def group_normalized(
    rewards: Tensor, group_ids: Tensor, valid: Tensor | None = None, eps: float = 1e-6
) -> Tensor:
    """(R - mean) / (std + eps) within each group, [batch]; the standard deviation divides by n - 1.

    rewards float [batch]; group_ids int [batch], in any order and of any group sizes; valid bool [batch].
    Invalid rows get 0 and leave the statistics. A group of equal rewards or of one valid member gets 0.
    """
    member, _, mean, deviation, varies = _group_statistics(rewards, group_ids, valid)
    valid_rows = torch.ones_like(rewards, dtype=torch.bool) if valid is None else valid.bool()
    centred = torch.where(valid_rows, rewards, 0).double() - mean[member]
    normalized = centred / (deviation[member] + eps)
    return torch.where(valid_rows & varies[member], normalized, 0).to(rewards.dtype)


@torch.no_grad()
def zero_variance_groups(rewards: Tensor, group_ids: Tensor, valid: Tensor | None = None) -> Tensor:
    """Ids of the groups whose valid rewards are all equal (or of which none is valid), int, ascending.

    Dynamic sampling replaces these groups; give it the raw rewards, before any shaping.
    """
    _, groups, _, _, varies = _group_statistics(rewards, group_ids, valid)
    return groups[~varies]


def _group_statistics(
    rewards: Tensor, group_ids: Tensor, valid: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Group index of each row; per group its id, mean, deviation (n - 1) and whether its rewards differ."""
    groups, member = torch.unique(group_ids, return_inverse=True)
    chosen = torch.ones_like(rewards, dtype=torch.bool) if valid is None else valid.bool()
    kept = member[chosen]
    kept_rewards = rewards[chosen].double()
    zeros = torch.zeros(len(groups), dtype=torch.float64, device=rewards.device)
    count = zeros.index_add(0, kept, torch.ones_like(kept_rewards))
    mean = zeros.index_add(0, kept, kept_rewards) / count.clamp(min=1)
    squares = zeros.index_add(0, kept, (kept_rewards - mean[kept]).square())
    deviation = (squares / (count - 1).clamp(min=1)).sqrt()
    largest = torch.full_like(zeros, -torch.inf).scatter_reduce(0, kept, kept_rewards, "amax")
    smallest = torch.full_like(zeros, torch.inf).scatter_reduce(0, kept, kept_rewards, "amin")
    return member, groups, mean, deviation, largest > smallest


class RunningMean:
    """Baseline: mean of the latest `window` rewards, of one prompt (per_prompt) or of all.

    Ask for the baseline of a reward before the reward enters: `baseline`, then `update`. A prompt's first
    visit uses the mean of all rewards seen so far; before any reward the baseline is 0.
    """

    def __init__(self, window: int, per_prompt: bool) -> None:
        if window < 1:
            raise ValueError(f"window {window} must be at least 1")
        self.window = window
        self.per_prompt = per_prompt
        self._windows: dict[str, deque[float]] = {}
        self._total = 0.0
        self._count = 0

    def baseline(self, prompt_id: str) -> float:
        rewards = self._windows.get(self._key(prompt_id))
        if rewards:
            return sum(rewards) / len(rewards)
        return self._total / self._count if self._count else 0.0

    def update(self, prompt_id: str, reward: float) -> None:
        self._windows.setdefault(self._key(prompt_id), deque(maxlen=self.window)).append(float(reward))
        self._total += float(reward)
        self._count += 1

    def state_dict(self) -> dict[str, Any]:
        """Plain Python values, for a checkpoint or JSON."""
        return {
            "window": self.window,
            "per_prompt": self.per_prompt,
            "windows": {key: list(rewards) for key, rewards in self._windows.items()},
            "total": self._total,
            "count": self._count,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError when the state belongs to another window or kind."""
        for name in ("window", "per_prompt"):
            if state[name] != getattr(self, name):
                raise ValueError(
                    f"running mean has {name} {getattr(self, name)}, the saved state {state[name]}"
                )
        self._windows = {key: deque(rewards, maxlen=self.window) for key, rewards in state["windows"].items()}
        self._total = state["total"]
        self._count = state["count"]

    def _key(self, prompt_id: str) -> str:
        return prompt_id if self.per_prompt else ""


def _zero_off_mask(tokens: Tensor, keep_bits: Tensor) -> None:
    """Set tokens whose integer has no bits set to 0, in place.

    NaN and infinity vanish as with torch.where, at a third of its time.
    """
    tokens.view(keep_bits.dtype).bitwise_and_(keep_bits)
