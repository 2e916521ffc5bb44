"""Two data-parallel ranks train as one does."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import make_maker, run_ranks
from test_parity import batches, compare, compare_tokens, row_config, starting_point

from sao.config import RunConfig
from sao.local.trainer import Trainer
from sao.openrlhf import cpu
from sao.trajectory import Trajectory


def train(
    rank: int,
    port: int,
    run: RunConfig,
    folder: Path,
    zero_stage: int,
    packing: bool,
    checkpointing: bool,
    data: list[list[Trajectory]],
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """After each step its metrics, and what the models then say of every token of its batch."""
    maker = make_maker(rank, port, 2, run, folder, zero_stage, packing, checkpointing)
    return [
        (maker.update(trajectories, step), maker.inspect(trajectories))
        for step, trajectories in enumerate(data)
    ]


@pytest.mark.parametrize(
    ("row", "zero_stage", "packing", "checkpointing"),
    [
        ("sao", 2, False, False),
        ("sao", 3, False, False),
        ("sao_full_critic", 3, True, False),
        ("grpo_dis", 2, True, False),
        ("sao", 3, True, True),
    ],
)
def test_two_ranks_equal_the_local_engine(
    row: str, zero_stage: int, packing: bool, checkpointing: bool, tmp_path: Path
) -> None:
    policy, value_model = starting_point(tmp_path)
    run = row_config(row)
    data = batches(run, policy, 2)
    ranks = run_ranks(train, 2, tmp_path, run, tmp_path, zero_stage, packing, checkpointing, data)
    local = Trainer(run, policy, value_model if run.critic else None)
    for step, trajectories in enumerate(data):
        expected, tokens = local.update(trajectories, step), local.inspect(trajectories)
        for steps in ranks:
            compare(steps[step][0], expected, 1e-5)
            compare_tokens(steps[step][1], tokens, trajectories, 1e-5)


def written_and_read(rank: int, port: int, rounds: int) -> list[float]:
    """Writes 1, 2, ... into a large and a small parameter on rank 0; where each lands in the large one."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    import deepspeed

    cpu.before_distributed()
    deepspeed.init_distributed("gloo")
    module = torch.nn.Linear(2**11, 2**11)  # the large weight takes longer to gather than the bias
    deepspeed.zero.Init(module, dtype=torch.float32)
    differences = []
    for value in range(1, rounds + 1):
        with deepspeed.zero.GatheredParameters(list(module.parameters()), modifier_rank=0):
            if rank == 0:
                module.weight.data.fill_(value)
        with deepspeed.zero.GatheredParameters(list(module.parameters())):
            differences.append((module.weight.data - value).abs().max().item())
    return differences


def test_gathered_parameters_of_one_module_are_all_there(tmp_path: Path) -> None:
    """DeepSpeed waits for the last of them alone."""
    assert run_ranks(written_and_read, 2, tmp_path, 10) == [[0.0] * 10] * 2
