"""A whole run on the wall clock with workers that play a part: what it writes, interrupted and resumed."""

import gzip
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from short_row import experiments_with_short_row
from test_swe_task import WORKER, program

from sao import config, prepare, train
from sao.environments import make_environment
from sao.local.model import export_policy
from sao.local.wall_clock import Collector
from sao.local.warm_start import initial_policy
from sao.prepare import preparation_folder, write_preparation
from sao.runlog import read_run

pytestmark = pytest.mark.skipif(not shutil.which("bwrap"), reason="needs bubblewrap")
FITTING = 'import sys\nif sys.argv[1] == "-c":\n    sys.exit(0)  # it has the releases that are asked for\n'
BREAKS = """\
    print(json.dumps({"failure": "no container"}), flush=True)
    continue
    asked = json.loads(line)
"""
SCALE = {
    "extends": "swe_tiny",
    "title": "trial",
    "tasks": {"coding": {"tasks": 3, "workspace": "remote"}},
    "model": {"hidden_size": 32, "layers": 1},
    "training": {"batch_trajectories": 2, "updates": 2},
    "sampler": {"max_tokens": 160, "rounding": "none"},
    "evaluation": {"steps": [1, 2]},
}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A row and a scale of this test, the policy that they start from, and the workers' Python."""
    copy = experiments_with_short_row(tmp_path, monkeypatch)
    (copy / "scales/trial.yaml").write_text(yaml.safe_dump(SCALE))
    python = program(tmp_path, "python", f"#!{sys.executable}\n{FITTING}{WORKER}")
    monkeypatch.setenv("SAO_OPENHANDS_PYTHON", str(python))
    monkeypatch.setenv("SAO_SWE_SERVER", "http://127.0.0.1:1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    results = tmp_path / "results"
    scale = config.load_scale("trial")
    environment = make_environment(scale.task("swe_tiny"))

    def write(folder: Path) -> None:
        policy = initial_policy(scale, environment, 0)
        export_policy(policy, folder / "policy", environment.tokenizer)

    folder = preparation_folder(str(results), "trial", "swe_tiny", "warm_start")
    folder.parent.mkdir(parents=True)
    write_preparation(folder, config.preparation_digest("trial", "swe_tiny"), write)
    return results


def run(results: Path) -> int:
    return train.main(["--row", "short", "--scale", "trial", "--results", str(results)])


def lines(file: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(file.read_bytes()).decode() if file.suffix == ".gz" else file.read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_an_interrupted_run_goes_on_from_its_checkpoint(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before its last batch; the resumed run trains on every prompt once and logs every step."""
    folder = results / "trial/runs/short/seed0"
    taken, real = [], Collector.next_batch

    def stopping(self: Collector) -> Any:
        if len(taken) == 2:
            taken.append(None)
            raise KeyboardInterrupt
        taken.append(real(self))
        return taken[-1]

    monkeypatch.setattr(Collector, "next_batch", stopping)
    assert run(results) == 130
    assert [line["step"] for line in lines(folder / "metrics.jsonl")] == [-1, 0]
    assert (folder / "checkpoint-1/complete.json").exists() and not list(tmp_path.glob("swe-*"))
    assert run(results) == 0
    metrics = read_run(folder).metrics
    assert metrics["step"].tolist() == [-1, 0, 1] and metrics["version"].tolist() == [0, 0, 1]
    assert (metrics["trajectories"] == 2).all() and (metrics["reward_mean"] == 1.0).all()
    assert (metrics["policy_grad_norm"].dropna() > 0).all() and metrics["policy_grad_norm"].count() == 2
    assert metrics["virtual_ticks"].is_monotonic_increasing
    scheduled = [line for line in lines(folder / "schedule.jsonl.gz") if line["kind"] == "trajectory"]
    assert len({line["group_id"] for line in scheduled}) == len(scheduled) == 6
    assert all(line["start_tick"] <= line["end_tick"] <= line["graded_tick"] for line in scheduled)
    evaluated = lines(folder / "evaluations.jsonl")
    assert [(line["step"], line["correct"], line["turns"]) for line in evaluated] == [
        (1, True, 1),
        (2, True, 1),
    ]
    attempts = json.loads((folder / "provenance.json").read_text())["attempts"]
    assert [attempt["status"] for attempt in attempts] == ["interrupted", "finished"]
    assert not list(tmp_path.glob("swe-*"))


def values(results: Path) -> int:
    words = ["values", "--frozen", "attention", "--scale", "trial", "--task", "swe_tiny"]
    return prepare.main([*words, "--results", str(results)])


def test_the_value_model_learns_the_returns_of_attempts(results: Path, tmp_path: Path) -> None:
    """Eight attempts in two batches, all of which earn 1."""
    assert values(results) == 0
    folder = preparation_folder(str(results), "trial", "swe_tiny", "values_attention")
    assert (folder / "value_model.safetensors").exists()
    assert [line["step"] for line in lines(folder / "training.jsonl")] == [1, 2]
    assert values(results) == 0 and not list(tmp_path.glob("swe-*"))  # it is there already


def test_a_scaffold_that_always_breaks_prepares_nothing(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = WORKER.replace("    asked = json.loads(line)\n", BREAKS)
    python = program(tmp_path, "broken", f"#!{sys.executable}\n{FITTING}{broken}")
    monkeypatch.setenv("SAO_OPENHANDS_PYTHON", str(python))
    assert values(results) == 2
    said = capsys.readouterr().err
    assert "task swe_tiny: each of 8 attempts broke" in said and "no container" in said
    assert not preparation_folder(str(results), "trial", "swe_tiny", "values_attention").exists()
