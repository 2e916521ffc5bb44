"""What the workflow's jobs ask for, and how Snakemake and SLURM read it."""

from sao.config import load_scale, resolve
from sao.jobs import Request, evaluation_request, preparation_request, resources, training_request


def test_a_local_run_asks_for_one_core() -> None:
    assert training_request(resolve("sao", "cpu", 0)) == Request(1, 0, 1, 1500, 1440)
    assert preparation_request(load_scale("cpu"), "warm_start") == Request()
    assert evaluation_request(load_scale("cpu_math")) == Request(cores=2, memory_mb=3000)


def test_a_run_at_the_papers_scale_takes_policy_critic_and_engine_nodes() -> None:
    """4 + 4 nodes of trainers, and 8 engines of 4 GPUs on 4 nodes of 8."""
    request = training_request(resolve("sao", "paper_math", 0))
    assert (request.nodes, request.gpus, request.all_gpus) == (12, 8, 96)
    assert (request.minutes, request.memory_mb, request.launcher) == (72 * 60, 1_000_000, "srun")
    assert training_request(resolve("grpo_dis", "paper_math", 0)).nodes == 8, "no critic, no critic's nodes"


def test_preparation_takes_what_it_trains() -> None:
    scale = load_scale("paper_math")
    assert preparation_request(scale, "warm_start").nodes == 4
    assert preparation_request(scale, "values_attention").nodes == 12


def test_an_evaluation_takes_one_engine() -> None:
    request = evaluation_request(load_scale("paper_math"))
    assert (request.nodes, request.gpus, request.cores, request.memory_mb) == (1, 4, 48, 500_000)


def test_shared_gpus_are_one_node() -> None:
    request = training_request(resolve("sao", "gpu_openrlhf", 0))
    assert (request.nodes, request.all_gpus, request.launcher) == (1, 1, "")
    assert training_request(resolve("sao", "openrlhf_smoke", 0)).all_gpus == 0


def test_resources_are_functions_of_the_wildcards() -> None:
    found = resources(lambda row: training_request(resolve(row, "paper_math", 0)))
    for row, nodes in (("sao", 12), ("grpo_dis", 8)):
        assert found["nodes"](row) == found["tasks"](row) == nodes
        assert found["gpu"](row) == 8 * nodes
        assert (found["mpi"](row), found["tasks_per_gpu"]) == ("srun", 0)


def test_a_scale_on_a_gpu_does_not_train_elsewhere() -> None:
    import pytest
    import torch

    from sao.local.model import build_policy, on_device
    from sao.runlog import RunError

    policy = build_policy(load_scale("smoke").model, vocabulary_size=70, max_tokens=32, seed=0)
    assert on_device(policy, None) is policy
    if torch.cuda.is_available():
        assert on_device(policy, "cuda").device.type == "cuda"
        return
    with pytest.raises(RunError, match="device: cuda: torch finds no GPU here; run where there is one"):
        on_device(policy, "cuda")
