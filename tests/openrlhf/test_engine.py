"""A real vLLM engine on a CPU: log-probs, versions, KV cache, weight sync and fingerprints.

All tests share one engine, which takes about 20 s to start, and leave it with the weights of `MODELS[0]`, but
for the last one, which kills it.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm")
pytest.importorskip("openrlhf")

import torch
from local_engine import ToyEnvironment
from vllm_engine import BLOCK, Engine, tiny_model

from sao.openrlhf import weights
from sao.openrlhf.engine import Action, EngineDied, LogprobError, SamplingError, check_sampling
from sao.openrlhf.engine import sampling_parameters as full_softmax
from sao.trajectory import Trajectory

# float32 on both sides; vLLM's attention and experts sum in another order than transformers'.
TOLERANCE = 2e-4
MODELS = [tiny_model(seed) for seed in range(2)]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("model")
    MODELS[0].save_pretrained(folder)
    made = Engine(folder)
    yield made
    made.stop()


def logprobs(model: Any, trajectory: Trajectory) -> np.ndarray:
    """transformers' log-probs of a trajectory's tokens, the first one's 0, float32 [tokens]."""
    tokens = torch.from_numpy(trajectory.token_ids)
    with torch.no_grad():
        rows = model(tokens[None]).logits[0, :-1].log_softmax(-1)
    return np.append(np.float32(0), rows.gather(1, tokens[1:, None])[:, 0].numpy())


def assert_sampled_by(model: Any, trajectory: Trajectory) -> None:
    actions = trajectory.action_mask
    difference = np.abs(logprobs(model, trajectory) - trajectory.rollout_logprobs)[actions]
    assert difference.max() < TOLERANCE


def test_logprobs_are_those_of_transformers_on_multi_turn_trajectories(engine: Engine) -> None:
    engine.use(ToyEnvironment(episode=lambda place, attempt: {"actions": 4, "action_tokens": 5 + place % 7}))
    answers = engine.play_all(range(24), "multi-turn")
    for answer in answers:
        made = answer.trajectory
        assert made.turns == 4 and made.status == "completed"
        assert set(made.policy_versions[made.action_mask]) == {engine.raw.version}
        assert_sampled_by(MODELS[0], made)
    spread = [value for answer in answers for value in answer.trajectory.rollout_logprobs]
    assert np.nanstd(spread) > 0.3  # far from uniform, or equality would mean little


def test_sampled_tokens_follow_the_policy(engine: Engine) -> None:
    """First tokens after one prompt, 400 draws: each one's count is the softmax's within four deviations."""
    engine.use(ToyEnvironment(episode=lambda place, attempt: {"actions": 1, "action_tokens": 1}))

    async def draw() -> list[Any]:
        return await asyncio.gather(*(engine.play(5, f"draw {index}") for index in range(400)))

    answers = engine.do(draw())
    prompt = torch.from_numpy(answers[0].trajectory.token_ids[:-1])
    with torch.no_grad():
        probability = MODELS[0](prompt[None]).logits[0, -1].softmax(-1).numpy()
    drawn = np.bincount([answer.trajectory.token_ids[-1] for answer in answers], minlength=len(probability))
    deviation = np.sqrt(400 * probability * (1 - probability))
    assert (np.abs(drawn - 400 * probability) < 4 * deviation + 1).all()


def _switch_in_mid_trajectory(engine: Engine, key: str) -> list[Trajectory]:
    """Eight trajectories of 200 tokens, the weights replaced by the second model's while they are sampled."""
    engine.use(ToyEnvironment(episode=lambda place, attempt: {"actions": 1, "action_tokens": 200}))

    async def both() -> list[Trajectory]:
        playing = [asyncio.ensure_future(engine.play(place, f"{key} {place}")) for place in range(8)]
        while sum(map(len, engine.received)) < 8 * 40:
            await asyncio.sleep(0.01)
        await engine.replace(MODELS[1], version=engine.raw.version + 1)
        return [answer.trajectory for answer in await asyncio.gather(*playing)]

    return engine.do(both())


@pytest.fixture
def watched(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """The engine, with the tokens of actions under way in `received`; its first weights are back after."""
    engine.received = []
    append = Action.append

    def noted(self: Action, *arguments: Any) -> None:
        if not self.token_ids:
            engine.received.append(self.token_ids)
        append(self, *arguments)

    monkeypatch.setattr(Action, "append", noted)
    yield engine
    engine.raw.recompute_kv = False
    engine.do(engine.replace(MODELS[0], engine.raw.version + 1))


def test_every_token_records_the_weights_that_sampled_it_and_the_cache_is_kept(watched: Engine) -> None:
    """Tokens after the switch are the second model's, on keys and values that the first one computed."""
    before = watched.raw.version
    assert_switched(_switch_in_mid_trajectory(watched, "kept"), before)


def test_tokens_that_are_handed_over_late_record_the_weights_that_sampled_them(
    watched: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM takes half a second to hand over what arrives from the call for a pause on."""
    core, vllm = watched.raw.llm.engine_core, watched.raw.llm
    take, pause, resume = core.get_output_async, vllm.pause_generation, vllm.resume_generation
    pausing = late = 0

    async def slow() -> Any:
        nonlocal late
        outputs = await take()
        if pausing and outputs.outputs:
            late += 1
            await asyncio.sleep(0.5)
        return outputs

    async def noted(**settings: Any) -> None:
        nonlocal pausing
        pausing = 1
        await pause(**settings)

    async def resumed() -> None:
        nonlocal pausing
        pausing = 0
        await resume()

    monkeypatch.setattr(core, "get_output_async", slow)
    monkeypatch.setattr(vllm, "pause_generation", noted)
    monkeypatch.setattr(vllm, "resume_generation", resumed)
    before = watched.raw.version
    made = _switch_in_mid_trajectory(watched, "late")
    assert late > 0
    assert_switched(made, before)


def assert_switched(trajectories: list[Trajectory], before: int) -> None:
    """Each has tokens of both models, every one with its model's log-prob on the cache that was kept."""
    for made in trajectories:
        versions = made.policy_versions[made.action_mask]
        assert set(versions) == {before, before + 1} and (np.diff(versions) >= 0).all()
        tokens = torch.from_numpy(made.token_ids)
        first = int((made.policy_versions == before + 1).argmax())  # the first token of the second model
        with torch.no_grad():
            cached = MODELS[0](tokens[None, : first - 1], use_cache=True)
            later = MODELS[1](tokens[None, first - 1 : -1], past_key_values=cached.past_key_values)
            earlier = MODELS[0](tokens[None, : first - 1])
        rows = torch.cat([earlier.logits[0], later.logits[0]]).log_softmax(-1)
        expected = rows.gather(1, tokens[1:, None])[:, 0].numpy()
        difference = np.abs(expected - made.rollout_logprobs[1:])[made.action_mask[1:]]
        assert difference.max() < TOLERANCE
        assert np.abs(logprobs(MODELS[1], made)[first:] - made.rollout_logprobs[first:]).max() > 0.05


def test_with_recompute_kv_the_cache_is_that_of_the_new_weights(watched: Engine) -> None:
    watched.raw.recompute_kv = True
    before = watched.raw.version
    for made in _switch_in_mid_trajectory(watched, "recomputed"):
        new = made.policy_versions == before + 1
        assert new.any() and (made.policy_versions == before).any()
        assert np.abs(logprobs(MODELS[1], made) - made.rollout_logprobs)[new].max() < TOLERANCE


def test_a_later_turn_finds_the_blocks_of_earlier_ones_after_new_weights(engine: Engine) -> None:
    """Weights change while the environment answers the first action of 70 tokens: the two blocks that are
    full by then stay the first model's, all else is the second's.
    """
    acted, go_on = threading.Event(), threading.Event()
    engine.use(ToyEnvironment(episode=lambda place, attempt: {"actions": 2, "action_tokens": 70}))
    environment = engine.raw.executor.environment
    start = environment.start

    def slow(instance: Any, progress: float) -> Any:
        episode = start(instance, progress)
        step = episode.step

        def waits(action_ids: list[int]) -> Any:
            acted.set()
            go_on.wait(30)
            return step(action_ids)

        episode.step = waits
        return episode

    environment.start = slow

    async def both() -> Trajectory:
        playing = asyncio.ensure_future(engine.play(0, "two turns"))
        await asyncio.to_thread(acted.wait)
        await engine.replace(MODELS[1], engine.raw.version + 1)
        go_on.set()
        return (await playing).trajectory

    made = engine.do(both())
    tokens = torch.from_numpy(made.token_ids)
    with torch.no_grad():
        cached = MODELS[0](tokens[None, : 2 * BLOCK], use_cache=True)
        later = MODELS[1](tokens[None, 2 * BLOCK : -1], past_key_values=cached.past_key_values)
    rows = torch.cat([cached.logits[0], later.logits[0]]).log_softmax(-1)
    expected = rows.gather(1, tokens[1:, None])[:, 0].numpy()
    second = slice(int(made.action_spans[1][0]), None)
    assert np.abs(expected - made.rollout_logprobs[1:])[second.start - 1 :].max() < TOLERANCE
    assert np.abs(logprobs(MODELS[1], made) - made.rollout_logprobs)[second].max() > 0.05
    engine.do(engine.replace(MODELS[0], engine.raw.version + 1))


def test_a_new_trajectory_never_finds_what_other_weights_cached(engine: Engine) -> None:
    """Case 83: the same prompt, three blocks long, before and after new weights."""
    engine.use(ToyEnvironment(episode=lambda place, attempt: {"actions": 1, "action_tokens": 5}))
    environment = engine.raw.executor.environment
    start = environment.start

    def long_prompt(instance: Any, progress: float) -> Any:
        episode = start(instance, progress)
        episode.prompt_ids = [1 + place % 9 for place in range(3 * BLOCK)]
        return episode

    environment.start = long_prompt
    [first] = engine.play_all(range(1), "early")
    assert_sampled_by(MODELS[0], first.trajectory)
    engine.do(engine.replace(MODELS[1], engine.raw.version + 1))
    [second] = engine.play_all(range(1), "late")
    assert_sampled_by(MODELS[1], second.trajectory)
    engine.do(engine.replace(MODELS[0], engine.raw.version + 1))


def test_all_fingerprints_agree_after_a_weight_sync(engine: Engine) -> None:
    async def synchronise() -> None:
        await engine.raw.pause_generation()
        await engine.send(MODELS[1])
        with pytest.raises(RuntimeError, match="without a version"):
            await engine.raw.resume_generation()
        await engine.raw.finish_weight_update(engine.raw.version + 1)
        await engine.raw.resume_generation()

    engine.do(synchronise())
    hashes = engine.do(engine.raw.weight_hashes())
    weights.check_equal(weights.weight_hashes(MODELS[1].named_parameters(), torch.float32), hashes)
    assert "model.layers.0.self_attn.k_proj.weight" in hashes
    assert "model.layers.1.mlp.experts.gate_up_proj" in hashes
    with pytest.raises(weights.WeightMismatch, match="differs"):
        weights.check_equal(weights.weight_hashes(MODELS[0].named_parameters(), torch.float32), hashes)
    engine.do(engine.replace(MODELS[0], engine.raw.version + 1))


def test_two_experts_that_changed_places_are_noticed(engine: Engine) -> None:
    """The sums of the tensor stay what they are."""
    swapped = tiny_model(0)
    experts = swapped.model.layers[1].mlp.experts.down_proj
    total = experts.detach().sum().item()
    with torch.no_grad():
        experts[[0, 1]] = experts[[1, 0]]
    assert experts.detach().sum().item() == pytest.approx(total, rel=1e-5)
    hashes = engine.do(engine.raw.weight_hashes())
    weights.check_equal(weights.weight_hashes(MODELS[0].named_parameters(), torch.float32), hashes)
    with pytest.raises(
        weights.WeightMismatch, match=r"differ: model\.layers\.1\.mlp\.experts\.down_proj differs$"
    ):
        weights.check_equal(weights.weight_hashes(swapped.named_parameters(), torch.float32), hashes)


def test_weights_may_not_arrive_while_the_engine_samples(engine: Engine) -> None:
    with pytest.raises(RuntimeError, match="call pause_generation first"):
        engine.do(engine.raw.update_weight("lm_head.weight", torch.float32, (12, 64)))


def test_an_action_that_the_token_limit_cuts_is_truncated(engine: Engine) -> None:
    engine.use(ToyEnvironment(episode=lambda place, attempt: {"actions": 1, "action_tokens": 1000}))
    [answer] = engine.play_all(range(1), "cut")
    assert answer.trajectory.status == "truncated" and answer.trajectory.reward == 0
    assert len(answer.trajectory.token_ids) == 400


@pytest.mark.parametrize(
    ("entry", "found"),
    [(None, "none"), ({}, "none"), ({3: -0.1}, "none"), ({7: None}, "None"), ({7: float("-inf")}, "-inf")],
)
def test_a_sampled_token_without_its_logprob_raises(entry: Any, found: str) -> None:
    """Cases 37 and 38: missing, of another token only, null, infinite."""
    given = {token: SimpleNamespace(logprob=value) for token, value in entry.items()} if entry else entry
    with pytest.raises(LogprobError, match=f"log-probability {found} for sampled token 7"):
        Action().append(7, given, 0)


def test_the_logprob_is_the_sampled_token_s() -> None:
    """Case 38."""
    action = Action()
    action.append(880, {512: SimpleNamespace(logprob=-0.1), 880: SimpleNamespace(logprob=-2.3)}, 4)
    assert (action.token_ids, action.logprobs, action.versions) == ([880], [-2.3], [4])


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("temperature", 0.7),
        ("top_p", 0.9),
        ("top_k", 50),
        ("min_p", 0.05),
        ("repetition_penalty", 1.1),
        ("presence_penalty", 0.5),
        ("frequency_penalty", 0.5),
        ("min_tokens", 3),
        ("logprobs", None),
        ("n", 2),
        ("stop", ["x"]),
        ("logit_bias", {3: 1.0}),
        ("bad_words", ["x"]),
        ("allowed_token_ids", [3]),
    ],
)
def test_other_sampling_settings_are_refused(setting: str, value: Any) -> None:
    """Case 42."""
    parameters = full_softmax()
    check_sampling(parameters)
    setattr(parameters, setting, value)
    with pytest.raises(SamplingError, match=f"sampling setting {setting} is"):
        check_sampling(parameters)


def test_an_engine_that_dies_while_it_samples_gives_one_clear_message(engine: Engine) -> None:
    """Last: the engine is gone afterwards."""
    engine.use(ToyEnvironment(episode=lambda place, attempt: {"actions": 1, "action_tokens": 390}))
    [process] = engine.raw.llm.engine_core.resources.engine_manager.processes

    async def kill() -> None:
        playing = asyncio.ensure_future(engine.play(0, "doomed"))
        await asyncio.sleep(0.3)
        os.kill(process.pid, signal.SIGKILL)
        await playing

    with pytest.raises(EngineDied, match="engine died while it sampled"):
        engine.do(kill())
    with pytest.raises(EngineDied, match="dead"):
        engine.do(engine.raw.check_health())
    with pytest.raises(EngineDied, match="is dead"):
        engine.play_all(range(1), "after")
