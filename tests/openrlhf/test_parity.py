"""The real actor classes of OpenRLHF, with DeepSpeed, against the local engine: same batch, same weights."""

import json
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from in_process import Actors, copies, save_policy, save_values
from local_engine import random_trajectories, run_config, tiny_policy
from torch import Tensor
from transformers.models.qwen3_moe import modeling_qwen3_moe

from sao.config import RunConfig
from sao.critic import ValueModel, is_attention_parameter
from sao.local import trainer
from sao.local.model import load_policy
from sao.local.packed_batch import PackedBatch, policy_logprobs
from sao.local.trainer import Trainer
from sao.openrlhf import experience
from sao.openrlhf.run import TrainingRun
from sao.openrlhf.weights import WeightMismatch
from sao.trajectory import Batch, Trajectory

ROWS = (
    "sao",
    "grpo_dis",
    "grpo_vanilla",
    "vapo",
    "sao_full_critic",
    "running_mean",
    "step_average",
    "step_last_token",
    "sao_no_skip",
    "gspo",
    "icepop",
    "tis",
    "dapo",
)
COMPARED = (
    "policy_loss",
    "policy_grad_norm",
    "entropy",
    "masked_low",
    "masked_high",
    "clipped",
    "ratio_q50",
    "effective_sample_size",
    "value_loss",
    "value_mean",
    "critic_grad_norm",
    "critic_grad_norm_attention",
    "critic_grad_norm_rest",
    "explained_variance_before",
    "explained_variance_after",
    "advantage_abs_mean_after",
    "learning_rate",
    "critic_learning_rate",
)


@pytest.fixture(autouse=True)
def results_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls in this process return results, not references to them."""
    monkeypatch.setattr(ray, "get", lambda results: results)


def starting_point(folder: Path) -> tuple[Any, ValueModel]:
    """A policy and a value model with a head that is not zero, in memory and in `folder`."""
    policy = tiny_policy()
    value_model = ValueModel.from_policy(policy)
    torch.nn.init.normal_(value_model.head.weight, std=0.3, generator=torch.Generator().manual_seed(0))
    save_policy(policy, folder)
    save_values(value_model, folder)
    return policy, value_model


def row_config(row: str, **blocks: Any) -> RunConfig:
    """The row with batches of 8, rates large enough to see, and a clip that gradients exceed."""
    training = {"batch_trajectories": 8, "learning_rate": 1e-4}
    optimizer = {"gradient_clip": 0.05}
    return run_config(row, training=training, optimizer=optimizer, **blocks)


def batches(run: RunConfig, policy: Any, count: int) -> list[list[Trajectory]]:
    size = run.sampling.group_size
    return [random_trajectories(policy, 8, seed=seed, group_size=size) for seed in range(count)]


def compare(record: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    for name in COMPARED:
        assert (record.get(name) is None) == (expected.get(name) is None), name
        if expected.get(name) is not None:
            assert record[name] == pytest.approx(expected[name], rel=tolerance, abs=tolerance), name


def compare_tokens(
    found: dict[str, Tensor | None],
    expected: dict[str, Tensor | None],
    trajectories: list[Trajectory],
    tolerance: float,
) -> None:
    """The value before every token but the first, and every action token's log-prob and advantage."""
    batch = Batch.from_trajectories(trajectories)
    places = torch.arange(batch.token_ids.shape[1])
    tokens = (places > 0) & (places < batch.lengths[:, None])
    for name, mask in {
        "trainer_logprobs": batch.action_mask,
        "values": tokens,
        "advantages": batch.action_mask,
    }.items():
        assert (found[name] is None) == (expected[name] is None), name
        if expected[name] is not None:
            torch.testing.assert_close(
                found[name][mask], expected[name][mask], rtol=tolerance, atol=tolerance
            )


class Used:
    """In place of an engine's `estimate_advantages`: keeps what every policy update was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
        self.estimate, self.steps = module.estimate_advantages, []
        monkeypatch.setattr(module, "estimate_advantages", self)

    def __call__(
        self, run: RunConfig, trajectories: Any, batch: Batch, rewards: Tensor, values: Any, mean: Any
    ) -> Any:
        estimates, record = self.estimate(run, trajectories, batch, rewards, values, mean)
        advantages = estimates.expand_as(batch.action_mask)[batch.action_mask]
        ends = () if values is None else (values[0][batch.action_mask], values[1])
        self.steps.append([advantages.clone(), *(part.detach().clone() for part in ends)])
        return estimates, record


def largest_difference(weights: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    assert weights.keys() == expected.keys()
    return max((weights[name].float() - expected[name].float()).abs().max().item() for name in expected)


@pytest.mark.parametrize("packing", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("row", ROWS)
def test_float32_steps_equal_the_local_engines(
    row: str, packing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, value_model = starting_point(tmp_path)
    run = row_config(row)
    actors = Actors(run, tmp_path, packing=packing)
    local = Trainer(run, policy, value_model if run.critic else None)
    maker = actors.maker()
    used, expected = (Used(monkeypatch, module) for module in (experience, trainer))
    for step, trajectories in enumerate(batches(run, policy, 2)):
        compare(maker.update(trajectories, step), local.update(trajectories, step), 1e-5)
        compare_tokens(maker.inspect(trajectories), local.inspect(trajectories), trajectories, 1e-5)
    assert len(used.steps) == len(expected.steps) == (4 if run.critic else 2)
    torch.testing.assert_close(used.steps, expected.steps, rtol=1e-5, atol=1e-5)
    assert largest_difference(actors.policy_weights(), copies(policy)) < 1e-5
    if run.critic:
        assert largest_difference(actors.critic_weights(), copies(value_model)) < 1e-5


@pytest.mark.parametrize(
    ("row", "packing"), [("sao", False), ("sao", True), ("sao_full_critic", False), ("grpo_dis", True)]
)
def test_zero_3_steps_equal_the_local_engines(row: str, packing: bool, tmp_path: Path) -> None:
    policy, value_model = starting_point(tmp_path)
    run = row_config(row)
    maker = Actors(run, tmp_path, packing=packing, zero_stage=3).maker()
    local = Trainer(run, policy, value_model if run.critic else None)
    for step, trajectories in enumerate(batches(run, policy, 2)):
        compare(maker.update(trajectories, step), local.update(trajectories, step), 1e-5)


@pytest.mark.parametrize(("row", "packing", "zero_stage"), [("vapo", False, 2), ("sao", True, 3)])
def test_gradient_checkpointing_changes_nothing(
    row: str, packing: bool, zero_stage: int, tmp_path: Path
) -> None:
    """Both models compute their layers again in backward."""
    policy, value_model = starting_point(tmp_path)
    run = row_config(row)
    actors = Actors(run, tmp_path, packing=packing, zero_stage=zero_stage, checkpointing=True)
    backbones = {actors.policy.actor.model.module.model: 0, actors.critic.critic.module.backbone: 0}
    for backbone in backbones:

        def counted(*_: Any, backbone: Any = backbone) -> None:
            backbones[backbone] += torch._C._current_graph_task_id() != -1  # in backward

        backbone.layers[0].self_attn.register_forward_hook(counted)
    maker, local = actors.maker(), Trainer(run, policy, value_model)
    for step, trajectories in enumerate(batches(run, policy, 2)):
        compare(maker.update(trajectories, step), local.update(trajectories, step), 1e-5)
        compare_tokens(maker.inspect(trajectories), local.inspect(trajectories), trajectories, 1e-5)
    assert all(count > 0 for count in backbones.values())


@pytest.mark.parametrize("row", ["sao_no_dis", "icepop"])
def test_minibatches_equal_the_local_engines(row: str, tmp_path: Path) -> None:
    """Two policy updates on a batch, against log-probs from before the first of them; two of the critic."""
    policy, value_model = starting_point(tmp_path)
    run = row_config(row, minibatches_per_batch=2)
    maker = Actors(run, tmp_path, packing=True).maker()
    local = Trainer(run, policy, value_model)
    for step, trajectories in enumerate(batches(run, policy, 2)):
        compare(maker.update(trajectories, step), local.update(trajectories, step), 1e-5)


def test_clipped_values_equal_the_local_engines(tmp_path: Path) -> None:
    """Three critic updates on a batch, each measured from the values before the first of them."""
    policy, value_model = starting_point(tmp_path)
    run = row_config("sao", critic={"value_clip": 0.002, "updates_per_batch": 3})
    maker = Actors(run, tmp_path, packing=True).maker()
    free = Trainer(row_config("sao", critic={"updates_per_batch": 3}), *map(deepcopy, (policy, value_model)))
    local = Trainer(run, policy, value_model)
    for step, trajectories in enumerate(batches(run, policy, 2)):
        expected = local.update(trajectories, step)
        compare(maker.update(trajectories, step), expected, 1e-5)
        assert free.update(trajectories, step)["value_mean"] != pytest.approx(
            expected["value_mean"], abs=1e-4
        )


def test_a_model_with_dropout_trains_without_it(tmp_path: Path) -> None:
    policy, value_model = starting_point(tmp_path)
    file = tmp_path / "policy" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"attention_dropout": 0.5}))
    run = row_config("sao")
    maker, local = Actors(run, tmp_path).maker(), Trainer(run, policy, value_model)
    for step, trajectories in enumerate(batches(run, policy, 2)):
        compare(maker.update(trajectories, step), local.update(trajectories, step), 1e-5)


def test_bf16_steps_stay_near_the_local_engines(tmp_path: Path) -> None:
    """bf16 keeps eight bits: losses and values agree to a few hundredths, gradient norms to a tenth."""
    policy, value_model = starting_point(tmp_path)
    run = row_config("sao")
    maker = Actors(run, tmp_path, dtype="bf16", packing=True).maker()
    local = Trainer(run, policy, value_model)
    [trajectories] = batches(run, policy, 1)
    record, expected = maker.update(trajectories, 0), local.update(trajectories, 0)
    for name in ("policy_loss", "entropy", "value_loss", "value_mean", "explained_variance_before"):
        assert record[name] == pytest.approx(expected[name], rel=0.05, abs=0.05), name
    for name in ("policy_grad_norm", "critic_grad_norm"):
        assert record[name] == pytest.approx(expected[name], rel=0.1), name


@pytest.mark.parametrize("zero_stage", [2, 3])
def test_critic_only_steps_move_the_critic_alone_and_never_its_frozen_part(
    zero_stage: int, tmp_path: Path
) -> None:
    """With weight decay, which would also move what has no gradient."""
    policy, _ = starting_point(tmp_path)
    run = row_config("sao", critic={"critic_only_steps": 2})
    run = run.model_copy(update={"optimizer": run.optimizer.model_copy(update={"weight_decay": 0.1})})
    actors = Actors(run, tmp_path, zero_stage=zero_stage)
    maker, optimizer_steps = actors.maker(), actors.critic.critic.global_steps
    policy_before, critic_before = actors.policy_weights(), actors.critic_weights()
    data = batches(run, policy, 3)
    rates = [maker.update(data[place], step)["critic_learning_rate"] for place, step in enumerate((-2, -1))]
    full_rate = run.training.learning_rate * run.critic.learning_rate_factor
    assert rates == pytest.approx([full_rate / 2, full_rate])
    assert all(torch.equal(weight, policy_before[name]) for name, weight in actors.policy_weights().items())
    assert actors.critic.critic.global_steps - optimizer_steps == 2 * run.critic.updates_per_batch == 4
    maker.update(data[2], 0)
    for name, weight in actors.critic_weights().items():
        assert torch.equal(weight, critic_before[name]) == is_attention_parameter(name), name
    moved = {
        name for name, weight in actors.policy_weights().items() if not weight.equal(policy_before[name])
    }
    assert moved == policy_before.keys()


@pytest.mark.parametrize("zero_stage", [2, 3])
def test_values_without_pretraining_start_at_zero(zero_stage: int, tmp_path: Path) -> None:
    policy = tiny_policy()
    save_policy(policy, tmp_path)
    run = row_config("sao_no_pretrain")
    maker = Actors(run, tmp_path, packing=True, zero_stage=zero_stage).maker()
    [trajectories] = batches(run, policy, 1)
    for values in maker.values(Batch.from_trajectories(trajectories)):
        assert torch.count_nonzero(values) == 0
    assert maker.update(trajectories, -1)["explained_variance_before"] == pytest.approx(0)
    assert torch.count_nonzero(maker.values(Batch.from_trajectories(trajectories))[0]) > 0


@pytest.mark.parametrize("zero_stage", [2, 3])
def test_a_checkpoint_goes_on_as_if_nothing_had_happened(zero_stage: int, tmp_path: Path) -> None:
    policy, _ = starting_point(tmp_path)
    run = row_config("sao")
    first, second = batches(run, policy, 2)
    actors = Actors(run, tmp_path, zero_stage=zero_stage)
    actors.maker().update(first, 0)
    for actor in (actors.policy, actors.critic):
        actor.save_state(tmp_path / "checkpoint")
    resumed = Actors(run, tmp_path, zero_stage=zero_stage, resume_from=tmp_path / "checkpoint")
    expected = actors.maker().update(second, 1)
    assert resumed.maker().update(second, 1) == expected
    assert resumed.policy.weight_hashes(torch.float32) == actors.policy.weight_hashes(torch.float32)
    probe = PackedBatch.from_trajectories(first, policy.device).batch
    values, expected_values = (one.maker().values(probe)[0] for one in (resumed, actors))
    assert values.abs().max() > 0 and torch.equal(values, expected_values)


def test_exported_weights_have_the_trainers_logprobs(tmp_path: Path) -> None:
    policy, _ = starting_point(tmp_path)
    run = row_config("sao")
    actors = Actors(run, tmp_path)
    first, probe = batches(run, policy, 2)
    maker = actors.maker()
    maker.update(first, 0)
    actors.policy.export(tmp_path / "exported")
    exported = load_policy(tmp_path / "exported")
    data = PackedBatch.from_trajectories(probe, exported.device)
    with torch.no_grad():
        logprobs, _ = policy_logprobs(exported, data)
    assert (logprobs - maker.logprobs(data.batch)).abs().max() < 1e-5


def test_the_router_loss_is_computed_when_its_coefficient_asks_for_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, _ = starting_point(tmp_path)
    run = row_config("grpo_dis")
    [trajectories] = batches(run, policy, 1)
    calls: list[int] = []
    original = modeling_qwen3_moe.load_balancing_loss_func

    def counted(*arguments: Any) -> Tensor:
        calls.append(1)
        return original(*arguments)

    monkeypatch.setattr(modeling_qwen3_moe, "load_balancing_loss_func", counted)
    norms = []
    for coefficient in (0.0, 0.5):
        actors = Actors(run, tmp_path)
        actors.policy.trainer.args.actor.aux_loss_coef = coefficient
        actors.policy.trainer.aux_loss = coefficient > 0
        norms.append(actors.maker().update(trajectories, 0)["policy_grad_norm"])
        assert bool(calls) == (coefficient > 0)
    assert norms[0] != pytest.approx(norms[1], rel=1e-3)


class Synchronised(Exception):
    """The update was accepted."""


@pytest.mark.parametrize(
    ("step", "difference", "accepted"),
    [(0, 0.009, True), (0, 0.4, False), (0, float("nan"), False), (2, 0.4, True)],
)
def test_an_engine_that_computes_another_model_ends_the_run_at_its_first_update(
    step: int, difference: float, accepted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later batches were sampled with older weights, so that they differ anyway."""

    def synchronise(self: TrainingRun) -> None:
        raise Synchronised

    monkeypatch.setattr(TrainingRun, "_synchronise", synchronise)
    training = TrainingRun.__new__(TrainingRun)
    training.run, training.step = row_config("grpo_dis", scale="openrlhf_smoke"), step
    taken = SimpleNamespace(trajectories=[])
    training.stream = SimpleNamespace(take=SimpleNamespace(remote=lambda: taken))
    record = {"mean_abs_log_ratio": difference}
    training.experience_maker = SimpleNamespace(update=lambda trajectories, step: record)
    with pytest.raises(Synchronised if accepted else WeightMismatch):
        training._train_step()
