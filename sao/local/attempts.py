"""Attempts of a policy that agents call over HTTP, in the local engine."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from transformers import Qwen3MoeForCausalLM

from sao.config_scales import ScaleSettings
from sao.environments.base import EnvironmentFailure, Instance
from sao.environments.swe import SWEEnvironment
from sao.local.wall_clock import ServedPolicy
from sao.trajectory import Trajectory

TRIES = 3  # of an attempt whose environment breaks
MODEL_NAME = "policy"


def sample_attempts(
    scale: ScaleSettings,
    environment: SWEEnvironment,
    policy: Qwen3MoeForCausalLM,
    instances: Sequence[Instance],
    rounding: str,
    version: int = 0,
) -> list[Trajectory | None]:
    """One attempt at each instance with weights of `version`; None where its environment broke each time.

    `rounding` is that of the sampler's copy of the weights.
    """
    from evaluation.endpoint import Endpoint

    with (
        ServedPolicy(policy, scale, MODEL_NAME, rounding=rounding) as served,
        ThreadPoolExecutor(scale.sampler.slots) as pool,
    ):
        served.load(policy, version)
        endpoint = Endpoint(served.url, MODEL_NAME)

        def attempt(index: int, instance: Instance) -> Trajectory | None:
            for _ in range(TRIES):
                try:
                    return environment.rollout(instance, index, engine=endpoint)
                except EnvironmentFailure:
                    continue
            return None

        return list(pool.map(attempt, range(len(instances)), instances))
