"""Trajectories check themselves; batches keep every token beside its own record."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from sao.advantages import returns
from sao.trajectory import Batch, Status, Trajectory, last_action_index, place_outcome

NAN = float("nan")
EOS = 9


def two_turns(**changes: Any) -> Trajectory:
    """prompt 5 6, action 1 2, observation 7 8, action 3"""
    fields: dict[str, Any] = {
        "token_ids": [5, 6, 1, 2, 7, 8, 3],
        "action_spans": [[2, 4], [6, 7]],
        "rollout_logprobs": [NAN, NAN, -0.5, -1.0, NAN, NAN, -2.0],
        "policy_versions": [-1, -1, 3, 3, -1, -1, 5],
        "reward": 1.0,
        "prompt_id": "a",
    }
    return Trajectory(**{**fields, **changes})


# --- One trajectory ----------------------------------------------------------------------------------------


def test_fields_are_converted_and_derived():
    trajectory = two_turns(label="2 locks", status="truncated")
    assert trajectory.token_ids.dtype == np.int64
    assert trajectory.rollout_logprobs.dtype == np.float32
    assert trajectory.action_mask.tolist() == [False, False, True, True, False, False, True]
    assert trajectory.step_ids.tolist() == [-1, -1, 0, 0, -1, -1, 1]
    assert trajectory.num_action_tokens == 3
    assert trajectory.turns == 2
    assert trajectory.status is Status.TRUNCATED
    assert trajectory.status == "truncated"


def test_record_survives_json():
    trajectory = two_turns(label="2 locks", group_id=4, index=17, turns=3)
    record = json.loads(json.dumps(trajectory.to_dict(), allow_nan=False))
    assert record["rollout_logprobs"] == [None, None, -0.5, -1.0, None, None, -2.0]
    restored = Trajectory.from_dict(record)
    for name, value in trajectory.to_dict().items():
        assert restored.to_dict()[name] == value
    assert restored.action_mask.tolist() == trajectory.action_mask.tolist()


def test_missing_log_probability_is_fine_off_the_actions_and_refused_on_them():
    logprobs = [None, None, -0.5, -1.0, None, None, -2.0]
    assert np.isnan(two_turns(rollout_logprobs=logprobs).rollout_logprobs[0])
    for missing in (None, NAN, -np.inf):
        logprobs[3] = missing
        with pytest.raises(ValueError, match="action token 3 has no finite rollout log-probability"):
            two_turns(rollout_logprobs=logprobs)


def test_log_probability_off_the_actions_must_be_absent_not_zero():
    with pytest.raises(ValueError, match=r"token 4 is no action token.*must be NaN, not 0"):
        two_turns(rollout_logprobs=[NAN, NAN, -0.5, -1.0, 0.0, NAN, -2.0])


def test_positive_log_probability_is_refused():
    with pytest.raises(ValueError, match=r"action token 6 .* above 0"):
        two_turns(rollout_logprobs=[NAN, NAN, -0.5, -1.0, NAN, NAN, 0.01])


@pytest.mark.parametrize("field", ["token_ids", "rollout_logprobs", "policy_versions"])
@pytest.mark.parametrize("change", [-1, 1])
def test_lengths_off_by_one_are_refused(field, change):
    values = two_turns().to_dict()[field]
    values = values[:-1] if change < 0 else [values[0], *values]
    with pytest.raises(ValueError, match="same length"):
        two_turns(**{field: values})


@pytest.mark.parametrize(
    "spans",
    [[[2, 4], [6, 8]], [[2, 4], [3, 7]], [[6, 7], [2, 4]], [[2, 2], [6, 7]], [[4, 2]], [[-1, 4]]],
)
def test_spans_that_leave_the_tokens_overlap_or_are_empty_are_refused(spans):
    with pytest.raises(ValueError, match="action span"):
        two_turns(action_spans=spans)


def test_versions_belong_to_action_tokens_alone():
    with pytest.raises(ValueError, match="action token 3 has no policy version"):
        two_turns(policy_versions=[-1, -1, 3, -1, -1, -1, 5])
    with pytest.raises(ValueError, match="token 4 is no action token"):
        two_turns(policy_versions=[-1, -1, 3, 3, 3, -1, 5])


def test_other_bad_fields_are_refused():
    with pytest.raises(ValueError, match="status 'done' is not one of completed"):
        two_turns(status="done")
    with pytest.raises(ValueError, match="token_ids must hold integers"):
        two_turns(token_ids=[5.0, 6, 1, 2, 7, 8, 3])
    with pytest.raises(ValueError, match="reward nan"):
        two_turns(reward=NAN)


def test_one_trajectory_may_hold_several_weight_versions():
    older, newer = [-0.1] * 10, [-0.9] * 10
    trajectory = Trajectory(
        token_ids=[5, *range(20)],
        action_spans=[[1, 21]],
        rollout_logprobs=[None, *older, *newer],
        policy_versions=[-1, *[3] * 10, *[5] * 10],
        reward=0,
    )
    batch = Batch.from_trajectories([trajectory])
    torch.testing.assert_close(batch.rollout_logprobs[0, 1:], torch.tensor(older + newer))
    assert batch.policy_versions[0, 1:].tolist() == [3] * 10 + [5] * 10


def test_unusable_trajectories():
    assert two_turns().usable
    assert two_turns(status="truncated", reward=0.0).usable
    assert not two_turns(status="environment_error", reward=NAN).usable
    nothing = [-1] * 7
    assert not two_turns(action_spans=[], rollout_logprobs=[None] * 7, policy_versions=nothing).usable


# --- Batches -----------------------------------------------------------------------------------------------


def no_actions(**changes: Any) -> Trajectory:
    fields = {
        "token_ids": [5, 6],
        "action_spans": [],
        "rollout_logprobs": [None] * 2,
        "policy_versions": [-1] * 2,
    }
    return Trajectory(**fields, **{"reward": 1.0, **changes})


def test_batch_is_right_padded_and_aligned():
    short = Trajectory([5, 1], [[1, 2]], [None, -0.25], [-1, 0], reward=0.5, group_id=2)
    batch = Batch.from_trajectories([two_turns(), short], pad_token_id=EOS)
    assert len(batch) == 2
    assert batch.token_ids.tolist() == [[5, 6, 1, 2, 7, 8, 3], [5, 1, EOS, EOS, EOS, EOS, EOS]]
    assert batch.action_mask.int().tolist() == [[0, 0, 1, 1, 0, 0, 1], [0, 1, 0, 0, 0, 0, 0]]
    assert batch.step_ids.tolist() == [[-1, -1, 0, 0, -1, -1, 1], [-1, 0, -1, -1, -1, -1, -1]]
    assert batch.policy_versions.tolist() == [[-1, -1, 3, 3, -1, -1, 5], [-1, 0, -1, -1, -1, -1, -1]]
    assert batch.rewards.tolist() == [[0, 0, 0, 0, 0, 0, 1], [0, 0.5, 0, 0, 0, 0, 0]]
    assert torch.equal(batch.rollout_logprobs.isnan(), ~batch.action_mask)
    assert batch.outcome.tolist() == [1, 0.5]
    assert batch.lengths.tolist() == [7, 2]
    assert batch.group_ids.tolist() == [-1, 2]
    assert batch.num_action_tokens.tolist() == [3, 1]
    dtypes = {name: tensor.dtype for name, tensor in batch}
    assert dtypes["rollout_logprobs"] == dtypes["rewards"] == dtypes["outcome"] == torch.float32
    assert dtypes["action_mask"] == torch.bool


def test_padding_that_looks_like_the_end_token_is_no_action():
    short = Trajectory([4, 5, 6, EOS], [[1, 4]], [None, -1, -1, -1], [-1, 0, 0, 0], reward=1)
    longer = Trajectory([4, 5, 6, 7, 8, EOS], [[1, 6]], [None, *[-1] * 5], [-1, *[0] * 5], reward=1)
    batch = Batch.from_trajectories([short, longer], pad_token_id=EOS)
    assert batch.token_ids[0].tolist() == [4, 5, 6, EOS, EOS, EOS]
    assert batch.action_mask[0].int().tolist() == [0, 1, 1, 1, 0, 0]


def test_reward_stands_on_the_last_action_token():
    mask = torch.tensor(
        [[1, 1, 1, 0, 0, 0], [1, 0, 1, 1, 0, 1], [0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0]], dtype=torch.bool
    )
    assert last_action_index(mask).tolist() == [2, 5, 3, -1]
    rewards = place_outcome(torch.tensor([10.0, 2, 3, NAN]), mask)
    assert rewards.tolist() == [[0, 0, 10, 0, 0, 0], [0, 0, 0, 0, 0, 2], [0, 0, 0, 3, 0, 0], [0] * 6]
    assert returns(rewards, mask, gamma=0.0)[0].tolist() == [0, 0, 10, 0, 0, 0]


def test_row_without_action_tokens_keeps_its_place_and_holds_nothing():
    batch = Batch.from_trajectories([no_actions(), two_turns()])
    assert batch.rewards[0].abs().sum().item() == 0
    assert batch.num_action_tokens.tolist() == [0, 3]
    usable = [t for t in (no_actions(), two_turns(), two_turns(status="environment_error")) if t.usable]
    assert [t.num_action_tokens for t in usable] == [3]


def test_batch_refuses_no_trajectories_and_actions_without_a_prefix():
    with pytest.raises(ValueError, match="at least one"):
        Batch.from_trajectories([])
    with pytest.raises(ValueError, match="trajectory 1 starts with an action token"):
        Batch.from_trajectories([two_turns(), Trajectory([1], [[0, 1]], [-1.0], [0], reward=0)])


def test_batch_moves_between_devices():
    moved = Batch.from_trajectories([two_turns()]).to("cpu")
    assert moved.token_ids.tolist() == [two_turns().token_ids.tolist()]
