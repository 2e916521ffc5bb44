"""The virtual clock: when rollouts start, what waits for what, and which weights sample which token.

Most tests replace the decode engine by one that knows no weights and calls every token equally likely; those
about weights and log-probs decode with a small policy.
"""

import copy
import io
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from local_engine import SMALL_MODEL, VOCABULARY, ToyEnvironment, plain_logprobs, run_config, tiny_policy

from sao.config import RunConfig
from sao.environments.base import EnvironmentFailure
from sao.local import schedule as schedule_module
from sao.local.evaluation import evaluate, sample_of
from sao.local.schedule import Schedule
from sao.runlog import EVALUATION_COLUMNS, SCHEDULE_COLUMNS
from sao.runlog_schema import checked_record
from sao.step_log import evaluation_lines
from sao.streaming import PromptOrder, SchedulingError, Taken, dropped_lines, schedule_lines

BATCH = 16
NO_LATENCY = {"latency_scale_ticks": 0.0}


class UniformEngine:
    """Stands for the decode engine: every token has the same log-prob, whatever was fed."""

    device = torch.device("cpu")

    def __init__(self, policy: Any, slots: int, max_tokens: int, rounding: str) -> None:
        self.slots, self.max_tokens = slots, max_tokens

    def load_weights(self, policy: Any) -> None:
        pass

    def step(self, slots: list[int], starts: list[int], chunks: list[list[int]]) -> torch.Tensor:
        return torch.zeros(len(slots), VOCABULARY)

    def state_dict(self, used_tokens: int) -> dict[str, Any]:
        return {}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        pass


@pytest.fixture
def uniform(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Schedule]:
    """Makes schedules over the engine without weights."""
    torch.set_num_threads(1)
    monkeypatch.setattr(schedule_module, "DecodeEngine", UniformEngine)
    return lambda run, environment: Schedule(run, environment, None)  # type: ignore[arg-type]


def batches(schedule: Schedule, count: int, trains_policy: bool = True) -> Iterator[Taken]:
    """The next batches, each followed by an update."""
    for _ in range(count):
        taken = schedule.next_batch()
        yield taken
        schedule.end_update(trains_policy)


def count_starts(schedule: Schedule) -> list[dict[str, int]]:
    """Notes the clock and the queues at every start of a rollout from now on."""
    notes: list[dict[str, int]] = []
    start = schedule.sampler.start

    def noted(*arguments: Any) -> None:
        state = schedule.state
        notes.append(
            {
                "tick": state.tick,
                "ready": sum(map(len, state.ready)),
                "updating": state.trainer_busy_until is not None,
            }
        )
        start(*arguments)

    schedule.sampler.start = noted  # type: ignore[method-assign]
    return notes


def prompts(taken: Taken) -> list[int]:
    """Places in the pool of a batch's prompts, in the order in which its rollouts were started."""
    return [rollout.instance.payload[0] for rollout in sorted(taken.rollouts, key=lambda made: made.index)]


# --- Weights in flight -------------------------------------------------------------------------------------


@pytest.mark.parametrize("recompute_kv", [False, True])
def test_weights_change_in_the_middle_of_trajectories(recompute_kv: bool) -> None:
    """Each token's version is that of the latest load before the tick that sampled it (one token a tick).

    With caches made anew, its log-prob is that version's on the whole prefix; with kept caches only as long
    as the trajectory saw one version.
    """
    run = run_config(
        "sao",
        sampling={"recompute_kv": recompute_kv},
        sampler={"slots": 12, "max_tokens": 128, "rounding": "none"},
        clock={"sync_interval": 2, "update_ticks": 2, **NO_LATENCY},
    )
    environment = ToyEnvironment(episode=lambda place, attempt: {"actions": 2 + 3 * (place % 2)})
    policy = tiny_policy(model=SMALL_MODEL)
    schedule = Schedule(run, environment, policy)
    snapshots, generator = [copy.deepcopy(policy)], torch.Generator().manual_seed(0)
    loads, rollouts = [(0, 0)], []
    for taken in batches(schedule, 7):
        loads += taken.counters.loads
        rollouts += zip(taken.rollouts, taken.trajectories, strict=True)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
        snapshots.append(copy.deepcopy(policy))
    assert [version for _, version in loads] == [0, 2, 4, 6]

    mixed, worst = 0, {True: 0.0, False: 0.0}
    for rollout, made in rollouts:
        sampled = rollout.start_tick + 1 + np.arange(made.num_action_tokens)
        due = [max(version for tick, version in loads if tick < when) for when in sampled]
        assert made.policy_versions[made.action_mask].tolist() == due
        one_version = len(set(due)) == 1
        mixed += not one_version
        for version in set(due):
            here = np.flatnonzero(made.policy_versions == version)
            with torch.no_grad():
                exact = plain_logprobs(snapshots[version], made.token_ids).numpy()[here - 1]
            difference = np.abs(made.rollout_logprobs[here] - exact).max()
            worst[one_version] = max(worst[one_version], difference)
    assert mixed > 20
    assert worst[True] < 1e-4
    assert worst[False] < 1e-4 if recompute_kv else worst[False] > 1e-2


def test_critic_only_steps_change_no_version(uniform: Callable[..., Schedule]) -> None:
    schedule = uniform(run_config("sao", clock={"sync_interval": 1}), ToyEnvironment())
    for taken in [*batches(schedule, 4, trains_policy=False), schedule.next_batch()]:
        assert schedule.state.version == 0 and taken.counters.loads == []
    schedule.end_update(trains_policy=True)
    loads = schedule.next_batch().counters.loads
    assert schedule.state.version == 1 and [version for _, version in loads] == [1]


def test_update_occupies_the_trainer(uniform: Callable[..., Schedule]) -> None:
    run = run_config("sao", clock={"update_ticks": 50, "queue_limit_batches": 50})
    schedule = uniform(run, ToyEnvironment())
    taken = list(batches(schedule, 5))
    for earlier, later in itertools.pairwise(taken):
        assert later.tick - earlier.tick == 50  # the sampler is faster, so the trainer sets the pace
        assert later.counters.trainer_ticks == later.counters.ticks == 50


# --- Batches -----------------------------------------------------------------------------------------------


def test_groups_wait_for_their_slowest_member_and_single_rollouts_do_not(
    uniform: Callable[..., Schedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    late = 400
    monkeypatch.setattr(Schedule, "_latency", lambda self, index: late if index == 3 else 0)
    waits = {}
    for row in ("grpo_dis", "sao"):
        schedule = uniform(run_config(row, clock={"queue_limit_batches": 100}), ToyEnvironment())
        first_of_all = next(batches(schedule, 1))
        assert 3 not in [rollout.index for rollout in first_of_all.rollouts]
        waits[row] = {
            rollout.index: first_of_all.tick - rollout.end_tick for rollout in first_of_all.rollouts
        }
        while True:
            taken = schedule.next_batch()
            schedule.end_update(trains_policy=True)
            assert taken.tick >= max(rollout.graded_tick for rollout in taken.rollouts)
            if row == "grpo_dis":
                assert set(Counter(rollout.group_id for rollout in taken.rollouts).values()) == {8}
                assert set(Counter(prompts(taken)).values()) == {8}
            if 3 in [rollout.index for rollout in taken.rollouts]:
                break
        together = {rollout.index: taken.tick - rollout.end_tick for rollout in taken.rollouts}
        if row == "grpo_dis":
            assert all(together[index] >= late for index in range(8))
        else:
            assert together.keys().isdisjoint(range(3))
    assert not waits["grpo_dis"].keys() & set(range(8))
    assert {0, 1, 2, 4, 5, 6, 7} <= waits["sao"].keys() and max(waits["sao"].values()) < 20


def test_synchronous_schedule_has_no_lag(uniform: Callable[..., Schedule]) -> None:
    for row in ("sao_sync", "grpo_sync"):
        schedule = uniform(run_config(row, clock={"update_ticks": 9}), ToyEnvironment())
        starts, updates = count_starts(schedule), []
        for taken in batches(schedule, 6):
            for made in taken.trajectories:
                assert set(made.policy_versions[made.action_mask]) == {schedule.state.version}
            assert not schedule.sampler.rollouts and not schedule.state.grading
            updates.append((taken.tick, taken.tick + 9))
        assert schedule.state.version == 5
        assert len(starts) == 6 * BATCH
        assert not any(note["updating"] for note in starts)
        assert not any(begin <= note["tick"] < end for note in starts for begin, end in updates)


def test_asynchronous_schedule_goes_on_during_updates(uniform: Callable[..., Schedule]) -> None:
    schedule = uniform(run_config("sao", clock={"update_ticks": 9}), ToyEnvironment())
    starts = count_starts(schedule)
    assert len(list(batches(schedule, 6))) == 6
    assert any(note["updating"] for note in starts)


@pytest.mark.parametrize("row", ["sao", "grpo_dis"])
def test_queue_limit_stops_new_prompts(uniform: Callable[..., Schedule], row: str) -> None:
    """With a slow trainer at most 2 batches wait, apart from what was in the slots when the limit was met."""
    clock = {"update_ticks": 300, "queue_limit_batches": 2, **NO_LATENCY}
    run = run_config(row, clock=clock, sampler={"slots": 8})
    schedule = uniform(run, ToyEnvironment())
    starts = count_starts(schedule)
    list(batches(schedule, 4))
    schedule.next_batch()
    waiting = sum(map(len, schedule.state.ready)) + BATCH
    assert 2 * BATCH <= waiting < 2 * BATCH + 8 + run.sampling.group_size
    group = run.sampling.group_size
    assert all(note["ready"] < 2 * BATCH for note in starts[::group])  # the first of a group
    assert max(note["ready"] for note in starts) >= BATCH


def test_no_finished_first_bias(uniform: Callable[..., Schedule]) -> None:
    """Case 107: lengths from 2 to 20. Early batches hold the short ones; over many steps all count alike."""
    run = run_config("sao", training={"batch_trajectories": 128}, sampler={"slots": 128}, clock=NO_LATENCY)
    lengths = 2 * np.random.default_rng(0).integers(1, 11, 512)
    environment = ToyEnvironment(
        pool=512, episode=lambda place, attempt: {"actions": 1, "action_tokens": int(lengths[place])}
    )
    means = [
        np.mean([made.num_action_tokens for made in taken.trajectories])
        for taken in batches(uniform(run, environment), 56)
    ]
    assert means[0] < 0.85 * lengths.mean()
    assert np.mean(means[4:]) == pytest.approx(lengths.mean(), rel=0.05)


def test_batches_are_shuffled_the_same_way_each_time(uniform: Callable[..., Schedule]) -> None:
    """Rows of a batch come in no order of length, so that minibatches are alike; and always the same way."""
    orders = []
    for _ in range(2):
        environment = ToyEnvironment(episode=lambda place, attempt: {"actions": 1 + place % 5})
        taken = next(batches(uniform(run_config("sao"), environment), 1))
        orders.append([rollout.index for rollout in taken.rollouts])
        finished = [rollout.graded_tick for rollout in taken.rollouts]
        assert finished != sorted(finished)
    assert orders[0] == orders[1]


# --- Staleness cap -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("trainer_version", "kept"), [(7, True), (8, False)])
@pytest.mark.parametrize("row", ["sao", "grpo_dis"])
def test_staleness_cap_counts_from_the_oldest_token(
    uniform: Callable[..., Schedule], row: str, trainer_version: int, kept: bool
) -> None:
    """Case 82: oldest token of version 3 and cap 4: trainer at 7 keeps the trajectory, at 8 drops it."""
    schedule = uniform(run_config(row, training={"max_staleness": 4}), ToyEnvironment())
    waiting = schedule.next_batch().rollouts
    schedule.state.version = schedule.sampler.version = trainer_version
    for rollout in waiting:
        rollout.versions = dict.fromkeys(rollout.versions, trainer_version)
    waiting[5].versions[2] = 3  # one token of one trajectory
    size = schedule.run.sampling.group_size
    group = waiting[5].group_id
    if size == 1:
        queued = [[rollout] for rollout in waiting]
    else:
        queued = [[made for made in waiting if made.group_id == g] for g in {m.group_id for m in waiting}]
    schedule.state.ready.clear()
    schedule.state.ready.extend(queued)
    state = schedule.state
    unfinished = [*schedule.sampler.rollouts.values(), *(made for _, _, made in state.grading)]
    for other in itertools.chain(unfinished, *state.groups.values()):
        other.versions = dict.fromkeys(other.versions, trainer_version)
    taken = schedule.next_batch()
    assert (group in {rollout.group_id for rollout in taken.rollouts}) == kept
    assert taken.counters.dropped_stale == (0 if kept else size)


def test_nothing_beyond_the_cap_is_trained_on(uniform: Callable[..., Schedule]) -> None:
    """Cap 1 under long trajectories: all that started was taken, dropped and counted, or is outstanding."""
    run = run_config("sao", training={"max_staleness": 1}, clock={"sync_interval": 1, "update_ticks": 3})
    environment = ToyEnvironment(episode=lambda place, attempt: {"actions": 1 + 7 * (place % 2)})
    schedule = uniform(run, environment)
    dropped = taken_count = 0
    for taken in batches(schedule, 25):
        dropped += taken.counters.dropped_stale
        taken_count += len(taken.trajectories)
        for made in taken.trajectories:
            assert schedule.state.version - made.policy_versions[made.action_mask].min() <= 1
    assert dropped > 0
    left = len(schedule.sampler.rollouts) + len(schedule.state.grading) + len(schedule.state.ready)
    assert schedule.state.next_index == taken_count + dropped + left


@pytest.mark.parametrize("cap", [0, 1, 2])
def test_rollouts_of_one_length_are_never_started_to_be_dropped(
    uniform: Callable[..., Schedule], cap: int
) -> None:
    """The batch in training counts: what starts during an update is a version older than when it is taken."""
    run = run_config(
        "sao",
        training={"max_staleness": cap},
        sampler={"slots": 500},
        clock={"update_ticks": 50, "queue_limit_batches": 50, "sync_interval": 1, **NO_LATENCY},
    )
    schedule = uniform(run, ToyEnvironment())
    assert [taken.counters.dropped_stale for taken in batches(schedule, 8)] == [0] * 8


@pytest.mark.parametrize("row", ["sao", "grpo_dis"])
def test_staleness_cap_bounds_what_is_outstanding(uniform: Callable[..., Schedule], row: str) -> None:
    """Case 82: with cap 2 at most 3 batches are outstanding, also after a resume at version 100."""
    run = run_config(
        row,
        training={"max_staleness": 2},
        sampler={"slots": 100},
        clock={"update_ticks": 60, "queue_limit_batches": 50, **NO_LATENCY},
    )
    schedule = uniform(run, ToyEnvironment())
    schedule.next_batch()
    saved = copy.deepcopy(schedule.state_dict())
    saved["state"].version = saved["sampler_version"] = 100
    resumed = uniform(run, ToyEnvironment())
    resumed.load_state_dict(saved)
    for clock in (schedule, resumed):
        gone, outstanding = BATCH, []
        for _ in range(6):
            clock.end_update(trains_policy=False)
            taken = clock.next_batch()
            gone += taken.counters.dropped_stale  # on resuming, what was sampled at version 0
            outstanding.append(clock.state.next_index - gone)
            gone += BATCH
        assert max(outstanding) == outstanding[-1] == 3 * BATCH


# --- Environment errors ------------------------------------------------------------------------------------


def broken(place: int) -> bool:
    """3 of 8 prompts (case 75)."""
    return place % 8 in (1, 4, 6)


@pytest.mark.parametrize("row", ["sao", "grpo_dis"])
@pytest.mark.parametrize("where", ["start", "step"])
def test_environment_errors_are_counted_and_sampled_again(
    uniform: Callable[..., Schedule], row: str, where: str
) -> None:
    """The first attempt at 3 of 8 prompts breaks; the second replaces it, so that no prompt is lost."""

    def episode(place: int, attempt: int) -> dict[str, Any]:
        fails = broken(place) and attempt == 0
        if fails and where == "start":
            raise EnvironmentFailure("no container")
        return {"breaks": fails}

    run = run_config(row, sampler={"slots": BATCH}, clock=NO_LATENCY)
    environment = ToyEnvironment(pool=2000, episode=episode)
    schedule = uniform(run, environment)
    order = PromptOrder(environment.instances("train"), run.seed)
    started, invalid = [], 0
    for taken in batches(schedule, 8):
        assert len(taken.trajectories) == BATCH
        assert {made.status for made in taken.trajectories} == {"completed"}
        assert set(Counter(prompts(taken)).values()) == {run.sampling.group_size}
        started += prompts(taken)
        invalid += taken.counters.invalid
    first = [order.next().payload[0] for _ in range(schedule.state.prompts_started)]
    assert set(started) <= set(first)
    early = first[: len(set(started)) - 2 * BATCH // run.sampling.group_size]
    assert set(early) <= set(started)
    failed = sum(broken(place) for place in environment.started if environment.started.count(place) > 1)
    assert invalid > 0 and sum(map(broken, set(started))) > 0
    assert sum(broken(place) for place in set(early)) <= invalid <= failed


@pytest.mark.parametrize("row", ["sao", "grpo_dis", "sao_sync", "dapo"])
@pytest.mark.parametrize("where", ["start", "step"])
def test_prompts_that_always_fail_are_replaced(
    uniform: Callable[..., Schedule], row: str, where: str
) -> None:
    """Case 75 for good: 3 of 8 prompts never work. The batches are full without them, and all is counted."""

    def episode(place: int, attempt: int) -> dict[str, Any]:
        if broken(place) and where == "start":
            raise EnvironmentFailure("no container")
        return {"breaks": broken(place), "reward": float(attempt % 2)}

    environment = ToyEnvironment(pool=2000, episode=episode)
    schedule = uniform(run_config(row), environment)
    invalid = 0
    for taken in batches(schedule, 12):
        assert len(taken.trajectories) == BATCH
        assert not any(map(broken, prompts(taken)))
        assert set(Counter(prompts(taken)).values()) == {schedule.run.sampling.group_size}
        invalid += taken.counters.invalid
    attempts = sum(map(broken, environment.started))
    assert 0 < invalid <= attempts
    # 3 in 8 prompts fail, each 3 times: so many attempts, and no endless repetition of a few
    good = (len(environment.started) - attempts) / schedule.run.sampling.group_size
    assert attempts / schedule.run.sampling.group_size < 3 * good * 3 / 5 * 1.5


def test_group_given_up_leaves_nothing_behind(uniform: Callable[..., Schedule]) -> None:
    """Members that worked, before or after their group was given up, are not kept waiting for the others."""

    def episode(place: int, attempt: int) -> dict[str, Any]:
        return {"breaks": broken(place) and attempt % 6 != 5, "actions": 1 + attempt % 6}

    schedule = uniform(run_config("grpo_dis"), ToyEnvironment(pool=2000, episode=episode))
    for taken in batches(schedule, 15):
        assert not any(map(broken, prompts(taken)))
    given_up = {group for group, failures in schedule.state.failures.items() if failures >= 24}
    assert len(given_up) > 3
    assert not given_up & schedule.state.groups.keys()
    assert not given_up & {group for _, group in schedule.state.to_start}


def test_finished_members_of_a_group_given_up_are_counted(uniform: Callable[..., Schedule]) -> None:
    """All that started was trained on, failed, was dropped with its group, or is outstanding."""

    def episode(place: int, attempt: int) -> dict[str, Any]:
        fails = broken(place) and attempt % 6 != 5
        return {
            "breaks": fails,
            "actions": 7 if broken(place) else 2,
            "reward": 0.25 if broken(place) else 1.0,
        }

    schedule = uniform(run_config("grpo_dis"), ToyEnvironment(pool=2000, episode=episode))
    gone, found = 0, []
    for step, taken in enumerate(batches(schedule, 15)):
        counters = taken.counters
        gone += BATCH + counters.invalid + counters.dropped_with_group
        found += dropped_lines(taken, step)
    state = schedule.state
    left = len(schedule.sampler.rollouts) + len(state.grading)
    left += state.grouped_trajectories + state.ready_trajectories
    assert state.next_index == gone + state.counters.invalid + state.counters.dropped_with_group + left
    assert len(found) > 10
    seen = {(line["reason"], line["action_tokens"], line["reward"]) for line in found}
    assert seen == {("group_given_up", 21, 0.25)}  # seven actions of three tokens


def test_environment_that_always_fails_ends_the_run(uniform: Callable[..., Schedule]) -> None:
    def refuse(place: int, attempt: int) -> dict[str, Any]:
        raise EnvironmentFailure("no container")

    for episode in (refuse, lambda place, attempt: {"breaks": True}):
        for row in ("sao", "grpo_dis"):
            schedule = uniform(run_config(row), ToyEnvironment(episode=episode))
            with pytest.raises(SchedulingError, match=r"task locks: 321 .*environment error.*mend the env"):
                schedule.next_batch()


def test_evaluation_records_environment_errors() -> None:
    def episode(place: int, attempt: int) -> dict[str, Any]:
        if place == 2:
            raise EnvironmentFailure("no container")
        return {"breaks": place == 4, "reward": 1.0}

    run = run_config("sao", sampler={"slots": 2, "max_tokens": 64}, evaluation={"runs_per_problem": 2})
    environment, policy = ToyEnvironment(pool=5, episode=episode), tiny_policy(model=SMALL_MODEL)
    lines = evaluation_lines(map(sample_of, evaluate(run, environment, policy, 3, 1.0, seed=0)), "toy", 3)
    for line in lines:
        checked_record(EVALUATION_COLUMNS, line)
    assert [line["run_index"] for line in lines] == [0] * 5 + [1] * 5
    statuses = [line["status"] for line in lines[:5]]
    assert statuses == ["completed", "completed", "environment_error", "completed", "environment_error"]
    assert [line["correct"] for line in lines[:5]] == [True, True, False, True, False]
    assert [line["turns"] for line in lines[:5]] == [2, 2, 0, 2, 1]


def test_evaluation_draws_depend_on_seed_and_step_alone() -> None:
    """All rows of a seed meet the same draws at a step; another step or seed brings others."""

    def tokens(row: str, step: int, seed: int) -> list[list[int]]:
        run = run_config(row, sampler={"slots": 4, "max_tokens": 64})
        policy, environment = tiny_policy(model=SMALL_MODEL), ToyEnvironment(pool=6)
        return [rollout.token_ids for rollout in evaluate(run, environment, policy, step, 1.0, seed)]

    first = tokens("sao", 3, seed=0)
    assert tokens("grpo_dis", 3, seed=0) == first
    assert tokens("sao", 4, seed=0) != first and tokens("sao", 3, seed=1) != first


# --- DAPO's dynamic sampling -------------------------------------------------------------------------------


def test_dynamic_sampling_filters_on_raw_rewards(uniform: Callable[..., Schedule]) -> None:
    """Case 25: equal raw rewards leave although lengths, and so shaped rewards, differ; they are counted."""

    def episode(place: int, attempt: int) -> dict[str, Any]:
        mixed = place % 3 == 0
        return {"actions": 1 + attempt % 8, "reward": float(mixed and attempt % 8 == 0)}

    environment = ToyEnvironment(pool=60, episode=episode)
    schedule = uniform(run_config("dapo", clock=NO_LATENCY), environment)
    filtered = 0
    for taken in batches(schedule, 10):
        filtered += taken.counters.filtered_groups
        assert all(place % 3 == 0 for place in prompts(taken))
        for group in {rollout.group_id for rollout in taken.rollouts}:
            rewards = [rollout.reward for rollout in taken.rollouts if rollout.group_id == group]
            assert sorted(rewards) == [0.0] * 7 + [1.0]
    assert filtered == pytest.approx(2 * 10 * 2, abs=12)  # two groups leave for each that stays

    everything = uniform(run_config("grpo_dis", clock=NO_LATENCY), ToyEnvironment(pool=60, episode=episode))
    taken = list(batches(everything, 10))
    assert any(place % 3 for one in taken for place in prompts(one))
    assert sum(one.counters.filtered_groups for one in taken) == 0


def test_dynamic_sampling_ends_where_no_group_differs(uniform: Callable[..., Schedule]) -> None:
    """A policy that always fails: after ten batches' worth of groups it gets a batch all the same."""
    environment = ToyEnvironment(episode=lambda place, attempt: {"reward": 0.0})
    for taken in batches(uniform(run_config("dapo"), environment), 2):
        assert taken.counters.filtered_groups == 10 * 2
        assert len(taken.trajectories) == BATCH


# --- Determinism -------------------------------------------------------------------------------------------


def test_prompt_order_is_the_same_for_all_rows_of_a_seed(uniform: Callable[..., Schedule]) -> None:
    """Case 94: the order depends on the seed alone; each epoch holds every prompt once, in another order."""
    orders = {}
    for row in ("sao", "grpo_dis", "sao_sync", "dapo", "vapo"):
        environment = ToyEnvironment(pool=20, episode=lambda place, attempt: {"reward": float(attempt % 2)})
        list(batches(uniform(run_config(row), environment), 12))
        orders[row] = environment.started[:: run_config(row).sampling.group_size]
    for row, order in orders.items():
        assert len(order) > 20
        assert order[:20] == orders["sao"][:20] and order == orders["sao"][: len(order)], row
    epochs = orders["sao"][:20], orders["sao"][20:40]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(20)) and epochs[0] != epochs[1]

    instances = ToyEnvironment(pool=20).instances("train")
    other = PromptOrder(instances, seed=1)
    assert [other.next().payload[0] for _ in range(20)] != orders["sao"][:20]
    resumed = PromptOrder(instances, seed=0)
    resumed.served = 33
    assert [resumed.next().payload[0] for _ in range(7)] == orders["sao"][33:40]


def test_latency_belongs_to_the_trajectory(uniform: Callable[..., Schedule]) -> None:
    """Grading takes as long for the n-th rollout whatever the order of events; heavy-tailed and capped."""
    clock = {"latency_scale_ticks": 8.0, "latency_shape": 1.5, "latency_max_ticks": 60}
    latencies: list[dict[int, int]] = []
    for slots in (16, 64):
        run = run_config("sao", clock=clock, sampler={"slots": slots})
        taken = list(batches(uniform(run, ToyEnvironment()), 20))
        latencies.append(
            {made.index: made.graded_tick - made.end_tick for one in taken for made in one.rollouts}
        )
    common = latencies[0].keys() & latencies[1].keys()
    assert len(common) > 200
    assert all(latencies[0][index] == latencies[1][index] for index in common)
    drawn = np.array(list(latencies[0].values()))
    assert drawn.min() == 0 and drawn.max() == 60
    # The median of this Pareto law from 0 is scale * (2^(1/1.5) - 1).
    assert np.median(drawn) == pytest.approx(8 * (2 ** (1 / 1.5) - 1), abs=1.5)


def test_saved_schedule_goes_on_as_if_never_stopped() -> None:
    """State through a file in the middle of trajectories: the same tokens, log-probs, versions and ticks."""
    run = run_config("sao", sampler={"slots": 12, "max_tokens": 64}, clock={"sync_interval": 1})
    environment = ToyEnvironment(episode=lambda place, attempt: {"actions": 1 + place % 6})
    policy = tiny_policy(model=SMALL_MODEL)
    schedule = Schedule(run, environment, policy)
    list(batches(schedule, 3))
    assert schedule.sampler.rollouts and schedule.state.trainer_busy_until is not None
    file = io.BytesIO()
    torch.save(schedule.state_dict(), file)
    file.seek(0)
    resumed = Schedule(run, environment, tiny_policy(model=SMALL_MODEL))
    resumed.load_state_dict(torch.load(file, weights_only=False))
    for ours, theirs in zip(batches(schedule, 4), batches(resumed, 4), strict=True):
        assert ours.tick == theirs.tick and ours.counters == theirs.counters
        for one, other in zip(ours.trajectories, theirs.trajectories, strict=True):
            assert one.to_dict() == other.to_dict()


def test_schedule_lines_fit_the_schema(uniform: Callable[..., Schedule]) -> None:
    run: RunConfig = run_config("sao", clock={"sync_interval": 1, "update_ticks": 3})
    taken = list(batches(uniform(run, ToyEnvironment()), 2))[1]
    lines = [checked_record(SCHEDULE_COLUMNS, line) for line in schedule_lines(taken, 1, 3)]
    kinds = Counter(line["kind"] for line in lines)
    assert kinds == {"load": 1, "trajectory": BATCH, "update": 1}
    for line in lines:
        if line["kind"] == "trajectory":
            assert line["start_tick"] < line["end_tick"] <= line["graded_tick"] <= line["taken_tick"]
            # A token a tick: 2 actions of 3 tokens, 2 prompt tokens and 2 of the observation.
            assert line["end_tick"] - line["start_tick"] == line["action_tokens"] == 6
            assert line["total_tokens"] == 10
    assert lines[-1]["end_tick"] - lines[-1]["start_tick"] == 3
