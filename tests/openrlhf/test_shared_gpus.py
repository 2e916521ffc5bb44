"""Processes that share the one GPU of a node. Ray counts a GPU that is not there."""

import os
from collections.abc import Iterator
from functools import partial

import sao.openrlhf.ready  # noqa: F401

# isort: split
import pytest
import ray
from openrlhf.trainer.ray import launcher, vllm_engine

from sao.config import resolve
from sao.openrlhf import launch
from sao.openrlhf.shared_gpus import SharingClass, sharing_placement_group


@pytest.fixture
def one_gpu() -> Iterator[None]:
    ray.init(num_gpus=1, num_cpus=8, include_dashboard=False, object_store_memory=2**27)
    yield
    ray.shutdown()


@ray.remote
class Process:
    """In the place of a trainer or an engine: takes any settings."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def gpu(self) -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]


@pytest.mark.usefixtures("one_gpu")
def test_policy_critic_and_engine_start_side_by_side_on_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    share = launch.gpu_share(resolve("sao", "gpu_openrlhf", 0))
    assert share == pytest.approx(1 / 3)
    for module in (launcher, vllm_engine):
        monkeypatch.setattr(module, "placement_group", partial(sharing_placement_group, share))
    monkeypatch.setattr(vllm_engine, "RolloutRayActor", SharingClass(Process, share))
    trainers = [launcher.RayActorGroup(1, 1, SharingClass(Process, share)) for _ in range(2)]
    engines = vllm_engine.create_vllm_engines(1, 1, "model", 0, False, True, False, 64)
    processes = [trainer._actor_handlers[0] for trainer in trainers] + engines
    assert ray.get([process.gpu.remote() for process in processes], timeout=60) == ["0"] * 3
