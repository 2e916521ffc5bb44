"""The run directory: what survives kills and full disks, what is refused, and what the reader reports."""

import errno
import gzip
import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sao import config, runlog, runlog_commands, runlog_files
from sao.config import RunConfig
from sao.runlog import RunDirectory, RunError, read_run, read_runs

CONFIG = config.resolve("sao", "smoke", 0)  # 10 critic-only steps, 3 updates, evaluations after 1 and 3
CHECKPOINT_STEPS = (-4, 1, 2)
WRITTEN = ("metrics.jsonl", "evaluations.jsonl", "schedule.jsonl.gz", "dropped.jsonl.gz")


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results" / "smoke" / "runs" / "sao" / "seed0"


def metrics(step: int, **values: Any) -> dict[str, Any]:
    """A line of metrics that depends on the step alone."""
    record: dict[str, Any] = dict.fromkeys(runlog.METRIC_COLUMNS)
    return record | {"step": step, "version": max(step, 0), "reward_mean": 1 / (step + 20)} | values


def evaluations(step: int) -> list[dict[str, Any]]:
    line = {"step": step, "benchmark": "locks", "run_index": 0, "status": "completed", "turns": 3}
    line |= {"action_tokens": 9, "label": "1 lock", "style": None}
    return [line | {"problem_id": f"{n}e5", "correct": n > 1, "reward": float(n > 1)} for n in range(4)]


def schedule(step: int) -> list[dict[str, Any]]:
    line = dict.fromkeys(runlog.SCHEDULE_COLUMNS) | {"kind": "trajectory", "step": step}
    return [line | {"index": step * 2 + n} for n in range(2)]


def dropped(step: int) -> list[dict[str, Any]]:
    line = {"step": step, "reason": "too_old", "reward": 0.5}
    return [line | {"action_tokens": 20 + step + n} for n in range(2)]


def train(run: RunDirectory, stop_before: int = 3) -> None:
    """Stands for training: logs all steps from the latest checkpoint on, up to `stop_before`."""
    found = run.latest_checkpoint()
    first = found[0] if found else -CONFIG.critic_only_steps
    run.rewind(first)
    for step in range(first, stop_before):
        run.log_metrics(metrics(step))
        run.log_schedule(schedule(step))
        run.log_dropped(dropped(step))
        if step + 1 in CONFIG.evaluation.steps:
            run.log_evaluations(evaluations(step + 1))
        if step + 1 in CHECKPOINT_STEPS:
            run.save_checkpoint(step + 1, lambda folder: folder.joinpath("state").write_bytes(b"state"))


def finished(path: Path, settings: RunConfig = CONFIG) -> Path:
    with RunDirectory.open(path, settings, "train") as run:
        run.begin_attempt()
        train(run)
        run.end_attempt("finished", cpu_seconds=36.0)
        run.seal()
    return path


def tables(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in runlog.TABLES if (path / name).exists()}


@pytest.fixture
def straight(tmp_path: Path) -> dict[str, bytes]:
    """Tables of a run that was never stopped."""
    return tables(finished(tmp_path / "straight" / "smoke" / "runs" / "sao" / "seed0"))


# Kills and resumes


@pytest.mark.parametrize("stop_before", range(-10, 4))
def test_stopped_at_any_step_and_resumed_is_the_same_run(
    path: Path, straight: dict[str, bytes], stop_before: int
) -> None:
    with RunDirectory.open(path, CONFIG, "train") as run:
        train(run, stop_before)
    assert tables(finished(path)) == straight


@pytest.mark.parametrize("lost", [1, 7, 40, 200])
@pytest.mark.parametrize("name", ["metrics.jsonl", "schedule.jsonl.gz"])
def test_line_cut_in_the_middle_is_dropped_and_written_again(
    path: Path, straight: dict[str, bytes], name: str, lost: int
) -> None:
    with RunDirectory.open(path, CONFIG, "train") as run:
        train(run, stop_before=3)
    for folder in path.glob("checkpoint-2"):
        shutil.rmtree(folder)
    file = path / name
    os.truncate(file, file.stat().st_size - lost)
    assert len(read_run(path).metrics) >= 11
    assert tables(finished(path)) == straight


@pytest.mark.parametrize("lost", [3, 150])
def test_evaluation_cut_short_is_found_and_repeated_whole(
    path: Path, straight: dict[str, bytes], lost: int
) -> None:
    with RunDirectory.open(path, CONFIG, "train") as run:
        train(run)
        file = path / "evaluations.jsonl"
        os.truncate(file, file.stat().st_size - lost)
        assert "evaluations.jsonl lacks lines of steps [3]" in run.missing()
    assert tables(finished(path)) == straight


def test_schedule_cut_short_keeps_the_run_from_being_sealed(path: Path, straight: dict[str, bytes]) -> None:
    with RunDirectory.open(path, CONFIG, "train") as run:
        train(run)
        file = path / "schedule.jsonl.gz"
        os.truncate(file, file.stat().st_size - 5)
        assert run.missing() == ["schedule.jsonl.gz ends in an incomplete line"]
    assert tables(finished(path)) == straight


def test_rewind_tells_how_many_lines_it_dropped(path: Path) -> None:
    with RunDirectory.open(path, CONFIG, "train") as run:
        train(run)
        assert run.rewind(1) == 2
        assert [line["step"] for line in runlog_files.read_records(path / "evaluations.jsonl")] == [1] * 4
        assert runlog_files.read_records(path / "schedule.jsonl.gz")[-1]["step"] == 0
        assert run.rewind(-10) == 11
        assert tables(path) == dict.fromkeys(WRITTEN, b"")


def test_gzip_member_with_lines_to_keep_and_to_drop_is_split(path: Path) -> None:
    with RunDirectory.open(path, CONFIG, "train") as run:
        run.log_schedule(schedule(-10) + schedule(-9))
        run.log_metrics(metrics(-10))
        run.rewind(-9)
    assert [line["step"] for line in runlog_files.read_records(path / "schedule.jsonl.gz")] == [-10, -10]


def test_advice_names_the_archive_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = "python -m sao.runlog archive vapo --scale cpu --seed 3"
    file = "cpu/runs/vapo/seed3/metrics.jsonl"
    assert f"({command})" in runlog_files.archive_advice(Path("results", file))
    assert f"({command} --results {tmp_path / 'mine'})" in runlog_files.archive_advice(Path("mine", file))
    assert "(" not in runlog_files.archive_advice(
        Path("results/cpu/prepare/locks/warm_start/evaluations.jsonl")
    )


def test_damaged_line_in_the_middle_is_named(path: Path) -> None:
    with RunDirectory.open(path, CONFIG, "train") as run:
        train(run)
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    lines[4] = lines[4][:30] + "\n"
    (path / "metrics.jsonl").write_text("".join(lines))
    for act in (lambda: read_run(path), lambda: finished(path)):
        with pytest.raises(RunError, match=r"metrics\.jsonl: line 5: not valid JSON; restore the file"):
            act()


def test_removed_line_is_found_on_resume(path: Path) -> None:
    with RunDirectory.open(path, CONFIG, "train") as run:
        train(run, stop_before=2)
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join(lines[:3] + lines[4:]))
    with (
        RunDirectory.open(path, CONFIG, "train") as run,
        pytest.raises(RunError, match="checkpoint-2 presupposes"),
    ):
        run.rewind(2)


def test_damaged_gzip_member_is_named(path: Path) -> None:
    with RunDirectory.open(path, CONFIG, "train") as run:
        train(run)
        content = bytearray((path / "schedule.jsonl.gz").read_bytes())
        content[60:80] = bytes(20)
        (path / "schedule.jsonl.gz").write_bytes(content)
        with pytest.raises(RunError, match=r"schedule\.jsonl\.gz"):
            run.rewind(2)


# Checkpoints


def test_two_checkpoints_are_kept(path: Path) -> None:
    with RunDirectory.open(path, CONFIG, "train") as run:
        train(run)
        assert [step for step, _ in run.checkpoints()] == [1, 2]
        latest = run.latest_checkpoint()
        assert latest is not None and (latest[1] / "state").read_bytes() == b"state"


def test_kill_while_a_checkpoint_is_written_leaves_the_one_before(
    path: Path, straight: dict[str, bytes]
) -> None:
    def killed(folder: Path) -> None:
        (folder / "state").write_bytes(b"half")
        raise KeyboardInterrupt

    with RunDirectory.open(path, CONFIG, "train") as run:
        train(run, stop_before=2)
        with pytest.raises(KeyboardInterrupt):
            run.save_checkpoint(3, killed)
        assert (path / ".checkpoint-3.tmp").exists()
    with RunDirectory.open(path, CONFIG, "train") as run:
        assert not (path / ".checkpoint-3.tmp").exists()
        assert [step for step, _ in run.checkpoints()] == [1, 2]
    assert tables(finished(path)) == straight


def test_kill_between_writing_and_renaming(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with RunDirectory.open(path, CONFIG, "train") as run:
        train(run)
        monkeypatch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            run.save_checkpoint(3, lambda folder: folder.joinpath("state").write_bytes(b"x"))
        monkeypatch.undo()
        assert run.latest_checkpoint() == (2, path / "checkpoint-2")
        monkeypatch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            run.seal()
        monkeypatch.undo()
    assert not (path / "seal.json").exists()
    assert read_run(path).status == "running"
    assert read_run(finished(path)).status == "finished"


@pytest.mark.parametrize("damage", ["shortened", "missing", "no_manifest", "bad_manifest"])
def test_incomplete_checkpoint_is_ignored_and_replaced(path: Path, damage: str) -> None:
    with RunDirectory.open(path, CONFIG, "train") as run:
        train(run)
        latest = path / "checkpoint-2"
        match damage:
            case "shortened":
                os.truncate(latest / "state", 2)
            case "missing":
                (latest / "state").unlink()
            case "no_manifest":
                (latest / "complete.json").unlink()
            case "bad_manifest":
                (latest / "complete.json").write_text("{")
        assert run.latest_checkpoint() == (1, path / "checkpoint-1")
        run.rewind(1)
        train(run)
        assert run.latest_checkpoint() == (2, latest)


def test_two_attempts_killed_by_the_system(path: Path, straight: dict[str, bytes]) -> None:
    """A process that is killed while it writes leaves a directory that the next one continues."""
    code = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_runlog as test
run = test.RunDirectory.open(Path(sys.argv[1]), test.CONFIG, "train")
run.begin_attempt()
test.train(run, 2)
with open(run.path / "metrics.jsonl", "a") as file:
    file.write('{"step": 2, "vers')
print("ready", flush=True)
time.sleep(60)
"""
    command = [sys.executable, "-c", code, str(path), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert (read_run(path).status, read_run(path).status_detail) == ("running", "step 2 of 3")
        with pytest.raises(RunError, match="another process is working on this run"):
            RunDirectory.open(path, CONFIG, "train")
        process.send_signal(signal.SIGKILL)
    assert read_run(path).status_detail == "stopped at step 2 of 3"
    assert tables(finished(path)) == straight
    attempts = read_run(path).provenance["attempts"]
    assert [(attempt["number"], attempt["status"]) for attempt in attempts] == [
        (1, "stopped"),
        (2, "finished"),
    ]


# Disk and locks


def full_disk(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_while_logging(path: Path) -> None:
    with RunDirectory.open(path, CONFIG, "train") as run:
        (path / "metrics.jsonl").symlink_to("/dev/full")
        with pytest.raises(
            RunError, match=r"metrics\.jsonl: cannot be written: No space left.*free some space"
        ):
            run.log_metrics(metrics(-10))


def test_full_disk_undoes_the_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> "Full":
            return self

        def __exit__(self, *_: Any) -> None:
            self.file.close()

        def tell(self) -> int:
            return self.file.tell()

        def write(self, content: bytes) -> None:
            self.file.write(content[:10])

        def flush(self) -> None:
            self.file.flush()
            full_disk()

    with RunDirectory.open(path, CONFIG, "train") as run:
        run.log_metrics(metrics(-10))
        before = (path / "metrics.jsonl").read_bytes()
        monkeypatch.setattr(runlog_files, "open", lambda *a: Full(Path.open(*a)), raising=False)
        with pytest.raises(RunError, match="No space left"):
            run.log_metrics(metrics(-9))
    assert (path / "metrics.jsonl").read_bytes() == before


def test_full_disk_while_a_checkpoint_is_written(path: Path) -> None:
    with RunDirectory.open(path, CONFIG, "train") as run:
        train(run)
        with pytest.raises(RunError, match="checkpoint-3: cannot be written: No space left"):
            run.save_checkpoint(3, full_disk)
        assert run.latest_checkpoint() == (2, path / "checkpoint-2")


def test_second_process_is_refused_until_the_first_closes(path: Path) -> None:
    with RunDirectory.open(path, CONFIG, "train") as run:
        with pytest.raises(RunError, match=f"{path}: another process is working on this run"):
            RunDirectory.open(path, CONFIG, "train")
        run.close()
        RunDirectory.open(path, CONFIG, "train").close()


# Refusals


def test_run_of_other_settings_is_refused_with_difference_and_command(path: Path) -> None:
    finished(path)
    before = {file: file.read_bytes() for file in path.iterdir() if file.is_file()}
    assert CONFIG.critic is not None
    changes = {"critic": CONFIG.critic.model_copy(update={"updates_per_batch": 1}), "checkpoint_interval": 2}
    with pytest.raises(RunError) as caught:
        RunDirectory.open(path, CONFIG.model_copy(update=changes), "train")
    message = str(caught.value)
    assert "critic.updates_per_batch is 2 there and 1 here" in message
    assert "checkpoint_interval is 1 there and 2 here" in message
    assert "python -m sao.runlog archive sao --scale smoke" in message and str(path / "spec.json") in message
    assert {file: file.read_bytes() for file in path.iterdir() if file.is_file()} == before


def test_removed_block_is_a_difference(path: Path) -> None:
    finished(path)
    with pytest.raises(RunError, match="more; to train the row anew"):
        RunDirectory.open(path, config.resolve("grpo_dis", "smoke", 0), "train")


def test_another_title_is_the_same_run(path: Path) -> None:
    with RunDirectory.open(path, CONFIG, "train") as run:
        train(run, stop_before=2)
    renamed = CONFIG.model_copy(update={"title": "renamed"})
    assert read_run(finished(path, renamed)).status == "finished"


def test_sealed_run_is_refused(path: Path) -> None:
    finished(path)
    with pytest.raises(RunError, match="is finished and sealed"):
        RunDirectory.open(path, CONFIG, "train")


def test_metrics_without_spec_are_refused(path: Path) -> None:
    finished(path)
    (path / "spec.json").unlink()
    with pytest.raises(RunError, match="holds metrics without a spec"):
        RunDirectory.open(path, CONFIG, "train")
    with pytest.raises(RunError, match="holds metrics without spec"):
        read_run(path)


def test_complete_run_whose_seal_was_deleted_is_sealed_again(path: Path) -> None:
    seal = (finished(path) / "seal.json").read_bytes()
    (path / "seal.json").unlink()
    with RunDirectory.open(path, CONFIG, "train") as run:
        assert run.is_complete()
        run.seal()
    assert (path / "seal.json").read_bytes() == seal


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("metrics.jsonl", r"metrics\.jsonl holds 12 of 13 lines"),
        ("evaluations.jsonl", r"evaluations\.jsonl lacks lines of steps \[3\]"),
    ],
)
def test_incomplete_run_is_not_sealed(path: Path, name: str, message: str) -> None:
    with RunDirectory.open(path, CONFIG, "train") as run:
        train(run)
        runlog_files.cut_back(path / name, lambda step: step < (2 if name == "metrics.jsonl" else 3))
        assert not run.is_complete()
        with pytest.raises(RunError, match=message):
            run.seal()
    assert not (path / "seal.json").exists()


# Records


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record | {"reward": 1.0}, "no such column: reward"),
        (
            lambda record: {name: value for name, value in record.items() if name != "entropy"},
            "lacks entropy",
        ),
        (lambda record: record | {"step": None}, "step is null"),
        (lambda record: record | {"trajectories": 1.5}, "trajectories holds 1.5, and must be int"),
        (lambda record: record | {"trajectories": True}, "trajectories holds True, and must be int"),
        (lambda record: record | {"entropy": "high"}, "entropy holds 'high', and must be float"),
        (lambda record: record | {"ratio_histogram": 3}, "ratio_histogram holds 3, and must be list"),
    ],
)
def test_records_that_do_not_fit_the_columns_raise(
    path: Path, change: Callable[[dict[str, Any]], dict[str, Any]], message: str
) -> None:
    with RunDirectory.open(path, CONFIG, "train") as run:
        with pytest.raises(ValueError, match=message):
            run.log_metrics(change(metrics(0)))
        assert not (path / "metrics.jsonl").exists()


@settings(max_examples=30, deadline=None)
@given(st.floats(), st.lists(st.floats(width=32), max_size=4))
def test_numbers_survive_and_what_is_not_finite_becomes_null(number: float, numbers: list[float]) -> None:
    record = metrics(0, entropy=np.float64(number), ratio_histogram=np.array(numbers, dtype=np.float32))
    checked = runlog.checked_record(runlog.METRIC_COLUMNS, record)
    back = json.loads(json.dumps(checked, allow_nan=False))
    assert back["entropy"] == (pytest.approx(number, rel=1e-6) if math.isfinite(number) else None)
    expected = [pytest.approx(value, rel=1e-6) if math.isfinite(value) else None for value in numbers]
    assert back["ratio_histogram"] == expected


def test_frames_have_the_schemas_columns_and_types(path: Path) -> None:
    record = read_run(finished(path))
    assert list(record.metrics.columns) == list(runlog.METRIC_COLUMNS)
    assert list(record.metrics["step"]) == list(range(-10, 3))
    assert record.metrics["reward_mean"].iloc[-1] == pytest.approx(1 / 22, rel=1e-6)
    assert record.metrics["entropy"].isna().all() and record.metrics["entropy"].dtype == np.float64
    assert record.evaluations["correct"].dtype == bool
    assert list(record.evaluations["problem_id"][:2]) == [
        "0e5",
        "1e5",
    ]  # ids that look like numbers stay text
    empty = read_run(path.with_name("seed9"))
    assert list(empty.metrics.columns) == list(runlog.METRIC_COLUMNS) and len(empty.evaluations) == 0


# Reading


def test_status_of_a_run_over_its_life(path: Path) -> None:
    def status() -> tuple[str, str]:
        record = read_run(path)
        return record.status, record.status_detail

    assert status() == ("planned", "not begun")
    with RunDirectory.open(path, CONFIG, "train") as run:
        run.begin_attempt()
        assert status() == ("running", "step 0 of 3")
        train(run, stop_before=1)
        assert status() == ("running", "step 1 of 3")
        run.fail("the loss is not finite")
    assert status() == ("failed", "the loss is not finite (step 1 of 3)")
    with RunDirectory.open(path, CONFIG, "train") as run:
        run.begin_attempt()
        assert status() == ("running", "step 1 of 3")
    assert status() == ("running", "stopped at step 1 of 3")
    finished(path)
    record = read_run(path)
    assert (record.status, record.status_detail) == ("finished", "step 3 of 3")
    assert (record.row, record.scale, record.seed) == ("sao", "smoke", 0)
    assert record.config["training"]["updates"] == 3


@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluations.jsonl", "schedule.jsonl.gz"])
def test_hand_edited_table_of_a_sealed_run_is_named(path: Path, name: str) -> None:
    finished(path)
    content = (path / name).read_bytes()
    if name.endswith(".gz"):
        text = gzip.decompress(content).replace(b"trajectory", b"trajectorz")
        (path / name).write_bytes(runlog_files.compressed(text))
    else:
        (path / name).write_bytes(content.replace(b"1", b"2", 1))
    with pytest.raises(RunError, match=f"{name}: was changed after the run was sealed"):
        read_run(path)


def test_truncated_or_missing_table_of_a_sealed_run_is_named(path: Path) -> None:
    finished(path)
    os.truncate(path / "metrics.jsonl", 100)
    with pytest.raises(RunError, match=r"metrics\.jsonl: was changed"):
        read_run(path)
    (path / "metrics.jsonl").unlink()
    with pytest.raises(RunError, match=r"metrics\.jsonl: is missing"):
        read_run(path)


def test_hand_edited_spec_is_named(path: Path) -> None:
    finished(path)
    spec = json.loads((path / "spec.json").read_text())
    spec["config"]["advantage"]["alpha"] = 0.05
    (path / "spec.json").write_text(json.dumps(spec))
    with pytest.raises(RunError, match=r"spec\.json: was changed by hand"):
        read_run(path)
    (path / "spec.json").write_text("{")
    with pytest.raises(RunError, match=r"spec\.json: cannot be read"):
        read_run(path)


def test_run_that_left_the_grid_is_refused_on_request(path: Path) -> None:
    settings = CONFIG.model_copy(update={"checkpoint_interval": 2})
    finished(path, settings)
    assert read_run(path).status == "finished"
    record = read_run(path, against_grid=True)
    assert record.status == "refused" and "checkpoint_interval is 2 there and 1 here" in record.status_detail


def test_provenance(path: Path) -> None:
    record = read_run(finished(path)).provenance
    assert record["command"] == "train"
    assert record["packages"]["pydantic"] and record["packages"]["python"]
    assert record["hardware"]["cores"] >= 1
    assert record["cpu_hours"] == pytest.approx(0.01)
    assert record["attempts"][0]["start"] <= record["attempts"][0]["end"]


def test_provenance_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sao import provenance

    assert provenance.git_state(tmp_path) is None
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    (tmp_path / "file").write_text("one\n")
    for arguments in (["init", "-q"], ["add", "file"], [*identity, "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)
    clean = provenance.git_state(tmp_path)
    assert clean is not None and len(clean["commit"]) == 40 and clean["diff"] is None
    (tmp_path / "file").write_text("two\n")
    dirty = provenance.git_state(tmp_path)
    assert dirty is not None and "+two" in dirty["diff"]
    assert dirty["diff_sha256"] == hashlib.sha256(dirty["diff"].encode()).hexdigest()
    monkeypatch.setenv("PATH", "")
    assert provenance.git_state(tmp_path) is None


# Commands


def run_command(*arguments: str) -> int:
    return runlog_commands.main([*arguments])


def test_archive_moves_everything_and_deletes_nothing(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = path.parents[3]
    finished(path)
    finished(path.with_name("seed1"), config.resolve("sao", "smoke", 1))
    names = {file.name for file in path.iterdir()}
    options = ("--scale", "smoke", "--results", str(results))
    assert run_command("archive", "sao", "--seed", "1", *options) == 0
    archive = results / "smoke" / "archive"
    assert {file.name for file in (archive / "sao-1" / "seed1").iterdir()} == names and path.exists()
    assert run_command("archive", "sao", *options) == 0
    assert {file.name for file in (archive / "sao-2" / "seed0").iterdir()} == names and not path.exists()
    capsys.readouterr()
    assert run_command("archive", "sao", *options) == 2
    assert "there is no run to archive" in capsys.readouterr().err
    assert read_run(finished(path)).status == "finished"


def test_archive_leaves_a_running_run_alone(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunDirectory.open(path, CONFIG, "train"):
        assert run_command("archive", "sao", "--scale", "smoke", "--results", str(path.parents[3])) == 2
    assert "a process is working on this run" in capsys.readouterr().err
    assert path.exists()


def test_check_lists_runs_that_differ(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--scale", "smoke", "--results", str(path.parents[3]))
    finished(path)
    assert run_command("check", *options) == 0
    finished(
        path.with_name("seed1"),
        config.resolve("sao", "smoke", 1).model_copy(update={"checkpoint_interval": 9}),
    )
    assert run_command("check", *options) == 1
    out = capsys.readouterr().out
    assert "checkpoint_interval is 9 there and 1 here" in out
    assert f"archive sao --scale smoke --results {path.parents[3].resolve()}" in out
    assert run_command("check", "--row", "vapo", *options) == 0
    capsys.readouterr()
    assert run_command("check", "--row", "vap", *options) == 2
    assert "did you mean vapo?" in capsys.readouterr().err


def test_published_runs_read_as_the_originals(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    results, samples = path.parents[3], ("trajectories.jsonl.gz", "training_trajectories.jsonl.gz")
    finished(path)
    for sample in samples:
        (path / sample).write_bytes(runlog_files.compressed(b""))
    with RunDirectory.open(path.with_name("seed1"), config.resolve("sao", "smoke", 1), "train") as run:
        train(run, stop_before=1)
    warm_start = results / "smoke" / "prepare" / "locks" / "warm_start"
    warm_start.mkdir(parents=True)
    runlog.append_records(warm_start / "evaluations.jsonl", runlog.EVALUATION_COLUMNS, evaluations(0))
    (warm_start / "seal.json").write_text("{}")
    options = ("--scale", "smoke", "--results", str(results))
    assert run_command("publish", *options) == 0
    out = capsys.readouterr().out
    assert "seed1: left out: running, stopped at step 1 of 3" in out
    logged = results / "logged" / "smoke"
    original, published = read_run(path), read_runs(logged)
    assert len(published) == 1 and published[0].status == "finished"
    assert published[0].metrics.equals(original.metrics)
    assert published[0].evaluations.equals(original.evaluations)
    assert published[0].provenance == original.provenance
    for sample in samples:
        assert (logged / "runs/sao/seed0" / sample).read_bytes() == (path / sample).read_bytes()
    copy = runlog.read_table(logged / "prepare/locks/warm_start/evaluations.jsonl", runlog.EVALUATION_COLUMNS)
    assert list(copy["step"]) == [0] * 4

    before = {file: file.read_bytes() for file in logged.rglob("*") if file.is_file()}
    monkeypatch.setattr(time, "time", lambda: 0.0)  # a time stamp in the gzip header would change
    assert run_command("publish", *options) == 0
    assert {file: file.read_bytes() for file in logged.rglob("*") if file.is_file()} == before
    schedule = "runs/sao/seed0/schedule.jsonl.gz"
    assert run_command("publish", *options, "--schedules", "sao") == 0
    assert (logged / schedule).read_bytes() == (path / "schedule.jsonl.gz").read_bytes()
    read_runs(logged)

    copy_path = logged / "runs/sao/seed0/metrics.jsonl.gz"
    text = gzip.decompress(copy_path.read_bytes())
    copy_path.write_bytes(runlog_files.compressed(text.replace(b"0.", b"1.", 1)))
    with pytest.raises(RunError, match=r"metrics\.jsonl\.gz: was changed"):
        read_runs(logged)


def test_runs_come_in_the_order_of_row_and_seed(path: Path) -> None:
    for seed in (10, 2):
        finished(path.with_name(f"seed{seed}"), config.resolve("sao", "smoke", seed))
    assert [record.seed for record in read_runs(path.parents[2])] == [2, 10]


def test_command_line_runs_as_a_module(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sao.runlog", "archive", "sao"],
        capture_output=True,
        text=True,
        cwd=path.parents[4],
    )
    assert done.returncode == 2 and "there is no run to archive" in done.stderr


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (b'"reward_mean": ', b'"reward_mean": NaN, "was": ', "line 2: not valid JSON"),
        (b'"step": ', b'"zzz": 1, "step": ', "line 2: unknown or missing columns: zzz"),
        (
            b'"wall_seconds": ',
            b'"wall_second": ',
            "line 2: unknown or missing columns: wall_second, wall_seconds",
        ),
    ],
)
def test_edited_line_of_an_unsealed_run_is_never_sealed(
    path: Path, old: bytes, new: bytes, fault: str
) -> None:
    finished(path)
    (path / "seal.json").unlink()
    file = path / "metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(old, new, 1)
    file.write_bytes(b"".join(lines))
    with RunDirectory.open(path, config.resolve("sao", "smoke", 0), "train") as run:
        for step in (run.is_complete, run.seal, lambda: run.rewind(0)):
            with pytest.raises(RunError, match=rf"metrics\.jsonl: {fault}"):
                step()
    assert not (path / "seal.json").exists()
