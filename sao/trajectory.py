"""Trajectories and batches: the token-aligned record that sampler, trainer and logs share.

A trajectory is `[prompt, a0, o0, a1, o1, ...]`: the policy samples the action tokens `a_i`, the environment
writes the observation tokens `o_i`. Which tokens are actions is recorded when they are sampled and never
inferred from token ids, so that an end-of-sequence token may also be the padding token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

LOGPROB_TOLERANCE = (
    1e-4  # a log-probability may exceed 0 by float32 rounding of the engine's softmax, no more
)


class Status(StrEnum):
    """How a trajectory ended."""

    COMPLETED = "completed"
    TRUNCATED = "truncated"  # token or turn limit
    ENVIRONMENT_ERROR = (
        "environment_error"  # says nothing about the policy: leaves the batch and its statistics
    )


@dataclass
class Trajectory:
    """One rollout. Sequences are converted to numpy arrays and checked when it is built.

    token_ids          int64 [n]      prompt, actions and observations in order
    action_spans       int64 [k, 2]   half-open token ranges sampled by the policy, in order
    rollout_logprobs   float32 [n]    log-probability of each action token as the engine sampled it; NaN (or
                                      None, which becomes NaN) elsewhere, never 0
    policy_versions    int64 [n]      weight version that sampled each action token; -1 elsewhere
    reward             outcome, placed on the last action token
    status             completed, truncated or environment_error
    prompt_id          hash of the prompt's content
    group_id           group of rollouts of one prompt; -1 without groups
    index              order in which the rollout was started; -1 if unknown
    turns              number of actions; counted from the spans by default
    label              difficulty band, topic or another label of the instance

    Raises ValueError when lengths differ, spans overlap or leave the trajectory, an action token lacks its
    log-probability or version, or a token outside the actions has one.
    """

    token_ids: NDArray[np.int64]
    action_spans: NDArray[np.int64]
    rollout_logprobs: NDArray[np.float32]
    policy_versions: NDArray[np.int64]
    reward: float
    status: Status = Status.COMPLETED
    prompt_id: str = ""
    group_id: int = -1
    index: int = -1
    turns: int = -1
    label: str | None = None
    action_mask: NDArray[np.bool_] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.token_ids = _integers(self.token_ids, "token_ids")
        self.policy_versions = _integers(self.policy_versions, "policy_versions")
        self.action_spans = _integers(self.action_spans, "action_spans").reshape(-1, 2)
        self.rollout_logprobs = _floats(self.rollout_logprobs)
        self.reward = float(self.reward)
        try:
            self.status = Status(self.status)
        except ValueError:
            raise ValueError(f"status {self.status!r} is not one of {', '.join(Status)}") from None
        if self.turns < 0:
            self.turns = len(self.action_spans)
        self._check_lengths()
        self._check_spans()
        self.action_mask = self.step_ids >= 0
        self._check_action_tokens()
        if not np.isfinite(self.reward) and self.status != Status.ENVIRONMENT_ERROR:
            raise ValueError(f"reward {self.reward} is not finite")

    def _check_lengths(self) -> None:
        lengths = {
            name: getattr(self, name).shape for name in ("token_ids", "rollout_logprobs", "policy_versions")
        }
        if len(set(lengths.values())) != 1 or self.token_ids.ndim != 1:
            described = ", ".join(f"{name} {list(shape)}" for name, shape in lengths.items())
            raise ValueError(f"token-aligned fields must have the same length: {described}")

    def _check_spans(self) -> None:
        previous_end = 0
        for start, end in self.action_spans.tolist():
            if not previous_end <= start < end <= len(self.token_ids):
                raise ValueError(
                    f"action span [{start}, {end}) is empty, out of order, overlapping, "
                    f"or leaves the {len(self.token_ids)} tokens"
                )
            previous_end = end

    def _check_action_tokens(self) -> None:
        actions = self.action_mask
        logprobs = self.rollout_logprobs
        if not np.isfinite(logprobs[actions]).all():
            position = np.flatnonzero(actions & ~np.isfinite(logprobs))[0]
            raise ValueError(f"action token {position} has no finite rollout log-probability")
        if (logprobs[actions] > LOGPROB_TOLERANCE).any():
            position = np.flatnonzero(actions & (logprobs > LOGPROB_TOLERANCE))[0]
            raise ValueError(
                f"action token {position} has rollout log-probability {logprobs[position]} above 0"
            )
        if not np.isnan(logprobs[~actions]).all():
            position = np.flatnonzero(~actions & ~np.isnan(logprobs))[0]
            raise ValueError(
                f"token {position} is no action token: its rollout log-probability must be NaN, "
                f"not {logprobs[position]}"
            )
        if (self.policy_versions[actions] < 0).any():
            position = np.flatnonzero(actions & (self.policy_versions < 0))[0]
            raise ValueError(f"action token {position} has no policy version")
        if (self.policy_versions[~actions] != -1).any():
            position = np.flatnonzero(~actions & (self.policy_versions != -1))[0]
            raise ValueError(f"token {position} is no action token: its policy version must be -1")

    @property
    def step_ids(self) -> NDArray[np.int64]:
        """Index of the action each token belongs to, int64 [n]; -1 outside the actions."""
        steps = np.full(len(self.token_ids), -1, dtype=np.int64)
        for step, (start, end) in enumerate(self.action_spans.tolist()):
            steps[start:end] = step
        return steps

    @property
    def num_action_tokens(self) -> int:
        return int((self.action_spans[:, 1] - self.action_spans[:, 0]).sum())

    @property
    def oldest_version(self) -> int:
        """The version of the oldest weights that sampled a token; ValueError without an action token."""
        return int(self.policy_versions[self.action_mask].min())

    @property
    def usable(self) -> bool:
        """Whether it belongs in a batch: it has action tokens and its environment did not break."""
        return self.num_action_tokens > 0 and self.status != Status.ENVIRONMENT_ERROR

    def to_dict(self) -> dict[str, Any]:
        """Plain Python values for JSON; NaN log-probabilities become None."""
        record: dict[str, Any] = {}
        for item in dataclasses.fields(self):
            if item.init:
                value = getattr(self, item.name)
                record[item.name] = value.tolist() if isinstance(value, np.ndarray) else value
        record["status"] = str(self.status)
        record["rollout_logprobs"] = [None if np.isnan(x) else x for x in record["rollout_logprobs"]]
        if not np.isfinite(self.reward):
            record["reward"] = None
        return record

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Trajectory:
        """Inverse of `to_dict`."""
        reward = record["reward"]
        return cls(**{**record, "reward": float("nan") if reward is None else reward})


def _integers(values: ArrayLike, name: str) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{name} must hold integers, not {array.dtype}")
    return array.astype(np.int64)


def _floats(values: ArrayLike) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)  # None becomes NaN


@dataclass
class Batch:
    """Right-padded trajectories; row i is trajectory i of the list it was built from.

    token_ids          int64 [batch, tokens]    padding id beyond a row's length
    action_mask        bool [batch, tokens]
    rollout_logprobs   float32 [batch, tokens]  NaN off the action tokens
    policy_versions    int64 [batch, tokens]    -1 off the action tokens
    step_ids           int64 [batch, tokens]    index of the action; -1 off the action tokens
    rewards            float32 [batch, tokens]  the outcome on the last action token, 0 elsewhere
    outcome            float32 [batch]          reward of the trajectory
    lengths            int64 [batch]            prompt, actions and observations
    group_ids          int64 [batch]            -1 without groups
    """

    token_ids: Tensor
    action_mask: Tensor
    rollout_logprobs: Tensor
    policy_versions: Tensor
    step_ids: Tensor
    rewards: Tensor
    outcome: Tensor
    lengths: Tensor
    group_ids: Tensor

    @classmethod
    def from_trajectories(cls, trajectories: Sequence[Trajectory], pad_token_id: int = 0) -> Batch:
        """Pad trajectories to the longest. Filter with `Trajectory.usable` first: a row without action tokens
        is carried along with an empty mask and adds nothing to any loss.

        Raises ValueError for an empty list and for an action at token 0, which no prefix predicts.
        """
        if not trajectories:
            raise ValueError("a batch needs at least one trajectory")
        for row, trajectory in enumerate(trajectories):
            if trajectory.action_mask[:1].any():
                raise ValueError(
                    f"trajectory {row} starts with an action token; a prompt token must precede it"
                )
        step_ids = _pad([t.step_ids for t in trajectories], -1)
        action_mask = step_ids >= 0
        outcome = torch.tensor([t.reward for t in trajectories], dtype=torch.float32)
        return cls(
            token_ids=_pad([t.token_ids for t in trajectories], pad_token_id),
            action_mask=action_mask,
            rollout_logprobs=_pad([t.rollout_logprobs for t in trajectories], float("nan")),
            policy_versions=_pad([t.policy_versions for t in trajectories], -1),
            step_ids=step_ids,
            rewards=place_outcome(outcome, action_mask),
            outcome=outcome,
            lengths=torch.tensor([len(t.token_ids) for t in trajectories]),
            group_ids=torch.tensor([t.group_id for t in trajectories]),
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Names and tensors of the fields."""
        return ((item.name, getattr(self, item.name)) for item in dataclasses.fields(self))

    @property
    def num_action_tokens(self) -> Tensor:
        """int64 [batch]"""
        return self.action_mask.sum(dim=1)

    def to(self, device: torch.device | str) -> Batch:
        return Batch(**{name: tensor.to(device) for name, tensor in self})


def _pad(rows: Sequence[NDArray[Any]], value: float) -> Tensor:
    padded = np.full((len(rows), max(len(row) for row in rows)), value, dtype=rows[0].dtype)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return torch.from_numpy(padded)


def last_action_index(action_mask: Tensor) -> Tensor:
    """Position of each row's last action token, int64 [batch]; -1 for a row without one."""
    positions = torch.arange(action_mask.shape[1], device=action_mask.device)
    return torch.where(action_mask.bool(), positions, -1).amax(dim=1)


def place_outcome(outcome: Tensor, action_mask: Tensor) -> Tensor:
    """Token rewards [batch, tokens] that hold the outcome [batch] on each row's last action token, 0
    elsewhere.

    A row without action tokens stays 0 whatever its outcome.
    """
    last = last_action_index(action_mask)
    positions = torch.arange(action_mask.shape[1], device=action_mask.device)
    return torch.where(positions == last[:, None], outcome[:, None], torch.zeros_like(outcome)[:, None])
