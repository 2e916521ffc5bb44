"""Training tasks: public data sets as rows in the format of SWE-Bench 5.

    python -m evaluation.swe.datasets convert swe_rebench --out tasks.jsonl               from the hub
    python -m evaluation.swe.datasets convert swe_gym --input gym.parquet --out tasks.jsonl
    python -m evaluation.swe.datasets check tasks.jsonl --verified verified.jsonl

`convert` writes what the runner and the harness read; `check` compares tasks with SWE-Bench Verified (see
`evaluation.swe.contamination`). Where a data set names no tests to run, script or parser, what stands in for
it is built here by the rule that the source's docstring gives; a source's images are its own.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluation.swe.tasks import TaskError

Row = dict[str, Any]

BEGIN, END = ": '>>>>> Start Test Output'", ": '>>>>> End Test Output'"
DELIMITER = "EOF_114329324912"
ACTIVATE = ["source /opt/miniconda3/bin/activate", "conda activate testbed"]
PYTEST = "pytest -rA --tb=no -p no:cacheprovider"
PYTEST_PARSER = "parse_log_pytest"
WHOLE_NAMES_PARSER = "parse_log_pytest_v2"  # keeps names with spaces whole
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Source:
    """A public data set: where it lies, the licence on its card (None where it was not read), its reader."""

    hub: str
    split: str
    licence: str | None
    convert: Callable[[Row], Row]


def eval_script(setup: Sequence[str], test_patch: str, tests: Sequence[str], command: str, reset: str) -> str:
    """The harness's form of script: put the tests there, run them between marks, put the files back.

    `tests` are the files that `test_patch` touches, `reset` the state of the repository that they come from.
    """
    files = " ".join(tests)
    put, back = [], []
    if test_patch:
        put = [f"git apply -v - <<'{DELIMITER}'", test_patch.rstrip("\n"), DELIMITER]
        back = [f"git checkout {reset} {files}"]
    lines = ["#!/bin/bash", "set -uxo pipefail", *setup, "cd /testbed"]
    lines += ["git config --global --add safe.directory /testbed", *back, *put, BEGIN, command, END, *back]
    return "\n".join(lines) + "\n"


def swe_gym(row: Row) -> Row:
    """SWE-Gym: fields of the first SWE-Bench; its rows name no image, script or parser.

    Images are those of its authors, named after the instance; the tests are pytest's on the files of the test
    patch. Instances whose repositories need another command have to be left out by running the reference
    patches first.
    """
    tests = files_of(_text(row, "test_patch"))
    command = f"{PYTEST} {' '.join(tests)}"
    instance = _text(row, "instance_id")
    return _common(row) | {
        "image": f"xingyaoww/sweb.eval.x86_64.{instance.replace('__', '_s_').lower()}:latest",
        "eval_script": eval_script(ACTIVATE, row["test_patch"], tests, command, _text(row, "base_commit")),
        "log_parser": PYTEST_PARSER,
    }


def swe_rebench(row: Row) -> Row:
    """SWE-rebench of Nebius: image, test command and parser stand in the row.

    Two thirds of its rows have no image; those of its split `filtered` do.
    """
    config = row.get("install_config")
    config = json.loads(config) if isinstance(config, str) else config
    if not isinstance(config, dict):
        raise TaskError("lacks install_config")
    command = _text(config, "test_cmd", "install_config.")
    if not command.isprintable():
        raise TaskError("install_config.test_cmd is more than one line")
    tests = files_of(_text(row, "test_patch"))
    script = eval_script(
        ACTIVATE, row["test_patch"], tests, f"{command} {' '.join(tests)}", _text(row, "base_commit")
    )
    return _common(row) | {
        "image": _text(row, "docker_image"),
        "eval_script": script,
        "log_parser": _text(config, "log_parser", "install_config."),
    }


def swe_smith(row: Row) -> Row:
    """SWE-smith: an image per repository with a branch per instance, whose name is the instance's.

    The row's `patch` makes the bug, so the reference is its reverse, which no row holds: `patch` stays empty.
    The branch's last commit takes the failing tests away; the commit before it has them.
    """
    instance = _text(row, "instance_id")
    passing, failing = names_of(row, "PASS_TO_PASS"), names_of(row, "FAIL_TO_PASS")
    tests = sorted({name.partition("::")[0] for name in [*failing, *passing]})
    command = f"git checkout {instance}~1 -- {' '.join(tests)} && {PYTEST} {' '.join(tests)}"
    return {
        "instance_id": instance,
        "repo": _text(row, "repo"),
        "version": "",
        "base_commit": instance,
        "problem_statement": _text(row, "problem_statement"),
        "patch": "",
        "test_patch": "",
        "FAIL_TO_PASS": json.dumps(failing),
        "PASS_TO_PASS": json.dumps(passing),
        "image": _text(row, "image_name"),
        "eval_script": eval_script(ACTIVATE, "", [], command, instance),
        "log_parser": PYTEST_PARSER,
        "eval_type": "pass_and_fail",
    }


def r2e_gym(row: Row) -> Row:
    """R2E-Gym: the image holds repository and tests; the row says how each test ends once it is mended.

    A test's name there is its class and function without the file, to which the script brings pytest's
    summary; colours of a terminal, which names may hold, are taken out of both. `commit_hash` is the commit
    that mends the bug; the task starts at the one before it, old_commit_hash, which may be an expression of
    git such as `<hash>^`. All tests that shall pass count as FAIL_TO_PASS: the row does not say which passed
    before.
    """
    expected = row.get("expected_output_json")
    expected = json.loads(expected) if isinstance(expected, str) else expected
    if not isinstance(expected, dict) or not expected:
        raise TaskError("lacks expected_output_json")
    repository, fixed = _text(row, "repo_name"), _text(row, "commit_hash")
    content = row.get("parsed_commit_content")
    content = json.loads(content) if isinstance(content, str) else content
    if not isinstance(content, dict):
        raise TaskError("lacks parsed_commit_content")
    commit = _text(content, "old_commit_hash", "parsed_commit_content.")
    passing = sorted(COLOURS.sub("", name) for name, outcome in expected.items() if outcome == "PASSED")
    named = r"sed -E 's/\x1b\[[0-9;]*m|\r//g;/^(PASSED|FAILED|ERROR|XFAIL) /{s/ [^ :]*\.py::/ /;s/::/./g}'"
    return {
        "instance_id": f"{repository}__{fixed}",
        "repo": repository,
        "version": "",
        "base_commit": commit,
        "problem_statement": _text(row, "problem_statement"),
        "patch": "",
        "test_patch": "",
        "FAIL_TO_PASS": json.dumps(passing),
        "PASS_TO_PASS": "[]",
        "image": _text(row, "docker_image"),
        "eval_script": eval_script([], "", [], f"bash /root/run_tests.sh 2>&1 | {named}", commit),
        "log_parser": WHOLE_NAMES_PARSER,
        "eval_type": "pass_and_fail",
    }


SOURCES = {
    "swe_gym": Source("SWE-Gym/SWE-Gym", "train", "MIT", swe_gym),
    "swe_smith": Source("SWE-bench/SWE-smith", "train", None, swe_smith),
    "r2e_gym": Source("R2E-Gym/R2E-Gym-Subset", "train", None, r2e_gym),
    "swe_rebench": Source("nebius/SWE-rebench", "filtered", None, swe_rebench),
}


def convert(name: str, rows: Iterable[Row], origin: str) -> tuple[list[Row], Counter[str]]:
    """Rows of a source in the format of SWE-Bench 5, and how many could not be converted, by reason.

    Public sets hold rows without an image, or without a problem's text: no task can be made of them. Raises
    TaskError, which names the first, where none can be converted.
    """
    converted, left_out, first = [], Counter[str](), ""
    for place, row in enumerate(rows):
        try:
            converted.append(SOURCES[name].convert(row))
        except (TaskError, ValueError) as error:
            left_out[str(error)] += 1
            named = row.get("instance_id") or row.get("commit_hash") or "unnamed"
            first = first or f"row {place} ({named}) {error}; is it a row of {SOURCES[name].hub}?"
    if not converted:
        raise TaskError(f"{origin}: {first or 'holds no rows'}")
    return converted, left_out


def counted(left_out: Mapping[str, int]) -> str:
    """Rows that were left out, in words: how many for each reason."""
    return "; ".join(f"{count} rows left out: {reason}" for reason, count in Counter(left_out).most_common())


def read_rows(file: Path) -> list[Row]:
    """Rows of a .jsonl or .parquet file; TaskError where it cannot be read."""
    try:
        if file.suffix == ".parquet":
            import pyarrow.parquet

            return pyarrow.parquet.read_table(file).to_pylist()
        if file.suffix == ".jsonl":
            rows = [json.loads(line) for line in file.read_text().split("\n") if line.strip()]
            if all(isinstance(row, dict) for row in rows):
                return rows
            raise ValueError("a line is no JSON object")
    except (OSError, ValueError) as error:
        raise TaskError(f"{file}: cannot be read: {error}") from error
    raise TaskError(f"{file}: is neither .jsonl nor .parquet")


def download(hub: str, split: str, revision: str | None) -> list[Row]:
    """Rows of a data set on the Hugging Face hub; TaskError where it cannot be loaded."""
    from datasets import load_dataset

    try:
        return list(load_dataset(hub, split=split, revision=revision))
    except Exception as error:  # the hub's client has no common class of errors
        raise TaskError(f"{hub}: cannot be loaded: {error}; give a local copy with --input FILE") from error


def files_of(patch: str) -> list[str]:
    """Files that a patch leaves behind, in its order."""
    return list(dict.fromkeys(re.findall(r"^\+\+\+ b/(.+?)\s*$", patch, re.MULTILINE)))


def names_of(row: Row, field: str) -> list[str]:
    """Test names of a field that holds a list, or JSON of one."""
    value = row.get(field)
    names = json.loads(value) if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        raise TaskError(f"lacks {field}")
    return [str(name) for name in names]


def _common(row: Row) -> Row:
    """The fields that all sources with SWE-Bench's own names share."""
    texts = ("instance_id", "repo", "base_commit", "problem_statement", "patch", "test_patch")
    kept: Row = {field: _text(row, field) for field in texts}
    if not names_of(row, "FAIL_TO_PASS"):
        raise TaskError("has no test in FAIL_TO_PASS")
    for field in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        kept[field] = json.dumps(names_of(row, field))
    return kept | {"version": str(row.get("version") or ""), "eval_type": "pass_and_fail"}


def _text(row: Row, field: str, prefix: str = "") -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value:
        raise TaskError(f"lacks {prefix}{field}")
    return value


def write_rows(file: Path, rows: Sequence[Row]) -> None:
    """Write rows as .jsonl; the file gets its name once it is complete."""
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
    temporary.rename(file)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns 0, 1 where `check` finds tasks of the benchmark, 2 for a user's mistake."""
    from evaluation.swe.contamination import check_command

    parser = argparse.ArgumentParser(
        prog="python -m evaluation.swe.datasets", description=(__doc__ or "").splitlines()[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("convert", help="rows of a public data set in the format of SWE-Bench 5")
    one.add_argument("source", choices=SOURCES)
    one.add_argument("--input", type=Path, help="local .jsonl or .parquet; the hub by default")
    one.add_argument("--hub", help="another data set of the same fields on the hub")
    one.add_argument("--split", help="of the data set on the hub")
    one.add_argument("--revision", help="commit on the hub")
    one.add_argument("--out", type=Path, required=True, help=".jsonl to write")
    two = commands.add_parser("check", help="compare tasks with SWE-Bench Verified")
    two.add_argument("tasks", type=Path, help=".jsonl or .parquet that convert wrote")
    two.add_argument("--verified", type=Path, help="SWE-Bench Verified as .jsonl, .parquet or .csv")
    two.add_argument("--clean", type=Path, help="write the tasks without those of the benchmark")
    options = parser.parse_args(arguments)
    try:
        if options.command == "check":
            return check_command(options.tasks, options.verified, options.clean)
        source = SOURCES[options.source]
        hub = options.hub or source.hub
        rows = (
            read_rows(options.input)
            if options.input
            else download(hub, options.split or source.split, options.revision)
        )
        tasks, left_out = convert(options.source, rows, str(options.input or hub))
        write_rows(options.out, tasks)
        if left_out:
            print(counted(left_out))
        licence = source.licence or "unverified, see the data set's card"
        print(f"{options.out}: {len(tasks)} tasks of {options.input or hub}; licence: {licence}")
    except (TaskError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
