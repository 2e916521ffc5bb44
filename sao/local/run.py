"""One run in the local engine from its preparation to its last evaluation: logs, checkpoints, resumes."""

import time
from collections.abc import Sequence
from typing import Any, TextIO

import torch

from sao import critic, metrics
from sao.environments import make_environment
from sao.local.checkpoint import load_state, save_state
from sao.local.evaluation import evaluate, evaluation_lines
from sao.local.model import export_policy, load_policy
from sao.local.packed_batch import TrainingError
from sao.local.schedule import Schedule, SchedulingError, Taken, schedule_lines
from sao.local.trainer import Trainer
from sao.prepare import require_preparation
from sao.runlog import METRIC_COLUMNS, RunDirectory
from sao.trajectory import Batch, Trajectory

PROGRESS_SECONDS = 10.0
LOGGED_TRAJECTORIES = 8


class RunFailure(RuntimeError):
    """The run cannot reach its end; the message says at which step and why."""


class LocalRun:
    """Trainer, schedule and logs of one run, resumed from the latest checkpoint where there is one."""

    def __init__(self, directory: RunDirectory, results: str) -> None:
        self.directory, self.run = directory, directory.config
        torch.set_num_threads(1)
        self.started, self.cpu_started = time.monotonic(), time.process_time()
        self.environment = make_environment(self.run.task)
        warm_start = require_preparation(results, self.run.scale, self.run.task.name, "warm_start")
        policy = load_policy(warm_start / "policy")
        self.trainer = Trainer(self.run, policy, self._value_model(policy, results))
        self.schedule = Schedule(self.run, self.environment, policy)
        self.totals: dict[str, Any] = {"wall_seconds": 0.0, "cpu_seconds": 0.0, "sampler_tokens": 0}
        self.step = -self.run.critic_only_steps
        self._resume()

    def _value_model(self, policy: Any, results: str) -> critic.ValueModel | None:
        settings = self.run.critic
        if settings is None:
            return None
        value_model = critic.ValueModel.from_policy(policy)
        if settings.pretrained:
            from safetensors.torch import load_model

            step = f"values_{settings.frozen}"
            folder = require_preparation(results, self.run.scale, self.run.task.name, step)
            load_model(value_model, str(folder / "value_model.safetensors"))
        return value_model

    def _resume(self) -> None:
        checkpoint = self.directory.latest_checkpoint()
        if checkpoint is not None:
            self.step, folder = checkpoint
            self.totals = load_state(folder, self.trainer, self.schedule)
        self.directory.rewind(self.step)
        self.first_step = self.step

    def attempt_cpu_seconds(self) -> float:
        """Processor time of this attempt, in seconds."""
        return time.process_time() - self.cpu_started

    def train(self) -> None:
        """Runs the remaining steps; raises RunFailure where the run cannot go on."""
        with self.directory.attempt_log_path.open("a") as log:
            printed = time.monotonic()
            try:
                while self.step < self.run.training.updates:
                    record = self._train_step()
                    if (
                        time.monotonic() - printed >= PROGRESS_SECONDS
                        or self.step == self.run.training.updates
                    ):
                        printed = time.monotonic()
                        self._print_progress(record, log)
            except (SchedulingError, TrainingError) as error:
                raise RunFailure(f"step {self.step}: {error}") from error

    def _train_step(self) -> dict[str, Any]:
        step, began = self.step, time.monotonic()
        taken = self.schedule.next_batch()
        if step + 1 in self.run.evaluation.steps:
            shown = taken.trajectories[:LOGGED_TRAJECTORIES]
            self.directory.log_training_trajectories(self._trajectory_lines(shown, step))
        record = self.trainer.update(taken.trajectories, step)
        self.schedule.begin_update(trains_policy=step >= 0)
        self.totals["sampler_tokens"] += taken.counters.sampled_tokens
        record = self._metrics(record, taken, step, time.monotonic() - began)
        self.directory.log_schedule(list(schedule_lines(taken, step, self.schedule.clock.update_ticks)))
        self.directory.log_metrics(record)
        self.step += 1
        if self.step in self.run.evaluation.steps:
            self._evaluate()
        if (
            self.step > 0
            and self.step % self.run.checkpoint_interval == 0
            and self.step < self.run.training.updates
        ):
            self._checkpoint()
        return record

    def _elapsed(self) -> dict[str, Any]:
        """Totals over all attempts up to now."""
        return self.totals | {
            "wall_seconds": self.totals["wall_seconds"] + time.monotonic() - self.started,
            "cpu_seconds": self.totals["cpu_seconds"] + self.attempt_cpu_seconds(),
        }

    def _checkpoint(self) -> None:
        totals = self._elapsed()
        self.directory.save_checkpoint(
            self.step, lambda folder: save_state(folder, self.trainer, self.schedule, totals)
        )

    def _evaluate(self) -> None:
        """Evaluates the held-out set, exports the weights and logs some trajectories token by token."""
        step, policy = self.step, self.trainer.policy
        progress = min(step / self.run.training.updates, 1.0)
        rollouts = evaluate(self.run, self.environment, policy, step, progress, self.run.seed)
        shown = [rollout.to_trajectory() for rollout in rollouts if rollout.status != "environment_error"]
        self.directory.log_trajectories(self._trajectory_lines(shown[:LOGGED_TRAJECTORIES], step))
        export_policy(policy, self.directory.weights_path(step), self.environment.tokenizer)
        # Last, because a run with all its evaluations counts as complete.
        self.directory.log_evaluations(evaluation_lines(rollouts, self.run.task.name, step))

    def _trajectory_lines(self, trajectories: Sequence[Trajectory], step: int) -> list[dict[str, Any]]:
        """Lines of trajectories with what the trainer's present weights make of each token."""
        per_token = self.trainer.inspect(trajectories)
        lines = []
        for row, trajectory in enumerate(trajectories):
            line = {
                "step": step,
                "problem_id": trajectory.prompt_id,
                "label": trajectory.label,
                "status": str(trajectory.status),
                "reward": trajectory.reward,
                "token_ids": trajectory.token_ids,
                "token_texts": [self.environment.vocabulary[token] for token in trajectory.token_ids],
                "action_mask": trajectory.action_mask.astype(int),
                "rollout_logprobs": trajectory.rollout_logprobs,
                "policy_versions": trajectory.policy_versions,
            }
            for name, values in per_token.items():
                line[name] = None if values is None else on_actions(values[row], trajectory)
            lines.append(line)
        return lines

    def _metrics(self, record: dict[str, Any], taken: Taken, step: int, seconds: float) -> dict[str, Any]:
        """The step's line of metrics.jsonl."""
        batch = Batch.from_trajectories(taken.trajectories)
        counters = taken.counters
        ticks = max(counters.ticks, 1)
        totals = self._elapsed()
        actions = int(batch.action_mask.sum())
        version = self.schedule.state.version
        waits = [taken.tick - rollout.graded_tick for rollout in taken.rollouts]
        record |= metrics.staleness_statistics(batch.policy_versions, batch.action_mask, version)
        record |= {
            "step": step,
            "version": version,
            "wall_seconds": totals["wall_seconds"],
            "cpu_seconds": totals["cpu_seconds"],
            "tokens_per_second": counters.sampled_tokens / seconds,
            "virtual_ticks": taken.tick,
            "reward_mean": batch.outcome.mean().item(),
            "positive_share": (batch.outcome > 0).double().mean().item(),
            "dropped_stale": counters.dropped_stale,
            "invalid": counters.invalid,
            "filtered_groups": counters.filtered_groups,
            "truncated": sum(trajectory.status == "truncated" for trajectory in taken.trajectories),
            "trajectories": len(batch),
            "action_tokens": actions,
            "total_tokens": int(batch.lengths.sum()),
            "mean_action_tokens": actions / len(batch),
            "mean_turns": sum(trajectory.turns for trajectory in taken.trajectories) / len(batch),
            "prompts_seen": (step + self.run.critic_only_steps + 1) * self.run.prompts_per_batch,
            "queue_wait_mean_ticks": sum(waits) / len(waits),
            "sampler_idle_share": 1 - counters.busy_slot_ticks / (ticks * self.run.sampler.slots),
            "trainer_idle_share": 1 - counters.trainer_ticks / ticks,
            "sampler_tokens": totals["sampler_tokens"],
        }
        return {name: record.get(name) for name in METRIC_COLUMNS}

    def _print_progress(self, record: dict[str, Any], log: TextIO) -> None:
        done = self.step - self.first_step
        rate = done / (time.monotonic() - self.started)
        updates = self.run.training.updates
        minutes, seconds = divmod(round((updates - self.step) / rate), 60)
        line = (
            f"{self.run.row} seed {self.run.seed}  step {self.step}/{updates}  "
            f"reward {record['reward_mean']:.3f}  {rate:.2f} updates/s  {minutes}:{seconds:02} left"
        )
        print(line, flush=True)
        print(line, file=log, flush=True)


def on_actions(values: torch.Tensor, trajectory: Trajectory) -> list[float | None]:
    """The values at the trajectory's action tokens, None elsewhere; `values` float [tokens or more]."""
    actions = trajectory.action_mask.tolist()
    return [
        value if action else None
        for value, action in zip(values[: len(actions)].tolist(), actions, strict=True)
    ]
