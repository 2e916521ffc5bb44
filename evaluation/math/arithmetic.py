"""Generated arithmetic with the Python tool as a task that the local engine trains on."""

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluation.math.synthetic import KINDS, Demonstrator, corpus, problem_of, right_answer
from sao.config_files import ConfigError
from sao.environments.base import (
    Instance,
    Split,
    draw_pools,
    draw_training_instance,
)
from sao.environments.chat_format import PYTHON_TOOL, ChatFormat
from sao.environments.python_math import Grader, Limits, PythonMath, PythonMathEpisode, Tool, question
from sao.environments.small_tokenizer import small_tokenizer

if TYPE_CHECKING:
    from sao.config_scales import ArithmeticTask

CORPUS_PROBLEMS = 2000


class ArithmeticEnvironment(PythonMath):
    """Instances, episodes and demonstrations of one `python_math` task block."""

    def __init__(self, task: "ArithmeticTask", grader: Grader, tool: Tool) -> None:
        self.task = task
        self.tokenizer = _tokenizer(task)
        limits = Limits(task.max_tokens, task.max_turns)
        super().__init__(ChatFormat(self.tokenizer, [PYTHON_TOOL]), limits, grader, tool)
        self._digits = (task.digits_min, task.digits_max)
        rng = np.random.default_rng(task.pool_seed)
        self._pools = draw_pools(lambda: self._draw(rng), task.pool_instances, task.held_out_instances)
        self._demonstrator = Demonstrator(
            task.demonstrator_guess_odds, task.demonstrator_slip_odds, self._digits
        )
        self.vocabulary = tuple(self.tokenizer.convert_ids_to_tokens(range(len(self.tokenizer))))
        self.max_episode_tokens = task.max_tokens

    def __reduce__(self) -> tuple[Any, ...]:
        return arithmetic_environment, (self.task,)  # its tool and workers stay with the process

    def instances(self, split: Split) -> list[Instance]:
        """Return the pool of a split in its fixed order."""
        return list(self._pools[split])

    def start(self, instance: Instance, progress: float) -> PythonMathEpisode:
        """Start an episode; the task is the same throughout training."""
        return self.attempt(problem_of(instance))

    def demonstration(self, rng: np.random.Generator) -> tuple[list[int], list[bool], float]:
        """Have the demonstrator solve a fresh instance that is not held out."""
        instance = draw_training_instance(lambda: self._draw(rng))
        solution = self._demonstrator.solution(instance, rng)
        token_ids, action_mask = self.chat.training_example([*question(problem_of(instance)), *solution])
        return token_ids, action_mask, float(solution[-1]["content"] == right_answer(instance))

    def _draw(self, rng: np.random.Generator) -> Instance:
        kinds = list(KINDS.values())
        kind = kinds[int(rng.integers(len(kinds)))]
        return kind.instance(rng, self._digits)


@cache
def arithmetic_environment(task: "ArithmeticTask") -> ArithmeticEnvironment:
    """The environment of a task block, one in a process, with the sandboxed tool and the graders."""
    return ArithmeticEnvironment(task, *grader_and_tool(task.name))


def grader_and_tool(task: str) -> tuple[Grader, Tool]:
    """The graders and the sandboxed tool of a task; ConfigError where the sandbox cannot be had."""
    from evaluation.math.grading import Grader as AnswerGrader
    from evaluation.math.sandbox import PythonTool, SandboxError

    try:
        tool = PythonTool()
    except SandboxError as error:
        raise ConfigError(f"task {task}: {error}") from error
    return AnswerGrader(), tool


@cache
def _tokenizer(task: "ArithmeticTask") -> Any:
    rng = np.random.default_rng([task.pool_seed, 1])
    texts = corpus(rng, CORPUS_PROBLEMS, (task.digits_min, task.digits_max))
    return small_tokenizer(texts, task.vocabulary_size)
