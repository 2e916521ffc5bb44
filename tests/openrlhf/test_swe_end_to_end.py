"""Software engineering over the real OpenRLHF: a tiny policy, real OpenHands workers, the real harness.

Takes minutes, so it is left out of `make test-openrlhf`: `make openrlhf-swe` runs it.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("vllm")
pytest.importorskip("openrlhf")

from sao import config, prepare
from sao.config import RunConfig
from sao.runlog import read_run

SCALE = "openrlhf_smoke_swe"
REPOSITORY = Path(__file__).parents[2]
OPENHANDS = Path(os.environ.get("SAO_OPENHANDS_PYTHON", REPOSITORY / ".venv-openhands/bin/python"))
START_SECONDS, END_SECONDS = 2400, 120

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (OPENHANDS.exists() and shutil.which("bwrap") and shutil.which("tmux")),
        reason="needs the environment of `make openhands-environment`, bubblewrap and tmux",
    ),
]


def short_run() -> RunConfig:
    """Row `sao_swe` with one critic-only step in place of ten, and batches of four."""
    run = config.resolve("sao_swe", SCALE, 0)
    critic = run.critic.model_copy(update={"pretrained": False, "critic_only_steps": 1})
    training = run.training.model_copy(update={"batch_trajectories": 4})
    return run.model_copy(update={"critic": critic, "training": training})


TRAIN = """\
import signal, sys
from pathlib import Path
from test_swe_end_to_end import short_run
from sao.runlog import RunDirectory
from sao.train import train_and_seal
signal.signal(signal.SIGTERM, signal.default_int_handler)
with RunDirectory.open(Path(sys.argv[1]) / "run", short_run(), "python -c") as directory:
    sys.exit(train_and_seal(directory, sys.argv[1]))
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("prepared") / "results"
    words = ["warm-start", "--scale", SCALE, "--task", "swe_tiny", "--results", str(results)]
    assert prepare.main(words) == 0
    return results


def command_of(process: psutil.Process) -> str:
    """Its command line; empty where it ended meanwhile."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def is_engine(words: str) -> bool:
    """Ray names an actor's process by its class, and by OpenRLHF's where a method of that runs."""
    return "ray::RolloutEngine" in words or "ray::RolloutRayActor" in words


class Training:
    """The run in a process of its own, with a place of its own for temporary files."""

    def __init__(self, prepared: Path, folder: Path, temporary: Path) -> None:
        self.results, self.temporary = folder / "results", temporary
        shutil.copytree(prepared, self.results)
        paths = os.pathsep.join(map(str, (REPOSITORY, Path(__file__).parent)))
        environment = os.environ | {"PYTHONPATH": paths, "SAO_OPENHANDS_PYTHON": str(OPENHANDS)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", TRAIN, str(self.results)],
            cwd=REPOSITORY,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def folder(self) -> Path:
        return self.results / "run"

    def lines(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        content = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in content]

    def finish(self) -> None:
        output, _ = self.process.communicate(timeout=START_SECONDS)
        logs = [log.read_text(errors="replace")[-5000:] for log in sorted(self.folder.glob("attempt-*.log"))]
        assert self.process.returncode == 0, output + "".join(logs)

    def left(self) -> list[str]:
        """Command lines of workers of this run, and all temporary files."""
        found = [str(file) for pattern in ("*", "*/swe-*") for file in self.temporary.glob(pattern)]
        for process in psutil.process_iter():
            words = command_of(process)
            if "evaluation.swe" in words and str(self.temporary) in words:
                found.append(words)
        return found

    def wait_until_nothing_is_left(self) -> None:
        deadline = time.monotonic() + END_SECONDS
        while left := self.left():
            assert time.monotonic() < deadline, left
            time.sleep(0.2)


@pytest.fixture(scope="module")
def finished(
    prepared: Path, tmp_path_factory: pytest.TempPathFactory, temporary_files: Path
) -> Iterator[Training]:
    training = Training(prepared, tmp_path_factory.mktemp("finished"), temporary_files)
    training.finish()
    yield training


def test_two_updates_on_attempts_through_the_real_scaffold(finished: Training) -> None:
    metrics = finished.lines("metrics.jsonl")
    assert [line["step"] for line in metrics] == [-1, 0, 1]
    assert [line["trajectories"] for line in metrics] == [4, 4, 4]
    updates = metrics[1:]
    assert all(line["policy_grad_norm"] > 0 for line in updates)
    assert sum(line["reward_mean"] * 4 for line in metrics) >= 1  # some attempts resolve their task
    assert all(line["mean_turns"] >= 1 and line["zero_logprob_share"] < 0.9 for line in updates)
    # The engine computes in bf16 with the trainer's weights, or those of an update before.
    assert all(0.8 < line["ratio_q50"] < 1.25 for line in updates)


def test_the_run_directory_is_that_of_every_run(finished: Training) -> None:
    assert (finished.folder / "seal.json").exists()
    evaluated = finished.lines("evaluations.jsonl")
    assert [(line["step"], line["benchmark"]) for line in evaluated] == [(1, "swe_tiny"), (2, "swe_tiny")]
    assert all(line["status"] in ("completed", "truncated") for line in evaluated)
    record = read_run(finished.folder)
    assert record.metrics["step"].tolist() == [-1, 0, 1]
    attempts = json.loads((finished.folder / "provenance.json").read_text())["attempts"]
    assert [attempt["status"] for attempt in attempts] == ["finished"]


def test_a_finished_run_leaves_no_worker_and_no_file(finished: Training) -> None:
    finished.wait_until_nothing_is_left()


@pytest.mark.parametrize("end", ["sigterm", "engine killed"])
def test_an_end_before_its_time_leaves_no_worker_and_no_file(
    prepared: Path, tmp_path: Path, temporary_files: Path, end: str
) -> None:
    training = Training(prepared, tmp_path, temporary_files)
    deadline = time.monotonic() + START_SECONDS
    while len(training.left()) < 4:  # the launch's folder, the scaffold's in it, and two workers are there
        assert training.process.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    if end == "sigterm":
        training.process.send_signal(signal.SIGTERM)
    else:
        [driver] = psutil.Process(training.process.pid).children()
        started = driver.children(recursive=True)
        [engine] = [one for one in started if is_engine(command_of(one))]
        engine.kill()
    output, _ = training.process.communicate(timeout=END_SECONDS + 60)
    assert training.process.returncode == (130 if end == "sigterm" else 1), output
    training.wait_until_nothing_is_left()
