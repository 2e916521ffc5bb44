"""Which rollout starts when, and which batch the trainer gets, on a clock that the tests move.

No engine: a fake one hands in trajectories after the time that the test sets. It samples nothing; its tokens
all have log-prob -1.
"""

import heapq
import pickle
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from local_engine import ToyEnvironment, run_config, trajectory

from sao.config import RunConfig
from sao.runlog import DROPPED_COLUMNS, SCHEDULE_COLUMNS
from sao.runlog_schema import checked_record
from sao.streaming import PromptOrder, SchedulingError, dropped_lines, schedule_lines
from sao.trajectory import Trajectory
from sao.wall_clock_stream import Request, Stream, StreamedBatch

BATCH, SLOTS = 16, 32

Duration = Callable[[Request], int]


class FakeEngine:
    """Runs a stream's requests on a made-up clock: each ends after `duration(request)` milliseconds.

    A trajectory has as many action tokens as it lasts milliseconds, all sampled at the version of its start.
    """

    def __init__(
        self,
        run: RunConfig,
        duration: Duration = lambda request: 10,
        reward: Callable[[Request], float] = lambda request: 1.0,
        fails: Callable[[Request], bool] = lambda request: False,
    ) -> None:
        self.time = 0
        self.stream = Stream(run, ToyEnvironment().instances("train"), clock=lambda: self.time)
        self.duration, self.reward, self.fails = duration, reward, fails
        self.events: list[tuple[int, int, Request, int]] = []
        self.started: list[Request] = []
        self.started_at: list[int] = []  # versions

    def fill(self) -> None:
        for request in self.stream.start_requests():
            self.started.append(request)
            self.started_at.append(self.stream.version)
            end = self.time + self.duration(request)
            heapq.heappush(self.events, (end, request.index, request, self.stream.version))

    def advance(self) -> None:
        """To the next end of a rollout."""
        self.time, _, request, version = heapq.heappop(self.events)
        if self.fails(request):
            self.stream.fail(request, "the tool is gone")
        else:
            self.stream.finish(request, self._trajectory(request, version), self.time - request.start_tick)
        self.fill()

    def _trajectory(self, request: Request, version: int) -> Trajectory:
        tokens = self.duration(request)
        made = trajectory(
            [1] * (tokens + 1),
            [(1, tokens + 1)],
            reward=self.reward(request),
            prompt_id=request.instance.prompt_id,
            group_id=request.group_id,
            index=request.index,
        )
        made.policy_versions[1:] = version
        return made

    def take(self) -> StreamedBatch:
        self.fill()
        while not self.stream.batch_ready():
            self.fill()
            self.advance()
        return self.stream.take()

    def update(self, milliseconds: int = 0) -> None:
        """The trainer's update, while rollouts go on."""
        end = self.time + milliseconds
        self.fill()
        while self.events and self.events[0][0] <= end:
            self.advance()
        self.time = end
        self.stream.finish_update(self.stream.version + 1, loaded=True)


def config(row: str = "sao", **changes: dict) -> RunConfig:
    changes = {name: dict(block) for name, block in changes.items()}
    changes.setdefault("training", {})["batch_trajectories"] = BATCH
    changes.setdefault("sampler", {}).setdefault("slots", SLOTS)
    return run_config(row, **changes)


def test_a_finished_trajectory_is_available_at_once() -> None:
    """With one slow rollout among quick ones, a batch is there without it; the slow one comes later."""
    engine = FakeEngine(config(), duration=lambda request: 1000 if request.index == 0 else 10)
    taken = engine.take()
    assert engine.time == 10 and len(taken.trajectories) == BATCH
    assert 0 not in {made.index for made in taken.trajectories}
    engine.update(2000)
    later = [made.index for made in engine.stream.waiting.ready for made in [made[0].trajectory]]
    assert 0 in later


def test_all_slots_go_on_during_an_update() -> None:
    engine = FakeEngine(config(clock={"queue_limit_batches": 1000}))
    engine.take()
    engine.update(100)
    assert len(engine.started) == SLOTS * 12  # 10 ms each: those of ticks 0, 10, ..., 110


def test_the_queue_limit_stops_new_prompts() -> None:
    engine = FakeEngine(config(clock={"queue_limit_batches": 2}))
    engine.take()
    engine.update(1000)
    # Two batches wait at most when a rollout starts, and the slots were full at that moment.
    assert engine.stream.waiting.ready_trajectories < 2 * BATCH + SLOTS and not engine.events


@pytest.mark.parametrize("row", ["sao_sync", "grpo_sync"])
def test_synchronous_rows_start_nothing_before_the_update_is_done(row: str) -> None:
    engine = FakeEngine(config(row))
    for batch in range(3):
        taken = engine.take()
        assert len(engine.started) == BATCH * (batch + 1)
        assert {int(made.policy_versions[-1]) for made in taken.trajectories} == {batch}
        engine.update(500)
        assert not engine.events and len(engine.started) == BATCH * (batch + 1)


def test_groups_are_complete_and_contiguous() -> None:
    """Members end at different times; the group waits for its slowest and then stands together."""
    engine = FakeEngine(config("grpo_dis"), duration=lambda request: 5 + 7 * (request.index % 8))
    size = engine.stream.run.sampling.group_size
    for _ in range(4):
        taken = engine.take()
        groups = [made.group_id for made in taken.trajectories]
        for start in range(0, BATCH, size):
            assert len(set(groups[start : start + size])) == 1
            assert len({made.prompt_id for made in taken.trajectories[start : start + size]}) == 1
        assert len(set(groups)) == BATCH // size
        engine.update(20)


def test_what_was_ready_first_is_taken_first() -> None:
    engine = FakeEngine(config(), duration=lambda request: 1 + request.index % 13)
    order: list[int] = []
    finish = engine.stream.finish

    def noted(request: Request, *rest: object) -> None:
        order.append(request.index)
        finish(request, *rest)  # type: ignore[arg-type]

    engine.stream.finish = noted  # type: ignore[method-assign]
    taken: list[int] = []
    for _ in range(6):
        batch = [made.index for made in engine.take().trajectories]
        assert sorted(batch) == sorted(order[len(taken) : len(taken) + BATCH])
        taken += batch
        engine.update(3)


def test_trained_batches_are_not_biased_to_short_trajectories() -> None:
    """Lengths 1 and 10 at equal odds: the mean length over 50 batches is that of the pool, 5.5, within 5%.

    What is still under way at the end is the only thing missing: of 256 slots 10/11 hold a long one, so that
    (6656 x 5.5 - 256 x (1 x 1/11 + 10 x 10/11)) / 6400 = 5.353 is expected for 50 batches of 128.
    """
    run = run_config("sao", training={"batch_trajectories": 128}, sampler={"slots": 256})
    draws = np.random.default_rng(0).choice([1, 10], size=20_000)
    engine = FakeEngine(run, duration=lambda request: int(draws[request.index]))
    lengths = []
    for _ in range(50):
        lengths += [made.num_action_tokens for made in engine.take().trajectories]
        engine.update(1)
    expected = (6656 * 5.5 - 256 * (1 / 11 + 100 / 11)) / 6400
    assert np.mean(lengths) == pytest.approx(expected, rel=0.03)
    assert np.mean(lengths) == pytest.approx(5.5, rel=0.05)
    steady = lengths[10 * 128 :]  # without the start, when the first to end are short
    assert np.mean(steady) == pytest.approx(5.5, rel=0.03)


def test_a_staleness_cap_drops_long_trajectories_and_their_lengths_are_counted() -> None:
    """A cap of 4 makes batches shorter; trained and dropped together show what was sampled."""
    run = run_config("sao", training={"batch_trajectories": 128, "max_staleness": 4}, sampler={"slots": 256})
    draws = np.random.default_rng(0).choice([1, 10], size=20_000)
    engine = FakeEngine(run, duration=lambda request: int(draws[request.index]))
    lengths: list[int] = []
    dropped: list[int] = []
    for step in range(50):
        taken = engine.take()
        lengths += [made.num_action_tokens for made in taken.trajectories]
        lines = dropped_lines(taken, step)
        assert all(line["reason"] == "too_old" for line in lines)
        dropped += [line["action_tokens"] for line in lines]
        engine.update(1)
    assert len(dropped) == 273 and set(dropped) == {10}
    assert np.mean(lengths) == pytest.approx(5.139, abs=0.001)
    assert np.mean(lengths + dropped) == pytest.approx(5.353, rel=0.01)


@pytest.mark.parametrize("cap", [0, 1, 2])
def test_rollouts_of_one_length_are_never_started_to_be_dropped(cap: int) -> None:
    """The batch in training counts: what starts during an update is a version older than when it is taken."""
    run = run_config("sao", training={"batch_trajectories": 16, "max_staleness": cap}, sampler={"slots": 500})
    engine = FakeEngine(run, duration=lambda request: 5)
    dropped = 0
    for _ in range(8):
        dropped += engine.take().counters.dropped_stale
        engine.update(50)
    assert dropped == 0


@pytest.mark.parametrize(("version", "kept"), [(7, True), (8, False)])
def test_the_staleness_cap_keeps_what_lags_by_it_and_drops_what_lags_more(version: int, kept: bool) -> None:
    """Case 82: oldest token of version 3, cap 4: kept at trainer version 7, dropped at 8."""
    engine = FakeEngine(config(training={"max_staleness": 4}))
    engine.stream.version = 3
    engine.fill()
    while engine.stream.waiting.ready_trajectories < BATCH:
        engine.advance()
    old = [members[0].trajectory.index for members in engine.stream.waiting.ready]
    engine.stream.version = version
    taken = engine.take()
    indices = {made.index for made in taken.trajectories}
    assert (set(old) == indices) if kept else not set(old) & indices
    sampled_at_3 = engine.started_at.count(3)
    assert taken.counters.dropped_stale == (0 if kept else sampled_at_3)
    assert taken.counters.dropped == ([] if kept else [("too_old", 10, 1.0)] * sampled_at_3)


def test_the_staleness_cap_bounds_what_is_outstanding() -> None:
    """Case 82: cap 2 and batch 16 allow at most 48 trajectories begun and not yet trained on, whatever the
    number of slots, also after a restart at a high version.
    """
    engine = FakeEngine(config(training={"max_staleness": 2}, sampler={"slots": 500}))
    engine.stream.version = 100
    engine.fill()
    assert len(engine.started) == 48


def test_dynamic_sampling_replaces_groups_of_one_reward() -> None:
    """Groups with an even number succeed throughout, the others in half of their members."""
    engine = FakeEngine(
        config("dapo"), reward=lambda request: float(request.group_id % 2 == 0 or request.index % 2)
    )
    filtered = 0
    for _ in range(4):
        taken = engine.take()
        assert {made.group_id % 2 for made in taken.trajectories} == {1}
        filtered += taken.counters.filtered_groups
        engine.update(1)
    assert filtered > 0


def test_invalid_trajectories_are_counted_left_out_and_sampled_again() -> None:
    """Case 75: the first attempt at three prompts of the first eight fails; they are trained on later."""
    attempts: Counter[int] = Counter()

    def fails(request: Request) -> bool:
        attempts[request.group_id] += 1
        return request.group_id < 3 and attempts[request.group_id] == 1

    engine = FakeEngine(config(), fails=fails)
    first = engine.take()
    assert first.counters.invalid == 3
    assert not {0, 1, 2} & {made.group_id for made in first.trajectories}
    engine.update(1)
    second = engine.take()
    engine.update(1)
    third = engine.take()
    groups = Counter(made.group_id for taken in (first, second, third) for made in taken.trajectories)
    assert {0, 1, 2} <= groups.keys() and set(groups.values()) == {1}
    assert second.counters.invalid == third.counters.invalid == 0


def test_an_environment_that_always_fails_ends_the_run_with_its_reason() -> None:
    engine = FakeEngine(config(), fails=lambda request: True)
    engine.fill()
    with pytest.raises(SchedulingError, match=r"task locks: 321 .*, the last with: the tool is gone; mend"):
        while True:
            engine.advance()


def test_a_group_is_given_up_after_repeated_failures() -> None:
    """Three times its size: then its members leave, finished ones too, and the next prompt replaces it."""
    engine = FakeEngine(config("grpo_dis"), fails=lambda request: request.group_id == 0 and request.index > 2)
    for _ in range(8):
        assert 0 not in {made.group_id for made in engine.take().trajectories}
        engine.update(1)
    assert engine.stream.waiting.failures[0] >= 24 and 0 not in engine.stream.waiting.groups


def test_finished_members_of_a_group_given_up_are_counted() -> None:
    """Three of its members end well: two before it is given up at 50 ms, one after."""
    lengths = {0: 9, 1: 60, 2: 11}
    engine = FakeEngine(
        config("grpo_dis"),
        duration=lambda request: lengths.get(request.index, 10),
        reward=lambda request: request.index / 2,
        fails=lambda request: request.group_id == 0 and request.index > 2,
    )
    found = []
    for step in range(8):
        taken = engine.take()
        found += dropped_lines(taken, step)
        counters = taken.counters
        assert counters.dropped_with_group == len(counters.dropped) and counters.dropped_stale == 0
        engine.update(10)
    assert [(line["action_tokens"], line["reward"]) for line in found] == [(9, 0.0), (11, 1.0), (60, 0.5)]
    assert {line["reason"] for line in found} == {"group_given_up"}
    assert all(checked_record(DROPPED_COLUMNS, line) for line in found)


def test_the_trainer_takes_one_batch_at_a_time() -> None:
    engine = FakeEngine(config())
    engine.take()
    engine.update(50)
    engine.take()
    with pytest.raises(SchedulingError, match="before it finished the update"):
        engine.stream.take()


def test_a_version_may_not_go_back() -> None:
    engine = FakeEngine(config())
    engine.stream.version = 5
    with pytest.raises(SchedulingError, match="from version 5 to 4"):
        engine.stream.finish_update(4, loaded=True)


def test_counters_are_the_time_between_two_batches() -> None:
    """Rollouts of 10 ms in 32 slots, two batches ready at 10 ms; an update of 4 ms and an idle trainer."""
    engine = FakeEngine(config())
    first = engine.take()
    assert first.tick == 10 and first.counters.ticks == 10
    assert first.counters.busy_slot_ticks == 10 * SLOTS and first.counters.trainer_ticks == 0
    assert first.counters.sampled_tokens % 10 == 0 and first.counters.loads == []
    engine.update(4)
    engine.stream.waiting.ready.clear()
    second = engine.take()
    assert second.tick == 20
    assert second.counters.ticks == 10 and second.counters.trainer_ticks == 4
    assert second.counters.loads == [(14, 1)]


def test_schedule_lines_fit_the_schema() -> None:
    engine = FakeEngine(config(), duration=lambda request: 3 + request.index % 5)
    engine.take()
    engine.update(6)
    taken = engine.take()
    lines = [checked_record(SCHEDULE_COLUMNS, line) for line in schedule_lines(taken, 1, 6)]
    assert [line["kind"] for line in lines] == ["load"] + ["trajectory"] * BATCH + ["update"]
    for line in lines[1:-1]:
        assert line["start_tick"] < line["end_tick"] <= line["graded_tick"] <= line["taken_tick"]
        assert line["action_tokens"] == line["end_tick"] - line["start_tick"]
        assert 0 <= line["slot"] < SLOTS
    assert lines[-1]["end_tick"] - lines[-1]["start_tick"] == 6


@pytest.mark.parametrize("row", ["sao", "grpo_dis", "sao_sync"])
def test_a_resumed_stream_trains_on_the_prompts_that_an_uninterrupted_one_would(row: str) -> None:
    """Case 85: 6 batches straight, and 3, a stop in mid-rollout, 3 more in a new stream."""

    def run(engine: FakeEngine, count: int) -> list[StreamedBatch]:
        batches = []
        for _ in range(count):
            batches.append(engine.take())
            engine.update(7)
        return batches

    straight, first, second = (FakeEngine(config(row)) for _ in range(3))
    whole = run(straight, 6)
    before = run(first, 3)
    second.stream.load_state_dict(pickle.loads(pickle.dumps(before[-1].state)))
    second.time = 1_000_000  # another machine's clock
    second.stream.begin(version=3)
    after = run(second, 3)

    def prompts(batches: list[StreamedBatch]) -> Counter[str]:
        return Counter(made.prompt_id for taken in batches for made in taken.trajectories)

    assert prompts(before + after) == prompts(whole)
    assert [taken.prompts_started for taken in before] == [taken.prompts_started for taken in whole[:3]]
    indices = [made.index for taken in before + after for made in taken.trajectories]
    assert len(indices) == len(set(indices))
    assert after[0].tick >= before[-1].tick and after[0].tick < 10_000


def test_a_resumed_stream_keeps_what_was_finished_and_samples_again_what_was_not() -> None:
    engine = FakeEngine(config(), duration=lambda request: 1000 if request.index % 4 == 0 else 10)
    engine.take()
    engine.update(15)
    state = engine.take().state
    under_way = [request.instance.prompt_id for request in engine.stream.running.values()]
    finished = [members[0].trajectory.index for members in engine.stream.waiting.ready]
    assert under_way and finished
    again = FakeEngine(config(sampler={"slots": SLOTS + 5}))
    again.stream.load_state_dict(pickle.loads(pickle.dumps(state)))
    again.stream.begin(version=2)
    assert [members[0].trajectory.index for members in again.stream.waiting.ready] == finished
    again.fill()
    assert [request.instance.prompt_id for request in again.started[: len(under_way)]] == under_way
    served = state["prompts_served"]
    order = PromptOrder(ToyEnvironment().instances("train"), seed=0)
    expected = [order.next().prompt_id for _ in range(served + 5)][served:]
    assert [request.instance.prompt_id for request in again.started[len(under_way) :][:5]] == expected
