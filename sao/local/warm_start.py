"""What all rows of a task share: the warm-started policy and the pretrained value models.

The policy learns from a noisy demonstrator by supervised fine-tuning; a value model learns, critic alone, the
final returns of that policy's own rollouts, with the parameters frozen that its rows freeze.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3MoeForCausalLM

from sao import critic, metrics
from sao.advantages import returns
from sao.config_scales import ScaleSettings
from sao.environments.base import Environment
from sao.local.decode import DecodeEngine
from sao.local.model import PackedTokens, build_policy, on_device
from sao.local.packed_batch import (
    PackedBatch,
    optimizer_step,
    prefix_values,
    selected_logprobs,
    set_learning_rate,
)
from sao.local.sampler import Sampler, sample_all
from sao.trajectory import Trajectory

Report = Callable[[dict[str, Any]], None]
Demonstration = tuple[list[int], list[bool]]
"""Token ids and action mask of one episode."""

LEARNING_RATE_WARM_UP_STEPS = 50
GRADIENT_CLIP = 1.0


def initial_policy(scale: ScaleSettings, environment: Environment, seed: int) -> Qwen3MoeForCausalLM:
    """The fresh policy that fine-tuning starts from."""
    policy = build_policy(scale.model, len(environment.vocabulary), scale.sampler.max_tokens, seed)
    return on_device(policy, scale.device)


def train_policy(
    scale: ScaleSettings, environment: Environment, seed: int, report: Report
) -> Qwen3MoeForCausalLM:
    """Fine-tune a fresh policy on the demonstrator's action tokens (AdamW, cosine learning rate)."""
    settings = scale.supervised_warm_start
    policy = initial_policy(scale, environment, seed)
    rng = np.random.default_rng([seed, 4])
    demonstrations = [environment.demonstration(rng)[:2] for _ in range(settings.demonstrations)]
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    batches = demonstration_batches(demonstrations, settings.batch_size, rng)
    for step in range(settings.steps):
        rate = (
            min(1.0, (step + 1) / LEARNING_RATE_WARM_UP_STEPS)
            * 0.5
            * (1 + math.cos(math.pi * step / settings.steps))
        )
        set_learning_rate(optimizer, settings.learning_rate * rate)
        loss = imitation_loss(policy, next(batches), settings.observation_weight)
        norms = optimizer_step(policy, optimizer, loss, GRADIENT_CLIP)
        report(
            {"step": step + 1, "steps": settings.steps, "loss": loss.item(), "gradient_norm": norms["all"]}
        )
    return policy


def demonstration_batches(
    demonstrations: list[Demonstration], batch_size: int, rng: np.random.Generator
) -> Iterator[list[Demonstration]]:
    """Batches of episodes of like length, in a new random order each epoch, without end."""
    while True:
        jitter = rng.uniform(0, 30, len(demonstrations))
        order = np.argsort(
            [len(token_ids) + extra for (token_ids, _), extra in zip(demonstrations, jitter, strict=True)]
        )
        starts = np.arange(0, max(len(order) - batch_size, 0) + 1, batch_size)
        for start in rng.permutation(starts):
            yield [demonstrations[place] for place in order[start : start + batch_size]]


def imitation_loss(
    policy: Qwen3MoeForCausalLM, batch: list[Demonstration], observation_weight: float
) -> Tensor:
    """Weighted mean of the negative log-prob of all tokens but the first of each episode.

    Action tokens weigh 1, prompt and observation tokens `observation_weight`.
    """
    lengths = torch.tensor([len(token_ids) for token_ids, _ in batch])
    token_ids = torch.zeros(len(batch), int(lengths.max()), dtype=torch.int64)
    weights = torch.zeros(token_ids.shape)
    for row, (ids, actions) in enumerate(batch):
        token_ids[row, : len(ids)] = torch.tensor(ids)
        weights[row, 1 : len(ids)] = torch.where(torch.tensor(actions[1:]), 1.0, observation_weight)
    token_ids, weights = token_ids.to(policy.device), weights.to(policy.device)
    packed = PackedTokens.from_padded(token_ids, lengths.to(policy.device))
    weighted = weights > 0
    logprobs, _ = selected_logprobs(policy, packed, token_ids, weighted)
    return -(logprobs * weights[weighted]).sum() / weights.sum()


def sample_trajectories(
    scale: ScaleSettings, environment: Environment, policy: Qwen3MoeForCausalLM, count: int, seed: int
) -> list[Trajectory]:
    """`count` rollouts of the policy over the training pool, with the sampler's rounding."""
    engine = DecodeEngine(policy, scale.sampler.slots, scale.sampler.max_tokens, scale.sampler.rounding)
    pool = environment.instances("train")
    instances = [pool[index % len(pool)] for index in range(count)]
    trajectories = (
        rollout.to_trajectory()
        for rollout in sample_all(Sampler(engine, seed), environment, instances, progress=0.0)
    )
    return [trajectory for trajectory in trajectories if trajectory.usable]


def train_value_model(
    scale: ScaleSettings,
    environment: Environment,
    policy: Qwen3MoeForCausalLM,
    frozen: critic.Frozen,
    seed: int,
    report: Report,
) -> critic.ValueModel:
    """Value pretraining on the policy's rollouts over the training pool."""
    rollouts = scale.value_pretraining.rollouts
    trajectories = sample_trajectories(scale, environment, policy, rollouts, seed)
    return fit_value_model(scale, policy, trajectories, frozen, seed, report)


def fit_value_model(
    scale: ScaleSettings,
    policy: Qwen3MoeForCausalLM,
    trajectories: list[Trajectory],
    frozen: critic.Frozen,
    seed: int,
    report: Report,
) -> critic.ValueModel:
    """Value pretraining on given rollouts of the policy, target the final return (AdamW, linear decay)."""
    settings = scale.value_pretraining
    value_model = critic.ValueModel.from_policy(policy)
    critic.freeze(value_model, frozen)
    trained = [parameter for parameter in value_model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    rng = np.random.default_rng([seed, 5])
    per_epoch = math.ceil(len(trajectories) / settings.batch_trajectories)
    steps, step = settings.epochs * per_epoch, 0
    for _ in range(settings.epochs):
        order = rng.permutation(len(trajectories))
        for rows in np.array_split(order, per_epoch):
            set_learning_rate(optimizer, settings.learning_rate * (1 - step / steps))
            data = PackedBatch.from_trajectories([trajectories[row] for row in rows], policy.device)
            mask = data.batch.action_mask
            targets = returns(data.batch.rewards, mask, 1.0)
            values, _ = prefix_values(value_model, data)
            explained = metrics.explained_variance(values.detach(), targets, mask)
            loss = critic.value_loss(values, targets, mask)
            optimizer_step(value_model, optimizer, loss, GRADIENT_CLIP)
            step += 1
            report({"step": step, "steps": steps, "loss": loss.item(), "explained_variance": explained})
    return value_model
