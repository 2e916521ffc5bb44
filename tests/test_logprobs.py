"""Token log-probabilities in chunks against the full logits tensor."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sao.logprobs import token_logprobs


def full_logits(
    hidden: Tensor, weight: Tensor, token_ids: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    logprobs = torch.log_softmax(hidden @ weight.T / temperature, dim=-1)
    entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
    return logprobs.gather(-1, token_ids[..., None]).squeeze(-1), entropy


def inputs(
    seed: int, shape: tuple[int, ...], vocabulary: int, width: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(*shape, width, generator=generator, dtype=dtype).requires_grad_()
    weight = torch.randn(vocabulary, width, generator=generator, dtype=dtype).requires_grad_()
    return hidden, weight, torch.randint(0, vocabulary, shape, generator=generator)


@given(
    seed=st.integers(0, 2**31),
    shape=st.sampled_from([(1,), (7,), (16,), (2, 5)]),
    vocabulary=st.integers(1, 40),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    chunk_tokens=st.sampled_from([None, 1, 3, 8, 100]),
)
@settings(max_examples=50, deadline=None)
def test_values_and_gradients_equal_those_of_full_logits(seed, shape, vocabulary, temperature, chunk_tokens):
    hidden, weight, token_ids = inputs(seed, shape, vocabulary, width=6)
    upstream = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    expected, expected_entropy = full_logits(hidden, weight, token_ids, temperature)
    expected_gradients = torch.autograd.grad((expected * upstream).sum(), (hidden, weight))
    logprobs, entropy = token_logprobs(hidden, weight, token_ids, temperature, chunk_tokens)
    gradients = torch.autograd.grad((logprobs * upstream).sum(), (hidden, weight))
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, expected_entropy, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradients, expected_gradients, atol=1e-5, rtol=1e-5)


def test_gradient_is_the_derivative():
    hidden, weight, token_ids = inputs(0, (5,), vocabulary=7, width=3, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda states, head: token_logprobs(states, head, token_ids, 0.7, 2)[0], (hidden, weight)
    )


@pytest.mark.parametrize("needs", [(True, False), (False, True)])
def test_either_input_may_be_frozen(needs):
    hidden, weight, token_ids = inputs(1, (4,), vocabulary=9, width=3)
    token_logprobs(hidden, weight, token_ids)[0].sum().backward()
    expected = hidden.grad, weight.grad
    alone = [
        tensor.detach().requires_grad_(need) for tensor, need in zip((hidden, weight), needs, strict=True)
    ]
    token_logprobs(*alone, token_ids)[0].sum().backward()
    for tensor, need, gradient in zip(alone, needs, expected, strict=True):
        if need:
            torch.testing.assert_close(tensor.grad, gradient)
        else:
            assert tensor.grad is None


def test_nothing_beyond_the_vocabulary_enters_the_normalizer():
    logprobs, entropy = token_logprobs(torch.ones(3, 4), torch.zeros(5, 4), torch.tensor([0, 2, 4]))
    torch.testing.assert_close(logprobs, torch.full((3,), -math.log(5)))
    torch.testing.assert_close(entropy, torch.full((3,), math.log(5)))


def test_log_probability_is_that_of_the_sampled_token():
    probabilities = torch.tensor([[0.9, 0.1], [0.9, 0.1]])
    logprobs, _ = token_logprobs(probabilities.log(), torch.eye(2), torch.tensor([1, 0]))
    torch.testing.assert_close(logprobs.exp(), torch.tensor([0.1, 0.9]))


def test_temperature_must_agree_between_sampler_and_trainer():
    hidden, head, token_ids = torch.tensor([[2.0, 1, 0]]).expand(3, 3), torch.eye(3), torch.arange(3)
    sampled, _ = token_logprobs(hidden, head, token_ids, temperature=0.7)
    trained, _ = token_logprobs(hidden, head, token_ids, temperature=1.0)
    torch.testing.assert_close(
        (trained - sampled).exp(), torch.tensor([0.863, 1.325, 2.033]), atol=1e-3, rtol=0
    )
    assert torch.equal(token_logprobs(hidden, head, token_ids, temperature=0.7)[0], sampled)


def test_entropy_carries_no_gradient():
    hidden, weight, token_ids = inputs(2, (4,), vocabulary=9, width=3)
    assert not token_logprobs(hidden, weight, token_ids)[1].requires_grad


def test_half_precision_is_accumulated_in_float32():
    hidden, weight, token_ids = inputs(3, (64,), vocabulary=500, width=32)
    halves = [tensor.detach().bfloat16().requires_grad_() for tensor in (hidden, weight)]
    logprobs, entropy = token_logprobs(*halves, token_ids, chunk_tokens=10)
    exact = [tensor.detach().double().requires_grad_() for tensor in halves]
    expected, expected_entropy = full_logits(*exact, token_ids, 1.0)
    assert logprobs.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(logprobs.double(), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(entropy.double(), expected_entropy, atol=1e-4, rtol=0)
    logprobs.sum().backward()
    expected.sum().backward()
    for half, reference in zip(halves, exact, strict=True):
        assert half.grad.dtype == torch.bfloat16
        torch.testing.assert_close(half.grad.double(), reference.grad, atol=0.05, rtol=0.02)


def test_large_logits_stay_finite():
    hidden = torch.tensor([[1e4, 0.0], [0.0, 1e4]])
    logprobs, entropy = token_logprobs(hidden, torch.eye(2), torch.tensor([0, 0]))
    assert logprobs.tolist() == [0, -1e4]
    assert entropy.tolist() == [0, 0]


def test_no_tokens_give_empty_results_and_zero_gradients():
    hidden, weight, token_ids = inputs(4, (0,), vocabulary=9, width=3)
    logprobs, entropy = token_logprobs(hidden, weight, token_ids)
    logprobs.sum().backward()
    assert logprobs.shape == entropy.shape == (0,)
    assert weight.grad.abs().max().item() == 0


@pytest.mark.parametrize(
    ("hidden", "token_ids", "options", "message"),
    [
        ((4, 3), (5,), {}, "do not fit"),
        ((4, 2), (4,), {}, "do not fit"),
        ((4, 3), (4,), {"temperature": 0.0}, "temperature"),
        ((4, 3), (4,), {"chunk_tokens": 0}, "chunk_tokens"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(hidden, token_ids, options, message):
    with pytest.raises(ValueError, match=message):
        token_logprobs(
            torch.zeros(hidden), torch.zeros(9, 3), torch.zeros(token_ids, dtype=torch.long), **options
        )
