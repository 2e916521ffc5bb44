"""Command that evaluates a checkpoint, or any OpenAI-compatible endpoint, on a mathematics benchmark.

    python -m evaluation.math.runner --row sao --scale cpu_math --seed 0 --step 120 --benchmark aime_2025
    python -m evaluation.math.runner --row sft_python --scale smoke_math --benchmark aime_2025
    python -m evaluation.math.runner --row sao --scale cpu_math --seed 0 --step 120 --benchmark aime_2025 \\
        --endpoint http://node7:8000/v1 --model sao
    python -m evaluation.math.runner --row glm_4_7 --scale paper_math --benchmark aime_2025 --chat \\
        --endpoint https://api.example.com/v1 --model glm-4.7 --key-variable EXAMPLE_KEY

Every sample is kept as soon as it is there; a stopped evaluation goes on where it was when the same command
is given again. Exit codes: 0 sealed, 1 samples are missing, 2 a user's mistake, 130 interrupted.
"""

import asyncio
import shlex
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from evaluation.endpoint import Endpoint, EndpointError, EndpointFailure
from evaluation.math.conversation import Attempt
from evaluation.math.store import Key, SamplesMissing, SampleStore, StoreError
from sao.environments.base import EnvironmentFailure
from sao.environments.python_math import Problem
from sao.runlog_files import RunError

ATTEMPTS = 3  # at one sample, each with the endpoint's own retries
PAUSE_SECONDS = 2.0  # before the second attempt; twice as long before the third
FAILURES_IN_A_ROW = 32  # samples that all attempts failed, after which the endpoint counts as broken
REPORT_SECONDS = 10.0

Play = Callable[[Problem, int, ThreadPoolExecutor], Awaitable[Attempt]]
"""Plays one run of a problem."""


def sample_record(problem: Problem, run: int, step: int, attempt: Attempt, seconds: float) -> dict[str, Any]:
    """The line of samples.jsonl."""
    outcome, tool = attempt.outcome, attempt.interpreter
    logprobs = attempt.logprobs
    return {
        "step": step,
        "benchmark": problem.benchmark,
        "problem_id": problem.problem_id,
        "run_index": run,
        "label": problem.label,
        **outcome.grade.fields(),
        "finish_reason": outcome.finish_reason,
        "status": outcome.status,
        "turns": attempt.turns,
        "prompt_tokens": attempt.prompt_tokens,
        "action_tokens": attempt.action_tokens,
        "total_tokens": attempt.total_tokens,
        "tool_calls": tool.calls,
        "tool_errors": tool.errors,
        "malformed_calls": tool.malformed,
        "mean_logprob": round(sum(logprobs) / len(logprobs), 6) if logprobs else None,
        "seconds": round(seconds, 3),
        "problem": problem.text,
        "gold": problem.answer,
        "response_text": outcome.response,
        "messages": attempt.messages,
    }


class Progress:
    """Prints how far an evaluation is, now and then, with the time left."""

    def __init__(self, name: str, done: int, due: int) -> None:
        self.name, self.first, self.due = name, done, due
        self.failed = 0
        self.started = self.printed = time.monotonic()

    def __call__(self, done: int, last: bool = False) -> None:
        """Report `done` samples; prints every `REPORT_SECONDS`, and at the end."""
        now = time.monotonic()
        if not last and now - self.printed < REPORT_SECONDS:
            return
        self.printed = now
        line = f"{self.name}  {done}/{self.due} samples"
        if new := done - self.first:
            rate = new / (now - self.started)
            left = (self.due - done) / rate
            line += f"  {rate:.2f} samples/s  {left // 60:.0f}:{left % 60:02.0f} left"
        print(line + (f"  {self.failed} failures" if self.failed else ""), flush=True)


class Runner:
    """Plays what a store lacks, `concurrency` samples at a time."""

    def __init__(
        self, store: SampleStore, problems: list[Problem], play: Play, step: int, concurrency: int
    ) -> None:
        self.store, self.play, self.step, self.concurrency = store, play, step, concurrency
        self.problems = {problem.problem_id: problem for problem in problems}
        name = f"{store.spec['row']} seed {store.spec['seed']} step {step} {store.spec['benchmark']}"
        self.progress = Progress(name, len(store.done), len(store.due))
        self.failures_in_a_row = 0

    async def run(self) -> None:
        """Play all missing samples.

        EndpointError, and EndpointFailure where nothing works any more, stop at once and keep what is there.
        """
        waiting = iter(self.store.missing)
        with ThreadPoolExecutor(self.concurrency, "attempt") as executor:
            workers = [asyncio.create_task(self._work(waiting, executor)) for _ in range(self.concurrency)]
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
                self.progress(len(self.store.done), last=True)

    async def _work(self, waiting: Any, executor: ThreadPoolExecutor) -> None:
        for key in waiting:
            await self._sample(key, executor)

    async def _sample(self, key: Key, executor: ThreadPoolExecutor) -> None:
        problem = self.problems[key[0]]
        for attempt in range(1, ATTEMPTS + 1):
            started = time.monotonic()
            try:
                played = await self.play(problem, key[1], executor)
            except (EndpointFailure, EnvironmentFailure) as error:
                self.store.append_error(key, attempt, str(error))
                self.progress.failed += 1
                if attempt < ATTEMPTS:
                    await asyncio.sleep(PAUSE_SECONDS * 2 ** (attempt - 1))
                    continue
                self._give_up(error)
            else:
                seconds = time.monotonic() - started
                self.store.append(sample_record(problem, key[1], self.step, played, seconds))
                self.failures_in_a_row = 0
                self.progress(len(self.store.done))
                return

    def _give_up(self, error: Exception) -> None:
        self.failures_in_a_row += 1
        if self.failures_in_a_row >= FAILURES_IN_A_ROW:
            raise EndpointFailure(
                f"{FAILURES_IN_A_ROW} samples in a row failed, the last with: {error}; "
                "the same command goes on"
            )


def evaluate(
    store: SampleStore,
    problems: list[Problem],
    play: Play,
    endpoint: Endpoint,
    concurrency: int,
    needed_tokens: int | None,
) -> None:
    """Play what is missing and seal; EndpointError or StoreError where that cannot be done."""

    async def run() -> None:
        async with endpoint:
            await endpoint.check(needed_tokens)
            await Runner(store, problems, play, store.spec["step"], concurrency).run()

    if store.missing:
        asyncio.run(run())
    store.seal()


def main(arguments: list[str] | None = None) -> int:
    """Command line; see the module's text for exit codes."""
    from evaluation.math.plan import Plan, PlanError, parse

    options = parse(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    try:
        with ExitStack() as stack:
            plan = Plan.of(options)
            store = stack.enter_context(SampleStore(plan.folder, plan.spec))
            if store.sealed:
                print(f"{plan.folder}: is finished")
                return 0
            stack.enter_context(store.attempt(f"python -m evaluation.math.runner {shlex.join(words)}"))
            plan.start(stack)
            evaluate(store, plan.problems, plan.play, plan.endpoint, options.concurrency, plan.needed_tokens)
    except (SamplesMissing, EndpointFailure) as error:
        print(error, file=sys.stderr)
        return 1
    except (PlanError, EndpointError, StoreError, RunError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
