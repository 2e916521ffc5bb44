"""The real actor classes of OpenRLHF, with DeepSpeed, against the local engine: same batch, same weights."""

from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from in_process import Actors, copies, save_policy, save_values
from local_engine import random_trajectories, run_config, tiny_policy
from torch import Tensor

from sao.config import RunConfig
from sao.critic import ValueModel
from sao.local.trainer import Trainer
from sao.trajectory import Trajectory

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
    torch.nn.init.normal_(value_model.head.weight, std=0.3)
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


def largest_difference(weights: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    assert weights.keys() == expected.keys()
    return max((weights[name].float() - expected[name].float()).abs().max().item() for name in expected)


@pytest.mark.parametrize("packing", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("row", ROWS)
def test_float32_steps_equal_the_local_engines(row: str, packing: bool, tmp_path: Path) -> None:
    policy, value_model = starting_point(tmp_path)
    run = row_config(row)
    actors = Actors(run, tmp_path, packing=packing)
    local = Trainer(run, policy, value_model if run.critic else None)
    maker = actors.maker()
    for step, trajectories in enumerate(batches(run, policy, 2)):
        compare(maker.update(trajectories, step), local.update(trajectories, step), 1e-5)
    assert largest_difference(actors.policy_weights(), copies(policy)) < 1e-5
    if run.critic:
        assert largest_difference(actors.critic_weights(), copies(value_model)) < 1e-5
