"""What one command of the runner means: whose samples, which tasks, limits and folder. No OpenHands."""

import argparse
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluation.arguments import at_least, folder_name
from evaluation.swe.protocol import (
    AGENT,
    BENCHMARKS,
    INSTRUCTION,
    KEEP_REASONING,
    MAX_TOKENS,
    MAX_TURNS,
    SAMPLING,
    WALL_SECONDS,
)
from evaluation.swe.tasks import Task, TaskError, load_tasks, tasks_digest, write_tasks
from evaluation.swe.tiny_tasks import build_tiny_tasks

WORKSPACES = ("docker", "apptainer", "remote", "local")
TINY = "swe_tiny"
VERIFIED = "swe_bench_verified"
CONCURRENCY = 8
TASKS = "tasks"  # folder below an evaluation's


class PlanError(ValueError):
    """A user's mistake; the message says how to mend it."""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Options of `python -m evaluation.swe.runner`."""
    count, number = at_least(1), at_least(0)
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.swe.runner",
        description="Let a model behind an OpenAI-compatible endpoint work on SWE-Bench through OpenHands.",
    )
    parser.add_argument("--row", required=True, type=folder_name, help="row of the tables")
    parser.add_argument("--scale", type=folder_name, default="paper_swe")
    parser.add_argument("--seed", type=number, default=0)
    parser.add_argument("--step", type=number, default=0, help="policy updates")
    parser.add_argument("--benchmark", choices=BENCHMARKS, default="swe_bench_verified")
    parser.add_argument("--results", default="results")
    parser.add_argument("--endpoint", required=True, help="base URL, as the workspace reaches it")
    parser.add_argument("--model", help="name at the endpoint; the row by default")
    parser.add_argument(
        "--key-variable", default="OPENAI_API_KEY", help="environment variable of the API key"
    )
    parser.add_argument("--timeout", type=count, default=7200, help="seconds for one answer of the model")
    parser.add_argument(
        "--drop-reasoning",
        action="store_true",
        help="keep the thinking of earlier turns from the model, unlike training",
    )
    parser.add_argument("--tasks", type=Path, help="file of the tasks, for work offline")
    parser.add_argument("--workspace", choices=WORKSPACES, default="docker")
    parser.add_argument(
        "--image", default="", help="the agent server's image, with {instance} and {image}; or a .sif file"
    )
    parser.add_argument("--server", default="", help="address of a running agent server, with {instance}")
    parser.add_argument("--server-key-variable", default="SESSION_API_KEY", help="variable of its key")
    parser.add_argument("--images", type=Path, help="folder of the images of workspace local")
    parser.add_argument("--max-turns", type=count, default=MAX_TURNS, help="answers of the model to a task")
    parser.add_argument(
        "--max-tokens", type=count, default=MAX_TOKENS, help="context that the model must have"
    )
    parser.add_argument("--wall-seconds", type=count, default=WALL_SECONDS, help="for a task")
    parser.add_argument("--concurrency", type=count, default=CONCURRENCY, help="tasks under way at once")
    return parser.parse_args(arguments)


@dataclass
class Plan:
    """An evaluation ready to start."""

    options: argparse.Namespace
    tasks: list[Task]
    folder: Path = field(init=False)
    spec: dict[str, Any] = field(init=False)

    @classmethod
    def of(cls, options: argparse.Namespace) -> "Plan":
        """Check the options and load the tasks; PlanError for a mistake."""
        place = Path(options.results, options.scale, "evaluations", options.row)
        folder = place / f"seed{options.seed}" / f"step{options.step}" / options.benchmark
        due = BENCHMARKS[options.benchmark]
        tasks = _tasks(options)
        if len(tasks) != due.problems:
            raise PlanError(f"{options.benchmark}: {len(tasks)} tasks where the protocol has {due.problems}")
        plan = cls(options, tasks)
        plan.folder = folder
        plan.spec = plan._spec()
        return plan

    @property
    def images(self) -> Path:
        return self.options.images or self.folder / TASKS / "images"

    def write_tasks(self) -> None:
        """Keep the tasks beside the samples, with the files of those made here: grading needs them."""
        place = self.folder / TASKS
        place.mkdir(parents=True, exist_ok=True)
        if _made_here(self.options):
            build_tiny_tasks(place)
        else:
            write_tasks(place / "tasks.jsonl", self.tasks)

    def _spec(self) -> dict[str, Any]:
        options = self.options
        return {
            "row": options.row,
            "scale": options.scale,
            "seed": options.seed,
            "step": options.step,
            "benchmark": options.benchmark,
            "policy": {"model": options.model or options.row},
            "protocol": {
                "api": "chat",
                "python": False,
                "sandbox": options.workspace,
                **SAMPLING,
                "max_tokens": options.max_tokens,
                "max_turns": options.max_turns,
                "wall_seconds": options.wall_seconds,
                "keep_reasoning": KEEP_REASONING and not options.drop_reasoning,
                "agent": AGENT,
                "instruction": INSTRUCTION,
            },
            "data": {
                "source": "synthetic" if options.benchmark == TINY else "published",
                "revision": None,
                "patch_set": None,
                "tasks_sha256": tasks_digest(self.tasks),
            },
            "samples": {task.instance_id: 1 for task in self.tasks},
        }


def _made_here(options: argparse.Namespace) -> bool:
    return options.benchmark == TINY and options.tasks is None


def _tasks(options: argparse.Namespace) -> list[Task]:
    try:
        if _made_here(options):
            with tempfile.TemporaryDirectory() as folder:
                return build_tiny_tasks(Path(folder))
        return load_tasks(options.tasks, complete=options.benchmark == VERIFIED)
    except (TaskError, OSError) as error:
        raise PlanError(str(error)) from error


def key_of(variable: str, default: str = "") -> str:
    """The key in an environment variable."""
    return os.environ.get(variable, default)
