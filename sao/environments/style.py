"""Task `style`: online simulation in which the rewarded writing style changes during training.

    prompt  <bos> <topic> <audience> <candidate style> <candidate style> <candidate style>
    action  <style> <text token> ... <end>

The policy names a style and writes a short text. As in section 4.5 of arXiv:2607.07508 the reward is
quality x style, both 0 or 1, and the rewarded style switches from cute to chuunibyou to classical. Here both
are rules, not a judge:

    quality  the style named is a candidate, the text ends with <end> and holds text tokens alone, is long
             enough, has enough tokens of the prompt's topic and none of another topic
    style    at least `style_share` of the text's style tokens belong to the rewarded style

An episode is one action without observations.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sao.environments.base import (
    Instance,
    Split,
    StepResult,
    content_hash,
    draw_pools,
    draw_training_instance,
)

if TYPE_CHECKING:
    from sao.config_scales import StyleTask

STYLES = ("academic", "cute", "chuunibyou", "classical")
MALFORMED = "malformed"
CANDIDATE_ORDERS = tuple(itertools.permutations(range(3)))

# The demonstrator's text: odds of a style, a topic and a neutral token.
STYLE_TOKEN_ODDS, TOPIC_TOKEN_ODDS = 0.5, 0.3


@dataclass(frozen=True)
class Phase:
    """The style that is rewarded and the styles that the prompt offers, before the instance orders them."""

    rewarded: str
    candidates: tuple[str, ...]


PHASES = (
    Phase("cute", ("academic", "cute", "chuunibyou")),
    Phase("chuunibyou", ("academic", "cute", "chuunibyou")),
    Phase("classical", ("classical", "cute", "chuunibyou")),
)


class Lexicon:
    """The tokens of a style task, by kind; each attribute is the range of its ids."""

    def __init__(self, task: "StyleTask") -> None:
        self.texts = ["<pad>", "<bos>", "<end>"]
        self.begin, self.end = 1, 2
        self.styles = self._add(STYLES)
        self.topics = self._add([f"topic {topic}" for topic in range(task.topics)])
        self.audiences = self._add([f"audience {audience}" for audience in range(task.audiences)])
        self.style_tokens = [
            self._add([f"{style} {index}" for index in range(task.style_tokens)]) for style in STYLES
        ]
        self.topic_tokens = [
            self._add([f"topic {topic} word {index}" for index in range(task.topic_tokens)])
            for topic in range(task.topics)
        ]
        self.neutral_tokens = self._add([f"neutral {index}" for index in range(task.neutral_tokens)])
        self.style_of = {token: style for style, ids in enumerate(self.style_tokens) for token in ids}
        self.topic_of = {token: topic for topic, ids in enumerate(self.topic_tokens) for token in ids}

    def _add(self, texts: Sequence[str]) -> range:
        start = len(self.texts)
        self.texts += texts
        return range(start, len(self.texts))


class StyleEpisode:
    """One attempt: a single action."""

    __slots__ = ("_candidates", "_done", "_environment", "_named", "_rewarded", "_topic", "prompt_ids")

    def __init__(self, environment: "StyleEnvironment", instance: Instance, phase: Phase) -> None:
        topic, audience, order = instance.payload
        lexicon = environment.lexicon
        self._environment = environment
        self._topic = topic
        self._rewarded = STYLES.index(phase.rewarded)
        self._candidates = [STYLES.index(phase.candidates[place]) for place in CANDIDATE_ORDERS[order]]
        self._named = MALFORMED
        self._done = False
        self.prompt_ids = [
            lexicon.begin,
            lexicon.topics[topic],
            lexicon.audiences[audience],
            *(lexicon.styles[style] for style in self._candidates),
        ]

    def action_complete(self, action_ids: Sequence[int]) -> bool:
        """Tell whether the text has ended or is as long as it may get."""
        environment = self._environment
        ended = bool(action_ids) and action_ids[-1] == environment.lexicon.end
        return ended or len(action_ids) >= environment.max_action_tokens

    def step(self, action_ids: Sequence[int]) -> StepResult:
        """Reward the style named and the text; a text without <end> is truncated."""
        if self._done:
            raise RuntimeError("the episode is over: start a new one")
        self._done = True
        environment = self._environment
        lexicon = environment.lexicon
        ended = action_ids[-1] == lexicon.end
        candidates = {lexicon.styles[style]: STYLES[style] for style in self._candidates}
        self._named = candidates.get(action_ids[0], MALFORMED)
        text = action_ids[1:-1]
        good = ended and self._named != MALFORMED and environment.text_quality(text, self._topic)
        reward = float(good and environment.text_style(text, self._rewarded))
        return StepResult([], True, reward, "completed" if ended else "truncated")

    def details(self) -> dict[str, str | int]:
        """Return the style named, "malformed" when it was no candidate."""
        return {"style": self._named}


class StyleEnvironment:
    """The instances, episodes and demonstrations of one `style` task block."""

    tokenizer = None

    def __init__(self, task: "StyleTask") -> None:
        self._task = task
        self.lexicon = Lexicon(task)
        rng = np.random.default_rng(task.pool_seed)
        self._pools = draw_pools(lambda: self._draw(rng), task.pool_instances, task.held_out_instances)
        self.vocabulary = tuple(self.lexicon.texts)
        self.max_action_tokens = task.max_text_tokens + 2
        self.max_episode_tokens = 6 + self.max_action_tokens

    def instances(self, split: Split) -> list[Instance]:
        """Return the pool of a split in its fixed order."""
        return list(self._pools[split])

    def start(self, instance: Instance, progress: float) -> StyleEpisode:
        """Start an episode in the phase that `progress` has reached."""
        return StyleEpisode(self, instance, self.phase(progress))

    def phase(self, progress: float) -> Phase:
        """Return the phase at a share of training done."""
        return PHASES[sum(progress >= point for point in self._task.switch_points)]

    def text_quality(self, text: Sequence[int], topic: int) -> bool:
        """Tell whether a text holds text tokens alone, is long enough and keeps to the topic."""
        lexicon, task = self.lexicon, self._task
        text_tokens = range(lexicon.style_tokens[0].start, lexicon.neutral_tokens.stop)
        topics = [lexicon.topic_of[token] for token in text if token in lexicon.topic_of]
        return (
            task.min_text_tokens <= len(text) <= task.max_text_tokens
            and all(token in text_tokens for token in text)
            and len(topics) >= task.min_topic_tokens
            and all(found == topic for found in topics)
        )

    def text_style(self, text: Sequence[int], style: int) -> bool:
        """Tell whether enough of a text's style tokens belong to a style; a text without any has no style."""
        styles = [self.lexicon.style_of[token] for token in text if token in self.lexicon.style_of]
        return bool(styles) and styles.count(style) >= self._task.style_share * len(styles)

    def demonstration(self, rng: np.random.Generator) -> tuple[list[int], list[bool], float]:
        """Write a text in one of the four styles, drawn with equal odds, with the demonstrator's slips.

        The reward is the one of a phase in which the style set out for is rewarded.
        """
        style = int(rng.integers(len(STYLES)))
        offering = [phase for phase in (PHASES[0], PHASES[2]) if STYLES[style] in phase.candidates]
        candidates = offering[int(rng.integers(len(offering)))].candidates
        instance = draw_training_instance(lambda: self._draw(rng))
        episode = StyleEpisode(self, instance, Phase(STYLES[style], candidates))
        action_ids = self._demonstrator_action(rng, style, instance.payload[0], candidates)
        reward = episode.step(action_ids).reward
        mask = [False] * len(episode.prompt_ids) + [True] * len(action_ids)
        return episode.prompt_ids + action_ids, mask, reward

    def _demonstrator_action(
        self, rng: np.random.Generator, style: int, topic: int, candidates: tuple[str, ...]
    ) -> list[int]:
        task, lexicon = self._task, self.lexicon
        malformed = rng.random() < task.demonstrator_malformed_odds
        if malformed and rng.random() < 0.5:
            length = task.max_text_tokens + 1
            return [lexicon.styles[style], *self._demonstrator_text(rng, style, topic, length)]
        missing = next(index for index, name in enumerate(STYLES) if name not in candidates)
        named = missing if malformed else style
        length = self._demonstrator_length(rng)
        return [lexicon.styles[named], *self._demonstrator_text(rng, style, topic, length), lexicon.end]

    def _demonstrator_length(self, rng: np.random.Generator) -> int:
        """Draw a text's length: mostly just long enough with a tail up to the longest, at times too short."""
        task = self._task
        if rng.random() < task.demonstrator_short_odds:
            return int(rng.integers(1, max(task.min_text_tokens, 2)))
        mean_excess = max((task.max_text_tokens - task.min_text_tokens) / 4, 1.0)
        excess = int(rng.geometric(1 / mean_excess)) - 1
        return min(task.min_text_tokens + excess, task.max_text_tokens)

    def _demonstrator_text(self, rng: np.random.Generator, style: int, topic: int, length: int) -> list[int]:
        task, lexicon = self._task, self.lexicon
        text = []
        for kind_draw, slip_draw in rng.random((length, 2)):
            if kind_draw < STYLE_TOKEN_ODDS:
                slip = slip_draw < task.demonstrator_style_noise
                tokens = lexicon.style_tokens[_another(rng, style, len(STYLES)) if slip else style]
            elif kind_draw < STYLE_TOKEN_ODDS + TOPIC_TOKEN_ODDS:
                slip = slip_draw < task.demonstrator_topic_noise
                tokens = lexicon.topic_tokens[_another(rng, topic, task.topics) if slip else topic]
            else:
                tokens = lexicon.neutral_tokens
            text.append(tokens[int(rng.integers(len(tokens)))])
        return text

    def _draw(self, rng: np.random.Generator) -> Instance:
        bounds = (self._task.topics, self._task.audiences, len(CANDIDATE_ORDERS))
        payload = tuple(int(rng.integers(bound)) for bound in bounds)
        return Instance(content_hash(("style", *payload)), f"topic {payload[0]}", payload)


def _another(rng: np.random.Generator, index: int, count: int) -> int:
    """Draw one of the other indices below `count`."""
    return (index + int(rng.integers(1, count))) % count
