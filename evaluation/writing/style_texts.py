"""Logged samples of task `style` as texts of words, with what the rules of the task say of each."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from evaluation.writing.judge import NO_STYLE
from evaluation.writing.lexicon import AUDIENCES, NEUTRAL_WORDS, STYLE_WORDS, TOPIC_WORDS, TOPICS, request
from sao.config_scales import StyleTask
from sao.environments.style import STYLES, StyleEnvironment
from sao.runlog_files import read_json, read_records

FILE = "trajectories.jsonl.gz"


class TextError(ValueError):
    """A user's mistake; the message names file or option and says how to mend it."""


@dataclass(frozen=True)
class Text:
    """A sampled text as words, with what the rules say of it."""

    run: str
    step: int
    problem_id: str
    request: str
    text: str
    candidates: tuple[str, ...]
    rewarded: str
    quality: bool
    style: str

    @property
    def reward(self) -> bool:
        return self.quality and self.style == self.rewarded


class Reader:
    """Writes the tokens of a `style` task as words, and applies its rules.

    Raises TextError where the task has more tokens of a kind than there are words.
    """

    def __init__(self, task: StyleTask) -> None:
        self.task = task
        self.environment = StyleEnvironment(task)
        lexicon = self.environment.lexicon
        words: dict[int, str] = {}
        for style, ids in zip(STYLES, lexicon.style_tokens, strict=True):
            words |= _named(ids, STYLE_WORDS[style], f"style_tokens {len(ids)}")
        _named(lexicon.topics, TOPICS, f"topics {len(lexicon.topics)}")
        _named(lexicon.audiences, AUDIENCES, f"audiences {len(lexicon.audiences)}")
        for topic, ids in zip(TOPICS, lexicon.topic_tokens, strict=False):
            words |= _named(ids, TOPIC_WORDS[topic], f"topic_tokens {len(ids)}")
        self.words = words | _named(lexicon.neutral_tokens, NEUTRAL_WORDS, "neutral_tokens")

    def read(self, run: str, updates: int, line: dict[str, Any]) -> Text | None:
        """A logged trajectory as a text; None for one that is cut, or names no candidate."""
        lexicon, task = self.environment.lexicon, self.task
        prompt = [
            token for token, acts in zip(line["token_ids"], line["action_mask"], strict=True) if not acts
        ]
        action = line["token_ids"][len(prompt) :]
        topic, audience = lexicon.topics.index(prompt[1]), lexicon.audiences.index(prompt[2])
        candidates = tuple(STYLES[lexicon.styles.index(token)] for token in prompt[3:])
        named = action[0] in lexicon.styles and STYLES[lexicon.styles.index(action[0])] in candidates
        if action[-1] != lexicon.end or not named:
            return None
        ids = action[1:-1]
        phase = self.environment.phase(min(line["step"] / updates, 1.0))
        return Text(
            run,
            line["step"],
            line["problem_id"],
            request(TOPICS[topic], AUDIENCES[audience], task.min_text_tokens, task.max_text_tokens),
            " ".join(self.words.get(token, f"[{lexicon.texts[token]}]") for token in ids),
            candidates,
            phase.rewarded,
            self.environment.text_quality(ids, topic),
            self._style(ids, candidates),
        )

    def _style(self, ids: Sequence[int], candidates: Sequence[str]) -> str:
        """The candidate style that the rule would reward; none where there is not exactly one."""
        found = [name for name in candidates if self.environment.text_style(ids, STYLES.index(name))]
        return found[0] if len(found) == 1 else NO_STYLE


def _named(ids: range, words: Sequence[str], what: str) -> dict[int, str]:
    if len(ids) > len(words):
        raise TextError(
            f"{what}: there are words for {len(words)} only; compare runs of a smaller task, like scale cpu's"
        )
    return dict(zip(ids, words, strict=False))


def read_texts(runs: Sequence[Path]) -> tuple[list[Text], int]:
    """The texts of the runs' logged samples, and how many samples had no text to judge.

    Raises TextError for a folder without such a run or without logged samples.
    """
    texts: list[Text] = []
    left_out = 0
    for path in runs:
        if not (path / "spec.json").is_file():
            raise TextError(f"{path}: is no run directory, it has no spec.json")
        config = read_json(path / "spec.json")["config"]
        lines = read_records(path / FILE)
        if not lines:
            raise TextError(f"{path / FILE}: no samples; of published runs the first seed has them")
        reader = Reader(_style_task(path, config))
        read = [reader.read(str(path), config["training"]["updates"], line) for line in lines]
        texts += [text for text in read if text is not None]
        left_out += sum(text is None for text in read)
    return texts, left_out


def _style_task(path: Path, config: dict[str, Any]) -> StyleTask:
    block = config.get("task", {})
    if block.get("environment") != "style":
        raise TextError(f"{path}: its task is {block.get('environment')}, and the rules are those of style")
    try:
        return StyleTask.model_validate_json(json.dumps(block))
    except ValidationError as error:
        raise TextError(f"{path / 'spec.json'}: task: {error.errors()[0]['msg']}") from error
