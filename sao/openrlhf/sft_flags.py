"""OpenRLHF's command line of the fine-tuning that a scale with a released model starts from. No torch.

    python -m sao.openrlhf.sft_flags --scale paper_math [--write FOLDER]

The traces are those that `python -m evaluation.math.sft_traces` keeps: conversations in the key "messages".
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from sao.config import ConfigError, Scale, load_scale
from sao.config_cluster import FineTuning
from sao.config_files import file_of, shown
from sao.openrlhf.flags import command_text, words_of
from sao.runlog import RunError
from sao.runlog_files import write_atomic, writing

CLI = "openrlhf.cli.train_sft"
SEED = 0


def sft_words(scale: Scale, results: str = "results") -> list[str]:
    """Words after `python -m openrlhf.cli.train_sft`; ConfigError at a scale that does not fine-tune."""
    settings, engine = scale.sft, scale.openrlhf
    if settings is None or engine is None or scale.model.path is None or scale.tasks.reasoning is None:
        raise ConfigError(
            f"{shown(file_of('scales', scale.name))}: sft: the scale fine-tunes no released model"
        )
    folder = checkpoints_folder(scale, results).parent
    table: list[tuple[str, Any]] = [
        ("--model.model_name_or_path", scale.model.path),
        ("--data.dataset", traces_file(settings, results)),
        ("--data.input_key", "messages"),
        ("--data.multiturn", True),
        ("--data.apply_chat_template", True),
        ("--data.max_len", scale.sampler.max_tokens),
        ("--train.max_epochs", settings.epochs),
        ("--train.batch_size", settings.batch_trajectories),
        ("--train.micro_batch_size", engine.micro_batch_trajectories),
        ("--train.seed", SEED),
        ("--adam.lr", settings.learning_rate),
        ("--adam.betas", (0.9, 0.95)),
        ("--adam.weight_decay", 0),
        ("--max_norm", 1.0),
        ("--lr_scheduler", "cosine_with_min_lr"),
        ("--lr_warmup_ratio", settings.warm_up_share),
        ("--model.gradient_checkpointing_enable", engine.gradient_checkpointing),
        ("--model.aux_loss_coef", engine.router_loss_coefficient),
        ("--ds.param_dtype", "bf16"),
        ("--ds.zero_stage", engine.zero_stage),
        ("--ds.attn_implementation", engine.attention),
        ("--ds.experts_implementation", engine.experts),
        ("--ds.adam_offload", engine.offload_optimizer),
        ("--ds.packing_samples", engine.packing),
        ("--ds.ring_attn_size", engine.ring_attention),
        ("--ckpt.path", checkpoints_folder(scale, results)),
        ("--ckpt.output_dir", f"{folder}/policy"),
        ("--ckpt.save_steps", scale.checkpoint_interval),
        ("--ckpt.max_num", 2),
        ("--ckpt.load_enable", True),
    ]
    return [word for name, value in table for word in words_of(name, value)]


def traces_file(settings: FineTuning, results: str) -> Path:
    """The traces that a scale fine-tunes on."""
    return Path(results) / "data" / f"{settings.data}_traces.jsonl"


def how_to_make_traces(settings: FineTuning, model: str, results: str) -> str:
    """What makes the file of traces, in words; `model` is the one that is fine-tuned."""
    return (
        f"have {settings.teacher} solve the problems of {settings.data} ({settings.samples_per_problem} "
        "times each) with: python -m evaluation.math.traces sample, then keep; or keep others' traces "
        f"with: python -m evaluation.math.sft_traces TRACES --tokenizer {model} --out "
        f"{traces_file(settings, results)}"
    )


def checkpoints_folder(scale: Scale, results: str) -> Path:
    """Where fine-tuning keeps its checkpoints; only for scales with a task of the domain reasoning."""
    assert scale.tasks.reasoning is not None
    return Path(results) / scale.name / "prepare" / scale.tasks.reasoning.name / "warm_start" / "checkpoints"


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns 0, or 2 for a user's mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m sao.openrlhf.sft_flags", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--scale", required=True)
    parser.add_argument("--results", default="results")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write <scale>_sft.txt there")
    options = parser.parse_args(arguments)
    try:
        text = command_text(CLI, sft_words(load_scale(options.scale), options.results))
        if options.write is None:
            print(text, end="")
            return 0
        with writing(options.write):
            options.write.mkdir(parents=True, exist_ok=True)
        file = options.write / f"{options.scale}_sft.txt"
        write_atomic(file, text.encode())
        print(file)
        return 0
    except (ConfigError, RunError) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
