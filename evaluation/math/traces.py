"""Traces for fine-tuning: a stronger model solves problems with the Python tool, and what is right is kept.

    python -m evaluation.math.traces sample --scale paper_math [--endpoint URL --model NAME]
    python -m evaluation.math.traces keep --scale paper_math

`sample` keeps every attempt in results/<scale>/prepare/<task>/traces, as evaluations keep theirs, and goes on
where it was. Without an endpoint the scale's teacher is served for the time: on GPUs by vLLM, asked in chat
messages; on a CPU, from its folder, by the local engine, over token ids. `keep` writes the conversations
that fine-tuning reads, results/data/<set>_traces.jsonl. Exit codes are those of `evaluation.math.runner`.
"""

import argparse
import json
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluation.arguments import at_least
from evaluation.data_files import DataError
from evaluation.endpoint import TIMEOUT_SECONDS, Endpoint, EndpointError, EndpointFailure
from evaluation.local_server import LocalServer, ServerError
from evaluation.math.conversation import Attempt, ChatAttempt, play_tokens, seeds
from evaluation.math.grading import Grader
from evaluation.math.runner import evaluate
from evaluation.math.sandbox import PythonTool
from evaluation.math.sandbox_command import SandboxError
from evaluation.math.sft_traces import BENCHMARK, Selection
from evaluation.math.store import SamplesMissing, SampleStore, StoreError, read_evaluation, read_samples
from evaluation.math.targets import traces_folder
from evaluation.training_data import checksum, fetched_rows
from evaluation.vllm_server import VLLMServer
from sao.config import ConfigError, Scale, load_scale
from sao.config_cluster import FineTuning
from sao.config_files import file_of, shown
from sao.config_tasks import MathTask
from sao.environments.chat_format import PYTHON_TOOL, ChatFormat, ChatFormatError, Message
from sao.environments.harmony import TraceError
from sao.environments.python_math import INSTRUCTION, Limits, Problem, PythonMath
from sao.environments.released_tokenizer import released_tokenizer
from sao.environments.tool_calls import read_action, read_call
from sao.openrlhf.sft_flags import traces_file
from sao.runlog_files import RunError, write_atomic

MISTAKES = (
    ConfigError,
    DataError,
    ChatFormatError,
    EndpointError,
    StoreError,
    RunError,
    SandboxError,
    ServerError,
)


@dataclass
class Teaching:
    """What a scale's fine-tuning wants of its teacher; `endpoint` and what plays are there after `start`."""

    scale: Scale
    results: str
    settings: FineTuning = field(init=False)
    problems: list[Problem] = field(init=False)
    limits: Limits = field(init=False)
    spec: dict[str, Any] = field(init=False)
    shared: PythonMath | None = None  # of a teacher that is asked in token ids

    def __post_init__(self) -> None:
        """Check the scale and read the problems; ConfigError or DataError for a mistake."""
        task, sft = self.scale.tasks.reasoning, self.scale.sft
        if sft is None or not isinstance(task, MathTask):
            file = shown(file_of("scales", self.scale.name))
            raise ConfigError(f"{file}: sft: the scale fine-tunes no released model on mathematics")
        self.settings, self.limits = sft, Limits(task.max_tokens, task.max_turns)
        rows = [row for row in fetched_rows(sft.data, self.results) if row.answer.strip()]
        if not rows:
            raise DataError(
                f"{sft.data}: no row has an answer to compare with; choose another set for sft.data"
            )
        self.problems = [Problem(row.id, BENCHMARK, row.text, row.answer) for row in rows]
        self.spec = {
            "row": "teacher",
            "scale": self.scale.name,
            "seed": 0,
            "step": 0,
            "benchmark": sft.data,
            "policy": {"model": sft.teacher},
            "protocol": {
                "max_tokens": task.max_tokens,
                "max_turns": task.max_turns,
                "instruction": INSTRUCTION,
            },
            "data": {"set": sft.data, "rows_sha256": checksum(rows)},
            "samples": {problem.problem_id: sft.samples_per_problem for problem in self.problems},
        }

    @property
    def folder(self) -> Path:
        return Path(traces_folder(self.scale, self.results))

    def start(self, stack: ExitStack, options: argparse.Namespace) -> None:
        """Start tool, graders and, without an endpoint, the teacher's server; the stack ends them."""
        self.tool = stack.enter_context(PythonTool())
        self.grader = stack.enter_context(Grader())
        model, key = options.model or self.settings.teacher, os.environ.get(options.key_variable, "none")
        url = options.endpoint
        if url is None:
            server: Any = stack.enter_context(self._server(options.concurrency))
            url, model, key = server.url, server.model, server.key
        self.endpoint = Endpoint(url, model, key, options.timeout)

    def _server(self, concurrency: int) -> LocalServer | VLLMServer:
        teacher, cluster, job = self.settings.teacher, self.scale.cluster, self.scale.job
        assert cluster is not None and job is not None  # of a scale over OpenRLHF
        if self.scale.device is None:
            folder = Path(teacher)
            if not (folder / "config.json").exists():
                raise ServerError(
                    f"sft.teacher: {teacher}: on a CPU it is the folder of a model; or give --endpoint"
                )
            tokenizer = released_tokenizer(self.scale.model.model_copy(update={"path": teacher}))
            chat = ChatFormat(tokenizer, [PYTHON_TOOL])
            self.shared = PythonMath(chat, self.limits, self.grader, self.tool)
            return LocalServer(folder, self.scale.sampler.slots, self.limits.max_tokens)
        engine = cluster.engines.tensor_parallel
        copies = ["--data-parallel-size", str(max(job.gpus_per_node // engine, 1))]
        more = [*copies, *(self.settings.teacher_server or ())]
        log = self.folder / "server.log"
        return VLLMServer(
            teacher, log, self.limits.max_tokens, concurrency, engine, cluster.engines.memory_share, more
        )

    async def play(self, problem: Problem, run: int, executor: ThreadPoolExecutor) -> Attempt:
        """Play one attempt at a problem."""
        if self.shared is None:
            attempt = ChatAttempt(problem, self.endpoint, self.limits, self.grader, self.tool)
            return await attempt.play(executor)
        seed = seeds("traces", problem.problem_id, run)
        return await play_tokens(self.shared, problem, self.endpoint, seed, executor)


def conversation_of(sample: dict[str, Any]) -> list[Message]:
    """The question and the turns of a sample as chat templates take them.

    Raises TraceError for an attempt that did not end with an answer, or with a malformed call.
    """
    if sample["finish_reason"] != "stop":
        raise TraceError("ended at the limit of tokens or turns")
    messages: list[Message] = [{"role": "user", "content": f"{sample['problem']}\n\n{INSTRUCTION}"}]
    for said in sample["messages"]:
        if said["role"] == "tool":
            messages.append({"role": "tool", "name": "python", "content": said["content"]})
        else:
            messages.append(_turn(said))
    return messages


def _turn(said: Message) -> Message:
    """An assistant's message with its calls apart, whether the endpoint or the text holds them."""
    content, given = said["content"], said.get("tool_calls") or []
    if given:
        functions = [call.get("function") or {} for call in given]
        calls = [read_call(one.get("name"), one.get("arguments")) for one in functions]
    else:
        calls = list(read_action(content, opens_thinking=False, ended=True, may_call=True).calls)
        content = content.partition("<tool_call>")[0].strip() if calls else content
    if any(call.error for call in calls):
        raise TraceError("has a malformed call")
    turn: Message = {
        "role": "assistant",
        "content": content,
        "reasoning_content": said["reasoning_content"],
    }
    if calls:
        turn["tool_calls"] = [
            {"type": "function", "function": {"name": "python", "arguments": {"code": call.code}}}
            for call in calls
        ]
    return turn


def in_order(problems: Sequence[Problem], samples: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The samples in the order of the problems and runs, whichever was finished first."""
    place = {problem.problem_id: number for number, problem in enumerate(problems)}
    return sorted(samples, key=lambda sample: (place[sample["problem_id"]], sample["run_index"]))


def kept(samples: Iterable[dict[str, Any]], selection: Selection) -> Iterator[dict[str, Any]]:
    """Lines of the file of traces."""
    for sample in samples:
        try:
            messages = conversation_of(sample)
        except TraceError as error:
            selection.left_out[str(error)] += 1
            continue
        if (line := selection.line(messages, sample["verdict"])) is not None:
            yield line


def sample(options: argparse.Namespace, command: str) -> int:
    """Has the teacher solve what is not solved yet; returns 0."""
    teaching = Teaching(load_scale(options.scale), options.results)
    with ExitStack() as stack:
        store = stack.enter_context(SampleStore(teaching.folder, teaching.spec))
        if store.sealed:
            print(f"{teaching.folder}: is finished")
            return 0
        stack.enter_context(store.attempt(command))
        teaching.start(stack, options)
        needed = teaching.limits.max_tokens if teaching.shared else None
        evaluate(store, teaching.problems, teaching.play, teaching.endpoint, options.concurrency, needed)
    return 0


def keep(options: argparse.Namespace) -> int:
    """Writes the file of traces from a finished sampling; returns 0, or 2 where there is none to be kept."""
    scale = load_scale(options.scale)
    teaching = Teaching(scale, options.results)
    if not (teaching.folder / "seal.json").exists():
        raise StoreError(
            f"{teaching.folder}: is missing or unfinished; make it with: python -m evaluation.math.traces "
            f"sample --scale {scale.name} --results {options.results}"
        )
    read_evaluation(teaching.folder)  # refuses files that were changed
    chat = ChatFormat(released_tokenizer(scale.model), [PYTHON_TOOL])
    left_out: Counter[str] = Counter()
    selection = Selection(chat, scale.sampler.max_tokens, teaching.limits.max_turns, left_out)
    out = traces_file(teaching.settings, options.results)
    samples = in_order(teaching.problems, read_samples(teaching.folder))
    lines = [json.dumps(line) + "\n" for line in kept(samples, selection)]
    print(f"{out}: {len(lines)} traces kept, {sum(left_out.values())} left out")
    for reason, count in left_out.most_common():
        print(f"  {count:6d}  {reason}")
    if not lines:
        print(f"{out}: is not written: no trace can be trained on", file=sys.stderr)
        return 2
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, "".join(lines).encode())
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.math.traces", description=(__doc__ or "").splitlines()[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("sample", "keep"):
        command = commands.add_parser(name)
        command.add_argument("--scale", required=True)
        command.add_argument("--results", default="results")
    sampling, count = commands.choices["sample"], at_least(1)
    sampling.add_argument("--endpoint", help="base URL that serves the teacher; by default it is served here")
    sampling.add_argument("--model", help="its name there; sft.teacher by default")
    sampling.add_argument("--key-variable", default="OPENAI_API_KEY", help="variable of the API key")
    sampling.add_argument("--timeout", type=count, default=TIMEOUT_SECONDS, help="seconds for one request")
    sampling.add_argument("--concurrency", type=count, default=64, help="attempts under way at once")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns 0, 1 where attempts are missing, 2 for a user's mistake, 130 when interrupted."""
    options = parse(arguments)
    words = shlex.join(sys.argv[1:] if arguments is None else arguments)
    try:
        if options.command == "keep":
            return keep(options)
        return sample(options, f"python -m evaluation.math.traces {words}")
    except (SamplesMissing, EndpointFailure) as error:
        print(error, file=sys.stderr)
        return 1
    except MISTAKES as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
