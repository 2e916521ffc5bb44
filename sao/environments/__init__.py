"""The tasks a policy acts in."""

from typing import TYPE_CHECKING

from sao.config_files import ConfigError
from sao.environments.base import Environment
from sao.environments.locks import LocksEnvironment
from sao.environments.style import StyleEnvironment

if TYPE_CHECKING:
    from sao.config_scales import Model, Task


def make_environment(task: "Task", model: "Model | None" = None, results: str = "results") -> Environment:
    """Build the environment of a resolved task block (`RunConfig.task`).

    Tasks on a data set speak the chat format of `model`, the released one that is trained, and read their set
    below `results`; the others need neither. Raises ValueError, with the mend, when the block's instances
    cannot fill its pools, when data, model, tool or judge are missing, or where nothing here builds the task.
    """
    if task.environment == "python_math":
        from evaluation.math.arithmetic import arithmetic_environment  # brings the tool and the graders

        return arithmetic_environment(task)
    if task.environment == "writing":
        from evaluation.writing.environment import writing_environment  # brings the judge

        return writing_environment(task, results)
    if task.environment == "math":
        from evaluation.math.competition import competition_environment

        return competition_environment(task, released(task, model), results)
    if task.environment == "judged_style":
        from evaluation.writing.environment import environment_of_data_set

        return environment_of_data_set(task, released(task, model), results)
    if task.environment == "swe":
        from evaluation.swe.environment import environment_of_data_set as swe_environment_of_data_set

        return swe_environment_of_data_set(task, released(task, model), results)
    if task.environment == "swe_tiny":
        from evaluation.swe.environment import tiny_environment  # brings the scaffold and the proxy

        return tiny_environment(task)
    if task.environment == "style":
        return StyleEnvironment(task)
    if task.environment == "locks":
        return LocksEnvironment(task)
    raise ValueError(f"task {task.name}: no environment {task.environment} is built here")


def released(task: "Task", model: "Model | None") -> "Model":
    """The released model that a task on a data set needs; ConfigError where there is none."""
    if model is None or model.path is None:
        raise ConfigError(
            f"task {task.name}: environment {task.environment} trains a released model, and model.path is "
            "not set; set it in the scale"
        )
    return model


def check_machine(task: "Task") -> None:
    """Raise ConfigError, with the mend, where a task needs what this machine lacks, beside its data."""
    if task.environment in ("swe", "swe_tiny"):
        from evaluation.swe.environment import check_task

        check_task(task)
