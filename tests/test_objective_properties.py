"""Properties that every policy loss has on any batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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
CLIP = {"clip_low": 0.2, "clip_high": 0.28}
NAN, INF = float("nan"), float("inf")

Loss = Callable[[dict[str, Tensor], float | None], Tensor]


def _with(loss, names: tuple[str, ...], **options) -> Loss:
    def call(batch: dict[str, Tensor], normalizer: float | None) -> Tensor:
        result = loss(*(batch[name] for name in names), normalizer=normalizer, **options)
        return result[0] if isinstance(result, tuple) else result

    return call


ROLLOUT = ("logprobs", "rollout", "advantages", "mask")
BOTH = ("logprobs", "old", "rollout", "advantages", "mask")
LOSSES: dict[str, Loss] = {
    "dis": _with(dis_loss, ROLLOUT, **MATH_BAND),
    "ppo_clip": _with(ppo_clip_loss, ("logprobs", "old", "advantages", "mask"), **CLIP),
    "gspo": _with(gspo_loss, ROLLOUT, **CLIP),
    "icepop": _with(icepop_loss, BOTH, band_low=0.5, band_high=5.0, **CLIP),
    "tis": _with(tis_loss, BOTH, cap=2.0, **CLIP),
    "positive_example": _with(positive_example_loss, ("logprobs", "mask", "positive")),
}


def random_batch(seed: int, rows: int, tokens: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    rollout = -normal(rows, tokens).abs()
    return {
        "rollout": rollout,
        "old": rollout + 0.5 * normal(rows, tokens),
        "logprobs": rollout + normal(rows, tokens),
        "advantages": normal(rows, tokens),
        "mask": torch.rand(rows, tokens, generator=generator) < 0.6,
        "positive": torch.rand(rows, generator=generator) < 0.5,
    }


def loss_and_gradient(
    loss: Loss, batch: dict[str, Tensor], normalizer: float | None = None
) -> tuple[Tensor, Tensor]:
    logprobs = batch["logprobs"].clone().requires_grad_()
    value = loss({**batch, "logprobs": logprobs}, normalizer)
    value.backward()
    return value.detach(), logprobs.grad


batches = st.builds(random_batch, st.integers(0, 2**31), st.integers(1, 6), st.integers(1, 8))


@pytest.mark.parametrize("name", LOSSES)
@given(batch=batches, data=st.data())
@settings(max_examples=30, deadline=None)
def test_any_split_into_micro_batches_gives_the_same_gradient(name, batch, data):
    rows = len(batch["mask"])
    total = int(batch["mask"].sum())
    value, gradient = loss_and_gradient(LOSSES[name], batch)
    cuts = sorted(data.draw(st.sets(st.integers(1, rows), max_size=rows)) | {0, rows})
    parts = [
        loss_and_gradient(LOSSES[name], {key: tensor[start:end] for key, tensor in batch.items()}, total)
        for start, end in pairwise(cuts)
    ]
    torch.testing.assert_close(sum(part[0] for part in parts), value)
    torch.testing.assert_close(torch.cat([part[1] for part in parts]), gradient)


@pytest.mark.parametrize("name", LOSSES)
@given(batch=batches, junk=st.sampled_from([NAN, INF, -INF, 1e30]))
@settings(max_examples=30, deadline=None)
def test_positions_off_the_mask_may_hold_anything(name, batch, junk):
    value, gradient = loss_and_gradient(LOSSES[name], batch)
    floats = ("logprobs", "rollout", "old", "advantages")
    spoilt = {**batch, **{key: batch[key].masked_fill(~batch["mask"], junk) for key in floats}}
    spoilt_value, spoilt_gradient = loss_and_gradient(LOSSES[name], spoilt)
    assert torch.equal(spoilt_value, value)
    assert torch.equal(spoilt_gradient, gradient)
    assert (gradient[~batch["mask"]] == 0).all()


@pytest.mark.parametrize("name", LOSSES)
@given(batch=batches, seed=st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_permuting_rows_permutes_gradients(name, batch, seed):
    order = torch.randperm(len(batch["mask"]), generator=torch.Generator().manual_seed(seed))
    value, gradient = loss_and_gradient(LOSSES[name], batch)
    permuted = loss_and_gradient(LOSSES[name], {key: tensor[order] for key, tensor in batch.items()})
    torch.testing.assert_close(permuted[0], value)
    torch.testing.assert_close(permuted[1], gradient[order])


@pytest.mark.parametrize("name", LOSSES)
def test_padding_rows_change_nothing(name):
    batch = random_batch(seed=3, rows=5, tokens=7)
    padded = {
        key: torch.cat([tensor, torch.zeros((3, *tensor.shape[1:]), dtype=tensor.dtype)])
        for key, tensor in batch.items()
    }
    value, gradient = loss_and_gradient(LOSSES[name], batch)
    padded_value, padded_gradient = loss_and_gradient(LOSSES[name], padded)
    torch.testing.assert_close(padded_value, value)
    torch.testing.assert_close(padded_gradient[:5], gradient)
    assert (padded_gradient[5:] == 0).all()


@pytest.mark.parametrize("name", LOSSES)
def test_extreme_log_probabilities_keep_loss_and_gradient_finite(name):
    batch = random_batch(seed=4, rows=4, tokens=6)
    batch["mask"][:] = True
    batch["logprobs"][:2] -= 1000
    batch["logprobs"][2:] += 1000
    value, gradient = loss_and_gradient(LOSSES[name], batch)
    assert value.isfinite()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", ["ppo_clip", "gspo", "icepop", "tis", "positive_example"])
def test_gradient_is_the_derivative_of_the_loss(name):
    batch = random_batch(seed=5, rows=3, tokens=4)
    batch["logprobs"] = batch["logprobs"].requires_grad_()
    assert torch.autograd.gradcheck(
        lambda logprobs: LOSSES[name]({**batch, "logprobs": logprobs}, None), (batch["logprobs"],)
    )
