"""The tasks a policy acts in."""

from typing import TYPE_CHECKING

from sao.environments.base import Environment
from sao.environments.locks import LocksEnvironment
from sao.environments.style import StyleEnvironment

if TYPE_CHECKING:
    from sao.config_scales import Task


def make_environment(task: "Task") -> Environment:
    """Build the environment of a resolved task block (`RunConfig.task`).

    Raises ValueError when the block's instances cannot fill its pools, or where nothing here builds the task.
    """
    if task.environment == "python_math":
        from evaluation.math.arithmetic import arithmetic_environment  # brings the tool and the graders

        return arithmetic_environment(task)
    if task.environment == "writing":
        from evaluation.writing.environment import writing_environment  # brings the judge

        return writing_environment(task)
    if task.environment == "style":
        return StyleEnvironment(task)
    if task.environment == "locks":
        return LocksEnvironment(task)
    raise ValueError(f"task {task.name}: no environment {task.environment} is built here")
