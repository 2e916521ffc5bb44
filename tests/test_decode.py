"""The decode engine and the packed forward against transformers' own forward of single sequences."""

import copy
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from local_engine import (
    MODEL,
    VOCABULARY,
    ToyEnvironment,
    plain_logprobs,
    random_trajectories,
    tiny_policy,
    trajectory,
)
from torch import Tensor
from transformers import Qwen3MoeForCausalLM

from sao.local.decode import ATTENTION_GROUP_ROWS, DecodeEngine, round_to_float8
from sao.local.model import PackedTokens, export_policy, load_policy
from sao.local.packed_batch import PackedBatch, policy_logprobs, prefix_values
from sao.local.sampler import Sampler, sample_all
from sao.trajectory import Batch

SLOTS, MAX_TOKENS = 3, 24


@pytest.fixture(scope="module")
def policy() -> Qwen3MoeForCausalLM:
    torch.set_num_threads(1)
    return tiny_policy()


def moved(policy: Qwen3MoeForCausalLM, scale: float = 0.1, seed: int = 1) -> Qwen3MoeForCausalLM:
    """A copy of the policy with noise on every weight."""
    other = copy.deepcopy(policy)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=generator)
    return other


def feed(engine: DecodeEngine, slot: int, tokens: list[int], sizes: list[int]) -> Tensor:
    """Log-probs [len(sizes), vocabulary] behind each chunk of `tokens`, fed to one slot alone."""
    rows, start = [], 0
    for size in sizes:
        rows.append(engine.step([slot], [start], [tokens[start : start + size]])[0])
        start += size
    return torch.stack(rows).log_softmax(-1)


def random_tokens(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(1, VOCABULARY, count).tolist()


# --- Decoding ----------------------------------------------------------------------------------------------


sequences = st.lists(st.integers(1, VOCABULARY - 1), min_size=2, max_size=MAX_TOKENS)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(waiting=st.lists(sequences, min_size=1, max_size=8), data=st.data())
def test_decoded_logprobs_equal_the_plain_forward(
    policy: Qwen3MoeForCausalLM, waiting: list[list[int]], data: st.DataObject
) -> None:
    """Sequences of any length in any slots, in chunks of any size side by side, slots used again."""
    engine = DecodeEngine(policy, SLOTS, MAX_TOKENS, rounding="none")
    waiting = list(waiting)
    running: dict[int, tuple[list[int], int]] = {}
    with torch.no_grad():
        while waiting or running:
            for slot in range(SLOTS):
                if slot not in running and waiting:
                    running[slot] = waiting.pop(), 0
            slots = data.draw(st.permutations(sorted(running)))
            starts = [running[slot][1] for slot in slots]
            chunks = []
            for slot, start in zip(slots, starts, strict=True):
                tokens = running[slot][0]
                chunks.append(tokens[start : start + data.draw(st.integers(1, 7))])
            logprobs = engine.step(slots, starts, chunks).log_softmax(-1)
            for slot, start, chunk, row in zip(slots, starts, chunks, logprobs, strict=True):
                tokens, end = running[slot][0], start + len(chunk)
                if end == len(tokens):
                    del running[slot]
                    continue
                expected = plain_logprobs(policy, tokens)[end - 1]
                assert abs(row[tokens[end]] - expected) < 1e-4
                running[slot] = tokens, end


def test_many_slots_of_unlike_contexts_decode_alike(policy: Qwen3MoeForCausalLM) -> None:
    """More rows than share one attention call, in neighbouring and in scattered slots, one token and more."""
    rng = np.random.default_rng(7)
    slots = 3 * ATTENTION_GROUP_ROWS
    engine = DecodeEngine(policy, slots, 2 * MAX_TOKENS, rounding="none")
    sequences = [random_tokens(int(rng.integers(4, 2 * MAX_TOKENS)), seed) for seed in range(slots)]
    expected = [plain_logprobs(policy, tokens) for tokens in sequences]
    fed = [0] * slots
    checked = 0
    for step in range(2 * MAX_TOKENS):
        busy = [slot for slot in range(slots) if fed[slot] < len(sequences[slot]) - 1]
        if step % 2:
            busy = rng.permutation(busy)[: 2 * len(busy) // 3].tolist()
        starts = [fed[slot] for slot in busy]
        sizes = [int(size) for size in rng.choice([1, 1, 1, 3], len(busy))]
        chunks = [
            sequences[slot][start : min(start + size, len(sequences[slot]) - 1)]
            for slot, start, size in zip(busy, starts, sizes, strict=True)
        ]
        if not busy:
            break
        for slot, chunk, row in zip(busy, chunks, engine.step(busy, starts, chunks), strict=True):
            fed[slot] += len(chunk)
            found = row.log_softmax(-1)[sequences[slot][fed[slot]]]
            assert abs(found - expected[slot][fed[slot] - 1]) < 1e-4
            checked += 1
    assert checked > 10 * slots


def test_sampled_logprobs_equal_the_trainers(policy: Qwen3MoeForCausalLM) -> None:
    """Case 43 at equal weights: what the sampler records is what the trainer computes, to 1e-4."""
    environment = ToyEnvironment(
        episode=lambda place, attempt: {"actions": 1 + place % 4, "action_tokens": 1 + place % 3}
    )
    engine = DecodeEngine(policy, 5, MAX_TOKENS, rounding="none")
    rollouts = sample_all(Sampler(engine, seed=0), environment, environment.instances("train")[:24], 0.0)
    data = PackedBatch.from_trajectories([rollout.to_trajectory() for rollout in rollouts], policy.device)
    with torch.no_grad():
        trained, _ = policy_logprobs(policy, data)
    mask = data.batch.action_mask
    assert [int(n) for n in mask.sum(1)] == [(1 + p % 4) * (1 + p % 3) for p in range(24)]
    torch.testing.assert_close(data.batch.rollout_logprobs[mask], trained[mask], atol=1e-4, rtol=0)


def test_sampler_draws_from_the_softmax(policy: Qwen3MoeForCausalLM) -> None:
    """20,000 first tokens against the exact distribution: chi-square with 11 degrees of freedom."""
    environment = ToyEnvironment(pool=1, episode=lambda place, attempt: {"actions": 1, "action_tokens": 1})
    engine = DecodeEngine(policy, 500, MAX_TOKENS, rounding="none")
    instances = environment.instances("train") * 20000
    rollouts = sample_all(Sampler(engine, seed=3), environment, instances, 0.0)
    drawn = np.bincount([rollout.token_ids[-1] for rollout in rollouts], minlength=VOCABULARY)
    with torch.no_grad():
        expected = 20000 * policy(input_ids=torch.tensor([[1, 3]])).logits[0, -1].softmax(-1).numpy()
    assert ((drawn - expected) ** 2 / expected).sum() < 31.3  # its 99.9% quantile
    logprobs = {rollout.token_ids[-1]: rollout.logprobs[2] for rollout in rollouts}
    for token, logprob in logprobs.items():
        assert logprob == pytest.approx(np.log(expected[token] / 20000), abs=1e-4)


def test_temperature_divides_the_logits(policy: Qwen3MoeForCausalLM) -> None:
    environment = ToyEnvironment(pool=1, episode=lambda place, attempt: {"actions": 1, "action_tokens": 1})
    engine = DecodeEngine(policy, 4, MAX_TOKENS, rounding="none")
    (rollout,) = sample_all(Sampler(engine, 0, temperature=0.5), environment, environment.instances("t"), 0.0)
    with torch.no_grad():
        expected = (2 * policy(input_ids=torch.tensor([[1, 3]])).logits[0, -1]).log_softmax(-1)
    assert rollout.logprobs[2] == pytest.approx(expected[rollout.token_ids[2]].item(), abs=1e-4)


# --- Caches and exchanged weights --------------------------------------------------------------------------


@torch.no_grad()
def test_cache_outlives_new_weights_but_never_its_trajectory(policy: Qwen3MoeForCausalLM) -> None:
    """Case 83: tokens after an exchange see old keys and values; a new prompt in the same slot sees none."""
    tokens, late = random_tokens(16, seed=0), moved(policy)
    engine = DecodeEngine(policy, SLOTS, MAX_TOKENS, rounding="none")
    feed(engine, 1, tokens[:8], [3, 1, 4])
    engine.load_weights(late)
    kept = torch.stack([engine.step([1], [place], [[tokens[place]]])[0] for place in range(8, 16)])
    fresh = DecodeEngine(late, SLOTS, MAX_TOKENS, rounding="none")
    recomputed = feed(fresh, 1, tokens, [8, *[1] * 8])[1:]
    assert ((kept.log_softmax(-1) - recomputed).abs().amax(1) > 1e-3).all()

    prompt = random_tokens(6, seed=5)
    reused = feed(engine, 1, prompt, [2, 1, 3])
    torch.testing.assert_close(reused, feed(fresh, 0, prompt, [2, 1, 3]), atol=1e-6, rtol=0)
    torch.testing.assert_close(reused[1][prompt[3]], plain_logprobs(late, prompt)[2], atol=1e-4, rtol=0)


@torch.no_grad()
def test_forgotten_caches_are_made_anew(policy: Qwen3MoeForCausalLM) -> None:
    """With `forget_caches` each token's log-prob is that of one version alone, that of its own weights."""
    late = moved(policy)
    differences = {}
    for forget in (True, False):
        environment = ToyEnvironment(episode=lambda place, attempt: {"actions": 3, "action_tokens": 4})
        sampler = Sampler(DecodeEngine(policy, 4, MAX_TOKENS, rounding="none"), seed=0)
        for index, instance in enumerate(environment.instances("train")[:4]):
            sampler.start(environment, instance, index, -1, 0, 0.0)
        finished = [rollout for tick in range(5) for rollout in sampler.tick(tick)]
        sampler.engine.load_weights(late)
        sampler.version = 1
        if forget:
            sampler.forget_caches()
        finished += [rollout for tick in range(5, 12) for rollout in sampler.tick(tick)]
        assert len(finished) == 4
        worst = {0: 0.0, 1: 0.0}
        for made in (rollout.to_trajectory() for rollout in finished):
            assert made.policy_versions[made.action_mask].tolist() == [0] * 5 + [1] * 7  # case 47
            for version, weights in ((0, policy), (1, late)):
                here = made.policy_versions == version
                exact = plain_logprobs(weights, made.token_ids).numpy()[here[1:]]
                worst[version] = max(worst[version], np.abs(made.rollout_logprobs[here] - exact).max())
        differences[forget] = worst
    assert differences[True][0] < 1e-4 and differences[True][1] < 1e-4
    assert differences[False][0] < 1e-4 and differences[False][1] > 1e-2


def test_rollout_copy_is_no_alias_of_the_trainers_weights(policy: Qwen3MoeForCausalLM) -> None:
    """Case 113: an optimizer step in place changes the policy, not what the engine computes."""
    for rounding in ("none", "fp8"):
        trained, prompt = copy.deepcopy(policy), random_tokens(8, seed=2)
        engine = DecodeEngine(trained, SLOTS, MAX_TOKENS, rounding)
        before = feed(engine, 0, prompt, [8])
        optimizer = torch.optim.AdamW(trained.parameters(), lr=0.1)
        trained(input_ids=torch.tensor([prompt])).logits.square().sum().backward()
        optimizer.step()
        assert torch.equal(feed(engine, 0, prompt, [8]), before)
        engine.load_weights(trained)
        assert not torch.allclose(feed(engine, 0, prompt, [8]), before, atol=1e-2)


@torch.no_grad()
def test_engine_state_restores_weights_and_caches(policy: Qwen3MoeForCausalLM) -> None:
    tokens, late = random_tokens(12, seed=4), moved(policy)
    engine = DecodeEngine(policy, SLOTS, MAX_TOKENS, rounding="fp8")
    feed(engine, 2, tokens[:6], [6])
    engine.load_weights(late)
    saved = copy.deepcopy(engine.state_dict(used_tokens=6))
    other = DecodeEngine(policy, SLOTS, MAX_TOKENS, rounding="fp8")
    other.load_state_dict(saved)
    for place in range(6, 12):
        chunk = [[tokens[place]]]
        assert torch.equal(engine.step([2], [place], chunk), other.step([2], [place], chunk))


def test_chunks_that_do_not_fit_are_refused(policy: Qwen3MoeForCausalLM) -> None:
    engine = DecodeEngine(policy, SLOTS, MAX_TOKENS, rounding="none")
    with pytest.raises(ValueError, match="within 24 tokens"):
        engine.step([0], [MAX_TOKENS - 1], [[1, 2]])
    with pytest.raises(ValueError, match="1 token or more"):
        engine.step([0, 1], [0, 0], [[1], []])


def test_full_slot_truncates(policy: Qwen3MoeForCausalLM) -> None:
    """Case 89: the budget is one for the whole trajectory, and its end is `truncated` with the reward 0."""
    environment = ToyEnvironment(
        episode=lambda place, attempt: {"actions": 9, "action_tokens": 5, "reward": 1.0}
    )
    engine = DecodeEngine(policy, 2, 20, rounding="none")
    rollouts = sample_all(Sampler(engine, seed=0), environment, environment.instances("train")[:3], 0.0)
    for rollout in rollouts:
        # 2 prompt tokens, then 5 of each action and 2 of each observation: 2 + 7 + 7 + 4 = 20
        assert (rollout.status, rollout.reward, len(rollout.token_ids)) == ("truncated", 0.0, 20)
        assert rollout.action_spans == [(2, 7), (9, 14), (16, 20)]


@pytest.mark.parametrize(
    ("max_tokens", "spans", "status"),
    [
        (13, [(2, 5), (7, 10)], "completed"),  # prompt 2, action 3, observation 2, action 3
        (10, [(2, 5), (7, 10)], "completed"),  # the last action completes on the last token
        (9, [(2, 5), (7, 9)], "truncated"),  # cut in the second action
        (8, [(2, 5), (7, 8)], "truncated"),
        (7, [(2, 5)], "truncated"),  # the observation would fill it
        (4, [(2, 4)], "truncated"),
    ],
)
def test_where_a_slot_is_full(
    policy: Qwen3MoeForCausalLM, max_tokens: int, spans: list[tuple[int, int]], status: str
) -> None:
    environment = ToyEnvironment(episode=lambda place, attempt: {"reward": 1.0})
    engine = DecodeEngine(policy, 1, max_tokens, rounding="none")
    (rollout,) = sample_all(Sampler(engine, seed=0), environment, environment.instances("train")[:1], 0.0)
    assert (rollout.action_spans, rollout.status) == (spans, status)
    assert rollout.reward == (1.0 if status == "completed" else 0.0)
    assert len(rollout.token_ids) <= max_tokens


# --- Rounding ----------------------------------------------------------------------------------------------


def float8_values() -> Iterator[float]:
    """All non-negative finite values of e4m3: 4 bits of exponent (bias 7), 3 of mantissa; 0x7f is NaN."""
    for code in range(0x7F):
        exponent, mantissa = code >> 3, code & 7
        yield mantissa / 8 * 2**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def test_rounding_to_float8() -> None:
    """Nearest value of the format, one scale per output channel: within 2^-4; rounding twice is once."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(5, 7, 64, generator=generator) * torch.logspace(-6, 3, 7)[:, None]
    weight[0, 0] = 0
    rounded = round_to_float8(weight)
    grid = torch.tensor(list(float8_values()))
    assert grid.max() == 448
    scale = weight.abs().amax(-1, keepdim=True) / 448
    exact = (weight.abs() / scale.clamp_min(1e-30))[..., None]
    nearest = (exact - grid).abs().amin(-1) * scale
    torch.testing.assert_close((rounded - weight).abs(), nearest, rtol=1e-3, atol=1e-6)
    normal = weight.abs() >= scale * 2**-6
    assert ((rounded - weight).abs()[normal] <= weight.abs()[normal] * (2**-4 + 1e-6)).all()
    torch.testing.assert_close(round_to_float8(rounded), rounded, rtol=1e-6, atol=0)
    assert torch.isfinite(rounded).all() and (rounded[0, 0] == 0).all()


@torch.no_grad()
def test_rounding_reaches_every_matrix_and_nothing_else(policy: Qwen3MoeForCausalLM) -> None:
    """The rounded engine equals an exact engine of a policy whose matrices were rounded one by one."""
    rounded, prompt = copy.deepcopy(policy), random_tokens(8, seed=9)
    for name, parameter in rounded.named_parameters():
        if parameter.dim() > 1 and "embed" not in name:
            parameter.copy_(round_to_float8(parameter))
    fp8 = feed(DecodeEngine(policy, 1, MAX_TOKENS, "fp8"), 0, prompt, [4, 1, 3])
    exact = feed(DecodeEngine(rounded, 1, MAX_TOKENS, "none"), 0, prompt, [4, 1, 3])
    torch.testing.assert_close(fp8, exact, atol=1e-5, rtol=0)
    assert (fp8 - feed(DecodeEngine(policy, 1, MAX_TOKENS, "none"), 0, prompt, [4, 1, 3])).abs().max() > 1e-3


# --- Packed forward ----------------------------------------------------------------------------------------


def padded_plain_logprobs(policy: Qwen3MoeForCausalLM, batch: Batch) -> Tensor:
    """Action tokens' log-probs [batch, tokens] of one padded forward with transformers' own attention."""
    policy.set_attn_implementation("eager")
    attention_mask = (torch.arange(batch.token_ids.shape[1]) < batch.lengths[:, None]).long()
    logits = policy(input_ids=batch.token_ids, attention_mask=attention_mask).logits
    policy.set_attn_implementation("sao_bucketed")
    logprobs = logits[:, :-1].log_softmax(-1).gather(2, batch.token_ids[:, 1:, None])[..., 0]
    return torch.where(batch.action_mask, torch.nn.functional.pad(logprobs, (1, 0)), 0)


def test_packed_forward_equals_the_padded_one(policy: Qwen3MoeForCausalLM) -> None:
    """Values and gradients of a weighted sum of log-probs."""
    data = PackedBatch.from_trajectories(random_trajectories(policy, 11), policy.device)
    weight = torch.randn(data.batch.token_ids.shape, generator=torch.Generator().manual_seed(0))
    packed_policy, plain_policy = copy.deepcopy(policy), copy.deepcopy(policy)
    packed, entropies = policy_logprobs(packed_policy, data)
    plain = padded_plain_logprobs(plain_policy, data.batch)
    torch.testing.assert_close(packed, plain, atol=1e-5, rtol=0)
    assert (packed[~data.batch.action_mask] == 0).all()
    assert (entropies[data.batch.action_mask] > 0).all()
    (packed * weight).sum().backward()
    (plain * weight).sum().backward()
    for (name, ours), theirs in zip(packed_policy.named_parameters(), plain_policy.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.parametrize("bucket_rows", [1, 2, 3, 64])
def test_bucket_sizes_do_not_matter(policy: Qwen3MoeForCausalLM, bucket_rows: int) -> None:
    batch = Batch.from_trajectories(random_trajectories(policy, 9, seed=1))
    packed = PackedTokens.from_padded(batch.token_ids, batch.lengths, bucket_rows)
    real = torch.arange(batch.token_ids.shape[1]) < batch.lengths[:, None]
    assert torch.equal(packed.token_ids[0, packed.slots][real], batch.token_ids[real])
    data = PackedBatch([], batch, packed, packed.places_before())
    with torch.no_grad():
        logprobs, _ = policy_logprobs(policy, data)
        torch.testing.assert_close(logprobs, padded_plain_logprobs(policy, batch), atol=1e-5, rtol=0)


@torch.no_grad()
def test_values_stand_before_their_tokens(policy: Qwen3MoeForCausalLM) -> None:
    """V(a_t) is read at the prefix before a_t; the final value behind the last action token."""
    from sao.critic import ValueModel

    value_model = ValueModel.from_policy(policy)
    torch.nn.init.normal_(value_model.head.weight, generator=torch.Generator().manual_seed(0))
    made = [trajectory([1, 2, 3, 4, 5, 6], [(2, 4)]), trajectory([7, 8, 9], [(1, 2)])]
    values, final = prefix_values(value_model, PackedBatch.from_trajectories(made, policy.device))
    for row, (one, last) in enumerate(zip(made, (3, 1), strict=True)):
        alone = value_model(torch.from_numpy(one.token_ids)[None])[0]
        for place in np.flatnonzero(one.action_mask):
            torch.testing.assert_close(values[row, place], alone[place - 1], atol=1e-5, rtol=0)
        torch.testing.assert_close(final[row], alone[last], atol=1e-5, rtol=0)


def test_forwards_repeat_exactly_without_dropout(policy: Qwen3MoeForCausalLM, tmp_path) -> None:
    """Cases 43 and 110: two forwards with gradients are identical, also of a loaded model with dropout."""
    noisy = copy.deepcopy(policy)
    noisy.config.attention_dropout = 0.5
    export_policy(noisy, tmp_path / "policy")
    data = PackedBatch.from_trajectories(random_trajectories(policy, 6), policy.device)
    for model in (policy, tiny_policy().train(), load_policy(tmp_path / "policy")):
        first, second = (policy_logprobs(model, data)[0] for _ in range(2))
        assert first.requires_grad and torch.equal(first, second)
    assert MODEL.experts > MODEL.experts_per_token  # a router that chooses
