"""One run over OpenRLHF from its start or latest checkpoint to its last evaluation: logs, syncs, checkpoints.

`TrainingRun` takes the place of OpenRLHF's PPOTrainer and PPOTrainerAsync, the single controllers that its
command line starts.
"""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sao.openrlhf.ready  # noqa: F401

# isort: split
import ray
import torch
from openrlhf.trainer import ppo_trainer
from openrlhf.utils import get_tokenizer

from sao.config import RunConfig
from sao.environments import make_environment
from sao.openrlhf import weights
from sao.openrlhf.checkpoint import load_controller, save_controller
from sao.openrlhf.experience import ExperienceMaker
from sao.openrlhf.processes import get_or_raise_cause, processor_seconds, reason_of
from sao.openrlhf.rollout import RolloutStream
from sao.openrlhf.settings import VALUES_FOLDER, RunSettings
from sao.openrlhf.strategy import Strategy
from sao.runlog import RunDirectory, RunFailure
from sao.runlog_files import writing
from sao.step_log import HeldOut, evaluation_lines, metrics_line, trajectory_lines
from sao.streaming import dropped_lines, schedule_lines
from sao.trajectory import Trajectory

LOGGED_TRAJECTORIES = 8
ENGINE_TYPE = torch.bfloat16  # OpenRLHF starts its engines with it

ppo_trainer.RemoteExperienceMaker = ExperienceMaker


class TrainingRun(ppo_trainer.BasePPOTrainer):
    """The controller: holds the batch, the run directory and the order of things."""

    def __init__(
        self,
        pretrain: str,
        strategy: Strategy,
        actor_model_group: Any,
        critic_model_group: Any,
        reward_model_group: Any,
        reference_model_group: Any,
        vllm_engines: list[Any],
        **generation: Any,
    ) -> None:
        tokenizer = get_tokenizer(pretrain, None, "left", strategy)
        super().__init__(
            strategy,
            actor_model_group,
            critic_model_group,
            reward_model_group,
            reference_model_group,
            vllm_engines,
            tokenizer,
        )
        settings: RunSettings = strategy.args.run_settings
        self.run: RunConfig = strategy.args.sao
        self.checkpoint, self.driver = settings.checkpoint, settings.driver
        self.directory = RunDirectory(settings.directory, self.run, settings.command, None)
        self.directory.attempt = settings.attempt
        self.environment = make_environment(self.run.task, self.run.model, settings.results)
        self.stream = ray.remote(RolloutStream).remote(pretrain, strategy, vllm_engines)
        self.started = time.monotonic()
        self.totals: dict[str, Any] = {"wall_seconds": 0.0, "cpu_seconds": 0.0, "sampler_tokens": 0}
        self.step = -self.run.critic_only_steps

    def get_max_steps(self) -> int:
        """Steps of the whole run; OpenRLHF's learning-rate schedules ask, and are constant."""
        return self.run.metrics_lines

    @property
    def version(self) -> int:
        """Policy updates done."""
        return max(self.step, 0)

    def fit(self) -> None:
        """Runs the remaining steps; raises RunFailure where the run cannot go on."""
        try:
            self._resume()
            ray.get(self.stream.start.remote(self.version))
            while self.step < self.run.training.updates:
                self._train_step()
            for logger in filter(None, (self.wandb_logger, self.tensorboard_logger)):
                logger.close()
        except Exception as error:
            raise RunFailure(f"step {self.step}: {reason_of(error)}") from error

    def _resume(self) -> None:
        if self.checkpoint is not None:
            self.step, folder = self.checkpoint
            stream, running_mean, self.totals = load_controller(folder)
            if self.experience_maker.running_mean is not None:
                self.experience_maker.running_mean.load_state_dict(running_mean)
            ray.get(self.stream.load_state_dict.remote(stream))
        self.directory.rewind(self.step)
        self._synchronise()

    def _train_step(self) -> None:
        step, version, began = self.step, self.version, time.monotonic()
        taken = ray.get(self.stream.take.remote())
        if step + 1 in self.run.evaluation.steps:
            shown = taken.trajectories[:LOGGED_TRAJECTORIES]
            self.directory.log_training_trajectories(self._trajectory_lines(shown, step))
        record = self.experience_maker.update(taken.trajectories, step)
        if step == 0:  # the whole batch was sampled with the weights that this update starts from
            weights.check_agreement(record["mean_abs_log_ratio"])
        self.step += 1
        if trained := step >= 0:
            self._synchronise()
        update_ticks = ray.get(self.stream.finish_update.remote(self.version, trained)) - taken.tick
        seconds = time.monotonic() - began
        self.totals["sampler_tokens"] += taken.counters.sampled_tokens
        record = metrics_line(self.run, record, taken, step, version, seconds, self._elapsed())
        if self.run.pretrains_values and self.step == 0:  # before the line with which the run is complete
            self._export(self.critic_model_group, self.directory.path / VALUES_FOLDER)
        self.directory.log_schedule(list(schedule_lines(taken, step, update_ticks)))
        self.directory.log_dropped(dropped_lines(taken, step))
        self.directory.log_metrics(record)
        numbers = {name: value for name, value in record.items() if isinstance(value, int | float)}
        for logger in filter(None, (self.wandb_logger, self.tensorboard_logger)):
            logger.log_train(step, numbers)
        if self.step in self.run.evaluation.steps:
            self._evaluate()
        if self._checkpoint_is_due():
            self._checkpoint(taken.state)

    def _checkpoint_is_due(self) -> bool:
        if self.step % self.run.checkpoint_interval or self.step >= self.run.training.updates:
            return False
        return self.step > 0 or self.run.pretrains_values

    def _synchronise(self) -> None:
        """Gives the engines the policy's weights, in the middle of trajectories."""
        self._on_engines("pause_generation")
        ray.get(self.actor_model_group.async_run_method(method_name="broadcast_to_vllm"))
        self._on_engines("finish_weight_update", self.version)
        self._on_engines("resume_generation")
        if self.run.model.path is None:  # models that are built here are small
            self._compare_weights()

    def _compare_weights(self) -> None:
        """Raises WeightMismatch unless every tensor of every engine is the trainer's, bit for bit."""
        of_ranks = self.actor_model_group.async_run_method(method_name="weight_hashes", dtype=ENGINE_TYPE)
        trainer = ray.get(of_ranks)[0]
        engines = self._on_engines("weight_hashes")
        for engine in engines:
            weights.check_equal(trainer, engine)
        print(f"version {self.version}: {len(trainer)} tensors agree in {len(engines)} engines", flush=True)

    def _on_engines(self, method: str, *arguments: Any) -> list[Any]:
        return ray.get([getattr(engine, method).remote(*arguments) for engine in self.vllm_engines])

    def _elapsed(self) -> dict[str, Any]:
        """Totals over all attempts up to now."""
        return self.totals | {
            "wall_seconds": self.totals["wall_seconds"] + time.monotonic() - self.started,
            "cpu_seconds": self.totals["cpu_seconds"] + processor_seconds(self.driver),
        }

    def _checkpoint(self, stream_state: dict[str, Any]) -> None:
        totals, running_mean = self._elapsed(), self.experience_maker.running_mean

        def write(folder: Path) -> None:
            policy = None if self.run.pretrains_values else self.actor_model_group  # which stays as it was
            groups = [group for group in (policy, self.critic_model_group) if group]
            for group in groups:
                get_or_raise_cause(group.async_run_method(method_name="save_state", folder=folder))
            save_controller(folder, stream_state, running_mean and running_mean.state_dict(), totals)

        self.directory.save_checkpoint(self.step, write)

    def _evaluate(self) -> None:
        """Evaluates the held-out set, exports the weights and logs some trajectories token by token."""
        step = self.step
        progress = min(step / self.run.training.updates, 1.0)
        sampled: list[HeldOut] = ray.get(self.stream.evaluate.remote(progress))
        shown = [held_out.trajectory for held_out in sampled if held_out.trajectory is not None]
        shown = shown[:LOGGED_TRAJECTORIES]
        if shown:
            self.directory.log_trajectories(self._trajectory_lines(shown, step))
        self._export(self.actor_model_group, self.directory.weights_path(step))
        # Last, because a run with all its evaluations counts as complete.
        samples = (held_out.sample for held_out in sampled)
        self.directory.log_evaluations(evaluation_lines(samples, self.run.task.name, step))

    def _trajectory_lines(self, trajectories: Sequence[Trajectory], step: int) -> list[dict[str, Any]]:
        """Lines of trajectories with what the trainer's present weights make of each token."""
        per_token = self.experience_maker.inspect(trajectories)
        return trajectory_lines(trajectories, per_token, self.environment.vocabulary, step)

    def _export(self, group: Any, folder: Path) -> None:
        temporary = folder.with_name(f".{folder.name}.tmp")
        with writing(folder):
            folder.parent.mkdir(exist_ok=True)
            get_or_raise_cause(group.async_run_method(method_name="export", folder=temporary))
            shutil.rmtree(folder, ignore_errors=True)  # of an attempt that was stopped behind it
            temporary.rename(folder)


RemoteTrainingRun = ray.remote(TrainingRun)
