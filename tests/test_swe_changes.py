"""The agent's change is read whatever it left behind, and a git that fails is no empty change."""

import os
import subprocess
from pathlib import Path

import pytest

from evaluation.swe.changes import change_script, checked_change
from evaluation.swe.patches import changed_files
from sao.environments.base import EnvironmentFailure


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    place = tmp_path / "test bed"
    place.mkdir()
    git(place, "init", "-q")
    (place / "code.py").write_text("x = 1\n")
    git(place, "add", "--all")
    git(place, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    (place / "code.py").write_text("x = 2\n")
    (place / "new.py").write_text("y = 1\n")
    return place


def git(place: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=place, check=True, capture_output=True)


def change(place: Path, commit: str = "HEAD") -> str:
    done = subprocess.run(
        ["bash", "-c", change_script(commit, str(place))], capture_output=True, text=True, cwd=os.sep
    )
    return checked_change(done.returncode, done.stdout + done.stderr)


def test_changed_and_new_files(repository: Path) -> None:
    assert changed_files(change(repository)) == ["code.py", "new.py"]


def test_a_lock_left_behind(repository: Path) -> None:
    (repository / ".git/index.lock").touch()
    assert changed_files(change(repository)) == ["code.py", "new.py"]


def test_what_git_cannot_add_is_left_out(repository: Path) -> None:
    (repository / "empty").mkdir()
    git(repository / "empty", "init", "-q")  # without a commit it cannot be added
    assert changed_files(change(repository)) == ["code.py", "new.py"]


def test_nothing_changed(repository: Path) -> None:
    (repository / "code.py").write_text("x = 1\n")
    (repository / "new.py").unlink()
    assert change(repository) == ""


def test_a_failing_git_is_no_empty_change(repository: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="git could not tell the change"):
        change(repository, "0" * 40)
    (repository / ".git/index").write_bytes(b"broken")
    with pytest.raises(EnvironmentFailure, match=r"status 128\): .*index"):
        change(repository)


def test_a_missing_repository(repository: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="none"):
        change(repository / "none")
