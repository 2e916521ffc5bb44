"""The policy's Ray actors: OpenRLHF's, with log-probs read from hidden states and the row's own loss."""

import math
import sys
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import sao.openrlhf.ready  # noqa: F401

# isort: split
import deepspeed
import ray
import torch
from openrlhf.models import Actor
from openrlhf.models.ring_attn_utils import (
    gather_and_pad_tensor,
    get_tensor_in_current_ring_attn_rank,
    unpad_and_slice_tensor,
)
from openrlhf.trainer.ray import ppo_actor
from openrlhf.utils.loss_utils import get_loss_batch_info
from torch import Tensor, nn
from torch.nn import functional

from sao.logprobs import token_logprobs
from sao.openrlhf import cpu
from sao.openrlhf.checkpoint import disk_errors
from sao.openrlhf.ports import free_port
from sao.openrlhf.strategy import (
    Strategy,
    loader_in_order,
    loss_normalizer,
    optimizer_step_done,
    without_dropout,
)
from sao.openrlhf.weight_group import weight_group
from sao.policy_objective import policy_loss

STATE_TAG = "state"


class LogprobHead(nn.Linear):
    """An output layer that gives log-probs of tokens instead of logits; DeepSpeed gathers its weight."""

    def forward(self, hidden: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Log-probs and entropies, float32 [tokens], of `token_ids` [tokens]; `hidden` is [tokens, width]."""
        return token_logprobs(hidden, self.weight, token_ids)


def logprob_forward(
    self: Any,
    input_ids: Tensor,
    position_ids: Tensor,
    attention_mask: Tensor | None,
    next_ids: Tensor,
    chosen: Tensor,
    with_router_loss: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Forward of a causal language model that predicts the chosen places alone, [batch, tokens] each.

    Returns log-probs and entropies of `next_ids` there, float32 [chosen places] in row order, and the
    router's load-balancing loss where it is asked for.
    """
    outputs = self.base_model(
        input_ids=input_ids,
        attention_mask=attention_mask,
        position_ids=position_ids,
        use_cache=False,
        output_router_logits=with_router_loss,
    )
    logprobs, entropies = self.lm_head(outputs.last_hidden_state[chosen], next_ids[chosen])
    if not with_router_loss:
        return logprobs, entropies, None
    balancing_loss = sys.modules[type(self).__module__].load_balancing_loss_func
    loss = balancing_loss(
        outputs.router_logits, self.config.num_experts, self.config.num_experts_per_tok, attention_mask
    )
    return logprobs, entropies, loss


class PolicyModel(Actor):
    """OpenRLHF's Actor without the [tokens, vocabulary] logits."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        without_dropout(self.model)
        self.model.config.output_router_logits = False
        self.model.lm_head.__class__ = LogprobHead
        self.model.forward = MethodType(logprob_forward, self.model)

    def forward(
        self,
        sequences: Tensor,
        action_mask: Tensor,
        attention_mask: Tensor,
        ring_attn_group: Any = None,
        with_router_loss: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Log-probs and entropies of action tokens, float32 [batch, tokens - 1], 0 elsewhere.

        `sequences` int64 and `attention_mask` are [batch, tokens], right-padded; `action_mask`
        [batch, tokens - 1] belongs to tokens 1 and up, and so do the results. The third is the router loss.
        """
        chosen = functional.pad(action_mask.bool(), (0, 1))  # the place before a token predicts it
        if not self.packing_samples:
            positions = (attention_mask.long().cumsum(-1) - 1).clamp_min(0)
            next_ids = torch.roll(sequences, -1, 1)
            parts = self.model(sequences, positions, attention_mask, next_ids, chosen, with_router_loss)
            logprobs, entropies = (scattered(chosen, part)[:, :-1] for part in parts[:2])
            return logprobs, entropies, parts[2]
        ids, positions, next_ids, padding, places = unpad_and_slice_tensor(
            sequences, attention_mask, ring_attn_group
        )
        chosen = chosen.flatten()[places][None]
        if ring_attn_group is not None:
            chosen, _ = get_tensor_in_current_ring_attn_rank(chosen.long(), ring_attn_group, 0)
            chosen = chosen.bool()
        parts = self.model(ids, positions, None, next_ids, chosen, with_router_loss)
        logprobs, entropies = (
            gather_and_pad_tensor(
                scattered(chosen, part), ring_attn_group, padding, places, *sequences.shape
            )[:, :-1]
            for part in parts[:2]
        )
        return logprobs, entropies, parts[2]


def scattered(mask: Tensor, values: Tensor) -> Tensor:
    """`values` [places on the mask] at their places, 0 elsewhere."""
    return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(mask, values)


class PolicyTrainer(ppo_actor.ActorPPOTrainer):
    """OpenRLHF's update loop over micro-batches, with the row's loss in place of its own."""

    def __init__(self, strategy: Strategy, *arguments: Any, **named: Any) -> None:
        super().__init__(strategy, *arguments, **named)
        self.run = self.args.sao
        self.max_epochs = 1
        self.dataloader_pin_memory = not cpu.is_needed()

    def _init_vllm_sync_group(self, backend: str) -> None:
        ppo_actor.stateless_init_process_group = partial(weight_group, backend=backend)
        super()._init_vllm_sync_group(backend)

    def ppo_train(self, kl_ctl: float) -> dict[str, Any]:
        """One pass over the replay buffer; returns this rank's sums, tokens and gradient norms.

        losses      sum of the loss over action tokens, of each optimizer step
        tokens      number of action tokens of each optimizer step
        grad_norms  gradient norm of each optimizer step, before clipping, over all ranks
        counts      numbers of action tokens by name, as the objectives report them
        logprobs, rollout_logprobs, entropies      float32 [action tokens], aligned with each other
        learning_rate
        """
        self.steps: list[dict[str, float]] = [{"loss": 0.0, "tokens": 0.0}]
        self.counts: dict[str, int] = {}
        self.tokens: list[tuple[Tensor, Tensor, Tensor]] = []
        super().ppo_train(kl_ctl)
        steps = [step for step in self.steps if "grad_norm" in step]
        logprobs, rollout, entropies = (torch.cat(parts) for parts in zip(*self.tokens, strict=True))
        return {
            "losses": [step["loss"] for step in steps],
            "tokens": [step["tokens"] for step in steps],
            "grad_norms": [step["grad_norm"] for step in steps],
            "counts": self.counts,
            "logprobs": logprobs,
            "rollout_logprobs": rollout,
            "entropies": entropies,
            "learning_rate": self.actor_optim.param_groups[0]["lr"],
        }

    def training_step(
        self, experience: Any, kl_ctl: float, step: int, loss_batch_info: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        self.actor.train()
        mask = experience.action_mask.bool()
        if loss_batch_info is None:
            loss_batch_info = get_loss_batch_info(
                self.strategy, mask, replay_buffer=self.replay_buffer, step=step, dynamic_batch=True
            )
        normalizer = loss_normalizer(loss_batch_info).to(mask.device)
        logprobs, entropies, router_loss = self.actor(
            experience.sequences,
            mask,
            experience.attention_mask,
            ring_attn_group=self.strategy.ring_attn_group,
            with_router_loss=self.aux_loss,
        )
        loss, counts = policy_loss(
            self.run,
            logprobs,
            experience.action_log_probs,
            experience.rollout_log_probs,
            experience.advantages,
            mask,
            experience.rewards,
            normalizer,
        )
        if not math.isfinite(loss.item()):
            inputs = {
                "log-probs": logprobs,
                "rollout log-probs": experience.rollout_log_probs,
                "advantages": experience.advantages,
            }
            bad = [name for name, values in inputs.items() if not values[mask].isfinite().all()]
            raise RuntimeError(f"policy loss {loss.item():g} is not finite; nor are {' and '.join(bad)}")
        total = loss if router_loss is None else loss + self._router_share(router_loss, step)
        done = optimizer_step_done(self, step)
        self.strategy.backward(total, self.actor, self.actor_optim, ends_step=done)
        if done or not self.args.train.dynamic_batch_enable:
            self.strategy.optimizer_step(self.actor_optim, self.actor, self.actor_scheduler, name="actor")
        self._record(loss.item() * normalizer.item(), counts, done)
        rollout = experience.rollout_log_probs
        self.tokens.append(
            (logprobs.detach()[mask].cpu(), rollout[mask].float().cpu(), entropies.detach()[mask].cpu())
        )
        return {
            "metrics": {"policy_loss": loss.detach()},
            "weights": {"policy_loss": "token"},
            "num_samples": float(len(mask)),
            "num_action_tokens": float(mask.sum()),
        }

    def _router_share(self, router_loss: Tensor, step: int) -> Tensor:
        """The router's loss, weighted as OpenRLHF weighs it: the mean over the step's micro-batches."""
        scaled = router_loss * self.args.actor.aux_loss_coef
        if self.args.train.dynamic_batch_enable:
            scaled = scaled * self.replay_buffer.dynamic_sample_loss_scale[step]
        return scaled

    def _record(self, loss_sum: float, counts: dict[str, Tensor], done: bool) -> None:
        self.steps[-1]["loss"] += loss_sum
        self.steps[-1]["tokens"] += int(counts["action_tokens"])
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + int(count)
        if not done:
            return
        norm = self.strategy.get_grad_norm(self.actor)
        if not math.isfinite(norm):
            raise RuntimeError(f"gradient norm {norm:g} of the policy is not finite")
        self.steps[-1]["grad_norm"] = norm
        self.steps.append({"loss": 0.0, "tokens": 0.0})


# OpenRLHF's PolicyModelActor looks these names up where it is defined.
ppo_actor.Actor = PolicyModel
ppo_actor.ActorPPOTrainer = PolicyTrainer
ppo_actor.DataLoader = loader_in_order


class PolicyActor(ppo_actor.PolicyModelActor.__ray_metadata__.modified_class):
    """One rank of the policy."""

    _get_free_port = staticmethod(free_port)

    def forward(self, sequences: Tensor, action_mask: Tensor, attention_mask: Tensor) -> Tensor:
        """Log-probs of action tokens, float32 [batch, tokens - 1], without training anything."""
        device = torch.cuda.current_device()
        self.actor.eval()
        with torch.no_grad():
            logprobs, _, _ = self.actor(
                sequences.to(device),
                action_mask.to(device),
                attention_mask.to(device),
                ring_attn_group=self.strategy.ring_attn_group,
            )
        self.actor.train()
        return logprobs.to("cpu")

    def fit(self, kl_ctl: float = 0.0) -> dict[str, Any]:
        """Trains on the replay buffer; returns what `PolicyTrainer.ppo_train` returns."""
        return super().fit(kl_ctl)

    def save_state(self, folder: Path) -> None:
        """Writes this rank's part of weights and optimizer below `folder`, as OpenRLHF will look for it."""
        with disk_errors(folder):
            self.actor.model.save_checkpoint(str(folder / "_actor"), tag=STATE_TAG)

    def save_model(self) -> None:
        """Nothing: the run's last evaluation has exported the weights."""

    def export(self, folder: Path) -> None:
        """Writes the weights as transformers does, from rank 0; all ranks must call it."""
        self.strategy.save_model(self.actor, self.tokenizer, str(folder))

    def weight_hashes(self, dtype: torch.dtype) -> dict[str, str]:
        """SHA-256 of every full tensor in `dtype`, by its name in transformers; all ranks must call it."""
        from sao.openrlhf.weights import weight_hashes

        hashes: dict[str, str] = {}
        for name, parameter in self.actor.model.module.named_parameters():
            with deepspeed.zero.GatheredParameters([parameter], enabled=self.strategy.stage == 3):
                hashes |= weight_hashes([(name, parameter.detach())], dtype)
        return hashes


RemotePolicyActor = ray.remote(num_gpus=1)(PolicyActor)
