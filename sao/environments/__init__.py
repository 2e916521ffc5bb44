"""The tasks a policy acts in."""

from typing import TYPE_CHECKING

from sao.environments.base import Environment
from sao.environments.locks import LocksEnvironment

if TYPE_CHECKING:
    from sao.config import Task


def make_environment(task: "Task") -> Environment:
    """Build the environment of a resolved task block (`RunConfig.task`).

    Raises ValueError when the block's instances cannot fill its pools.
    """
    return LocksEnvironment(task)
