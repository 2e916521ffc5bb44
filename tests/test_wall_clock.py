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
from sao.local.wall_clock import Collector, ServedPolicy
from sao.streaming import SchedulingError, Taken
from sao.trajectory import Batch, Trajectory
from sao.wall_clock_stream import Request

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


def collector(run: RunConfig, rollout: Callable[..., Trajectory], slots: int, **load: Any) -> Collector:
    """Of rollouts that are told instance, index and group; begun with version 0."""
    run = run.model_copy(update={"sampler": run.sampler.model_copy(update={"slots": slots})})

    def timed(request: Request) -> tuple[Trajectory, int]:
        return rollout(request.instance, request.index, request.group_id), 5

    made = Collector(run, INSTANCES, timed, load.get("load", lambda version: None))
    made.begin(0)
    return made


def indices(taken: Taken) -> list[int]:
    """In the order of finishing: a batch is shuffled."""
    return sorted(trajectory.index for trajectory in taken.trajectories)


def test_batches_are_filled_in_the_order_of_finishing_and_never_wait_for_a_straggler() -> None:
    go_on = threading.Event()

    def rollout(instance: Instance, index: int, group: int) -> Trajectory:
        if index == 0:
            go_on.wait(20)
        return made(index, group)

    with collector(configured(), rollout, 2) as collecting:
        assert indices(collecting.next_batch()) == [1, 2, 3, 4]
        go_on.set()
        time.sleep(0.1)
        collecting.end_update(trains_policy=True)
        assert 0 in indices(collecting.next_batch())


def test_nobody_waits_for_rollouts_that_are_not_wanted() -> None:
    go_on = threading.Event()

    def rollout(instance: Instance, index: int, group: int) -> Trajectory:
        if index == 0:
            go_on.wait(20)
        return made(index, group)

    with collector(configured(), rollout, 2) as collecting:
        collecting.next_batch()
        began = time.monotonic()
    assert time.monotonic() - began < 10
    go_on.set()


def test_dynamic_sampling_replaces_groups_of_one_reward() -> None:
    """Of the groups 0, 1, 2, ... of two members those with an even number have one reward."""
    run = configured("grpo_dis")
    sampling = run.sampling.model_copy(update={"group_size": 2, "dynamic_sampling": True})

    def rollout(instance: Instance, index: int, group: int) -> Trajectory:
        return replace(made(index, group), reward=float(group % 2 * (index % 2)))

    with collector(run.model_copy(update={"sampling": sampling}), rollout, 1) as collecting:
        taken = collecting.next_batch()
        assert sorted(trajectory.group_id for trajectory in taken.trajectories) == [1, 1, 3, 3]
        assert taken.counters.filtered_groups == 2


def test_groups_stay_together() -> None:
    run = configured("grpo_dis")
    run = run.model_copy(update={"sampling": run.sampling.model_copy(update={"group_size": 2})})
    prompts: dict[int, set[str]] = {}

    def rollout(instance: Instance, index: int, group: int) -> Trajectory:
        prompts.setdefault(group, set()).add(instance.prompt_id)
        time.sleep(0.002 * (index % 3))
        return made(index, group)

    with collector(run, rollout, 3) as collecting:
        for _ in range(3):
            groups = [trajectory.group_id for trajectory in collecting.next_batch().trajectories]
            assert groups[0] == groups[1] != groups[2] == groups[3]
            collecting.end_update(trains_policy=True)
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

    with collector(configured(), rollout, 1) as collecting:
        taken = collecting.next_batch()
        assert (len(taken.trajectories), taken.counters.invalid) == (4, 2)
        assert collecting.taken_reasons() == ["no container"] * 2 and collecting.taken_reasons() == []
    place = tried.index(INSTANCES[1].prompt_id)
    assert tried[place : place + 3] == [INSTANCES[1].prompt_id] * 3


def test_a_broken_environment_ends_the_run_and_a_bug_does_at_once() -> None:
    def broken(instance: Instance, index: int, group: int) -> Trajectory:
        raise EnvironmentFailure("no container")

    with (
        collector(configured(), broken, 2) as collecting,
        pytest.raises(
            SchedulingError, match=r"81 trajectories ended in an environment error .* with: no container"
        ),
    ):
        collecting.next_batch()

    def bug(instance: Instance, index: int, group: int) -> Trajectory:
        raise TypeError("a bug")

    with collector(configured(), bug, 1) as collecting, pytest.raises(TypeError, match="a bug"):
        collecting.next_batch()


def test_what_is_too_old_is_dropped_and_counted() -> None:
    version = iter([0, 0, 3, 3, 3, 3, 3, 3, 3, 3])

    def rollout(instance: Instance, index: int, group: int) -> Trajectory:
        return made(index, group, next(version))

    with collector(configured(max_staleness=2), rollout, 1) as collecting:
        collecting.begin(3)
        taken = collecting.next_batch()
        assert indices(taken) == [2, 3, 4, 5] and taken.counters.dropped_stale == 2


def test_weights_are_loaded_at_their_interval_and_ticks_are_milliseconds() -> None:
    """Every second update of the policy; the critic's own steps have none."""
    run = configured()
    run = run.model_copy(update={"clock": run.clock.model_copy(update={"sync_interval": 2})})
    loaded: list[int] = []

    def rollout(instance: Instance, index: int, group: int) -> Trajectory:
        time.sleep(0.01)
        return made(index, group)

    with collector(run, rollout, 2, load=loaded.append) as collecting:
        for trains in (False, True, True, True, True):
            taken = collecting.next_batch()
            time.sleep(0.02)
            assert 20 <= collecting.end_update(trains) < 5000
        assert loaded == [2, 4] and collecting.version == 4
        assert all(one.start_tick <= one.end_tick <= one.graded_tick <= taken.tick for one in taken.rollouts)


def test_a_resumed_collector_goes_on_with_order_and_finished_rollouts() -> None:
    def rollout(instance: Instance, index: int, group: int) -> Trajectory:
        return made(index, group)

    with collector(configured(), rollout, 1) as collecting:
        collecting.next_batch()
        collecting.end_update(trains_policy=True)
        saved = collecting.state_dict()
    with collector(configured(), rollout, 1) as resumed:
        resumed.load_state_dict(saved)
        resumed.begin(resumed.version)
        assert resumed.version == 1
        groups = {trajectory.group_id for trajectory in resumed.next_batch().trajectories}
    assert groups == {4, 5, 6, 7}  # none is lost or trained on twice


def over_http(url: str) -> Callable[[Instance, int, int], Trajectory]:
    """A rollout of eight tokens whose reward is that its first token is even."""

    def rollout(instance: Instance, index: int, group: int) -> Trajectory:
        async def sample() -> Any:
            async with Endpoint(url, "tiny") as endpoint:
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
    lags, records = [], []
    with ServedPolicy(policy, run, "tiny") as served:

        def load(version: int) -> None:
            served.load(policy, version)

        with collector(run, over_http(served.url), 2, load=load) as collecting:
            for step in range(-1, 4):
                taken = collecting.next_batch()
                versions = Batch.from_trajectories(taken.trajectories).policy_versions
                lags.append(collecting.version - int(versions[versions >= 0].min()))
                records.append(trainer.update(taken.trajectories, step))
                collecting.end_update(trains_policy=step >= 0)
        assert served.engine.version == 4
        assert torch.equal(served.engine.engine.embedding, policy.model.embed_tokens.weight)
    assert "policy_grad_norm" not in records[0]
    assert all(record["policy_grad_norm"] > 0 for record in records[1:])
    assert any(not torch.equal(before[name], tensor) for name, tensor in policy.state_dict().items())
    # With a queue of one batch and two rollouts under way nothing can be older than a few versions.
    assert all(0 <= lag <= 2 for lag in lags)
    # Log-probs over HTTP are those of the trainer's own forward on the same weights.
    assert records[1]["ratio_q50"] == pytest.approx(1.0, abs=1e-3)
