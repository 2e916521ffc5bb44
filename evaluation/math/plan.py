"""What one command of the runner means: whose samples, which protocol, which data, which folder."""

import argparse
import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluation.arguments import at_least, folder_name
from evaluation.endpoint import TIMEOUT_SECONDS, Endpoint
from evaluation.local_server import LocalServer, ServerError
from evaluation.math import protocol
from evaluation.math.conversation import Attempt, ChatAttempt, play_tokens, seeds
from evaluation.math.data import load_benchmark
from evaluation.math.grading import Grader
from evaluation.math.problems import DataError
from evaluation.math.sandbox import PythonTool, SandboxError
from evaluation.math.synthetic import BENCHMARK_KINDS, load_synthetic
from evaluation.math.targets import BASE_ROWS, served_by_vllm, untrained_rows, with_python
from evaluation.vllm_server import VLLMServer
from sao import config
from sao.config_files import closest
from sao.config_scales import Model
from sao.environments.chat_format import PYTHON_TOOL, ChatFormat, ChatFormatError
from sao.environments.python_math import INSTRUCTION, Limits, Problem, PythonMath
from sao.environments.released_tokenizer import how_to_fetch

EDGE_BYTES = 1 << 20


class PlanError(ValueError):
    """A user's mistake; the message says how to mend it."""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Options of `python -m evaluation.math.runner`."""
    count, number = at_least(1), at_least(0)
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.math.runner",
        description="Evaluate a checkpoint or an OpenAI-compatible endpoint on a mathematics benchmark.",
    )
    parser.add_argument(
        "--row",
        required=True,
        type=folder_name,
        help="row of the tables; base_ and sft_ rows are not trained",
    )
    parser.add_argument("--scale", type=folder_name, default="cpu_math")
    parser.add_argument("--seed", type=number, default=0)
    parser.add_argument("--step", type=number, help="policy updates; the scale's last evaluation by default")
    parser.add_argument("--benchmark", required=True, choices=protocol.BENCHMARKS)
    parser.add_argument("--results", default="results")
    parser.add_argument("--endpoint", help="base URL; by default the checkpoint is served here")
    parser.add_argument("--model", help="name at the endpoint; the row by default")
    parser.add_argument(
        "--checkpoint", type=Path, help="policy or tokenizer folder; the row's own by default"
    )
    parser.add_argument("--chat", action="store_true", help="chat completions with tool calls, no checkpoint")
    parser.add_argument(
        "--key-variable", default="OPENAI_API_KEY", help="environment variable of the API key"
    )
    parser.add_argument("--timeout", type=count, default=TIMEOUT_SECONDS, help="seconds for one completion")
    parser.add_argument(
        "--data", choices=("synthetic", "published"), help="by default as the scale's task is"
    )
    parser.add_argument("--data-dir", type=Path, help="folder of the benchmarks' files, for work offline")
    parser.add_argument(
        "--max-tokens", type=count, help="of a trajectory; the protocol's or the scale's by default"
    )
    parser.add_argument("--concurrency", type=count, default=64, help="samples under way at once")
    parser.add_argument("--sandbox", choices=("bubblewrap", "none"), default="bubblewrap")
    options = parser.parse_args(arguments)
    if options.chat and not options.endpoint:
        parser.error("--chat needs --endpoint")
    return options


@dataclass
class Plan:
    """An evaluation ready to start; `endpoint` and what plays are there after `start`."""

    options: argparse.Namespace
    scale: config.Scale | None  # None: a model from elsewhere
    checkpoint: Path | None
    step: int
    python: bool
    problems: list[Problem]
    limits: Limits
    spec: dict[str, Any] = field(init=False)
    endpoint: Endpoint = field(init=False)

    @classmethod
    def of(cls, options: argparse.Namespace) -> "Plan":
        """Check the options and load the problems; PlanError for a mistake."""
        python = not options.row.endswith("_no_python")
        # A model that comes from elsewhere and is served elsewhere needs nothing of the scale.
        foreign = options.chat or (options.checkpoint and options.endpoint)
        scale = None if foreign else _scale(options.scale)
        step, checkpoint = _checkpoint(options, scale)
        limits = Limits(protocol.MAX_TOKENS, protocol.MAX_TURNS)
        task = scale.tasks.reasoning if scale else None
        synthetic = task is not None and task.environment == "python_math"
        if task is not None and task.environment in ("python_math", "math"):
            limits = Limits(task.max_tokens, task.max_turns)
        if options.max_tokens:
            limits = Limits(options.max_tokens, limits.max_turns)
        source = options.data or ("synthetic" if synthetic else "published")
        problems, data = _synthetic(options) if source == "synthetic" else _published(options)
        due = protocol.BENCHMARKS[options.benchmark]
        if len({problem.problem_id for problem in problems}) != due.problems:
            raise PlanError(
                f"{options.benchmark}: {len(problems)} problems where the protocol has {due.problems}"
            )
        plan = cls(options, scale, checkpoint, step, python, problems, limits)
        plan.spec = plan._spec(data, due.runs)
        return plan

    @property
    def folder(self) -> Path:
        options = self.options
        place = Path(options.results, options.scale, "evaluations", options.row)
        return place / f"seed{options.seed}" / f"step{self.step}" / options.benchmark

    @property
    def needed_tokens(self) -> int | None:
        return None if self.options.chat else self.limits.max_tokens

    def start(self, stack: ExitStack) -> None:
        """Start tool, graders and, without an endpoint, a server; the stack ends them.

        Raises PlanError for a tokenizer that cannot carry the conversation or a server that does not start.
        """
        options = self.options
        try:
            self.tool = stack.enter_context(PythonTool(sandbox=options.sandbox)) if self.python else None
        except SandboxError as error:
            raise PlanError(f"{error}; the runner's option is --sandbox none") from error
        self.grader = stack.enter_context(Grader())
        if self.checkpoint:
            self.shared = PythonMath(self._chat_format(self.checkpoint), self.limits, self.grader, self.tool)
        url, model, key = (
            options.endpoint,
            options.model or options.row,
            os.environ.get(options.key_variable, "none"),
        )
        if not url:
            try:
                server: Any = stack.enter_context(self._server())
            except ServerError as error:
                raise PlanError(str(error)) from error
            url, model, key = server.url, server.model, server.key
        self.endpoint = Endpoint(url, model, key, options.timeout)

    def _server(self) -> LocalServer | VLLMServer:
        """What serves the checkpoint: vLLM with the scale's engine, or the local engine."""
        assert self.scale and self.checkpoint
        if not served_by_vllm(self.scale):
            return LocalServer(self.checkpoint, self.scale.sampler.slots, self.limits.max_tokens)
        assert self.scale.cluster is not None  # of a scale with a released model
        engines = self.scale.cluster.engines
        return VLLMServer(
            str(self.checkpoint),
            self.folder / "server.log",
            self.limits.max_tokens,
            self.options.concurrency,
            engines.tensor_parallel,
            engines.memory_share,
        )

    async def play(self, problem: Problem, run: int, executor: ThreadPoolExecutor) -> Attempt:
        """Play one run of a problem."""
        if self.options.chat:
            return await ChatAttempt(problem, self.endpoint, self.limits, self.grader, self.tool).play(
                executor
            )
        seed = seeds(self.options.seed, problem.problem_id, run)
        return await play_tokens(self.shared, problem, self.endpoint, seed, executor)

    def _chat_format(self, checkpoint: Path) -> ChatFormat:
        from transformers import AutoTokenizer

        if not (checkpoint / "tokenizer_config.json").exists():
            raise PlanError(f"{checkpoint}: has no tokenizer; copy the base model's next to the weights")
        try:
            return ChatFormat(AutoTokenizer.from_pretrained(checkpoint), [PYTHON_TOOL] if self.python else [])
        except ChatFormatError as error:
            raise PlanError(str(error)) from error

    def _spec(self, data: dict[str, Any], runs: int) -> dict[str, Any]:
        options = self.options
        policy: dict[str, Any] = {"model": options.model or options.row}
        if self.checkpoint:
            policy = {"checkpoint": str(self.checkpoint), "weights_sha256": weights_digest(self.checkpoint)}
        content = [[problem.problem_id, problem.text, problem.answer] for problem in self.problems]
        return {
            "row": options.row,
            "scale": options.scale,
            "seed": options.seed,
            "step": self.step,
            "benchmark": options.benchmark,
            "policy": policy,
            "protocol": {
                "api": "chat" if options.chat else "completions",
                "python": self.python,
                "sandbox": options.sandbox if self.python else None,
                "temperature": protocol.TEMPERATURE,
                "top_p": protocol.TOP_P,
                "max_tokens": self.limits.max_tokens,
                "max_turns": self.limits.max_turns,
                "instruction": INSTRUCTION,
            },
            "data": data | {"problems_sha256": hashlib.sha256(json.dumps(content).encode()).hexdigest()},
            "samples": {problem.problem_id: runs for problem in self.problems},
        }


def _synthetic(options: argparse.Namespace) -> tuple[list[Problem], dict[str, Any]]:
    if options.benchmark not in BENCHMARK_KINDS:
        raise PlanError(
            f"--benchmark {options.benchmark}: is none of the generated ones, which are "
            f"{', '.join(BENCHMARK_KINDS)}; give --data published"
        )
    return load_synthetic(options.benchmark), {"source": "synthetic", "patch_set": None}


def _published(options: argparse.Namespace) -> tuple[list[Problem], dict[str, Any]]:
    """The benchmark's problems, and what its loader says of their origin."""
    try:
        data = load_benchmark(options.benchmark, options.data_dir)
    except DataError as error:
        raise PlanError(str(error)) from error
    problems = [
        Problem(problem.id, data.name, problem.problem, problem.answer, problem.category)
        for problem in data.problems
    ]
    return problems, {"source": "published", "revision": data.revision, "patch_set": data.patch_set}


def weights_digest(checkpoint: Path) -> str:
    """SHA-256 over name, size, first and last MiB of every weight file: tells checkpoints apart quickly."""
    total = hashlib.sha256()
    for file in sorted(checkpoint.glob("*.safetensors")):
        size = file.stat().st_size
        total.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as content:
            total.update(content.read(EDGE_BYTES))
            content.seek(max(size - EDGE_BYTES, 0))
            total.update(content.read())
    return total.hexdigest()


def _scale(name: str) -> config.Scale:
    try:
        return config.load_scale(name)
    except config.ConfigError as error:
        raise PlanError(str(error)) from error


def _checkpoint(options: argparse.Namespace, scale: config.Scale | None) -> tuple[int, Path | None]:
    """Step and folder of the policy; PlanError where it is not there."""
    if options.chat:
        return options.step or 0, None
    if options.checkpoint:
        if not options.checkpoint.is_dir():
            raise PlanError(f"--checkpoint {options.checkpoint}: there is no such folder")
        return options.step or 0, options.checkpoint
    assert scale  # only models from elsewhere have none
    task = scale.tasks.reasoning
    if task is None or task.environment not in ("python_math", "math"):
        raise PlanError(
            f"--scale {scale.name}: its policies do no mathematics (task {task.name if task else 'none'}); "
            "choose a scale with a task of environment python_math or math, such as cpu_math"
        )
    root = Path(options.results, options.scale)
    rows = [*scale.rows(), *untrained_rows(scale)]
    if options.row not in rows:
        raise PlanError(
            f"--row {options.row}: scale {scale.name} has no such row{closest(options.row, rows)}"
        )
    if (base := with_python(options.row)) == "base_python" and scale.model.path is not None:
        return 0, released_folder(scale.model)
    if base in BASE_ROWS:
        folder = root / "prepare" / task.name / "warm_start" / BASE_ROWS[base]
        _require(folder, f"python -m sao.prepare warm-start --scale {scale.name} --task {task.name}")
        return 0, folder
    step = scale.evaluation.steps[-1] if options.step is None else options.step
    weights = root / "runs" / options.row / f"seed{options.seed}" / "weights"
    command = f"python -m sao.train --row {options.row} --scale {scale.name} --seed {options.seed}"
    _require(weights / f"step-{step}", command, weights.glob("step-*"))
    return step, weights / f"step-{step}"


def released_folder(model: Model) -> Path:
    """Where a released model lies: its folder, or the Hub's cache; PlanError where it is not here."""
    folder = Path(str(model.path))
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(model.path), revision=model.revision, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError):
        raise PlanError(f"model.path: {model.path} is not here; {how_to_fetch(model)}") from None


def _require(folder: Path, command: str, others: Iterable[Path] = ()) -> None:
    if (folder / "config.json").exists():
        return
    there = ", ".join(sorted(other.name for other in others))
    hint = f"there are {there}" if there else f"make it with: {command}"
    raise PlanError(f"{folder}: holds no policy; {hint}")
