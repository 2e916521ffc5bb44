"""What every environment promises: disjoint pools, stable instances, token ids, demonstrations."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sao.config import resolve
from sao.environments import make_environment
from sao.environments.base import PADDING_ID, Environment, content_hash, play
from sao.environments.locks import LocksEnvironment
from sao.environments.style import StyleEnvironment

ROWS = {"locks": "sao", "style": "sao_online"}


def task(name: str, **changes: Any) -> Any:
    return resolve(ROWS[name], "cpu", 0).task.model_copy(update=changes)


SHIPPED = {name: make_environment(task(name)) for name in ROWS}
each_environment = pytest.mark.parametrize("name", ROWS)


def prompts(environment: Environment, split: Any) -> set[tuple[int, ...]]:
    return {tuple(environment.start(one, 0.0).prompt_ids) for one in environment.instances(split)}


def test_make_environment_chooses_by_the_block() -> None:
    assert isinstance(SHIPPED["locks"], LocksEnvironment)
    assert isinstance(SHIPPED["style"], StyleEnvironment)


@each_environment
def test_pools_are_full_distinct_and_share_nothing(name: str) -> None:
    train = [one.prompt_id for one in SHIPPED[name].instances("train")]
    held_out = [one.prompt_id for one in SHIPPED[name].instances("held_out")]
    assert (len(train), len(held_out)) == (512, 384)
    assert len({*train, *held_out}) == 512 + 384


@each_environment
def test_pools_follow_the_seed_alone(name: str) -> None:
    again, other = make_environment(task(name)), make_environment(task(name, pool_seed=12345))
    for split in ("train", "held_out"):
        assert again.instances(split) == SHIPPED[name].instances(split)
        assert other.instances(split) != SHIPPED[name].instances(split)


@each_environment
def test_an_instance_keeps_its_split_whatever_the_seed(name: str) -> None:
    other = make_environment(task(name, pool_seed=12345))
    train = {one.prompt_id for one in SHIPPED[name].instances("train")}
    held_out = {one.prompt_id for one in SHIPPED[name].instances("held_out")}
    assert not train & {one.prompt_id for one in other.instances("held_out")}
    assert not held_out & {one.prompt_id for one in other.instances("train")}


def test_prompt_ids_are_hashes_of_the_content() -> None:
    for one in SHIPPED["locks"].instances("train"):
        assert one.prompt_id == content_hash(one.payload)
    # sha256 of the text "((1, 2), 3)"
    assert content_hash(((1, 2), 3)) == "9a82bbf352bde13e"


def test_demonstrations_are_never_held_out() -> None:
    # One code per lock, so that a prompt gives its instance away.
    narrow = make_environment(
        task(
            "locks",
            lock_count_odds={1: 1.0},
            width_min=1,
            width_max=1,
            pool_instances=20,
            held_out_instances=20,
        )
    )
    for environment in (narrow, SHIPPED["style"]):
        rng = np.random.default_rng(0)
        shown = {
            tuple(ids[: mask.index(True)])
            for ids, mask, _ in (environment.demonstration(rng) for _ in range(1500))
        }
        assert not shown & prompts(environment, "held_out")
        assert shown - prompts(environment, "train")


@each_environment
@given(seed=st.integers(0, 2**32 - 1))
def test_demonstrations_are_valid_episodes(name: str, seed: int) -> None:
    environment = SHIPPED[name]
    ids, mask, reward = environment.demonstration(np.random.default_rng(seed))
    assert (ids, mask, reward) == environment.demonstration(np.random.default_rng(seed))
    assert len(ids) == len(mask) <= environment.max_episode_tokens
    assert all(type(token) is int and PADDING_ID < token < len(environment.vocabulary) for token in ids)
    assert not mask[0]
    assert mask[-1]
    assert reward in (0.0, 1.0)


@each_environment
@given(data=st.data(), progress=st.floats(0, 1))
def test_any_sampled_tokens_lead_to_an_end(name: str, data: st.DataObject, progress: float) -> None:
    environment = SHIPPED[name]
    instance = data.draw(st.sampled_from(environment.instances("held_out")))
    token = st.integers(0, len(environment.vocabulary) - 1)

    def sample(episode: Any) -> list[int]:
        action_ids: list[int] = []
        while not episode.action_complete(action_ids):
            action_ids.append(data.draw(token))
        return action_ids

    ids, mask, reward = play(environment.start(instance, progress), sample)
    assert len(ids) == len(mask) <= environment.max_episode_tokens
    assert mask[-1]
    assert reward in (0.0, 1.0)


@each_environment
def test_vocabulary_is_compact_and_starts_with_padding(name: str) -> None:
    vocabulary = SHIPPED[name].vocabulary
    assert vocabulary[PADDING_ID] == "<pad>"
    assert len(set(vocabulary)) == len(vocabulary) <= 128


@pytest.mark.parametrize(
    ("row", "scale"), [("sao", "smoke"), ("sao_online", "smoke"), ("sao", "cpu_plain"), ("sao", "cpu_long")]
)
def test_the_other_cpu_scales_fit_the_sampler(row: str, scale: str) -> None:
    run = resolve(row, scale, 0)
    assert make_environment(run.task).max_episode_tokens <= run.sampler.max_tokens


@each_environment
def test_too_few_distinct_instances_are_refused(name: str) -> None:
    few = {
        "locks": {"lock_count_odds": {1: 1.0}, "width_min": 1, "width_max": 1},
        "style": {"topics": 2, "audiences": 1},
    }[name]
    with pytest.raises(ValueError, match="too few distinct instances for pool_instances 512"):
        make_environment(task(name, **few))


def test_environments_need_no_torch() -> None:
    code = "import sys, sao.environments; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
