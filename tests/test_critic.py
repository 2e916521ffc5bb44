"""The value model, its frozen parts and its loss."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from sao.critic import (
    ValueModel,
    freeze,
    freeze_all_but_experts_and_head,
    freeze_attention,
    value_loss,
    values_before_tokens,
)

VOCABULARY = 19
NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def policy() -> Qwen3MoeForCausalLM:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=16,
        moe_intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
    )
    return Qwen3MoeForCausalLM(config).eval()


@pytest.fixture
def critic(policy) -> ValueModel:
    return ValueModel.from_policy(policy)


def row(*numbers: float) -> Tensor:
    return torch.tensor([numbers], dtype=torch.float32)


ATTENTION_PARTS = ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
ATTENTION_NAMES = {
    f"backbone.layers.{layer}.self_attn.{part}.weight" for layer in range(2) for part in ATTENTION_PARTS
}


# --- Building ----------------------------------------------------------------------------------------------


def test_values_have_one_number_per_token_and_start_at_zero(critic):
    values = critic(torch.randint(0, VOCABULARY, (3, 5)))
    assert values.shape == (3, 5)
    assert values.dtype == torch.float32
    assert (values == 0).all()


def test_head_is_a_trainable_scalar(critic):
    assert critic.head.weight.shape == (1, 16)
    parameters = dict(critic.named_parameters())
    assert parameters["head.weight"].requires_grad
    assert not any("lm_head" in name for name in parameters)


def test_backbone_is_a_copy_of_the_policys(policy, critic):
    for name, parameter in policy.base_model.named_parameters():
        copied = critic.backbone.get_parameter(name)
        assert torch.equal(copied, parameter)
        assert copied.data_ptr() != parameter.data_ptr()


def test_critic_of_a_frozen_policy_trains(policy):
    policy.requires_grad_(False)
    try:
        assert all(parameter.requires_grad for parameter in ValueModel.from_policy(policy).parameters())
    finally:
        policy.requires_grad_(True)


def test_other_arguments_reach_the_backbone(critic):
    torch.nn.init.ones_(critic.head.weight)
    token_ids = torch.randint(0, VOCABULARY, (1, 6))
    padded = torch.cat([torch.zeros(1, 2, dtype=torch.long), token_ids], dim=1)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1]])
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    values = critic(padded, attention_mask=mask, position_ids=positions)
    torch.testing.assert_close(values[:, 2:], critic(token_ids), atol=1e-5, rtol=1e-5)


def test_value_of_a_prefix_does_not_see_later_tokens(critic):
    torch.nn.init.ones_(critic.head.weight)
    token_ids = torch.arange(6)[None]
    values = critic(token_ids)
    changed = token_ids.clone()
    changed[0, 4] = 11
    torch.testing.assert_close(critic(changed)[:, :4], values[:, :4])
    assert not torch.allclose(critic(changed)[:, 4:], values[:, 4:])


def test_values_are_read_before_their_token():
    assert values_before_tokens(row(0.1, 0.2, 0.3)).tolist() == row(0, 0.1, 0.2).tolist()


def test_saved_critic_has_the_same_values(critic, tmp_path, policy):
    torch.nn.init.normal_(critic.head.weight)
    probe = torch.randint(0, VOCABULARY, (2, 7))
    torch.save(critic.state_dict(), tmp_path / "critic.pt")
    loaded = ValueModel.from_policy(policy)
    loaded.load_state_dict(torch.load(tmp_path / "critic.pt"))
    torch.testing.assert_close(loaded(probe), critic(probe), atol=1e-5, rtol=0)


# --- Freezing ----------------------------------------------------------------------------------------------


def test_frozen_attention_is_every_projection_and_qk_norm(critic):
    assert set(freeze_attention(critic)) == ATTENTION_NAMES
    frozen = {name for name, parameter in critic.named_parameters() if not parameter.requires_grad}
    assert frozen == ATTENTION_NAMES


def test_all_but_experts_and_head_leaves_those_two(critic):
    frozen = freeze_all_but_experts_and_head(critic)
    trained = {name for name, parameter in critic.named_parameters() if parameter.requires_grad}
    assert trained == {
        "head.weight",
        "head.bias",
        *(
            f"backbone.layers.{i}.mlp.experts.{part}"
            for i in range(2)
            for part in ("gate_up_proj", "down_proj")
        ),
    }
    assert trained | set(frozen) == {name for name, _ in critic.named_parameters()}
    assert "backbone.layers.0.mlp.gate.weight" in frozen


def test_freeze_by_name(critic):
    assert freeze(critic, "none") == []
    assert all(parameter.requires_grad for parameter in critic.parameters())
    assert set(freeze(critic, "attention")) == ATTENTION_NAMES
    assert len(freeze(critic, "all_but_experts_and_head")) > len(ATTENTION_NAMES)
    with pytest.raises(ValueError, match="everything"):
        freeze(critic, "everything")


def test_freezing_what_is_not_there_is_an_error(policy):
    with pytest.raises(ValueError, match="no attention parameters"):
        freeze_attention(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="no expert parameters"):
        freeze_all_but_experts_and_head(torch.nn.ModuleDict({"head": torch.nn.Linear(2, 1)}))
    with pytest.raises(ValueError, match="no value head parameters"):
        freeze_all_but_experts_and_head(policy)


def test_frozen_parameters_stay_bit_identical_in_training(critic):
    frozen = set(freeze_attention(critic))
    before = {name: parameter.detach().clone() for name, parameter in critic.named_parameters()}
    trained = [parameter for parameter in critic.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.1)
    token_ids = torch.arange(2 * 12).reshape(2, 12) % VOCABULARY
    mask = torch.ones(2, 12, dtype=torch.bool)
    for _ in range(3):
        optimizer.zero_grad()
        value_loss(critic(token_ids), torch.ones(2, 12), mask).backward()
        optimizer.step()
    changed = {
        name for name, parameter in critic.named_parameters() if not torch.equal(parameter, before[name])
    }
    assert changed.isdisjoint(frozen)
    assert changed == set(before) - frozen
    in_optimizer = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    assert not any(
        id(parameter) in in_optimizer for name, parameter in critic.named_parameters() if name in frozen
    )


# --- Value loss --------------------------------------------------------------------------------------------


def test_value_loss_is_the_full_mean_squared_error():
    values = row(2, 0, 0, 0, NAN).requires_grad_()
    mask = torch.tensor([[True] * 4 + [False]])
    loss = value_loss(values, row(0, 0, 0, 0, INF), mask)
    loss.backward()
    assert loss.item() == 1.0
    assert values.grad.tolist() == [[1, 0, 0, 0, 0]]


@pytest.mark.parametrize("split", [[4], [1, 3], [2, 2], [1, 1, 1, 1]])
def test_value_loss_of_micro_batches_adds_up(split):
    values, targets = row(2, 0, 0, 0), torch.zeros(1, 4)
    parts = zip(values.split(split, dim=1), targets.split(split, dim=1), strict=True)
    losses = [value_loss(v, r, torch.ones_like(v, dtype=torch.bool), normalizer=4) for v, r in parts]
    assert sum(losses).item() == 1.0


def test_value_clipping_takes_the_larger_error_and_is_off_by_default():
    values = row(0.9).requires_grad_()
    mask = torch.tensor([[True]])
    clipped = value_loss(values, row(1), mask, old_values=row(0), clip=0.5)
    clipped.backward()
    assert clipped.item() == pytest.approx(0.25)
    assert values.grad.item() == 0
    assert value_loss(values, row(1), mask).item() == pytest.approx(0.01)


def test_value_clipping_inside_the_range_is_the_plain_loss():
    values = row(0.3, 0.9, -0.8).requires_grad_()
    old, targets, mask = row(0.1, 1.0, 0), row(1, 0, 1), torch.ones(1, 3, dtype=torch.bool)
    value_loss(values, targets, mask, normalizer=1, old_values=old, clip=0.5).backward()
    torch.testing.assert_close(values.grad, row(-1.4, 1.8, -3.6))


def test_value_loss_refuses_clipping_without_old_values_and_shapes_that_broadcast():
    mask = torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="old_values"):
        value_loss(torch.zeros(2, 3), torch.zeros(2, 3), mask, clip=0.2)
    with pytest.raises(ValueError, match="one shape"):
        value_loss(torch.zeros(2, 3), torch.zeros(2, 1), mask)


def test_value_loss_without_action_tokens_is_zero():
    values = torch.full((1, 3), NAN).requires_grad_()
    loss = value_loss(values, torch.zeros(1, 3), torch.zeros(1, 3, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0
    assert values.grad.tolist() == [[0, 0, 0]]


@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 6),
    clip=st.sampled_from([None, 0.2]),
    junk=st.sampled_from([0.0, NAN, INF, -INF]),
    data=st.data(),
)
@settings(max_examples=50, deadline=None)
def test_any_split_and_any_junk_off_the_mask_give_the_same_gradient(seed, rows, clip, junk, data):
    generator = torch.Generator().manual_seed(seed)
    values, old, targets = torch.randn(3, rows, 5, generator=generator, dtype=torch.float64)
    mask = torch.rand(rows, 5, generator=generator) < 0.6

    def gradient(part: slice, fill: float | None) -> Tensor:
        tensors = [tensor[part] for tensor in (values, old, targets)]
        if fill is not None:
            tensors = [tensor.masked_fill(~mask[part], fill) for tensor in tensors]
        values_part = tensors[0].requires_grad_()
        count = mask.sum()
        value_loss(values_part, tensors[2], mask[part], count, old_values=tensors[1], clip=clip).backward()
        return values_part.grad

    whole = gradient(slice(None), None)
    cuts = sorted(data.draw(st.sets(st.integers(1, rows), max_size=rows)) | {0, rows})
    parts = [gradient(slice(start, end), junk) for start, end in pairwise(cuts)]
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-9, rtol=1e-9)
    assert (whole[~mask] == 0).all()
