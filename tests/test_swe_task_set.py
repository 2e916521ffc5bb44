"""Tasks of software engineering by the command and the rule that fetch every set; local files for the hub."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from evaluation import training_data
from evaluation.swe import contamination
from evaluation.swe.contamination import require_checked
from evaluation.swe.tasks import load_tasks


def row(number: int, **changes: Any) -> dict[str, Any]:
    patch = "--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
    return {
        "instance_id": f"octo__ship-{number}",
        "repo": "octo/ship",
        "base_commit": f"{number:040x}",
        "problem_statement": f"It sinks, {number}.",
        "patch": patch.format("ship.py"),
        "test_patch": patch.format("test_ship.py"),
        "version": "1",
        "FAIL_TO_PASS": ["test_ship.py::test_float"],
        "PASS_TO_PASS": ["test_ship.py::test_sail"],
        "docker_image": f"octo/ship:{number}",
        "install_config": {"test_cmd": "pytest -rA", "log_parser": "parse_log_pytest"},
    } | changes


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies of a set and of the benchmark, of whose 500 tasks one has the commit of octo__ship-2."""
    rows = [
        row(1),
        row(2),
        row(3, instance_id="other__one-7"),
        row(4, docker_image=None),
        row(5),
        row(1),
    ]
    write(tmp_path / "swe_tasks.jsonl", rows)
    verified = [
        {"instance_id": f"other__one-{number}", "repo": "other/one", "base_commit": f"{number:040x}"}
        for number in range(499)
    ]
    verified.append({"instance_id": "octo__ship-77", "repo": "octo/ship", "base_commit": f"{2:040x}"})
    write(tmp_path / "swe_bench_verified.jsonl", verified)
    monkeypatch.setattr(training_data, "LOCK", tmp_path / "data.lock.yaml")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return tmp_path


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in rows))


def command(folder: Path, *further: str) -> list[str]:
    return ["fetch", "swe_tasks", "--data-dir", str(folder), "--benchmarks-dir", str(folder), *further]


def test_one_command_converts_compares_and_records(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "results/data/swe_tasks.jsonl"
    assert training_data.main(command(folder, "--out", str(out))) == 0
    require_checked(out)
    assert [task.instance_id for task in load_tasks(out, complete=False)] == ["octo__ship-1", "octo__ship-5"]
    printed = capsys.readouterr().out
    for said in (
        "1 rows left out: lacks docker_image",
        "octo__ship-2: has the commit of a task of SWE-Bench Verified",
        "other__one-7: has the id of a task of SWE-Bench Verified",
        "SWE-rebench from swe_tasks.jsonl at unverified: 2 tasks to train on",
    ):
        assert said in printed
    entry = yaml.safe_load((folder / "data.lock.yaml").read_text())["swe_tasks"]
    assert (entry["rows"], entry["kept"], entry["overlaps"]) == (6, 2, {"swe_bench_verified": 2})

    write(folder / "swe_tasks.jsonl", [row(1, problem_statement="It floats.")])
    assert training_data.main(command(folder, "--out", str(out))) == 2
    assert "the data changed" in capsys.readouterr().err


def test_check_writes_no_tasks(folder: Path) -> None:
    assert training_data.main(["check", *command(folder)[1:]]) == 0
    assert not list(folder.glob("**/*.checked.json"))


def test_whoever_lacks_a_network_learns_of_all_copies_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_hub(*_: object, **__: object) -> None:
        raise OSError("Name or service not known")

    def not_installed(_: str) -> None:
        raise ModuleNotFoundError

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", no_hub)
    monkeypatch.setattr(contamination.resources, "files", not_installed)
    out = folder / "out.jsonl"
    assert training_data.main(["fetch", "swe_tasks", "--out", str(out)]) == 2
    benchmark, tasks = capsys.readouterr().err.splitlines()
    assert benchmark.startswith("swe_bench_verified: SWE-bench/SWE-bench_Verified can neither be downloaded")
    assert "benchmarks=FOLDER (the workflow)" in benchmark
    assert tasks.startswith("swe_tasks: nebius/SWE-rebench can neither be downloaded")
    assert tasks.endswith("install_config and name its folder with --data-dir (data= in the workflow)")
    assert not out.exists()


@pytest.mark.parametrize(
    ("file", "rows", "said"),
    [
        ("swe_tasks", [{"a": 1}], "swe_tasks from swe_tasks.jsonl: row 0 (unnamed) lacks install_config"),
        ("swe_bench_verified", [{"instance_id": "a"}], "swe_bench_verified.jsonl: rows lack repo, base_comm"),
        (
            "swe_bench_verified",
            [{"instance_id": "a", "repo": "b", "base_commit": "c"}],
            "swe_bench_verified.jsonl: holds 1 rows with 1 ids where SWE-Bench Verified has 500",
        ),
    ],
)
def test_bad_copies_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str], file: str, rows: list[dict[str, Any]], said: str
) -> None:
    write(folder / f"{file}.jsonl", rows)
    assert training_data.main(command(folder)) == 2
    assert said in capsys.readouterr().err
