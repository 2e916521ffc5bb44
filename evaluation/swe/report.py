"""The report page of an evaluation, in Markdown: outcome, turns, commands, patch and tests of every task."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.swe.outcomes import OUTCOMES, SUSPECT
from sao.runlog_files import write_atomic

PAGE = "report.md"
LONGEST_COMMAND = 300  # characters


def write_page(
    folder: Path,
    spec: Mapping[str, Any],
    samples: Mapping[str, Mapping[str, Any]],
    scores: Sequence[Mapping[str, Any]],
) -> None:
    """Write report.md: an overview, then each task by the order of the data."""
    write_atomic(folder / PAGE, page(spec, samples, scores).encode())


def page(
    spec: Mapping[str, Any],
    samples: Mapping[str, Mapping[str, Any]],
    scores: Sequence[Mapping[str, Any]],
) -> str:
    """The page's text."""
    by_name = {score["problem_id"]: score for score in scores}
    names = [name for name in spec["samples"] if name in by_name]
    lines = [f"# {spec['benchmark']}: {spec['row']}, seed {spec['seed']}, step {spec['step']}", ""]
    lines += [*_overview(spec, scores), ""]
    lines += [
        "| task | outcome | ended by | turns | commands | seconds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in names:
        score = by_name[name]
        cells = [
            f"[{name}](#{name})",
            score["outcome"],
            score["finish_reason"],
            score["turns"],
            score["tool_calls"],
            f"{score['seconds']:.0f}",
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    for name in names:
        lines += ["", *_task(name, samples[name], by_name[name])]
    return "\n".join([*lines, ""])


def _overview(spec: Mapping[str, Any], scores: Sequence[Mapping[str, Any]]) -> list[str]:
    counts = Counter(score["outcome"] for score in scores)
    missing = len(spec["samples"]) - len(scores)
    named = [f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome]]
    named += [f"{missing} not played"] if missing else []
    backends = sorted({score["backend"] for score in scores})
    protocol = spec["protocol"]
    return [
        f"{', '.join(named)} of {len(spec['samples'])} tasks. Model {spec['policy']['model']}, workspace "
        f"{protocol['sandbox']}, at most {protocol['max_turns']} turns; graded over "
        f"{', '.join(backends) or 'nothing'}.",
    ]


def _task(name: str, sample: Mapping[str, Any], score: Mapping[str, Any]) -> list[str]:
    lines = [
        f"## {name}",
        "",
        f"**{score['outcome']}**, ended by {score['finish_reason']} after {score['turns']} turns.",
    ]
    if score["reasons"]:
        word = "Doubts" if score["outcome"] == SUSPECT else "Reasons"
        lines += ["", f"{word}: " + "; ".join(score["reasons"]) + "."]
    if sample["dropped"]:
        lines += [
            "",
            "Left out of the patch: "
            + ", ".join(f"{file} ({why})" for file, why in sample["dropped"].items()),
        ]
    lines += ["", "Commands:", "", *_fenced(_commands(sample["messages"]), "text")]
    lines += ["", "Patch:", "", *_fenced([sample["response_text"].rstrip("\n") or "(empty)"], "diff")]
    for kind, results in score["tests"].items():
        passed, failed = results.get("success", []), results.get("failure", [])
        if passed or failed:
            lines += ["", f"{kind}: {len(passed)} of {len(passed) + len(failed)} pass."]
            lines += [f"- fails: `{test}`" for test in failed]
    return lines


def _commands(messages: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each call of a tool, numbered by the model's answer that it is of."""
    lines, answers = [], []
    for message in messages:
        if message["role"] != "assistant":
            continue
        if message["answer"] not in answers:
            answers.append(message["answer"])
        said = (
            f"{message['tool']} {message['arguments']}"
            if message.get("tool")
            else f"says: {message['content']}"
        )
        line = " ".join(said.split())
        if len(line) > LONGEST_COMMAND:
            line = f"{line[:LONGEST_COMMAND]}..."
        lines.append(f"{len(answers):>3}  {line}")
    return lines or ["(none)"]


def _fenced(lines: Sequence[str], language: str) -> list[str]:
    """A code block, with a fence longer than any in it."""
    text = "\n".join(lines)
    fence = "```"
    while fence in text:
        fence += "`"
    return [f"{fence}{language}", text, fence]
