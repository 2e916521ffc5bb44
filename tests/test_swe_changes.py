"""The agent's change is read whatever it left behind, and a git that fails is no empty change."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from evaluation.swe.changes import base_script, change_script, checked_base, checked_change
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


def test_an_index_that_the_agent_broke_or_bent_is_not_asked(repository: Path) -> None:
    git(repository, "update-index", "--assume-unchanged", "code.py")
    assert changed_files(change(repository)) == ["code.py", "new.py"]
    (repository / ".git/index").write_bytes(b"broken")
    assert changed_files(change(repository)) == ["code.py", "new.py"]


def test_a_repository_that_the_agent_ruined_hands_in_nothing(repository: Path) -> None:
    """It is no failure of the environment, for which the agent would get another try."""
    objects = repository / ".git/objects"
    shutil.move(objects, repository / ".git/elsewhere")
    assert change(repository) == ""
    shutil.rmtree(repository / ".git")
    assert change(repository) == ""
    git(repository, "init", "-q")  # another one in its place
    assert change(repository, "0" * 40) == ""
    shutil.rmtree(repository)
    assert change(repository) == ""


def test_what_git_blames_on_the_machine_is_no_empty_change(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A git that finds the disk full, at its first and at its last command."""
    real = shutil.which("git")
    broken = tmp_path / "bin/git"
    broken.parent.mkdir()
    monkeypatch.setenv("PATH", f"{broken.parent}{os.pathsep}{os.environ['PATH']}")
    for command in ("read-tree", " diff "):
        broken.write_text(
            f"#!/bin/sh\ncase \" $* \" in *'{command}'*)\n"
            "echo 'fatal: No space left on device' >&2; exit 128;; esac\n"
            f'exec {real} "$@"\n'
        )
        broken.chmod(0o755)
        with pytest.raises(EnvironmentFailure, match=r"status 128\): fatal: No space left on device"):
            change(repository)


def test_the_base_commit_is_a_hash_whatever_names_it(repository: Path) -> None:
    done = base(repository, "HEAD")
    first = done.stdout.strip()
    assert checked_base(done.returncode, done.stdout) == first and len(first) == 40
    git(repository, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "the agent's own")
    assert changed_files(change(repository, first)) == ["code.py", "new.py"]
    assert checked_base(0, base(repository, "HEAD^").stdout) == first


def test_a_workspace_without_the_base_commit_is_a_failure(repository: Path) -> None:
    for place, commit in ((repository, "0" * 40), (repository / "none", "HEAD")):
        done = base(place, commit)
        with pytest.raises(EnvironmentFailure, match="the base commit is not there"):
            checked_base(done.returncode, done.stdout + done.stderr)


def base(place: Path, commit: str) -> subprocess.CompletedProcess[str]:
    script = base_script(commit, str(place))
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=os.sep)
