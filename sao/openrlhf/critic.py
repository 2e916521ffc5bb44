"""The critic's Ray actors: OpenRLHF's, around the suite's own value model."""

import functools
import math
from pathlib import Path
from typing import Any

import sao.openrlhf.ready  # noqa: F401

# isort: split
import deepspeed
import ray
import torch
from deepspeed.utils import safe_get_full_grad
from openrlhf.models.ring_attn_utils import gather_and_pad_tensor, unpad_and_slice_tensor
from openrlhf.models.utils import set_z3_leaf_modules
from openrlhf.trainer.ray import ppo_critic
from openrlhf.utils import utils
from openrlhf.utils.loss_utils import get_loss_batch_info
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModel
from transformers.integrations.deepspeed import HfDeepSpeedConfig

from sao import critic
from sao.config import RunConfig
from sao.openrlhf import cpu
from sao.openrlhf.actor import STATE_TAG
from sao.openrlhf.checkpoint import disk_errors
from sao.openrlhf.ports import free_port
from sao.openrlhf.settings import RunSettings
from sao.openrlhf.strategy import (
    Strategy,
    loader_in_order,
    loss_normalizer,
    optimizer_step_done,
    without_dropout,
)

VALUE_MODEL_FILE = "value_model.safetensors"


class CriticModel(critic.ValueModel):
    """The value model, called as OpenRLHF calls its critic."""

    mean = std = None  # OpenRLHF prints these of its own critic

    def __init__(self, backbone: Any, packing_samples: bool) -> None:
        super().__init__(backbone)
        self.packing_samples = packing_samples

    @property
    def config(self) -> Any:
        """The backbone's configuration, which DeepSpeed reads sizes from."""
        return self.backbone.config

    def gradient_checkpointing_enable(self, **settings: Any) -> None:
        """Recompute the backbone's activations in backward."""
        self.backbone.gradient_checkpointing_enable(**settings)

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor, ring_attn_group: Any = None
    ) -> Tensor:
        """Values float32 [batch, tokens], right-padded; index t is the value of the prefix ending with it."""
        if not self.packing_samples:
            positions = (attention_mask.long().cumsum(-1) - 1).clamp_min(0)
            return super().forward(input_ids, attention_mask=attention_mask, position_ids=positions)
        ids, positions, _, padding, places = unpad_and_slice_tensor(
            input_ids, attention_mask, ring_attn_group
        )
        values = super().forward(ids, position_ids=positions)
        return gather_and_pad_tensor(values, ring_attn_group, padding, places, *input_ids.shape)


def build_critic(
    run: RunConfig,
    value_model: Path | None,
    path: str,
    model_type: str,
    *,
    attn_implementation: str,
    experts_implementation: str | None,
    param_dtype: str,
    ds_config: dict[str, Any],
    packing_samples: bool,
    **unused: Any,
) -> CriticModel:
    """In place of OpenRLHF's `get_llm_for_sequence_regression`: the policy's backbone, a head at zero.

    The pretrained value model is loaded where the run has one, and the row's parameters are frozen.
    """
    sharded = ds_config["zero_optimization"]["stage"] == 3
    keep_alive = HfDeepSpeedConfig(ds_config) if sharded else None  # transformers shards while this lives
    named = {} if experts_implementation is None else {"experts_implementation": experts_implementation}
    backbone = AutoModel.from_pretrained(
        path,
        attn_implementation=attn_implementation,
        dtype=utils.convert_to_torch_dtype(param_dtype),
        **named,
    )
    del keep_alive
    backbone.config.use_cache = False
    without_dropout(backbone)
    model = CriticModel(backbone, packing_samples)
    set_z3_leaf_modules(model, detect_hybrid=False)
    if value_model is not None:
        load_values(model, value_model / VALUE_MODEL_FILE, sharded)
    assert run.critic is not None  # only rows with a critic start one
    critic.freeze(model, run.critic.frozen)
    return model


def load_values(model: CriticModel, file: Path, sharded: bool) -> None:
    """Copies a pretrained value model's tensors into `model`, one at a time."""
    with safe_open(str(file), framework="pt") as saved:
        for name, parameter in model.named_parameters():
            with (
                torch.no_grad(),
                deepspeed.zero.GatheredParameters([parameter], modifier_rank=0, enabled=sharded),
            ):
                parameter.copy_(saved.get_tensor(name))


class CriticTrainer(ppo_critic.CriticPPOTrainer):
    """OpenRLHF's update loop, one epoch per critic update, with the suite's value loss."""

    def __init__(self, strategy: Strategy, *arguments: Any, **named: Any) -> None:
        super().__init__(strategy, *arguments, **named)
        self.settings = self.args.sao.critic
        self.max_epochs = self.settings.updates_per_batch
        self.dataloader_pin_memory = not cpu.is_needed()
        self.learning_rate = 0.0

    def ppo_train(self) -> dict[str, Any]:
        """Every critic update on the replay buffer; returns this rank's sums, one entry per update.

        losses sum over trained tokens, tokens their number; grad_norms, grad_norms_attention and
        grad_norms_rest are before clipping and over all ranks.
        """
        self.updates: list[dict[str, float]] = []
        self.sums = {"losses": 0.0, "tokens": 0.0}
        super().ppo_train()
        return {name: [update[name] for update in self.updates] for name in self.updates[0]}

    def training_step(
        self, experience: Any, step: int, loss_batch_info: dict[str, Any] | None = None
    ) -> dict[str, float]:
        self.critic.train()
        positions = experience.action_mask.bool()
        if loss_batch_info is None:
            loss_batch_info = get_loss_batch_info(
                self.strategy, positions, replay_buffer=self.replay_buffer, step=step, dynamic_batch=True
            )
        normalizer = loss_normalizer(loss_batch_info).to(positions.device)
        values = self.critic(
            experience.sequences,
            attention_mask=experience.attention_mask,
            ring_attn_group=self.strategy.ring_attn_group,
        )
        values = critic.values_before_tokens(values)[:, 1:]
        loss = critic.value_loss(
            values,
            experience.returns,
            positions,
            normalizer,
            old_values=experience.values,
            clip=self.settings.value_clip,
        )
        if not math.isfinite(loss.item()):
            raise RuntimeError(f"value loss {loss.item():g} is not finite")
        done = optimizer_step_done(self, step)
        self.strategy.backward(loss, self.critic, self.critic_optim, ends_step=done)
        self.sums["losses"] += loss.item() * normalizer.item()
        self.sums["tokens"] += float(positions.sum())
        if done:
            self._finish_update()
        elif not self.args.train.dynamic_batch_enable:
            self.strategy.optimizer_step(self.critic_optim, self.critic, self.critic_scheduler, name="critic")
        return {"critic_loss": loss.item()}

    def _finish_update(self) -> None:
        for group in self.critic_optim.param_groups:  # the scheduler sets the constant rate after each step
            group["lr"] = self.learning_rate
        attention = self._attention_norm()
        self.strategy.optimizer_step(self.critic_optim, self.critic, self.critic_scheduler, name="critic")
        norm = self.strategy.get_grad_norm(self.critic)
        if not math.isfinite(norm):
            raise RuntimeError(f"gradient norm {norm:g} of the critic is not finite")
        rest = math.sqrt(max(norm**2 - attention**2, 0.0))
        norms = {"grad_norms": norm, "grad_norms_attention": attention, "grad_norms_rest": rest}
        self.updates.append(self.sums | norms)
        self.sums = {"losses": 0.0, "tokens": 0.0}

    def _attention_norm(self) -> float:
        """Gradient norm of the attention parameters over all ranks, before clipping; 0 where frozen."""
        squares = 0.0
        for name, parameter in self.critic.module.named_parameters():
            if parameter.requires_grad and critic.is_attention_parameter(name):
                squares += safe_get_full_grad(parameter).double().square().sum().item()
        return math.sqrt(squares)


ppo_critic.CriticPPOTrainer = CriticTrainer
ppo_critic.DataLoader = loader_in_order


class CriticActor(ppo_critic.CriticModelActor.__ray_metadata__.modified_class):
    """One rank of the critic."""

    _get_free_port = staticmethod(free_port)

    def init_model_from_pretrained(self, strategy: Strategy, pretrain: str, max_steps: int) -> None:
        """Builds the critic; its updates take the whole batch, however many parts the policy's has."""
        settings: RunSettings = strategy.args.run_settings
        batch = strategy.args.sao.training.batch_trajectories
        strategy.args.train.batch_size = strategy.train_batch_size = batch
        ppo_critic.get_llm_for_sequence_regression = functools.partial(
            build_critic, strategy.args.sao, settings.value_model
        )
        super().init_model_from_pretrained(strategy, pretrain, max_steps)

    def forward(self, sequences: Tensor, attention_mask: Tensor) -> Tensor:
        """Values of all prefixes, float32 [batch, tokens], without training anything."""
        device = torch.cuda.current_device()
        self.critic.eval()
        with torch.no_grad():
            values = self.critic(
                sequences.to(device),
                attention_mask=attention_mask.to(device),
                ring_attn_group=self.strategy.ring_attn_group,
            )
        self.critic.train()
        return values.to("cpu")

    def fit(self, learning_rate: float) -> dict[str, Any]:
        """Trains on the replay buffer at this rate; returns what `CriticTrainer.ppo_train` returns."""
        self.trainer.learning_rate = learning_rate
        return super().fit()

    def export(self, folder: Path) -> None:
        """Writes the value model as the local engine does, from rank 0; all ranks must call it."""
        first, tensors = self.strategy.is_rank_0(), {}
        for name, parameter in self.critic.module.named_parameters():
            with deepspeed.zero.GatheredParameters([parameter], enabled=self.strategy.stage == 3):
                if first:
                    tensors[name] = parameter.detach().cpu().clone()
        if first:
            folder.mkdir(parents=True, exist_ok=True)
            save_file(tensors, folder / VALUE_MODEL_FILE)

    def save_state(self, folder: Path) -> None:
        """Writes this rank's part of weights and optimizer below `folder`, as OpenRLHF will look for it."""
        with disk_errors(folder):
            self.critic.save_checkpoint(str(folder / "_critic"), tag=STATE_TAG)


RemoteCriticActor = ray.remote(num_gpus=1)(CriticActor)
