"""Software engineering as a task that a backend trains on: tasks, scaffold and recording proxy.

Environment variables say what belongs to a machine and to no run:

    SAO_OPENHANDS_PYTHON   interpreter of the environment with OpenHands and the harness
                           (.venv-openhands/bin/python, which `make openhands-environment` makes)
    SAO_SWE_IMAGE          pattern of the agent server's image, for the workspaces docker and apptainer
    SAO_SWE_SERVER         pattern of a running agent server's address, for the workspace remote
"""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation.swe.contamination import require_checked
from evaluation.swe.machine import (
    IMAGE_VARIABLE,
    PYTHON_VARIABLE,
    SERVER_VARIABLE,
    check_scaffold,
    node_address,
)
from evaluation.swe.proxy import RecordingProxy
from evaluation.swe.tasks import TaskError, load_tasks
from evaluation.swe.tiny_tasks import build_tiny_tasks
from evaluation.swe.tiny_traces import TinyTasks
from evaluation.swe.training import ROOT, OpenHandsScaffold, ScaffoldSettings
from evaluation.training_data import fetched_file, how_to_fetch
from sao.background_server import BackgroundServer
from sao.config import ConfigError
from sao.environments.base import pools_by_hash
from sao.environments.chat_format import ChatFormat
from sao.environments.released_tokenizer import released_tokenizer, token_texts
from sao.environments.swe import Row, SWEEnvironment, instance_of
from sao.environments.swe_tiny import tiny_tokenizer

if TYPE_CHECKING:
    from sao.config_scales import Model
    from sao.config_tasks import SWETask, TinySWETask

INTERPRETER = ROOT / ".venv-openhands/bin/python"
OWN_NETWORK = ("docker", "remote")  # workspaces to which this machine's loopback is their own


class ScaffoldEnvironment(SWEEnvironment):
    """The tasks of a task block. Workers and proxy start with `open`, in the processes of engines alone.

    `made` is the function that makes it anew in another process, with its arguments; `images` writes the
    images' folders of the tasks below a folder, for tasks that are made here. Raises ConfigError where there
    are too few tasks for both pools.
    """

    def __init__(
        self,
        task: "SWETask | TinySWETask",
        rows: Sequence[Row],
        tokenizer: Any,
        vocabulary: tuple[str, ...],
        made: tuple[Any, ...],
        images: Callable[[Path], Any] | None = None,
    ) -> None:
        split = pools_by_hash([instance_of(row) for row in rows], task.held_out_instances)
        if not split["held_out"]:
            raise ConfigError(
                f"task {task.name}: {len(rows)} tasks are too few to hold one out; have 3 or more"
            )
        train, held_out = ([instance.payload[0] for instance in pool] for pool in split.values())
        self.task, self.tokenizer, self.images = task, tokenizer, images
        self.proxy = RecordingProxy(None, tokenizer, task.name, task.max_tokens)
        self.vocabulary, self.made = vocabulary, made
        self.max_episode_tokens = task.max_tokens
        self._opened = ExitStack()
        super().__init__(train, held_out, Unopened(), self.proxy)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.made  # workers and proxy stay with the process

    def open(self, workers: int, max_tokens: int) -> None:
        """Start `workers` workers and the proxy; a second call changes nothing.

        Raises WorkerError where the workers do not come up.
        """
        if not isinstance(self.scaffold, Unopened):
            return
        self.proxy.max_tokens = min(self.task.max_tokens, max_tokens)
        host = node_address() if self.task.workspace in OWN_NETWORK else "127.0.0.1"
        with ExitStack() as stack:
            self.proxy.url = stack.enter_context(BackgroundServer(self.proxy.app(), host)).url
            scaffold = OpenHandsScaffold(scaffold_settings(self.task), workers)
            stack.callback(scaffold.close)
            if self.images is not None:  # they are deleted with the workers' folders
                self.images(scaffold.folder)
                scaffold.settings = replace(scaffold.settings, images=scaffold.folder / "images")
            self.scaffold = scaffold.__enter__()
            self._opened = stack.pop_all()

    def close(self) -> None:
        """End workers and proxy; attempts under way fail."""
        self.scaffold = Unopened()
        self._opened.close()


class Unopened:
    """Stands in the scaffold's place before `open`."""

    def attempt(self, row: Row, address: Any) -> Any:
        """No attempt can be made: raises RuntimeError."""
        raise RuntimeError("the environment has no workers: open it first")


@cache
def environment_of_data_set(task: "SWETask", model: "Model", results: str) -> ScaffoldEnvironment:
    """The environment of a `swe` task block, one in a process: its data set's tasks, a released model's chat.

    Raises ConfigError, with the mend, where data or tokenizer are missing, and ChatFormatError for a
    tokenizer whose template cannot carry a conversation.
    """
    rows = training_rows(task.data, results)
    tokenizer = released_tokenizer(model)
    ChatFormat(tokenizer)
    vocabulary = token_texts(tokenizer, model.vocabulary_size)
    made = (environment_of_data_set, (task, model, results))
    return ScaffoldEnvironment(task, rows, tokenizer, vocabulary, made)


@cache
def tiny_environment(task: "TinySWETask") -> ScaffoldEnvironment:
    """The environment of a `swe_tiny` task block, one in a process."""
    tasks = TinyTasks.described(task.tasks)
    tokenizer = tiny_tokenizer(tasks.scripts, tasks.titles)
    made = (tiny_environment, (task,))
    return ScaffoldEnvironment(task, tasks.rows, tokenizer, token_texts(tokenizer), made, build_tiny_tasks)


def check_task(task: "SWETask | TinySWETask") -> None:
    """Raise ConfigError, with the mend, where this machine lacks what the task needs. Starts nothing."""
    try:
        check_scaffold(scaffold_settings(task))
    except ConfigError as error:
        raise ConfigError(f"task {task.name}: {error}") from error


def training_rows(name: str, results: str) -> list[Row]:
    """The rows of a fetched set that was compared with SWE-Bench Verified; ConfigError otherwise."""
    file = fetched_file(name, results)
    if not file.is_file():
        raise ConfigError(f"{file}: the tasks are not there; {how_to_fetch(name, results)}")
    try:
        require_checked(file)
        return [task.row for task in load_tasks(file, complete=False)]
    except TaskError as error:
        raise ConfigError(str(error)) from error


def scaffold_settings(task: "SWETask | TinySWETask") -> ScaffoldSettings:
    """The workers' settings: limits from the task block, places from the environment variables."""
    return ScaffoldSettings(
        python=interpreter(),
        max_turns=task.max_turns,
        wall_seconds=task.wall_seconds,
        test_seconds=task.test_seconds,
        workspace=task.workspace,
        backend=task.grading,
        image=os.environ.get(IMAGE_VARIABLE, ""),
        server=os.environ.get(SERVER_VARIABLE, ""),
    )


def interpreter() -> Path:
    """The Python that the workers run in."""
    return Path(os.environ.get(PYTHON_VARIABLE, INTERPRETER)).absolute()
