"""Warm start and value model of the tiny tasks of software engineering, through the real scaffold.

The demonstrations are traces that scripts leave on the training tasks: each task solved, and each without the
last edit. The policy's own attempts call it over HTTP, served from this process.
"""

from pathlib import Path

from sao import config
from sao.config_rows import Frozen
from sao.environments import check_machine, make_environment
from sao.environments.swe import SWEEnvironment
from sao.local.attempts import sample_attempts
from sao.local.model import export_policy, load_policy
from sao.local.warm_start import fit_value_model, initial_policy, train_policy
from sao.prepare import (
    PREPARATION_SEED,
    Progress,
    require_preparation,
    write_preparation,
    write_progress,
    write_values,
)
from sao.runlog import EVALUATION_COLUMNS, append_records
from sao.runlog_files import RunError
from sao.step_log import HeldOut, evaluation_lines
from sao.trajectory import Trajectory

SOLVED_COPIES = 2  # of a trace that solves its task to one that does not, so that most attempts solve it


def opened_environment(scale: config.Scale, task: str) -> SWEEnvironment:
    """The task's environment with its workers; ConfigError where the machine lacks what they need."""
    block = scale.task(task)
    check_machine(block)
    environment = make_environment(block)
    assert isinstance(environment, SWEEnvironment)
    environment.open(scale.sampler.slots, scale.sampler.max_tokens)
    return environment


def warm_start(scale: config.Scale, task: str, folder: Path) -> None:
    """Records the traces, trains the policy on them and evaluates it; RunError where the scaffold fails."""
    environment = opened_environment(scale, task)
    try:
        traces = recorded_traces(environment, scale.sampler.slots)
        copies = [trace for trace in traces for _ in range(SOLVED_COPIES if trace.reward == 1.0 else 1)]
        environment.demonstrate(copies)
        progress = Progress(f"{scale.name} {task} warm start")
        policy = train_policy(scale, environment, PREPARATION_SEED, progress)
        held_out = environment.instances("held_out") * scale.evaluation.runs_per_problem
        sampled = sample_attempts(scale, environment, policy, held_out, rounding="none")
    finally:
        environment.close()
    samples = (HeldOut(*pair).sample for pair in zip(held_out, sampled, strict=True))
    lines = evaluation_lines(samples, task, step=0)

    def write(temporary: Path) -> None:
        export_policy(policy, temporary / "policy", environment.tokenizer)
        untrained = initial_policy(scale, environment, PREPARATION_SEED)
        export_policy(untrained, temporary / "initial_policy", environment.tokenizer)
        write_progress(temporary, progress)
        append_records(temporary / "evaluations.jsonl", EVALUATION_COLUMNS, lines)
        solved = sum(line["correct"] for line in lines)
        print(f"{progress.name}  solves {solved} of {len(lines)} held-out attempts", flush=True)

    write_preparation(folder, config.preparation_digest(scale.name, task), write)


def recorded_traces(environment: SWEEnvironment, workers: int) -> list[Trajectory]:
    """Traces of the scripts on the training tasks; RunError where one does not end as its script should."""
    from evaluation.swe.tiny_traces import SetupError, TinyTasks, demonstrator, record_traces

    names = {instance.payload[0]["instance_id"] for instance in environment.instances("train")}
    scripts = [script for script in TinyTasks.described().scripts if script.instance_id in names]
    try:
        return record_traces(environment, scripts, demonstrator(environment.tokenizer), workers)
    except SetupError as error:
        raise RunError(str(error)) from error


def values(scale: config.Scale, task: str, folder: Path, frozen: Frozen, results: str) -> None:
    """Pretrains the value model on attempts of the warm-started policy."""
    prepared = require_preparation(results, scale.name, task, "warm_start")
    policy = load_policy(prepared / "policy")
    environment = opened_environment(scale, task)
    try:
        pool = environment.instances("train")
        instances = [pool[index % len(pool)] for index in range(scale.value_pretraining.rollouts)]
        attempts = sample_attempts(scale, environment, policy, instances, scale.sampler.rounding)
    finally:
        environment.close()
    usable = [attempt for attempt in attempts if attempt is not None and attempt.usable]
    if not usable:
        raise RunError(f"task {task}: each of {len(attempts)} attempts broke: {dict(environment.counts)}")
    progress = Progress(f"{scale.name} {task} value model ({frozen} frozen)")
    value_model = fit_value_model(scale, policy, usable, frozen, PREPARATION_SEED, progress)
    write_values(folder, config.preparation_digest(scale.name, task), value_model, progress)
