"""Advantages against hand-worked values and slow loops in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sao.advantages import (
    full_sequence_gae,
    full_sequence_mask,
    length_adaptive_lambda,
    returns,
    skip_observation_gae,
)

NAN, INF = float("nan"), float("inf")


def row(*numbers: float) -> Tensor:
    return torch.tensor([numbers], dtype=torch.float32)


def mask_of(*numbers: int) -> Tensor:
    return torch.tensor([numbers], dtype=torch.bool)


def looped_gae(values, rewards, mask, gamma, lam, final_values=None) -> Tensor:
    """The recursion in float64, one token of one row at a time."""
    result = torch.zeros(values.shape, dtype=torch.float64)
    for i in range(len(values)):
        next_value = 0.0 if final_values is None else final_values[i].item()
        advantage = 0.0
        for t in range(values.shape[1] - 1, -1, -1):
            if mask[i, t]:
                value = values[i, t].item()
                delta = rewards[i, t].item() + gamma * next_value - value
                advantage = delta + gamma * lam[i].item() * advantage
                result[i, t] = advantage
                next_value = value
    return result


# --- Length-adaptive lambda --------------------------------------------------------------------------------


def test_lambda_values():
    lam = length_adaptive_lambda(torch.tensor([1, 4, 10]), alpha=1.5)
    assert lam.dtype == torch.float64
    assert lam.tolist() == pytest.approx([1 / 3, 5 / 6, 14 / 15])


def test_lambda_of_short_trajectories_is_clamped_to_zero():
    lam = length_adaptive_lambda(torch.tensor([1, 10, 19, 20, 21, 40]), alpha=0.05)
    assert lam.tolist() == pytest.approx([0, 0, 0, 0, 1 - 1 / 1.05, 0.5])


@pytest.mark.parametrize(("length", "weight"), [(100, 0.51227), (1000, 0.51330), (131072, 0.51342)])
def test_lambda_keeps_its_precision_over_the_whole_trajectory(length, weight):
    lam = length_adaptive_lambda(torch.tensor([length]), alpha=1.5).item()
    assert lam**length == pytest.approx(weight, abs=1e-5)


@pytest.mark.parametrize(("length", "weight"), [(2, 0.67), (3, 0.60)])
def test_weight_of_the_final_reward_at_the_first_token(length, weight):
    lam = length_adaptive_lambda(torch.tensor([length]), alpha=1.5)
    rewards = torch.zeros(1, length)
    rewards[0, -1] = 1
    mask = torch.ones(1, length, dtype=torch.bool)
    advantages = skip_observation_gae(torch.zeros(1, length), rewards, mask, 1.0, lam)
    assert advantages[0, 0].item() == pytest.approx(weight, abs=0.01)


def test_lambda_refuses_empty_trajectories_and_bad_alpha():
    with pytest.raises(ValueError, match="without action tokens"):
        length_adaptive_lambda(torch.tensor([3, 0]), alpha=1.5)
    with pytest.raises(ValueError, match="alpha"):
        length_adaptive_lambda(torch.tensor([3]), alpha=0.0)


def test_length_counts_neither_observations_nor_padding():
    for padding in (0, 1, 7):
        mask = mask_of(1, 1, 0, 0, 1, 1, *[0] * padding)
        assert length_adaptive_lambda(mask.sum(dim=1), 1.5).item() == pytest.approx(0.8333, abs=1e-4)


# --- Skip-observation GAE ----------------------------------------------------------------------------------


@pytest.mark.parametrize("gap", [0, 1, 3, 200])
def test_two_actions_with_an_observation_between(gap):
    values = row(0.2, 0.4, *[NAN] * gap, 0.6, 0.8)
    rewards = row(0, 0, *[NAN] * gap, 0, 1)
    mask = mask_of(1, 1, *[0] * gap, 1, 1)
    advantages = skip_observation_gae(values, rewards, mask, gamma=1.0, lam=0.5)
    torch.testing.assert_close(advantages, row(0.375, 0.35, *[0] * gap, 0.3, 0.2))


@pytest.mark.parametrize("gap", [0, 1, 5])
def test_observations_do_not_decay_the_advantage(gap):
    mask = mask_of(1, *[0] * gap, 1)
    rewards = row(*[0] * (gap + 1), 2)
    advantages = skip_observation_gae(torch.zeros_like(rewards), rewards, mask, gamma=0.9, lam=0.5)
    assert advantages[0, 0].item() == pytest.approx(0.9)


@pytest.mark.parametrize("junk", [0.0, 99.0, -1e30, NAN, INF])
def test_observation_values_and_rewards_do_not_leak(junk):
    values = row(0.1, 0.2, junk, junk, 0.5)
    rewards = row(0, 0, junk, junk, 1)
    advantages = skip_observation_gae(values, rewards, mask_of(1, 1, 0, 0, 1), gamma=1.0, lam=0.95)
    torch.testing.assert_close(advantages, row(0.83625, 0.775, 0, 0, 0.5))


def test_termination_and_bootstrapped_truncation():
    values, rewards, mask = row(0.2, 0.4), row(0, 0), mask_of(1, 1)
    terminated = skip_observation_gae(values, rewards, mask, 1.0, 1.0)
    torch.testing.assert_close(terminated, row(-0.2, -0.4))
    truncated = skip_observation_gae(values, rewards, mask, 1.0, 1.0, final_values=torch.tensor([0.8]))
    torch.testing.assert_close(truncated, row(0.6, 0.4))


def test_bootstrap_follows_the_last_action_token_of_each_row():
    values = torch.tensor([[0.2, 0.4, NAN, NAN], [NAN, 0.2, NAN, 0.4]])
    mask = torch.tensor([[1, 1, 0, 0], [0, 1, 0, 1]], dtype=torch.bool)
    final_values = torch.tensor([0.8, 0.0])
    advantages = skip_observation_gae(values, torch.zeros(2, 4), mask, 1.0, 1.0, final_values)
    torch.testing.assert_close(advantages, torch.tensor([[0.6, 0.4, 0, 0], [0, -0.2, 0, -0.4]]))


def test_policy_and_critic_have_lambdas_of_their_own():
    values, rewards, mask = row(0.1, 0.2, 0.5), row(0, 0, 1), mask_of(1, 1, 1)
    torch.testing.assert_close(returns(rewards, mask, gamma=1.0), row(1, 1, 1))
    torch.testing.assert_close(skip_observation_gae(values, rewards, mask, 1.0, 0.5), row(0.375, 0.55, 0.5))


def test_critic_that_fits_its_returns_leaves_no_advantage():
    rewards, mask = row(0, 0, 0, 0, 1), mask_of(1, 1, 0, 1, 1)
    targets = returns(rewards, mask, gamma=1.0)
    for lam in (0.0, 0.5, 1.0):
        assert skip_observation_gae(targets, rewards, mask, 1.0, lam).abs().max().item() == 0


def test_rows_have_their_own_lambda():
    values, rewards = torch.zeros(2, 3), torch.tensor([[0.0, 0, 1], [0, 0, 1]])
    mask = torch.ones(2, 3, dtype=torch.bool)
    lam = torch.tensor([0.0, 0.5], dtype=torch.float64)
    advantages = skip_observation_gae(values, rewards, mask, 1.0, lam)
    torch.testing.assert_close(advantages, torch.tensor([[0.0, 0, 1], [0.25, 0.5, 1]]))


def test_rows_without_action_tokens_get_zeros_and_disturb_no_other():
    values = torch.full((2, 3), NAN)
    values[1] = torch.tensor([0.1, 0.2, 0.5])
    rewards = torch.tensor([[NAN, INF, 0], [0, 0, 1]])
    mask = torch.tensor([[False] * 3, [True] * 3])
    advantages = skip_observation_gae(values, rewards, mask, 1.0, torch.tensor([NAN, 0.5]))
    torch.testing.assert_close(advantages, torch.tensor([[0, 0, 0], [0.375, 0.55, 0.5]]))


def test_long_trajectory_is_accurate_in_float32():
    tokens = 131072
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(1, tokens, generator=generator)
    mask = torch.rand(1, tokens, generator=generator) < 0.8
    mask[0, -1] = True
    rewards = torch.zeros(1, tokens)
    rewards[0, -1] = 1
    lam = length_adaptive_lambda(mask.sum(dim=1), 1.5)
    advantages = skip_observation_gae(values, rewards, mask, 1.0, lam)
    chosen = values[mask].double().tolist()
    advantage, expected = 0.0, []
    for value, following in zip(reversed(chosen), [None, *reversed(chosen[1:])], strict=True):
        delta = 1 - value if following is None else following - value
        advantage = delta + lam.item() * advantage
        expected.append(advantage)
    difference = advantages[mask].double() - torch.tensor(expected[::-1], dtype=torch.float64)
    assert difference.abs().max().item() < 3e-6


def test_values_get_no_gradient_and_half_precision_gives_float32():
    values = torch.rand(2, 5, dtype=torch.bfloat16, requires_grad=True)
    advantages = skip_observation_gae(values, torch.zeros(2, 5), torch.ones(2, 5, dtype=torch.bool), 1.0, 0.9)
    assert advantages.dtype == torch.float32
    assert not advantages.requires_grad


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ValueError, match="differs from the action mask"):
        skip_observation_gae(
            torch.zeros(2, 1), torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool), 1.0, 0.9
        )


@st.composite
def episodes(draw) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    shape = (draw(st.integers(1, 5)), draw(st.sampled_from([1, 2, 3, 7, 31, 32, 33, 64, 65, 97, 150])))
    share = draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]))
    lam = torch.rand(shape[0], generator=generator, dtype=torch.float64)
    return {
        "values": torch.randn(shape, generator=generator, dtype=torch.float64),
        "rewards": torch.randn(shape, generator=generator, dtype=torch.float64),
        "mask": torch.rand(shape, generator=generator) < share,
        "lam": draw(st.sampled_from([torch.zeros_like(lam), torch.ones_like(lam), lam, 1 - lam / 100])),
        "final_values": torch.randn(shape[0], generator=generator, dtype=torch.float64),
    }


def gae_of(episode: dict[str, Tensor], gamma: float) -> Tensor:
    return skip_observation_gae(
        episode["values"], episode["rewards"], episode["mask"], gamma, episode["lam"], episode["final_values"]
    )


@given(episode=episodes(), gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]))
@settings(max_examples=60, deadline=None)
def test_scan_equals_the_loop(episode, gamma):
    names = ("values", "rewards", "mask")
    expected = looped_gae(*(episode[name] for name in names), gamma, episode["lam"], episode["final_values"])
    torch.testing.assert_close(gae_of(episode, gamma), expected, rtol=1e-10, atol=1e-10)
    single = {name: tensor if name == "mask" else tensor.float() for name, tensor in episode.items()}
    single["lam"] = episode["lam"]
    torch.testing.assert_close(gae_of(single, gamma).double(), expected, rtol=1e-5, atol=3e-5)


@given(episode=episodes(), junk=st.sampled_from([NAN, INF, -INF]))
@settings(max_examples=40, deadline=None)
def test_gae_ignores_whatever_stands_off_the_mask(episode, junk):
    clean = gae_of(episode, 0.9)
    spoilt = dict(episode)
    for name in ("values", "rewards"):
        spoilt[name] = episode[name].masked_fill(~episode["mask"], junk)
    assert torch.equal(gae_of(spoilt, 0.9), clean)
    assert (clean[~episode["mask"]] == 0).all()


@given(episode=episodes(), seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_permuting_rows_permutes_advantages(episode, seed):
    order = torch.randperm(len(episode["mask"]), generator=torch.Generator().manual_seed(seed))
    permuted = {name: tensor[order] for name, tensor in episode.items()}
    assert torch.equal(gae_of(permuted, 0.9), gae_of(episode, 0.9)[order])


@given(episode=episodes(), extra=st.integers(1, 70))
@settings(max_examples=30, deadline=None)
def test_padding_on_either_side_changes_nothing(episode, extra):
    clean = gae_of(episode, 0.9)
    for sides in ((0, extra), (extra, 0)):
        padded = dict(episode)
        for name in ("values", "rewards", "mask"):
            padded[name] = torch.nn.functional.pad(episode[name], sides)
        result = gae_of(padded, 0.9)[:, sides[0] : sides[0] + clean.shape[1]]
        torch.testing.assert_close(result, clean, rtol=1e-12, atol=1e-12)


# --- Returns -----------------------------------------------------------------------------------------------


def test_return_is_not_reset_by_an_observation():
    result = returns(row(0, 0, 0, 0, 0, 1), mask_of(1, 1, 0, 0, 1, 1), gamma=1.0)
    torch.testing.assert_close(result, row(1, 1, 0, 0, 1, 1))


def test_undiscounted_reward_reaches_its_token_alone():
    result = returns(row(0, 0, 10, 0, 0), mask_of(1, 1, 1, 0, 0), gamma=0.0)
    torch.testing.assert_close(result, row(0, 0, 10, 0, 0))


def test_penalties_on_observations_do_not_count():
    penalties = row(0.1, 0.1, 5, 5, 0.1)
    assert returns(penalties, mask_of(1, 1, 0, 0, 1), gamma=1.0)[0, 0].item() == pytest.approx(0.3)


def test_returns_discount_by_action_tokens():
    result = returns(row(0, 7, 0, 1), mask_of(1, 0, 1, 1), gamma=0.5)
    torch.testing.assert_close(result, row(0.25, 0, 0.5, 1))


# --- Full-sequence GAE -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gap", "expected"), [(0, 0.9), (1, 0.405), (5, 0.0166)])
def test_full_sequence_gae_decays_through_observations(gap, expected):
    mask = mask_of(1, *[0] * gap, 1)
    rewards = row(*[0] * (gap + 1), 2)
    advantages = full_sequence_gae(torch.zeros_like(rewards), rewards, mask, gamma=0.9, lam=0.5)
    assert advantages[0, 0].item() == pytest.approx(expected, rel=5e-3)


def test_full_sequence_gae_uses_observation_values_between_actions_only():
    values = row(NAN, 0.1, 0.2, 42, 42, 0.5, NAN)
    rewards = row(NAN, 0, 0, 99, 0, 1, NAN)
    mask = mask_of(0, 1, 1, 0, 0, 1, 0)
    advantages = full_sequence_gae(values, rewards, mask, gamma=1.0, lam=0.95)
    inner = looped_gae(
        values[:, 1:6], rewards[:, 1:6], torch.ones(1, 5, dtype=torch.bool), 1.0, torch.tensor([0.95])
    )
    assert advantages[0, 1].item() == pytest.approx(inner[0, 0].item(), rel=1e-5)
    assert advantages[0, 1].item() > 90  # the observation's reward arrives
    assert advantages[0, [0, 3, 4, 6]].tolist() == [0, 0, 0, 0]


def test_full_sequence_mask_runs_from_first_to_last_action_token():
    mask = torch.tensor([[0, 1, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 1]], dtype=torch.bool)
    assert full_sequence_mask(mask).int().tolist() == [[0, 1, 1, 1, 1, 0], [0] * 6, [1] * 6]


def test_weight_of_a_distant_reward_tends_to_its_limit():
    tokens = 4000
    mask = torch.ones(1, tokens, dtype=torch.bool)
    rewards = torch.zeros(1, tokens)
    rewards[0, -1] = 1
    lam = length_adaptive_lambda(mask.sum(dim=1), 1.5)
    first = skip_observation_gae(torch.zeros(1, tokens), rewards, mask, 1.0, lam)[0, 0].item()
    assert first == pytest.approx(math.exp(-1 / 1.5), abs=2e-4)
