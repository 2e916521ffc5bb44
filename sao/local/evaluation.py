"""Held-out evaluation of a policy in the local engine, with exact weights."""

import numpy as np
from transformers import Qwen3MoeForCausalLM

from sao.config_scales import ScaleSettings
from sao.environments.base import Environment
from sao.local.decode import DecodeEngine
from sao.local.sampler import Rollout, Sampler, sample_all
from sao.step_log import Sample


def evaluate(
    scale: ScaleSettings,
    environment: Environment,
    policy: Qwen3MoeForCausalLM,
    step: int,
    progress: float,
    seed: int,
) -> list[Rollout]:
    """Rollouts of every held-out problem, `runs_per_problem` times over, sampled after `step` policy updates.

    The random state depends on seed and step alone, so all rows of a seed see the same draws.
    """
    engine = DecodeEngine(policy, scale.sampler.slots, scale.sampler.max_tokens, rounding="none")
    draws = int(np.random.default_rng([seed, 3, step]).integers(2**31))
    sampler = Sampler(engine, draws, scale.evaluation.temperature)
    sampler.version = step
    problems = environment.instances("held_out")
    return sample_all(sampler, environment, problems * scale.evaluation.runs_per_problem, progress)


def sample_of(rollout: Rollout) -> Sample:
    """How a rollout ended, for the log."""
    style = rollout.episode.details().get("style") if rollout.episode else None
    turns, action_tokens = len(rollout.action_spans), len(rollout.logprobs)
    return Sample(rollout.instance, rollout.status, rollout.reward, turns, action_tokens, style)
