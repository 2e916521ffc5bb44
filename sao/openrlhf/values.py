"""Value pretraining of a released model: a run over OpenRLHF that ends before its first update of the policy.

    python -m sao.prepare values --scale paper_math --task math --frozen attention     pretrains
    python -m sao.openrlhf.values --scale paper_math --task math --frozen attention    OpenRLHF's command line

The run lies beside the step's folder, as <folder>_run, and resumes as every run does.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any, get_args

from sao.config import ConfigError, RunConfig, Scale, load_scale, preparation_digest, value_pretraining_run
from sao.config_rows import Frozen
from sao.openrlhf import flags
from sao.openrlhf.settings import VALUES_FOLDER
from sao.prepare import PREPARATION_SEED, step_arguments, write_preparation
from sao.runlog import RunDirectory, RunError, refusal
from sao.runlog_files import read_records
from sao.train import train_and_seal


def pretrain(scale: Scale, task: str, folder: Path, frozen: Frozen, results: str) -> int:
    """Pretrains a task's value model with the given parameters frozen, and seals it as `folder`.

    Returns 0, 1 where the run failed, 130 when interrupted; RunError for a folder that is in the way.
    """
    run = value_pretraining_run(scale, task, frozen, PREPARATION_SEED)
    place = folder.with_name(f"{folder.name}_run")
    if refusal(place, run):
        raise RunError(f"{place}: was begun with other settings; move it away to begin anew")
    if (place / "seal.json").exists() and not (place / VALUES_FOLDER).exists():
        raise RunError(f"{place}: is finished, and the value model that it made is gone; move it away too")
    command = f"python -m sao.prepare {step_arguments(run.row)} --scale {scale.name} --task {task}"
    if not (place / "seal.json").exists():
        with RunDirectory.open(place, run, command) as directory:
            if code := train_and_seal(directory, results):
                return code

    def write(temporary: Path) -> None:
        shutil.copytree(place / VALUES_FOLDER, temporary, dirs_exist_ok=True)
        records = training_records(run, read_records(place / "metrics.jsonl"))
        (temporary / "training.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))

    write_preparation(folder, preparation_digest(scale.name, task), write)
    shutil.rmtree(place / VALUES_FOLDER)
    return 0


def training_records(run: RunConfig, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the local engine reports of its steps, from the run's metrics."""
    steps = run.critic_only_steps
    return [
        {
            "step": line["step"] + steps + 1,
            "steps": steps,
            "loss": line["value_loss"],
            "explained_variance": line["explained_variance_before"],
        }
        for line in lines
    ]


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns 0, or 2 for a user's mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m sao.openrlhf.values", description="OpenRLHF's command line of a value pretraining"
    )
    parser.add_argument("--scale", required=True)
    parser.add_argument("--task", required=True)
    parser.add_argument("--frozen", default="attention", choices=get_args(Frozen))
    parser.add_argument("--results", default="results")
    options = parser.parse_args(arguments)
    try:
        run = value_pretraining_run(load_scale(options.scale), options.task, options.frozen, PREPARATION_SEED)
        print(flags.shown_command(run, options.results), end="")
        return 0
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
