"""The environments of `sao.environments` as OpenRLHF's agents: token ids in, token ids out.

OpenRLHF loads this file by its path (`--train.agent_func_path`) and makes an `AgentExecutor` in every engine.
An episode runs beside the engine's event loop and under a time limit. What goes wrong in it says nothing
about the policy: the trajectory is invalid. What goes wrong in sampling stops the run, and so does an
environment that says that it cannot be used.

Agents of software engineering ask for the model themselves: an attempt is run as a whole, and the recorder
between agent and engine makes the trajectory.
"""

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import sao.openrlhf.ready  # noqa: F401

# isort: split
import numpy as np
from openrlhf.utils.agent import AgentExecutorBase, AgentInstanceBase

from sao.config import RunConfig
from sao.environments import make_environment
from sao.environments.base import (
    Environment,
    EnvironmentFailure,
    EnvironmentUnusable,
    Episode,
    Instance,
    StepResult,
)
from sao.environments.swe import SWEEnvironment
from sao.openrlhf.engine import Action, SamplingError, check_sampling
from sao.trajectory import Status, Trajectory
from sao.wall_clock_stream import milliseconds

TIME_LIMIT_SECONDS = 600.0  # for the start or one step of an episode
SHORT_ACTION = 64  # tokens

Result = TypeVar("Result")


@dataclass(frozen=True)
class Ask:
    """What the stream asks an engine for; `key` belongs to one trajectory of the run alone."""

    instance: Instance
    index: int
    group_id: int
    progress: float
    key: str


@dataclass(frozen=True)
class Answer:
    """A trajectory, or the reason why there is none; `sampling_ms` from the ask to the last token."""

    trajectory: Trajectory | None
    failure: str = ""
    sampling_ms: int = 0
    details: dict[str, str | int] = field(default_factory=dict)


async def limited(function: Callable[..., Result], *arguments: Any, seconds: float | None) -> Result:
    """The result of a blocking function run beside the event loop; EnvironmentFailure when it fails or hangs.

    EnvironmentUnusable passes. A thread that hangs is left behind and does not keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(method: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            method(value)

    def work() -> None:
        outcome: tuple[Callable[[Any], None], Any]
        try:
            outcome = (future.set_result, function(*arguments))
        except Exception as error:
            outcome = (future.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=work, daemon=True).start()
    try:
        return await asyncio.wait_for(future, seconds)
    except TimeoutError:
        raise EnvironmentFailure(f"no answer within {seconds:g} s") from None
    except (EnvironmentFailure, EnvironmentUnusable):
        raise
    except Exception as error:
        raise EnvironmentFailure(f"{type(error).__name__}: {error}") from error


class EpisodeAgent(AgentInstanceBase):
    """One episode behind OpenRLHF's agent interface."""

    def __init__(self, environment: Environment, seconds: float = TIME_LIMIT_SECONDS) -> None:
        self.environment, self.seconds = environment, seconds
        self.episode: Episode

    async def reset(self, states: dict[str, Any], **unused: Any) -> dict[str, Any]:
        """Starts the episode of `states["ask"]`; returns its prompt's token ids."""
        ask: Ask = states["ask"]
        self.episode = await limited(self.environment.start, ask.instance, ask.progress, seconds=self.seconds)
        return {"observation_ids": list(self.episode.prompt_ids)}

    async def step(self, states: dict[str, Any], **unused: Any) -> StepResult:
        """Acts with `states["action_ids"]`."""
        result = await limited(self.episode.step, states["action_ids"], seconds=self.seconds)
        if getattr(result, "sampling_params", None) is not None:
            raise SamplingError("the environment asked for other sampling settings in mid-trajectory")
        return result


class Record:
    """The token-aligned lists of a trajectory under way."""

    def __init__(self, prompt_ids: list[int]) -> None:
        self.token_ids = list(prompt_ids)
        self.spans: list[tuple[int, int]] = []
        self.logprobs: dict[int, float] = {}
        self.versions: dict[int, int] = {}

    def add_action(self, action: Action) -> None:
        """Append an action's tokens with their log-probabilities and versions."""
        start = len(self.token_ids)
        self.token_ids += action.token_ids
        positions = range(start, len(self.token_ids))
        self.spans.append((start, len(self.token_ids)))
        self.logprobs.update(zip(positions, action.logprobs, strict=True))
        self.versions.update(zip(positions, action.versions, strict=True))

    def trajectory(self, ask: Ask, status: str, reward: float) -> Trajectory:
        """The finished record, checked."""
        logprobs = np.full(len(self.token_ids), np.nan, dtype=np.float32)
        versions = np.full(len(self.token_ids), -1, dtype=np.int64)
        logprobs[list(self.logprobs)] = list(self.logprobs.values())
        versions[list(self.versions)] = list(self.versions.values())
        return Trajectory(
            token_ids=np.array(self.token_ids, dtype=np.int64),
            action_spans=np.array(self.spans, dtype=np.int64).reshape(-1, 2),
            rollout_logprobs=logprobs,
            policy_versions=versions,
            reward=reward,
            status=Status(status),
            prompt_id=ask.instance.prompt_id,
            group_id=ask.group_id,
            index=ask.index,
            label=ask.instance.label,
        )


class AgentExecutor(AgentExecutorBase):
    """Plays whole episodes against an engine."""

    def __init__(self) -> None:
        self.environment: Environment | None = None
        self.seconds = TIME_LIMIT_SECONDS

    def configure(self, run: RunConfig, results: str = "results") -> None:
        """Opens the environment of a run, whose data lies below `results`."""
        self.environment = make_environment(run.task, run.model, results)
        if isinstance(self.environment, SWEEnvironment):
            engines = run.cluster.engines.number if run.cluster else 1
            self.environment.open(math.ceil(run.sampler.slots / engines), run.sampler.max_tokens)

    async def execute(
        self,
        prompt: Ask,
        label: Any,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        llm_engine: Any,
        images: Any = None,
    ) -> Answer:
        """One episode of at most `max_length` tokens; `label` is the sampling temperature, 1 in training.

        Raises SamplingError for settings other than the full softmax's, and what the engine raises.
        """
        check_sampling(sampling_params, temperature=label)
        assert self.environment is not None, "configure comes first"
        if isinstance(self.environment, SWEEnvironment):
            return await run_attempt(self.environment, prompt, sampling_params, llm_engine)
        started = milliseconds()
        agent = EpisodeAgent(self.environment, self.seconds)
        try:
            reset = await agent.reset({"ask": prompt})
            record = Record(reset["observation_ids"])
            status, reward, sampled_at = await _play(
                agent, record, prompt, sampling_params, max_length, llm_engine
            )
        except EnvironmentFailure as failure:
            return Answer(None, failure=str(failure) or type(failure).__name__)
        trajectory = record.trajectory(prompt, status, reward)
        return Answer(trajectory, "", sampled_at - started, agent.episode.details())


async def _play(
    agent: EpisodeAgent, record: Record, ask: Ask, parameters: Any, max_length: int, engine: Any
) -> tuple[str, float, int]:
    """Acts to the episode's end; returns its status, its reward, and when the last token was sampled."""
    complete = agent.episode.action_complete
    while True:
        turn = parameters.clone()
        turn.max_tokens = _longest_action(complete, max_length - len(record.token_ids))
        action = await engine.sample_action(record.token_ids, turn, ask.key, complete)
        sampled_at = milliseconds()
        record.add_action(action)
        if not complete(action.token_ids):
            return "truncated", 0.0, sampled_at
        result = await agent.step({"action_ids": action.token_ids})
        if result.done:
            return result.status, result.reward, sampled_at
        if len(record.token_ids) + len(result.observation_ids) >= max_length:
            return "truncated", 0.0, sampled_at
        record.token_ids += result.observation_ids


def _longest_action(complete: Callable[[list[int]], bool], budget: int) -> int:
    """Most tokens to ask for: the budget, or fewer where every short action has the same length.

    It asks about padding, which ends no action by what it says. An engine that is asked for more is stopped
    when the action is whole, at the cost of a token or two.
    """
    shortest = range(1, min(budget, SHORT_ACTION) + 1)
    return next((length for length in shortest if complete([0] * length)), max(budget, 1))


async def run_attempt(environment: SWEEnvironment, ask: Ask, parameters: Any, engine: Any) -> Answer:
    """One attempt whose agent asks for the model itself; the environment ends what takes too long.

    Raises what the engine raises, as soon as it does.
    """
    from evaluation.swe.engines import ActionEngine

    started = milliseconds()
    sampler = ActionEngine(engine, parameters, ask.key, asyncio.get_running_loop())
    identity = ask.instance, ask.index, ask.group_id
    rollout = asyncio.ensure_future(limited(environment.rollout, *identity, sampler, seconds=None))
    try:
        waiting: set[asyncio.Future[Any]] = {rollout, sampler.failure}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if sampler.failure.done():
            raise sampler.failure.result()
        trajectory = await rollout
    except EnvironmentFailure as failure:
        return Answer(None, failure=str(failure) or type(failure).__name__)
    finally:
        rollout.cancel()  # its thread goes on to its own end, and nobody waits for it
        sampler.close()
    return Answer(trajectory, "", sampler.sampled_at // 1_000_000 - started)
