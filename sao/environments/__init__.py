"""The tasks a policy acts in."""

from typing import TYPE_CHECKING

from sao.environments.base import Environment
from sao.environments.locks import LocksEnvironment
from sao.environments.style import StyleEnvironment

if TYPE_CHECKING:
    from sao.config_scales import ArithmeticTask, LocksTask, StyleTask


def make_environment(task: "LocksTask | StyleTask | ArithmeticTask") -> Environment:
    """Build the environment of a resolved task block (`RunConfig.task`).

    Raises ValueError when the block's instances cannot fill its pools.
    """
    if task.environment == "python_math":
        from evaluation.math.arithmetic import arithmetic_environment  # brings the tool and the graders

        return arithmetic_environment(task)
    if task.environment == "style":
        return StyleEnvironment(task)
    return LocksEnvironment(task)
