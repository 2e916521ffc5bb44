"""OpenRLHF's DeepSpeed strategy, and what a run's processes learn beside OpenRLHF's own arguments."""

from typing import Any

import sao.openrlhf.ready  # noqa: F401

# isort: split
import torch
from openrlhf.models import Actor
from openrlhf.utils.deepspeed.deepspeed import DeepspeedStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sao.openrlhf import cpu


class Strategy(DeepspeedStrategy):
    """OpenRLHF's strategy, also on machines without CUDA."""

    def setup_distributed(self, *arguments: Any, **named: Any) -> None:
        cpu.before_distributed()
        if self.param_dtype == cpu.FLOAT32:
            cpu.allow_float32()
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


class FineTuningStrategy(Strategy):
    """The same for OpenRLHF's fine-tuning, whose micro-batches are all of one size."""

    backward = DeepspeedStrategy.backward


def make_strategy(arguments: Any, kind: type[Strategy] = Strategy) -> Strategy:
    """OpenRLHF's strategy from its checked arguments, with what this machine needs."""
    cpu.set_attention(arguments)
    return kind(
        seed=arguments.train.seed,
        full_determinism=arguments.train.full_determinism_enable,
        micro_train_batch_size=arguments.train.micro_batch_size,
        train_batch_size=arguments.train.batch_size,
        zero_stage=arguments.ds.zero_stage,
        args=arguments,
    )


def make_fine_tuning_strategy(arguments: Any) -> Strategy:
    """The strategy of OpenRLHF's fine-tuning command."""
    return make_strategy(arguments, FineTuningStrategy)


def without_dropout(model: nn.Module) -> None:
    """Sets every rate of dropout to 0, so that log-probs and values in training are those outside of it."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0  # type: ignore[assignment]  # taken for a module


def loss_normalizer(loss_batch_info: dict[str, Any]) -> Tensor:
    """What to divide a micro-batch's sum by, so that DeepSpeed's averages give the global batch's mean.

    OpenRLHF counts the action tokens of one optimizer step over all ranks, divided by the number of
    micro-batches that DeepSpeed averages over; DeepSpeed also averages over ranks.
    """
    return torch.as_tensor(loss_batch_info["batch_num_tokens"]) / loss_batch_info["dp_size"]


def loader_in_order(*arguments: Any, **settings: Any) -> DataLoader[Any]:
    """In place of OpenRLHF's data loader over a batch, which would shuffle: minibatches are dealt before.

    Sums are then added in the same order again when a run is resumed.
    """
    return DataLoader(*arguments, **{**settings, "shuffle": False})


def optimizer_step_done(trainer: Any, step: int) -> bool:
    """Whether micro-batch number `step` of an epoch ends with an optimizer step."""
    if trainer.args.train.dynamic_batch_enable:
        return bool(trainer.replay_buffer.dynamic_optimizer_step[step])
    return (step + 1) % max(trainer.strategy.accumulated_gradient, 1) == 0
