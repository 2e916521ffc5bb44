"""A tiny policy in the SWE training environment, for real: OpenHands, its tools, the harness, a few updates.

    python -m sao.local.swe_training --openhands .venv-openhands/bin/python --out results/swe_tiny

builds the tiny tasks, records scripted solutions and failures through the whole scaffold, fine-tunes a fresh
policy on these traces, and then lets the policy act in the environment and trains it by SAO in the local
engine's wall-clock mode. Writes demonstrations.jsonl, metrics.jsonl (a line per update) and summary.json.
Needs bubblewrap and tmux; the tasks are graded without Docker.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3MoeForCausalLM

from evaluation.swe.tiny_traces import SetupError, TinyTasks, demonstrator, record_traces
from sao.config import RunConfig, resolve
from sao.config_rows import DIS
from sao.critic import ValueModel
from sao.environments.base import Instance
from sao.environments.swe import SWEEnvironment
from sao.environments.swe_tiny import tiny_tokenizer
from sao.local.model import build_policy, export_policy
from sao.local.packed_batch import optimizer_step, set_learning_rate
from sao.local.trainer import Trainer
from sao.local.wall_clock import Collector, ServedPolicy, train
from sao.local.warm_start import Demonstration, demonstration_batches, imitation_loss
from sao.streaming import SchedulingError
from sao.trajectory import Trajectory

MODEL_NAME = "tiny-policy"
MAX_TOKENS = 2048
WARM_UP_LEARNING_RATE = 4e-3
WARM_UP_BATCH = 8
SOLVED_COPIES = 2  # of a trace that solves its task to one of one that fails, in fine-tuning


def warmed_policy(
    run: RunConfig, vocabulary: int, traces: Sequence[Trajectory], steps: int
) -> tuple[Qwen3MoeForCausalLM, float]:
    """A fresh policy after `steps` of supervised fine-tuning on the traces' actions, and its last loss.

    Traces that solve their task weigh double, so that most of the policy's own attempts do, and not all.
    """
    policy = build_policy(run.model, vocabulary, run.sampler.max_tokens, run.seed)
    rng = np.random.default_rng([run.seed, 6])
    demonstrations: list[Demonstration] = [
        (trace.token_ids.tolist(), trace.action_mask.tolist())
        for trace in traces
        for _ in range(SOLVED_COPIES if trace.reward == 1.0 else 1)
    ]
    optimizer = torch.optim.AdamW(policy.parameters(), betas=(0.9, 0.98), weight_decay=0.0)
    batches = demonstration_batches(demonstrations, min(WARM_UP_BATCH, len(demonstrations)), rng)
    loss = torch.tensor(math.nan)
    for step in range(steps):
        share = min(1.0, (step + 1) / 20) * 0.5 * (1 + math.cos(math.pi * step / steps))
        set_learning_rate(optimizer, WARM_UP_LEARNING_RATE * share)
        loss = imitation_loss(policy, next(batches), observation_weight=0.0)
        optimizer_step(policy, optimizer, loss, 1.0)
    return policy, loss.item()


def tiny_run(batch: int, updates: int, learning_rate: float, seed: int, concurrency: int) -> RunConfig:
    """Row `sao` with the coding band, on a batch and a model of this size.

    The value model is not pretrained and has one step alone before the policy's first.
    """
    base = resolve("sao", "smoke", seed)
    assert isinstance(base.objective, DIS) and base.critic is not None
    return base.model_copy(
        update={
            "objective": base.objective.model_copy(update={"eps_low": 0.8, "eps_high": 3.0}),
            "critic": base.critic.model_copy(update={"pretrained": False, "critic_only_steps": 1}),
            "training": base.training.model_copy(
                update={"batch_trajectories": batch, "updates": updates, "learning_rate": learning_rate}
            ),
            "sampler": base.sampler.model_copy(update={"slots": concurrency, "max_tokens": MAX_TOKENS}),
            "clock": base.virtual_clock.model_copy(update={"sync_interval": 1, "queue_limit_batches": 1}),
        }
    )


def train_tiny_policy(options: argparse.Namespace) -> dict[str, Any]:
    """The whole of it; returns the summary."""
    from evaluation.endpoint import Endpoint
    from evaluation.swe.proxy import RecordingProxy
    from evaluation.swe.training import OpenHandsScaffold, ScaffoldSettings
    from sao.background_server import BackgroundServer

    torch.set_num_threads(1)
    began = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    tasks = TinyTasks.build(options.out / "tasks", options.tasks)
    tokenizer = tiny_tokenizer(tasks.scripts, tasks.titles)
    run = tiny_run(options.batch, options.updates, options.learning_rate, options.seed, options.workers)
    settings = ScaffoldSettings(
        python=options.openhands,
        max_turns=options.max_turns,
        wall_seconds=options.wall_seconds,
        test_seconds=120,
        workspace="local",
        backend="bubblewrap",
        images=options.out / "tasks/images",
    )
    proxy = RecordingProxy(None, tokenizer, MODEL_NAME, MAX_TOKENS)
    with OpenHandsScaffold(settings, options.workers) as scaffold, BackgroundServer(proxy.app()) as server:
        proxy.url = server.url
        environment = SWEEnvironment(tasks.rows, [], scaffold, proxy)
        traces = record_traces(environment, tasks.scripts, demonstrator(tokenizer), options.workers)
        _write_lines(options.out / "demonstrations.jsonl", [trace.to_dict() for trace in traces])
        recorded = time.monotonic()
        policy, loss = warmed_policy(run, len(tokenizer), traces, options.warm_up_steps)
        export_policy(policy, options.out / "warm_start", tokenizer)
        print(f"{len(traces)} traces in {recorded - began:.0f} s; fine-tuned to loss {loss:.4f}", flush=True)
        environment.counts.clear()
        trainer = Trainer(run, policy, ValueModel.from_policy(policy))
        with ServedPolicy(policy, run, MODEL_NAME) as served:
            endpoint = Endpoint(served.url, MODEL_NAME)

            def rollout(instance: Instance, index: int, group: int) -> Trajectory:
                return environment.rollout(instance, index, group, endpoint)

            with Collector(run, environment.instances("train"), rollout, options.workers) as collector:
                lines = []
                for line in train(run, trainer, served, collector):
                    lines.append(line)
                    _write_lines(options.out / "metrics.jsonl", lines)
                    _report(line)
    export_policy(policy, options.out / "policy", tokenizer)
    summary = {
        "tasks": [row["instance_id"] for row in tasks.rows],
        "parameters": sum(parameter.numel() for parameter in policy.parameters()),
        "fine_tuning_loss": loss,
        "trajectories": sum(line["trajectories"] for line in lines),
        "reward_1": sum(round(line["reward_mean"] * line["trajectories"]) for line in lines),
        "counts": dict(environment.counts),
        "seconds": time.monotonic() - began,
    }
    _write_lines(options.out / "summary.json", [summary])
    return summary


def _report(line: dict[str, Any]) -> None:
    gradient = line.get("policy_grad_norm")
    shown = "critic alone" if gradient is None else f"gradient {gradient:.3g}"
    print(
        f"step {line['step']}  reward {line['reward_mean']:.2f} of {line['trajectories']}  {shown}  "
        f"lag {line['staleness_mean']:.2f}  invalid {line['invalid']}  {line['step_seconds']:.0f} s",
        flush=True,
    )


def _write_lines(file: Path, lines: Sequence[dict[str, Any]]) -> None:
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_text("".join(json.dumps(line) + "\n" for line in lines))
    temporary.rename(file)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns 0, or 2 where something is missing or the scaffold does not work here."""
    from evaluation.swe.training import WorkerError

    parser = argparse.ArgumentParser(
        prog="python -m sao.local.swe_training", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--openhands", type=Path, required=True, help="Python of the environment with OpenHands and swebench"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--tasks", type=int, default=5, choices=range(1, 6), help="tiny tasks, easiest first")
    parser.add_argument("--updates", type=int, default=3, help="updates of the policy")
    parser.add_argument("--batch", type=int, default=8, help="trajectories per update")
    parser.add_argument("--workers", type=int, default=2, help="attempts at once")
    parser.add_argument("--warm-up-steps", type=int, default=400, help="supervised steps on the traces")
    parser.add_argument("--learning-rate", type=float, default=3e-4, help="the policy's")
    parser.add_argument("--max-turns", type=int, default=10, help="answers of the model in an attempt")
    parser.add_argument("--wall-seconds", type=int, default=300, help="longest attempt")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if not options.openhands.exists():
        print(
            f"--openhands {options.openhands}: there is no such Python; make it with: "
            "make openhands-environment",
            file=sys.stderr,
        )
        return 2
    try:
        summary = train_tiny_policy(options)
    except (SetupError, SchedulingError, WorkerError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{summary['reward_1']} of {summary['trajectories']} trajectories earned reward 1")
    return 0


if __name__ == "__main__":
    sys.exit(main())
