"""A tiny policy in the SWE environment with the real OpenHands and harness, where these are installed."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from short_row import experiments_with_short_row

from evaluation.swe.tiny_traces import TinyTasks, demonstrator
from sao import prepare, train
from sao.config import load_scale
from sao.environments.swe import SWEEnvironment
from sao.environments.swe_tiny import actions_of, tiny_tokenizer
from sao.local.warm_start import train_policy
from sao.runlog import read_run
from sao.trajectory import Trajectory

ROOT = Path(__file__).parents[1]
OPENHANDS = Path(os.environ.get("SAO_OPENHANDS_PYTHON", ROOT / ".venv-openhands/bin/python"))
needs_openhands = pytest.mark.skipif(
    not (OPENHANDS.exists() and shutil.which("bwrap") and shutil.which("tmux")),
    reason="needs the environment of `make openhands-environment`, bubblewrap and tmux",
)


@pytest.fixture
def experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the experiments folder, with a row that has one critic-only step and no pretrained critic."""
    return experiments_with_short_row(tmp_path, monkeypatch)


def scale(experiments: Path, **given: Any) -> None:
    """The scale `trial`, which extends swe_tiny."""
    content = {"extends": "swe_tiny", "title": "trial"} | given
    (experiments / "scales/trial.yaml").write_text(yaml.safe_dump(content))


def trained(results: Path) -> Path:
    common = ["--scale", "trial", "--results", str(results)]
    assert prepare.main(["warm-start", "--task", "swe_tiny", *common]) == 0
    assert train.main(["--row", "short", *common]) == 0
    return results / "trial/runs/short/seed0"


def check(folder: Path, updates: int) -> Any:
    """Every run of it: all lines are there, gradients flow, the sampler is the trainer's policy."""
    record = read_run(folder)
    metrics = record.metrics
    assert metrics["step"].tolist() == list(range(-1, updates)) and (folder / "seal.json").exists()
    trained = metrics[metrics["step"] >= 0]
    assert (trained["policy_grad_norm"] > 0).all() and (trained["policy_loss"] != 0).all()
    assert (metrics["mean_turns"] >= 1).all() and (metrics["action_tokens"] > 0).all()
    # Without FP8 or lag between sampler and trainer the ratio would be 1; with both it stays close.
    assert trained["ratio_q50"].between(0.8, 1.25).all()
    return record


@needs_openhands
def test_a_policy_acts_and_learns_in_the_real_environment(
    experiments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three tasks, two of them to train on; the run directory is that of every run."""
    monkeypatch.setenv("SAO_OPENHANDS_PYTHON", str(OPENHANDS))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    scale(
        experiments,
        tasks={"coding": {"tasks": 3}},
        warm_start={"steps": 250, "demonstrations": 6},
        training={"batch_trajectories": 3, "updates": 1},
        evaluation={"steps": [1]},
    )
    folder = trained(tmp_path / "results")
    record = check(folder, 1)
    assert (record.metrics["trajectories"] == 3).all() and (record.metrics["reward_mean"] > 0).any()
    evaluated = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    assert [(line["step"], line["benchmark"]) for line in evaluated] == [(1, "swe_tiny")]
    assert (folder / "weights/step-1/tokenizer_config.json").exists()
    assert not list(tmp_path.glob("swe-*"))


@needs_openhands
@pytest.mark.slow
def test_a_few_updates_on_all_five_tasks(
    experiments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAO_OPENHANDS_PYTHON", str(OPENHANDS))
    scale(experiments)
    record = check(trained(tmp_path / "results"), 3)
    rewards = record.metrics["reward_mean"]
    assert 0 < rewards.sum() < len(rewards)  # some of the attempts earn 1, and some do not
    assert record.metrics["version"].tolist() == [0, 0, 1, 2]


def test_a_missing_environment_has_one_clear_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["warm-start", "--scale", "swe_tiny", "--task", "swe_tiny", "--results", str(tmp_path / "out")]
    monkeypatch.setenv("SAO_OPENHANDS_PYTHON", str(tmp_path / "none"))
    assert prepare.main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"task swe_tiny: {tmp_path / 'none'}: there is no such Python")
    assert "\n" not in said[:-1]
    wrong = tmp_path / "python"
    wrong.write_text("#!/bin/sh\necho 'VersionError: SWE-Bench has an environment of its own' >&2\nexit 2\n")
    wrong.chmod(0o755)
    monkeypatch.setenv("SAO_OPENHANDS_PYTHON", str(wrong))
    assert prepare.main(words) == 2
    assert capsys.readouterr().err == f"task swe_tiny: {wrong}: SWE-Bench has an environment of its own\n"


def test_fine_tuning_learns_the_traces_by_heart(tmp_path: Path) -> None:
    """Two traces that part at one action: what is left of the loss is the choice between them."""
    tasks = TinyTasks.build(tmp_path, 1)
    tokenizer = tiny_tokenizer(tasks.scripts, tasks.titles)
    chat = demonstrator(tokenizer)
    prompt = chat.prompt_ids([{"role": "user", "content": f"<issue>\n{tasks.titles[0]}\n"}])
    traces = []
    for script in tasks.scripts:
        ids, spans = list(prompt), []
        for action in actions_of(script, chat):
            spans.append((len(ids), len(ids) + len(action)))
            ids += action + chat.following_ids([{"role": "tool", "content": "ok"}])
        mask = np.zeros(len(ids), dtype=bool)
        for start, end in spans:
            mask[start:end] = True
        logprobs = np.where(mask, -1.0, np.nan).astype(np.float32)
        traces.append(
            Trajectory(
                np.array(ids), np.array(spans), logprobs, np.where(mask, 0, -1), float(script.resolves)
            )
        )
    environment = SWEEnvironment([], [], None, None)  # type: ignore[arg-type]
    environment.vocabulary = tuple(map(str, range(len(tokenizer))))
    environment.demonstrate([traces[0], traces[0], traces[1]])
    tiny = load_scale("swe_tiny")
    warm_start = tiny.supervised_warm_start.model_copy(
        update={"steps": 150, "batch_size": 3, "demonstrations": 3}
    )
    reports: list[dict[str, Any]] = []
    train_policy(tiny.model_copy(update={"warm_start": warm_start}), environment, 0, reports.append)
    loss = reports[-1]["loss"]
    actions = [trace.num_action_tokens for trace in traces]
    # Of three sequences (the solution twice) two go one way: entropy 0.6365 nats at the one open choice.
    least = 3 * 0.6365 / (2 * actions[0] + actions[1])
    assert least * 0.99 < loss < least + 0.02
