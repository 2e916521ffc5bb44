"""Whole runs on a CPU: Ray, vLLM and DeepSpeed ZeRO-3 with two ranks of the policy, killed and resumed.

Real engines are not deterministic: a resumed run is compared with one that was never stopped by its steps,
rates, versions and prompts, and is bit for bit the same where only weights decide (test_parity.py).
"""

import gzip
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

from sao import config, prepare
from sao.environments import make_environment
from sao.local.model import load_policy
from sao.local.packed_batch import PackedBatch, policy_logprobs
from sao.local.warm_start import sample_trajectories

SCALE = "openrlhf_smoke_two_ranks"
RUN = config.resolve("sao", SCALE, 0)
START_SECONDS, END_SECONDS = 400, 60
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results with the preparation that the row's runs start from."""
    results = tmp_path_factory.mktemp("prepared")
    for words in (["warm-start"], ["values", "--frozen", "attention"]):
        options = ["--scale", SCALE, "--task", "locks", "--results", str(results)]
        assert prepare.main([*words, *options]) == 0
    return results


def command(results: Path) -> list[str]:
    options = ["--row", "sao", "--scale", SCALE, "--results", str(results)]
    return [sys.executable, "-m", "sao.train", *options]


def start(results: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command(results), cwd=REPOSITORY, env=environment, **pipes)


def finish(results: Path) -> Path:
    """Runs the command to its end; returns the run directory."""
    process = start(results)
    output, _ = process.communicate(timeout=START_SECONDS)
    folder = run_folder(results)
    logs = "".join(log.read_text(errors="replace")[-5000:] for log in sorted(folder.glob("attempt-*.log")))
    assert process.returncode == 0, output + logs
    return folder


def run_folder(results: Path) -> Path:
    return results / SCALE / "runs" / "sao" / "seed0"


def fresh(prepared: Path, results: Path) -> Path:
    shutil.copytree(prepared, results)
    return results


@pytest.fixture(scope="module")
def uninterrupted(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finish(fresh(prepared, tmp_path_factory.mktemp("uninterrupted") / "results"))


@pytest.fixture(scope="module")
def resumed(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed with SIGKILL after a checkpoint and the update behind it, and then resumed."""
    results = fresh(prepared, tmp_path_factory.mktemp("resumed") / "results")
    folder, process = run_folder(results), start(results)
    deadline = time.monotonic() + START_SECONDS
    while (
        not (folder / "checkpoint-2" / "complete.json").exists() or len(lines(folder, "metrics.jsonl")) < 13
    ):
        assert process.poll() is None and time.monotonic() < deadline, process.stdout.read()
        time.sleep(0.1)
    driver = child_of(process.pid)
    process.kill()
    process.wait()
    wait_for_the_end_of(driver)
    assert not (folder / "seal.json").exists()
    return finish(results)


def child_of(process: int) -> int:
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    assert len(children) == 1
    return int(children[0])


def wait_for_the_end_of(driver: int) -> None:
    """The driver is killed with the process that started it; nobody else stops it here."""
    deadline = time.monotonic() + END_SECONDS
    while Path(f"/proc/{driver}/stat").exists() and " Z " not in Path(f"/proc/{driver}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / name
    if not path.exists():
        return []
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in text.split(b"\n")[:-1]]  # without one that is being written


@pytest.fixture(params=["uninterrupted", "resumed"])
def run(request: pytest.FixtureRequest) -> Iterator[Path]:
    yield request.getfixturevalue(request.param)


def test_the_run_is_complete_and_sealed(run: Path) -> None:
    metrics = lines(run, "metrics.jsonl")
    assert [line["step"] for line in metrics] == list(range(-10, RUN.training.updates))
    assert [line["version"] for line in metrics] == [0] * 10 + list(range(RUN.training.updates))
    assert (run / "seal.json").exists()
    assert not list(run.glob("checkpoint-*")) and not list(run.glob(".*.tmp"))


def test_some_tokens_are_stale_and_some_lie_outside_the_band(run: Path) -> None:
    updates = lines(run, "metrics.jsonl")[10:]
    assert updates[0]["staleness_max"] == 0
    assert all(line["staleness_max"] <= RUN.training.max_staleness for line in updates)
    assert any(line["staleness_max"] > 0 for line in updates)  # the first batch after a resume may be fresh
    assert sum(line["masked_low"] + line["masked_high"] for line in updates) > 0
    assert all(line["clipped"] is None and line["zero_logprob_share"] < 0.5 for line in updates)


def test_weights_arrived_in_the_middle_of_trajectories(uninterrupted: Path, resumed: Path) -> None:
    """With both slots busy at every sync."""
    spans = [
        (line["first_version"], line["last_version"])
        for folder in (uninterrupted, resumed)
        for line in lines(folder, "schedule.jsonl.gz")
        if line["kind"] == "trajectory"
    ]
    assert all(first <= last for first, last in spans)
    assert any(first < last for first, last in spans)


def test_engines_held_the_trainers_weights_after_every_sync(run: Path) -> None:
    logs = [path.read_text(errors="replace") for path in sorted(run.glob("attempt-*.log"))]
    found = {
        version
        for version in range(RUN.training.updates + 1)
        for log in logs
        if f"version {version}: " in log
    }
    assert found == set(range(RUN.training.updates + 1))


def test_every_prompt_is_trained_on_once_and_none_is_lost(run: Path) -> None:
    """The data order numbers its prompts (group_id): those not trained on can only have been under way."""
    schedule = [line for line in lines(run, "schedule.jsonl.gz") if line["kind"] == "trajectory"]
    trained = [line["group_id"] for line in schedule]
    assert len(trained) == len(set(trained)) == RUN.metrics_lines * RUN.training.batch_trajectories
    waiting = RUN.sampler.slots + (RUN.openrlhf.queue_limit_batches + 1) * RUN.training.batch_trajectories
    assert max(trained) < len(trained) + waiting


def test_evaluations_cover_the_held_out_set_at_every_step(run: Path) -> None:
    evaluated = [(line["step"], line["problem_id"]) for line in lines(run, "evaluations.jsonl")]
    problems = [problem.prompt_id for problem in make_environment(RUN.task).instances("held_out")]
    assert sorted(evaluated) == sorted(
        (step, problem) for step in RUN.evaluation.steps for problem in problems
    )
    shown = lines(run, "trajectories.jsonl.gz")
    assert [line["step"] for line in shown] == [step for step in RUN.evaluation.steps for _ in range(8)]


def test_a_resumed_run_has_the_steps_and_rates_of_one_never_stopped(
    uninterrupted: Path, resumed: Path
) -> None:
    names = ("step", "version", "learning_rate", "critic_learning_rate", "trajectories")
    expected, found = (
        [[line[name] for name in names] for line in lines(folder, "metrics.jsonl")]
        for folder in (uninterrupted, resumed)
    )
    assert found == expected
    attempts = json.loads((resumed / "provenance.json").read_text())["attempts"]
    assert [attempt["status"] for attempt in attempts] == ["stopped", "finished"]


def test_no_run_leaves_a_temporary_file(uninterrupted: Path, resumed: Path, temporary_files: Path) -> None:
    """One was killed: sockets of its engine and Ray's session are gone as well."""
    wait_until_empty(temporary_files)


def wait_until_empty(folder: Path) -> None:
    deadline = time.monotonic() + END_SECONDS
    while left := list(folder.iterdir()):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def test_exported_weights_load_and_explain_the_engines_logprobs(uninterrupted: Path, prepared: Path) -> None:
    """Trainer log-probs of the logged trajectories, recomputed from the exported weights."""
    policy = load_policy(uninterrupted / "weights" / f"step-{RUN.training.updates}")
    scale = config.load_scale(SCALE)
    warm_started = load_policy(prepared / SCALE / "prepare" / "locks" / "warm_start" / "policy")
    probe = sample_trajectories(scale, make_environment(RUN.task), warm_started, 8, seed=1)
    moved = [
        policy_logprobs(weights, PackedBatch.from_trajectories(probe, weights.device))[0].detach()
        for weights in (policy, warm_started)
    ]
    assert (moved[0] - moved[1]).abs().max() > 1e-3  # training has moved it
    shown = [
        line for line in lines(uninterrupted, "trajectories.jsonl.gz") if line["step"] == RUN.training.updates
    ]
    assert largest_difference(policy, shown, "trainer_logprobs") < 1e-4
    assert largest_difference(policy, shown, "rollout_logprobs") < 0.2  # the engine computes in bf16


def largest_difference(policy: Any, shown: list[dict[str, Any]], column: str) -> float:
    worst = 0.0
    for line in shown:
        trajectory = trajectory_of(line)
        data = PackedBatch.from_trajectories([trajectory], policy.device)
        logprobs = policy_logprobs(policy, data)[0][0].detach()
        expected = [value for value in line[column] if value is not None]
        actual = logprobs[data.batch.action_mask[0]].tolist()
        worst = max(worst, *(abs(a - b) for a, b in zip(actual, expected, strict=True)))
    return worst


def trajectory_of(line: dict[str, Any]) -> Any:
    from itertools import groupby

    from sao.trajectory import Trajectory

    mask = line["action_mask"]
    spans = []
    for acted, places in groupby(range(len(mask)), key=lambda place: mask[place]):
        run_of_places = list(places)
        if acted:
            spans.append((run_of_places[0], run_of_places[-1] + 1))
    return Trajectory(
        line["token_ids"], spans, line["rollout_logprobs"], line["policy_versions"], line["reward"]
    )


def test_sigterm_stops_a_run_and_everything_it_started(
    prepared: Path, tmp_path: Path, temporary_files: Path
) -> None:
    results = fresh(prepared, tmp_path / "results")
    process = start(results)
    log = run_folder(results) / "attempt-1.log"
    deadline = time.monotonic() + START_SECONDS
    while not log.exists() or "Started a local Ray instance" not in log.read_text(errors="replace"):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    driver = child_of(process.pid)
    started = psutil.Process(driver).children(recursive=True)
    assert started
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=END_SECONDS + 60)
    assert process.returncode == 130 and "goes on from the latest checkpoint" in output
    wait_for_the_end_of(driver)
    assert not psutil.wait_procs(started, timeout=END_SECONDS)[1]
    attempts = json.loads((run_folder(results) / "provenance.json").read_text())["attempts"]
    assert attempts[0]["status"] == "interrupted"
    assert not list(temporary_files.iterdir())


@pytest.mark.parametrize("killed", ["the engine", "Ray's process above it"])
def test_an_engine_that_dies_ends_the_run_with_one_message(
    prepared: Path, tmp_path: Path, temporary_files: Path, killed: str
) -> None:
    results = fresh(prepared, tmp_path / "results")
    folder, process = run_folder(results), start(results)
    deadline = time.monotonic() + START_SECONDS
    while not lines(folder, "metrics.jsonl"):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    driver = psutil.Process(child_of(process.pid))
    started = driver.children(recursive=True)
    engines = [child for child in started if "EngineCore" in name_of(child)]
    assert engines
    (engines[0] if killed == "the engine" else engines[0].parent()).kill()
    output, _ = process.communicate(timeout=END_SECONDS + 60)
    message = output.strip().splitlines()[-1]
    assert process.returncode == 1 and "engine" in message and "latest checkpoint" in message, output
    assert json.loads((folder / "failure.json").read_text())["reason"] in message
    assert not psutil.wait_procs(started, timeout=END_SECONDS)[1]
    assert not list(temporary_files.iterdir())


def name_of(process: psutil.Process) -> str:
    try:
        return process.name() + " ".join(process.cmdline())
    except psutil.Error:
        return ""
