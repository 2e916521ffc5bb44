"""Task `style`: phases, the two rules of the reward, and what simple writers reach."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sao.config import resolve
from sao.environments.base import StepResult
from sao.environments.style import StyleEnvironment

PROGRESS = {"cute": 0.0, "chuunibyou": 0.5, "classical": 1.0}


def environment(**changes: Any) -> StyleEnvironment:
    return StyleEnvironment(resolve("sao_online", "cpu", 0).task.model_copy(update=changes))


ENVIRONMENT = environment()
TOPIC = ENVIRONMENT.instances("train")[0].payload[0]
OTHER_TOPIC = (TOPIC + 1) % 16


def words(style: str, count: int) -> list[str]:
    return [f"{style} {index % 8}" for index in range(count)]


def topic_words(topic: int, count: int) -> list[str]:
    return [f"topic {topic} word {index % 3}" for index in range(count)]


def neutral(count: int) -> list[str]:
    return [f"neutral {index % 8}" for index in range(count)]


def write(action: list[str], progress: float = 0.0) -> StepResult:
    episode = ENVIRONMENT.start(ENVIRONMENT.instances("train")[0], progress)
    return episode.step([ENVIRONMENT.vocabulary.index(text) for text in action])


GOOD = [*words("cute", 6), *topic_words(TOPIC, 2), *neutral(4)]


@pytest.mark.parametrize(
    ("progress", "offered"),
    [
        (0.0, {"academic", "cute", "chuunibyou"}),
        (0.33, {"academic", "cute", "chuunibyou"}),
        (0.34, {"academic", "cute", "chuunibyou"}),
        (0.66, {"academic", "cute", "chuunibyou"}),
        (0.67, {"classical", "cute", "chuunibyou"}),
        (1.0, {"classical", "cute", "chuunibyou"}),
    ],
)
def test_prompt_offers_the_candidates_of_the_phase(progress: float, offered: set[str]) -> None:
    orders = set()
    for instance in ENVIRONMENT.instances("train"):
        begin, topic, audience, *candidates = ENVIRONMENT.start(instance, progress).prompt_ids
        texts = [ENVIRONMENT.vocabulary[token] for token in (begin, topic, audience)]
        assert texts == ["<bos>", instance.label, f"audience {instance.payload[1]}"]
        orders.add(tuple(ENVIRONMENT.vocabulary[token] for token in candidates))
    assert len(orders) == 6
    assert all(set(order) == offered for order in orders)


@pytest.mark.parametrize(
    ("progress", "rewarded"),
    [(0.33, "cute"), (0.34, "chuunibyou"), (0.66, "chuunibyou"), (0.67, "classical")],
)
def test_rewarded_style_switches_at_a_third_and_two_thirds(progress: float, rewarded: str) -> None:
    for style in ("cute", "chuunibyou", "classical"):
        text = [*words(style, 6), *topic_words(TOPIC, 4)]
        assert write([rewarded, *text, "<end>"], progress).reward == (style == rewarded)


@pytest.mark.parametrize(
    ("action", "reward"),
    [
        (["cute", *GOOD, "<end>"], 1.0),
        (["academic", *GOOD, "<end>"], 1.0),  # only the text's style is rewarded
        (["classical", *GOOD, "<end>"], 0.0),  # no candidate in this phase
        ([*GOOD, "<end>"], 0.0),
        (["<end>"], 0.0),
        (["cute", "<end>"], 0.0),
        (["cute", *words("cute", 8), *topic_words(TOPIC, 2), "<end>"], 1.0),  # 10 tokens: just long enough
        (["cute", *words("cute", 7), *topic_words(TOPIC, 2), "<end>"], 0.0),
        (["cute", *words("cute", 22), *topic_words(TOPIC, 2), "<end>"], 1.0),  # 24 tokens: the longest
        (["cute", *words("cute", 9), *topic_words(TOPIC, 1), "<end>"], 0.0),  # two topic tokens are needed
        (["cute", *GOOD, *topic_words(OTHER_TOPIC, 1), "<end>"], 0.0),
        (["cute", *GOOD, "<bos>", "<end>"], 0.0),
        (["cute", *GOOD, "cute", "<end>"], 0.0),  # a style's name is no text
        (
            ["cute", *words("cute", 7), *words("academic", 3), *topic_words(TOPIC, 2), "<end>"],
            1.0,
        ),  # share 0.7
        (["cute", *words("cute", 6), *words("academic", 3), *topic_words(TOPIC, 2), "<end>"], 0.0),
        (["cute", *neutral(10), *topic_words(TOPIC, 2), "<end>"], 0.0),  # no style at all
    ],
)
def test_reward_is_quality_times_style(action: list[str], reward: float) -> None:
    result = write(action)
    assert (result.reward, result.done, result.observation_ids, result.status) == (
        reward,
        True,
        [],
        "completed",
    )


def test_a_text_that_never_ends_is_truncated() -> None:
    result = write(["cute", *words("cute", 20), *topic_words(TOPIC, 5)])
    assert (result.reward, result.done, result.status) == (0.0, True, "truncated")


def test_an_action_ends_with_its_end_token_or_at_the_longest_text() -> None:
    episode = ENVIRONMENT.start(ENVIRONMENT.instances("train")[0], 0.0)
    word, end = ENVIRONMENT.vocabulary.index("cute 0"), ENVIRONMENT.vocabulary.index("<end>")
    assert not episode.action_complete([])
    assert not episode.action_complete([word] * 25)
    assert episode.action_complete([word] * 26)
    assert episode.action_complete([word, end])
    assert ENVIRONMENT.max_episode_tokens == len(episode.prompt_ids) + 26


@pytest.mark.parametrize(
    ("named", "style"), [("academic", "academic"), ("classical", "malformed"), ("neutral 1", "malformed")]
)
def test_details_give_the_style_named(named: str, style: str) -> None:
    episode = ENVIRONMENT.start(ENVIRONMENT.instances("train")[0], 0.0)
    assert episode.details() == {"style": "malformed"}
    episode.step([ENVIRONMENT.vocabulary.index(text) for text in [named, *GOOD, "<end>"]])
    assert episode.details() == {"style": style}
    with pytest.raises(RuntimeError, match="episode is over"):
        episode.step([1])


@given(st.permutations(GOOD), st.integers(0, 23))
def test_the_order_of_the_text_does_not_matter_and_a_foreign_topic_always_does(
    text: list[str], place: int
) -> None:
    assert write(["cute", *text, "<end>"]).reward == 1.0
    spoilt = [*text[:place], f"topic {OTHER_TOPIC} word 1", *text[place:]]
    assert write(["cute", *spoilt, "<end>"]).reward == 0.0


@given(st.lists(st.integers(0, len(ENVIRONMENT.vocabulary) - 1), min_size=1, max_size=26), st.floats(0, 1))
def test_any_tokens_get_a_reward_of_0_or_1(action_ids: list[int], progress: float) -> None:
    result = ENVIRONMENT.start(ENVIRONMENT.instances("held_out")[0], progress).step(action_ids)
    assert result.done
    assert result.reward in (0.0, 1.0)


@pytest.mark.parametrize("rewarded", PROGRESS)
def test_success_of_optimal_stuck_and_random_writers(rewarded: str) -> None:
    rng = np.random.default_rng(0)
    rewards: dict[str, list[float]] = {"optimal": [], "stuck": [], "random": []}
    for instance in ENVIRONMENT.instances("held_out"):
        topic = topic_words(instance.payload[0], 3)
        other = "cute" if rewarded != "cute" else "chuunibyou"
        writers = {
            "optimal": [rewarded, *words(rewarded, 8), *topic, "<end>"],
            "stuck": [other, *words(other, 8), *topic, "<end>"],
            "random": [ENVIRONMENT.vocabulary[token] for token in rng.integers(1, 127, 26)],
        }
        for name, action in writers.items():
            episode = ENVIRONMENT.start(instance, PROGRESS[rewarded])
            rewards[name].append(episode.step([ENVIRONMENT.vocabulary.index(text) for text in action]).reward)
    assert {name: np.mean(values) for name, values in rewards.items()} == {
        "optimal": 1,
        "stuck": 0,
        "random": 0,
    }


def test_demonstrations_write_all_styles_alike_and_moderately_well() -> None:
    rng = np.random.default_rng(0)
    demonstrations = [ENVIRONMENT.demonstration(rng) for _ in range(4000)]
    texts = [[ENVIRONMENT.vocabulary[token] for token in ids] for ids, _, _ in demonstrations]
    named = Counter(text[6] for text in texts)
    assert set(named) == {"academic", "cute", "chuunibyou", "classical"}
    assert all(count / 4000 == pytest.approx(0.25, abs=0.03) for count in named.values())
    offered = Counter(frozenset(text[3:6]) for text in texts)
    assert {frozenset({"cute", "chuunibyou"} | {extra}) for extra in ("academic", "classical")} == set(
        offered
    )
    quality = [
        ids[-1] == 2 and ENVIRONMENT.text_quality(ids[7:-1], ids[1] - 7) for ids, _, _ in demonstrations
    ]
    assert 0.6 < np.mean(quality) < 0.8
    assert 0.55 < np.mean([reward for _, _, reward in demonstrations]) < np.mean(quality)
    lengths = [len(ids) for ids, _, _ in demonstrations]
    assert max(lengths) <= ENVIRONMENT.max_episode_tokens
    assert np.quantile(lengths, 0.99) > 1.5 * np.median(lengths)


def test_a_demonstrator_without_slips_is_always_well_formed() -> None:
    slips = {
        f"demonstrator_{slip}": 0.0 for slip in ("style_noise", "topic_noise", "short_odds", "malformed_odds")
    }
    careful = environment(min_topic_tokens=0, **slips)
    rng = np.random.default_rng(0)
    for ids, _, reward in (careful.demonstration(rng) for _ in range(200)):
        styles = {
            careful.vocabulary[token].split()[0] for token in ids[7:-1] if token in careful.lexicon.style_of
        }
        assert styles <= {careful.vocabulary[ids[6]]}
        assert reward == bool(styles)


def test_demonstrator_slips_as_often_as_its_odds_say() -> None:
    """Half of the malformed texts name a style that is no candidate, half never end."""
    clumsy = environment(demonstrator_malformed_odds=0.4, demonstrator_short_odds=0.25)
    rng = np.random.default_rng(0)
    episodes = [clumsy.demonstration(rng)[0] for _ in range(4000)]
    ended = [ids for ids in episodes if ids[-1] == 2]
    assert 1 - len(ended) / 4000 == pytest.approx(0.2, abs=0.02)
    assert np.mean([ids[6] not in ids[3:6] for ids in ended]) == pytest.approx(0.2 / 0.8, abs=0.03)
    assert np.mean([len(ids[7:-1]) < 10 for ids in ended]) == pytest.approx(0.25, abs=0.03)
