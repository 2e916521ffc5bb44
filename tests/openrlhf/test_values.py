"""Value pretraining of a released model over the real OpenRLHF, killed and resumed, and what rows start from.

The released model is a tiny one that solves a part of its task, in a folder as the Hub's, with a tokenizer.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from in_process import Actors, save_policy
from safetensors.torch import load_file
from test_end_to_end import child_of, lines, wait_for_the_end_of

from sao import config, config_files, prepare
from sao.environments import make_environment
from sao.local.warm_start import train_policy
from sao.openrlhf import launch

REPOSITORY = Path(__file__).parents[2]
STEPS, BATCH, RATE = 6, 8, 1e-3
EASY = {"width_min": 2, "width_max": 2}  # so that a short warm start solves some, and the returns differ
START_SECONDS = 400
PREPARE = """
import sys
from pathlib import Path
from sao import config_files, prepare
config_files.EXPERIMENTS = Path(sys.argv[1])
sys.exit(prepare.main(sys.argv[2:]))
"""


@dataclass(frozen=True)
class Prepared:
    """A finished preparation: its folder, the run beside it, and what stood there when it was killed."""

    results: Path
    experiments: Path
    lines_before_the_kill: list[dict[str, Any]]

    @property
    def folder(self) -> Path:
        return prepare.preparation_folder(str(self.results), "tiny_released", "locks", "values_attention")

    @property
    def run(self) -> Path:
        return self.folder.with_name("values_attention_run")


def copied_experiments(folder: Path) -> Path:
    """A copy of the folder of rows and scales, to add others to."""
    return shutil.copytree(config_files.EXPERIMENTS, folder / "experiments")


def make_scale(folder: Path) -> Path:
    """Experiments with one scale more, whose released model lies below `folder`; returns their folder."""
    experiments = copied_experiments(folder)
    smoke = config.load_scale("openrlhf_smoke")
    task = smoke.task("locks").model_copy(update=EASY)
    environment = make_environment(task)
    short = smoke.warm_start.model_copy(update={"steps": 90, "batch_size": 16})
    shorter = smoke.model_copy(update={"warm_start": short})
    save_policy(train_policy(shorter, environment, 0, lambda record: None), folder)
    scale = {
        "extends": "openrlhf_smoke",
        "title": "a tiny released model",
        "model": {"path": str(folder / "policy"), "vocabulary_size": len(environment.vocabulary)},
        "tasks": {"reasoning": EASY},
        "warm_start": None,
        "value_pretraining": {"rollouts": STEPS * BATCH, "batch_trajectories": BATCH, "learning_rate": RATE},
        "sampler": {"slots": 8},
    }
    (experiments / "scales" / "tiny_released.yaml").write_text(yaml.safe_dump(scale))
    return experiments


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Killed with SIGKILL after a checkpoint and the step behind it, then started again."""
    folder = tmp_path_factory.mktemp("values")
    made = Prepared(folder / "results", make_scale(folder), [])
    process = start(made)
    wait_until(process, lambda: len(lines(made.run, "metrics.jsonl")) >= 3)
    driver = child_of(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for_the_end_of(driver)
    assert not (made.folder / "seal.json").exists()
    made.lines_before_the_kill.extend(lines(made.run, "metrics.jsonl"))
    process = start(made)
    output, _ = process.communicate(timeout=START_SECONDS)
    logs = "".join(log.read_text(errors="replace")[-5000:] for log in sorted(made.run.glob("attempt-*.log")))
    assert process.returncode == 0, output + logs
    return made


@pytest.fixture
def scale(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> config.Scale:
    monkeypatch.setattr(config_files, "EXPERIMENTS", prepared.experiments)
    return config.load_scale("tiny_released")


def start(made: Prepared) -> subprocess.Popen[str]:
    words = ["values", "--scale", "tiny_released", "--task", "locks", "--results", str(made.results)]
    return subprocess.Popen(
        [sys.executable, "-c", PREPARE, str(made.experiments), *words],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_until(process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not reached():
        assert process.poll() is None and time.monotonic() < deadline, process.stdout.read()
        time.sleep(0.05)


def test_the_critic_is_trained_for_the_stated_steps_and_the_policy_never(prepared: Prepared) -> None:
    found = lines(prepared.run, "metrics.jsonl")
    assert [line["step"] for line in found] == [-6, -5, -4, -3, -2, -1]
    assert [line["trajectories"] for line in found] == [BATCH] * STEPS
    assert [line["critic_learning_rate"] for line in found] == pytest.approx(
        [RATE * share / STEPS for share in (6, 5, 4, 3, 2, 1)]
    )
    assert any(line["critic_grad_norm"] > 0 for line in found)
    assert all(line["critic_grad_norm_attention"] == 0 for line in found)
    for line in found:
        assert (line["version"], line["policy_loss"], line["policy_grad_norm"]) == (0, None, None)


def test_it_goes_on_from_its_checkpoint(prepared: Prepared) -> None:
    """The steps before the checkpoint stand as they were logged; none is trained on twice."""
    attempts = json.loads((prepared.run / "provenance.json").read_text())["attempts"]
    assert [attempt["status"] for attempt in attempts] == ["stopped", "finished"]
    before, found = prepared.lines_before_the_kill, lines(prepared.run, "metrics.jsonl")
    assert 3 <= len(before) < STEPS and found[:2] == before[:2]
    schedule = [line for line in lines(prepared.run, "schedule.jsonl.gz") if line["kind"] == "trajectory"]
    trained = [line["group_id"] for line in schedule]
    assert len(trained) == len(set(trained)) == STEPS * BATCH
    assert not list(prepared.run.glob("checkpoint-*"))


def test_the_folder_is_sealed_like_the_local_engines(
    prepared: Prepared, scale: config.Scale, capsys: pytest.CaptureFixture[str]
) -> None:
    names = sorted(file.name for file in prepared.folder.iterdir())
    assert names == ["seal.json", "training.jsonl", "value_model.safetensors"]
    records = lines(prepared.folder, "training.jsonl")
    assert [(record["step"], record["steps"]) for record in records] == [(n, STEPS) for n in range(1, 7)]
    found = lines(prepared.run, "metrics.jsonl")
    assert [record["loss"] for record in records] == [line["value_loss"] for line in found]
    words = ["values", "--scale", scale.name, "--task", "locks", "--results", str(prepared.results)]
    assert prepare.main(words) == 0 and "is finished" in capsys.readouterr().out


def test_attention_is_the_released_models_and_the_rest_has_moved(
    prepared: Prepared, scale: config.Scale
) -> None:
    released = load_file(Path(scale.model.path) / "model.safetensors")
    values = load_file(prepared.folder / "value_model.safetensors")
    frozen = [name for name in values if ".self_attn." in name]
    assert len(frozen) >= 4
    for name in frozen:
        assert torch.equal(values[name], released[name.replace("backbone.", "model.")]), name
    norm = "norm.weight"
    assert not torch.equal(values[f"backbone.{norm}"], released[f"model.{norm}"])
    assert values["head.weight"].abs().max() > 0


def test_training_runs_start_from_these_values(
    prepared: Prepared, scale: config.Scale, tmp_path: Path
) -> None:
    """The critic of a row, exported before any update, has the same tensors, bit for bit."""
    run = config.resolve("sao", scale.name, 0)
    assert launch._value_model(run, str(prepared.results)) == prepared.folder.resolve()
    (tmp_path / "policy").symlink_to(scale.model.path)
    (tmp_path / "values").symlink_to(prepared.folder)
    Actors(run, tmp_path, zero_stage=3).critic.export(tmp_path / "export")
    files = [folder / "value_model.safetensors" for folder in (tmp_path / "export", prepared.folder)]
    started, pretrained = [digests(file) for file in files]
    assert started == pretrained


def digests(file: Path) -> dict[str, str]:
    return {
        name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in load_file(file).items()
    }


def test_values_that_were_moved_away_are_made_anew_only_with_their_run(
    prepared: Prepared, scale: config.Scale, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = shutil.copytree(prepared.results, tmp_path / "results")
    folder = prepare.preparation_folder(str(results), scale.name, "locks", "values_attention")
    shutil.rmtree(folder)
    words = ["values", "--scale", scale.name, "--task", "locks", "--results", str(results)]
    assert prepare.main(words) == 2
    assert capsys.readouterr().err == (
        f"{folder}_run: is finished, and the value model that it made is gone; move it away too\n"
    )
