"""OpenRLHF's real actor classes with DeepSpeed in this process, without Ray's cluster and without vLLM."""

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deepspeed
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen3MoeForCausalLM

from sao.config import RunConfig
from sao.critic import ValueModel
from sao.openrlhf import cpu
from sao.openrlhf.actor import PolicyActor
from sao.openrlhf.command_line import parse
from sao.openrlhf.critic import VALUE_MODEL_FILE, CriticActor
from sao.openrlhf.experience import ExperienceMaker
from sao.openrlhf.settings import RunSettings
from sao.openrlhf.strategy import make_strategy


@dataclass
class Group:
    """Calls the methods of one actor as OpenRLHF's RayActorGroup calls those of many; no refs, results."""

    actor: Any

    def async_run_method(self, method_name: str, **named: Any) -> list[Any]:
        return [getattr(self.actor, method_name)(**named)]

    def async_run_method_batch(self, method_name: str, **named: list[Any]) -> list[Any]:
        method = getattr(self.actor, method_name)
        calls = zip(*named.values(), strict=True)
        return [[method(**dict(zip(named, call, strict=True))) for call in calls]]


def save_policy(policy: Qwen3MoeForCausalLM, folder: Path) -> None:
    """A policy's folder with a tokenizer of one word per token, as OpenRLHF expects it."""
    policy.save_pretrained(folder / "policy")
    words = {f"t{token}": token for token in range(policy.config.vocab_size)}
    model = models.WordLevel(words, unk_token="t0")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), pad_token="t0").save_pretrained(
        folder / "policy"
    )


def save_values(value_model: ValueModel, folder: Path) -> None:
    """A pretrained value model's folder."""
    from safetensors.torch import save_model

    (folder / "values").mkdir()
    save_model(value_model, str(folder / "values" / VALUE_MODEL_FILE))


def arguments(
    run: RunConfig, folder: Path, dtype: str, packing: bool, zero_stage: int, checkpointing: bool = False
) -> Any:
    """OpenRLHF's checked arguments for a run with one rank of each kind."""
    batch, rate = run.training.batch_trajectories, run.training.learning_rate
    flags = {
        "--actor.model_name_or_path": folder / "policy",
        "--critic.model_name_or_path": folder / "policy",
        "--actor.num_gpus_per_node": 1,
        "--critic.num_gpus_per_node": 1,
        "--vllm.num_engines": 1,
        "--vllm.sync_backend": "gloo",
        "--reward.remote_url": "agent",
        "--data.prompt_dataset": "none",
        "--data.max_len": 128,
        "--rollout.batch_size": batch // run.sampling.group_size,
        "--rollout.n_samples_per_prompt": run.sampling.group_size,
        "--rollout.micro_batch_size": 2,
        "--train.batch_size": batch // run.minibatches_per_batch,
        "--train.micro_batch_size": 2,
        "--algo.advantage.estimator": "gae" if run.critic else "reinforce",
        "--algo.kl.init_coef": 0,
        "--ds.zero_stage": zero_stage,
        "--actor.adam.lr": rate,
        "--critic.adam.lr": rate * (run.critic.learning_rate_factor if run.critic else 1),
        "--actor.lr_scheduler": "constant",
        "--critic.lr_scheduler": "constant",
        "--actor.max_norm": run.optimizer.gradient_clip,
        "--critic.max_norm": run.optimizer.gradient_clip,
        "--actor.adam.weight_decay": run.optimizer.weight_decay,
        "--critic.adam.weight_decay": run.optimizer.weight_decay,
        "--ckpt.path": folder / "none",
    }
    words = [str(word) for flag in flags.items() for word in flag]
    words += ["--actor.adam.betas", *map(str, run.optimizer.betas)]
    words += ["--critic.adam.betas", *map(str, run.optimizer.betas)]
    if packing:
        words += ["--ds.packing_samples", "--train.dynamic_batch_enable", "--train.max_tokens_per_gpu", "48"]
    if checkpointing:
        words += ["--actor.gradient_checkpointing_enable"]
    parsed = parse(words)
    parsed.ds.param_dtype = dtype
    parsed.train.batch_size = batch // run.minibatches_per_batch
    values = folder / "values"
    parsed.sao = run
    parsed.run_settings = RunSettings(
        directory=folder / "run", value_model=values if values.exists() else None
    )
    return parsed


class Actors:
    """The policy's and, where the row has one, the critic's actor of a run."""

    def __init__(
        self,
        run: RunConfig,
        folder: Path,
        dtype: str = cpu.FLOAT32,
        packing: bool = False,
        zero_stage: int = 2,
        resume_from: Path | None = None,
        checkpointing: bool = False,
    ) -> None:
        self.arguments = arguments(run, folder, dtype, packing, zero_stage, checkpointing)
        if resume_from is not None:
            self.arguments.ckpt.load_enable, self.arguments.ckpt.path = True, str(resume_from)
        path = str(folder / "policy")
        self.policy = PolicyActor(1, 0, "127.0.0.1", None)
        self.policy.init_model_from_pretrained(make_strategy(self.arguments), path, 10, None)
        self.critic = None
        if run.critic is not None:
            self.critic = CriticActor(1, 0, "127.0.0.1", self.policy._master_port)
            self.critic.init_model_from_pretrained(make_strategy(deepcopy(self.arguments)), path, 10)

    def maker(self) -> ExperienceMaker:
        """What trains the two on batches; needs `ray.get` to hand back what it is given."""
        strategy = SimpleNamespace(args=self.arguments)
        critic = None if self.critic is None else Group(self.critic)
        tokenizer = SimpleNamespace(pad_token_id=0)
        return ExperienceMaker(Group(self.policy), critic, None, None, None, strategy, tokenizer)

    def policy_weights(self) -> dict[str, torch.Tensor]:
        """A copy of every tensor of the policy."""
        return copies(self.policy.actor.model.module)

    def critic_weights(self) -> dict[str, torch.Tensor]:
        """A copy of every tensor of the critic."""
        assert self.critic is not None
        return copies(self.critic.critic.module)


def copies(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A copy of every parameter, whole also where ZeRO-3 keeps parts."""
    parameters = list(module.parameters())
    sharded = any(hasattr(parameter, "ds_id") for parameter in parameters)
    with deepspeed.zero.GatheredParameters(parameters, enabled=sharded):
        return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
