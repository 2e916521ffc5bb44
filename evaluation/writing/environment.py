"""The online simulation with free text as tasks that a backend trains on.

`writing_environment` has generated requests, a tokenizer made here and a demonstrator, for policies that are
trained from nothing. `judged_environment` has a released model's tokenizer and requests of a data set.
"""

import json
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluation.judging import LoggedJudge
from evaluation.writing.judge import ATTEMPTS, WritingJudge
from evaluation.writing.lexicon import (
    AUDIENCES,
    NEUTRAL_WORDS,
    STYLE_WORDS,
    TOPIC_WORDS,
    TOPICS,
    request,
)
from sao.config import ConfigError
from sao.environments.base import Instance, Split, content_hash, draw_pools, draw_training_instance, split_of
from sao.environments.chat_format import ChatFormat
from sao.environments.small_tokenizer import small_tokenizer
from sao.environments.style import Phase
from sao.environments.writing import StyleJudge, Writing, WritingEpisode, messages

if TYPE_CHECKING:
    from sao.config_scales import GeneratedWritingTask
    from sao.config_tasks import JudgedStyles, WritingTask

URL_VARIABLE, KEY_VARIABLE = "SAO_JUDGE_URL", "SAO_JUDGE_KEY"
LOG_VARIABLE, RATE_VARIABLE = "SAO_JUDGE_LOG", "SAO_JUDGE_PER_MINUTE"
DEFAULT_LOG = "results/judge.jsonl"
TOKENIZER_VARIABLE, REQUESTS_VARIABLE = "SAO_TOKENIZER", "SAO_REQUESTS"
HELD_OUT = 512  # requests of a data set that an evaluation samples
Pools = dict[Split, list[Instance]]
CORPUS_TEXTS = 600
STYLE_ODDS, TOPIC_ODDS = 0.5, 0.3  # of the demonstrator's words


class JudgedWriting(Writing):
    """Instances and episodes of a task whose requests are given, in two pools that share none."""

    def __init__(
        self, task: "JudgedStyles", tokenizer: Any, judge: StyleJudge, max_tokens: int, pools: Pools
    ) -> None:
        phases = tuple(Phase(rewarded, candidates) for rewarded, candidates in task.phases)
        super().__init__(ChatFormat(tokenizer), judge, max_tokens, phases, task.switch_points)
        self.tokenizer = tokenizer
        self.vocabulary = tuple(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
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

    def __init__(self, task: "GeneratedWritingTask", judge: StyleJudge) -> None:
        rng = np.random.default_rng(task.pool_seed)
        pools = draw_pools(lambda: _draw(task, rng), task.pool_instances, task.held_out_instances)
        super().__init__(task, _tokenizer(task), judge, task.max_tokens, pools)
        self.task = task

    def __reduce__(self) -> tuple[Any, ...]:
        return writing_environment, (self.task,)  # the judge's connections stay with the process

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
    task: "WritingTask", tokenizer: Any, requests: Sequence[str], judge: StyleJudge
) -> JudgedWriting:
    """The environment of a `judged_style` task block: requests of its data set, a released model's tokenizer.

    A third of the requests, chosen by their hash, is held out of training; evaluations sample the first
    `HELD_OUT` of them. Raises ConfigError where either pool is empty.
    """
    instances = [Instance(content_hash(("writing", text)), None, (text,)) for text in dict.fromkeys(requests)]
    pools: Pools = {"train": [], "held_out": []}
    for instance in instances:
        pools[split_of(instance)].append(instance)
    pools["held_out"] = pools["held_out"][:HELD_OUT]
    if not all(pools.values()):
        raise ConfigError(
            f"task {task.name}: {len(instances)} different requests leave a pool empty; data set "
            f"{task.data} needs more of them"
        )
    return JudgedWriting(task, tokenizer, judge, task.max_tokens, pools)


@cache
def environment_of_data_set(task: "WritingTask") -> JudgedWriting:
    """The environment of a `judged_style` task block, one in a process; environment variables name its parts.

    SAO_TOKENIZER the released model (its folder, or its name on the hub) whose tokenizer and chat template
    are used; SAO_REQUESTS the JSON Lines file whose `text` holds the requests (results/data/<data>.jsonl);
    those of `judge_of`. Raises ConfigError where one of them is missing or unusable.
    """
    judge = judge_of(task.judge)
    name = os.environ.get(TOKENIZER_VARIABLE)
    if not name:
        raise ConfigError(
            f"task {task.name}: {TOKENIZER_VARIABLE} is not set; set it to the model that is trained, its "
            "folder or its name on the hub"
        )
    requests = read_requests(Path(os.environ.get(REQUESTS_VARIABLE, f"results/data/{task.data}.jsonl")))
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        said = " ".join(str(error).split())[:300]
        raise ConfigError(f"{TOKENIZER_VARIABLE}={name}: no tokenizer can be loaded: {said}") from error
    return judged_environment(task, tokenizer, requests, judge)


def read_requests(path: Path) -> list[str]:
    """The `text` of each line of a JSON Lines file; ConfigError, naming the line, where one has none."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # splitlines would cut texts with a U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: cannot be read: {error}; put the requests there, an object with `text` on each line, "
            f"or name their file in {REQUESTS_VARIABLE}"
        ) from error
    if not lines[-1]:
        lines.pop()
    requests = []
    for number, line in enumerate(lines, start=1):
        try:
            text = json.loads(line)["text"]
        except (ValueError, KeyError, TypeError):
            text = None
        if not isinstance(text, str) or not text.strip():
            raise ConfigError(f"{path}: line {number}: no JSON object with a `text`; mend or remove the line")
        requests.append(text)
    return requests


@cache
def writing_environment(task: "GeneratedWritingTask") -> GeneratedWriting:
    """The environment of a `writing` task block, one in a process, with the judge that the variables name."""
    return GeneratedWriting(task, judge_of(task.judge))


def judge_of(model: str) -> WritingJudge:
    """The judge `model` at the endpoint that the environment variables name.

    SAO_JUDGE_URL its base URL, which mostly ends in /v1; SAO_JUDGE_KEY its key; SAO_JUDGE_LOG the log of its
    verdicts (results/judge.jsonl); SAO_JUDGE_PER_MINUTE most requests of a process in a minute (no limit).
    Raises ConfigError where the URL is missing or the rate is no number above 0.
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
    log = Path(os.environ.get(LOG_VARIABLE, DEFAULT_LOG))
    client = LoggedJudge(
        url, model, log, requests_per_minute=per_minute, attempts=ATTEMPTS, key_variable=KEY_VARIABLE
    )
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
