"""One step of the trainer against the same step by hand, and what must not change while it runs.

By hand means: transformers' own attention on one sequence at a time, formulas written out with plain loops,
and AdamW on a copy of the networks.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from local_engine import plain_logprobs, random_trajectories, run_config, tiny_policy, trajectory
from torch import Tensor, nn
from transformers import Qwen3MoeForCausalLM

from sao.critic import ValueModel
from sao.local.packed_batch import PackedBatch, TrainingError, prefix_values
from sao.local.trainer import Trainer
from sao.rewards import overlong_penalty
from sao.trajectory import Status, Trajectory

RATE = 3e-3
Networks = tuple[Qwen3MoeForCausalLM, ValueModel]


@pytest.fixture
def networks() -> Networks:
    """A policy and a value model that is neither zero nor the policy's."""
    torch.set_num_threads(1)
    value_model = ValueModel.from_policy(tiny_policy(seed=1))
    nn.init.normal_(value_model.head.weight, std=0.1, generator=torch.Generator().manual_seed(2))
    return tiny_policy(), value_model


@pytest.fixture
def trajectories(networks: Networks) -> list[Trajectory]:
    return random_trajectories(networks[0], 8)


def trainer_of(row: str, networks: Networks, **blocks: Any) -> Trainer:
    """A trainer on copies of the networks."""
    blocks["training"] = {"learning_rate": RATE} | blocks.get("training", {})
    run = run_config(row, **blocks)
    policy, value_model = copy.deepcopy(networks)
    return Trainer(run, policy, value_model if run.critic else None)


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def changed(before: dict[str, Tensor], module: nn.Module) -> set[str]:
    return {name for name, now in module.named_parameters() if not torch.equal(before[name], now)}


def same_weights(ours: nn.Module, theirs: nn.Module) -> None:
    """Equal up to rounding. Adam's first steps are as long for tiny gradients as for large ones, so a weight
    whose gradient is rounding noise may differ by a step: one in 200 may.
    """
    for (name, one), other in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        close = torch.isclose(one, other[1], atol=0.01 * RATE, rtol=0)
        assert close.double().mean() > 0.995, name


def same_moments(ours: torch.optim.Optimizer, theirs: torch.optim.Optimizer) -> None:
    """Equal running means of the (clipped) gradients, which are linear in them."""
    for one, other in zip(ours.state.values(), theirs.state.values(), strict=True):
        assert one["step"] == other["step"]
        torch.testing.assert_close(one["exp_avg"], other["exp_avg"], atol=2e-6, rtol=1e-3)


def same_metrics(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    for name, value in ours.items():
        if value is None:
            assert theirs[name] is None, name
        else:
            assert theirs[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name


# --- By hand -----------------------------------------------------------------------------------------------


def logprobs_by_hand(policy: Qwen3MoeForCausalLM, made: Trajectory) -> Tensor:
    """Log-probs of the action tokens in order, float32 [action tokens]."""
    return plain_logprobs(policy, made.token_ids)[made.action_mask[1:]]


def values_by_hand(value_model: ValueModel, made: Trajectory, mask: np.ndarray | None = None) -> Tensor:
    """V at the prefix before each action token (or each token of `mask` [tokens]), float32."""
    value_model.backbone.set_attn_implementation("eager")
    values = value_model(torch.from_numpy(made.token_ids)[None])[0]
    value_model.backbone.set_attn_implementation("sao_bucketed")
    return values[:-1][torch.from_numpy((made.action_mask if mask is None else mask)[1:])]


def gae_by_hand(values: list[float], reward: float, alpha: float) -> list[float]:
    """Advantages of the action tokens of one trajectory: eq. 4-5 with gamma 1, observations dropped."""
    lam = max(0.0, 1 - 1 / (alpha * len(values)))
    advantages = [0.0] * len(values)
    following_value = following = 0.0
    for t in range(len(values) - 1, -1, -1):
        delta = (reward if t == len(values) - 1 else 0.0) + following_value - values[t]
        following = delta + lam * following
        advantages[t], following_value = following, values[t]
    return advantages


def adamw(module: nn.Module, rate: float) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        [p for p in module.parameters() if p.requires_grad], lr=rate, betas=(0.9, 0.95), weight_decay=0.0
    )


def step_by_hand(module: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Backward, clip the norm at 1, step."""
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimizer.step()


def dis_by_hand(logprobs: Tensor, rollout: np.ndarray, advantages: Sequence[float]) -> Tensor:
    """Sum over one trajectory of -stop_gradient(f(r)) A log pi, band (0.7, 6.0)."""
    total = torch.zeros(())
    for logprob, behaviour, advantage in zip(logprobs, rollout, advantages, strict=True):
        ratio = float(np.exp(logprob.item() - behaviour))
        total = total - (ratio if 0.7 < ratio < 6.0 else 0.0) * advantage * logprob
    return total


def ppo_by_hand(logprobs: Tensor, old: Sequence[float], advantages: Sequence[float]) -> Tensor:
    """Sum over one trajectory of -min(r A, clip(r, 0.8, 1.28) A)."""
    total = torch.zeros(())
    for logprob, before, advantage in zip(logprobs, old, advantages, strict=True):
        ratio = (logprob - before).exp()
        total = total - torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
    return total


def critic_steps_by_hand(
    value_model: ValueModel,
    trajectories: Sequence[Trajectory],
    updates: int,
    rate: float,
    clip: float = float("inf"),
) -> list[list[list[float]]]:
    """Trains the value model in place; the values of each trajectory before the first and after the last.

    A value counts as no further than `clip` from the one before the first update, where its error is larger.
    """

    def values() -> list[Tensor]:
        return [values_by_hand(value_model, made) for made in trajectories]

    tokens = sum(made.num_action_tokens for made in trajectories)
    optimizer = adamw(value_model, rate)
    seen = [[row.tolist() for row in values()]]
    for _ in range(updates):
        errors = torch.zeros(())
        for row, first, made in zip(values(), seen[0], trajectories, strict=True):
            near = torch.maximum(torch.minimum(row, torch.tensor(first) + clip), torch.tensor(first) - clip)
            error = (row - made.reward).square()
            errors = errors + torch.maximum(error, (near - made.reward).square()).sum()
        step_by_hand(value_model, optimizer, errors / tokens)
    with torch.no_grad():
        seen.append([row.tolist() for row in values()])
    return seen


# --- Order of a step: critic, values again, advantages, policy ---------------------------------------------


@pytest.mark.parametrize(
    ("row", "updates", "after"),
    [("sao_full_critic", 2, True), ("sao_dis_only", 1, True), ("sao_full_critic", 2, False)],
)
def test_step_equals_the_same_step_by_hand(
    networks: Networks, trajectories: list[Trajectory], row: str, updates: int, after: bool
) -> None:
    """K critic updates on the returns, advantages from the values after (or before) them, one DIS update."""
    critic = {"advantages_after_updates": after}
    trainer = trainer_of(row, networks, critic=critic)
    assert trainer.run.critic is not None and trainer.run.critic.updates_per_batch == updates
    record = trainer.update(trajectories, 0)

    policy, value_model = copy.deepcopy(networks)
    values = critic_steps_by_hand(value_model, trajectories, updates, 5 * RATE)
    assert trainer.critic is not None
    same_weights(trainer.critic.value_model, value_model)
    loss, tokens, masked, off = torch.zeros(()), 0, 0, [0.0, 0.0]
    for row_values, made in zip(values[1 if after else 0], trajectories, strict=True):
        advantages = gae_by_hand(row_values, made.reward, 1.5)
        logprobs = logprobs_by_hand(policy, made)
        rollout = made.rollout_logprobs[made.action_mask]
        loss = loss + dis_by_hand(logprobs, rollout, advantages)
        ratios = np.exp(logprobs.detach().numpy() - rollout)
        masked += int((ratios <= 0.7).sum())
        tokens += len(advantages)
    optimizer = adamw(policy, RATE)
    step_by_hand(policy, optimizer, loss / tokens)
    same_weights(trainer.policy, policy)
    same_moments(trainer.optimizer, optimizer)
    assert record["policy_loss"] == pytest.approx(loss.item() / tokens, abs=1e-5)
    assert record["masked_low"] == pytest.approx(masked / tokens)
    assert masked > 0

    rewards = np.concatenate([[made.reward] * made.num_action_tokens for made in trajectories])
    for place, when in enumerate(("before", "after")):
        flat = np.concatenate(values[place])
        explained = 1 - np.var(rewards - flat) / np.var(rewards)
        assert record[f"explained_variance_{when}"] == pytest.approx(explained, abs=1e-4)
        off[place] = float(np.abs(rewards - flat).mean())
        assert record[f"advantage_abs_mean_{when}"] == pytest.approx(off[place], abs=1e-4)
    assert off[1] < off[0]  # the critic's updates bring the values nearer to the returns


def test_critic_updates_do_not_depend_on_policy_minibatches(
    networks: Networks, trajectories: list[Trajectory]
) -> None:
    """Case 63: two minibatches are two policy updates, and K critic updates stay K."""
    steps = {}
    for minibatches in (1, 2):
        trainer = trainer_of("sao", networks, minibatches_per_batch=minibatches)
        trainer.update(trajectories, 0)
        assert trainer.critic is not None
        optimizers = trainer.optimizer, trainer.critic.optimizer
        steps[minibatches] = [
            {int(state["step"]) for state in optimizer.state.values()} for optimizer in optimizers
        ]
    assert steps == {1: [{1}, {2}], 2: [{2}, {2}]}


def test_one_policy_step_whatever_the_number_of_turns(networks: Networks) -> None:
    """Case 55: six actions a trajectory make as many optimizer steps as one."""
    for turns in (1, 6):
        made = [
            trajectory([1, *[2, 3] * turns], [(2 * n + 1, 2 * n + 2) for n in range(turns)], reward=n % 2)
            for n in range(8)
        ]
        trainer = trainer_of("sao", networks)
        trainer.update(made, 0)
        assert {int(state["step"]) for state in trainer.optimizer.state.values()} == {1}


def test_values_are_clipped_at_those_before_the_first_update(
    networks: Networks, trajectories: list[Trajectory]
) -> None:
    """Every one of four updates measures the distance from there, so that the clip soon stops the values."""
    trainer = trainer_of("sao_full_critic", networks, critic={"value_clip": 0.02, "updates_per_batch": 4})
    trainer.update(trajectories, 0)
    assert trainer.critic is not None
    clipped, free = (copy.deepcopy(networks[1]) for _ in range(2))
    critic_steps_by_hand(clipped, trajectories, 4, 5 * RATE, clip=0.02)
    critic_steps_by_hand(free, trajectories, 4, 5 * RATE)
    same_weights(trainer.critic.value_model, clipped)
    assert not torch.allclose(free.head.weight, clipped.head.weight, atol=RATE, rtol=0)


def all_values_by_hand(value_model: ValueModel, made: Trajectory) -> list[float]:
    """V at the prefix before every token, observations and prompt included; 0 before the first."""
    with torch.no_grad():
        values = values_by_hand(value_model, made, np.ones(len(made.token_ids), dtype=bool))
    return [0.0, *values.tolist()]


def check_advantages_and_loss(
    trainer: Trainer, trajectories: list[Trajectory], expected: list[dict[int, float]], errors: list[float]
) -> None:
    """Advantages by trajectory and place of the token; the value loss is the mean of the errors."""
    shown = trainer.inspect(trajectories)["advantages"]
    assert shown is not None
    for row, made, advantages in zip(shown, trajectories, expected, strict=True):
        for place in np.flatnonzero(made.action_mask):
            assert row[place].item() == pytest.approx(advantages[place], abs=1e-4)
    assert trainer.update(trajectories, -1)["value_loss"] == pytest.approx(np.mean(errors), abs=1e-5)


@pytest.mark.parametrize("row", ["step_average", "step_last_token"])
def test_steps_have_one_value_and_one_advantage(
    networks: Networks, trajectories: list[Trajectory], row: str
) -> None:
    """The mean of the step's token values, or its last token's, which is then all that is trained."""
    expected: list[dict[int, float]] = []
    errors: list[float] = []
    for made in trajectories:
        before = all_values_by_hand(networks[1], made)
        steps = [range(start, end) for start, end in made.action_spans.tolist()]
        read = [step[-1:] if row == "step_last_token" else step for step in steps]
        values = [float(np.mean([before[t] for t in places])) for places in read]
        advantages = gae_by_hand(values, made.reward, 1.5)  # the same recursion, over steps
        expected.append({t: one for step, one in zip(steps, advantages, strict=True) for t in step})
        errors += [(before[t] - made.reward) ** 2 for places in read for t in places]
    check_advantages_and_loss(trainer_of(row, networks), trajectories, expected, errors)


def test_without_skipping_observations_have_values_that_count_and_are_trained(
    networks: Networks, trajectories: list[Trajectory]
) -> None:
    """From the first to the last action token, to the same target; lambda counts action tokens."""
    expected: list[dict[int, float]] = []
    errors: list[float] = []
    for made in trajectories:
        before = all_values_by_hand(networks[1], made)
        places = range(made.action_spans[0][0], made.action_spans[-1][1])
        lam = max(0.0, 1 - 1 / (1.5 * made.num_action_tokens))
        advantages, following_value, following = {}, made.reward, 0.0
        for t in reversed(places):
            advantages[t] = following = following_value - before[t] + lam * following
            following_value = before[t]
        expected.append(advantages)
        errors += [(before[t] - made.reward) ** 2 for t in places]
    check_advantages_and_loss(trainer_of("sao_no_skip", networks), trajectories, expected, errors)


@pytest.mark.parametrize("row", ["icepop", "tis", "sao_no_dis"])
def test_corrections_of_other_objectives(networks: Networks, row: str) -> None:
    """At a batch's one update the policy before it is the policy itself, so that PPO's own ratio is 1."""
    trajectories = random_trajectories(networks[0], 16, noise=0.7)
    record = trainer_of(row, networks, critic={"advantages_after_updates": False}).update(trajectories, 0)
    ratios: list[float] = []
    advantages: list[float] = []
    with torch.no_grad():
        for made in trajectories:
            rollout = made.rollout_logprobs[made.action_mask]
            ratios += np.exp(logprobs_by_hand(networks[0], made).numpy() - rollout).tolist()
            advantages += gae_by_hand(values_by_hand(networks[1], made).tolist(), made.reward, 1.5)
    ratio = np.array(ratios)
    weights = {
        "icepop": np.where((ratio > 0.5) & (ratio < 5.0), ratio, 0.0),
        "tis": np.minimum(ratio, 2.0),
        "sao_no_dis": np.ones(len(ratio)),
    }
    expected = -np.mean(weights[row] * np.array(advantages))
    assert record["policy_loss"] == pytest.approx(expected, abs=1e-5)
    assert record["clipped"] == 0
    if row == "icepop":
        shares = np.mean(ratio <= 0.5), np.mean(ratio >= 5.0)
        assert (record["masked_low"], record["masked_high"]) == pytest.approx(shares)
        assert shares[0] > 0


def test_gspo_clips_sequences_by_their_ratio_to_the_rollout_policy(networks: Networks) -> None:
    trajectories = random_trajectories(networks[0], 16, group_size=8)
    record = trainer_of("gspo", networks).update(trajectories, 0)
    advantages = group_advantages(trajectories, [made.reward for made in trajectories])
    total, clipped, tokens = 0.0, 0, 0
    for made, advantage in zip(trajectories, advantages, strict=True):
        with torch.no_grad():
            logprobs = logprobs_by_hand(networks[0], made).numpy()
        ratio = float(np.exp(np.mean(logprobs - made.rollout_logprobs[made.action_mask])))
        bounded = min(max(ratio, 1 - 3e-4), 1 + 4e-4)
        total += len(logprobs) * min(ratio * advantage, bounded * advantage)
        clipped += len(logprobs) * (bounded * advantage < ratio * advantage)
        tokens += len(logprobs)
    assert record["policy_loss"] == pytest.approx(-total / tokens, abs=1e-5)
    assert record["clipped"] == pytest.approx(clipped / tokens) and clipped > 0


# --- Truncation and whitening ------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ["sao", "sao_no_skip"])
@pytest.mark.parametrize("bootstraps", [False, True])
def test_truncated_trajectories_end_with_their_value_where_the_row_says_so(
    networks: Networks, trajectories: list[Trajectory], row: str, bootstraps: bool
) -> None:
    """By default a trajectory that a limit cut has no future either; others never have one."""
    settings = {"bootstrap_truncated": True} if bootstraps else {}
    trainer = trainer_of(row, networks, advantage=settings)
    for place, made in enumerate(trajectories):
        made.status = Status.TRUNCATED if place % 2 else Status.COMPLETED
    shown = trainer.inspect(trajectories)["advantages"]
    assert shown is not None
    for place, made in enumerate(trajectories):
        last = int(np.flatnonzero(made.action_mask)[-1])
        with torch.no_grad():
            networks[1].backbone.set_attn_implementation("eager")
            value = networks[1](torch.from_numpy(made.token_ids)[None])[0, last].item()
            at_last = values_by_hand(networks[1], made)[-1].item()
        future = value if bootstraps and place % 2 else 0.0
        assert shown[place, last].item() == pytest.approx(made.reward + future - at_last, abs=1e-4)


@pytest.mark.parametrize("whiten", [False, True])
def test_advantages_are_whitened_over_the_tokens_of_the_update_alone(
    networks: Networks, trajectories: list[Trajectory], whiten: bool
) -> None:
    """Where the row asks for it; else the policy's loss has them as GAE gives them, not even centred."""
    trainer = trainer_of("sao", networks, advantage={"whiten": whiten})
    shown = trainer.inspect(trajectories)["advantages"]
    record = trainer_of(
        "sao", networks, advantage={"whiten": whiten}, critic={"advantages_after_updates": False}
    ).update(trajectories, 0)
    advantages, loss = [], torch.zeros(())
    with torch.no_grad():
        for made in trajectories:
            advantages += gae_by_hand(values_by_hand(networks[1], made).tolist(), made.reward, 1.5)
    if whiten:
        advantages = [(one - np.mean(advantages)) / np.std(advantages, ddof=1) for one in advantages]
    actions = torch.from_numpy(np.concatenate([made.action_mask for made in trajectories]))
    assert shown is not None
    flat = torch.cat([shown[place, : len(made.token_ids)] for place, made in enumerate(trajectories)])
    torch.testing.assert_close(flat[actions], torch.tensor(advantages).float(), atol=1e-4, rtol=1e-4)
    assert (flat[~actions] == 0).all()
    left = iter(advantages)
    for made in trajectories:
        rollout = made.rollout_logprobs[made.action_mask]
        given = [next(left) for _ in rollout]
        loss = loss + dis_by_hand(logprobs_by_hand(networks[0], made), rollout, given)
    assert record["policy_loss"] == pytest.approx(loss.item() / len(advantages), abs=1e-5)


# --- Minibatches and old log-probs -------------------------------------------------------------------------


def test_dis_with_two_minibatches(networks: Networks, trajectories: list[Trajectory]) -> None:
    """The second update's ratios are those of the policy after the first to the rollout log-probs."""
    trainer = trainer_of("sao", networks, minibatches_per_batch=2)
    record = trainer.update(trajectories, 0)
    policy, value_model = copy.deepcopy(networks)
    for name, parameter in value_model.named_parameters():
        parameter.requires_grad_("self_attn" not in name)
    values = critic_steps_by_hand(value_model, trajectories, 2, 5 * RATE)[1]
    optimizer, losses = adamw(policy, RATE), []
    for half in (range(4), range(4, 8)):
        loss, tokens = torch.zeros(()), 0
        for place in half:
            made = trajectories[place]
            advantages = gae_by_hand(values[place], made.reward, 1.5)
            rollout = made.rollout_logprobs[made.action_mask]
            loss = loss + dis_by_hand(logprobs_by_hand(policy, made), rollout, advantages)
            tokens += len(advantages)
        step_by_hand(policy, optimizer, loss / tokens)
        losses.append(loss.item() / tokens)
    same_weights(trainer.policy, policy)
    same_moments(trainer.optimizer, optimizer)
    assert record["policy_loss"] == pytest.approx(np.mean(losses), abs=1e-5)


def group_advantages(trajectories: Sequence[Trajectory], rewards: Sequence[float]) -> list[float]:
    """(R - mean) / (std + 1e-6), std with n - 1, 0 where all rewards of the group are equal."""
    advantages = []
    for made, reward in zip(trajectories, rewards, strict=True):
        group = [r for t, r in zip(trajectories, rewards, strict=True) if t.group_id == made.group_id]
        deviation = np.std(group, ddof=1)
        advantages.append(float((reward - np.mean(group)) / (deviation + 1e-6)) if deviation > 0 else 0.0)
    return advantages


@pytest.mark.parametrize("minibatches", [1, 4])
@pytest.mark.parametrize("reference", ["trainer", "rollout"])
def test_ppo_clips_against_the_policy_before_the_batch(
    networks: Networks, minibatches: int, reference: str
) -> None:
    """Old log-probs are the trainer's before any minibatch was trained on (or the rollout's, as asked).

    Groups are told apart by their ids, wherever their rows lie (case 58).
    """
    trajectories = random_trajectories(networks[0], 16, group_size=8)
    trajectories = [trajectories[place] for place in np.random.default_rng(1).permutation(16)]
    trainer = trainer_of(
        "grpo_vanilla",
        networks,
        objective={"reference": reference},
        minibatches_per_batch=minibatches,
        training={"learning_rate": 10 * RATE},
    )
    record = trainer.update(trajectories, 0)
    policy = copy.deepcopy(networks[0])
    advantages = group_advantages(trajectories, [made.reward for made in trajectories])
    with torch.no_grad():
        old = [logprobs_by_hand(policy, made).tolist() for made in trajectories]
    if reference == "rollout":
        old = [made.rollout_logprobs[made.action_mask].tolist() for made in trajectories]
    optimizer = adamw(policy, 10 * RATE)
    for part in np.array_split(np.arange(16), minibatches):
        loss, tokens = torch.zeros(()), 0
        for place in part:
            made = trajectories[place]
            given = [advantages[place]] * made.num_action_tokens
            loss = loss + ppo_by_hand(logprobs_by_hand(policy, made), old[place], given)
            tokens += made.num_action_tokens
        step_by_hand(policy, optimizer, loss / tokens)
    same_weights(trainer.policy, policy)
    if minibatches == 1 and reference == "trainer":
        assert record["clipped"] == 0  # by construction
    else:
        assert record["clipped"] > 0


def test_vapo_adds_the_positive_examples_loss(networks: Networks, trajectories: list[Trajectory]) -> None:
    """0.1 times the negative log-prob of the successful rows' action tokens, over all action tokens."""
    trainer = trainer_of("vapo", networks)
    plain = trainer_of("vapo", networks, objective={"positive_example_coefficient": 0.0})
    record, without = trainer.update(trajectories, 0), plain.update(trajectories, 0)
    tokens = sum(made.num_action_tokens for made in trajectories)
    with torch.no_grad():
        positive = sum(
            -logprobs_by_hand(networks[0], made).sum().item() for made in trajectories if made.reward > 0
        )
    assert record["policy_loss"] - without["policy_loss"] == pytest.approx(0.1 * positive / tokens, abs=1e-5)
    assert record["lambda_zero_share"] == 1.0  # fewer than 20 action tokens at alpha 0.05
    assert changed(weights_of(plain.policy), trainer.policy)


# --- Shaped rewards and baselines --------------------------------------------------------------------------


def test_overlong_penalty_by_hand() -> None:
    """Limit 135, buffer 30: nothing to 105, then 1/30 a token, all of it from 135 on."""
    lengths = torch.tensor([0, 104, 105, 106, 120, 134, 135, 136, 400])
    expected = [0, 0, 0, -1 / 30, -0.5, -29 / 30, -1, -1, -1]
    torch.testing.assert_close(overlong_penalty(lengths, 135, 30, 1.0), torch.tensor(expected))
    halves = overlong_penalty(lengths, 135, 30, 0.5)
    torch.testing.assert_close(halves, torch.tensor(expected) / 2)
    assert overlong_penalty(torch.tensor([135, 136]), 135, 0, 2.0).tolist() == [0, -2]


def test_dapo_trains_on_shaped_rewards_and_counts_raw_ones(networks: Networks) -> None:
    """Two groups: equal raw rewards of unequal length still count as a group without variance."""
    made = random_trajectories(networks[0], 16, group_size=8)
    for place, one in enumerate(made):
        one.reward = float(place < 8 or place % 2)
    overlong = {"max_action_tokens": 8, "buffer_tokens": 6, "penalty": 1.0}
    trainer = trainer_of("dapo", networks, overlong=overlong)
    record = trainer.update(made, 0)
    assert record["zero_variance_groups"] == 1
    shaped = [one.reward - min(1.0, max(0.0, (one.num_action_tokens - 2) / 6)) for one in made]
    assert len(set(shaped[:8])) > 1
    policy, loss, tokens = copy.deepcopy(networks[0]), torch.zeros(()), 0
    for one, advantage in zip(made, group_advantages(made, shaped), strict=True):
        logprobs = logprobs_by_hand(policy, one)
        loss = loss + ppo_by_hand(logprobs, logprobs.tolist(), [advantage] * len(logprobs))
        tokens += len(logprobs)
    optimizer = adamw(policy, RATE)
    step_by_hand(policy, optimizer, loss / tokens)
    same_weights(trainer.policy, policy)
    same_moments(trainer.optimizer, optimizer)


def test_running_mean_excludes_the_reward_it_is_for(
    networks: Networks, trajectories: list[Trajectory]
) -> None:
    """Case 26: prompts a a b a b with rewards 1 0 1 1 0; a first visit takes the mean of all before."""
    made = trajectories[:5]
    for one, prompt, reward in zip(made, "aabab", (1.0, 0.0, 1.0, 1.0, 0.0), strict=True):
        one.prompt_id, one.reward = prompt, reward
    expected = [1 - 0, 0 - 1, 1 - 0.5, 1 - 0.5, 0 - 1]
    trainer = trainer_of("running_mean", networks)
    trainer.update(made, 0)
    policy, loss, tokens = copy.deepcopy(networks[0]), torch.zeros(()), 0
    for one, advantage in zip(made, expected, strict=True):
        rollout = one.rollout_logprobs[one.action_mask]
        loss = loss + dis_by_hand(logprobs_by_hand(policy, one), rollout, [advantage] * one.num_action_tokens)
        tokens += one.num_action_tokens
    optimizer = adamw(policy, RATE)
    step_by_hand(policy, optimizer, loss / tokens)
    same_weights(trainer.policy, policy)
    same_moments(trainer.optimizer, optimizer)
    # The next batch starts from these windows, also after a resume.
    resumed = trainer_of("running_mean", networks)
    resumed.load_state_dict(trainer.state_dict())
    for one in (trainer, resumed):
        assert one.running_mean is not None
        assert (one.running_mean.baseline("a"), one.running_mean.baseline("b")) == (2 / 3, 0.5)
        assert one.running_mean.baseline("new") == 3 / 5


# --- Critic-only steps, frozen parameters, learning rates --------------------------------------------------


def test_exactly_ten_critic_only_steps(networks: Networks, trajectories: list[Trajectory]) -> None:
    """Case 62: steps -10 to -1 leave the policy bit-identical; step 0 is its first update."""
    trainer = trainer_of("sao", networks)
    assert trainer.run.critic_only_steps == 10 and trainer.critic is not None
    policy, values = weights_of(trainer.policy), weights_of(trainer.critic.value_model)
    rates = []
    for step in range(-10, 0):
        record = trainer.update(trajectories, step)
        rates.append(record["critic_learning_rate"])
        assert "policy_loss" not in record and record["value_loss"] > 0
    assert not changed(policy, trainer.policy) and not trainer.optimizer.state
    assert changed(values, trainer.critic.value_model)
    record = trainer.update(trajectories, 0)
    assert len(changed(policy, trainer.policy)) == len(policy)
    assert record["learning_rate"] == RATE
    # Linear warm-up over these steps to five times the policy's learning rate (case 70).
    assert [*rates, record["critic_learning_rate"]] == pytest.approx(
        [5 * RATE * n / 10 for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10)]
    )
    assert [group["lr"] for group in trainer.critic.optimizer.param_groups] == [5 * RATE]
    assert [group["lr"] for group in trainer.optimizer.param_groups] == [RATE]


@pytest.mark.parametrize(
    ("row", "frozen", "kept_out"),
    [
        ("sao", "attention", lambda name: "self_attn" in name),
        ("sao_full_critic", "none", lambda name: False),
        ("sao", "all_but_experts_and_head", lambda name: "experts" not in name and "head" not in name),
    ],
)
def test_frozen_parameters_stay_bit_identical(
    networks: Networks,
    trajectories: list[Trajectory],
    row: str,
    frozen: str,
    kept_out: Callable[[str], bool],
) -> None:
    """Case 69: after 3 steps with weight decay; frozen parameters are in no optimizer group."""
    optimizer = {"weight_decay": 0.1}
    trainer = trainer_of(row, networks, critic={"frozen": frozen}, optimizer=optimizer)
    assert trainer.critic is not None
    value_model = trainer.critic.value_model
    before = weights_of(value_model)
    for step in (-1, 0, 1):
        record = trainer.update(trajectories, step)
    expected = {name for name in before if not kept_out(name)}
    assert changed(before, value_model) == expected and len(expected) > 3
    grouped = {id(p) for group in trainer.critic.optimizer.param_groups for p in group["params"]}
    assert grouped == {id(p) for name, p in value_model.named_parameters() if name in expected}
    attention_trains = any("self_attn" in name for name in expected)
    assert (record["critic_grad_norm_attention"] > 0) == attention_trains
    assert record["critic_grad_norm_rest"] > 0
    assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [0.1]
    assert changed(weights_of(networks[0]), trainer.policy) == weights_of(networks[0]).keys()


def test_pretrained_critic_brings_no_optimizer_state(
    networks: Networks, trajectories: list[Trajectory]
) -> None:
    """Case 67: weights alone; a resumed trainer has the state again and goes on as if never stopped."""
    trainer = trainer_of("sao", networks)
    assert trainer.critic is not None
    assert not trainer.critic.optimizer.state and not trainer.optimizer.state
    for step in (-1, 0):
        trainer.update(trajectories, step)
    saved = copy.deepcopy(trainer.state_dict())
    resumed = trainer_of("sao", networks)
    resumed.load_state_dict(saved)
    records = [one.update(trajectories, 1) for one in (trainer, resumed)]
    assert records[0] == records[1]
    assert resumed.critic is not None
    for one, other in ((trainer, resumed), (trainer.critic, resumed.critic)):
        moments = [[state["exp_avg"] for state in part.optimizer.state.values()] for part in (one, other)]
        assert all(torch.equal(*pair) for pair in zip(*moments, strict=True))
    assert not changed(weights_of(trainer.policy), resumed.policy)
    data = PackedBatch.from_trajectories(trajectories, torch.device("cpu"))
    with torch.no_grad():
        probes = [prefix_values(one.value_model, data)[0] for one in (trainer.critic, resumed.critic)]
    assert torch.equal(*probes)  # case 109


# --- What must make no difference --------------------------------------------------------------------------


@pytest.mark.parametrize("row", ["sao", "vapo", "step_average", "step_last_token", "sao_no_skip", "grpo_dis"])
def test_order_of_the_batch_does_not_matter(networks: Networks, row: str) -> None:
    size = run_config(row).sampling.group_size
    trajectories = random_trajectories(networks[0], 16, group_size=size)
    order = np.random.default_rng(5).permutation(16)
    ours, theirs = trainer_of(row, networks), trainer_of(row, networks)
    records = ours.update(trajectories, 0), theirs.update([trajectories[place] for place in order], 0)
    same_weights(ours.policy, theirs.policy)
    same_moments(ours.optimizer, theirs.optimizer)
    same_metrics(*records)


@pytest.mark.parametrize("row", ["running_mean", "step_average", "step_last_token"])
def test_rows_without_actions_add_nothing(
    networks: Networks, trajectories: list[Trajectory], row: str
) -> None:
    """Cases 54 and 57: padding rows, here long ones, change no loss, no count and no metric."""
    padding = [trajectory([1] * 40, [], reward=0.0, prompt_id="padding")] * 3
    ours, theirs = trainer_of(row, networks), trainer_of(row, networks)
    records = ours.update(trajectories, 0), theirs.update([*trajectories, *padding], 0)
    same_weights(ours.policy, theirs.policy)
    same_moments(ours.optimizer, theirs.optimizer)
    same_metrics(*records)


def test_lambda_needs_actions(networks: Networks, trajectories: list[Trajectory]) -> None:
    """A length-adaptive lambda of no tokens does not exist; the message says what to do."""
    with pytest.raises(ValueError, match=r"without action tokens .* drop it from the batch"):
        trainer_of("sao", networks).update([*trajectories, trajectory([1, 2], [])], 0)


def test_same_step_twice_is_bit_identical(networks: Networks, trajectories: list[Trajectory]) -> None:
    """Case 43: nothing random in the trainer."""
    trainers = [trainer_of("sao", networks) for _ in range(2)]
    records = [one.update(trajectories, 0) for one in trainers]
    assert records[0] == records[1]
    assert not changed(weights_of(trainers[0].policy), trainers[1].policy)


def test_inspecting_trains_nothing(networks: Networks, trajectories: list[Trajectory]) -> None:
    trainer = trainer_of("sao", networks)
    assert trainer.critic is not None
    before = weights_of(trainer.policy), weights_of(trainer.critic.value_model)
    shown = trainer.inspect(trajectories)
    assert not changed(before[0], trainer.policy) and not changed(before[1], trainer.critic.value_model)
    assert not trainer.optimizer.state
    for place, made in enumerate(trajectories):
        actions = torch.from_numpy(made.action_mask)
        width = len(made.token_ids)
        columns = {name: part[place, :width][actions] for name, part in shown.items() if part is not None}
        with torch.no_grad():
            logprobs, values = logprobs_by_hand(networks[0], made), values_by_hand(networks[1], made)
        torch.testing.assert_close(columns["trainer_logprobs"], logprobs, atol=1e-4, rtol=0)
        torch.testing.assert_close(columns["values"], values, atol=1e-4, rtol=0)
        advantages = torch.tensor(gae_by_hand(values.tolist(), made.reward, 1.5))
        torch.testing.assert_close(columns["advantages"], advantages, atol=1e-4, rtol=0)


# --- Faults ------------------------------------------------------------------------------------------------


def test_loss_that_is_not_finite_leaves_the_weights(
    networks: Networks, trajectories: list[Trajectory]
) -> None:
    """A broken critic and a broken policy both stop the run before a weight moves."""
    broken_critic = trainer_of("sao", networks)
    assert broken_critic.critic is not None
    with torch.no_grad():
        broken_critic.critic.value_model.head.bias.fill_(float("nan"))
    broken_policy = trainer_of("grpo_dis", networks)
    with torch.no_grad():
        broken_policy.policy.lm_head.weight[3, 3] = float("inf")
    cases = [(broken_critic, broken_critic.critic.value_model), (broken_policy, broken_policy.policy)]
    for trainer, module in cases:
        before = weights_of(trainer.policy), weights_of(module)
        with pytest.raises(TrainingError, match=r"loss .* gradient norm .* is not finite"):
            trainer.update(trajectories, 0)
        assert not changed(before[0], trainer.policy)
        for name, parameter in module.named_parameters():
            assert torch.equal(before[1][name].nan_to_num(7.0), parameter.nan_to_num(7.0)), name
        assert not trainer.optimizer.state


def test_far_off_tokens_are_masked_without_nan(networks: Networks, trajectories: list[Trajectory]) -> None:
    """Case 27 through the whole step: rollout log-probs of -1000 mask every token; the policy stays."""
    for made in trajectories:
        made.rollout_logprobs[made.action_mask] = -1000.0
    trainer = trainer_of("sao", networks)
    before = weights_of(trainer.policy)
    record = trainer.update(trajectories, 0)
    assert record["masked_high"] == 1.0 and record["policy_loss"] == 0.0
    assert record["policy_grad_norm"] == 0.0 and not changed(before, trainer.policy)
