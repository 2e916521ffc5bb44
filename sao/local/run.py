"""One run in the local engine from its preparation to its last evaluation: logs, checkpoints, resumes."""

import time
from collections.abc import Sequence
from typing import Any, Protocol, TextIO

import torch
from transformers import Qwen3MoeForCausalLM

from sao import critic
from sao.config import RunConfig
from sao.environments import make_environment
from sao.local.checkpoint import load_state, save_state
from sao.local.evaluation import evaluate, sample_of
from sao.local.model import export_policy, load_policy, on_device
from sao.local.packed_batch import TrainingError
from sao.local.schedule import Schedule
from sao.local.trainer import Trainer
from sao.prepare import require_preparation
from sao.runlog import RunDirectory, RunFailure
from sao.step_log import evaluation_lines, metrics_line, progress_line, trajectory_lines
from sao.streaming import SchedulingError, Taken, dropped_lines, schedule_lines
from sao.trajectory import Trajectory

PROGRESS_SECONDS = 10.0
LOGGED_TRAJECTORIES = 8


class BatchSource(Protocol):
    """What a run trains on: the schedule on the virtual clock, or that on the wall clock."""

    @property
    def version(self) -> int:
        """Updates of the policy so far."""

    def next_batch(self) -> Taken:
        """The batch to train on; the trainer is busy from now."""

    def end_update(self, trains_policy: bool) -> int:
        """The update on that batch was computed; returns the ticks that it takes."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, saved: dict[str, Any]) -> None: ...


class LocalAttempt:
    """One attempt at a run; nothing is loaded before `train`."""

    def __init__(self, directory: RunDirectory, results: str) -> None:
        self.directory, self.results = directory, results
        self.local: LocalRun | None = None
        self.started = time.monotonic()

    def gpu_seconds(self) -> float:
        """Wall time of this attempt with a GPU, in seconds; 0 without CUDA."""
        return time.monotonic() - self.started if self.directory.config.device == "cuda" else 0.0

    def train(self) -> None:
        """Runs the remaining steps; raises RunFailure where the run cannot go on."""
        self.local = _kind_of_run(self.directory.config)(self.directory, self.results)
        self.local.train()

    def cpu_seconds(self) -> float:
        """Processor time of this attempt, in seconds."""
        return self.local.attempt_cpu_seconds() if self.local else 0.0


def _kind_of_run(run: RunConfig) -> "type[LocalRun]":
    """A run on the virtual clock, or on the wall clock where agents call the policy over HTTP."""
    if run.task.environment != "swe_tiny":
        return LocalRun
    from sao.local.wall_clock_run import WallClockRun

    return WallClockRun


class LocalRun:
    """Trainer, schedule and logs of one run, resumed from the latest checkpoint where there is one."""

    def __init__(self, directory: RunDirectory, results: str) -> None:
        self.directory, self.run = directory, directory.config
        torch.set_num_threads(1)
        self.started, self.cpu_started = time.monotonic(), time.process_time()
        self.environment = make_environment(self.run.task, self.run.model, results)
        warm_start = require_preparation(results, self.run.scale, self.run.task.name, "warm_start")
        policy = on_device(load_policy(warm_start / "policy"), self.run.device)
        self.trainer = Trainer(self.run, policy, self._value_model(policy, results))
        self.schedule = self._make_schedule(policy)
        self.totals: dict[str, Any] = {"wall_seconds": 0.0, "cpu_seconds": 0.0, "sampler_tokens": 0}
        self.step = -self.run.critic_only_steps
        self._resume()

    def _make_schedule(self, policy: Qwen3MoeForCausalLM) -> BatchSource:
        return Schedule(self.run, self.environment, policy)

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
        version = self.schedule.version
        update_ticks = self.schedule.end_update(trains_policy=step >= 0)
        self.totals["sampler_tokens"] += taken.counters.sampled_tokens
        seconds = time.monotonic() - began
        record = metrics_line(self.run, record, taken, step, version, seconds, self._elapsed())
        self.directory.log_schedule(list(schedule_lines(taken, step, update_ticks)))
        self.directory.log_dropped(dropped_lines(taken, step))
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
        sampled, lines = self._sample_held_out()
        if shown := sampled[:LOGGED_TRAJECTORIES]:
            self.directory.log_trajectories(self._trajectory_lines(shown, step))
        export_policy(policy, self.directory.weights_path(step), self.environment.tokenizer)
        self.directory.log_evaluations(lines)  # last: a run with all its evaluations counts as complete

    def _sample_held_out(self) -> tuple[list[Trajectory], list[dict[str, Any]]]:
        """Trajectories on the held-out set, but for broken ones, and a log line of each sample."""
        step = self.step
        progress = min(step / self.run.training.updates, 1.0)
        rollouts = evaluate(self.run, self.environment, self.trainer.policy, step, progress, self.run.seed)
        usable = [rollout.to_trajectory() for rollout in rollouts if rollout.status != "environment_error"]
        return usable, evaluation_lines(map(sample_of, rollouts), self.run.task.name, step)

    def _trajectory_lines(self, trajectories: Sequence[Trajectory], step: int) -> list[dict[str, Any]]:
        """Lines of trajectories with what the trainer's present weights make of each token."""
        per_token = self.trainer.inspect(trajectories)
        return trajectory_lines(trajectories, per_token, self.environment.vocabulary, step)

    def _print_progress(self, record: dict[str, Any], log: TextIO) -> None:
        seconds = time.monotonic() - self.started
        line = progress_line(self.run, self.step, self.first_step, seconds, record["reward_mean"])
        print(line, flush=True)
        print(line, file=log, flush=True)
