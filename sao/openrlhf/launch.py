"""Starts one run over OpenRLHF: Ray, this package's classes in OpenRLHF's places, OpenRLHF's command line.

`LaunchAttempt` runs it in a process of its own, whose output is the attempt's log. All that it started ends
with it: Ray ties its processes to the one that started them. Their temporary files go with it too.
"""

import contextlib
import ctypes
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

from sao.config import RunConfig
from sao.openrlhf import check_installation, check_versions, flags
from sao.openrlhf.settings import RunSettings
from sao.prepare import require_preparation
from sao.runlog import RunDirectory, RunFailure
from sao.runlog_files import read_records, write_atomic, writing
from sao.step_log import progress_line
from sao.temporary_folder import TemporaryFolder

PROGRESS_SECONDS = 10.0
POLL_SECONDS = 0.5
STOP_SECONDS = 60.0  # that a driver gets to end its processes
ORDERLY_SECONDS = 10.0  # that Ray's processes get to end once their driver has
OBJECT_STORE_BYTES = 200 * 2**20  # without CUDA; Ray's own choice, a third of the memory, elsewhere
TASK_VARIABLES = ("SAO_OPENHANDS_PYTHON", "SAO_SWE_IMAGE", "SAO_SWE_SERVER")  # for Ray's processes elsewhere
ROOT = Path(__file__).resolve().parents[2]


class LaunchAttempt:
    """One attempt at a run, in the processes of a driver; InstallationError where OpenRLHF is amiss."""

    def __init__(self, directory: RunDirectory, results: str) -> None:
        check_versions()
        self.directory, self.results = directory, results
        self._cpu_seconds = 0.0
        self._started = time.monotonic()

    def gpu_seconds(self) -> float:
        """GPUs of the run times the attempt's wall time so far, in seconds; 0 without CUDA."""
        cluster = self.directory.config.cluster
        if cluster is None or self.directory.config.device != "cuda":
            return 0.0
        gpus = cluster.actor.processes + cluster.engines.processes
        if self.directory.config.critic is not None:
            gpus += cluster.critic.processes
        return (1 if cluster.one_node else gpus) * (time.monotonic() - self._started)

    def cpu_seconds(self) -> float:
        """Processor time of the attempt's processes on this machine, in seconds, as last seen."""
        return self._cpu_seconds

    def train(self) -> None:
        """Runs what is left of the run; raises RunFailure where it ends early."""
        directory, run = self.directory, self.directory.config
        settings = RunSettings(
            directory=directory.path.resolve(),
            results=str(Path(self.results).resolve()),
            value_model=_value_model(run, self.results),
            checkpoint=_absolute(directory.latest_checkpoint()),
            command=directory.command,
            attempt=directory.attempt,
        )
        words = flags.command_line(run, _places(directory, self.results))
        with TemporaryFolder.of_launch() as temporary:
            # Not in the run directory: the reason must be told where that one's disk is full.
            given, outcome = (temporary.path / name for name in ("launch", "outcome"))
            given.write_bytes(pickle.dumps((run, settings, words)))
            driver = self._start(given, outcome, temporary)
            try:
                self._wait(driver)
            finally:
                _stop(driver)
            reason = json.loads(outcome.read_bytes())["reason"] if outcome.exists() else None
        if driver.returncode != 0:
            reason = reason or f"the driver ended with code {driver.returncode}"
            raise RunFailure(f"{reason}; see {directory.attempt_log_path}")

    def _start(self, given: Path, outcome: Path, temporary: TemporaryFolder) -> subprocess.Popen[bytes]:
        with self.directory.attempt_log_path.open("ab") as log:
            driver = subprocess.Popen(
                [sys.executable, "-m", "sao.openrlhf.launch", str(given), str(outcome)],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": _python_path()} | temporary.variables,
                start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the driver
                pass_fds=self.directory.lock_descriptors,  # the run stays locked while the driver lives
            )
        temporary.watch(driver.pid)
        return driver

    def _wait(self, driver: subprocess.Popen[bytes]) -> None:
        """Waits for the driver's end; prints a line now and then."""
        from sao.openrlhf.processes import processor_seconds

        started = printed = time.monotonic()
        first = shown = self._next_step()
        while driver.poll() is None:
            time.sleep(POLL_SECONDS)
            self._cpu_seconds = max(self._cpu_seconds, processor_seconds(driver.pid))
            if time.monotonic() - printed < PROGRESS_SECONDS or (step := self._next_step()) <= shown:
                continue
            printed, shown = time.monotonic(), step
            reward = self._lines()[-1]["reward_mean"]
            print(progress_line(self.directory.config, step, first, printed - started, reward), flush=True)

    def _lines(self) -> list[dict[str, Any]]:
        return read_records(self.directory.path / "metrics.jsonl")

    def _next_step(self) -> int:
        lines = self._lines()
        return lines[-1]["step"] + 1 if lines else -self.directory.config.critic_only_steps


def _stop(driver: subprocess.Popen[bytes]) -> None:
    """Ends the driver where it still runs; its own processes end with it, or are ended here."""
    if driver.poll() is None:
        driver.send_signal(signal.SIGTERM)
        try:
            driver.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            driver.kill()
            driver.wait()
    end_session(driver.pid)


def end_session(leader: int) -> None:
    """Ends what is left of a session: an engine's process lives on where Ray's own above it was killed."""
    import psutil

    def left() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(ProcessLookupError, psutil.Error):
                if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    _, alive = psutil.wait_procs(left(), timeout=ORDERLY_SECONDS)
    for process in [*alive, *left()]:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _absolute(checkpoint: tuple[int, Path] | None) -> tuple[int, Path] | None:
    return checkpoint and (checkpoint[0], checkpoint[1].resolve())


def _value_model(run: RunConfig, results: str) -> Path | None:
    if run.critic is None or not run.critic.pretrained:
        return None
    step = f"values_{run.critic.frozen}"
    return require_preparation(results, run.scale, run.task.name, step).resolve()


def _places(directory: RunDirectory, results: str) -> flags.Places:
    """Where this launch reads and writes, with absolute paths: Ray's processes have folders of their own."""
    planned = flags.planned_places(directory.config, results)
    path = directory.path.resolve()
    policy = planned.policy
    if directory.config.model.path is None:
        policy = str(_with_tokenizer(Path(planned.policy).resolve(), directory))
    agent = str(Path(__file__).with_name("agent.py"))
    return flags.Places(policy=policy, prompts=str(path / "prompts.jsonl"), agent=agent, run=str(path))


def _with_tokenizer(policy: Path, directory: RunDirectory) -> Path:
    """The policy's folder, or one beside the run with the same weights and a tokenizer where it has none.

    OpenRLHF loads a tokenizer for its padding id; the environments' tokens never pass through it.
    """
    if (policy / "tokenizer_config.json").exists():
        return policy
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    from sao.environments import make_environment

    vocabulary = make_environment(directory.config.task).vocabulary
    words = {f"{token} {text}": token for token, text in enumerate(vocabulary)}
    first = next(iter(words))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token=first)), pad_token=first
    )
    folder = directory.path.resolve() / "start"
    with writing(folder):
        folder.mkdir(exist_ok=True)
        for file in policy.iterdir():
            link = folder / file.name
            link.unlink(missing_ok=True)
            link.symlink_to(file)
        tokenizer.save_pretrained(folder)
    return folder


def _python_path() -> str:
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def drive(run: RunConfig, settings: RunSettings, words: list[str]) -> None:
    """The driver's whole work: Ray, classes, command line."""
    import sao.openrlhf.ready  # noqa: F401

    check_installation()
    from sao.openrlhf import cpu
    from sao.openrlhf.command_line import run as run_command_line
    from sao.openrlhf.strategy import make_strategy

    start_ray(run)
    put_classes_in_place(gpu_share(run))

    def strategy(arguments: Any) -> Any:
        arguments.sao, arguments.run_settings = run, settings
        if run.openrlhf is not None and run.openrlhf.parameter_type == "float32":
            arguments.ds.param_dtype = cpu.FLOAT32
        if run.logging is not None and run.logging.wandb:
            arguments.logger.wandb.key = os.environ.get("WANDB_API_KEY")
        arguments.ckpt.load_enable = settings.checkpoint is not None
        if settings.checkpoint is not None:
            arguments.ckpt.path = str(settings.checkpoint[1])
        return make_strategy(arguments)

    run_command_line(words, strategy)


def start_ray(run: RunConfig) -> None:
    """Starts Ray on this node, or joins the cluster that the job has started on all of its nodes."""
    import ray

    from sao.openrlhf import cpu

    assert run.cluster is not None  # the schema asks for it
    variables = cpu.environment() | {
        "PYTHONPATH": _python_path(),
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_NO_USAGE_STATS": "1",
    }
    variables |= {name: os.environ[name] for name in TASK_VARIABLES if name in os.environ}
    runtime = {"env_vars": variables}
    if not run.cluster.one_node:
        ray.init(address="auto", runtime_env=runtime)
        return
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    named: dict[str, Any] = {"include_dashboard": False, "runtime_env": runtime}
    if cpu.is_needed():  # Ray shares out cores and GPUs by these numbers, and there is no GPU
        places = run.cluster.processes
        named |= {"num_gpus": places, "num_cpus": places + 4, "object_store_memory": OBJECT_STORE_BYTES}
    ray.init(**named)


def gpu_share(run: RunConfig) -> float:
    """Part of a GPU that each process takes: 1, or less where they share those of one node."""
    import ray

    assert run.cluster is not None  # the schema asks for it
    if not run.cluster.one_node:
        return 1
    return 1 / math.ceil(run.cluster.processes / ray.cluster_resources()["GPU"])


def put_classes_in_place(share: float) -> None:
    """Replaces what OpenRLHF's command line looks up; each process takes this `share` of a GPU."""
    import ray
    from openrlhf.trainer import ppo_trainer, ppo_trainer_async
    from openrlhf.trainer.ray import launcher, ppo_actor, ppo_critic, vllm_engine

    from sao.openrlhf.actor import RemotePolicyActor
    from sao.openrlhf.critic import RemoteCriticActor
    from sao.openrlhf.engine import RolloutEngine
    from sao.openrlhf.run import RemoteTrainingRun
    from sao.openrlhf.shared_gpus import SharingClass, sharing_placement_group

    ppo_actor.PolicyModelActor = SharingClass(RemotePolicyActor, share)
    ppo_critic.CriticModelActor = SharingClass(RemoteCriticActor, share)
    vllm_engine.RolloutRayActor = SharingClass(ray.remote(RolloutEngine), share)
    launcher.placement_group = vllm_engine.placement_group = partial(sharing_placement_group, share)
    ppo_trainer.PPOTrainer = ppo_trainer_async.PPOTrainerAsync = RemoteTrainingRun


def end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, however that ends; Ray's own then follow."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: list[str]) -> int:
    """`python -m sao.openrlhf.launch SETTINGS OUTCOME`, which `train` starts; returns 0 or 1."""
    settings_file, outcome_file = map(Path, arguments)
    end_with(os.getppid())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # an orderly end, in which Ray stops its processes
    run, settings, words = pickle.loads(settings_file.read_bytes())
    try:
        drive(run, settings.with_driver(os.getpid()), words)
    except Exception as error:
        traceback.print_exc()
        from sao.openrlhf.processes import reason_of

        write_atomic(outcome_file, json.dumps({"reason": reason_of(error)}).encode())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
