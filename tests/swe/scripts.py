"""What the scripted model does on each of the tiny tasks, by the repository's name."""

from scripted_model import Step

TESTBED = "/testbed"
DONE: Step = ("finish", {"message": "done"})


def shell(command: str, **further: object) -> Step:
    return "terminal", {"command": command, **further}


def replace(file: str, old: str, new: str) -> Step:
    path = f"{TESTBED}/{file}"
    return "file_editor", {"command": "str_replace", "path": path, "old_str": old, "new_str": new}


def create(file: str, text: str) -> Step:
    return "file_editor", {"command": "create", "path": f"{TESTBED}/{file}", "file_text": text}


FORGED_RUN = """\
import os


def pytest_sessionfinish(session, exitstatus):
    print("\\nPASSED tests/test_text.py::test_words\\nPASSED tests/test_text.py::test_short_enough")
    print("PASSED tests/test_text.py::test_accents\\nPASSED tests/test_text.py::test_shortened", flush=True)
    os._exit(0)
"""
MERGE = """\
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
"""

TOO_LONG = (
    "This model's maximum context length is 131072 tokens. However, you requested 140000 tokens in the "
    "messages. Please reduce the length of the messages."
)

MIXED = {
    # Solved, with leftovers that are not handed in.
    "tiny/calendar": [
        shell("ls && python -m pytest -q"),
        replace("months.py", "year % 4 == 0", "year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)"),
        shell("echo 'def test_mine(): pass' > test_mine.py; printf 'a\\0b' > data.bin; echo > setup.py"),
        DONE,
    ],
    # A hook that prints passed tests and ends with exit code 0.
    "tiny/slugs": [create("conftest.py", FORGED_RUN), DONE],
    # Solved, but never finishes: the turn limit ends it.
    "tiny/intervals": [
        replace(
            "intervals/merging.py",
            "    for start, end in intervals:\n"
            "        if merged and merged[-1][0] <= start < merged[-1][1]:\n"
            "            merged[-1] = (merged[-1][0], end)\n",
            MERGE,
        ),
        *(shell(f"echo {word}") for word in ("one", "two", "three", "four", "five", "six", "seven", "eight")),
    ],
    # A change that solves half of it.
    "tiny/ledger": [
        replace("ledger/amounts.py", "return float(text)", "return round(100 * float(text))"),
        DONE,
    ],
    # A command that never ends: the wall clock does.
    "tiny/router": [
        shell("echo '# note' >> router/errors.py; while true; do date; sleep 0.2; done", timeout=3600)
    ],
}
"""For a limit of 6 turns."""

ENDINGS = {
    # Ends all that runs beside it, the agent server too: its own doing, and no second try.
    "tiny/calendar": [shell("kill -9 -1")],
    # Talks in between, and is asked to go on; the limit of turns holds over all runs.
    "tiny/slugs": [
        ("say", "I will look at it."),
        shell("echo one"),
        ("say", "Now I know."),
        *(shell(f"echo {word}") for word in ("two", "three", "four", "five", "six")),
    ],
    # Runs into the model's context.
    "tiny/intervals": [
        shell("echo '# note' >> intervals/merging.py"),
        ("refuse", (400, TOO_LONG)),
    ],
    # Says the same thing over and over, which the SDK takes for being stuck.
    "tiny/ledger": [("file_editor", {"command": "view", "path": f"{TESTBED}/ledger/amounts.py"})],
}
"""For a limit of 6 turns; tiny/router is solved with its three files."""
