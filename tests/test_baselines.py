"""Group normalisation, running-mean baselines and whitening."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sao.advantages import RunningMean, group_normalized, whiten, zero_variance_groups

NAN = float("nan")


def row(*numbers: float) -> Tensor:
    return torch.tensor([numbers], dtype=torch.float32)


def mask_of(*numbers: int) -> Tensor:
    return torch.tensor([numbers], dtype=torch.bool)


# --- Whitening ---------------------------------------------------------------------------------------------


def test_whitening_divides_by_n_minus_one():
    torch.testing.assert_close(
        whiten(row(1, 2, NAN), mask_of(1, 1, 0)), row(-0.7071, 0.7071, 0), atol=1e-4, rtol=0
    )


def test_whitening_of_none_one_or_equal_tokens_is_finite():
    for mask, advantages in (
        (mask_of(0, 1, 0), row(NAN, 3, NAN)),
        (mask_of(0, 0, 0), row(1, 2, 3)),
        (mask_of(1, 1, 1), row(2, 2, 2)),
    ):
        assert whiten(advantages, mask).tolist() == [[0, 0, 0]]


def test_whitening_is_over_the_whole_batch():
    advantages, mask = torch.randn(6, 9), torch.rand(6, 9) < 0.5
    whitened = whiten(advantages, mask)[mask]
    assert whitened.mean().item() == pytest.approx(0, abs=1e-6)
    assert whitened.std().item() == pytest.approx(1, rel=1e-5)


# --- Group normalisation -----------------------------------------------------------------------------------


def test_group_deviation_divides_by_n_minus_one():
    result = group_normalized(torch.tensor([1.0, 0, 0, 0]), torch.zeros(4, dtype=torch.long))
    torch.testing.assert_close(result, torch.tensor([1.5, -0.5, -0.5, -0.5]), atol=1e-5, rtol=0)


def test_group_of_equal_rewards_gets_zeros_and_is_counted():
    rewards = torch.tensor([1.0, 1, 1, 1, 0, 1, 0.1, 0.1, 0.1])
    groups = torch.tensor([4, 4, 4, 4, 7, 7, 9, 9, 9])
    result = group_normalized(rewards, groups)
    assert result[[0, 1, 2, 3, 6, 7, 8]].tolist() == [0] * 7
    assert zero_variance_groups(rewards, groups).tolist() == [4, 9]


def test_nearly_equal_rewards_need_two_passes():
    rewards = torch.tensor([1, 1.00001, 1, 1])
    result = group_normalized(rewards, torch.zeros(4, dtype=torch.long))
    centred = rewards.double() - rewards.double().mean()
    torch.testing.assert_close(result, (centred / (centred.square().sum().div(3).sqrt() + 1e-6)).float())
    assert result.abs().max().item() < 1.6


def test_invalid_rows_leave_the_group():
    rewards, groups = torch.tensor([1.0, 0, NAN]), torch.tensor([3, 3, 3])
    valid = torch.tensor([True, True, False])
    result = group_normalized(rewards, groups, valid)
    torch.testing.assert_close(result, torch.tensor([0.7071, -0.7071, 0]), atol=1e-4, rtol=0)


def test_group_of_one_valid_member_gets_zero():
    rewards, groups = torch.tensor([1.0, 0, 5]), torch.tensor([0, 0, 1])
    assert group_normalized(rewards, groups, torch.tensor([True, False, True])).tolist() == [0, 0, 0]


def test_groups_are_found_by_id_whatever_size_and_order():
    rewards = torch.tensor([1.0, 0, 1, 0, 0, 1, 0, 0])
    groups = torch.tensor([5, 2, 5, 2, 2, 2, 5, 2])  # three of one prompt, five of another, interleaved
    result = group_normalized(rewards, groups)
    for group in (2, 5):
        members = rewards[groups == group].double()
        expected = (members - members.mean()) / (members.std() + 1e-6)
        torch.testing.assert_close(result[groups == group], expected.float())


def test_dynamic_sampling_looks_at_raw_rewards():
    groups = torch.zeros(4, dtype=torch.long)
    raw, shaped = torch.tensor([1.0, 1, 1, 1]), torch.tensor([1, 0.9, 0.8, 0.7])
    assert zero_variance_groups(raw, groups).tolist() == [0]
    assert zero_variance_groups(shaped, groups).tolist() == []


def test_group_without_a_valid_member_is_a_zero_variance_group():
    valid = torch.tensor([False, False, True, True])
    assert zero_variance_groups(torch.tensor([0.0, 1, 0, 1]), torch.tensor([0, 0, 1, 1]), valid).tolist() == [
        0
    ]


@given(seed=st.integers(0, 2**31), rows=st.integers(1, 20))
@settings(max_examples=40, deadline=None)
def test_permuting_rows_permutes_group_advantages(seed, rows):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(rows, generator=generator)
    groups = torch.randint(0, 5, (rows,), generator=generator)
    valid = torch.rand(rows, generator=generator) < 0.8
    order = torch.randperm(rows, generator=generator)
    torch.testing.assert_close(
        group_normalized(rewards[order], groups[order], valid[order]),
        group_normalized(rewards, groups, valid)[order],
    )


# --- Running mean ------------------------------------------------------------------------------------------


def test_baseline_leaves_the_current_reward_out():
    mean = RunningMean(window=8, per_prompt=True)
    baselines = []
    for reward in (1, 0, 1, 1):
        baselines.append(mean.baseline("a"))
        mean.update("a", reward)
    assert baselines == pytest.approx([0, 1, 0.5, 2 / 3])


def test_prompts_have_windows_of_their_own_and_a_first_visit_takes_the_mean_of_all():
    mean = RunningMean(window=8, per_prompt=True)
    for reward in (1, 1, 0):
        mean.update("a", reward)
    assert mean.baseline("b") == pytest.approx(2 / 3)
    mean.update("b", 0)
    assert mean.baseline("b") == 0
    assert mean.baseline("a") == pytest.approx(2 / 3)
    assert mean.baseline("c") == pytest.approx(2 / 4)


def test_window_drops_the_oldest_reward():
    mean = RunningMean(window=8, per_prompt=True)
    for reward in (1, *[0] * 7):
        mean.update("a", reward)
    assert mean.baseline("a") == pytest.approx(1 / 8)
    mean.update("a", 0)
    assert mean.baseline("a") == 0


def test_one_window_for_all_prompts():
    mean = RunningMean(window=3, per_prompt=False)
    for prompt, reward in zip("abcd", (1, 0, 0, 1), strict=True):
        mean.update(prompt, reward)
    assert mean.baseline("e") == pytest.approx(1 / 3)


def test_running_mean_survives_a_checkpoint():
    mean = RunningMean(window=2, per_prompt=True)
    for prompt, reward in zip("aaabb", (1, 0, 0, 1, 0.25), strict=True):
        mean.update(prompt, reward)
    resumed = RunningMean(window=2, per_prompt=True)
    resumed.load_state_dict(json.loads(json.dumps(mean.state_dict())))
    for prompt in "abc":
        assert resumed.baseline(prompt) == mean.baseline(prompt)
    resumed.update("a", 1)
    assert resumed.baseline("a") == 0.5
    assert mean.baseline("a") == 0  # the state is a copy


def test_running_mean_refuses_another_runs_state_and_empty_windows():
    with pytest.raises(ValueError, match="window 3"):
        RunningMean(window=3, per_prompt=True).load_state_dict(RunningMean(2, True).state_dict())
    with pytest.raises(ValueError, match="window 0"):
        RunningMean(window=0, per_prompt=True)
