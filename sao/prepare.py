"""Command that prepares what all rows of a task share: `python -m sao.prepare warm-start|values`.

    python -m sao.prepare warm-start --scale cpu --task locks
    python -m sao.prepare values --scale cpu --task locks --frozen attention

A finished step is a folder with a seal.json; it appears under its name only when it is complete.
"""

import argparse
import hashlib
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sao import config
from sao.config_rows import Frozen
from sao.openrlhf import InstallationError
from sao.runlog import RunError
from sao.runlog_files import read_json, write_atomic, writing

if TYPE_CHECKING:
    from sao.critic import ValueModel

PREPARATION_SEED = 0
REPORT_SECONDS = 10.0


def preparation_folder(results: str, scale: str, task: str, step: str) -> Path:
    """Where a preparation step lies: `step` is "warm_start" or "values_<frozen>"."""
    return Path(results) / scale / "prepare" / task / step


def is_prepared(folder: Path, digest: str) -> bool:
    """Whether a preparation step lies there finished; RunError where it is damaged or of other settings."""
    if not (folder / "seal.json").exists():
        return False
    seal = read_json(folder / "seal.json")
    if seal.get("digest") != digest:
        raise RunError(f"{folder}: was made with other settings; move it away to make it anew")
    for name, checksum in seal["files"].items():
        file = folder / name
        if not file.exists() or _checksum(file) != checksum:
            raise RunError(f"{file}: is missing or damaged; move {folder} away to make it anew")
    return True


def require_preparation(results: str, scale: str, task: str, step: str) -> Path:
    """The folder of a finished preparation step of this configuration; RunError with the mend otherwise."""
    folder = preparation_folder(results, scale, task, step)
    if not is_prepared(folder, config.preparation_digest(scale, task)):
        where = "" if results == "results" else f" --results {results}"
        command = f"python -m sao.prepare {step_arguments(step)} --scale {scale} --task {task}{where}"
        raise RunError(f"{folder}: is missing or unfinished; make it with: {command}")
    return folder


def require_preparations(run: config.RunConfig, results: str) -> None:
    """Raises RunError, with the mend, where a preparation step that the run starts from is not finished."""
    for step in run.preparation_steps:
        require_preparation(results, run.scale, run.task.name, step)


def step_arguments(step: str) -> str:
    """Command-line words of a preparation step."""
    return "warm-start" if step == "warm_start" else f"values --frozen {step.removeprefix('values_')}"


class Progress:
    """Keeps every report for the log and prints one line now and then."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.records: list[dict[str, Any]] = []
        self.started = self.printed = time.monotonic()

    def __call__(self, record: dict[str, Any]) -> None:
        """Takes one step's report; "step" and "steps" tell how far it is."""
        self.records.append(record)
        now = time.monotonic()
        done, total = record["step"], record["steps"]
        if now - self.printed >= REPORT_SECONDS or done == total:
            self.printed = now
            left = (now - self.started) / done * (total - done)
            values = "  ".join(
                f"{key} {value:.3f}" for key, value in record.items() if isinstance(value, float)
            )
            print(f"{self.name}  step {done}/{total}  {values}  {left:.0f} s left", flush=True)


def write_preparation(folder: Path, digest: str, write: Callable[[Path], None]) -> None:
    """Have `write` fill a temporary folder, seal it and give it its name; an unsealed older one goes."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    with writing(temporary):
        temporary.mkdir(parents=True)
        write(temporary)
    seal(temporary, digest)
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)


def seal(folder: Path, digest: str) -> None:
    """Marks a preparation step's folder as finished, with the checksums of its files."""
    files = {
        str(file.relative_to(folder)): _checksum(file) for file in sorted(folder.rglob("*")) if file.is_file()
    }
    record = {"digest": digest, "status": "finished", "files": files}
    write_atomic(folder / "seal.json", json.dumps(record, indent=1).encode())


def _checksum(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def warm_start(scale: config.Scale, task_name: str, folder: Path, results: str) -> None:
    """Trains and evaluates the warm-started policy of a task."""
    from sao.environments import make_environment
    from sao.local.evaluation import evaluate, sample_of
    from sao.local.model import export_policy
    from sao.local.warm_start import initial_policy, train_policy
    from sao.runlog import EVALUATION_COLUMNS, append_records
    from sao.step_log import evaluation_lines

    task = scale.task(task_name)
    environment = make_environment(task, scale.model, results)
    progress = Progress(f"{scale.name} {task_name} warm start")
    policy = train_policy(scale, environment, PREPARATION_SEED, progress)

    def write(temporary: Path) -> None:
        export_policy(policy, temporary / "policy", environment.tokenizer)
        if environment.tokenizer is not None:  # a text task: its benchmarks also show the untrained policy
            untrained = initial_policy(scale, environment, PREPARATION_SEED)
            export_policy(untrained, temporary / "initial_policy", environment.tokenizer)
        write_progress(temporary, progress)
        rollouts = evaluate(scale, environment, policy, step=0, progress=0.0, seed=PREPARATION_SEED)
        lines = evaluation_lines(map(sample_of, rollouts), task_name, step=0)
        append_records(temporary / "evaluations.jsonl", EVALUATION_COLUMNS, lines)
        share = sum(line["correct"] for line in lines) / len(lines)
        print(f"{progress.name}  solves {100 * share:.1f}% of {len(lines)} held-out problems", flush=True)

    write_preparation(folder, config.preparation_digest(scale.name, task_name), write)


def values(scale: config.Scale, task_name: str, folder: Path, frozen: Frozen, results: str) -> None:
    """Pretrains a task's value model with the given parameters frozen."""
    from sao.environments import make_environment
    from sao.local.model import load_policy, on_device
    from sao.local.warm_start import train_value_model

    prepared = require_preparation(results, scale.name, task_name, "warm_start")
    policy = on_device(load_policy(prepared / "policy"), scale.device)
    environment = make_environment(scale.task(task_name), scale.model, results)
    progress = Progress(f"{scale.name} {task_name} value model ({frozen} frozen)")
    value_model = train_value_model(scale, environment, policy, frozen, PREPARATION_SEED, progress)
    write_values(folder, config.preparation_digest(scale.name, task_name), value_model, progress)


def write_values(folder: Path, digest: str, value_model: "ValueModel", progress: "Progress") -> None:
    """Writes a pretrained value model and how its training went, at once or not at all."""
    from safetensors.torch import save_model

    def write(temporary: Path) -> None:
        save_model(value_model, str(temporary / "value_model.safetensors"))
        write_progress(temporary, progress)

    write_preparation(folder, digest, write)


def write_progress(folder: Path, progress: Progress) -> None:
    """Writes the step reports as training.jsonl."""
    (folder / "training.jsonl").write_text("".join(json.dumps(record) + "\n" for record in progress.records))


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns 0, 2 for a user's mistake, 130 when interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m sao.prepare", description=(__doc__ or "").splitlines()[0]
    )
    commands = parser.add_subparsers(dest="step", required=True)
    for name, help_text in (("warm-start", "supervised warm start"), ("values", "value pretraining")):
        command = commands.add_parser(name, help=help_text)
        command.add_argument("--scale", default="cpu")
        command.add_argument("--task", required=True)
        command.add_argument("--results", default="results")
    commands.choices["values"].add_argument(
        "--frozen", default="attention", choices=("attention", "none", "all_but_experts_and_head")
    )
    options = parser.parse_args(arguments)
    try:
        return prepare(options)
    except (config.ConfigError, InstallationError, RunError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command makes the step anew, or from its checkpoint", file=sys.stderr)
        return 130


def prepare(options: argparse.Namespace) -> int:
    """Runs one preparation step unless it lies there finished; returns 0, or 1 for one that failed."""
    scale = config.load_scale(options.scale)
    digest = config.preparation_digest(scale.name, scale.task(options.task).name)
    step = "warm_start" if options.step == "warm-start" else f"values_{options.frozen}"
    folder = preparation_folder(options.results, scale.name, options.task, step)
    if is_prepared(folder, digest):
        print(f"{folder}: is finished")
        return 0
    if scale.model.path is not None:
        return _prepare_released(scale, options, folder)
    import torch

    torch.set_num_threads(1)
    if scale.task(options.task).environment == "swe_tiny":
        _prepare_attempts(scale, options, folder)
    elif options.step == "warm-start":
        warm_start(scale, options.task, folder, options.results)
    else:
        values(scale, options.task, folder, options.frozen, options.results)
    return 0


def _prepare_attempts(scale: config.Scale, options: argparse.Namespace, folder: Path) -> None:
    from sao.local import swe_preparation

    if options.step == "warm-start":
        swe_preparation.warm_start(scale, options.task, folder)
    else:
        swe_preparation.values(scale, options.task, folder, options.frozen, options.results)


def _prepare_released(scale: config.Scale, options: argparse.Namespace, folder: Path) -> int:
    if options.step == "warm-start":
        from sao.openrlhf.fine_tuning import fine_tune

        return fine_tune(scale, options.task, folder, options.results)
    from sao.openrlhf.values import pretrain

    return pretrain(scale, options.task, folder, options.frozen, options.results)


if __name__ == "__main__":
    sys.exit(main())
