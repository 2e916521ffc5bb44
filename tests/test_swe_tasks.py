"""Tasks of SWE-Bench: the tiny ones are the same everywhere, and bad data is refused."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from evaluation.swe.patches import changed_files
from evaluation.swe.tasks import TaskError, load_tasks, tasks_digest
from evaluation.swe.tiny_tasks import build_tiny_tasks

COMMITS = {
    "tiny__calendar-1": "a39a0c048bf587a6a500c10f9a1ff1df58fd06fa",
    "tiny__slugs-2": "2618a5c6c84689734f3e3c94248849faf0e85de8",
    "tiny__intervals-3": "1dfcfa8c8143e3c0d5689bd8e50d46378c9a64d5",
    "tiny__ledger-4": "825996d3ab35a1ebbc1059cf738c29869eaf0b0e",
    "tiny__router-5": "bb0d18e578f9d392f279c0f31de85dd166522b61",
}


def test_tiny_tasks_are_the_same_on_every_machine(tmp_path: Path) -> None:
    tasks = build_tiny_tasks(tmp_path)
    assert {task.instance_id: task.base_commit for task in tasks} == COMMITS
    assert tasks_digest(load_tasks(tmp_path / "tasks.jsonl")) == tasks_digest(tasks)


def test_tiny_tasks_go_from_one_line_to_three_files(tmp_path: Path) -> None:
    patches = [task.row["patch"] for task in build_tiny_tasks(tmp_path)]
    assert [len(changed_files(patch)) for patch in patches] == [1, 1, 1, 2, 3]
    lines = [
        sum(line.startswith("+") and not line.startswith("+++") for line in patch.splitlines())
        for patch in patches
    ]
    assert lines == [1, 4, 3, 12, 16]


def test_row_without_an_image_is_refused(tmp_path: Path) -> None:
    rows = [task.row for task in build_tiny_tasks(tmp_path)]
    file = tmp_path / "old.jsonl"
    old = {name: value for name, value in rows[0].items() if name not in ("image", "eval_script")}
    file.write_text(json.dumps(old) + "\n")
    with pytest.raises(TaskError, match=r"old\.jsonl: row 0 \(tiny__calendar-1\) lacks image, eval_script"):
        load_tasks(file)


def test_training_rows_may_lack_reference_and_version(tmp_path: Path) -> None:
    row = build_tiny_tasks(tmp_path)[0].row | {"version": "", "patch": "", "test_patch": ""}
    file = tmp_path / "training.jsonl"
    file.write_text(json.dumps(row) + "\n")
    assert load_tasks(file, complete=False)[0].row == row
    with pytest.raises(TaskError, match="lacks version, patch, test_patch"):
        load_tasks(file)
    file.write_text(json.dumps({name: value for name, value in row.items() if name != "patch"}) + "\n")
    with pytest.raises(TaskError, match="lacks patch;"):
        load_tasks(file, complete=False)


def test_lists_in_parquet_and_other_ends_of_lines(tmp_path: Path) -> None:
    row = build_tiny_tasks(tmp_path)[0].row
    row |= {"FAIL_TO_PASS": ["a", "b"], "problem_statement": "one\u2028two"}
    pyarrow.parquet.write_table(pa.Table.from_pylist([row]), tmp_path / "t.parquet")
    (tmp_path / "t.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\n")
    for name in ("t.parquet", "t.jsonl"):
        assert [task.row for task in load_tasks(tmp_path / name)] == [row]


def test_task_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    line = json.dumps(build_tiny_tasks(tmp_path)[0].row) + "\n"
    (tmp_path / "twice.jsonl").write_text(line * 2)
    with pytest.raises(TaskError, match="holds tiny__calendar-1 twice"):
        load_tasks(tmp_path / "twice.jsonl")


@pytest.mark.parametrize(("name", "text"), [("a.jsonl", "{"), ("a.json", "{}"), ("missing.json", None)])
def test_unreadable_file_is_named(tmp_path: Path, name: str, text: str | None) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    with pytest.raises(TaskError, match=name):
        load_tasks(file)
