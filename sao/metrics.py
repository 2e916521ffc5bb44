"""Training metrics: explained variance, importance ratios, staleness and gradient norms.

Statistics are Python numbers over the action tokens given: give the tokens of the whole batch. The histograms
have fixed bins and hold counts, so that those of micro-batches, ranks or updates may be added.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Parameter

from sao.critic import is_attention_parameter
from sao.objectives import outside_band
from sao.runlog_schema import LOG_RATIO_EDGES

RATIO_QUANTILES = (0.01, 0.05, 0.5, 0.95, 0.99)
# One bin per number of versions from 0 on; the last holds it and everything beyond: 64 counts.
STALENESS_BINS = 64


@torch.no_grad()
def explained_variance(values: Tensor, returns: Tensor, action_mask: Tensor) -> float | None:
    """1 - Var(R - V) / Var(R) over all action tokens of the batch; None when Var(R) is 0.

    values and returns are float [batch, tokens], action_mask bool [batch, tokens]; computed in float64.
    """
    mask = action_mask.bool()
    target = returns[mask].double()
    if target.numel() == 0 or bool((target == target[0]).all()):
        return None
    error = target - values[mask].double()
    return 1 - (error.var(correction=0) / target.var(correction=0)).item()


@torch.no_grad()
def ratio_statistics(
    logprobs: Tensor,
    rollout_logprobs: Tensor,
    action_mask: Tensor,
    band: tuple[float, float] | None = None,
) -> dict[str, float | list[int] | None]:
    """Statistics of the ratio r = exp(log pi_theta - log pi_rollout) over action tokens.

    Tensors are [batch, tokens] (or any common shape). Keys:
        ratio_q01, _q05, _q50, _q95, _q99    quantiles of r, exact
        ratio_histogram          counts of log r in the bins of `LOG_RATIO_EDGES`, an open bin on either side
        effective_sample_size    (sum r)^2 / (n sum r^2), a share in (0, 1]
        mean_abs_log_ratio       mean of |log r|, in nats
        masked_low, masked_high  shares of tokens below and above the open band; None without a band
        zero_logprob_share       share of rollout log-probabilities of exactly 0, the mark of missing ones
    Every value is None (the histogram all 0) without action tokens.
    """
    mask = action_mask.bool()
    rollout = rollout_logprobs[mask].double()
    log_ratio = logprobs[mask].double() - rollout
    statistics: dict[str, float | list[int] | None] = {
        f"ratio_q{round(100 * q):02d}": _exp(value)
        for q, value in zip(RATIO_QUANTILES, quantiles(log_ratio, RATIO_QUANTILES), strict=True)
    }
    statistics["ratio_histogram"] = log_ratio_histogram(log_ratio)
    statistics["masked_low"] = statistics["masked_high"] = None
    if len(log_ratio) == 0:
        return statistics | dict.fromkeys(
            ("effective_sample_size", "mean_abs_log_ratio", "zero_logprob_share")
        )
    shifted = (log_ratio - log_ratio.max()).exp()
    statistics["effective_sample_size"] = (shifted.mean().square() / shifted.square().mean()).item()
    statistics["mean_abs_log_ratio"] = log_ratio.abs().mean().item()
    statistics["zero_logprob_share"] = (rollout == 0).double().mean().item()
    if band is not None:
        below, above = outside_band(log_ratio, *band)
        statistics["masked_low"] = below.double().mean().item()
        statistics["masked_high"] = above.double().mean().item()
    return statistics


def quantiles(values: Tensor, shares: Iterable[float]) -> list[float | None]:
    """Quantiles of a 1-d tensor, interpolated, of any size (torch.quantile stops at 2**24 elements)."""
    ordered = values.sort().values
    last = len(ordered) - 1
    if last < 0:
        return [None for _ in shares]
    results: list[float | None] = []
    for share in shares:
        lower = math.floor(share * last)
        upper = min(lower + 1, last)
        results.append(torch.lerp(ordered[lower], ordered[upper], share * last - lower).item())
    return results


def log_ratio_histogram(log_ratio: Tensor) -> list[int]:
    """Counts of a 1-d tensor of log-ratios in the bins of `LOG_RATIO_EDGES` (62 of them)."""
    edges = torch.tensor(LOG_RATIO_EDGES, dtype=log_ratio.dtype, device=log_ratio.device)
    bins = torch.bucketize(log_ratio, edges, right=True)
    return torch.bincount(bins, minlength=len(edges) + 1).tolist()


@torch.no_grad()
def staleness_statistics(
    policy_versions: Tensor, action_mask: Tensor, trainer_version: int
) -> dict[str, float | int | list[int] | None]:
    """How many versions behind the trainer each action token was sampled.

    policy_versions int [batch, tokens]; trainer_version: the version the update starts from. Keys:
    staleness_mean, staleness_p95, staleness_max (versions; None without action tokens), staleness_histogram
    (64 counts; the last bin holds 63 and more). Raises ValueError for a token newer than the trainer.
    """
    lag = trainer_version - policy_versions[action_mask.bool()]
    if (lag < 0).any():
        raise ValueError(
            f"a token of version {trainer_version - int(lag.min())} is newer than "
            f"the trainer's {trainer_version}"
        )
    histogram = torch.bincount(lag.clamp(max=STALENESS_BINS - 1), minlength=STALENESS_BINS).tolist()
    (p95,) = quantiles(lag.double(), [0.95])
    return {
        "staleness_mean": lag.double().mean().item() if len(lag) else None,
        "staleness_p95": p95,
        "staleness_max": int(lag.max()) if len(lag) else None,
        "staleness_histogram": histogram,
    }


@torch.no_grad()
def gradient_norms(named_parameters: Iterable[tuple[str, Parameter]]) -> dict[str, float]:
    """Euclidean norms of the gradients of all parameters, of those of attention modules, and of the rest.

    Keys "all", "attention", "rest". Parameters without a gradient (frozen ones) count as 0. Call it before
    clipping.
    """
    squares: dict[bool, list[Tensor]] = {True: [], False: []}
    for name, parameter in named_parameters:
        if parameter.grad is not None:
            squares[is_attention_parameter(name)].append(parameter.grad)
    attention, rest = (_norm(squares[kind]) for kind in (True, False))
    return {"all": math.hypot(attention, rest), "attention": attention, "rest": rest}


def _norm(gradients: list[Tensor]) -> float:
    return torch.nn.utils.get_total_norm(gradients).item() if gradients else 0.0


def _exp(value: float | None) -> float | None:
    return None if value is None else math.exp(min(value, 700.0))
