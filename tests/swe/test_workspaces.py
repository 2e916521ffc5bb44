"""Workspaces that cannot tell the agent's change say so, and give no empty patch."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evaluation.swe.changes import RUINED
from evaluation.swe.sandbox import SandboxError
from evaluation.swe.tasks import Task
from evaluation.swe.workspaces import LocalFolder, ServerWorkspace, WorkspaceOptions
from sao.environments.base import EnvironmentFailure


class Sandbox:
    """Gives or raises what it was told to."""

    def __init__(self, result: Any) -> None:
        self.result = result

    def run(self, *_: Any) -> tuple[int, bytes]:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.mark.parametrize(
    "result",
    [(128, b"fatal: not a git repository"), SandboxError("bwrap: no"), subprocess.TimeoutExpired("git", 1)],
)
def test_a_folder_whose_git_fails(result: Any) -> None:
    workspace = object.__new__(LocalFolder)
    workspace.sandbox = Sandbox(result)  # type: ignore[assignment]
    with pytest.raises(EnvironmentFailure):
        workspace.change("HEAD")
    with pytest.raises(EnvironmentFailure):
        workspace.base("HEAD")
    for result in ((0, b""), (RUINED, b"")):  # nothing changed, and a repository that the agent ruined
        workspace.sandbox = Sandbox(result)  # type: ignore[assignment]
        assert workspace.change("HEAD") == ""
    workspace.sandbox = Sandbox((0, b"3f2a\n"))  # type: ignore[assignment]
    assert workspace.base("HEAD") == "3f2a"


def test_a_server_whose_git_fails(tmp_path: Path) -> None:
    result = SimpleNamespace(timeout_occurred=False, exit_code=128, stdout="fatal: bad object", stderr="")
    remote: Any = SimpleNamespace(host="http://127.0.0.1:1", execute_command=lambda *_, **__: result)
    workspace = ServerWorkspace(remote, WorkspaceOptions("remote", tmp_path), Task({}))
    with pytest.raises(EnvironmentFailure, match="bad object"):
        workspace.change("HEAD")
    with pytest.raises(EnvironmentFailure, match="bad object"):
        workspace.base("HEAD")
    result.exit_code = RUINED
    assert workspace.change("HEAD") == ""
