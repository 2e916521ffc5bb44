"""Training metrics against values worked out independently."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sao.metrics import (
    STALENESS_BINS,
    explained_variance,
    gradient_norms,
    quantiles,
    ratio_statistics,
    staleness_statistics,
)
from sao.runlog_schema import LOG_RATIO_EDGES

NAN = float("nan")


def row(*numbers: float) -> torch.Tensor:
    return torch.tensor([numbers], dtype=torch.float32)


def every(tensor: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(tensor, dtype=torch.bool)


# --- Explained variance ------------------------------------------------------------------------------------


def test_explained_variance_by_hand():
    values, returns = row(0.2, 0.2, 0.8, 0.8), row(0, 0, 1, 1)
    assert explained_variance(values, returns, every(values)) == pytest.approx(0.84)


def test_explained_variance_pools_trajectories():
    values = torch.tensor([[0.2, 0.2], [0.8, 0.8]])  # each row's return is constant
    returns = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    assert explained_variance(values, returns, every(values)) == pytest.approx(0.84)
    weighted = torch.tensor([[True, False], [True, True]])
    assert explained_variance(values, returns, weighted) == pytest.approx(0.84)


def test_explained_variance_ignores_tokens_off_the_mask():
    values, returns = row(0.2, NAN, 0.2, 0.8, 0.8), row(0, NAN, 0, 1, 1)
    assert explained_variance(values, returns, ~returns.isnan()) == pytest.approx(0.84)


@pytest.mark.parametrize("reward", [0.0, 0.1, 1.0])
def test_explained_variance_of_a_constant_return_is_undefined(reward):
    returns = torch.full((3, 7), reward)
    assert explained_variance(torch.rand(3, 7), returns, every(returns)) is None
    assert explained_variance(torch.rand(3, 7), returns, ~every(returns)) is None


def test_explained_variance_of_nearly_equal_returns_is_exact():
    returns = row(1, 1.00001, 1, 1)
    assert explained_variance(returns, returns, every(returns)) == 1.0
    assert explained_variance(torch.zeros(1, 4), returns, every(returns)) == pytest.approx(0.0, abs=1e-6)


# --- Ratios ------------------------------------------------------------------------------------------------


def test_ratio_statistics_by_hand():
    ratios = row(0.5, 0.7, 1.0, 2.0, 6.0)
    rollout = torch.full((1, 5), -3.0)
    statistics = ratio_statistics(rollout + ratios.log(), rollout, every(ratios), band=(0.7, 6.0))
    assert statistics["masked_low"] == pytest.approx(2 / 5)
    assert statistics["masked_high"] == pytest.approx(1 / 5)
    assert statistics["ratio_q50"] == pytest.approx(1.0, rel=1e-5)
    assert statistics["ratio_q99"] == pytest.approx(math.exp(math.log(2) + 0.96 * math.log(3)), rel=1e-5)
    assert statistics["effective_sample_size"] == pytest.approx(
        ratios.sum().item() ** 2 / (5 * ratios.square().sum().item()), rel=1e-5
    )
    assert statistics["mean_abs_log_ratio"] == pytest.approx(ratios.log().abs().mean().item(), rel=1e-5)
    assert sum(statistics["ratio_histogram"]) == 5


def test_equal_policies_have_ratio_one_everywhere():
    logprobs = -torch.rand(4, 50)
    statistics = ratio_statistics(logprobs, logprobs, every(logprobs), band=(0.7, 6.0))
    for quantile in ("01", "05", "50", "95", "99"):
        assert statistics[f"ratio_q{quantile}"] == 1.0
    assert statistics["effective_sample_size"] == pytest.approx(1.0)
    assert statistics["mean_abs_log_ratio"] == statistics["masked_low"] == statistics["masked_high"] == 0


def test_far_off_ratios_stay_finite():
    logprobs, rollout = row(-1, -1000, -1), row(-1001, -1, -1)
    statistics = ratio_statistics(logprobs, rollout, every(rollout), band=(0.7, 6.0))
    assert all(math.isfinite(x) for x in statistics.values() if isinstance(x, float))
    assert statistics["effective_sample_size"] == pytest.approx(1 / 3)
    assert statistics["ratio_histogram"][0] == statistics["ratio_histogram"][-1] == 1


def test_log_probabilities_of_exactly_zero_are_counted():
    rollout = row(0, 0, -1, -2)
    assert ratio_statistics(rollout, rollout, every(rollout))["zero_logprob_share"] == 0.5


def test_ratio_statistics_without_tokens_or_band_are_none():
    logprobs = row(-1, NAN)
    statistics = ratio_statistics(logprobs, logprobs, ~every(logprobs))
    assert all(value is None for name, value in statistics.items() if name != "ratio_histogram")
    statistics = ratio_statistics(logprobs, logprobs, torch.tensor([[True, False]]))
    assert statistics["masked_low"] is None and statistics["masked_high"] is None


def test_histograms_of_parts_add_up():
    generator = torch.Generator().manual_seed(0)
    rollout = -torch.rand(6, 30, generator=generator)
    logprobs = rollout + torch.randn(6, 30, generator=generator)
    mask = torch.rand(6, 30, generator=generator) < 0.7
    parts = [
        ratio_statistics(logprobs[s], rollout[s], mask[s])["ratio_histogram"] for s in (slice(2), slice(2, 6))
    ]
    whole = ratio_statistics(logprobs, rollout, mask)["ratio_histogram"]
    assert [a + b for a, b in zip(*parts, strict=True)] == whole
    edges = [-math.inf, *LOG_RATIO_EDGES, math.inf]
    expected, _ = np.histogram((logprobs - rollout)[mask].double().numpy(), bins=edges)
    assert whole == expected.tolist()


@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40),
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=4),
)
@settings(max_examples=50, deadline=None)
def test_quantiles_interpolate_between_values(values, shares):
    expected = np.quantile(values, shares)
    found = quantiles(torch.tensor(values, dtype=torch.float64), shares)
    assert found == pytest.approx(expected.tolist(), rel=1e-9, abs=1e-6)


def test_quantiles_of_a_whole_batch_of_long_trajectories():
    """128 of 128k tokens, as many as torch.quantile takes, and one token more."""
    values = torch.zeros(2**24 + 1)
    values[: 2**23] = -1
    assert quantiles(values, (0.01, 0.49, 0.51, 0.99)) == [-1, -1, 0, 0]


# --- Staleness ---------------------------------------------------------------------------------------------


def test_staleness_counts_versions_behind_the_trainer():
    versions = torch.tensor([[-1, 3, 3, -1, 5], [-1, 7, 7, 7, -1]])
    statistics = staleness_statistics(versions, versions >= 0, trainer_version=7)
    assert statistics["staleness_mean"] == pytest.approx((4 + 4 + 2) / 6)
    assert statistics["staleness_max"] == 4
    assert statistics["staleness_p95"] == pytest.approx(4.0)
    assert statistics["staleness_histogram"][:5] == [3, 0, 1, 0, 2]
    assert len(statistics["staleness_histogram"]) == STALENESS_BINS


def test_staleness_beyond_the_last_bin_is_kept_in_it():
    versions = torch.tensor([[0, 0, 500]])
    statistics = staleness_statistics(versions, every(versions), trainer_version=500)
    assert statistics["staleness_max"] == 500
    assert statistics["staleness_histogram"][-1] == 2


def test_staleness_without_tokens_and_tokens_from_the_future():
    versions = torch.tensor([[-1, 9]])
    assert staleness_statistics(versions, versions > 9, 9)["staleness_mean"] is None
    with pytest.raises(ValueError, match="version 9 is newer than the trainer's 8"):
        staleness_statistics(versions, versions >= 0, 8)


# --- Gradient norms ----------------------------------------------------------------------------------------


def test_gradient_norms_split_attention_from_the_rest():
    model = torch.nn.ModuleDict(
        {
            "self_attn": torch.nn.Linear(1, 2, bias=False),
            "post_attention_layernorm": torch.nn.Linear(1, 1, bias=False),
            "mlp": torch.nn.Linear(1, 1, bias=False),
        }
    )
    model["self_attn"].weight.grad = torch.tensor([[2.0], [1.0]])
    model["post_attention_layernorm"].weight.grad = torch.tensor([[2.0]])
    norms = gradient_norms(model.named_parameters())
    assert norms == pytest.approx({"all": 3.0, "attention": math.sqrt(5), "rest": 2.0})


def test_frozen_attention_has_gradient_norm_zero():
    model = torch.nn.ModuleDict({"self_attn": torch.nn.Linear(1, 1), "mlp": torch.nn.Linear(1, 1)})
    model["mlp"].weight.grad = torch.tensor([[-4.0]])
    assert gradient_norms(model.named_parameters()) == {"all": 4.0, "attention": 0.0, "rest": 4.0}
