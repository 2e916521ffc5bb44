"""Five tiny tasks in the format of SWE-Bench 5, built into git repositories alike on every machine.

    python -m evaluation.swe.tiny_tasks FOLDER

writes FOLDER/tasks.jsonl and, in FOLDER/images/<image>/testbed, a repository for each task. Difficulty goes
from one line to three files.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from evaluation.swe.sandbox import image_folder
from evaluation.swe.tasks import Task, write_tasks

FOLDER = Path(__file__).parent
DELIMITER = "EOF_114329324912"  # of SWE-Bench's own scripts
IDENTITY = {
    "GIT_AUTHOR_NAME": "tiny tasks",
    "GIT_AUTHOR_EMAIL": "tiny@tasks.invalid",
    "GIT_COMMITTER_NAME": "tiny tasks",
    "GIT_COMMITTER_EMAIL": "tiny@tasks.invalid",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}


def build_tiny_tasks(folder: Path) -> list[Task]:
    """Write repositories and tasks.jsonl anew below `folder`, and return the tasks by difficulty."""
    tasks = []
    for file in sorted(FOLDER.glob("*.yaml")):
        described = yaml.safe_load(file.read_text())
        image = f"{described['repo']}:latest"
        testbed = image_folder(folder / "images", image) / "testbed"
        shutil.rmtree(testbed, ignore_errors=True)
        tasks.append(Task(_build(described, image, testbed)))
    write_tasks(folder / "tasks.jsonl", tasks)
    return tasks


def _build(described: Mapping[str, Any], image: str, testbed: Path) -> dict[str, Any]:
    files = {".gitignore": "__pycache__/\n", **described["files"]}
    _write(testbed, files)
    _git(testbed, "init", "--quiet", "--initial-branch", "main")
    _git(testbed, "add", "--all")
    _git(testbed, "commit", "--quiet", "--message", "The state in which the issue was found")
    base = _git(testbed, "rev-parse", "HEAD").strip()
    solution = {
        name: _replaced(files[name], changes, name) for name, changes in described["solution"].items()
    }
    test_patch = _difference(testbed, described["tests"])
    return {
        "instance_id": described["name"],
        "repo": described["repo"],
        "version": "1.0",
        "base_commit": base,
        "environment_setup_commit": base,
        "problem_statement": described["problem"],
        "hints_text": "",
        "created_at": "2026-01-01T00:00:00Z",
        "patch": _difference(testbed, solution),
        "test_patch": test_patch,
        "FAIL_TO_PASS": json.dumps(described["fail_to_pass"]),
        "PASS_TO_PASS": json.dumps(described["pass_to_pass"]),
        "image": image,
        "eval_script": _evaluation_script(base, list(described["tests"]), test_patch),
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
    }


def _evaluation_script(base: str, tests: list[str], test_patch: str) -> str:
    """The script in SWE-Bench's form: put the tests there, run them between marks, put them back."""
    names = " ".join(tests)
    return f"""\
#!/bin/bash
set -uxo pipefail
cd /testbed
git config --global --add safe.directory /testbed
git status
git show
git -c core.fileMode=false diff {base}
git checkout {base} {names}
git apply -v - <<'{DELIMITER}'
{test_patch}{DELIMITER}
: '>>>>> Start Test Output'
python -m pytest -rA -p no:cacheprovider {names}
: '>>>>> End Test Output'
git checkout {base} {names}
"""


def _replaced(text: str, changes: list[list[str]], name: str) -> str:
    for old, new in changes:
        if text.count(old) != 1:
            raise ValueError(f"{name}: {old!r} stands there {text.count(old)} times")
        text = text.replace(old, new)
    return text


def _difference(testbed: Path, files: Mapping[str, str]) -> str:
    """The change to these contents as git prints it; the repository is left as it was."""
    _write(testbed, files)
    text = _git(testbed, "diff", "--no-color")
    _git(testbed, "checkout", "--quiet", "--", ".")
    return text


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)


def _git(folder: Path, *arguments: str) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **IDENTITY}
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
