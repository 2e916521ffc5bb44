"""How conversations end, in a run without any network.

That nothing outside is asked for is seen of the runner's and the grader's own process by its calls, and of
the agent servers by their logs, which are kept before their workspaces are deleted.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import eventually, processes_of
from test_runner import PLACE, lines_of

ATTEMPTS_OUTSIDE = (
    "failed to fetch",
    "cost map",
    "telemetry",
    "posthog",
    "name resolution",
    "network is unreachable",
    "getaddrinfo",
    "max retries exceeded",
    "downloading",
)
LOCAL = {"127.0.0.1", "localhost", "::1"}
NO_NETWORK = ["bwrap", "--dev-bind", "/", "/", "--unshare-net", "--"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    script = Path(__file__).with_name("offline_run.py")
    done = subprocess.run(
        [*NO_NETWORK, sys.executable, str(script), str(folder)], capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (folder / "printed.txt").write_text(done.stdout + done.stderr)
    return folder


@pytest.fixture(scope="module")
def seen(results: Path) -> dict[str, Any]:
    return json.loads((results / "seen.json").read_text())


@pytest.fixture(scope="module")
def scores(results: Path) -> dict[str, dict[str, Any]]:
    return {score["problem_id"]: score for score in lines_of(results / PLACE / "scores.jsonl")}


def test_it_runs_without_a_network_and_asks_for_none(results: Path, seen: dict[str, Any]) -> None:
    assert seen["exit_codes"] == [0, 0]
    assert set(seen["asked"]) <= LOCAL
    printed = (results / "printed.txt").read_text().lower()
    assert not [word for word in ATTEMPTS_OUTSIDE if word in printed]
    assert eventually(lambda: processes_of(results) == [])


def test_agent_servers_log_no_attempt_to_reach_anything_outside(results: Path) -> None:
    log = (results / "servers.txt").read_text().lower()
    # One server for each task, and one more for the attempt that the model refused: the logs are whole.
    assert log.count("application startup complete") >= 6
    assert not [word for word in ATTEMPTS_OUTSIDE if word in log]


def test_each_ending(scores: dict[str, dict[str, Any]]) -> None:
    assert {name: (score["outcome"], score["finish_reason"]) for name, score in scores.items()} == {
        "tiny__calendar-1": ("empty_patch", "server_ended"),
        "tiny__slugs-2": ("empty_patch", "turns"),
        "tiny__intervals-3": ("tests_fail", "context"),
        "tiny__ledger-4": ("empty_patch", "stuck"),
        "tiny__router-5": ("resolved", "finish"),
    }


def test_the_turn_limit_holds_over_all_runs(seen: dict[str, Any], scores: dict[str, dict[str, Any]]) -> None:
    score = scores["tiny__slugs-2"]
    assert (score["turns"], score["continues"], score["status"]) == (6, 2, "truncated")
    assert sum("tiny/slugs" in json.dumps(body["messages"][1]) for body in seen["requests"]) == 6


def test_infrastructure_errors_stand_apart_and_are_tried_again(results: Path) -> None:
    errors = lines_of(results / PLACE / "errors.jsonl")
    assert [(error["problem_id"], error["attempt"]) for error in errors] == [("tiny__router-5", 1)]
    assert "this key is not known yet" in errors[0]["message"]


def test_many_empty_patches_are_pointed_out(results: Path) -> None:
    assert "3 empty patches; a fault of the run is likely" in (results / "printed.txt").read_text()
