"""A worker of `evaluation.swe.training`: one task after another, asked for and answered in lines of JSON.

Runs in the environment that holds OpenHands and the harness. The line on standard input has the task's row
and the model's address; the answer has the ending, the outcome and the counts, or the `failure` that says
nothing about the model. Each task has a folder of its own, which is deleted with it.
"""

import json
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any, TextIO

from evaluation.swe.versions import AGENT, HARNESS, VersionError, require

RETRIES = 2  # of a request that the proxy's engine failed; nothing of it is recorded
MODEL_SECONDS = 7200


def attempt(settings: dict[str, str], asked: dict[str, Any]) -> dict[str, Any]:
    """Play and grade one task."""
    from sao.environments.base import EnvironmentFailure
    from sao.temporary_folder import delete

    folder = Path(settings["folder"]) / uuid.uuid4().hex
    try:
        return _attempt(settings, asked, folder)
    except EnvironmentFailure as failure:
        return {"failure": str(failure) or "the scaffold failed"}
    except Exception as error:  # a scaffold's fault is no policy's, whatever it is
        return {"failure": f"{type(error).__name__}: {error}"[:500]}
    finally:
        delete(folder)


def _attempt(settings: dict[str, str], asked: dict[str, Any], folder: Path) -> dict[str, Any]:
    from evaluation.swe.conversation import Limits, Model, play
    from evaluation.swe.grading import Grading, grade
    from evaluation.swe.protocol import KEEP_REASONING
    from evaluation.swe.tasks import Task
    from evaluation.swe.workspaces import WorkspaceOptions, open_workspace

    began = time.monotonic()
    task, address = Task(asked["row"]), asked["address"]
    images = Path(settings.get("images", "images"))
    options = WorkspaceOptions(
        kind=settings["workspace"],
        folder=folder / "workspace",
        images=images,
        image=settings["image"],
        server=settings["server"],
        endpoint=address["url"],
    )
    # The proxy keeps all that was sampled, so the thinking has to be in the history that it compares.
    model = Model(
        address["url"],
        address["model"],
        address["key"],
        timeout=MODEL_SECONDS,
        retries=RETRIES,
        keep_reasoning=KEEP_REASONING,
    )
    (folder / "workspace").mkdir(parents=True)
    workspace = open_workspace(options, task)
    try:
        limits = Limits(int(settings["max_turns"]), float(settings["wall_seconds"]))
        played = play(task, workspace, model, limits)
    finally:
        workspace.close()
    grading = Grading(
        folder / "grading",
        address["model"],
        settings["backend"],
        images,
        workers=1,
        timeout=int(settings["test_seconds"]),
        training=True,
    )
    name = task.instance_id
    verdict = grade(grading, [task], {name: played.handed_in.patch})[name]
    return {
        "ending": played.ending,
        "turns": played.turns,
        "outcome": verdict.outcome,
        "reasons": verdict.reasons,
        "seconds": time.monotonic() - began,
    }


def serve(settings: dict[str, str], answers: TextIO) -> None:
    """Answer tasks until standard input ends."""
    from evaluation.swe import conversation, grading, workspaces  # noqa: F401  so that no task waits for it

    _say(answers, {"ready": True})
    for line in sys.stdin:
        _say(answers, attempt(settings, json.loads(line)))


def _say(answers: TextIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def main() -> int:
    """Command line: settings as JSON; returns 0, or 2 where the environment is not the tested one."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # packages print to standard output
    try:
        require(AGENT | HARNESS)
    except VersionError as error:
        print(error, file=sys.stderr)
        return 2
    serve(json.loads(sys.argv[1]), answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
