"""Tiny runs through the commands: repeated, killed, interrupted, resumed, refused and failed."""

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from command_process import SECONDS, run_command
from safetensors.torch import load_file, save_file

from analysis import trace
from sao import config_files
from sao.config import resolve
from sao.local import run as local_run
from sao.local.run import LocalRun
from sao.metrics import ratio_statistics
from sao.runlog import TABLES, WALL_CLOCK_COLUMNS, RunDirectory, read_run
from sao.runlog_files import lock, read_records

UPDATES = 6
TINY = {
    "extends": "smoke",
    "title": "tiny test",
    "tasks": {
        "reasoning": {
            "lock_count_odds": {1: 0.5, 2: 0.5, 3: 0.0, 4: 0.0, 6: 0.0},
            "width_min": 1,
            "width_max": 2,
            "max_turns": 6,
            "pool_instances": 32,
            "held_out_instances": 16,
        },
        "writing": None,
    },
    "model": {"hidden_size": 32, "experts": 4},
    "warm_start": {"steps": 100, "batch_size": 16, "learning_rate": 1.0e-2, "demonstrations": 512},
    "training": {"updates": UPDATES},
    "clock": {"sync_interval": 2},
    "evaluation": {"steps": [2, UPDATES]},
    "checkpoint_interval": 2,
}
PREPARE = ("--scale", "tiny", "--task", "locks")


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the scale `tiny` and its preparation."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(config_files.ROOT / "experiments", folder / "experiments")
    (folder / "experiments/scales/tiny.yaml").write_text(yaml.safe_dump(TINY))
    for step in (("warm-start",), ("values", "--frozen", "attention")):
        code, output = run_command(folder, "sao.prepare", *step, *PREPARE)
        assert code == 0, output
        assert "step" in output and "s left" in output
    return folder


def train(project: Path, results: Path, row: str = "sao", **signals: Any) -> tuple[int, str]:
    """The command's exit code and output, on results that start with the project's preparation."""
    if not (results / "tiny/prepare").exists():
        shutil.copytree(project / "results/tiny/prepare", results / "tiny/prepare")
    arguments = ("--row", row, "--scale", "tiny", "--seed", "0", "--results", str(results))
    return run_command(project, "sao.train", *arguments, **signals)


def run_folder(results: Path, row: str = "sao") -> Path:
    return results / "tiny/runs" / row / "seed0"


def logged(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """All lines of a run's tables, without the columns of the wall clock."""
    tables = {}
    for name in TABLES.keys() - {"dropped.jsonl.gz"}:  # these runs have no staleness cap
        content = (folder / name).read_bytes()
        text = gzip.decompress(content) if name.endswith("gz") else content
        lines = [json.loads(line) for line in text.splitlines()]
        tables[name] = [
            {key: value for key, value in line.items() if key not in WALL_CLOCK_COLUMNS} for line in lines
        ]
    return tables


@pytest.fixture(scope="session")
def undisturbed(project: Path) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """What runs of three rows log when nothing happens to them; the policy of each has learnt something."""
    tables = {}
    for row in ("sao", "grpo_dis", "running_mean"):
        code, output = train(project, project / "undisturbed", row)
        assert code == 0, output
        tables[row] = logged(run_folder(project / "undisturbed", row))
    return tables


@pytest.mark.parametrize("row", ["sao", "grpo_dis"])
def test_trace_shows_a_trained_run(
    project: Path, undisturbed: dict[str, Any], row: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = undisturbed[row]["trajectories.jsonl.gz"][-1]
    trace.main([str(run_folder(project / "undisturbed", row)), "--problem", line["problem_id"]])
    shown = capsys.readouterr().out
    assert f"after {UPDATES} updates" in shown.replace("\n", " ")
    assert shown.count(" action ") == sum(line["action_mask"])
    assert ("No values" in shown) == (row == "grpo_dis")


def test_trace_shows_what_was_trained_on(
    project: Path, undisturbed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    line = undisturbed["sao"]["training_trajectories.jsonl.gz"][-1]
    folder = run_folder(project / "undisturbed")
    trace.main([str(folder), "--training", "--problem", line["problem_id"]])
    shown = " ".join(capsys.readouterr().out.split())
    assert f"in update {UPDATES - 1}:" in shown and "Masked here:" in shown
    assert "older and rounded" in shown


# --- The same run again ------------------------------------------------------------------------------------


def test_run_logs_what_it_should(project: Path, undisturbed: dict[str, Any]) -> None:
    metrics = undisturbed["sao"]["metrics.jsonl"]
    assert [line["step"] for line in metrics] == list(range(-10, UPDATES))
    assert [line["version"] for line in metrics] == [0] * 10 + list(range(UPDATES))
    assert all(line["policy_loss"] is None for line in metrics[:10])
    assert all(line["policy_grad_norm"] > 0 for line in metrics[10:])
    assert any(0 < line["reward_mean"] < 1 for line in metrics)
    assert any(line["staleness_max"] > 0 for line in metrics)
    assert [line["prompts_seen"] for line in metrics] == [16 * n for n in range(1, 17)]
    grouped = undisturbed["grpo_dis"]["metrics.jsonl"]
    assert [line["prompts_seen"] for line in grouped] == [2 * n for n in range(1, 7)]
    assert all(line["value_loss"] is None for line in grouped)
    evaluations = undisturbed["sao"]["evaluations.jsonl"]
    assert [line["step"] for line in evaluations] == [2] * 16 + [UPDATES] * 16
    problems = [line["problem_id"] for line in evaluations]
    assert problems[:16] == problems[16:] and len(set(problems)) == 16
    folder = run_folder(project / "undisturbed")
    assert {path.name for path in (folder / "weights").iterdir()} == {"step-2", f"step-{UPDATES}"}
    assert read_run(folder).status == "finished"
    for line in undisturbed["sao"]["trajectories.jsonl.gz"]:
        trained = [value is not None for value in line["trainer_logprobs"]]
        assert trained == [bool(action) for action in line["action_mask"]]
        pairs = zip(line["trainer_logprobs"], line["rollout_logprobs"], strict=True)
        # Evaluation samples with the trainer's exact weights.
        assert all(abs(ours - theirs) < 1e-4 for ours, theirs in pairs if ours is not None)


def test_trajectories_that_were_trained_on_are_logged_before_it(undisturbed: dict[str, Any]) -> None:
    """Those of the updates before evaluations; sampled by older, rounded weights, so ratios are not 1."""
    for row, tables in undisturbed.items():
        lines = tables["training_trajectories.jsonl.gz"]
        assert [line["step"] for line in lines] == [1] * 8 + [UPDATES - 1] * 8
        held_out = {line["problem_id"] for line in tables["evaluations.jsonl"]}
        assert held_out.isdisjoint(line["problem_id"] for line in lines)
        assert all((line["values"] is None) == (row != "sao") for line in lines)
        late = [line for line in lines if line["step"] == UPDATES - 1]
        gaps = [
            abs(ours - theirs)
            for line in late
            for ours, theirs in zip(line["trainer_logprobs"], line["rollout_logprobs"], strict=True)
            if ours is not None
        ]
        assert max(gaps) > 1e-2
        versions = {version for line in late for version in line["policy_versions"]}
        assert min(versions - {-1}) < UPDATES - 1


def test_what_a_staleness_cap_drops_is_logged(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_files, "EXPERIMENTS", project / "experiments")
    run = resolve("running_mean", "tiny", 0)
    capped = run.model_copy(update={"training": run.training.model_copy(update={"max_staleness": 1})})
    with RunDirectory.open(tmp_path / "capped", capped, "test") as directory:
        directory.begin_attempt()
        LocalRun(directory, str(project / "results")).train()
    metrics = read_records(tmp_path / "capped" / "metrics.jsonl")
    dropped = Counter(line["step"] for line in read_records(tmp_path / "capped" / "dropped.jsonl.gz"))
    assert dropped == {line["step"]: line["dropped_stale"] for line in metrics if line["dropped_stale"]} != {}
    assert all(line["staleness_max"] <= 1 for line in metrics)


@pytest.mark.parametrize("row", ["sao", "grpo_dis"])
def test_logged_ratios_are_those_of_the_update(
    project: Path, undisturbed: dict[str, Any], row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the whole batch logged they give the update's own ratio metrics."""
    monkeypatch.setattr(config_files, "EXPERIMENTS", project / "experiments")
    monkeypatch.setattr(local_run, "LOGGED_TRAJECTORIES", 1000)
    with RunDirectory.open(tmp_path / row, resolve(row, "tiny", 0), "test") as directory:
        directory.begin_attempt()
        LocalRun(directory, str(project / "results")).train()
    tables = logged(tmp_path / row)
    assert tables["metrics.jsonl"] == undisturbed[row]["metrics.jsonl"]
    for metrics in tables["metrics.jsonl"]:
        lines = [line for line in tables["training_trajectories.jsonl.gz"] if line["step"] == metrics["step"]]
        if not lines:
            continue
        ours, theirs = (
            torch.tensor([value for line in lines for value in line[name] if value is not None])
            for name in ("trainer_logprobs", "rollout_logprobs")
        )
        assert len(ours) == metrics["action_tokens"]
        found = ratio_statistics(ours, theirs, torch.ones_like(ours, dtype=torch.bool))
        for name in ("ratio_q01", "ratio_q50", "ratio_q99", "mean_abs_log_ratio"):
            assert found[name] == pytest.approx(metrics[name], rel=1e-4)


@pytest.mark.parametrize("row", ["sao", "running_mean"])
def test_logging_trajectories_changes_nothing(
    project: Path, undisturbed: dict[str, Any], row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_files, "EXPERIMENTS", project / "experiments")
    monkeypatch.setattr(LocalRun, "_trajectory_lines", lambda *_: [])
    with RunDirectory.open(tmp_path / row, resolve(row, "tiny", 0), "test") as directory:
        directory.begin_attempt()
        LocalRun(directory, str(project / "results")).train()
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        content = (tmp_path / row / name).read_text().splitlines()
        lines = [json.loads(line) for line in content]
        kept = [{key: line[key] for key in line if key not in WALL_CLOCK_COLUMNS} for line in lines]
        assert kept == undisturbed[row][name]


def test_command_line_gives_the_same_metrics(project: Path, undisturbed: dict[str, Any]) -> None:
    """`python -m sao.train` in an interpreter of its own."""
    shutil.copytree(config_files.ROOT / "sao", project / "sao", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "sao.train", "--row", "sao", "--scale", "tiny", "--seed", "0"]
    done = subprocess.run(
        command,
        cwd=project,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert f"sao seed 0  step {UPDATES}/{UPDATES}  reward" in done.stdout
    assert logged(run_folder(project / "results")) == undisturbed["sao"]


@pytest.mark.parametrize(
    ("row", "moments"),
    [
        (
            "sao",
            [
                ("clock", 40),
                ("before metrics", 4),
                ("within metrics", 11),
                ("metrics", 12),
                ("within evaluations", 1),
                ("before checkpoint", 1),
                ("within checkpoint", 1),
                ("checkpoint", 1),
                ("metrics", 1),
                ("checkpoint", 1),
                ("before metrics", 1),
                ("within evaluations", 1),
                ("seal", 1),
            ],
        ),
        ("grpo_dis", [("checkpoint", 1), ("metrics", 1)]),
        ("running_mean", [("checkpoint", 2), ("before metrics", 2)]),
    ],
)
def test_killed_run_goes_on_as_if_nothing_had_happened(
    project: Path,
    undisturbed: dict[str, Any],
    tmp_path: Path,
    row: str,
    moments: list[tuple[str, int]],
) -> None:
    """Case 85: one run, killed at one moment after another; the last attempt finishes it."""
    for moment in moments:
        code, output = train(project, tmp_path, row, kill=(moment,))
        assert code == -9, (moment, output)
    code, output = train(project, tmp_path, row)
    assert code == 0, output
    tables = logged(run_folder(tmp_path, row))
    for name, lines in undisturbed[row].items():
        assert tables[name] == lines, name
    provenance = json.loads((run_folder(tmp_path, row) / "provenance.json").read_text())
    statuses = [attempt["status"] for attempt in provenance["attempts"]]
    assert statuses[:-1] == ["stopped"] * (len(statuses) - 1)


# --- Interruptions and faults ------------------------------------------------------------------------------


def test_interrupted_run_says_so_and_goes_on(
    project: Path, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    code, output = train(project, tmp_path, interrupt=(("metrics", 13),))
    assert code == 130
    message = "sao seed 0: interrupted; the same command goes on from the latest checkpoint"
    assert output.splitlines()[-1] == message and "Traceback" not in output
    assert read_run(run_folder(tmp_path)).status == "running"
    code, output = train(project, tmp_path)
    assert code == 0, output
    assert logged(run_folder(tmp_path)) == undisturbed["sao"]


def test_second_interrupt_does_not_cut_the_record_short(project: Path, tmp_path: Path) -> None:
    """SIGINT in the middle of training and again while the attempt's end is recorded."""
    code, output = train(project, tmp_path, interrupt=(("clock", 30), ("end of attempt", 1)))
    assert code == 130 and output.splitlines()[-1].startswith("sao seed 0: interrupted")
    assert "Traceback" not in output
    provenance = json.loads((run_folder(tmp_path) / "provenance.json").read_text())
    assert provenance["attempts"][0]["status"] == "interrupted"


def test_missing_preparation_is_named_with_its_command(project: Path, tmp_path: Path) -> None:
    arguments = ("--row", "sao", "--scale", "tiny", "--results", str(tmp_path))
    code, output = run_command(project, "sao.train", *arguments)
    assert (code, output.count("\n")) == (2, 1)
    assert "tiny/prepare/locks/warm_start: is missing or unfinished; make it with: python -m " in output
    assert "sao.prepare warm-start --scale tiny --task locks" in output
    shutil.copytree(project / "results/tiny/prepare", tmp_path / "tiny/prepare")
    arguments = ("--row", "sao_full_critic", "--scale", "tiny", "--results", str(tmp_path))
    code, output = run_command(project, "sao.train", *arguments)
    assert (code, output.count("\n")) == (2, 1)
    assert "sao.prepare values --frozen none --scale tiny --task locks" in output
    assert not (run_folder(tmp_path, "sao_full_critic") / "failure.json").exists()


def test_preparation_of_other_settings_is_refused(project: Path, tmp_path: Path) -> None:
    shutil.copytree(project / "results/tiny/prepare", tmp_path / "tiny/prepare")
    seal = tmp_path / "tiny/prepare/locks/warm_start/seal.json"
    seal.write_text(seal.read_text().replace(json.loads(seal.read_text())["digest"], "0" * 64))
    code, output = train(project, tmp_path)
    assert (code, output.count("\n")) == (2, 1) and "made with other settings; move it away" in output
    code, output = run_command(project, "sao.prepare", "warm-start", *PREPARE, "--results", str(tmp_path))
    assert (code, output.count("\n")) == (2, 1) and "made with other settings; move it away" in output


def test_finished_preparation_is_left_alone(project: Path) -> None:
    code, output = run_command(project, "sao.prepare", "warm-start", *PREPARE)
    assert (code, output) == (0, "results/tiny/prepare/locks/warm_start: is finished\n")


def test_second_process_is_refused(project: Path, tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    folder.mkdir(parents=True)
    descriptor = lock(folder / ".lock")
    try:
        code, output = train(project, tmp_path)
    finally:
        os.close(descriptor)
    assert (code, output.count("\n")) == (2, 1) and str(folder) in output and "process" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--row", "soa", "--scale", "tiny"), "no row soa; did you mean sao?"),
        (("--row", "sao", "--scale", "tinny"), "no scale tinny; did you mean tiny?"),
        (("--row", "sao_online", "--scale", "tiny"), "tasks.writing: the scale has no such task"),
    ],
)
def test_misspelt_names_are_refused(project: Path, arguments: tuple[str, ...], message: str) -> None:
    code, output = run_command(project, "sao.train", *arguments)
    assert (code, output.count("\n")) == (2, 1) and message in output


def test_failing_run_records_why(project: Path, tmp_path: Path) -> None:
    """A value model that is not finite: exit 1, failure.json and the tables' status, nothing sealed."""
    shutil.copytree(project / "results/tiny/prepare", tmp_path / "tiny/prepare")
    file = tmp_path / "tiny/prepare/locks/values_attention/value_model.safetensors"
    tensors = load_file(file)
    save_file({name: tensor * float("nan") for name, tensor in tensors.items()}, file)
    seal_anew(file)
    code, output = train(project, tmp_path)
    assert (code, output.count("\n")) == (1, 1)
    assert "sao seed 0: step -10: loss nan or its gradient norm nan is not finite" in output
    folder = run_folder(tmp_path)
    assert "is not finite" in json.loads((folder / "failure.json").read_text())["reason"]
    record = read_run(folder)
    assert record.status == "failed" and "is not finite" in str(record.status_detail)
    assert not (folder / "seal.json").exists()
    shutil.copytree(project / "results/tiny/prepare", tmp_path / "tiny/prepare", dirs_exist_ok=True)
    code, output = train(project, tmp_path)  # mended
    assert code == 0, output
    assert not (folder / "failure.json").exists()


def seal_anew(file: Path) -> None:
    """Writes a changed file's checksum into the seal of the preparation step that it belongs to."""
    folder = next(parent for parent in file.parents if (parent / "seal.json").exists())
    seal = json.loads((folder / "seal.json").read_text())
    seal["files"][str(file.relative_to(folder))] = hashlib.sha256(file.read_bytes()).hexdigest()
    (folder / "seal.json").write_text(json.dumps(seal))


def test_damaged_preparation_is_named(project: Path, tmp_path: Path) -> None:
    shutil.copytree(project / "results/tiny/prepare", tmp_path / "tiny/prepare")
    file = tmp_path / "tiny/prepare/locks/values_attention/value_model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    code, output = train(project, tmp_path)
    assert (code, output.count("\n")) == (2, 1) and f"{file}: is missing or damaged" in output
    (file.parent / "seal.json").write_text("{")
    code, output = train(project, tmp_path)
    assert (code, output.count("\n")) == (2, 1) and "seal.json: cannot be read" in output


def test_unforeseen_error_is_recorded_with_its_traceback_in_the_log(project: Path, tmp_path: Path) -> None:
    shutil.copytree(project / "results/tiny/prepare", tmp_path / "tiny/prepare")
    file = tmp_path / "tiny/prepare/locks/warm_start/policy/model.safetensors"
    file.write_bytes(b"not a tensor")
    seal_anew(file)
    code, output = train(project, tmp_path)
    assert code == 1 and "Traceback" not in output
    assert (run_folder(tmp_path) / "failure.json").exists()
    assert "Traceback" in (run_folder(tmp_path) / "attempt-1.log").read_text()


# --- The pretrained critic ---------------------------------------------------------------------------------


def test_run_starts_from_the_pretrained_critic(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases 66 and 67: the file's weights, in the critic and not in the policy; no optimizer state."""
    monkeypatch.setattr(config_files, "EXPERIMENTS", project / "experiments")
    saved = load_file(project / "results/tiny/prepare/locks/values_attention/value_model.safetensors")
    policy = load_file(project / "results/tiny/prepare/locks/warm_start/policy/model.safetensors")
    for row, pretrained in (("sao", True), ("sao_no_pretrain", False)):
        with RunDirectory.open(tmp_path / row, resolve(row, "tiny", 0), "test") as directory:
            run = LocalRun(directory, str(project / "results"))
        critic = run.trainer.critic
        assert critic is not None and not critic.optimizer.state and not run.trainer.optimizer.state
        weights = critic.value_model.state_dict()
        assert all(torch.equal(weights[name], saved[name]) for name in saved) == pretrained
        assert bool((weights["head.weight"] != 0).any()) == pretrained
        experts = "layers.0.mlp.experts.down_proj"
        assert torch.equal(weights[f"backbone.{experts}"], policy_weight(policy, experts)) != pretrained
        for name, weight in run.trainer.policy.state_dict().items():
            assert torch.equal(weight, policy_weight(policy, name.removeprefix("model.")))


def policy_weight(saved: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """A weight of an exported policy, which holds one tensor for each expert, as the model holds it."""
    for prefix in ("model.", ""):
        if prefix + name in saved:
            return saved[prefix + name]
    layer = f"model.{name.rsplit('.', 1)[0]}"
    parts = ("gate_proj", "up_proj") if name.endswith("gate_up_proj") else ("down_proj",)
    experts = sum(key.startswith(layer) and key.endswith("down_proj.weight") for key in saved)
    return torch.stack(
        [torch.cat([saved[f"{layer}.{n}.{part}.weight"] for part in parts]) for n in range(experts)]
    )
