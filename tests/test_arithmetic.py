"""Generated arithmetic: exact answers, code that prints them, splits, demonstrations, and training on it."""

import math
import pickle
import re
from typing import Any

import numpy as np
import pytest
from math_standins import PlainGrader, PlainTool

from evaluation.math import protocol
from evaluation.math.arithmetic import ArithmeticEnvironment
from evaluation.math.synthetic import (
    BENCHMARK_KINDS,
    KINDS,
    Demonstrator,
    Kind,
    load_synthetic,
    problem_of,
    right_answer,
)
from evaluation.math.targets import endpoint_options, evaluation_seals, policy_pattern, policy_seals
from sao import config
from sao.environments.base import Instance, split_of
from sao.local.decode import DecodeEngine
from sao.local.sampler import Sampler, sample_all
from sao.local.warm_start import initial_policy

SCALE = config.load_scale("smoke_math")
TASK: Any = SCALE.task("arithmetic")


@pytest.fixture(scope="module")
def environment() -> ArithmeticEnvironment:
    return ArithmeticEnvironment(TASK, PlainGrader(), PlainTool())


def run(code: str) -> str:
    result = PlainTool().open_session().run(code)
    assert result.status == "ok", result.output
    return result.output.strip("\n")


BY_HAND = [
    ("remainder", (123, 456), "88", None),  # 123 * 456 = 56088
    ("common divisor", (84, 126), "42", None),
    ("product", (123, 456), "56088", None),
    ("sum", (123, 456, 789, 1000), "2368", None),
    ("fraction", (1, 6, 1, 10), "4/15", "\\frac{4}{15}"),
    ("fraction", (1, 2, 3, 2), "2", "2"),
    ("roots", (84, 1139), "17, 67", None),
    ("interval", (10, 21), "[3, 7]", None),
    ("prime factors", (1274,), "2, 7, 13", "\\{2, 7, 13\\}"),
]


@pytest.mark.parametrize(("name", "numbers", "printed", "reference"), BY_HAND)
def test_answers_by_hand(name: str, numbers: tuple[int, ...], printed: str, reference: str | None) -> None:
    kind = KINDS[name]
    assert kind.printed(numbers) == printed
    assert kind.answer(numbers) == (reference or printed)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_code_prints_what_is_claimed(kind: Kind) -> None:
    """The arithmetic here and the code that the model is shown agree, so demonstrations never lie."""
    rng = np.random.default_rng(3)
    for _ in range(25):
        _, numbers = kind.instance(rng, (2, 5)).payload
        assert run(kind.code.format(*numbers)) == kind.printed(numbers)


def test_benchmarks_have_the_protocols_sizes_and_are_held_out() -> None:
    for name, benchmark in protocol.BENCHMARKS.items():
        if benchmark.published is None:  # another version of one of the four
            continue
        problems = load_synthetic(name)
        assert len({problem.problem_id for problem in problems}) == len(problems) == benchmark.problems
        assert {problem.label for problem in problems} == set(BENCHMARK_KINDS[name])
        assert {problem.benchmark for problem in problems} == {name}
        assert load_synthetic(name) == problems
        assert all(split_of(Instance(problem.problem_id, None, ())) == "held_out" for problem in problems)


def test_answers_have_the_benchmarks_formats() -> None:
    assert all(0 <= int(problem.answer) <= 999 for problem in load_synthetic("aime_2025"))
    assert all(problem.answer.isdigit() for problem in load_synthetic("beyond_aime"))
    fractions = [problem.answer for problem in load_synthetic("hmmt_nov_2025") if problem.label == "fraction"]
    assert any("\\frac" in answer for answer in fractions)
    assert {problem.answer[0] for problem in load_synthetic("imo_answerbench")} >= {"[", "\\"}


def test_pools_are_full_and_disjoint(environment: ArithmeticEnvironment) -> None:
    train, held_out = (environment.instances(split) for split in ("train", "held_out"))
    assert (len(train), len(held_out)) == (TASK.pool_instances, TASK.held_out_instances)
    assert not {one.prompt_id for one in train} & {one.prompt_id for one in held_out}
    assert all(split_of(one) == "train" for one in train)
    assert {one.label for one in train} <= set(KINDS)
    assert environment.vocabulary[0] == "<|pad|>" and len(environment.vocabulary) <= TASK.vocabulary_size


def test_demonstrations_use_the_tool_and_err_as_often_as_told(environment: ArithmeticEnvironment) -> None:
    rng = np.random.default_rng(0)
    drawn = [environment.demonstration(rng) for _ in range(400)]
    rewards = [reward for _, _, reward in drawn]
    texts = [environment.tokenizer.decode(token_ids) for token_ids, _, _ in drawn]
    guessed = [("<tool_call>" not in text) for text in texts]
    expected = TASK.demonstrator_guess_odds
    assert abs(np.mean(guessed) - expected) < 5 * math.sqrt(expected * (1 - expected) / 400)
    assert not any(reward for reward, guess in zip(rewards, guessed, strict=True) if guess)
    slips = [1 - reward for reward, guess in zip(rewards, guessed, strict=True) if not guess]
    assert abs(np.mean(slips) - TASK.demonstrator_slip_odds) < 0.07
    assert max(len(token_ids) for token_ids, _, _ in drawn) < TASK.max_tokens
    for token_ids, mask, _ in drawn[:50]:
        assert len(token_ids) == len(mask) and mask[-1] and not mask[0]


def test_a_demonstration_played_again_earns_its_reward() -> None:
    """Its actions, fed to a real episode, meet the very observations that it holds."""
    grader = PlainGrader()
    environment = ArithmeticEnvironment(TASK, grader, PlainTool())
    rng = np.random.default_rng(1)
    demonstrator = Demonstrator(0.0, 0.0, (2, 4))
    for name in ("product", "common divisor", "roots", "interval"):
        instance = KINDS[name].instance(rng, (2, 4))
        messages = demonstrator.solution(instance, rng)
        episode = environment.start(instance, 0.0)
        result = episode.step(environment.chat.action_ids(messages[0]))
        assert result.observation_ids == environment.chat.observation_ids([messages[1]["content"]])
        assert episode.step(environment.chat.action_ids(messages[2])).reward == 1.0
        assert messages[2]["content"] == right_answer(instance)


def test_an_episode_in_a_checkpoint_finds_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool's processes stay out of the pickle: the task block leads back to them."""
    from evaluation.math import arithmetic

    environment = ArithmeticEnvironment(TASK, PlainGrader(), PlainTool())
    monkeypatch.setattr(arithmetic, "arithmetic_environment", _environment)
    _ENVIRONMENTS[TASK] = environment
    episode = environment.start(environment.instances("train")[0], 0.0)
    again = pickle.loads(pickle.dumps(episode))
    assert again._shared is environment and again.prompt_ids == episode.prompt_ids


_ENVIRONMENTS: dict[Any, ArithmeticEnvironment] = {}


def _environment(task: Any) -> ArithmeticEnvironment:
    return _ENVIRONMENTS[task]


def test_the_local_engine_samples_it(environment: ArithmeticEnvironment) -> None:
    """A random policy never ends a turn in the format: every rollout fills its tokens and is flagged."""
    policy = initial_policy(SCALE, environment, 0).eval()
    engine = DecodeEngine(policy, 4, TASK.max_tokens, "none")
    rollouts = sample_all(Sampler(engine, 0), environment, environment.instances("train")[:4], 0.0)
    for rollout in rollouts:
        trajectory = rollout.to_trajectory()
        assert trajectory.status in ("truncated", "completed") and trajectory.reward == 0.0
        assert len(trajectory.token_ids) <= TASK.max_tokens
        if trajectory.status == "truncated":
            assert len(trajectory.token_ids) == TASK.max_tokens or trajectory.turns == TASK.max_turns


def test_the_math_target_names_every_evaluation_of_the_scale() -> None:
    seals = evaluation_seals(SCALE, "results/smoke_math", ["sao"], [0])
    assert seals["sao"] == ("results/smoke_math/evaluations/sao/seed0/step3/aime_2025/seal.json",)
    assert list(seals) == ["base_python", "base_no_python", "sft_python", "sft_no_python", "sao"]
    larger = evaluation_seals(config.load_scale("cpu_math"), "r", ["sao", "vapo"], [0, 1])
    assert [len(there) for there in larger.values()] == [4] * 4 + [8] * 2
    assert evaluation_seals(config.load_scale("cpu"), "r", ["sao"], [0]) == {}
    assert policy_seals(SCALE, "r", "sft_no_python", 0) == ["r/prepare/arithmetic/warm_start/seal.json"]
    assert policy_seals(SCALE, "r", "sao", 2) == ["r/runs/sao/seed2/seal.json"]


def test_the_workflow_evaluates_at_an_endpoint() -> None:
    rows, switches = ["sao", "vapo"], {"scale": "cpu_math", "endpoint": "http://h:1/v1", "model": "a b"}
    assert endpoint_options({"scale": "cpu_math"}, "sao", rows) == ""
    served = "--endpoint http://h:1/v1 --model 'a b'"
    assert endpoint_options(switches, "sao", rows) == served
    assert endpoint_options(switches, "base_no_python", rows) == served
    assert endpoint_options(switches, "glm_4_7", rows) == f"{served} --chat"
    assert re.fullmatch(policy_pattern(rows, served=True), "glm_4_7")
    assert not re.fullmatch(policy_pattern(rows, served=True), "zai/glm-4.7")
    assert not re.fullmatch(policy_pattern(rows, served=False), "glm_4_7")
    assert re.fullmatch(policy_pattern(rows, served=False), "sft_no_python")


def test_a_problem_by_its_numbers() -> None:
    problem = problem_of(KINDS["product"].of((12, 34)))
    assert problem.text == "What is 12 * 34?" and problem.answer == "408"
