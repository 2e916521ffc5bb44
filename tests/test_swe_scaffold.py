"""Worker processes of the scaffold: answers, failures, and what is left when one hangs or dies."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from evaluation.swe import training
from evaluation.swe.training import OpenHandsScaffold, ScaffoldSettings, WorkerError
from sao.environments.base import EnvironmentFailure
from sao.environments.swe import ModelAddress

ADDRESS = ModelAddress("http://127.0.0.1:1/v1", "tiny", "key")
WORKER = '''\
"""Speaks the worker's protocol and does what the row says."""
import json, os, subprocess, sys, time
settings = json.loads(sys.argv[3])
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    do = asked["row"]["do"]
    inner = os.path.join(settings["folder"], "left")
    os.makedirs(inner, exist_ok=True)
    os.chmod(inner, 0)
    answer = {"ending": "finish", "turns": 3, "outcome": do, "reasons": ["why"], "seconds": 0.5}
    if do == "hang":
        child = subprocess.Popen(["sleep", "600"])
        with open(os.environ["CHILD_FILE"], "w") as file:
            file.write(str(child.pid))
        time.sleep(600)
    if do == "die":
        print("no memory", file=sys.stderr, flush=True)
        sys.exit(3)
    if do == "babble":
        print("this is not JSON", flush=True)
        continue
    if do == "fail":
        answer = {"failure": "no container"}
    if do == "who":
        answer["turns"] = os.getpid()
    print(json.dumps(answer), flush=True)
'''


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter that runs the worker above whatever module it is told to run."""
    file = tmp_path / "python"
    file.write_text(f"#!{sys.executable}\n{WORKER}")
    file.chmod(0o755)
    return file


@pytest.fixture
def scaffold(python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenHandsScaffold]:
    monkeypatch.setattr(training, "GRACE_SECONDS", 1)
    monkeypatch.setenv("CHILD_FILE", str(tmp_path / "child"))
    settings = ScaffoldSettings(python, wall_seconds=1, test_seconds=1)
    with OpenHandsScaffold(settings, workers=1, folder=tmp_path) as made:
        yield made
    assert not made.folder.exists()


def attempt(scaffold: OpenHandsScaffold, do: str) -> Any:
    return scaffold.attempt({"do": do}, ADDRESS)


def test_an_answer_becomes_an_attempt(scaffold: OpenHandsScaffold) -> None:
    resolved = attempt(scaffold, "resolved")
    assert (resolved.ending, resolved.outcome, resolved.resolved) == ("finish", "resolved", True)
    assert (resolved.turns, resolved.seconds) == (3, 0.5)
    assert not attempt(scaffold, "suspect").resolved and not attempt(scaffold, "tests_fail").resolved


def test_failures_of_scaffold_and_grading_are_the_environments(scaffold: OpenHandsScaffold) -> None:
    with pytest.raises(EnvironmentFailure, match="no container"):
        attempt(scaffold, "fail")
    with pytest.raises(EnvironmentFailure, match="grading failed: why"):
        attempt(scaffold, "infrastructure_error")
    assert attempt(scaffold, "resolved").resolved  # the worker lives on


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state != "Z"


def test_a_worker_that_hangs_is_killed_with_its_children_and_replaced(
    scaffold: OpenHandsScaffold, tmp_path: Path
) -> None:
    before = attempt(scaffold, "who").turns
    with pytest.raises(EnvironmentFailure, match="no answer within 5 s"):
        attempt(scaffold, "hang")
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 5
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(child) and not alive(before)
    assert not (scaffold.folder / "0" / "left").exists()
    assert attempt(scaffold, "who").turns != before


@pytest.mark.parametrize(("do", "reason"), [("die", "no memory"), ("babble", "the worker was ended")])
def test_a_worker_that_dies_or_babbles_is_replaced(scaffold: OpenHandsScaffold, do: str, reason: str) -> None:
    with pytest.raises(EnvironmentFailure, match=reason):
        attempt(scaffold, do)
    assert attempt(scaffold, "resolved").resolved


def test_attempts_beyond_the_workers_wait_for_one(scaffold: OpenHandsScaffold) -> None:
    with ThreadPoolExecutor(4) as pool:
        pids = list(pool.map(lambda _: attempt(scaffold, "who").turns, range(8)))
    assert len(set(pids)) == 1


def test_closing_ends_attempts_under_way(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHILD_FILE", str(tmp_path / "child"))
    settings = ScaffoldSettings(python, wall_seconds=600)
    with ThreadPoolExecutor(2) as pool:
        with OpenHandsScaffold(settings, workers=1, folder=tmp_path) as scaffold:
            waiting = [pool.submit(attempt, scaffold, "hang") for _ in range(2)]
            while not (tmp_path / "child").exists():
                time.sleep(0.05)
        for future in waiting:
            with pytest.raises(EnvironmentFailure):
                future.result(10)
    assert not scaffold.folder.exists()


PROGRAM = """\
import os, signal, sys, threading, time
from pathlib import Path
from evaluation.swe.training import OpenHandsScaffold, ScaffoldSettings
from sao.environments.swe import ModelAddress

with OpenHandsScaffold(ScaffoldSettings(Path(sys.argv[1])), workers=1, folder=Path(sys.argv[2])) as scaffold:
    asked = {"do": "hang"}, ModelAddress("http://127.0.0.1:1/v1", "tiny", "key")
    threading.Thread(target=scaffold.attempt, args=asked, daemon=True).start()
    while not Path(os.environ["CHILD_FILE"]).exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_program_leaves_no_worker_and_no_folder(python: Path, tmp_path: Path) -> None:
    child_file = tmp_path / "child"
    environment = os.environ | {"CHILD_FILE": str(child_file)}
    command = [sys.executable, "-c", PROGRAM, str(python), str(tmp_path)]
    assert subprocess.run(command, env=environment, timeout=400).returncode == -signal.SIGKILL
    child = int(child_file.read_text())
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and (alive(child) or len(list(tmp_path.iterdir())) > 2):
        time.sleep(0.05)
    assert not alive(child)
    assert sorted(tmp_path.iterdir()) == sorted([python, child_file])


def test_a_worker_that_does_not_start_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'OpenHands is missing' >&2\nexit 2\n")
    broken.chmod(0o755)
    with (
        pytest.raises(WorkerError, match="the worker does not start: OpenHands is missing"),
        OpenHandsScaffold(ScaffoldSettings(broken), workers=1, folder=tmp_path),
    ):
        pass
    assert list(tmp_path.iterdir()) == [broken]
