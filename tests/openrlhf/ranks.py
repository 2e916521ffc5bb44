"""Data-parallel ranks in processes of their own, in lockstep: each runs the controller and its own actors."""

import os
import socket
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import in_process
import ray
import torch
from torch import distributed, multiprocessing

from sao.config import RunConfig
from sao.openrlhf import cpu
from sao.openrlhf.actor import PolicyActor
from sao.openrlhf.critic import CriticActor
from sao.openrlhf.experience import ExperienceMaker
from sao.openrlhf.strategy import make_strategy


@dataclass
class LockstepGroup:
    """A group of actors, one to a process: every process calls its own and hears of all results."""

    actor: Any

    def async_run_method(self, method_name: str, **named: Any) -> list[Any]:
        return gathered(getattr(self.actor, method_name)(**named))

    def async_run_method_batch(self, method_name: str, **named: list[Any]) -> list[Any]:
        calls = list(zip(*named.values(), strict=True))
        share = len(calls) // distributed.get_world_size()
        own = calls[distributed.get_rank() * share : (distributed.get_rank() + 1) * share]
        method = getattr(self.actor, method_name)
        return gathered([method(**dict(zip(named, call, strict=True))) for call in own])


def gathered(result: Any) -> list[Any]:
    results: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(results, result)
    return results


def run_ranks(work: Callable[..., Any], ranks: int, folder: Path, *arguments: Any) -> list[Any]:
    """`work(rank, port, *arguments)` in each of `ranks` processes; what each returned."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(_one_rank, (work, port, folder, arguments), nprocs=ranks)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(ranks)]


def _one_rank(
    rank: int, work: Callable[..., Any], port: int, folder: Path, arguments: tuple[Any, ...]
) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    torch.save(work(rank, port, *arguments), folder / f"rank{rank}.pt")


def make_maker(
    rank: int,
    port: int,
    ranks: int,
    run: RunConfig,
    folder: Path,
    zero_stage: int,
    packing: bool = False,
    checkpointing: bool = False,
) -> ExperienceMaker:
    """This rank's actors behind a controller."""
    ray.get = lambda results: results
    arguments = in_process.arguments(run, folder, cpu.FLOAT32, packing, zero_stage, checkpointing)
    arguments.actor.num_gpus_per_node = arguments.critic.num_gpus_per_node = ranks
    path = str(folder / "policy")
    policy = PolicyActor(ranks, rank, "127.0.0.1", port)
    policy.init_model_from_pretrained(make_strategy(deepcopy(arguments)), path, 10, None)
    critic = None
    if run.critic is not None:
        critic = CriticActor(ranks, rank, "127.0.0.1", port)
        critic.init_model_from_pretrained(make_strategy(deepcopy(arguments)), path, 10)
    groups = LockstepGroup(policy), critic and LockstepGroup(critic)
    strategy, tokenizer = SimpleNamespace(args=arguments), SimpleNamespace(pad_token_id=0)
    return ExperienceMaker(*groups, None, None, None, strategy, tokenizer)
