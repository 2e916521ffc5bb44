"""OpenRLHF's DeepSpeed strategy, and what a run's processes learn beside OpenRLHF's own arguments."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sao.openrlhf.ready  # noqa: F401

# isort: split
import torch
from openrlhf.models import Actor
from openrlhf.utils.deepspeed.deepspeed import DeepspeedStrategy
from torch import Tensor, distributed

from sao.config import RunConfig
from sao.openrlhf import cpu


@dataclass(frozen=True)
class RunSettings:
    """Travels to every process as `strategy.args.sao`.

    `directory` is the run directory, `value_model` the folder of a pretrained value model or None, `attempt`
    the attempt's number and `command` what started it.
    """

    run: RunConfig
    directory: Path
    results: str
    value_model: Path | None
    command: str
    attempt: int


class Strategy(DeepspeedStrategy):
    """OpenRLHF's strategy, also on machines without CUDA."""

    def setup_distributed(self, *arguments: Any, **named: Any) -> None:
        cpu.before_distributed()
        super().setup_distributed(*arguments, **named)

    def get_ds_train_config(self, *arguments: Any, **named: Any) -> dict[str, Any]:
        return cpu.adapted(super().get_ds_train_config(*arguments, **named))

    def backward(self, loss: Tensor, model: Any, _optimizer: Any, *, ends_step: bool, **_: Any) -> None:
        """Adds the gradients of a micro-batch; `ends_step` where an optimizer step follows.

        DeepSpeed takes every micro-batch of OpenRLHF's dynamic batches for the end of a step unless told, and
        keeps the gradients of the last one alone.
        """
        engine = model.model if isinstance(model, Actor) else model
        engine.set_gradient_accumulation_boundary(ends_step)
        engine.backward(loss)


def make_strategy(arguments: Any) -> Strategy:
    """In place of `openrlhf.utils.get_strategy`; comes after OpenRLHF's own check of its arguments."""
    cpu.set_attention(arguments)
    return Strategy(
        seed=arguments.train.seed,
        full_determinism=arguments.train.full_determinism_enable,
        micro_train_batch_size=arguments.train.micro_batch_size,
        train_batch_size=arguments.train.batch_size,
        zero_stage=arguments.ds.zero_stage,
        args=arguments,
    )


def loss_normalizer(loss_batch_info: dict[str, Any]) -> Tensor:
    """What to divide a micro-batch's sum by, so that DeepSpeed's averages give the global batch's mean.

    OpenRLHF counts the action tokens of one optimizer step over all ranks, divided by the number of
    micro-batches that DeepSpeed averages over; DeepSpeed also averages over ranks.
    """
    return torch.as_tensor(loss_batch_info["batch_num_tokens"]) / loss_batch_info["dp_size"]


def optimizer_step_done(trainer: Any, step: int) -> bool:
    """Whether micro-batch number `step` of an epoch ends with an optimizer step."""
    if trainer.args.train.dynamic_batch_enable:
        return bool(trainer.replay_buffer.dynamic_optimizer_step[step])
    return (step + 1) % max(trainer.strategy.accumulated_gradient, 1) == 0


def sum_over_ranks(value: float) -> float:
    """Sum of a number over the data-parallel ranks."""
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return value
    total = torch.tensor([value], dtype=torch.float64)
    gathered: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(gathered, total.item())
    return float(sum(gathered))
