"""The online simulation with free text as tasks that a backend trains on.

`writing_environment` has generated requests, a tokenizer made here and a demonstrator, for policies that are
trained from nothing. `judged_environment` has a released model's tokenizer and requests of a data set.
"""

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluation.data_files import DataError
from evaluation.judging import JudgeError, LoggedJudge
from evaluation.training_data import fetched_rows
from evaluation.writing.judge import ATTEMPTS, KEY_VARIABLE, URL_VARIABLE, WritingJudge
from evaluation.writing.lexicon import (
    AUDIENCES,
    NEUTRAL_WORDS,
    STYLE_WORDS,
    TOPIC_WORDS,
    TOPICS,
    request,
)
from sao.config import ConfigError
from sao.environments.base import (
    Instance,
    Split,
    content_hash,
    draw_pools,
    draw_training_instance,
    pools_by_hash,
)
from sao.environments.chat_format import ChatFormat, ChatFormatError
from sao.environments.released_tokenizer import released_tokenizer, token_texts
from sao.environments.small_tokenizer import small_tokenizer
from sao.environments.style import Phase
from sao.environments.writing import StyleJudge, Writing, WritingEpisode, messages

if TYPE_CHECKING:
    from sao.config_scales import GeneratedWritingTask, Model
    from sao.config_tasks import JudgedStyles, WritingTask

LOG_VARIABLE, RATE_VARIABLE = "SAO_JUDGE_LOG", "SAO_JUDGE_PER_MINUTE"
HELD_OUT = 512  # requests of a data set that are held out, at most
Pools = dict[Split, list[Instance]]
CORPUS_TEXTS = 600
STYLE_ODDS, TOPIC_ODDS = 0.5, 0.3  # of the demonstrator's words


class JudgedWriting(Writing):
    """Instances and episodes of a task whose requests are given, in two pools that share none."""

    def __init__(
        self,
        task: "JudgedStyles",
        tokenizer: Any,
        judge: StyleJudge,
        max_tokens: int,
        pools: Pools,
        vocabulary_size: int | None = None,
    ) -> None:
        phases = tuple(Phase(rewarded, candidates) for rewarded, candidates in task.phases)
        super().__init__(ChatFormat(tokenizer), judge, max_tokens, phases, task.switch_points)
        self.tokenizer = tokenizer
        self.vocabulary = token_texts(tokenizer, vocabulary_size)
        self.max_episode_tokens = max_tokens
        self.pools = pools

    def instances(self, split: Split) -> list[Instance]:
        """Return the pool of a split in its fixed order."""
        return list(self.pools[split])

    def start(self, instance: Instance, progress: float) -> WritingEpisode:
        """Start an episode in the phase that `progress` has reached."""
        return self.attempt(instance, progress)

    def demonstration(self, rng: np.random.Generator) -> tuple[list[int], list[bool], float]:
        """A released model needs no demonstrations: raises ConfigError."""
        raise ConfigError("this task trains a released model; it has no demonstrator to warm up from")


class GeneratedWriting(JudgedWriting):
    """One `writing` task block: requests of topics and audiences, and a demonstrator of single words."""

    def __init__(self, task: "GeneratedWritingTask", judge: StyleJudge, results: str = "results") -> None:
        rng = np.random.default_rng(task.pool_seed)
        pools = draw_pools(lambda: _draw(task, rng), task.pool_instances, task.held_out_instances)
        super().__init__(task, _tokenizer(task), judge, task.max_tokens, pools)
        self.task, self.results = task, results

    def __reduce__(self) -> tuple[Any, ...]:
        return writing_environment, (self.task, self.results)  # the judge's connections stay with the process

    def demonstration(self, rng: np.random.Generator) -> tuple[list[int], list[bool], float]:
        """Write in one of the styles, drawn with equal odds, with the demonstrator's slips.

        The reward is the one of a phase in which the style set out for is rewarded, if nothing slipped.
        """
        styles = sorted({style for phase in self.phases for style in phase.candidates})
        style = styles[int(rng.integers(len(styles)))]
        offering = [phase for phase in self.phases if style in phase.candidates]
        phase = offering[int(rng.integers(len(offering)))]
        instance = draw_training_instance(lambda: _draw(self.task, rng))
        text, slipped = demonstrated_text(self.task, style, instance, rng)
        answer = {"role": "assistant", "content": text, "reasoning_content": ""}
        token_ids, action_mask = self.chat.training_example([*messages(instance, phase), answer])
        return token_ids, action_mask, float(not slipped)


def judged_environment(
    task: "WritingTask",
    tokenizer: Any,
    requests: Sequence[str],
    judge: StyleJudge,
    vocabulary_size: int | None = None,
) -> JudgedWriting:
    """The environment of a `judged_style` task block: requests of its data set, a released model's tokenizer.

    `HELD_OUT` of the requests, chosen by their hash, are held out of training, a third at most.
    `vocabulary_size`: tokens of the model where these are more than the tokenizer's. Raises ConfigError where
    either pool is empty, or the tokenizer's chat template cannot be used.
    """
    instances = [Instance(content_hash(("writing", text)), None, (text,)) for text in dict.fromkeys(requests)]
    pools = pools_by_hash(instances, HELD_OUT)
    if not all(pools.values()):
        raise ConfigError(
            f"task {task.name}: {len(instances)} different requests leave a pool empty; data set "
            f"{task.data} needs more of them"
        )
    try:
        return JudgedWriting(task, tokenizer, judge, task.max_tokens, pools, vocabulary_size)
    except ChatFormatError as error:
        raise ConfigError(f"task {task.name}: {error}") from error


@cache
def environment_of_data_set(task: "WritingTask", model: "Model", results: str) -> JudgedWriting:
    """The environment of a `judged_style` task block, one in a process.

    The requests are the texts of its fetched set below `results`; the tokenizer with its chat template is the
    released model's; the judge is the one of `judge_of`. Raises ConfigError where one of them is missing or
    unusable.
    """
    judge = judge_of(task.judge, results)
    try:
        requests = [row.text for row in fetched_rows(task.data, results)]
    except DataError as error:
        raise ConfigError(f"task {task.name}: {error}") from error
    return judged_environment(task, released_tokenizer(model), requests, judge, model.vocabulary_size)


@cache
def writing_environment(task: "GeneratedWritingTask", results: str = "results") -> GeneratedWriting:
    """The environment of a `writing` task block, one in a process, with the judge that the variables name."""
    return GeneratedWriting(task, judge_of(task.judge, results), results)


def judge_of(model: str, results: str = "results") -> WritingJudge:
    """The judge `model` at the endpoint that the environment variables name.

    SAO_JUDGE_URL its base URL, which mostly ends in /v1; SAO_JUDGE_KEY its key; SAO_JUDGE_LOG the log of its
    verdicts (judge.jsonl below `results`); SAO_JUDGE_PER_MINUTE most requests of a process in a minute (no
    limit). Raises ConfigError where the URL is missing or the rate is no number above 0.
    """
    url = os.environ.get(URL_VARIABLE)
    if not url:
        raise ConfigError(
            f"judge {model}: {URL_VARIABLE} is not set; set it to the base URL of an OpenAI-compatible "
            f"endpoint that serves this model, e.g. {URL_VARIABLE}=http://127.0.0.1:8000/v1"
        )
    rate = os.environ.get(RATE_VARIABLE)
    try:
        per_minute = None if rate is None else float(rate)
    except ValueError:
        per_minute = 0.0
    if per_minute is not None and not per_minute > 0:
        raise ConfigError(f"{RATE_VARIABLE}={rate}: write a number of requests above 0, or unset it")
    log = Path(os.environ.get(LOG_VARIABLE, f"{results}/judge.jsonl"))
    try:
        client = LoggedJudge(
            url, model, log, requests_per_minute=per_minute, attempts=ATTEMPTS, key_variable=KEY_VARIABLE
        )
    except JudgeError as error:  # a damaged log
        raise ConfigError(str(error)) from error
    return WritingJudge(client)


def demonstrated_text(
    task: "GeneratedWritingTask", style: str, instance: Instance, rng: np.random.Generator
) -> tuple[str, bool]:
    """Words in a style on the instance's topic, and whether the demonstrator slipped."""
    topic, least = instance.payload[1], instance.payload[2]
    short = rng.random() < task.demonstrator_short_odds
    length = (
        int(rng.integers(1, least)) if short and least > 1 else int(rng.integers(least, task.max_words + 1))
    )
    words, slips = [], 0
    for kind, slip in rng.random((length, 2)):
        if kind < STYLE_ODDS:
            wrong = slip < task.demonstrator_style_noise
            others = [name for name in STYLE_WORDS if name != style]
            slips += wrong
            words.append(_one(STYLE_WORDS[_one(others, rng) if wrong else style], rng))
        else:
            words.append(_one(TOPIC_WORDS[topic] if kind < STYLE_ODDS + TOPIC_ODDS else NEUTRAL_WORDS, rng))
    return " ".join(words), bool(short or slips > length * 0.3)


def _draw(task: "GeneratedWritingTask", rng: np.random.Generator) -> Instance:
    topic, audience = _one(TOPICS, rng), _one(AUDIENCES, rng)
    least = int(rng.integers(task.min_words, task.max_words + 1))
    text = request(topic, audience, least, task.max_words)
    return Instance(content_hash(("writing", text)), f"topic {topic}", (text, topic, least))


def _one(choices: Sequence[str], rng: np.random.Generator) -> str:
    return choices[int(rng.integers(len(choices)))]


@cache
def _tokenizer(task: "GeneratedWritingTask") -> Any:
    rng = np.random.default_rng([task.pool_seed, 1])
    texts = []
    for _ in range(CORPUS_TEXTS):
        instance = draw_training_instance(lambda: _draw(task, rng))
        style = _one(tuple(STYLE_WORDS), rng)
        texts += [str(instance.payload[0]), demonstrated_text(task, style, instance, rng)[0]]
    return small_tokenizer(texts, task.vocabulary_size)
