"""What the local engine's tests share: tiny policies, configurations, made-up trajectories, a toy task."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3MoeForCausalLM

from sao import config
from sao.config import RunConfig
from sao.config_scales import Model
from sao.environments.base import EnvironmentFailure, Instance, StepResult, content_hash
from sao.local.model import build_policy
from sao.local.packed_batch import PackedBatch, policy_logprobs
from sao.trajectory import Trajectory

VOCABULARY = 12
MODEL = Model(
    hidden_size=32,
    layers=2,
    attention_heads=4,
    key_value_heads=2,
    experts=4,
    experts_per_token=2,
    expert_intermediate_size=16,
    initializer_range=0.3,
)
SMALL_MODEL = MODEL.model_copy(update={"hidden_size": 16, "layers": 1, "attention_heads": 2})


def tiny_policy(seed: int = 0, model: Model = MODEL, max_tokens: int = 128) -> Qwen3MoeForCausalLM:
    """A random policy whose distributions are far from uniform."""
    return build_policy(model, VOCABULARY, max_tokens, seed).eval()


def run_config(row: str, scale: str = "smoke", **blocks: dict[str, Any] | int) -> RunConfig:
    """The row at a scale with some keys of some blocks changed, validated again."""
    settings = config.resolve(row, scale, 0).model_dump()
    for name, changes in blocks.items():
        settings[name] = {**settings[name], **changes} if isinstance(changes, dict) else changes
    return RunConfig.model_validate(settings)


def random_trajectories(
    policy: Qwen3MoeForCausalLM, count: int, seed: int = 0, noise: float = 0.3, group_size: int = 1
) -> list[Trajectory]:
    """Trajectories of random tokens in one to three actions; rollout log-probs are the policy's plus noise.

    Rewards are 0 or 1, the prompts a group's own.
    """
    rng = np.random.default_rng(seed)
    drawn = []
    for index in range(count):
        spans, end = [], int(rng.integers(1, 5))
        for _ in range(rng.integers(1, 4)):
            start, end = end, end + int(rng.integers(1, 6))
            spans.append((start, end))
            end += int(rng.integers(0, 4))
        tokens = rng.integers(1, VOCABULARY, end)
        group = index // group_size
        drawn.append(
            trajectory(tokens, spans, reward=float(rng.integers(2)), prompt_id=f"p{group}", group_id=group)
        )
    with torch.no_grad():
        logprobs, _ = policy_logprobs(policy, PackedBatch.from_trajectories(drawn, policy.device))
    for row, made in zip(logprobs.numpy(), drawn, strict=True):
        noisy = row[: len(made.token_ids)] + rng.normal(0, noise, len(made.token_ids))
        made.rollout_logprobs = np.where(made.action_mask, np.minimum(noisy, 0), np.nan).astype(np.float32)
    return drawn


def trajectory(tokens: Sequence[int], spans: Sequence[tuple[int, int]], **fields: Any) -> Trajectory:
    """A trajectory whose action tokens all have log-prob -1 and version 0."""
    logprobs = np.full(len(tokens), np.nan, dtype=np.float32)
    versions = np.full(len(tokens), -1)
    for start, end in spans:
        logprobs[start:end], versions[start:end] = -1.0, 0
    return Trajectory(
        token_ids=np.asarray(tokens),
        action_spans=np.asarray(spans, dtype=np.int64).reshape(-1, 2),
        rollout_logprobs=logprobs,
        policy_versions=versions,
        **{"reward": 0.0, **fields},
    )


def plain_logprobs(policy: Qwen3MoeForCausalLM, token_ids: Sequence[int]) -> Tensor:
    """log p(token | prefix) of each token but the first, float32 [tokens - 1].

    Computed by transformers' own attention on the one unpadded sequence, with the whole logits.
    """
    tokens = torch.as_tensor(np.asarray(token_ids))[None]
    policy.set_attn_implementation("eager")
    try:
        logits = policy(input_ids=tokens).logits[0, :-1]
    finally:
        policy.set_attn_implementation("sao_bucketed")
    return logits.log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]


@dataclass
class ToyEpisode:
    """`actions` actions of `action_tokens` tokens each, whatever they are, with two tokens between them."""

    prompt_ids: list[int]
    actions: int
    action_tokens: int
    reward: float
    breaks: bool = False

    def action_complete(self, action_ids: Sequence[int]) -> bool:
        return len(action_ids) == self.action_tokens

    def step(self, action_ids: Sequence[int]) -> StepResult:
        if self.breaks:
            raise EnvironmentFailure("the tool is gone")
        self.actions -= 1
        if self.actions == 0:
            return StepResult([], True, self.reward)
        return StepResult([1, 2], False, 0.0)

    def details(self) -> dict[str, str | int]:
        return {}


@dataclass
class ToyEnvironment:
    """A task whose lengths, rewards and faults the test sets.

    `episode(place, attempt)` gives the keyword arguments of a ToyEpisode for the place of the instance in its
    pool and the number of earlier attempts at it; it may raise EnvironmentFailure.
    """

    pool: int = 64
    episode: Callable[[int, int], dict[str, Any]] = lambda place, attempt: {}
    vocabulary: tuple[str, ...] = tuple(str(token) for token in range(VOCABULARY))
    max_episode_tokens: int = 128
    started: list[int] = field(default_factory=list)

    def instances(self, split: str) -> list[Instance]:
        return [Instance(content_hash((split, place)), None, (place,)) for place in range(self.pool)]

    def start(self, instance: Instance, progress: float) -> ToyEpisode:
        (place,) = instance.payload
        attempt = self.started.count(place)
        self.started.append(place)
        given = {"actions": 2, "action_tokens": 3, "reward": float(place % 2)} | self.episode(place, attempt)
        return ToyEpisode(prompt_ids=[1, 3 + place % (VOCABULARY - 3)], **given)

    def demonstration(self, rng: np.random.Generator) -> tuple[list[int], list[bool], float]:
        raise NotImplementedError
