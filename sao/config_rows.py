"""Schema of a row: the settings that make a table row what it is, the same at every scale.

Every key carries a `source` (the paper, with the place where known, or "decision" where the paper is silent),
printed by `python -m sao.config show` and listed in docs/configuration.md.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo

Domain = Literal["reasoning", "coding", "writing"]
Frozen = Literal["attention", "none", "all_but_experts_and_head"]

DECISION = "decision"


class Block(BaseModel):
    """One mapping of a YAML file: frozen, strict about types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_serializer(mode="wrap")
    def _without_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Settings without the `optional` keys that are absent, so that a new one changes no older digest."""
        values = handler(self)
        absent = [
            name
            for name, field in type(self).model_fields.items()
            if getattr(self, name) is None and is_optional(field)
        ]
        return {name: value for name, value in values.items() if name not in absent}


def key(meaning: str, source: str | None = None, default: Any = ..., **limits: Any) -> Any:
    """A documented key; `source` tells where a row's base value comes from, keys of scales have none."""
    extra: dict[str, Any] | None = {"source": source} if source else None
    return Field(default, description=meaning, json_schema_extra=extra, **limits)


def optional(meaning: str | None = None, **limits: Any) -> Any:
    """A key that a file may leave out; absent keys are None, and no part of the settings or their digest."""
    return Field(default=None, description=meaning, json_schema_extra={"optional": True}, **limits)


def is_optional(field: FieldInfo) -> bool:
    """Whether the key was declared with `optional`."""
    return isinstance(field.json_schema_extra, dict) and bool(field.json_schema_extra.get("optional"))


def count(meaning: str, source: str | None = None, minimum: int = 1) -> Any:
    """A key that holds a whole number of at least `minimum`."""
    return key(meaning, source, ge=minimum)


def share(meaning: str) -> Any:
    """A key that holds a number in [0, 1]."""
    return key(meaning, ge=0, le=1)


class Sampling(Block):
    schedule: Literal["asynchronous", "synchronous"] = key(
        "whether rollouts go on during updates; synchronous starts none before the update is done", "paper"
    )
    group_size: int = count("trajectories sampled for each prompt", "paper")
    temperature: float = key("sampling temperature in training", DECISION)
    top_p: float = key("nucleus sampling; 1 keeps the log-probs those of the full softmax", DECISION)
    top_k: int = key("top-k sampling; 0 is off", DECISION)
    recompute_kv: bool = key("rebuild the KV cache of running trajectories when new weights arrive", DECISION)
    dynamic_sampling: bool = key("replace groups whose raw rewards are all equal (DAPO)", DECISION)
    overlong_shaping: bool = key("length penalty of the scale's `overlong` block (DAPO)", DECISION)

    @field_validator("temperature", "top_p")
    @classmethod
    def _full_softmax(cls, value: float) -> float:
        if value != 1.0:
            raise ValueError(
                f"{value:g} would make rollout log-probs differ from the trainer's full softmax; set 1.0"
            )
        return value

    @field_validator("top_k")
    @classmethod
    def _no_top_k(cls, value: int) -> int:
        if value != 0:
            raise ValueError(
                f"{value} would make rollout log-probs differ from the trainer's full softmax; set 0"
            )
        return value


class Objective(Block):
    positive_example_coefficient: float = key(
        "weight of the language-model loss on trajectories with a positive reward (VAPO)", "paper", 0.0, ge=0
    )


class DIS(Objective):
    kind: Literal["dis"] = key("direct double-sided importance sampling", "paper, eq. 1-3")
    eps_low: float = key("ratios at or below 1 - eps_low are masked", "paper", gt=0, lt=1)
    eps_high: float = key("ratios at or above 1 + eps_high are masked", "paper", gt=0)


class Clip(Objective):
    clip_low: float = key("the ratio is clipped below at 1 - clip_low", "paper", gt=0, lt=1)
    clip_high: float = key("the ratio is clipped above at 1 + clip_high", "paper", gt=0)


class PPOClip(Clip):
    kind: Literal["ppo_clip"] = key("PPO with separate clip bounds", "paper")
    reference: Literal["trainer", "rollout"] = key(
        "policy in the ratio's denominator: the trainer's at the start of the batch, or the one that sampled",
        "paper",
    )


class GSPO(Clip):
    kind: Literal["gspo"] = key(
        "clipped sequence ratio, the geometric mean over the trajectory's tokens", DECISION
    )


class IcePop(Clip):
    kind: Literal["icepop"] = key("PPO clip times the trainer-to-rollout ratio, 0 outside a band", DECISION)
    band_low: float = key("least ratio that is kept", DECISION, gt=0, lt=1)
    band_high: float = key("largest ratio that is kept", DECISION, gt=1)


class TIS(Clip):
    kind: Literal["tis"] = key("PPO clip times the truncated trainer-to-rollout ratio", DECISION)
    cap: float = key("largest weight a token may get", DECISION, ge=1)


class Advantage(Block):
    whiten: bool = key(
        "shift and scale advantages to mean 0, deviation 1 over the batch's action tokens", DECISION, False
    )


class GAE(Advantage):
    gamma: float = key("discount per action token (per step for step-level GAE)", DECISION, gt=0, le=1)
    alpha: float = key("lambda = 1 - 1/(alpha * length), clamped at 0", "paper", gt=0)


class SkipObservationGAE(GAE):
    kind: Literal["skip_observation_gae"] = key("GAE over action tokens alone", "paper, eq. 4-5")
    bootstrap_truncated: bool = key(
        "add the critic's value after a truncated trajectory's last token", DECISION, False
    )


class FullSequenceGAE(GAE):
    kind: Literal["full_sequence_gae"] = key("GAE that runs through observation tokens", DECISION)
    bootstrap_truncated: bool = key(
        "add the critic's value after a truncated trajectory's last token", DECISION, False
    )


class StepLevelGAE(GAE):
    kind: Literal["step_level_gae"] = key(
        "GAE over steps: one advantage for all tokens of an action", "paper, A.1"
    )
    step_value: Literal["mean", "last"] = key(
        "a step's value: mean of its tokens', or its last token's", "paper, A.1"
    )


class GroupNormalized(Advantage):
    kind: Literal["group_normalized"] = key("(reward - mean) / deviation within the prompt's group", "paper")


class RunningMean(Advantage):
    kind: Literal["running_mean"] = key("reward minus the mean of the latest rewards", "paper")
    window: int = count("rewards in the mean", "paper")
    per_prompt: bool = key(
        "one window for each prompt (first visit: the global mean), or one for all", DECISION
    )


class Critic(Block):
    updates_per_batch: int = count("critic updates per policy update (K)", "paper, section 3.2")
    frozen: Frozen = key(
        "parameters of the value model that reinforcement learning leaves alone", "paper, section 3.2"
    )
    pretrained: bool = key(
        "start from the value model pretrained on rollouts of the initial policy", "paper, section 3.2"
    )
    critic_only_steps: int = count(
        "batches before the first policy update, policy frozen", "paper, section 3.2", 0
    )
    advantages_after_updates: bool = key(
        "recompute values after the critic's updates for the advantages", "paper, section 3.2"
    )
    value_clip: float | None = key("clip range of the value loss; null is off", DECISION, gt=0)
    learning_rate_factor: float = key("critic's learning rate over the policy's", "paper", 5.0, gt=0)


class Optimizer(Block):
    """AdamW of policy and critic."""

    betas: tuple[float, float] = key("decay rates of AdamW's moments", DECISION, (0.9, 0.95))
    weight_decay: float = key("decoupled weight decay", DECISION, 0.0, ge=0)
    gradient_clip: float = key("largest gradient norm", DECISION, 1.0, gt=0)

    @field_validator("betas")
    @classmethod
    def _below_one(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in value):
            raise ValueError(f"{list(value)} is outside [0, 1); the usual setting is [0.9, 0.95]")
        return value


class RowSettings(Block):
    """What a row of a table fixes at every scale."""

    title: str = key("name in tables and figures", DECISION, min_length=1)
    domain: Domain = key("which of the scale's tasks the row trains on", "paper")
    sampling: Sampling
    objective: Annotated[DIS | PPOClip | GSPO | IcePop | TIS, Field(discriminator="kind")]
    advantage: Annotated[
        SkipObservationGAE | FullSequenceGAE | StepLevelGAE | GroupNormalized | RunningMean,
        Field(discriminator="kind"),
    ]
    critic: Critic | None
    optimizer: Optimizer = Optimizer()
    minibatches_per_batch: int = key("policy updates per batch", "paper", 1, ge=1)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        grouped = self.advantage.kind == "group_normalized"
        needs_critic = isinstance(self.advantage, GAE)
        if grouped and self.sampling.group_size == 1:
            raise ValueError(
                "sampling.group_size: 1 leaves group_normalized advantages no group; set 2 or more (paper: 8)"
            )
        if not grouped and self.sampling.group_size > 1:
            raise ValueError(
                f"sampling.group_size: {self.sampling.group_size} samples groups that {self.advantage.kind} "
                "does not use; set 1, or advantage.kind: group_normalized"
            )
        if self.sampling.dynamic_sampling and not grouped:
            raise ValueError("sampling.dynamic_sampling: replaces groups, and this row has none; set false")
        if needs_critic and self.critic is None:
            raise ValueError(
                f"critic: null, but advantage.kind {self.advantage.kind} reads its values; keep the critic"
            )
        if not needs_critic and self.critic is not None:
            raise ValueError(f"critic: {self.advantage.kind} advantages use no critic; set critic: null")
        return self


class RowConfig(RowSettings):
    """A row file merged over rows/sao.yaml."""

    name: str
    group: Literal["paper", "beyond"] = key(
        "whether the paper has this row or a careful reader asks for it", DECISION
    )
