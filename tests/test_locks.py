"""Task `locks`: rules of an episode, how instances are drawn, and what simple policies reach."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sao.config import resolve
from sao.environments.base import play
from sao.environments.locks import COMMIT, QUERY, Lock, LocksEnvironment, LocksEpisode, action

LOCK_COUNT_TOKEN = 64


def environment(**changes: Any) -> LocksEnvironment:
    return LocksEnvironment(resolve("sao", "cpu", 0).task.model_copy(update=changes))


def bisect(episode: LocksEpisode) -> list[int]:
    """Bisect; commit when certain, or when every turn left is needed to open a lock."""
    commit = episode.low == episode.high or episode.turns_left <= episode.locks_left
    return action(COMMIT if commit else QUERY, (episode.low + episode.high) // 2)


def guess_blindly(rng: np.random.Generator) -> Callable[[LocksEpisode], list[int]]:
    """Query or commit any code, both well-formed."""
    return lambda episode: action(int(rng.choice([QUERY, COMMIT])), int(rng.integers(100)))


def success(env: LocksEnvironment, policy: Callable[[LocksEpisode], list[int]]) -> float:
    return float(np.mean([play(env.start(one, 0.0), policy)[2] for one in env.instances("held_out")]))


def tokens(env: LocksEnvironment, text: str) -> list[int]:
    return [env.vocabulary.index(word) for word in text.split()]


# --- rules of an episode ---


def test_an_episode_token_by_token() -> None:
    env = environment()
    episode = LocksEpisode(((10, 19, 13), (40, 41, 41)), 6, env.vocabulary.index("L2"))
    assert episode.prompt_ids == tokens(env, "<bos> L2 1 0 1 9 T6")
    for said, answer in [
        ("? 1 5", "below 1 0 1 4 T5"),
        ("? 1 2", "above 1 3 1 4 T4"),
        ("? 9 9", "below 1 3 1 4 T3"),
        ("! 1 3", "next 4 0 4 1 T2"),
        ("? 4 1", "equal 4 1 4 1 T1"),
    ]:
        result = episode.step(tokens(env, said))
        assert (result.observation_ids, result.done, result.reward) == (tokens(env, answer), False, 0.0)
    result = episode.step(tokens(env, "! 4 1"))
    assert (result.observation_ids, result.done, result.reward, result.status) == ([], True, 1.0, "completed")
    with pytest.raises(RuntimeError, match="episode is over"):
        episode.step(tokens(env, "! 4 1"))


@pytest.mark.parametrize("said", ["? ? 1", "0 1 0", "! 1 below", "? T9 1", "<pad> 1 0", "? 1", "? 1 0 0"])
def test_a_malformed_action_ends_the_episode(said: str) -> None:
    env = environment()
    result = LocksEpisode(((10, 10, 10),), 5, LOCK_COUNT_TOKEN).step(tokens(env, said))
    assert (result.done, result.reward, result.status) == (True, 0.0, "completed")


def test_a_wrong_commit_ends_the_episode() -> None:
    result = LocksEpisode(((10, 19, 13),), 5, LOCK_COUNT_TOKEN).step(action(COMMIT, 14))
    assert (result.done, result.reward, result.status) == (True, 0.0, "completed")


@pytest.mark.parametrize("last", [action(QUERY, 13), action(COMMIT, 13)])
def test_the_last_turn_truncates_unless_every_lock_is_open(last: list[int]) -> None:
    result = LocksEpisode(((10, 19, 13), (1, 1, 1)), 1, LOCK_COUNT_TOKEN).step(last)
    assert (result.done, result.reward, result.status) == (True, 0.0, "truncated")
    result = LocksEpisode(((10, 19, 13),), 1, LOCK_COUNT_TOKEN).step(action(COMMIT, 13))
    assert (result.done, result.reward, result.status) == (True, 1.0, "completed")


def test_an_action_is_three_tokens() -> None:
    episode = LocksEpisode(((10, 19, 13),), 5, LOCK_COUNT_TOKEN)
    assert [episode.action_complete([QUERY] * length) for length in range(4)] == [False, False, False, True]


@st.composite
def locks(draw: st.DrawFn) -> tuple[Lock, ...]:
    bounds = st.lists(st.integers(0, 99), min_size=3, max_size=3).map(sorted)
    return tuple((low, high, code) for low, code, high in draw(st.lists(bounds, min_size=1, max_size=6)))


@given(locks(), st.integers(1, 45), st.lists(st.tuples(st.booleans(), st.integers(0, 99)), max_size=60))
def test_bounds_hold_the_code_and_turns_count_down(
    hidden: tuple[Lock, ...], budget: int, said: list[tuple[bool, int]]
) -> None:
    env = environment(pool_instances=1, held_out_instances=1)
    episode = LocksEpisode(hidden, budget, LOCK_COUNT_TOKEN)
    opened, turns, widths = 0, budget, []
    for commit_right, guess in said:
        code = hidden[opened][2]
        result = episode.step(action(COMMIT, code) if commit_right else action(QUERY, guess))
        opened += commit_right
        turns -= 1
        assert result.done == (opened == len(hidden) or turns == 0)
        assert result.reward == (opened == len(hidden))
        if result.done:
            return
        answer, *digits, left = [env.vocabulary[token] for token in result.observation_ids]
        low, high = int(digits[0] + digits[1]), int(digits[2] + digits[3])
        assert (answer == "next") == commit_right
        assert left == f"T{turns}"
        assert hidden[opened][0] <= low <= hidden[opened][2] <= high <= hidden[opened][1]
        widths = [high - low] if commit_right else [*widths, high - low]
        assert widths == sorted(widths, reverse=True)


# --- instances ---


def test_budget_is_what_bisection_needs_plus_slack() -> None:
    slacks = {-1.5: 0.25, 0.0: 0.25, 2.0: 0.5}
    capped = False
    for instance in environment(budget_slack_odds=slacks, max_turns=12).instances("train"):
        codes, budget = instance.payload
        need = sum(math.ceil(math.log2(high - low + 1)) for low, high, _ in codes) + len(codes)
        assert budget in {min(max(need + round(slack * len(codes)), 2), 12) for slack in slacks}
        capped = capped or budget == 12 < need
    assert capped


def test_lock_counts_and_widths_follow_their_odds() -> None:
    drawn = environment(pool_instances=4000).instances("train")
    counts = [len(instance.payload[0]) for instance in drawn]
    for count, odds in {1: 0.5, 2: 0.25, 3: 0.12, 4: 0.08, 6: 0.05}.items():
        assert counts.count(count) / len(counts) == pytest.approx(odds, abs=0.03)
    bands = {len(instance.payload[0]): instance.label for instance in drawn}
    assert bands == {1: "1 lock", 2: "2 locks", 3: "3 locks", 4: "4 or 6 locks", 6: "4 or 6 locks"}
    widths = np.array([high - low + 1 for instance in drawn for low, high, _ in instance.payload[0]])
    assert (widths.min(), widths.max()) == (3, 90)
    # Log-uniform from 3 to below 91: half of the widths lie below the geometric mean of the ends, 16.5.
    assert np.mean(widths <= 16) == pytest.approx(math.log(17 / 3) / math.log(91 / 3), abs=0.02)


def test_prompt_names_locks_bounds_and_budget() -> None:
    env = environment()
    for instance in env.instances("held_out"):
        codes, budget = instance.payload
        low, high, _ = codes[0]
        words = [env.vocabulary[token] for token in env.start(instance, 0.5).prompt_ids]
        assert words == ["<bos>", f"L{len(codes)}", *f"{low:02d}", *f"{high:02d}", f"T{budget}"]


# --- what policies reach ---


@pytest.mark.parametrize("turns", range(1, 7))
def test_bisection_finds_as_many_codes_as_its_turns_can_tell_apart(turns: int) -> None:
    """t - 1 three-way queries and one commit reach at most 2^t - 1 codes, and bisection reaches as many."""
    for width in range(1, 91):
        episodes = [LocksEpisode(((5, 4 + width, code),), turns, 0) for code in range(5, 5 + width)]
        assert sum(play(episode, bisect)[2] for episode in episodes) == min(width, 2**turns - 1)


@pytest.mark.parametrize("slack", [0.0, 3.0])
def test_bisection_opens_everything_within_a_full_budget(slack: float) -> None:
    assert success(environment(budget_slack_odds={slack: 1.0}), bisect) == 1.0


def test_success_of_optimal_demonstrating_and_random_policy() -> None:
    env = environment(held_out_instances=2000)
    rng = np.random.default_rng(0)
    solved = {one.prompt_id: play(env.start(one, 0.0), bisect)[2] for one in env.instances("held_out")}
    single = [one for one in env.instances("held_out") if len(one.payload[0]) == 1]
    odds = [
        min(1.0, (2**turns - 1) / (high - low + 1))
        for ((low, high, _),), turns in [one.payload for one in single]
    ]
    standard_error = math.sqrt(sum(p * (1 - p) for p in odds)) / len(odds)
    assert np.mean([solved[one.prompt_id] for one in single]) == pytest.approx(
        np.mean(odds), abs=4 * standard_error
    )

    optimal = float(np.mean(list(solved.values())))
    demonstrator = success(env, lambda episode: env.demonstrator_action(episode, rng))
    random = success(env, guess_blindly(rng))
    assert 0.72 < optimal < 0.88
    assert 0.35 < demonstrator < 0.5
    assert random < 0.02


def test_lengths_are_heavy_tailed() -> None:
    env = environment(held_out_instances=2000)
    lengths = [len(play(env.start(one, 0.0), bisect)[0]) for one in env.instances("held_out")]
    assert np.quantile(lengths, 0.99) > 3 * np.median(lengths)
    assert max(lengths) <= env.max_episode_tokens == 7 + 45 * 3 + 44 * 6


def test_demonstrator_slips_as_often_as_its_odds_say() -> None:
    env = environment(demonstrator_early_commit_odds=0.2, demonstrator_certain_commit_odds=0.7)
    rng = np.random.default_rng(0)

    def act(low: int, high: int) -> np.ndarray:
        episode = LocksEpisode(((low, high, low),), 9, LOCK_COUNT_TOKEN)
        return np.array([env.demonstrator_action(episode, rng) for _ in range(4000)])

    def inside(actions: np.ndarray, low: int, high: int) -> float:
        guesses = 10 * (actions[:, 1] - 2) + actions[:, 2] - 2
        return float(np.mean((guesses >= low) & (guesses <= high)))

    open_range, one_code = act(20, 29), act(33, 33)
    assert np.mean(open_range[:, 0] == COMMIT) == pytest.approx(0.2, abs=0.03)
    assert np.mean(one_code[:, 0] == COMMIT) == pytest.approx(0.7, abs=0.03)
    assert inside(open_range, 20, 29) == pytest.approx(1 - 0.08 * 0.9, abs=0.02)
    assert inside(one_code, 33, 33) == pytest.approx(1 - 0.08 * 0.99, abs=0.02)
