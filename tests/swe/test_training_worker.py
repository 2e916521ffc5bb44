"""A worker of the training environment with the real OpenHands and harness, against a scripted model."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import eventually, processes_of
from scripted_model import ScriptedModel
from scripts import DONE, replace, shell

from evaluation.swe.tasks import Task
from evaluation.swe.tiny_tasks import build_tiny_tasks
from evaluation.swe.training_worker import attempt

EDIT = replace("months.py", "year % 4 == 0", "year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Task]:
    folder = tmp_path_factory.mktemp("tiny")
    return folder / "images", build_tiny_tasks(folder)[0]


def settings(folder: Path, images: Path, seconds: int) -> dict[str, str]:
    return {
        "folder": str(folder),
        "images": str(images),
        "workspace": "local",
        "backend": "bubblewrap",
        "image": "",
        "server": "",
        "max_turns": "6",
        "wall_seconds": str(seconds),
        "test_seconds": "120",
    }


def test_an_attempt_is_played_graded_and_cleared_away(tmp_path: Path, tiny: tuple[Path, Task]) -> None:
    images, task = tiny
    with ScriptedModel({"tiny/calendar": [EDIT, DONE]}) as model:
        address = {"url": model.url, "model": model.model, "key": "the conversation's own"}
        asked = {"row": task.row, "address": address}
        answer = attempt(settings(tmp_path, images, 300), asked)
    assert answer.pop("seconds") > 0
    assert answer == {"ending": "finish", "turns": 2, "outcome": "resolved", "reasons": []}
    assert list(tmp_path.iterdir()) == [] and eventually(lambda: processes_of(tmp_path) == [])
    assert f"http://{model.hosts.pop()}/v1" == model.url and not model.hosts  # not the address inside
    body = model.requests[0]
    assert (body["temperature"], body["top_p"], body["model"]) == (1.0, 1.0, model.model)


def test_at_the_wall_clock_limit_the_patch_so_far_is_graded(tmp_path: Path, tiny: tuple[Path, Task]) -> None:
    images, task = tiny
    with ScriptedModel({"tiny/calendar": [EDIT, ("hang", 600)]}) as model:
        asked = {"row": task.row, "address": {"url": model.url, "model": model.model, "key": "k"}}
        answer = attempt(settings(tmp_path, images, 20), asked)
    assert (answer["ending"], answer["outcome"]) == ("wall_clock", "resolved")
    assert list(tmp_path.iterdir()) == [] and eventually(lambda: processes_of(tmp_path) == [])


def test_an_agent_that_deletes_the_repository_hands_in_nothing(
    tmp_path: Path, tiny: tuple[Path, Task]
) -> None:
    """It solved the task, and gains no second attempt by what it did then."""
    images, task = tiny
    with ScriptedModel({"tiny/calendar": [EDIT, shell("rm -rf /testbed/.git && ls -a"), DONE]}) as model:
        asked = {"row": task.row, "address": {"url": model.url, "model": model.model, "key": "k"}}
        answer = attempt(settings(tmp_path, images, 300), asked)
    assert (answer["ending"], answer["outcome"]) == ("finish", "empty_patch")
    said = json.dumps(model.requests[-1]["messages"][-1])
    assert "months.py" in said and ".git\\n" not in said  # it was there, and is gone
    assert list(tmp_path.iterdir()) == [] and eventually(lambda: processes_of(tmp_path) == [])


@pytest.mark.parametrize(
    ("steps", "outcome"),
    [
        ([EDIT, shell("pkill -9 -f evaluation.swe.server_parent; sleep 60")], "resolved"),
        ([shell("kill -9 -1")], "empty_patch"),
    ],
)
def test_an_agent_that_ends_its_server_gets_what_its_patch_so_far_earns(
    tmp_path: Path, tiny: tuple[Path, Task], steps: list[Any], outcome: str
) -> None:
    """Its second answer, or its very first."""
    images, task = tiny
    with ScriptedModel({"tiny/calendar": steps}) as model:
        asked = {"row": task.row, "address": {"url": model.url, "model": model.model, "key": "k"}}
        answer = attempt(settings(tmp_path, images, 300), asked)
    assert (answer["ending"], answer["outcome"], answer["turns"]) == ("server_ended", outcome, len(steps))
    assert len(model.requests) == len(steps)
    assert list(tmp_path.iterdir()) == [] and eventually(lambda: processes_of(tmp_path) == [])


def test_a_server_that_ends_on_a_sick_machine_is_a_failure(
    tmp_path: Path, tiny: tuple[Path, Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other workspace comes up: its image is gone since."""
    images, task = tiny
    gone = tmp_path / "gone"
    copied = shutil.copytree(images, tmp_path / "images")
    with ScriptedModel({"tiny/calendar": [shell("kill -9 -1")]}) as model:
        play, asked = model._play, {"url": model.url, "model": model.model, "key": "k"}
        monkeypatch.setattr(model, "_play", lambda *given: (copied.rename(gone), play(*given)))
        answer = attempt(settings(tmp_path / "work", copied, 300), {"row": task.row, "address": asked})
    assert "there is no such image folder" in answer["failure"]
    assert len(model.requests) == 1 and list((tmp_path / "work").iterdir()) == []


def test_the_turn_limit_is_exact_after_answers_without_a_call(
    tmp_path: Path, tiny: tuple[Path, Task]
) -> None:
    """Quick answers: a client that pauses the run once it saw the last one comes too late."""
    images, task = tiny
    steps: list[Any] = [("say", "I will look at it.")]
    steps += [("think", {"thought": f"Step {number}."}) for number in range(12)]
    with ScriptedModel({"tiny/calendar": steps}) as model:
        asked = {"row": task.row, "address": {"url": model.url, "model": model.model, "key": "k"}}
        answer = attempt(settings(tmp_path, images, 300), asked)
    assert (answer["ending"], answer["turns"], len(model.requests)) == ("turns", 6, 6)


def test_what_breaks_is_a_failure_and_the_worker_goes_on(tmp_path: Path, tiny: tuple[Path, Task]) -> None:
    """As a process: no image, then a row that is no task; both are answered in one line each."""
    images, task = tiny
    rows: list[dict[str, Any]] = [{**task.row, "image": "tiny/none:latest"}, {"instance_id": "x"}]
    address = {"url": "http://127.0.0.1:1/v1", "model": "m", "key": "k"}
    lines = "".join(json.dumps({"row": row, "address": address}) + "\n" for row in rows)
    command = [sys.executable, "-m", "evaluation.swe.training_worker"]
    command.append(json.dumps(settings(tmp_path, images, 60)))
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=500)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert answers[0] == {"ready": True} and len(answers) == 3, done.stderr
    assert "there is no such image folder" in answers[1]["failure"]
    assert answers[2]["failure"] and done.returncode == 0
    assert list(tmp_path.iterdir()) == []
