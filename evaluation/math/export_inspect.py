"""Writes an evaluation's samples as a log that the viewer of Inspect opens (its JSON format, version 2).

    python -m evaluation.math.export_inspect results/cpu_math/evaluations/sao/seed0/step120/aime_2025
    inspect view --log-dir logs

Inspect itself is not needed to write the log; runs of a problem become its epochs.
"""

import argparse
import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from evaluation.math.store import Evaluation, StoreError, digest, read_evaluation, read_samples
from sao.environments.chat_format import Message
from sao.runlog_files import write_atomic

LOG_VERSION = 2
SCORER = "answer"
VALUES = {"right": "C", "wrong": "I", "undecided": "N"}
STOP_REASONS = {"stop": "stop", "length": "max_tokens", "turns": "tool_calls"}


def log_of(evaluation: Evaluation, samples: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole log as JSON-ready values."""
    spec = evaluation.spec
    name = f"{spec['benchmark']} {spec['row']} seed {spec['seed']} step {spec['step']}"
    times = _times(evaluation.path)
    right = sum(sample["verdict"] == "right" for sample in samples)
    due = sum(spec["samples"].values())
    accuracy = {"name": "accuracy", "value": right / due, "options": {}}
    return {
        "version": LOG_VERSION,
        "status": "success" if evaluation.sealed else "cancelled",
        "eval": {
            "run_id": name,
            "task_id": name,
            "created": times["started_at"],
            "task": name,
            "task_version": 0,
            "task_attribs": {},
            "task_args": {},
            "dataset": {
                "name": spec["benchmark"],
                "location": spec["data"]["source"],
                "samples": len(spec["samples"]),
                "sample_ids": list(spec["samples"]),
                "shuffled": False,
            },
            "model": f"{spec['row']}/step{spec['step']}",
            "model_args": {},
            "config": {"epochs": max(spec["samples"].values())},
            "packages": {},
            "metadata": {"policy": spec["policy"], "protocol": spec["protocol"], "data": spec["data"]},
        },
        "plan": {"name": "plan", "steps": [], "config": _sampling(spec["protocol"])},
        "results": {
            "total_samples": due,
            "completed_samples": len(samples),
            "scores": [{"name": SCORER, "scorer": SCORER, "params": {}, "metrics": {"accuracy": accuracy}}],
        },
        "stats": {**times, "model_usage": {}},
        "samples": [_sample(sample, spec["row"]) for sample in samples],
    }


def _sample(sample: dict[str, Any], model: str) -> dict[str, Any]:
    messages = [
        {"role": "user", "content": sample["problem"], "source": "input"},
        *_messages(sample["messages"]),
    ]
    usage = {
        "input_tokens": sample["prompt_tokens"],
        "output_tokens": sample["action_tokens"],
        "total_tokens": sample["total_tokens"],
    }
    said = [message for message in messages if message["role"] == "assistant"]
    stop = STOP_REASONS[sample["finish_reason"]]
    output = {"model": model, "choices": [{"message": said[-1], "stop_reason": stop}], "usage": usage}
    counts = ("turns", "tool_calls", "tool_errors", "malformed_calls", "finish_reason", "label", "seconds")
    return {
        "id": sample["problem_id"],
        "epoch": sample["run_index"] + 1,
        "input": sample["problem"],
        "target": sample["gold"],
        "messages": messages,
        "output": output,
        "scores": {
            SCORER: {
                "value": VALUES[sample["verdict"]],
                "answer": sample["extracted_answer"],
                "explanation": sample["reason"],
            }
        },
        "metadata": {name: sample[name] for name in counts},
        "store": {},
        "events": [],
        "model_usage": {model: usage},
        "attachments": {},
    }


def _messages(messages: list[Message]) -> list[dict[str, Any]]:
    """The messages as Inspect has them; tool results name the turn whose calls they answer."""
    shown: list[dict[str, Any]] = []
    for place, message in enumerate(messages):
        if message["role"] == "tool":
            shown.append({"role": "tool", "content": message["content"], "function": message["name"]})
            continue
        content = [{"type": "text", "text": message["content"]}]
        if message["reasoning_content"]:
            content.insert(0, {"type": "reasoning", "reasoning": message["reasoning_content"]})
        shown.append({"role": "assistant", "content": content, "source": "generate", "id": f"turn{place}"})
    return shown


def _sampling(protocol: dict[str, Any]) -> dict[str, Any]:
    return {name: protocol[name] for name in ("temperature", "top_p", "max_tokens")}


def _times(folder: Path) -> dict[str, str]:
    """When the first attempt began and the last sample was written."""
    attempts = json.loads((folder / "provenance.json").read_bytes())["attempts"]
    end = (folder / "samples.jsonl").stat().st_mtime
    started = datetime.fromisoformat(attempts[0]["start"])
    completed = datetime.fromtimestamp(end, started.tzinfo)
    return {"started_at": started.isoformat(), "completed_at": completed.isoformat(timespec="seconds")}


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns 0, or 2 for a user's mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.math.export_inspect", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", type=Path, help="folder of one evaluation")
    parser.add_argument("--out", type=Path, default=Path("logs"), help="folder of the log")
    options = parser.parse_args(arguments)
    try:
        evaluation = read_evaluation(options.folder)
        samples = list(read_samples(options.folder))
    except StoreError as error:
        print(error, file=sys.stderr)
        return 2
    if not samples:
        print(f"{options.folder}: holds no samples yet", file=sys.stderr)
        return 2
    spec = evaluation.spec
    # The viewer lists files that are named by time, task and a mark of their own.
    begun = _times(options.folder)["started_at"].replace(":", "-")
    task = f"{spec['row']}-seed{spec['seed']}-step{spec['step']}-{spec['benchmark']}".replace("_", "-")
    name = f"{begun}_{task}_{digest(spec)[:8]}.json"
    options.out.mkdir(parents=True, exist_ok=True)
    samples.sort(key=lambda sample: (list(spec["samples"]).index(sample["problem_id"]), sample["run_index"]))
    write_atomic(options.out / name, json.dumps(log_of(evaluation, samples)).encode())
    print(f"{options.out / name}: {len(samples)} samples")
    return 0


if __name__ == "__main__":
    sys.exit(main())
