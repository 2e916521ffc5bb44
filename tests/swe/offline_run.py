"""Plays and grades the tiny tasks against the scripted model in one process; run where there is no network.

    python tests/swe/offline_run.py RESULTS

writes RESULTS/seen.json: requests that the model got, addresses that this process asked for, and exit codes;
and RESULTS/servers.txt: the logs of all agent servers.
"""

import json
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

results = Path(sys.argv[1])
asked: list[str] = []


def note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.getaddrinfo":
        asked.append(str(arguments[0]))
    elif event == "socket.connect" and isinstance(arguments[1], tuple):
        asked.append(str(arguments[1][0]))


sys.addaudithook(note)
assert socket.gethostname()

from scripted_model import ScriptedModel  # noqa: E402
from scripts import DONE, ENDINGS, shell  # noqa: E402

from evaluation.swe import grade, runner, workspaces  # noqa: E402
from evaluation.swe.tiny_tasks import build_tiny_tasks  # noqa: E402
from evaluation.swe.workspaces import LocalFolder  # noqa: E402


class KeptLog(LocalFolder):
    """Keeps the server's log, which is deleted with the workspace."""

    def close(self) -> None:
        if self.log.exists():
            with (results / "servers.txt").open("a") as kept:
                kept.write(self.log.read_text(errors="replace"))
        super().close()


workspaces.LocalFolder = KeptLog  # type: ignore[misc]

with tempfile.TemporaryDirectory() as folder:
    router = build_tiny_tasks(Path(folder))[4]
solved = [shell(f"git apply - <<'PATCH'\n{router.row['patch']}PATCH"), DONE]
runner.PAUSE_SECONDS = 0.1
with ScriptedModel(ENDINGS | {"tiny/router": solved}, refused={"tiny/router": 1}) as model:
    options = (
        "--row trial --scale tiny --benchmark swe_tiny --workspace local --model tiny-coder --max-turns 6"
    )
    options += f" --concurrency 3 --results {results} --endpoint {model.url}"
    played = runner.main(options.split())
    evaluation = results / "tiny/evaluations/trial/seed0/step0/swe_tiny"
    graded = grade.main([str(evaluation), "--backend", "bubblewrap", "--workers", "2", "--timeout", "120"])
seen = {"requests": model.requests, "asked": sorted(set(asked)), "exit_codes": [played, graded]}
(results / "seen.json").write_text(json.dumps(seen))
