"""Exports of run directories to TensorBoard and Trackio, and the way back."""

import json
import sqlite3
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from foreign_logs import write_events
from import_commands import OPENRLHF, import_events, run_import
from synthetic_runs import write_run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from analysis import exporters
from analysis.command import run_command
from analysis.load import load_logs
from analysis.mapping import importable_columns
from sao.runlog import read_run

QUERY = "select step, metrics from metrics where run_name = 'cpu/sao/seed0'"
CURVE = (0.40, 0.45, 0.50, 0.55, 0.60)


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    variance = [None if step == 50 else 0.4 for step in range(120)]
    folder = tmp_path_factory.mktemp("results") / "cpu"
    return write_run(folder, "sao", 0, CURVE, explained_variance_before=variance, trajectories=16)


def test_tensorboard_reads_what_was_exported(run_path: Path, tmp_path: Path) -> None:
    exporters.main(["tensorboard", str(run_path), "--out", str(tmp_path / "events")])
    events = EventAccumulator(str(tmp_path / "events"), size_guidance={"scalars": 0}).Reload()
    tags = events.Tags()["scalars"]
    assert "sao/reward_mean" in tags and "accuracy/locks" in tags
    assert "sao/ratio_histogram" not in tags and "sao/policy_loss" not in tags
    metrics = read_run(run_path).metrics
    rewards = events.Scalars("sao/reward_mean")
    assert [event.step for event in rewards] == list(metrics["step"])
    assert [event.value for event in rewards] == pytest.approx(list(metrics["reward_mean"]))
    assert [event.step for event in events.Scalars("accuracy/locks")] == [24, 48, 72, 96, 120]
    assert len(events.Scalars("sao/explained_variance_before")) == len(metrics) - 1  # nulls are left out


def test_export_and_import_give_the_run_back(run_path: Path, tmp_path: Path) -> None:
    exporters.main(["tensorboard", str(run_path), "--out", str(tmp_path / "events")])
    back = run_import(tmp_path, "tensorboard", str(tmp_path / "events"), "--mapping", "sao")
    metrics = read_run(run_path).metrics
    assert list(back.metrics["step"]) == list(metrics["step"]) and metrics["step"].iloc[0] == -10
    assert list(back.metrics["version"]) == list(metrics["version"])
    for name in importable_columns():
        there, here = back.metrics[name].astype(float), metrics[name].astype(float)
        assert np.allclose(there, here, rtol=1e-6, equal_nan=True), name
    (ours,) = load_logs(run_path.parents[2], ["sao"]).finished("sao")
    imported = load_logs(tmp_path / "results" / "my_30b", ["sao"]).imported[0].benchmarks["locks"][0]
    assert list(imported.accuracies.index) == list(ours.accuracies.index)
    assert list(imported.accuracies) == pytest.approx(list(ours.accuracies))


def test_imported_runs_can_be_exported(tmp_path: Path) -> None:
    run = import_events(tmp_path, OPENRLHF, "openrlhf")
    exporters.main(["tensorboard", str(run.path), "--out", str(tmp_path / "events")])
    back = run_import(tmp_path, "tensorboard", str(tmp_path / "events"), "--mapping", "sao", "--seed", "1")
    assert list(back.metrics["reward_mean"]) == [0.25, 0.5]
    assert back.accuracies is not None and list(back.accuracies["accuracy"]) == [0.75]


def mistake(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run_command(lambda: exporters.main(list(words))) == 2
    return capsys.readouterr().err


def test_mistaken_exports(run_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_events(tmp_path / "filled", OPENRLHF)
    line = mistake(capsys, "tensorboard", str(run_path), "--out", str(tmp_path / "filled"))
    assert f"--out {tmp_path / 'filled'}: is there already, and is not written into" in line
    assert len(list((tmp_path / "filled").iterdir())) == 1
    line = mistake(capsys, "tensorboard", str(tmp_path), "--out", str(tmp_path / "out"))
    assert f"{tmp_path}: holds no metrics; name a run directory" in line
    assert not (tmp_path / "out").exists()


def test_missing_trackio_is_one_clear_line(
    run_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "trackio", None)
    line = mistake(capsys, "trackio", str(run_path), "--out", str(tmp_path / "trackio"))
    assert "pip install '.[trackio]' without constraints.txt" in line


def test_trackio_project_holds_the_run(run_path: Path, tmp_path: Path) -> None:
    """Runs where Trackio is installed: it needs another Pillow than this suite's pins."""
    if find_spec("trackio") is None:
        pytest.skip("needs the extra trackio")
    command = [sys.executable, "-m", "analysis.exporters", "trackio", str(run_path)]
    command += ["--out", str(tmp_path / "out"), "--project", "test"]
    root = Path(exporters.__file__).parents[1]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 0, done.stderr
    metrics = read_run(run_path).metrics
    with sqlite3.connect(tmp_path / "out" / "test.db") as database:
        rows = database.execute(QUERY).fetchall()
        assert database.execute("select count(*) from system_metrics").fetchone() == (0,)
    assert sorted(step for step, _ in rows) == sorted([*metrics["step"], 24, 48, 72, 96, 120])
    logged = [(step, json.loads(text)) for step, text in rows]
    values = {step: found["sao/reward_mean"] for step, found in logged if "sao/reward_mean" in found}
    assert values == dict(zip(metrics["step"], metrics["reward_mean"], strict=True))
    again = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    assert again.returncode == 2
    assert "--project test: has a run cpu/sao/seed0 already" in again.stderr
