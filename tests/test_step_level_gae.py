"""Step-level GAE against hand-worked values and a slow loop."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sao.advantages import step_last_tokens, step_level_gae

NAN = float("nan")


def row(*numbers: float) -> Tensor:
    return torch.tensor([numbers], dtype=torch.float32)


def mask_of(*numbers: int) -> Tensor:
    return torch.tensor([numbers], dtype=torch.bool)


def looped_step_gae(values, rewards, mask, step_ids, gamma, alpha, step_value) -> Tensor:
    result = torch.zeros(values.shape, dtype=torch.float64)
    for i in range(len(values)):
        steps = [
            [t for t in range(values.shape[1]) if mask[i, t] and step_ids[i, t] == step]
            for step in sorted(set(step_ids[i][mask[i]].tolist()))
        ]
        if not steps:
            continue
        lam = max(1 - 1 / (alpha * len(steps)), 0)
        following, advantage = 0.0, 0.0
        for tokens in reversed(steps):
            numbers = values[i, tokens].double()
            value = (numbers.mean() if step_value == "mean" else numbers[-1]).item()
            delta = rewards[i, tokens].double().sum().item() + gamma * following - value
            advantage = delta + gamma * lam * advantage
            result[i, tokens] = advantage
            following = value
    return result


@pytest.mark.parametrize(("step_value", "steps"), [("mean", [0.3, 0.7]), ("last", [0.4, 0.8])])
def test_step_level_gae_by_hand(step_value, steps):
    values = row(NAN, 0.2, 0.4, NAN, 0.6, 0.8)
    rewards = row(NAN, 0, 0, NAN, 0, 1)
    step_ids = torch.tensor([[-1, 0, 0, -1, 1, 1]])
    lam = 1 - 1 / (1.5 * 2)
    second = 1 - steps[1]
    first = steps[1] - steps[0] + lam * second
    advantages = step_level_gae(values, rewards, step_ids >= 0, step_ids, 1.0, 1.5, step_value)
    torch.testing.assert_close(advantages, row(0, first, first, 0, second, second))


def test_every_step_of_a_trajectory_gets_the_advantage():
    step_ids = torch.tensor([[0, 0, -1, 1, -1, -1, 2, 2, 3]])
    rewards = row(0, 0, 0, 0, 0, 0, 0, 0, 0.5)
    advantages = step_level_gae(torch.zeros(1, 9), rewards, step_ids >= 0, step_ids, 1.0, alpha=1e12)
    torch.testing.assert_close(advantages, 0.5 * (step_ids >= 0).float())


@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 4),
    tokens=st.integers(1, 40),
    alpha=st.sampled_from([0.05, 0.5, 1.5]),
    step_value=st.sampled_from(["mean", "last"]),
)
@settings(max_examples=50, deadline=None)
def test_step_level_gae_equals_the_loop(seed, rows, tokens, alpha, step_value):
    generator = torch.Generator().manual_seed(seed)
    values, rewards = torch.randn(2, rows, tokens, generator=generator, dtype=torch.float64)
    mask = torch.rand(rows, tokens, generator=generator) < 0.7
    new_step = torch.rand(rows, tokens, generator=generator) < 0.3
    step_ids = torch.where(mask, new_step.long().cumsum(1), -1)
    expected = looped_step_gae(values, rewards, mask, step_ids, 0.9, alpha, step_value)
    spoilt = [tensor.masked_fill(~mask, NAN) for tensor in (values, rewards)]
    advantages = step_level_gae(*spoilt, mask, step_ids, 0.9, alpha, step_value)
    torch.testing.assert_close(advantages, expected, rtol=1e-9, atol=1e-9)


def test_last_tokens_of_steps():
    step_ids = torch.tensor([[-1, 0, 0, 1, -1, 2, 2, -1], [-1] * 8, [0, -1, -1, 1, 1, 1, 1, 1]])
    assert step_last_tokens(step_ids >= 0, step_ids).int().tolist() == [
        [0, 0, 1, 1, 0, 0, 1, 0],
        [0] * 8,
        [1, 0, 0, 0, 0, 0, 0, 1],
    ]


def test_unknown_step_value_is_refused():
    with pytest.raises(ValueError, match="first"):
        step_level_gae(row(1), row(1), mask_of(1), torch.tensor([[0]]), 1.0, 1.5, "first")
