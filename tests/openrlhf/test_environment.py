"""The adapter from the suite's environments to OpenRLHF's agents.

A stand-in replaces the engine: it samples what the test scripts, with log-prob -0.5 and the version given.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("vllm")
pytest.importorskip("openrlhf")

from local_engine import ToyEnvironment, run_config
from math_standins import PlainGrader, PlainTool
from openrlhf.utils.agent import AgentExecutorBase, AgentInstanceBase

from evaluation.judging import JudgeError
from evaluation.math.arithmetic import ArithmeticEnvironment
from evaluation.math.synthetic import KINDS
from sao.config import load_scale
from sao.environments.base import EnvironmentFailure, EnvironmentUnusable, Instance, StepResult
from sao.environments.locks import COMMIT, QUERY, action
from sao.openrlhf.engine import Action, LogprobError, SamplingError, sampling_parameters
from sao.openrlhf.environment import AgentExecutor, Answer, Ask, EpisodeAgent, limited


class ScriptedEngine:
    """Samples the scripted actions, one token after another, until the environment calls them whole."""

    def __init__(self, *actions: Sequence[int], versions: Sequence[int] = (0,)) -> None:
        self.actions = [list(tokens) for tokens in actions]
        self.versions = list(versions)
        self.contexts: list[list[int]] = []
        self.limits: list[int] = []
        self.parameters: list[Any] = []

    async def sample_action(
        self, token_ids: Sequence[int], parameters: Any, key: str, complete: Callable[[list[int]], bool]
    ) -> Action:
        turn = len(self.contexts)
        self.contexts.append(list(token_ids))
        self.limits.append(parameters.max_tokens)
        self.parameters.append(parameters)
        made = Action()
        for token in self.actions[turn][: parameters.max_tokens]:
            made.token_ids.append(token)
            made.logprobs.append(-0.5)
            made.versions.append(self.versions[min(turn, len(self.versions) - 1)])
            if complete(made.token_ids):
                break
        return made


def play(
    executor: AgentExecutor,
    engine: Any,
    instance: Instance,
    max_length: int = 400,
    parameters: Any = None,
    temperature: float = 1.0,
) -> Answer:
    ask = Ask(instance, index=7, group_id=3, progress=0.0, key="one")
    return asyncio.run(
        executor.execute(ask, temperature, parameters or sampling_parameters(), max_length, None, engine)
    )


def executor_of(environment: Any) -> AgentExecutor:
    made = AgentExecutor()
    made.environment = environment
    return made


def toy(**given: Any) -> tuple[AgentExecutor, Instance]:
    environment = ToyEnvironment(episode=lambda place, attempt: given)
    return executor_of(environment), environment.instances("train")[1]


def locks() -> tuple[AgentExecutor, Instance, tuple[int, int, int]]:
    """A task of one lock with its lowest and highest code and the code itself."""
    executor = AgentExecutor()
    executor.configure(run_config("sao"))
    [instance] = [
        instance
        for instance in executor.environment.instances("train")
        if len(instance.payload[0]) == 1 and instance.payload[0][0][2] > instance.payload[0][0][0]
    ][:1]
    return executor, instance, instance.payload[0][0]


def test_it_is_an_openrlhf_agent() -> None:
    assert issubclass(AgentExecutor, AgentExecutorBase) and issubclass(EpisodeAgent, AgentInstanceBase)


def test_openrlhf_loads_the_executor_from_its_file() -> None:
    from openrlhf.trainer.ray.vllm_engine import _load_agent_executor

    from sao.openrlhf import agent

    assert type(_load_agent_executor(agent.__file__)) is AgentExecutor


def test_a_locks_episode_token_by_token() -> None:
    """Ask about the lowest code, be told that the code lies above, commit the code: reward 1."""
    executor, instance, (low, _, code) = locks()
    first, second = action(QUERY, low), action(COMMIT, code)
    engine = ScriptedEngine(first, second, versions=[4, 5])
    made = play(executor, engine, instance).trajectory
    prompt = len(engine.contexts[0])
    observation = engine.contexts[1][prompt + 3 :]
    assert made.token_ids.tolist() == engine.contexts[0] + first + observation + second
    assert made.action_spans.tolist() == [
        [prompt, prompt + 3],
        [len(made.token_ids) - 3, len(made.token_ids)],
    ]
    assert made.policy_versions[made.action_mask].tolist() == [4] * 3 + [5] * 3
    assert made.rollout_logprobs[made.action_mask].tolist() == [-0.5] * 6
    assert (made.reward, made.status, made.turns) == (1.0, "completed", 2)
    assert (made.prompt_id, made.label) == (instance.prompt_id, instance.label)
    assert (made.index, made.group_id) == (7, 3)


def test_an_action_ends_where_the_environment_says() -> None:
    """The engine would go on; the three tokens of a lock's action are all that is taken, and asked for."""
    executor, instance, (low, _, _) = locks()
    engine = ScriptedEngine([*action(COMMIT, low), 9, 9, 9])
    made = play(executor, engine, instance).trajectory
    assert made.num_action_tokens == 3 and made.reward == 0.0 and engine.limits == [3]


@pytest.mark.parametrize(
    ("max_length", "spans", "status"),
    [
        (13, [[2, 5], [7, 10]], "completed"),  # prompt 2, action 3, observation 2, action 3
        (10, [[2, 5], [7, 10]], "completed"),  # the last action completes on the last token
        (9, [[2, 5], [7, 9]], "truncated"),  # cut in the second action
        (7, [[2, 5]], "truncated"),  # the observation would fill it
        (4, [[2, 4]], "truncated"),
    ],
)
def test_the_token_limit_truncates(max_length: int, spans: list[list[int]], status: str) -> None:
    """Cases 89 and 103: the budget is the whole trajectory's; its end is told from the episode's."""
    executor, instance = toy(actions=2, action_tokens=3, reward=1.0)
    made = play(executor, ScriptedEngine([5] * 9, [6] * 9), instance, max_length).trajectory
    assert made.action_spans.tolist() == spans and made.status == status
    assert made.reward == (1.0 if status == "completed" else 0.0)
    assert len(made.token_ids) <= max_length


def test_the_prompt_id_of_the_style_task_and_its_progress_reach_the_episode() -> None:
    """The same instance offers other styles late in training."""
    executor = AgentExecutor()
    executor.configure(run_config("sao_online"))
    environment = executor.environment
    instance = environment.instances("train")[0]
    late = environment.start(instance, 1.0).prompt_ids
    engine = ScriptedEngine([environment.lexicon.end])
    ask = Ask(instance, 0, -1, 1.0, "late")
    answer = asyncio.run(executor.execute(ask, 1.0, sampling_parameters(), 400, None, engine))
    assert engine.contexts[0] == late != environment.start(instance, 0.0).prompt_ids
    assert answer.details == {"style": "malformed"}


class OneFault(ToyEnvironment):
    """Raises or hangs where it is told to."""

    def __init__(self, where: str, fault: Callable[[], Any]) -> None:
        super().__init__()
        self.where, self.fault = where, fault

    def start(self, instance: Instance, progress: float) -> Any:
        if self.where == "start":
            self.fault()
        episode = super().start(instance, progress)
        if self.where == "step":
            episode.step = lambda action_ids: self.fault()
        return episode


def _raise(error: Exception) -> Callable[[], Any]:
    def fault() -> None:
        raise error

    return fault


@pytest.mark.parametrize("where", ["start", "step"])
@pytest.mark.parametrize(
    ("error", "reason"),
    [(EnvironmentFailure("the tool is gone"), "the tool is gone"), (KeyError("x"), "KeyError: 'x'")],
)
def test_an_environment_that_raises_leaves_an_invalid_trajectory(
    where: str, error: Exception, reason: str
) -> None:
    environment = OneFault(where, _raise(error))
    answer = play(executor_of(environment), ScriptedEngine([5] * 3), environment.instances("train")[0])
    assert answer.trajectory is None and answer.failure == reason


def test_an_environment_that_cannot_be_used_stops_the_run() -> None:
    """A judge that refuses the key refuses it every time: no trajectory can be replaced."""
    environment = OneFault("step", _raise(JudgeError("judge j: refuses the key")))
    with pytest.raises(EnvironmentUnusable, match="refuses the key"):
        play(executor_of(environment), ScriptedEngine([5] * 3), environment.instances("train")[0])


@pytest.mark.parametrize("where", ["start", "step"])
def test_an_environment_that_hangs_is_cut(where: str) -> None:
    released = threading.Event()
    environment = OneFault(where, released.wait)
    executor = executor_of(environment)
    executor.seconds = 0.2
    began = time.monotonic()
    answer = play(executor, ScriptedEngine([5] * 3), environment.instances("train")[0])
    released.set()
    assert time.monotonic() - began < 5
    assert answer.trajectory is None and answer.failure == "no answer within 0.2 s"


def test_a_slow_environment_does_not_hold_up_the_others() -> None:
    """Twenty steps of 0.2 s each, side by side."""

    async def together() -> None:
        await asyncio.gather(*(limited(time.sleep, 0.2, seconds=10) for _ in range(20)))

    began = time.monotonic()
    asyncio.run(together())
    assert time.monotonic() - began < 2


def test_a_missing_logprob_is_no_environment_error() -> None:
    """It ends the run instead of being sampled again."""

    class Silent(ScriptedEngine):
        async def sample_action(self, *arguments: Any) -> Action:
            made = Action()
            made.append(5, None, 0)
            return made

    executor, instance = toy()
    with pytest.raises(LogprobError, match="sampled token 5"):
        play(executor, Silent(), instance)


@pytest.mark.parametrize(("setting", "value"), [("temperature", 0.5), ("logprobs", None)])
def test_other_sampling_settings_are_refused_at_the_start(setting: str, value: Any) -> None:
    parameters = sampling_parameters()
    setattr(parameters, setting, value)
    executor, instance = toy()
    engine = ScriptedEngine([5] * 3)
    with pytest.raises(SamplingError, match=f"setting {setting} is {value}"):
        play(executor, engine, instance, parameters=parameters)
    assert engine.contexts == []


class OtherSettings(StepResult):
    """What an agent of OpenRLHF may answer: new sampling settings for the next turn."""

    sampling_params = sampling_parameters(temperature=0.5)


def test_an_environment_may_not_change_the_sampling_settings() -> None:
    """Case 102."""
    environment = OneFault("step", lambda: OtherSettings([1, 2], False, 0.0))
    with pytest.raises(SamplingError, match="in mid-trajectory"):
        play(executor_of(environment), ScriptedEngine([5] * 3), environment.instances("train")[0])


def test_the_settings_of_every_turn_are_those_of_the_first() -> None:
    executor, instance = toy(actions=2)
    parameters = sampling_parameters()
    engine = ScriptedEngine([5] * 3, [6] * 3)
    play(executor, engine, instance, parameters=parameters)
    for turn in engine.parameters:
        assert (turn.temperature, turn.top_p, turn.top_k, turn.logprobs) == (1.0, 1.0, 0, 0)
    assert parameters.max_tokens == sampling_parameters().max_tokens  # the caller's are left alone


def test_an_evaluation_may_have_its_own_temperature() -> None:
    executor, instance = toy()
    answer = play(
        executor,
        ScriptedEngine([5] * 3, [5] * 3),
        instance,
        parameters=sampling_parameters(0.6),
        temperature=0.6,
    )
    assert answer.trajectory is not None


def test_a_python_math_episode_with_a_tool_call() -> None:
    """The scripted actions call the tool and answer; the tool's output is an observation between them."""
    task: Any = load_scale("smoke_math").task("arithmetic")
    environment = ArithmeticEnvironment(task, PlainGrader(), PlainTool())
    instance = environment.instances("train")[0]
    kind = next(kind for name, kind in KINDS.items() if name == instance.label)
    code = kind.code.format(*instance.payload[1])
    call = f"<tool_call>{json.dumps({'name': 'python', 'arguments': {'code': code}})}</tool_call>"
    answer = f"\\boxed{{{kind.answer(instance.payload[1])}}}"
    tokenizer = environment.tokenizer
    stop = next(iter(environment.chat.stop_ids))
    thought = "<think>\n\n</think>\n\n"
    actions = [[*tokenizer.encode(thought + text), stop] for text in (call, answer)]
    engine = ScriptedEngine(*([*tokens, 9] for tokens in actions))  # a token after the end is not taken
    result = play(executor_of(environment), engine, instance, max_length=task.max_tokens)
    made = result.trajectory
    assert result.details["tool_calls"] == 1 and result.details["tool_errors"] == 0
    assert [made.token_ids[start:end].tolist() for start, end in made.action_spans] == actions
    (_, first_end), (second_start, _) = made.action_spans
    assert kind.printed(instance.payload[1]) in tokenizer.decode(made.token_ids[first_end:second_start])
    assert (made.reward, made.status) == (1.0, "completed")
