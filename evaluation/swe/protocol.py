"""The paper's protocol on SWE-Bench Verified, and what OpenHands leaves open and is settled here."""

from evaluation.math.protocol import MAX_TOKENS, TEMPERATURE, TOP_P, Benchmark

BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("swe_bench_verified", "SWE-Bench Verified", "SWE_Bench_Verified", 500, 1),
        Benchmark("swe_tiny", "five tiny tasks made here", None, 5, 1),
    )
}
"""By name; a score stands on all of a benchmark's tasks, or there is none."""

MAX_TURNS = 300  # answers of the model to one task, whatever number of runs they are spread over
WALL_SECONDS = 6 * 3600  # for one task
CONTINUES = 10  # answers without a tool call that are asked to go on, as OpenHands' own benchmark does
TEST_SECONDS = 1800  # for a task's tests

AGENT: dict[str, object] = {
    "scaffold": "openhands-sdk 1.58.2",
    "tools": ["terminal", "file_editor", "task_tracker", "finish", "think"],
    "condenser": None,  # the paper names none: history is never rewritten
    "stuck_detection": True,  # the SDK's default, with its thresholds
    "attempts": 1,  # no second try for an empty patch
    "continues": CONTINUES,
    "warm_up": "true",  # sent and discarded: the first command of a terminal may lose its output
    "parallel_tool_calls": 1,
}
KEEP_REASONING = True  # the thinking of earlier turns is sent back; in training the record needs it
SAMPLING: dict[str, float] = {"temperature": TEMPERATURE, "top_p": TOP_P}

REPOSITORY = "/testbed"  # where images of SWE-Bench keep the repository

INSTRUCTION = """\
The folder {repository} holds a checkout of the repository {name}. It has the following issue:

<issue>
{problem}
</issue>

Change the code of the repository so that the issue is resolved. The tests that will judge the change are \
written already and are not shown; leave test files as they are.

Go about it like this:
1. Read the issue, and find the code that it is about.
2. Reproduce the problem with a small script.
3. Find the cause, and mend it with as small a change as is right.
4. Run your script and the tests of the parts you changed, and look for cases that the issue does not name.
5. Remove what you made only to look at the problem, then call the finish tool.

The environment is set up: install nothing, and do not ask for help.
"""

CONTINUE = """\
Please go on with the task as you think best. If you have resolved the issue, call the finish tool. \
Nobody can answer questions.
"""

__all__ = [
    "AGENT",
    "BENCHMARKS",
    "CONTINUE",
    "INSTRUCTION",
    "KEEP_REASONING",
    "MAX_TOKENS",
    "MAX_TURNS",
    "REPOSITORY",
    "SAMPLING",
    "TEST_SECONDS",
    "WALL_SECONDS",
]
