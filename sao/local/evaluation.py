"""Held-out evaluation of a policy in the local engine, with exact weights."""

from collections import Counter
from typing import Any

import numpy as np
from transformers import Qwen3MoeForCausalLM

from sao.config_scales import ScaleSettings
from sao.environments.base import Environment
from sao.local.decode import DecodeEngine
from sao.local.sampler import Rollout, Sampler, sample_all


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


def evaluation_lines(rollouts: list[Rollout], benchmark: str, step: int) -> list[dict[str, Any]]:
    """One log line per rollout; repetitions of a problem are numbered in the order given."""
    seen: Counter[str] = Counter()
    lines = []
    for rollout in rollouts:
        problem = rollout.instance.prompt_id
        lines.append(
            {
                "step": step,
                "benchmark": benchmark,
                "problem_id": problem,
                "run_index": seen[problem],
                "correct": rollout.reward > 0,
                "status": rollout.status,
                "turns": len(rollout.action_spans),
                "action_tokens": len(rollout.logprobs),
                "label": rollout.instance.label,
                "style": rollout.episode.details().get("style") if rollout.episode else None,
                "reward": rollout.reward,
            }
        )
        seen[problem] += 1
    return lines
