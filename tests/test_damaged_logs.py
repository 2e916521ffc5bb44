"""Logs that were changed, cut, repeated or misplaced: one line with file and line, and never a wrong cell."""

import gzip
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from synthetic_runs import write_run, write_warm_start

from analysis import compare, tables
from analysis.command import run_command
from analysis.load import AnalysisError, load_logs
from sao.prepare import seal as seal_preparation

CURVE = (0.40, 0.45, 0.50, 0.55, 0.60)
METRICS, EVALUATIONS = "metrics.jsonl", "evaluations.jsonl"
Lines = list[str]


@pytest.fixture(scope="module")
def _source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs") / "cpu"
    for seed in range(2):
        write_run(folder, "sao", seed, CURVE)
    return folder


@pytest.fixture
def folder(_source: Path, tmp_path: Path) -> Path:
    return shutil.copytree(_source, tmp_path / "cpu")


def error_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    out = folder.parent / "out"
    arguments = ["--runs", str(folder), "--artifact", "table4", "--out", str(out)]
    assert run_command(lambda: tables.main(arguments)) == 2
    assert not out.exists()
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "Traceback" not in error
    return error


def change(path: Path, edit: Callable[[Lines], Lines], seal: bool) -> None:
    """Change a table's lines; with `seal` the seal's checksum too, as no command of the suite would."""
    path.write_text("\n".join(edit(path.read_text().splitlines())) + "\n")
    if seal:
        file = path.parent / "seal.json"
        content = json.loads(file.read_text())
        text = path.read_bytes()
        content["files"][path.name] = {"lines": text.count(b"\n"), "sha256": hashlib.sha256(text).hexdigest()}
        file.write_text(json.dumps(content))


def repeat(lines: Lines) -> Lines:
    return [*lines[:41], lines[40], *lines[41:]]


def swap(lines: Lines) -> Lines:
    return [*lines[:40], lines[41], lines[40], *lines[42:]]


def not_a_number(lines: Lines) -> Lines:
    return [*lines[:40], lines[40].replace('"reward_mean": ', '"reward_mean": NaN, "x": ', 1), *lines[41:]]


def text_for_number(lines: Lines) -> Lines:
    return [*lines[:40], json.dumps(json.loads(lines[40]) | {"reward_mean": "much"}), *lines[41:]]


def quoted_number(lines: Lines) -> Lines:
    return [*lines[:40], json.dumps(json.loads(lines[40]) | {"reward_mean": "0.5"}), *lines[41:]]


def quoted_truth(lines: Lines) -> Lines:
    return [*lines[:40], json.dumps(json.loads(lines[40]) | {"correct": "true"}), *lines[41:]]


@pytest.mark.parametrize("seal", [False, True])
@pytest.mark.parametrize(
    ("name", "edit", "fault"),
    [
        (METRICS, repeat, "line 42: repeats line 41"),
        (EVALUATIONS, repeat, "line 42: repeats line 41"),
        (METRICS, swap, "line 42: step 30 comes after step 31"),
        (METRICS, not_a_number, "line 41: not valid JSON"),
        (METRICS, text_for_number, "line 41: column reward_mean holds 'much', and must be float"),
        (METRICS, quoted_number, "line 41: column reward_mean holds '0.5', and must be float"),
        (EVALUATIONS, quoted_truth, "line 41: column correct holds 'true', and must be bool"),
    ],
)
def test_faults_are_named_by_file_and_line(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    edit: Callable[[Lines], Lines],
    fault: str,
    seal: bool,
) -> None:
    path = folder / "runs/sao/seed1" / name
    change(path, edit, seal)
    assert f"{path}: {fault}" in error_of(folder, capsys)


@pytest.mark.parametrize(
    ("name", "edit", "said"),
    [
        (METRICS, lambda lines: [*lines[:40], *lines[41:]], "lacks step 30"),
        (METRICS, lambda lines: lines[:-1], "lacks step 119"),
        (EVALUATIONS, lambda lines: lines[1:], "has 127 problems at step 24 and 128 at step 48"),
    ],
)
def test_a_sealed_run_without_a_line_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, edit: Callable[[Lines], Lines], said: str
) -> None:
    path = folder / "runs/sao/seed1" / name
    change(path, edit, seal=True)
    assert f"{path}: {said}" in error_of(folder, capsys)


def change_last(**changed: object) -> Callable[[Lines], Lines]:
    """Other values in the last line, which every table shows."""
    return lambda lines: [*lines[:-1], json.dumps(json.loads(lines[-1]) | changed)]


def flip(lines: Lines) -> Lines:
    return change_last(correct=not json.loads(lines[-1])["correct"])(lines)


def say_twice(lines: Lines) -> Lines:
    return [*lines[:-1], lines[-1].replace('"correct": ', '"correct": true, "correct": ')]


@pytest.mark.parametrize(
    ("name", "edit", "fault"),
    [
        (EVALUATIONS, change_last(correct=None), "line 640: column correct"),
        (EVALUATIONS, say_twice, "line 640: column correct stands twice"),
        (EVALUATIONS, flip, "line 640: correct disagrees with the reward"),
        (EVALUATIONS, change_last(benchmark="x"), "line 640: benchmark is not that of line 1"),
        (
            EVALUATIONS,
            change_last(label="5 locks"),
            "line 640: label is not that of the problem's first line",
        ),
        (EVALUATIONS, change_last(problem_id="x"), "line 640: problem_id is missing at other steps"),
        (METRICS, change_last(masked_low=1.5), "line 130: column masked_low holds a share outside 0 to 1"),
        (METRICS, change_last(clipped=-0.1), "line 130: column clipped holds a share outside 0 to 1"),
        (METRICS, lambda lines: [*lines[:-1], lines[-1].replace("0.5", "1e999")], "line 130: column"),
    ],
)
def test_lines_that_no_run_writes_are_named_though_the_seal_fits(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, edit: Callable[[Lines], Lines], fault: str
) -> None:
    path = folder / "runs/sao/seed1" / name
    assert len(path.read_text().splitlines()) == (640 if name == EVALUATIONS else 130)
    change(path, edit, seal=True)
    assert f"{path}: {fault}" in error_of(folder, capsys)


def test_a_number_beyond_all_numbers_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(folder / "runs/sao/seed1" / METRICS, change_last(step=10**400), seal=True)
    assert str(folder / "runs/sao/seed1") in error_of(folder, capsys)


def test_an_older_log_without_a_column_has_no_fault_for_that(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its damaged line is what the message names."""

    def without(lines: Lines) -> Lines:
        records = [json.loads(line) for line in lines]
        return [
            json.dumps({name: record[name] for name in record if name != "invalid"}) for record in records
        ]

    path = folder / "runs/sao/seed1" / METRICS
    change(path, without, seal=True)
    assert [run.seed for run in load_logs(folder, ["sao"]).finished("sao")] == [0, 1]
    change(path, repeat, seal=False)
    error = error_of(folder, capsys)
    assert f"{path}: line 42: repeats line 41" in error and "invalid" not in error


def test_a_copied_log_counts_once_for_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the table does not show the run that it was copied from."""
    other = write_run(folder, "grpo_vanilla", 0, CURVE)
    path = folder / "runs/sao/seed1" / METRICS
    change(path, lambda lines: (other / METRICS).read_text().splitlines(), seal=True)
    assert f"{path}: is a copy of that of {other}" in error_of(folder, capsys)


def test_a_seal_that_lists_files_without_checksums(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seal = folder / "runs/sao/seed1/seal.json"
    seal.write_text(json.dumps(json.loads(seal.read_text()) | {"files": [METRICS, EVALUATIONS]}))
    assert f"{seal}: names no checksums of files" in error_of(folder, capsys)


def test_a_folder_in_a_files_place(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "runs/sao/seed1" / METRICS
    path.unlink()
    path.mkdir()
    assert f"{path}: is a folder and should be a file" in error_of(folder, capsys)


@pytest.mark.parametrize(
    ("edit", "seal", "fault"),
    [
        (change_last(correct=True, reward=1.0), False, "is not what seal.json beside it names"),
        (flip, True, "line 128: correct disagrees with the reward"),
        (lambda lines: [*lines, lines[9]], True, "line 129: repeats an earlier line"),
        (change_last(reward=float("nan")), True, "line 128: not valid JSON"),
    ],
)
def test_a_changed_warm_start_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], edit: Callable[[Lines], Lines], seal: bool, fault: str
) -> None:
    write_warm_start(folder, "locks", 0.25)
    path = folder / "prepare/locks/warm_start" / EVALUATIONS
    assert load_logs(folder, ["sao"]).warm_starts
    path.write_text("\n".join(edit(path.read_text().splitlines())) + "\n")
    if seal:
        (path.parent / "seal.json").unlink()
        seal_preparation(path.parent, "made up")
    assert f"{path}: {fault}" in error_of(folder, capsys)


def test_a_published_log_that_ends_within_its_compression(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cut in the middle of the only member: the message counts the lines that could be read."""
    path = folder / "runs/sao/seed1" / METRICS
    whole = path.read_bytes()
    path.unlink()
    compressed = gzip.compress(whole, mtime=0)
    file = path.with_name(f"{METRICS}.gz")
    file.write_bytes(compressed[: len(compressed) // 2])
    error = error_of(folder, capsys)
    number = int(error.split(f"{file}: line ")[1].split(":")[0])
    assert "ends before the line does" in error and 1 < number < whole.count(b"\n")


def test_a_run_in_another_folder_counts_for_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It took the place of the run whose seed it states, silently."""
    shutil.copytree(folder / "runs/sao/seed0", folder / "runs/sao/seed7")
    spec = folder / "runs/sao/seed7/spec.json"
    assert f"{spec}: is of row sao, seed 0, in folder sao/seed7" in error_of(folder, capsys)
    shutil.move(folder / "runs/sao/seed7", folder / "runs/vapo/seed0")
    assert "is of row sao, seed 0, in folder vapo/seed0" in error_of(folder, capsys)


def test_a_run_of_another_scale_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_run(tmp_path / "cpu_plain", "sao", 2, CURVE, scale="cpu_plain")
    shutil.copytree(other, folder / "runs/sao/seed2")
    spec = folder / "runs/sao/seed2/spec.json"
    assert f"{spec}: is of scale cpu_plain, {folder / 'runs/sao/seed0'} of scale cpu" in error_of(
        folder, capsys
    )


def test_a_seal_without_checksums_is_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seal = folder / "runs/sao/seed1/seal.json"
    seal.write_text(json.dumps({"digest": json.loads(seal.read_text())["digest"], "status": "finished"}))
    assert f"{seal}: names no checksum of evaluations.jsonl, metrics.jsonl" in error_of(folder, capsys)


def test_a_run_under_way_with_a_damaged_line_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_run(folder, "vapo", 0, CURVE[:2], finished=False) / METRICS
    change(path, text_for_number, seal=False)
    assert f"{path}: line 41: column reward_mean holds 'much'" in error_of(folder, capsys)


def test_the_comparison_of_two_runs_checks_them_too(folder: Path) -> None:
    change(folder / "runs/sao/seed1" / METRICS, repeat, seal=True)
    runs = [str(folder / f"runs/sao/seed{seed}") for seed in range(2)]
    with pytest.raises(AnalysisError, match="line 42: repeats line 41"):
        compare.main(runs)


def test_whole_logs_are_read(folder: Path) -> None:
    assert [run.seed for run in load_logs(folder, ["sao"]).finished("sao")] == [0, 1]
