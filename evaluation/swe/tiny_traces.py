"""The tiny tasks with the demonstrator's scripts, and the traces that these leave in the real scaffold."""

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from evaluation.endpoint import Completion
from evaluation.swe.protocol import REPOSITORY
from evaluation.swe.tiny_tasks import FOLDER, build_tiny_tasks
from sao.environments.base import EnvironmentFailure
from sao.environments.chat_format import ChatFormat
from sao.environments.swe import Row, SWEEnvironment
from sao.environments.swe_tiny import Script, actions_of, scripts_of
from sao.trajectory import Status, Trajectory

TRIES = 3  # of a scripted trace whose environment fails


class SetupError(Exception):
    """The traces are not what the scripts should give; the message says which."""


@dataclass(frozen=True)
class TinyTasks:
    """The tiny tasks: their rows, the demonstrator's scripts on them, and the issues' first lines."""

    rows: list[Row]
    scripts: list[Script]
    titles: list[str]

    @classmethod
    def build(cls, folder: Path, count: int | None = None) -> "TinyTasks":
        """Write repositories and tasks below `folder`; take the `count` easiest, or all."""
        rows = [task.row for task in build_tiny_tasks(folder)][:count]
        described = [yaml.safe_load(file.read_text()) for file in sorted(FOLDER.glob("*.yaml"))[:count]]
        scripts = [script for task in described for script in scripts_of(task, REPOSITORY)]
        return cls(rows, scripts, [task["problem"].splitlines()[0] for task in described])

    @classmethod
    def described(cls, count: int | None = None) -> "TinyTasks":
        """The same, and no file is left."""
        with tempfile.TemporaryDirectory(prefix="swe-tiny-") as folder:
            return cls.build(Path(folder), count)


class ScriptedEngine:
    """Answers with a script's actions in place of a policy; its log-probs (0) are no policy's."""

    def __init__(self, actions: Sequence[list[int]]) -> None:
        self.actions = list(actions)

    async def complete(
        self, token_ids: Sequence[int], max_tokens: int, stop_ids: Sequence[int], seed: int
    ) -> Completion:
        sampled = self.actions.pop(0)
        return Completion(sampled, [0.0] * len(sampled), "stop", [0] * len(sampled))


def record_traces(
    environment: SWEEnvironment, scripts: Sequence[Script], chat: ChatFormat, workers: int
) -> list[Trajectory]:
    """One real trace of each script; SetupError where its reward is not what the script should earn."""
    instances = {instance.payload[0]["instance_id"]: instance for instance in environment.instances("train")}

    def trace(script: Script) -> Trajectory:
        for remaining in reversed(range(TRIES)):
            engine = ScriptedEngine(actions_of(script, chat))
            try:
                trajectory = environment.rollout(instances[script.instance_id], engine=engine)
                break
            except EnvironmentFailure as failure:
                if not remaining:
                    raise SetupError(f"{script.instance_id}: its trace fails: {failure}") from failure
        if (trajectory.reward == 1.0) != script.resolves or trajectory.status != Status.COMPLETED:
            raise SetupError(
                f"{script.instance_id}: a script that should {'' if script.resolves else 'not '}resolve it "
                f"ended {trajectory.status} with reward {trajectory.reward:g}"
            )
        return trajectory

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(trace, scripts))


def demonstrator(tokenizer: Any) -> ChatFormat:
    """The chat format with any tool, which does not change how actions are written."""
    return ChatFormat(tokenizer, [{"type": "function", "function": {"name": "finish"}}])
