"""Policy losses against values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sao.objectives import (
    dis_loss,
    gspo_loss,
    icepop_loss,
    positive_example_loss,
    ppo_clip_loss,
    tis_loss,
)

MATH_BAND = {"eps_low": 0.3, "eps_high": 5.0}
CODING_BAND = {"eps_low": 0.8, "eps_high": 3.0}
CLIP = {"clip_low": 0.2, "clip_high": 0.28}
NAN, INF = float("nan"), float("inf")


def ones(tensor: Tensor) -> Tensor:
    return torch.ones_like(tensor, dtype=torch.bool)


def row(*numbers: float) -> Tensor:
    return torch.tensor([numbers], dtype=torch.float32)


def at_ratios(*ratios: float, reference: float = -2.0) -> tuple[Tensor, Tensor]:
    """Log-probabilities that require a gradient, and reference ones, with the given ratios."""
    old = torch.full((1, len(ratios)), reference)
    return (old + row(*ratios).log()).requires_grad_(), old


# --- DIS ---------------------------------------------------------------------------------------------------


def test_dis_weights_are_ratios_inside_the_band_and_all_action_tokens_divide():
    logprobs, rollout = at_ratios(0.7, 0.8, 2.0, 6.0)
    loss, stats = dis_loss(logprobs, rollout, row(1, 1, 1, 1), ones(rollout), **MATH_BAND)
    loss.backward()
    torch.testing.assert_close(logprobs.grad, row(0, -0.8 / 4, -2.0 / 4, 0))
    expected = -(0.8 * (-2 + math.log(0.8)) + 2 * (-2 + math.log(2))) / 4
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    kept = 1 - (stats["masked_low"] + stats["masked_high"]) / stats["action_tokens"]
    assert kept.item() == pytest.approx(0.5)


@pytest.mark.parametrize("reference", [-0.01, -1.0, -2.0, -5.0, -9.0])
def test_dis_band_is_open_at_both_ends(reference):
    logprobs, rollout = at_ratios(0.7, 0.7001, 5.999, 6.0, reference=reference)
    loss, stats = dis_loss(logprobs, rollout, row(1, 1, 1, 1), ones(rollout), **MATH_BAND)
    loss.backward()
    assert (logprobs.grad != 0).tolist() == [[False, True, True, False]]
    assert (stats["masked_low"].item(), stats["masked_high"].item()) == (1, 1)


def test_dis_coding_band_is_from_one_fifth_to_four():
    logprobs, rollout = at_ratios(0.2, 0.201, 3.99, 4.0)
    loss, _ = dis_loss(logprobs, rollout, row(1, 1, 1, 1), ones(rollout), **CODING_BAND)
    loss.backward()
    assert (logprobs.grad != 0).tolist() == [[False, True, True, False]]


def test_dis_epsilon_of_one_or_more_leaves_no_lower_edge():
    logprobs, rollout = at_ratios(1e-6, 2.0)
    _, stats = dis_loss(logprobs, rollout, row(1, 1), ones(rollout), eps_low=1.0, eps_high=3.0)
    assert stats["masked_low"].item() == 0


@pytest.mark.parametrize(("ratio", "advantage"), [(10.0, 1.0), (10.0, -1.0), (0.1, 1.0), (0.1, -1.0)])
def test_dis_masks_instead_of_clamping_on_both_sides_whatever_the_sign(ratio, advantage):
    logprobs, rollout = at_ratios(ratio)
    loss, _ = dis_loss(logprobs, rollout, row(advantage), ones(rollout), **MATH_BAND)
    loss.backward()
    assert loss.item() == 0
    assert logprobs.grad.item() == 0


@pytest.mark.parametrize("log_ratio", [100.0, 1000.0, -100.0, -1000.0, INF, -INF])
def test_dis_far_off_tokens_add_exactly_nothing(log_ratio):
    logprobs = row(-1.0, -1.0).requires_grad_()
    rollout = row(-1.0 - log_ratio, -1.0)
    loss, _ = dis_loss(logprobs, rollout, row(3, 1), ones(rollout), **MATH_BAND)
    loss.backward()
    assert loss.item() == pytest.approx(0.5)
    assert logprobs.grad.tolist() == [[0, -0.5]]


def test_dis_policy_that_rules_a_token_out_adds_exactly_nothing():
    logprobs = row(-INF, -1.0).requires_grad_()
    loss, _ = dis_loss(logprobs, row(-1, -1), row(3, 1), ones(logprobs), **MATH_BAND)
    loss.backward()
    assert loss.item() == pytest.approx(0.5)
    assert logprobs.grad.tolist() == [[0, -0.5]]


def test_dis_missing_logprob_on_an_action_token_shows_as_nan():
    loss, _ = dis_loss(row(-1, -1), row(NAN, -1), row(1, 1), ones(row(1, 1)), **MATH_BAND)
    assert loss.isnan()


def test_dis_batch_without_a_kept_token_has_zero_loss_and_gradient():
    logprobs, rollout = at_ratios(0.1, 50.0)
    for mask in (ones(rollout), ~ones(rollout)):
        logprobs.grad = None
        loss, _ = dis_loss(logprobs, rollout, row(1, 1), mask, **MATH_BAND)
        loss.backward()
        assert loss.item() == 0
        assert logprobs.grad.tolist() == [[0, 0]]


def test_dis_ratio_is_to_the_rollout_policy():
    logprobs = row(-1.0).requires_grad_()
    old, rollout = row(-1.5), row(-4.0)
    loss, stats = dis_loss(logprobs, rollout, row(1), ones(old), **MATH_BAND)
    assert stats["masked_high"].item() == 1  # e^3 = 20.1
    loss, _ = ppo_clip_loss(logprobs, old, row(-1), ones(old), **CLIP)
    assert loss.item() == pytest.approx(math.exp(0.5))
    loss, _ = tis_loss(logprobs, old, rollout, row(-1), ones(old), cap=100.0, **CLIP)
    assert loss.item() == pytest.approx(math.exp(2.5) * math.exp(0.5), rel=1e-5)


def test_dis_masks_tokens_not_sequences():
    logprobs, rollout = at_ratios(1.0, 1.0, 8.0)
    _, stats = dis_loss(logprobs, rollout, row(1, 1, 1), ones(rollout), **MATH_BAND)
    masked = stats["masked_low"] + stats["masked_high"]
    assert (1 - masked / stats["action_tokens"]).item() == pytest.approx(0.667, abs=1e-3)


def test_dis_weight_carries_no_gradient():
    logprobs, rollout = at_ratios(2.0)
    loss, _ = dis_loss(logprobs, rollout, row(1), ones(rollout), **MATH_BAND)
    loss.backward()
    assert logprobs.grad.item() == pytest.approx(-2.0)  # through the ratio it would be -2 (1 + log pi)


def test_dis_renormalised_sampling_shows_in_every_ratio():
    probabilities = torch.tensor([[0.5, 0.3, 0.15]])
    rollout = (probabilities / probabilities.sum()).log()
    logprobs = probabilities.log().requires_grad_()
    loss, _ = dis_loss(logprobs, rollout, row(1, 1, 1), ones(rollout), **MATH_BAND)
    loss.backward()
    torch.testing.assert_close(logprobs.grad, row(-0.95, -0.95, -0.95) / 3)


# --- PPO clip and its relatives ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, 0),
        (1.27, 1.0, -1.27, -1.27, 0),
        (1.5, 1.0, -1.28, 0.0, 1),
        (1.5, -1.0, 1.5, 1.5, 0),
        (0.5, 1.0, -0.5, -0.5, 0),
        (0.5, -1.0, 0.8, 0.0, 1),
        (0.1, 1.0, -0.1, -0.1, 0),
        (10.0, -1.0, 10.0, 10.0, 0),
    ],
)
def test_ppo_clips_one_side_with_a_higher_upper_bound(ratio, advantage, loss, gradient, clipped):
    logprobs, old = at_ratios(ratio)
    value, stats = ppo_clip_loss(logprobs, old, row(advantage), ones(old), **CLIP)
    value.backward()
    assert value.item() == pytest.approx(loss, rel=1e-5)
    assert logprobs.grad.item() == pytest.approx(gradient, rel=1e-5)
    assert stats["clipped"].item() == clipped
    assert stats["action_tokens"].item() == 1


def test_ppo_clip_cannot_fire_when_the_old_policy_is_the_current_one():
    logprobs = torch.randn(3, 5).requires_grad_()
    advantages = torch.randn(3, 5)
    loss, stats = ppo_clip_loss(logprobs, logprobs.detach(), advantages, ones(logprobs), **CLIP)
    loss.backward()
    assert stats["clipped"].item() == 0
    torch.testing.assert_close(logprobs.grad, -advantages / 15)


def test_gspo_ratio_is_the_geometric_mean_over_action_tokens():
    logprobs = row(-1.0, -5.0, -2.0).requires_grad_()
    rollout = row(-1.2, 0.0, -2.1)
    mask = torch.tensor([[True, False, True]])
    ratio = math.exp((0.2 + 0.1) / 2)
    loss, stats = gspo_loss(logprobs, rollout, row(1, 9, 1), mask, clip_low=0.5, clip_high=0.5)
    loss.backward()
    assert loss.item() == pytest.approx(-ratio)
    # Both tokens carry the ratio, whose derivative is ratio / 2 for either token.
    torch.testing.assert_close(logprobs.grad, row(-ratio / 2, 0, -ratio / 2))
    assert stats["clipped"].item() == 0


def test_gspo_clips_whole_sequences_and_averages_over_action_tokens():
    logprobs = torch.tensor([[-1.0, -1.0, -1.0], [-1.0, -1.0, -1.0]]).requires_grad_()
    rollout = torch.tensor([[-1.001, -1.001, -1.001], [-1.0, -1.0, -1.0]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    loss, stats = gspo_loss(logprobs, rollout, torch.ones(2, 3), mask, clip_low=3e-4, clip_high=4e-4)
    loss.backward()
    assert loss.item() == pytest.approx(-(3 * 1.0004 + 1) / 4)
    assert stats["clipped"].item() == 3
    torch.testing.assert_close(logprobs.grad, torch.tensor([[0, 0, 0], [-0.25, 0, 0]]))


def test_icepop_corrects_inside_its_band_and_drops_outside():
    old = torch.full((1, 4), -2.0)
    rollout = old - row(0.5, 0.6, 4.9, 5.0).log()
    logprobs = old.clone().requires_grad_()
    loss, stats = icepop_loss(
        logprobs, old, rollout, row(1, 1, 1, 1), ones(old), band_low=0.5, band_high=5.0, **CLIP
    )
    loss.backward()
    assert loss.item() == pytest.approx(-(0.6 + 4.9) / 4, rel=1e-5)
    torch.testing.assert_close(logprobs.grad, row(0, -0.6 / 4, -4.9 / 4, 0))
    assert {name: count.item() for name, count in stats.items()} == {
        "action_tokens": 4,
        "clipped": 0,
        "masked_low": 1,
        "masked_high": 1,
    }


def test_tis_caps_the_correction():
    old = torch.full((1, 3), -2.0)
    rollout = old - row(0.1, 1.9, 50.0).log()
    logprobs = old.clone().requires_grad_()
    loss, stats = tis_loss(logprobs, old, rollout, row(1, 1, 1), ones(old), cap=2.0, **CLIP)
    loss.backward()
    torch.testing.assert_close(logprobs.grad, row(-0.1, -1.9, -2.0) / 3)
    assert stats["capped"].item() == 1


def test_corrections_multiply_the_clipped_term():
    logprobs, old = at_ratios(1.5)
    rollout = old - math.log(1.6)
    loss, stats = tis_loss(logprobs, old, rollout, row(1), ones(old), cap=2.0, **CLIP)
    assert loss.item() == pytest.approx(-1.6 * 1.28, rel=1e-5)
    assert stats["clipped"].item() == 1
    loss, stats = icepop_loss(logprobs, old, rollout, row(1), ones(old), band_low=0.5, band_high=5, **CLIP)
    assert loss.item() == pytest.approx(-1.6 * 1.28, rel=1e-5)
    assert stats["clipped"].item() == 1


def test_positive_example_loss_is_on_positive_rows_alone():
    logprobs = torch.tensor([[-1.0, -2.0, NAN], [-3.0, -4.0, -5.0]]).requires_grad_()
    mask = torch.tensor([[True, True, False], [True, True, True]])
    positive = torch.tensor([True, False])
    assert positive_example_loss(logprobs, mask, positive).item() == pytest.approx(3 / 5)
    loss = positive_example_loss(logprobs, mask, positive, normalizer=2)
    loss.backward()
    assert loss.item() == pytest.approx(1.5)
    assert logprobs.grad.tolist() == [[-0.5, -0.5, 0], [0, 0, 0]]


# --- Aggregation -------------------------------------------------------------------------------------------


def test_token_mean_over_ranks_weighs_ranks_by_their_tokens():
    """10 tokens of loss 1 on one rank and 1000 of loss 0 on another make 10 / 1010, not 1 / 2."""
    losses = [
        dis_loss(
            torch.full((1, tokens), -1.0),
            torch.full((1, tokens), -1.0),
            torch.full((1, tokens), advantage),
            torch.ones(1, tokens, dtype=torch.bool),
            normalizer=1010,
            **MATH_BAND,
        )[0].item()
        for tokens, advantage in ((10, 1.0), (1000, 0.0))
    ]
    assert sum(losses) == pytest.approx(0.0099, abs=1e-5)


def test_truncated_row_that_is_masked_leaves_the_denominator():
    logprobs = torch.full((2, 100), -1.0).requires_grad_()
    mask = torch.ones(2, 100, dtype=torch.bool)
    mask[1] = False
    loss, stats = dis_loss(logprobs, logprobs.detach(), torch.ones(2, 100), mask, **MATH_BAND)
    loss.backward()
    assert stats["action_tokens"].item() == 100
    torch.testing.assert_close(logprobs.grad[0], torch.full((100,), -0.01))


def test_right_aligned_rows_use_the_tokens_under_the_mask():
    logprobs = torch.full((1, 5), -1.0).requires_grad_()
    mask = torch.tensor([[False, False, True, True, True]])
    loss, _ = dis_loss(logprobs, logprobs.detach(), row(9, 9, 1, 2, 3), mask, normalizer=1, **MATH_BAND)
    loss.backward()
    assert logprobs.grad.tolist() == [[0, 0, -1, -2, -3]]


def test_shapes_that_would_broadcast_are_refused():
    logprobs = torch.zeros(4, 3)
    with pytest.raises(ValueError, match=r"\[4, 1\] differs from the action mask's \[4, 3\]"):
        dis_loss(logprobs, logprobs, torch.zeros(4, 1), ones(logprobs), **MATH_BAND)
    with pytest.raises(ValueError, match="positive has shape"):
        positive_example_loss(logprobs, ones(logprobs), torch.ones(3, dtype=torch.bool))


def test_half_precision_is_computed_in_float32():
    logprobs = torch.full((1, 3), -1.0, dtype=torch.bfloat16).requires_grad_()
    loss, _ = dis_loss(logprobs, logprobs.detach(), torch.ones(1, 3), ones(logprobs), **MATH_BAND)
    assert loss.dtype == torch.float32
