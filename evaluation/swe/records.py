"""What is kept of a task that was played: our sample, and the line that OpenHands' own benchmark writes."""

import json
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from evaluation.swe.conversation import TRUNCATED, Played
from evaluation.swe.outcomes import UNGRADED
from evaluation.swe.tasks import Task
from sao.runlog_files import append_lines

OUTPUT = "output.jsonl"
OWN_TERMINAL = "WarmTerminalTool"  # of evaluation/swe/server_side


def sample_record(task: Task, spec: dict[str, Any], played: Played, seconds: float) -> dict[str, Any]:
    """The line of samples.jsonl; its verdict comes from the grading."""
    messages = played.messages
    calls = [message for message in messages if message.get("tool") and message["role"] == "assistant"]
    return {
        "step": spec["step"],
        "benchmark": spec["benchmark"],
        "problem_id": task.instance_id,
        "run_index": 0,
        "label": task.row["repo"],
        "verdict": UNGRADED,
        "finish_reason": played.ending,
        "status": "truncated" if played.ending in TRUNCATED else "completed",
        "turns": played.turns,
        "continues": played.continues,
        "prompt_tokens": played.prompt_tokens,
        "action_tokens": played.completion_tokens,
        "total_tokens": played.prompt_tokens + played.completion_tokens,
        "tool_calls": len(calls),
        "tool_errors": sum(bool(message.get("error")) for message in messages),
        "malformed_calls": 0,
        "dropped": played.handed_in.dropped,
        "seconds": round(seconds, 3),
        "problem": task.problem,
        "response_text": played.handed_in.patch,
        "messages": messages,
    }


def output_line(task: Task, spec: dict[str, Any], played: Played, started: float) -> dict[str, Any]:
    """The line of output.jsonl in the form of OpenHands' benchmarks (EvalOutput).

    Their reader asks for the fields that have no meaning here too: the folder is the file's own, no critic
    asks for further attempts, and a task's run is named after the task.
    """
    model, protocol = spec["policy"]["model"], spec["protocol"]
    return {
        "instance_id": task.instance_id,
        "attempt": 1,
        "test_result": {"git_patch": played.handed_in.patch},
        "instruction": played.instruction,
        "metadata": {
            "llm": {"model": model, "temperature": protocol["temperature"], "top_p": protocol["top_p"]},
            "dataset": spec["benchmark"],
            "max_iterations": protocol["max_turns"],
            "eval_output_dir": ".",
            "n_critic_runs": protocol["agent"]["attempts"],
            "critic": {"kind": "PassCritic"},
            "enable_condenser": protocol["agent"]["condenser"] is not None,
            "details": protocol["agent"],
        },
        "history": [_known_tools(event) for event in played.events],
        "metrics": played.metrics,
        "error": None,
        "instance": task.row,
        "runtime_runs": [
            {
                "session_id": task.instance_id,
                "started_at": started,
                "finished_at": time.time(),
                "ending": played.ending,
            }
        ],
    }


def _known_tools(event: dict[str, Any]) -> dict[str, Any]:
    """The event with the terminal under the SDK's own name: readers know no other."""
    if "tools" not in event:
        return event
    names = {OWN_TERMINAL: "TerminalTool"}
    tools = [tool | {"kind": names.get(tool["kind"], tool["kind"])} for tool in event["tools"]]
    return event | {"tools": tools}


def append_output(folder: Path, line: dict[str, Any]) -> None:
    append_lines(folder / OUTPUT, [json.dumps(line, default=str)])


def cut_output(folder: Path, done: Collection[tuple[str, int]]) -> None:
    """Drop lines of tasks that are not done, which a killed runner leaves: those tasks are played again."""
    file = folder / OUTPUT
    if not file.exists():
        return
    temporary = file.with_name(f".{OUTPUT}.tmp")
    names = {name for name, _ in done}
    dropped = False
    with file.open("rb") as old, temporary.open("wb") as new:
        for line in old:
            if line.endswith(b"\n") and json.loads(line)["instance_id"] in names:
                new.write(line)
            else:
                dropped = True
    if dropped:
        temporary.replace(file)
    else:
        temporary.unlink()
