"""A worker of the training environment with the real OpenHands and harness, against a scripted model."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import processes_of
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
    assert list(tmp_path.iterdir()) == [] and processes_of(tmp_path) == []
    body = model.requests[0]
    assert (body["temperature"], body["top_p"], body["model"]) == (1.0, 1.0, model.model)


def test_at_the_wall_clock_limit_the_patch_so_far_is_graded(tmp_path: Path, tiny: tuple[Path, Task]) -> None:
    images, task = tiny
    with ScriptedModel({"tiny/calendar": [EDIT, ("hang", 600)]}) as model:
        asked = {"row": task.row, "address": {"url": model.url, "model": model.model, "key": "k"}}
        answer = attempt(settings(tmp_path, images, 20), asked)
    assert (answer["ending"], answer["outcome"]) == ("wall_clock", "resolved")
    assert list(tmp_path.iterdir()) == [] and processes_of(tmp_path) == []


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
    assert list(tmp_path.iterdir()) == [] and processes_of(tmp_path) == []


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
