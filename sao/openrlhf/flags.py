"""OpenRLHF's command line of a run: the one table between settings and flags. No torch, no openrlhf.

    python -m sao.openrlhf.flags --scale paper_math --row sao         the command line of one run
    python -m sao.openrlhf.flags --scale paper_math --write FOLDER    those of every row, a file each

Every setting of a run has an entry: flags of OpenRLHF's parser, or the class of this package that applies it.
A setting without an entry, or one that the backend cannot have, raises.
"""

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sao.config import ConfigError, RunConfig, load_scale, resolve
from sao.config_files import file_of, shown
from sao.runlog_files import RunError, write_atomic, writing

CLI = "openrlhf.cli.train_ppo_ray"


@dataclass(frozen=True)
class Places:
    """What a launch reads and writes.

    `policy` is the model that policy and critic start from (a folder, or a name on the Hub), `prompts` a JSON
    Lines file with the keys "input" and "label", `agent` the agent executor's file, `run` the run's folder.
    """

    policy: str
    prompts: str
    agent: str
    run: str

    @property
    def checkpoints(self) -> str:
        """Folder of DeepSpeed's checkpoints of policy and critic."""
        return f"{self.run}/checkpoints"


@dataclass(frozen=True)
class Flag:
    """A flag of OpenRLHF's parser; `value` makes it from the run, else it is the setting itself.

    True gives a switch, False and None leave the flag out, a tuple gives several words.
    """

    name: str
    value: Callable[[RunConfig], Any] | None = None


@dataclass(frozen=True)
class Entry:
    """What becomes of one setting: flags, a class of this package, or both.

    `only` is the one value that the backend can have, where there is just one.
    """

    flags: tuple[Flag, ...] = ()
    own: str = ""
    only: Any = ...


def flags(*names: str | Flag, own: str = "") -> Entry:
    """An entry of flags; a plain name takes the setting as it is."""
    return Entry(tuple(Flag(name) if isinstance(name, str) else name for name in names), own)


def own(module: str) -> Entry:
    """An entry of a setting that classes of `sao.openrlhf` apply."""
    return Entry(own=f"sao.openrlhf.{module}")


def only(value: Any, *names: str | Flag) -> Entry:
    """An entry of a setting with one possible value."""
    return Entry(flags(*names).flags, only=value)


def _threshold(run: RunConfig) -> tuple[float, float]:
    """Edges of the DIS band; all ratios for other objectives, which correct in their own way."""
    if run.objective.kind == "dis":
        return round(1 - run.objective.eps_low, 12), round(1 + run.objective.eps_high, 12)
    return 0.0, float("inf")


def _clip(run: RunConfig) -> tuple[float, float] | None:
    return None if run.objective.kind == "dis" else (run.objective.clip_low, run.objective.clip_high)


def _estimator(run: RunConfig) -> str:
    """Of OpenRLHF's names, the one with the same inputs: critic, group, or neither; ours computes."""
    if run.critic is not None:
        return "gae"
    return "group_norm" if run.sampling.group_size > 1 else "reinforce"


def _asynchronous(run: RunConfig) -> bool:
    return run.sampling.schedule == "asynchronous"


def _prompts_in_flight(run: RunConfig) -> int | None:
    in_flight = run.sampler.slots // run.sampling.group_size
    return max(in_flight, run.prompts_per_batch) if _asynchronous(run) else None


def _value_clip(run: RunConfig) -> float | None:
    return run.critic.value_clip if run.critic else None


def _critic_rate(run: RunConfig) -> float | None:
    return run.training.learning_rate * run.critic.learning_rate_factor if run.critic else None


def _sized_by_tokens(run: RunConfig) -> bool:
    return run.openrlhf is not None and run.openrlhf.max_tokens_per_gpu is not None


def _eager(run: RunConfig) -> bool:
    return run.openrlhf is not None and not run.openrlhf.cuda_graphs


def _both(flag: str) -> tuple[str, str]:
    return f"--actor.{flag}", f"--critic.{flag}"


TABLE: dict[str, Entry] = {
    # the run
    "row": own("launch"),
    "scale": own("launch"),
    "seed": flags("--train.seed"),
    "title": own("launch"),
    "domain": own("launch"),
    "task": own("rollout"),
    "backend": only("openrlhf"),
    "device": own("cpu"),
    # the row
    "sampling.schedule": flags(
        Flag("--train.async_enable", _asynchronous), Flag("--train.partial_rollout_enable", _asynchronous)
    ),
    "sampling.group_size": flags("--rollout.n_samples_per_prompt"),
    "sampling.temperature": flags("--rollout.temperature"),
    "sampling.top_p": flags("--rollout.top_p"),
    "sampling.top_k": own("rollout"),
    "sampling.recompute_kv": own("engine"),
    "sampling.dynamic_sampling": own("rollout"),
    "sampling.overlong_shaping": own("experience"),
    "objective.kind": flags(
        Flag("--actor.policy_loss_type", lambda run: "gspo" if run.objective.kind == "gspo" else "ppo"),
        Flag("--actor.eps_clip_low_high", _clip),
        Flag("--algo.advantage.is_correction_level", lambda run: "token"),  # asks the engine for log-probs
        Flag("--algo.advantage.is_correction_threshold", _threshold),
        own="sao.openrlhf.actor",
    ),
    "objective.eps_low": own("actor"),
    "objective.eps_high": own("actor"),
    "objective.clip_low": own("actor"),
    "objective.clip_high": own("actor"),
    "objective.reference": own("actor"),
    "objective.band_low": own("actor"),
    "objective.band_high": own("actor"),
    "objective.cap": own("actor"),
    "objective.positive_example_coefficient": own("actor"),
    "advantage.kind": flags(Flag("--algo.advantage.estimator", _estimator), own="sao.openrlhf.experience"),
    "advantage.whiten": own("experience"),
    "advantage.gamma": flags("--algo.advantage.gamma", own="sao.openrlhf.experience"),
    "advantage.alpha": own("experience"),
    "advantage.bootstrap_truncated": own("experience"),
    "advantage.step_value": own("experience"),
    "advantage.window": own("experience"),
    "advantage.per_prompt": own("experience"),
    "critic": own("critic"),  # null: a row without one
    "critic.updates_per_batch": own("critic"),
    "critic.frozen": own("critic"),
    "critic.pretrained": own("critic"),
    # OpenRLHF trains the policy from step N + 1 on, counted from 0
    "critic.critic_only_steps": flags(
        Flag("--critic.freezing_steps", lambda run: run.critic_only_steps - 1), own="sao.openrlhf.critic"
    ),
    "critic.advantages_after_updates": own("critic"),
    "critic.value_clip": flags(Flag("--critic.value_clip", _value_clip), own="sao.openrlhf.critic"),
    "critic.learning_rate_factor": flags(Flag("--critic.adam.lr", _critic_rate)),
    "optimizer.betas": flags(*_both("adam.betas")),
    "optimizer.weight_decay": flags(*_both("adam.weight_decay")),
    "optimizer.gradient_clip": flags(*_both("max_norm")),
    "minibatches_per_batch": flags(
        Flag("--train.batch_size", lambda run: run.training.batch_trajectories // run.minibatches_per_batch)
    ),
    # the scale
    "model": own("launch"),
    "warm_start": own("launch"),
    "sft": own("launch"),
    "value_pretraining": own("critic"),
    "training.batch_trajectories": flags(
        Flag("--rollout.batch_size", lambda run: run.prompts_per_batch),
        Flag("--rollout.vllm_generate_batch_size", _prompts_in_flight),
    ),
    "training.updates": own("rollout"),
    "training.learning_rate": flags("--actor.adam.lr"),
    "training.max_staleness": own("rollout"),
    "sampler.slots": own("rollout"),
    "sampler.max_tokens": flags("--data.max_len"),
    "sampler.rounding": only("none"),
    "evaluation": own("launch"),  # weights are exported at these steps and evaluated apart
    "checkpoint_interval": flags("--ckpt.save_steps"),
    "overlong": own("experience"),
    "openrlhf.parameter_type": flags(Flag("--ds.param_dtype", lambda run: "bf16"), own="sao.openrlhf.cpu"),
    "openrlhf.zero_stage": flags("--ds.zero_stage"),
    "openrlhf.attention": flags("--ds.attn_implementation"),
    "openrlhf.experts": flags("--ds.experts_implementation"),
    "openrlhf.gradient_checkpointing": flags("--actor.gradient_checkpointing_enable"),
    "openrlhf.offload_optimizer": flags("--ds.adam_offload"),
    "openrlhf.packing": flags("--ds.packing_samples"),
    "openrlhf.ring_attention": flags("--ds.ring_attn_size"),
    "openrlhf.micro_batch_trajectories": flags("--train.micro_batch_size", "--rollout.micro_batch_size"),
    "openrlhf.max_tokens_per_gpu": flags(
        Flag("--train.dynamic_batch_enable", _sized_by_tokens),
        "--train.max_tokens_per_gpu",
        "--rollout.max_tokens_per_gpu",
    ),
    "openrlhf.router_loss_coefficient": flags("--actor.aux_loss_coef"),
    "openrlhf.queue_limit_batches": flags("--train.async_queue_size"),
    "openrlhf.prefix_caching": flags("--vllm.enable_prefix_caching"),
    "openrlhf.cuda_graphs": flags(Flag("--vllm.enforce_eager", _eager)),
    "openrlhf.sync_backend": flags("--vllm.sync_backend"),
    "cluster.actor.nodes": flags("--actor.num_nodes"),
    "cluster.actor.processes_per_node": flags("--actor.num_gpus_per_node"),
    "cluster.critic.nodes": flags("--critic.num_nodes"),
    "cluster.critic.processes_per_node": flags("--critic.num_gpus_per_node"),
    "cluster.engines.number": flags("--vllm.num_engines"),
    "cluster.engines.tensor_parallel": flags("--vllm.tensor_parallel_size"),
    "cluster.engines.memory_share": flags("--vllm.gpu_memory_utilization"),
    "cluster.one_node": own("launch"),
    "job": own("launch"),
    "logging": own("launch"),  # W&B's key comes from the environment, never from a command line
}

CONSTANT: tuple[tuple[str, Any], ...] = (
    ("--algo.kl.init_coef", 0),  # no reference model
    ("--actor.entropy_coef", 0),  # logs the entropy, without a loss
    ("--actor.lr_scheduler", "constant"),
    ("--actor.lr_warmup_ratio", 0),
    ("--critic.lr_scheduler", "constant"),  # the critic's class warms up over the critic-only steps
    ("--critic.lr_warmup_ratio", 0),
    ("--train.max_epochs", 1),  # the critic's class has its own number of updates
    ("--train.num_episodes", 1),  # the sampler goes through the prompts as often as the updates need
    ("--data.input_key", "input"),
    ("--data.label_key", "label"),
    ("--ckpt.max_num", 2),
    ("--ckpt.load_enable", True),  # the same command continues a stopped run
    ("--logger.logging_steps", 1),
)


def command_line(run: RunConfig, places: Places) -> list[str]:
    """Words after `python -m openrlhf.cli.train_ppo_ray`; ConfigError for what the backend cannot have."""
    check(run)
    words: list[str] = []
    for name, value in [*_translated(run), *CONSTANT, *_paths(run, places)]:
        if run.critic is not None or not name.startswith("--critic."):
            words += words_of(name, value)
    return words


def check(run: RunConfig) -> None:
    """Raises ConfigError where a setting has no entry in TABLE, or a value that the backend cannot have."""
    if run.backend != "openrlhf":
        raise ConfigError(f"{shown(file_of('scales', run.scale))}: backend: is {run.backend}, not openrlhf")
    for key, value in _leaves(run.settings()):
        entry = TABLE[_entry_key(run, key)]
        if entry.only is not ... and value != entry.only:
            raise ConfigError(
                f"{run.row} at scale {run.scale}: {key}: is {value}, and OpenRLHF can have {entry.only} alone"
            )
    _check_ranks(run, "actor", run.training.batch_trajectories // run.minibatches_per_batch)
    if run.critic is not None:
        _check_ranks(run, "critic", run.training.batch_trajectories)


def _check_ranks(run: RunConfig, name: str, trajectories: int) -> None:
    """Raises ConfigError unless every rank gets the same number of whole micro-batches."""
    if run.cluster is None or run.openrlhf is None:
        return
    settings = run.openrlhf
    ranks, left = divmod(getattr(run.cluster, name).processes, settings.ring_attention)
    micro = 1 if settings.max_tokens_per_gpu else settings.micro_batch_trajectories
    if left or trajectories % (ranks * micro):
        raise ConfigError(
            f"{shown(file_of('scales', run.scale))}: cluster.{name}: {ranks} ranks of "
            f"{settings.ring_attention} processes cannot share {trajectories} trajectories in micro-batches "
            f"of {micro}; change the processes, openrlhf.ring_attention or openrlhf.micro_batch_trajectories"
        )


def _entry_key(run: RunConfig, key: str) -> str:
    """The longest name in TABLE that the key is, or lies below."""
    parts = key.split(".")
    for length in range(len(parts), 0, -1):
        if (name := ".".join(parts[:length])) in TABLE and (length == len(parts) or _whole(name)):
            return name
    raise ConfigError(
        f"{run.row} at scale {run.scale}: {key}: sao/openrlhf/flags.py does not say what becomes of it; "
        "add it to TABLE"
    )


def _whole(name: str) -> bool:
    """Whether an entry stands for its whole block: no other entry lies below it."""
    return not any(other.startswith(f"{name}.") for other in TABLE)


def _leaves(block: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in block.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _translated(run: RunConfig) -> Iterator[tuple[str, Any]]:
    settings = dict(_leaves(run.settings()))
    for key, entry in TABLE.items():
        for flag in entry.flags:
            yield flag.name, flag.value(run) if flag.value else settings.get(key)


def _paths(run: RunConfig, places: Places) -> Iterator[tuple[str, Any]]:
    yield "--actor.model_name_or_path", places.policy
    yield "--critic.model_name_or_path", places.policy
    yield "--data.prompt_dataset", places.prompts
    yield "--train.agent_func_path", places.agent
    yield "--ckpt.path", places.checkpoints
    yield "--ckpt.output_dir", f"{places.run}/final"
    if run.logging and run.logging.tensorboard:
        yield "--logger.tensorboard_dir", f"{places.run}/tensorboard"
    if run.logging and run.logging.wandb:
        yield "--logger.wandb.project", run.logging.wandb
        yield "--logger.wandb.group", run.scale
        yield "--logger.wandb.run_name", f"{run.row}_seed{run.seed}"


def words_of(name: str, value: Any) -> list[str]:
    """A flag with its value as words; none where the value is None or False."""
    if value is None or value is False:
        return []
    if value is True:
        return [name]
    values = value if isinstance(value, list | tuple) else [value]
    return [name, *(f"{word:.12g}" if isinstance(word, float) else str(word) for word in values)]


def planned_places(run: RunConfig, results: str = "results") -> Places:
    """Where a run of the workflow reads and writes: `results`/<scale>."""
    prepared = f"{results}/{run.scale}/prepare/{run.task.name}"
    released = run.model.path if run.sft is None else None
    folder = f"{results}/{run.scale}/runs/{run.row}/seed{run.seed}"
    if run.pretrains_values:
        folder = f"{prepared}/{run.row}_run"
    return Places(
        policy=released or f"{prepared}/warm_start/policy",
        prompts=f"{folder}/prompts.jsonl",
        agent="sao/openrlhf/agent.py",
        run=folder,
    )


def shown_command(run: RunConfig, results: str = "results") -> str:
    """The command line as text, a flag a line."""
    return command_text(CLI, command_line(run, planned_places(run, results)))


def command_text(module: str, words: list[str]) -> str:
    """A command line as text, a flag a line."""
    lines = [f"python -m {module}"]
    for word in words:
        lines.append(word) if word.startswith("--") else lines.append(f"{lines.pop()} {shlex.quote(word)}")
    return " \\\n  ".join(lines) + "\n"


def write_commands(scale: str, folder: Path) -> list[Path]:
    """Write the command line of every row of a scale as <scale>.<row>.txt; returns the files."""
    files = []
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for row in load_scale(scale).rows():
        text = shown_command(resolve(row, scale, load_scale(scale).seeds[0]))
        file = folder / f"{scale}.{row}.txt"
        write_atomic(file, text.encode())
        files.append(file)
    return files


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns 0, or 2 for a user's mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m sao.openrlhf.flags", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--scale", required=True)
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--row")
    target.add_argument("--write", type=Path, metavar="FOLDER")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", default="results")
    options = parser.parse_args(arguments)
    try:
        if options.write:
            print("\n".join(str(file) for file in write_commands(options.scale, options.write)))
            return 0
        print(shown_command(resolve(options.row, options.scale, options.seed), options.results), end="")
        return 0
    except (ConfigError, RunError) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
