"""Importing offline runs that `wandb` itself wrote."""

import json
from pathlib import Path

import pytest
from foreign_logs import log_to_wandb
from import_commands import accuracies, mistake, run_import

UPDATES = 40


@pytest.fixture(scope="module")
def openrlhf_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logged as OpenRLHF does: W&B's own step counts calls, `global_step` counts updates.

    A long text in each line makes the file several of its blocks long, with records across them.
    """
    rows: list[dict[str, object]] = []
    for step in range(1, UPDATES + 1):
        row = {"train/reward": step / 64, "train/critic_loss": 0.5, "train/text": "long " * 1000}
        rows.append({**row, "train/global_step": step, "nested": {"value": 1.5}})
        if step % 20 == 0:
            rows.append({"eval/aime_pass1": step / 80, "eval/global_step": step})
    return log_to_wandb(tmp_path_factory.mktemp("openrlhf"), json.dumps(rows))


def test_values_of_an_offline_run(
    openrlhf_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert openrlhf_run.stat().st_size > 3 * 32768
    run = run_import(tmp_path, "wandb", str(openrlhf_run.parent), "--mapping", "openrlhf")
    assert list(run.metrics["step"]) == list(range(UPDATES))
    assert list(run.metrics["reward_mean"]) == [step / 64 for step in range(1, UPDATES + 1)]
    assert list(run.metrics["value_loss"]) == [1.0] * UPDATES
    assert accuracies(run) == [(20, "aime", 0.25), (40, "aime", 0.5)]
    assert run.provenance["account"]["remarks"] == ["no numbers, or without their step, left out: train/text"]
    assert "no mapping names them: nested.value" in capsys.readouterr().out
    assert run.provenance["imported_from"][0]["file"] == str(openrlhf_run)


def test_the_loggers_own_step_counts_where_the_mapping_names_none(tmp_path: Path) -> None:
    rows = [{"critic/score/mean": value, "val-core/a/acc/mean@2": value} for value in (0.125, 0.5)]
    file = log_to_wandb(tmp_path, json.dumps([{"other": 0.0}, *rows]))
    run = run_import(tmp_path, "wandb", str(file), "--mapping", "verl")
    assert list(run.metrics["step"]) == [0, 1]
    assert list(run.metrics["reward_mean"]) == [0.125, 0.5]
    assert accuracies(run) == [(1, "a", 0.125), (2, "a", 0.5)]


def test_cut_off_run_is_refused_unless_allowed(
    openrlhf_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cuts within a record, within its header, and between the parts of one that crosses a block."""
    content = openrlhf_run.read_bytes()
    for length in (len(content) // 2, 32768, 65536 + 3):
        file = tmp_path / f"run-{length}.wandb"
        file.write_bytes(content[:length])
        line = mistake(tmp_path, capsys, "wandb", str(file))
        assert f"{file}: ends in an incomplete record; copy the whole file" in line
    words = ["wandb", str(file), "--mapping", "openrlhf", "--incomplete-end"]
    run = run_import(tmp_path, *words)
    assert 0 < len(run.metrics) < UPDATES
    assert list(run.metrics["reward_mean"]) == [(step + 1) / 64 for step in run.metrics["step"]]
    assert (
        run.provenance["account"]["remarks"][0]
        == f"{file.name} ends in an incomplete record, which was left out"
    )


def test_changed_byte_is_found(
    openrlhf_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = bytearray(openrlhf_run.read_bytes())
    content[20000] ^= 1
    file = tmp_path / "run-changed.wandb"
    file.write_bytes(content)
    line = mistake(tmp_path, capsys, "wandb", str(file), "--incomplete-end")
    assert f"{file}: is damaged at byte " in line and "a checksum does not fit" in line


def test_sources_that_are_no_offline_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("These are notes.")
    assert f"{text}: is no W&B run file" in mistake(tmp_path, capsys, "wandb", str(text))
    assert "holds no offline run (run-....wandb)" in mistake(tmp_path, capsys, "wandb", str(tmp_path))
    assert "there is no such file or folder" in mistake(tmp_path, capsys, "wandb", str(tmp_path / "no"))
    for name in ("run-a.wandb", "run-b.wandb"):
        (tmp_path / name).touch()
    assert "holds several runs (run-a.wandb, run-b.wandb)" in mistake(
        tmp_path, capsys, "wandb", str(tmp_path)
    )
