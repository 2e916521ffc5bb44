"""The local engine in wall-clock mode: batches, groups, failures, versions, training a served policy."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from evaluation.endpoint import Endpoint
from sao.config import RunConfig, resolve
from sao.critic import ValueModel
from sao.environments.base import EnvironmentFailure, Instance
from sao.local.model import build_policy
from sao.local.trainer import Trainer
from sao.local.wall_clock import Collector, ServedPolicy, train
from sao.streaming import SchedulingError
from sao.trajectory import Trajectory

INSTANCES = [Instance(f"{number:016x}", None, (number,)) for number in range(4)]
VOCABULARY, PROMPT = 24, [2, 3, 5]


def configured(row: str = "sao", **training: Any) -> RunConfig:
    run = resolve(row, "smoke", 0)
    settings = {"batch_trajectories": 4, "updates": 3, "max_staleness": None} | training
    critic = run.critic and run.critic.model_copy(update={"pretrained": False, "critic_only_steps": 1})
    return run.model_copy(
        update={
            "critic": critic,
            "training": run.training.model_copy(update=settings),
            "sampler": run.sampler.model_copy(update={"slots": 4, "max_tokens": 32, "rounding": "none"}),
            "clock": run.clock.model_copy(update={"sync_interval": 1, "queue_limit_batches": 1}),
        }
    )


def made(index: int, group: int, version: int = 0, reward: float = 1.0) -> Trajectory:
    return Trajectory(
        token_ids=np.array([1, 2, 3]),
        action_spans=np.array([[1, 3]]),
        rollout_logprobs=np.array([np.nan, -1.0, -1.0], dtype=np.float32),
        policy_versions=np.array([-1, version, version]),
        reward=reward,
        group_id=group,
        index=index,
    )


def test_batches_are_filled_in_the_order_of_finishing_and_never_wait_for_a_straggler() -> None:
    go_on = threading.Event()

    def rollout(instance: Instance, index: int, group: int) -> Trajectory:
        if index == 0:
            go_on.wait(20)
        return made(index, group)

    with Collector(configured(), INSTANCES, rollout, concurrency=2) as collector:
        first = collector.next_batch(0)
        assert [trajectory.index for trajectory in first] == [1, 2, 3, 4]
        go_on.set()
        time.sleep(0.1)
        assert 0 in [trajectory.index for trajectory in collector.next_batch(0)]


def test_nobody_waits_for_rollouts_that_are_not_wanted() -> None:
    go_on = threading.Event()

    def rollout(instance: Instance, index: int, group: int) -> Trajectory:
        if index == 0:
            go_on.wait(20)
        return made(index, group)

    with Collector(configured(), INSTANCES, rollout, concurrency=2) as collector:
        collector.next_batch(0)
        began = time.monotonic()
    assert time.monotonic() - began < 10
    go_on.set()


def test_dynamic_sampling_replaces_groups_of_one_reward() -> None:
    """Of the groups 0, 1, 2, ... of two members those with an even number have one reward."""
    run = configured("grpo_dis")
    sampling = run.sampling.model_copy(update={"group_size": 2, "dynamic_sampling": True})

    def rollout(instance: Instance, index: int, group: int) -> Trajectory:
        return replace(made(index, group), reward=float(group % 2 * (index % 2)))

    run = run.model_copy(update={"sampling": sampling})
    with Collector(run, INSTANCES, rollout, concurrency=1) as collector:
        assert [trajectory.group_id for trajectory in collector.next_batch(0)] == [1, 1, 3, 3]
        assert collector.taken()[0].filtered_groups == 2


def test_groups_stay_together() -> None:
    run = configured("grpo_dis")
    run = run.model_copy(update={"sampling": run.sampling.model_copy(update={"group_size": 2})})
    prompts: dict[int, set[str]] = {}

    def rollout(instance: Instance, index: int, group: int) -> Trajectory:
        prompts.setdefault(group, set()).add(instance.prompt_id)
        time.sleep(0.002 * (index % 3))
        return made(index, group)

    with Collector(run, INSTANCES, rollout, concurrency=3) as collector:
        for _ in range(3):
            groups = [trajectory.group_id for trajectory in collector.next_batch(0)]
            assert groups[0] == groups[1] != groups[2] == groups[3]
    assert all(len(found) == 1 for found in prompts.values())


def test_an_invalid_rollout_is_counted_and_its_task_tried_again() -> None:
    failures = Counter({INSTANCES[1].prompt_id: 2})
    tried: list[str] = []

    def rollout(instance: Instance, index: int, group: int) -> Trajectory:
        tried.append(instance.prompt_id)
        if failures[instance.prompt_id] > 0:
            failures[instance.prompt_id] -= 1
            raise EnvironmentFailure("no container")
        return made(index, group)

    with Collector(configured(), INSTANCES, rollout, concurrency=1) as collector:
        assert len(collector.next_batch(0)) == 4
        counts, reasons = collector.taken()
        assert (counts.invalid, reasons) == (2, ["no container"] * 2)
        assert collector.taken()[0].invalid == 0
    place = tried.index(INSTANCES[1].prompt_id)
    assert tried[place : place + 3] == [INSTANCES[1].prompt_id] * 3


def test_a_broken_environment_ends_the_run_and_a_bug_does_at_once() -> None:
    def broken(instance: Instance, index: int, group: int) -> Trajectory:
        raise EnvironmentFailure("no container")

    with (
        Collector(configured(), INSTANCES, broken, concurrency=2) as collector,
        pytest.raises(
            SchedulingError, match=r"81 trajectories ended in an environment error .* with: no container"
        ),
    ):
        collector.next_batch(0)

    def bug(instance: Instance, index: int, group: int) -> Trajectory:
        raise TypeError("a bug")

    with (
        Collector(configured(), INSTANCES, bug, concurrency=1) as collector,
        pytest.raises(TypeError, match="a bug"),
    ):
        collector.next_batch(0)


def test_what_is_too_old_is_dropped_and_counted() -> None:
    version = iter([0, 0, 3, 3, 3, 3, 3, 3, 3, 3])

    def rollout(instance: Instance, index: int, group: int) -> Trajectory:
        return made(index, group, next(version))

    with Collector(configured(max_staleness=2), INSTANCES, rollout, concurrency=1) as collector:
        batch = collector.next_batch(3)
        assert [trajectory.index for trajectory in batch] == [2, 3, 4, 5]
        assert collector.taken()[0].dropped_stale == 2


def over_http(served: ServedPolicy) -> Callable[[Instance, int, int], Trajectory]:
    """A rollout of eight tokens whose reward is that its first token is even."""

    def rollout(instance: Instance, index: int, group: int) -> Trajectory:
        async def sample() -> Any:
            async with Endpoint(served.url, served.model) as endpoint:
                return await endpoint.complete(PROMPT, 8, [], seed=index)

        done = asyncio.run(sample())
        ids, prompt = done.token_ids, len(PROMPT)
        return Trajectory(
            token_ids=np.array(PROMPT + ids),
            action_spans=np.array([[prompt, prompt + len(ids)]]),
            rollout_logprobs=np.array([np.nan] * prompt + done.logprobs, dtype=np.float32),
            policy_versions=np.array([-1] * prompt + done.policy_versions),
            reward=float(ids[0] % 2 == 0),
            prompt_id=instance.prompt_id,
            group_id=group,
            index=index,
        )

    return rollout


def test_a_served_policy_is_trained_and_its_new_weights_are_sampled_from() -> None:
    run = configured(updates=4, batch_trajectories=8, learning_rate=1e-2)
    policy = build_policy(run.model, VOCABULARY, 32, seed=1)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    trainer = Trainer(run, policy, ValueModel.from_policy(policy))
    with (
        ServedPolicy(policy, run, "tiny") as served,
        Collector(run, INSTANCES, over_http(served), concurrency=2) as collector,
    ):
        lines = list(train(run, trainer, served, collector))
        assert served.engine.version == 4
        assert torch.equal(served.engine.engine.embedding, policy.model.embed_tokens.weight)
    assert [line["step"] for line in lines] == [-1, 0, 1, 2, 3]
    assert "policy_grad_norm" not in lines[0] and all(line["policy_grad_norm"] > 0 for line in lines[1:])
    assert any(not torch.equal(before[name], tensor) for name, tensor in policy.state_dict().items())
    assert [line["version"] for line in lines] == [0, 1, 2, 3, 4]
    # With a queue of one batch and two rollouts under way nothing can be older than a few versions.
    assert all(0 <= line["staleness_max"] <= 2 for line in lines)
    # Log-probs over HTTP are those of the trainer's own forward on the same weights.
    assert lines[1]["ratio_q50"] == pytest.approx(1.0, abs=1e-3)
