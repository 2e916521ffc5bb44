"""Task `math`: competition problems of a data set with the Python tool, for a released model.

Prompts, episodes and grading are those of evaluation (`sao.environments.python_math`); the reward is 1 where
the answer is right.
"""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluation.data_files import DataError
from evaluation.math.arithmetic import grader_and_tool
from evaluation.training_data import Row, fetched_rows
from sao.config_files import ConfigError
from sao.environments.base import Instance, Split, content_hash, pools_by_hash
from sao.environments.chat_format import PYTHON_TOOL, ChatFormat, ChatFormatError
from sao.environments.python_math import Grader, Limits, Problem, PythonMath, PythonMathEpisode, Tool
from sao.environments.released_tokenizer import released_tokenizer, token_texts

if TYPE_CHECKING:
    from sao.config_scales import Model
    from sao.config_tasks import MathTask

HELD_OUT = 256  # problems that are held out of training, at most


class CompetitionEnvironment(PythonMath):
    """Instances and episodes of one `math` task block."""

    def __init__(
        self,
        task: "MathTask",
        tokenizer: Any,
        rows: Sequence[Row],
        grader: Grader,
        tool: Tool,
        vocabulary_size: int | None = None,
    ) -> None:
        limits = Limits(task.max_tokens, task.max_turns)
        super().__init__(ChatFormat(tokenizer, [PYTHON_TOOL]), limits, grader, tool)
        self.task, self.tokenizer = task, tokenizer
        self.vocabulary = token_texts(tokenizer, vocabulary_size)
        self.max_episode_tokens = task.max_tokens
        self._pools = pools_by_hash(list(dict.fromkeys(map(instance_of, rows))), HELD_OUT)
        if not all(self._pools.values()):
            raise ConfigError(
                f"task {task.name}: {len(rows)} problems leave a pool empty; data set {task.data} needs more "
                "of them"
            )

    def instances(self, split: Split) -> list[Instance]:
        """Return the pool of a split in the order of the data set."""
        return list(self._pools[split])

    def start(self, instance: Instance, progress: float) -> PythonMathEpisode:
        """Start an episode; the task is the same throughout training."""
        text, answer = instance.payload
        return self.attempt(Problem(instance.prompt_id, self.task.data, text, answer))

    def demonstration(self, rng: np.random.Generator) -> tuple[list[int], list[bool], float]:
        """A released model needs no demonstrations: raises ConfigError."""
        raise ConfigError("this task trains a released model; it has no demonstrator to warm up from")


def instance_of(row: Row) -> Instance:
    """A problem by the hash of its text and answer."""
    return Instance(content_hash(("math", row.text, row.answer)), None, (row.text, row.answer))


@cache
def competition_environment(task: "MathTask", model: "Model", results: str) -> CompetitionEnvironment:
    """The environment of a task block, one in a process, with the sandboxed tool and the graders.

    Problems are the rows of its fetched set below `results`. Raises ConfigError, with the mend, where they,
    the model's tokenizer or the sandbox cannot be had.
    """
    try:
        rows = fetched_rows(task.data, results)
    except DataError as error:
        raise ConfigError(f"task {task.name}: {error}") from error
    if lacking := next((row.id for row in rows if not row.answer.strip()), None):
        raise ConfigError(f"task {task.name}: row {lacking} of {task.data} has no answer; remove it")
    tokenizer = released_tokenizer(model)
    try:
        return CompetitionEnvironment(
            task, tokenizer, rows, *grader_and_tool(task.name), model.vocabulary_size
        )
    except ChatFormatError as error:
        raise ConfigError(f"task {task.name}: {error}") from error
