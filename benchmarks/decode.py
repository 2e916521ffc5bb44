"""Speed of the decode engine against transformers' `generate`, as ratios within one run, on one thread.

    python benchmarks/decode.py

Both sample from the same policy (scale cpu's model, unrounded) with 256 sequences at once and a key-value
cache; lengths are drawn beforehand, so that both make the same tokens.

1. Heavy-tailed: 1,024 episodes with as many tokens as the action tokens of 1,024 demonstrations of `locks`,
   in random order. `generate` takes them in static batches, each of which waits for its longest member; the
   engine refills a slot as soon as it is free. Compared: useful tokens per second.
2. Equal: 256 sequences of 96 tokens. Compared: time per token.

`generate` runs with each of transformers' expert implementations and the fastest counts; it keeps no
log-probs, while the engine's sampler records one for each token. The construction of the models and of the
engine is not timed. Exits 1 when a ratio is below 2.5 or 1.3.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from transformers import GenerationConfig, Qwen3MoeForCausalLM, StoppingCriteria

from sao.config import load_scale
from sao.environments import make_environment
from sao.environments.base import Environment, Instance, StepResult
from sao.local.decode import DecodeEngine
from sao.local.model import build_policy
from sao.local.sampler import Sampler, sample_all

SLOTS, PROMPT_TOKENS = 256, 7
EPISODES = 4 * SLOTS
EQUAL_TOKENS = 96
MAX_TOKENS = 256
REPEATS = 5
EXPERT_IMPLEMENTATIONS = ("eager", "batched_mm", "grouped_mm")


@dataclass
class FixedEpisode:
    """One action of a given number of tokens, whatever they are."""

    prompt_ids: list[int]
    tokens: int

    def action_complete(self, action_ids: Sequence[int]) -> bool:
        return len(action_ids) == self.tokens

    def step(self, action_ids: Sequence[int]) -> StepResult:
        return StepResult([], True, 0.0)

    def details(self) -> dict[str, str | int]:
        return {}


class FixedLengths:
    """Stands for an environment; an instance's payload is its number of tokens."""

    def start(self, instance: Instance, progress: float) -> FixedEpisode:
        return FixedEpisode([1] * PROMPT_TOKENS, *instance.payload)


class Finished(StoppingCriteria):
    """Rows are done when their own number of tokens is there."""

    def __init__(self, lengths: torch.Tensor) -> None:
        self.ends = lengths + PROMPT_TOKENS

    def __call__(self, input_ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
        return input_ids.shape[1] >= self.ends


def run_engine(engine: DecodeEngine, lengths: Sequence[int]) -> int:
    """Samples all episodes with continuous batching; returns the number of tokens sampled."""
    sampler = Sampler(engine, seed=0)
    environment: Environment = FixedLengths()  # type: ignore[assignment]
    instances = [Instance(str(place), None, (length,)) for place, length in enumerate(lengths)]
    return sum(len(rollout.logprobs) for rollout in sample_all(sampler, environment, instances, 0.0))


def run_generate(policy: Qwen3MoeForCausalLM, lengths: Sequence[int]) -> int:
    """Samples all episodes in static batches; returns the number of useful tokens, the padding left out."""
    settings = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_length=MAX_TOKENS,
        pad_token_id=0,
        use_cache=True,
    )
    useful = 0
    for start in range(0, len(lengths), SLOTS):
        batch = torch.tensor(lengths[start : start + SLOTS])
        prompts = torch.ones(len(batch), PROMPT_TOKENS, dtype=torch.int64)
        tokens = policy.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            generation_config=settings,
            stopping_criteria=[Finished(batch)],
        )
        assert tokens.shape[1] == PROMPT_TOKENS + batch.max()
        useful += int(batch.sum())
    return useful


def rate(run: Callable[[], int]) -> float:
    """Useful tokens per second of processor time."""
    start = time.process_time()
    tokens = run()
    return tokens / (time.process_time() - start)


def compare(
    name: str, policies: dict[str, Qwen3MoeForCausalLM], lengths: Sequence[int], least: float
) -> bool:
    """Prints medians over repeats, timed in turn, and the ratio; returns whether it is at least `least`."""
    engine = DecodeEngine(policies["eager"], SLOTS, MAX_TOKENS, rounding="none")
    rates: list[float] = []
    generate: dict[str, list[float]] = {kind: [] for kind in policies}
    for _ in range(REPEATS):
        rates.append(rate(partial(run_engine, engine, lengths)))
        for kind, policy in policies.items():
            generate[kind].append(rate(partial(run_generate, policy, lengths)))
    ours = statistics.median(rates)
    theirs = {kind: statistics.median(measured) for kind, measured in generate.items()}
    fastest = max(theirs, key=theirs.__getitem__)
    ratio = ours / theirs[fastest]
    print(
        f"{name}: {len(lengths)} sequences, {sum(lengths)} tokens, mean {np.mean(lengths):.1f}, "
        f"longest {max(lengths)}"
    )
    others = ", ".join(f"{kind} {value:.0f}" for kind, value in theirs.items())
    print(
        f"  engine {ours:.0f} tokens/s; generate {others}; {ratio:.2f} times the fastest "
        f"(at least {least} wanted)"
    )
    return ratio >= least


def main() -> int:
    torch.set_num_threads(1)
    scale = load_scale("cpu")
    environment = make_environment(scale.task("locks"))
    rng = np.random.default_rng(0)
    heavy = [sum(environment.demonstration(rng)[1]) for _ in range(EPISODES)]
    exact = build_policy(scale.model, len(environment.vocabulary), MAX_TOKENS, seed=0).eval()
    policies = {}
    for kind in EXPERT_IMPLEMENTATIONS:
        config = type(exact.config).from_dict(exact.config.to_dict() | {"use_cache": True})
        policies[kind] = Qwen3MoeForCausalLM._from_config(
            config, attn_implementation="sdpa", experts_implementation=kind
        )
        policies[kind].load_state_dict(exact.state_dict())
        policies[kind].eval()
    enough = [
        compare("heavy-tailed", policies, heavy, least=2.5),
        compare("equal lengths", policies, [EQUAL_TOKENS] * SLOTS, least=1.3),
    ]
    return 0 if all(enough) else 1


if __name__ == "__main__":
    sys.exit(main())
