"""A step on a batch over Ray: critic updates, advantages and the policy update.

The order and every formula are those of the local engine. One controller holds the batch; what models compute
comes from their Ray actors, a share of the batch from each rank.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import sao.openrlhf.ready  # noqa: F401

# isort: split
import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.utils.seqlen_balancing import get_seqlen_balanced_partitions
from torch import Tensor

from sao import critic, metrics
from sao.config import RunConfig
from sao.config_rows import GAE
from sao.estimators import (
    Record,
    Values,
    critic_learning_rate,
    critic_targets,
    estimate_advantages,
    make_running_mean,
    shaped_rewards,
    trained_positions,
    value_fit,
)
from sao.policy_objective import needs_old_logprobs
from sao.trajectory import Batch, Trajectory, last_action_index


class ExperienceMaker(RemoteExperienceMaker):
    """Trains policy and critic on batches of trajectories; holds the row's running mean."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.run: RunConfig = self.args.sao
        self.running_mean = make_running_mean(self.run)
        self.copies = self.args.ds.ring_attn_size * self.args.ds.tensor_parallel_size

    def update(self, trajectories: Sequence[Trajectory], step: int) -> Record:
        """One step; steps below 0 train the critic alone. Returns the step's metrics."""
        batch = Batch.from_trajectories(trajectories, self.tokenizer.pad_token_id)
        rewards = shaped_rewards(self.run, batch)
        record: Record = {}
        values = None
        if isinstance(self.run.advantage, GAE):
            values = self._update_critic(batch, rewards, self.run.advantage, step, record)
        if step >= 0:
            estimates, estimator_record = estimate_advantages(
                self.run, trajectories, batch, rewards, values, self.running_mean
            )
            record |= estimator_record | self._update_policy(batch, estimates)
        return record

    def _update_critic(
        self, batch: Batch, rewards: Tensor, estimator: GAE, step: int, record: Record
    ) -> Values:
        """The batch's critic updates; returns the values that the row's advantages use."""
        assert self.run.critic is not None
        positions = trained_positions(estimator, batch)
        before = self.values(batch)
        experiences = self._experiences(
            self.critic_model_group,
            batch,
            positions,
            minibatches=1,
            values=before[0],
            returns=critic_targets(estimator, rewards, positions),
        )
        rate = critic_learning_rate(self.run, step)
        parts = self._fit(self.critic_model_group, experiences, learning_rate=rate)
        after = self.values(batch)
        record |= {
            "value_loss": summed(parts, "losses")[0] / summed(parts, "tokens")[0],
            "critic_grad_norm": parts[0]["grad_norms"][0],
            "critic_grad_norm_attention": parts[0]["grad_norms_attention"][0],
            "critic_grad_norm_rest": parts[0]["grad_norms_rest"][0],
            "critic_learning_rate": rate,
            "value_mean": after[0][positions].mean().item(),
        }
        record |= value_fit("before", estimator, before[0], rewards, batch)
        record |= value_fit("after", estimator, after[0], rewards, batch)
        return after if self.run.critic.advantages_after_updates else before

    def _update_policy(self, batch: Batch, estimates: Tensor) -> Record:
        old = self.logprobs(batch) if needs_old_logprobs(self.run) else None
        experiences = self._experiences(
            self.actor_model_group,
            batch,
            batch.action_mask,
            minibatches=self.run.minibatches_per_batch,
            advantages=estimates,
            rollout_log_probs=batch.rollout_logprobs,
            action_log_probs=old,
        )
        parts = self._fit(self.actor_model_group, experiences)
        losses = [
            loss / tokens
            for loss, tokens in zip(summed(parts, "losses"), summed(parts, "tokens"), strict=True)
        ]
        norms = parts[0]["grad_norms"]
        logprobs, rollout, entropies = (
            torch.cat([part[name] for part in parts])
            for name in ("logprobs", "rollout_logprobs", "entropies")
        )
        record: Record = metrics.ratio_statistics(logprobs, rollout, torch.ones_like(logprobs))
        record |= {
            "learning_rate": parts[0]["learning_rate"],
            "policy_loss": sum(losses) / len(losses),
            "policy_grad_norm": sum(norms) / len(norms),
            "entropy": entropies.mean().item(),
        }
        for name in ("masked_low", "masked_high", "clipped"):
            counted = [part["counts"].get(name) for part in parts]
            record[name] = None if counted[0] is None else sum(counted) / len(logprobs)
        return record

    def inspect(self, trajectories: Sequence[Trajectory]) -> dict[str, Tensor | None]:
        """Trainer log-probs, values and advantages [batch, tokens] of trajectories, for logs; trains nothing.

        Without a critic there are no values, and no advantages of single trajectories.
        """
        batch = Batch.from_trajectories(trajectories, self.tokenizer.pad_token_id)
        logprobs = self.logprobs(batch)
        if self.critic_model_group is None:
            return {"trainer_logprobs": logprobs, "values": None, "advantages": None}
        values = self.values(batch)
        estimates, _ = estimate_advantages(
            self.run, trajectories, batch, batch.rewards, values, self.running_mean
        )
        return {"trainer_logprobs": logprobs, "values": values[0], "advantages": estimates}

    def values(self, batch: Batch) -> Values:
        """V before each token, float32 [batch, tokens], and V behind the last action token, [batch]."""
        raw = self._forward(self.critic_model_group, batch)
        last = last_action_index(batch.action_mask).clamp_min(0)
        return critic.values_before_tokens(raw), raw.gather(1, last[:, None])[:, 0]

    def logprobs(self, batch: Batch) -> Tensor:
        """The trainer's log-probs of action tokens, float32 [batch, tokens], 0 elsewhere."""
        return torch.nn.functional.pad(
            self._forward(self.actor_model_group, batch, batch.action_mask), (1, 0)
        )

    def _forward(self, group: Any, batch: Batch, mask: Tensor | None = None) -> Tensor:
        """What the group's `forward` computes of every row, one after the other, padded with 0."""
        rows_of_calls = self._calls(batch.lengths, self._ranks(group))
        inputs = [make_experience(batch, batch.action_mask, rows) for rows in rows_of_calls]
        named = {
            "sequences": [piece.sequences for piece in inputs],
            "attention_mask": [piece.attention_mask for piece in inputs],
        }
        if mask is not None:
            named["action_mask"] = [piece.action_mask for piece in inputs]
        refs = group.async_run_method_batch(method_name="forward", **named)
        results = itertools.chain.from_iterable(ray.get(refs)[:: self.copies])
        filled = torch.zeros(batch.token_ids.shape)
        for rows, result in zip(rows_of_calls, results, strict=True):
            filled[rows, : result.shape[1]] = result
        return filled if mask is None else filled[:, :-1]

    def _calls(self, lengths: Tensor, ranks: int) -> list[list[int]]:
        """Rows of each forward, those of the first rank first; every rank has as many forwards.

        Where the rows cannot be divided among the ranks, the last one is computed more than once.
        """
        rows = list(range(len(lengths))) + [len(lengths) - 1] * (-len(lengths) % ranks)
        shares = [[rows[place] for place in share] for share in dealt(lengths[rows], ranks, 1)]
        if self.args.train.dynamic_batch_enable:
            budget = self.args.rollout.max_tokens_per_gpu * self.copies
            count = max(-(-int(lengths[share].sum()) // budget) for share in shares)
            count = min(max(count, 1), len(shares[0]))
        else:
            count = max(len(shares[0]) // self.args.rollout.micro_batch_size, 1)
        calls = []
        for share in shares:
            parts = get_seqlen_balanced_partitions(lengths[share].tolist(), count, equal_size=False)
            calls += [[share[place] for place in part] for part in parts]
        return calls

    def _ranks(self, group: Any) -> int:
        own = self.args.critic if group is self.critic_model_group else self.args.actor
        return own.num_nodes * own.num_gpus_per_node // self.copies

    def _experiences(
        self, group: Any, batch: Batch, mask: Tensor, minibatches: int, **fields: Tensor | None
    ) -> list[Experience]:
        shares = dealt(batch.lengths, self._ranks(group), minibatches)
        return [make_experience(batch, mask, rows, **fields) for rows in shares]

    def _fit(self, group: Any, experiences: list[Experience], **settings: Any) -> list[dict[str, Any]]:
        """Hands every rank its share and trains on it; what each data-parallel rank returns."""
        ray.get(group.async_run_method_batch(method_name="append", experience=experiences))
        return ray.get(group.async_run_method(method_name="fit", **settings))[:: self.copies]


def make_experience(batch: Batch, mask: Tensor, rows: list[int], **fields: Tensor | None) -> Experience:
    """Rows of a batch as OpenRLHF hands them on: right-padded, token-aligned fields from token 1 on.

    `mask` bool [batch, tokens] takes the place of OpenRLHF's action mask: the tokens that are trained on.
    """
    lengths = batch.lengths[rows]
    tokens = int(lengths.max())
    aligned = {
        name: None if field is None else field[rows, 1:tokens].contiguous() for name, field in fields.items()
    }
    return Experience(
        sequences=batch.token_ids[rows, :tokens],
        attention_mask=(torch.arange(tokens) < lengths[:, None]).long(),
        action_mask=mask[rows, 1:tokens].contiguous(),
        rewards=batch.outcome[rows],
        total_length=lengths,
        **aligned,
    )


def dealt(lengths: Tensor, ranks: int, minibatches: int) -> list[list[int]]:
    """Rows of each rank: as many for each, of lengths as equal as dealing back and forth makes them.

    The rows of a minibatch stay together: rank r trains on the same share of each of them. Raises ValueError
    where a minibatch cannot be divided among the ranks.
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for rows in torch.arange(len(lengths)).chunk(minibatches):
        if len(rows) % ranks:
            raise ValueError(f"{len(rows)} trajectories of an update cannot be divided among {ranks} ranks")
        longest_first = rows[lengths[rows].argsort(descending=True, stable=True)].tolist()
        for turn, start in enumerate(range(0, len(rows), ranks)):
            dealt_now = longest_first[start : start + ranks]
            for share, row in zip(shares, dealt_now if turn % 2 == 0 else dealt_now[::-1], strict=True):
                share.append(row)
    return shares


def summed(parts: Iterable[dict[str, Any]], name: str) -> list[float]:
    """Element-wise sum over ranks of a list that each of them returned."""
    return [sum(values) for values in zip(*(part[name] for part in parts), strict=True)]
