"""A control of the test runner: one more test, which cannot pass, in a task that the harness calls resolved.

A patch can bend the runner in ways that no list of lines holds: then a test that has to fail passes as well,
or nothing tells of it. Its name follows from the patch, so that no patch can know it.
"""

import hashlib
import re

from swebench.harness.constants import END_TEST_OUTPUT, START_TEST_OUTPUT, TestStatus
from swebench.harness.log_parsers import PARSER_REGISTRY

from evaluation.swe.protocol import REPOSITORY
from evaluation.swe.tasks import Task

DELIMITER = "EOF_CONTROL"
FUNCTION = "def {name}():\n    raise AssertionError\n"
CASE = "import unittest\n\n\nclass {name}(unittest.TestCase):\n    def {name}(self):\n        self.fail()\n"
SELECTIONS = {"-k", "-m", "--deselect", "--last-failed", "--lf"}  # with which a new test may not be run


def controlled(task: Task, patch: str) -> Task | None:
    """The task with a test that fails; None where its command runs no whole file that a test fits in."""
    script = str(task.row["eval_script"])
    head, mark, rest = script.partition(f": '{START_TEST_OUTPUT}'")
    command = rest.partition(f": '{END_TEST_OUTPUT}'")[0]
    file = _tested_file(task, command.split())
    if not mark or file is None:
        return None
    form = CASE if task.row["log_parser"] == "parse_log_django" else FUNCTION
    test = form.format(name=control_name(task, patch))
    place = f"{REPOSITORY}/{file}"
    added = f"[ -f {place} ] && cat >> {place} <<'{DELIMITER}'\n\n\n{test}{DELIMITER}\n"
    return Task(task.row | {"eval_script": head + added + mark + rest})


def control_name(task: Task, patch: str) -> str:
    """Name of the test for a patch."""
    return "test_" + hashlib.sha256(f"{task.instance_id}\n{patch}".encode()).hexdigest()[:16]


def runner_fails_it(task: Task, patch: str, log: str) -> bool:
    """Whether the log of the controlled task says that its test failed."""
    tests = log.partition(START_TEST_OUTPUT)[2].partition(END_TEST_OUTPUT)[0]
    statuses = PARSER_REGISTRY[task.row["log_parser"]](tests, None)
    name = control_name(task, patch)
    told = {status for test, status in statuses.items() if name in test}
    return bool(told & {TestStatus.FAILED.value, TestStatus.ERROR.value})


def _tested_file(task: Task, words: list[str]) -> str | None:
    """The file of tests that the command runs as a whole and that holds one which the patch has to mend."""
    failing = str(task.row["FAIL_TO_PASS"])
    files = [word for word in words if re.fullmatch(r"[\w./-]+\.py", word)]
    match str(task.row["log_parser"]):
        case "parse_log_django":
            labels = [word for word in words if re.fullmatch(r"\w+(\.\w+)+", word) and f"({word}." in failing]
            return f"tests/{labels[0].replace('.', '/')}.py" if labels else None
        case "parse_log_sympy":
            return files[-1] if files else None
    runner = next((place for place, word in enumerate(words) if re.search(r"py\.?test$|tox$", word)), None)
    if runner is None or SELECTIONS & {word.partition("=")[0] for word in words[runner:]}:
        return None
    return next((file for file in files if f"{file}::" in failing), None)
