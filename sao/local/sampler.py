"""Trajectories in the slots of the decode engine: feeding, sampling, environment steps."""

from dataclasses import dataclass, field

import numpy as np
import torch

from sao.environments.base import Environment, EnvironmentFailure, Episode, Instance
from sao.local.decode import DecodeEngine
from sao.trajectory import Status, Trajectory


@dataclass(slots=True)
class Rollout:
    """A trajectory under way (or just finished) in a slot; ticks are those of the virtual clock.

    `episode` is None, and `slot` -1, where the environment failed to start.
    """

    instance: Instance
    episode: Episode | None
    index: int
    group_id: int
    slot: int
    start_tick: int
    token_ids: list[int]
    fed: int = 0
    action: list[int] = field(default_factory=list)
    action_spans: list[tuple[int, int]] = field(default_factory=list)
    logprobs: dict[int, float] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    reward: float = 0.0
    status: str = "running"
    failure: str = ""
    end_tick: int = -1
    graded_tick: int = -1

    @property
    def num_action_tokens(self) -> int:
        """Tokens sampled by the policy."""
        return len(self.logprobs)

    @property
    def oldest_version(self) -> int:
        """The version of the oldest weights that sampled one of them."""
        return min(self.versions.values())

    def to_trajectory(self) -> Trajectory:
        """The token-aligned record of a finished rollout."""
        tokens = len(self.token_ids)
        logprobs = np.full(tokens, np.nan, dtype=np.float32)
        versions = np.full(tokens, -1, dtype=np.int64)
        logprobs[list(self.logprobs)] = list(self.logprobs.values())
        versions[list(self.versions)] = list(self.versions.values())
        return Trajectory(
            token_ids=np.array(self.token_ids, dtype=np.int64),
            action_spans=np.array(self.action_spans, dtype=np.int64).reshape(-1, 2),
            rollout_logprobs=logprobs,
            policy_versions=versions,
            reward=self.reward,
            status=Status(self.status),
            prompt_id=self.instance.prompt_id,
            group_id=self.group_id,
            index=self.index,
            label=self.instance.label,
        )


class Sampler:
    """Runs rollouts in the slots of a decode engine, one sampled token per busy slot and tick.

    Prompts and observations are fed together with the token before them, as production engines prefill them,
    so a trajectory lasts as many ticks as it has action tokens. Nothing is cut from the distribution: the
    recorded log-prob is that of the full softmax at `temperature` (1 in training, where configs allow nothing
    else).
    """

    def __init__(self, engine: DecodeEngine, seed: int, temperature: float = 1.0) -> None:
        self.engine = engine
        self.temperature = temperature
        self.version = 0
        self.rollouts: dict[int, Rollout] = {}
        self.free_slots = list(range(engine.slots - 1, -1, -1))
        self.generator = torch.Generator(device=engine.device).manual_seed(seed)

    def start(
        self,
        environment: Environment,
        instance: Instance,
        index: int,
        group_id: int,
        tick: int,
        progress: float,
    ) -> None:
        """Begin a rollout of `instance` in a free slot; `progress` is the share of training done."""
        episode = environment.start(instance, progress)
        slot = self.free_slots.pop()
        self.rollouts[slot] = Rollout(
            instance, episode, index, group_id, slot, tick, list(episode.prompt_ids)
        )

    def tick(self, now: int) -> list[Rollout]:
        """Sample one token in every busy slot; returns the rollouts that ended, their slots free again."""
        if not self.rollouts:
            return []
        active = list(self.rollouts.values())
        logits = self.engine.step(
            [rollout.slot for rollout in active],
            [rollout.fed for rollout in active],
            [rollout.token_ids[rollout.fed :] for rollout in active],
        )
        logprobs = (logits / self.temperature).log_softmax(-1)
        tokens = self._draw(logprobs)
        chosen = logprobs.gather(1, tokens[:, None])[:, 0]
        for rollout, token, logprob in zip(active, tokens.tolist(), chosen.tolist(), strict=True):
            self._append(rollout, token, logprob)
        finished = [rollout for rollout in active if rollout.status != "running"]
        for rollout in finished:
            rollout.end_tick = now
            del self.rollouts[rollout.slot]
            self.free_slots.append(rollout.slot)
        return finished

    def _draw(self, logprobs: torch.Tensor) -> torch.Tensor:
        """A token of each row's distribution [rows, vocabulary] by inverting its cumulative, int64 [rows]."""
        cumulative = logprobs.exp().cumsum(-1, dtype=torch.float64)
        uniform = torch.rand(
            len(logprobs), 1, dtype=torch.float64, device=logprobs.device, generator=self.generator
        )
        tokens = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)[:, 0]
        return tokens.clamp_max(logprobs.shape[1] - 1)

    def forget_caches(self) -> None:
        """Make every rollout under way feed all its tokens again, so that its cache fits the new weights."""
        for rollout in self.rollouts.values():
            rollout.fed = 0

    def _append(self, rollout: Rollout, token: int, logprob: float) -> None:
        tokens, action, episode = rollout.token_ids, rollout.action, rollout.episode
        assert episode is not None  # rollouts in slots have one
        rollout.fed = position = len(tokens)
        tokens.append(token)
        action.append(token)
        rollout.logprobs[position] = logprob
        rollout.versions[position] = self.version
        if episode.action_complete(action):
            self._act(rollout)
        elif position + 1 >= self.engine.max_tokens:
            self._close_action(rollout)
            rollout.status = "truncated"

    def _act(self, rollout: Rollout) -> None:
        action, episode = rollout.action, rollout.episode
        assert episode is not None
        self._close_action(rollout)
        try:
            result = episode.step(action)
        except EnvironmentFailure as failure:
            rollout.status, rollout.failure = "environment_error", str(failure)
            return
        if result.done:
            rollout.status, rollout.reward = result.status, result.reward
        elif len(rollout.token_ids) + len(result.observation_ids) >= self.engine.max_tokens:
            rollout.status = "truncated"
        else:
            rollout.token_ids.extend(result.observation_ids)

    @staticmethod
    def _close_action(rollout: Rollout) -> None:
        end = len(rollout.token_ids)
        rollout.action_spans.append((end - len(rollout.action), end))
        rollout.action = []


def sample_all(
    sampler: Sampler, environment: Environment, instances: list[Instance], progress: float
) -> list[Rollout]:
    """One finished rollout of each instance, in the order given (environment errors are among them)."""
    waiting = list(enumerate(instances))[::-1]
    finished: list[Rollout] = []
    tick = 0
    while waiting or sampler.rollouts:
        while waiting and sampler.free_slots:
            index, instance = waiting.pop()
            try:
                sampler.start(environment, instance, index, -1, tick, progress)
            except EnvironmentFailure:
                finished.append(Rollout(instance, None, index, -1, -1, tick, [], status="environment_error"))
        tick += 1
        finished += sampler.tick(tick)
    return sorted(finished, key=lambda rollout: rollout.index)
