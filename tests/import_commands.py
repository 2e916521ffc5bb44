"""Runs the importers as a user does, with results below a test's own folder."""

from pathlib import Path

import pytest
from foreign_logs import Row, write_events

from analysis import importers
from analysis.command import run_command
from sao.runlog import RunRecord, read_run

OPENRLHF: list[Row] = [
    (1, {"train/reward": 0.25, "train/critic_loss": 0.125, "train/actor_lr": 1e-6, "train/kl": 0.5}),
    (2, {"train/reward": 0.5, "train/critic_loss": 0.0625, "train/actor_lr": 1e-6, "train/kl": 0.25}),
    (2, {"eval/aime_pass1": 0.75, "eval/pass1": 0.75, "eval/aime_pass4": 1.0}),
]


def run_import(tmp_path: Path, *words: str, row: str = "sao", scale: str = "my_30b") -> RunRecord:
    importers.main([*words, "--row", row, "--scale", scale, "--results", str(tmp_path / "results")])
    seed = words[words.index("--seed") + 1] if "--seed" in words else "0"
    return read_run(tmp_path / "results" / scale / "runs" / row / f"seed{seed}", against_grid=True)


def import_events(tmp_path: Path, rows: list[Row], mapping: str, *words: str) -> RunRecord:
    write_events(tmp_path / "log", rows)
    return run_import(tmp_path, "tensorboard", str(tmp_path / "log"), "--mapping", mapping, *words)


def error_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a mistaken command prints; checks its exit code."""
    assert run_command(lambda: importers.main(list(words))) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and captured.err.startswith("error: ")
    return captured.err


def mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *words: str, mapping: str = "openrlhf"
) -> str:
    """`error_of` with the options that every import needs; checks that nothing was written."""
    results = tmp_path / "results"
    line = error_of(
        capsys, *words, "--mapping", mapping, "--row", "sao", "--scale", "my_30b", "--results", str(results)
    )
    assert not list(results.rglob("*.json*"))
    return line


def accuracies(run: RunRecord) -> list[tuple[int, str, float]]:
    assert run.accuracies is not None
    return list(run.accuracies.itertuples(index=False, name=None))
