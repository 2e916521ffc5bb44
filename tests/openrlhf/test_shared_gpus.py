"""Processes that share the one GPU of a node. Ray counts a GPU that is not there.

    python tests/openrlhf/test_shared_gpus.py

starts three and prints, as JSON, the GPU that each sees; a process of its own, as the tests' has grown too
large to be forked.
"""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import sao.openrlhf.ready  # noqa: F401

# isort: split
import pytest
import ray
from openrlhf.trainer.ray import launcher, vllm_engine

from sao.config import resolve
from sao.openrlhf import launch
from sao.openrlhf.shared_gpus import SharingClass, sharing_placement_group


@ray.remote
class Process:
    """In the place of a trainer or an engine: takes any settings."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def gpu(self) -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]


def main() -> None:
    ray.init(num_gpus=1, num_cpus=8, include_dashboard=False, object_store_memory=2**27)
    share = launch.gpu_share(resolve("sao", "gpu_openrlhf", 0))
    launcher.placement_group = vllm_engine.placement_group = partial(sharing_placement_group, share)
    vllm_engine.RolloutRayActor = SharingClass(Process, share)
    trainers = [launcher.RayActorGroup(1, 1, SharingClass(Process, share)) for _ in range(2)]
    engines = vllm_engine.create_vllm_engines(1, 1, "model", 0, False, True, False, 64)
    processes = [trainer._actor_handlers[0] for trainer in trainers] + engines
    print(json.dumps({"share": share, "gpus": ray.get([process.gpu.remote() for process in processes])}))


def test_policy_critic_and_engine_start_side_by_side_on_one_gpu() -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, __file__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"share": pytest.approx(1 / 3), "gpus": ["0"] * 3}


if __name__ == "__main__":
    main()
