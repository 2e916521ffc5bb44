"""Training data as SWE-Bench 5 rows, and the check against SWE-Bench Verified; all data made here."""

import csv
import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from evaluation.swe.contamination import compare, load_verified, same_commit
from evaluation.swe.datasets import SOURCES, convert, files_of, main, read_rows
from evaluation.swe.tasks import TaskError

PATCH = """\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""
TEST_PATCH = """\
diff --git a/tests/test_calc.py b/tests/test_calc.py
--- a/tests/test_calc.py
+++ b/tests/test_calc.py
@@ -1,2 +1,4 @@
 from calc import add
+def test_add():
+    assert add(1, 2) == 3
"""
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FIXED = "89abcdef0123456789abcdef0123456789abcdef"
PLAIN: dict[str, Any] = {
    "instance_id": "Owner__calc-7",
    "repo": "owner/calc",
    "base_commit": COMMIT,
    "problem_statement": "add() subtracts",
    "patch": PATCH,
    "test_patch": TEST_PATCH,
    "version": "1.2",
    "FAIL_TO_PASS": ["tests/test_calc.py::test_add"],
    "PASS_TO_PASS": ["tests/test_calc.py::test_other"],
}
ROWS: dict[str, dict[str, Any]] = {
    "swe_gym": PLAIN,
    "swe_rebench": PLAIN
    | {
        "docker_image": "swerebench/calc:7",
        "install_config": {
            "test_cmd": "pytest -rA --quiet",
            "log_parser": "parse_log_pytest",
            "python": "3.9",
        },
    },
    "swe_smith": {
        "instance_id": "owner__calc.01234567.lm_rewrite__abc",
        "repo": "swesmith/owner__calc.01234567",
        "patch": PATCH,
        "problem_statement": "add() subtracts",
        "FAIL_TO_PASS": ["tests/test_calc.py::test_add"],
        "PASS_TO_PASS": ["tests/test_more.py::test_other"],
        "image_name": "swesmith/calc",
    },
    "r2e_gym": {
        "repo_name": "calc",
        "commit_hash": FIXED,
        "parsed_commit_content": json.dumps({"old_commit_hash": f"{FIXED}^", "new_commit_hash": FIXED}),
        "docker_image": "r2e/calc:0123",
        "problem_statement": "add() subtracts",
        "expected_output_json": json.dumps({"TestCalc.test_add": "PASSED", "test_bad": "FAILED"}),
    },
}


def converted(source: str, **changes: Any) -> dict[str, Any]:
    tasks, left_out = convert(source, [ROWS[source] | changes], "here")
    assert not left_out
    return tasks[0]


@pytest.mark.parametrize("source", SOURCES)
def test_rows_have_what_the_harness_needs(source: str) -> None:
    row = converted(source)
    for field in ("instance_id", "repo", "base_commit", "problem_statement", "image", "log_parser"):
        assert isinstance(row[field], str) and row[field], field
    assert row["eval_type"] == "pass_and_fail" and {"patch", "test_patch", "version"} <= row.keys()
    assert json.loads(row["FAIL_TO_PASS"]) and isinstance(json.loads(row["PASS_TO_PASS"]), list)
    lines = row["eval_script"].splitlines()
    start, end = lines.index(": '>>>>> Start Test Output'"), lines.index(": '>>>>> End Test Output'")
    assert end == start + 2  # the harness takes the exit code of the one command between the marks
    assert subprocess.run(["bash", "-n"], input=row["eval_script"], text=True).returncode == 0


def test_the_test_command_is_the_sources_own() -> None:
    assert "\npytest -rA --quiet tests/test_calc.py\n" in converted("swe_rebench")["eval_script"]
    assert converted("swe_rebench")["image"] == "swerebench/calc:7"
    assert converted("swe_gym")["image"] == "xingyaoww/sweb.eval.x86_64.owner_s_calc-7:latest"


def test_a_patch_that_makes_the_bug_is_no_reference() -> None:
    row = converted("swe_smith")
    assert row["patch"] == "" and row["base_commit"] == "owner__calc.01234567.lm_rewrite__abc"
    checkout = (
        "git checkout owner__calc.01234567.lm_rewrite__abc~1 -- tests/test_calc.py tests/test_more.py && "
    )
    assert checkout in row["eval_script"]


def test_the_script_applies_the_tests_and_puts_them_back(tmp_path: Path) -> None:
    """Run for real in a repository, with /testbed, pytest and conda replaced."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_calc.py").write_text("from calc import add\n")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], check=True)
    test_patch = TEST_PATCH.replace("@@ -1,2 +1,4 @@", "@@ -1 +1,3 @@")
    row = converted("swe_gym", test_patch=test_patch, base_commit="HEAD")
    script = row["eval_script"].replace("/testbed", str(tmp_path))
    script = script.replace("pytest -rA --tb=no -p no:cacheprovider", "cat").replace("--global", "--local")
    script = "\n".join(line for line in script.splitlines() if "activate" not in line)
    done = subprocess.run(["bash"], input=script, text=True, capture_output=True)
    assert "assert add(1, 2) == 3" in done.stdout, done.stderr
    assert (tmp_path / "tests/test_calc.py").read_text() == "from calc import add\n"


def test_summaries_of_r2e_images_get_the_names_of_their_rows() -> None:
    names = {"\x1b[1mTestCalc.test_add\x1b[0m": "PASSED", "test_more[a b]": "PASSED", "test_bad": "FAILED"}
    row = converted("r2e_gym", expected_output_json=json.dumps(names))
    assert json.loads(row["FAIL_TO_PASS"]) == ["TestCalc.test_add", "test_more[a b]"]
    command = row["eval_script"].splitlines()[-2].partition("2>&1 | ")[2]
    summary = (
        "\x1b[32mPASSED\x1b[0m r2e_tests/test_1.py::\x1b[1mTestCalc::test_add\x1b[0m\r\n"
        "PASSED r2e_tests/test_1.py::test_more[a b]\nnote: a.py::b\n"
    )
    done = subprocess.run(["bash", "-c", command], input=summary.encode(), capture_output=True)
    assert done.stdout == b"PASSED TestCalc.test_add\nPASSED test_more[a b]\nnote: a.py::b\n"
    assert row["log_parser"] == "parse_log_pytest_v2"


def test_tasks_of_r2e_start_before_the_commit_that_mends_them() -> None:
    row = converted("r2e_gym")
    assert (row["base_commit"], row["instance_id"]) == (f"{FIXED}^", f"calc__{FIXED}")
    assert converted("r2e_gym", parsed_commit_content={"old_commit_hash": COMMIT})["base_commit"] == COMMIT


def test_other_ends_of_lines_are_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one\u2028two"}\n{"text": "three"}\n')
    assert read_rows(tmp_path / "a.jsonl") == [{"text": "one\u2028two"}, {"text": "three"}]


@pytest.mark.parametrize(
    ("source", "changes", "said"),
    [
        ("r2e_gym", {"parsed_commit_content": None}, "lacks parsed_commit_content"),
        ("r2e_gym", {"parsed_commit_content": "{}"}, "lacks parsed_commit_content.old_commit_hash"),
        ("swe_gym", {"test_patch": ""}, "lacks test_patch"),
        ("swe_gym", {"FAIL_TO_PASS": []}, "has no test in FAIL_TO_PASS"),
        ("swe_rebench", {"install_config": None}, "lacks install_config"),
        ("swe_rebench", {"install_config": {"test_cmd": "pytest"}}, "lacks install_config.log_parser"),
        ("swe_smith", {"image_name": None}, "lacks image_name"),
        ("r2e_gym", {"expected_output_json": "{}"}, "lacks expected_output_json"),
        ("r2e_gym", {"expected_output_json": "{"}, "row 0"),
    ],
)
def test_a_row_that_lacks_a_field_is_named(source: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(TaskError, match="here: row 0 ") as refused:
        converted(source, **changes)
    assert said in str(refused.value) and SOURCES[source].hub in str(refused.value)


def test_rows_that_no_task_can_be_made_of_are_counted_and_left_out() -> None:
    whole = ROWS["swe_rebench"]
    without_image = whole | {"docker_image": None, "instance_id": "owner__calc-8"}
    tasks, left_out = convert("swe_rebench", [without_image, whole, without_image], "here")
    assert [task["instance_id"] for task in tasks] == ["Owner__calc-7"]
    assert left_out == {"lacks docker_image": 2}


def test_files_of_a_patch() -> None:
    deleted = "--- a/old.py\n+++ /dev/null\n"
    assert files_of(TEST_PATCH + deleted + PATCH) == ["tests/test_calc.py", "calc.py"]


def verified(count: int = 500) -> list[dict[str, str]]:
    return [
        {"instance_id": f"owner__calc-{number}", "repo": "Owner/Calc", "base_commit": f"{number:040x}"}
        for number in range(count)
    ]


def task(instance: str, repo: str = "other/calc2", commit: str = COMMIT) -> dict[str, str]:
    return {"instance_id": instance, "repo": repo, "base_commit": commit}


def test_tasks_of_the_benchmark_are_found_by_id_and_by_commit() -> None:
    tasks = [
        task("OWNER__calc-3"),
        task("x-1", "owner/calc", f"{4:040x}"),
        task("x-2", "calc", f"{5:040x}"),  # named without its owner
        task("x-3", "swesmith/owner__calc.00000000"),  # 8 digits of several of the commits
        task("x-4", "owner/calc", COMMIT),
        task("x-5", "other/repository", f"{4:040x}"),  # another repository's commit
    ]
    found = compare(tasks, verified())
    assert (found.same_id, found.same_commit) == ([0], [1, 2, 3])
    assert found.same_repository == {"owner/calc": 1}


def test_abbreviated_commits() -> None:
    assert same_commit("0123456", COMMIT) and not same_commit("0123457", COMMIT)
    assert not same_commit("0", COMMIT) and not same_commit("", COMMIT)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_the_benchmark_is_read_from_a_copy(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"verified{suffix}"
    write(file, verified())
    assert [row["instance_id"] for row in load_verified(file)] == [row["instance_id"] for row in verified()]


def write(file: Path, rows: list[dict[str, str]]) -> None:
    if file.suffix == ".csv":
        with file.open("w", newline="") as target:
            writer = csv.DictWriter(target, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif file.suffix == ".parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), file)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_part_of_the_benchmark_is_no_benchmark(tmp_path: Path) -> None:
    file = tmp_path / "verified.csv"
    write(file, verified(499))
    with pytest.raises(TaskError, match="holds 499 rows with 499 ids where SWE-Bench Verified has 500"):
        load_verified(file)


def test_the_command_converts_checks_and_cleans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out, clean, benchmark = (tmp_path / name for name in ("in.jsonl", "t.jsonl", "c.jsonl", "v.csv"))
    write(source, [ROWS["swe_gym"], ROWS["swe_gym"] | {"instance_id": "owner__calc-9999"}])
    write(benchmark, verified())
    assert main(["convert", "swe_gym", "--input", str(source), "--out", str(out)]) == 0
    assert "2 tasks" in capsys.readouterr().out and len(out.read_text().splitlines()) == 2
    check = ["check", str(out), "--verified", str(benchmark)]
    assert main(check) == 1
    printed = capsys.readouterr().out
    assert "Owner__calc-7: has the id of a task" in printed and "1 of owner/calc" in printed
    assert main([*check, "--clean", str(clean)]) == 0
    assert [json.loads(line)["instance_id"] for line in clean.read_text().splitlines()] == [
        "owner__calc-9999"
    ]


def test_mistakes_have_one_clear_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "t.jsonl")
    assert main(["convert", "swe_gym", "--input", str(tmp_path / "none.jsonl"), "--out", out]) == 2
    assert "none.jsonl: cannot be read" in capsys.readouterr().err
    (tmp_path / "a.txt").write_text("x")
    assert main(["convert", "swe_gym", "--input", str(tmp_path / "a.txt"), "--out", out]) == 2
    assert "neither .jsonl nor .parquet" in capsys.readouterr().err
    (tmp_path / "b.jsonl").write_text("[1]\n")
    assert main(["convert", "swe_gym", "--input", str(tmp_path / "b.jsonl"), "--out", out]) == 2
    assert "no JSON object" in capsys.readouterr().err
    (tmp_path / "c.jsonl").write_text("")
    assert main(["convert", "swe_gym", "--input", str(tmp_path / "c.jsonl"), "--out", out]) == 2
    assert "holds no rows" in capsys.readouterr().err
    assert not Path(out).exists()
