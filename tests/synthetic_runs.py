"""Writes run directories with made-up curves, for tests of the analysis alone."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sao.config import RunConfig, resolve
from sao.prepare import seal
from sao.runlog import EVALUATION_COLUMNS, METRIC_COLUMNS, RunDirectory, append_records

BANDS = {"1 lock": 64, "2 locks": 32, "3 locks": 16, "4 or 6 locks": 16}
PROBLEMS = sum(BANDS.values())
STYLES = ("academic", "cute", "chuunibyou", "classical")


def write_run(
    folder: Path,
    row: str,
    seed: int,
    curve: Sequence[float],
    scale: str = "cpu",
    finished: bool = True,
    **metrics: float | Sequence[float | None] | None,
) -> Path:
    """A run whose held-out accuracy at the scale's evaluation steps is `curve`.

    `metrics` sets metric columns: one number for all policy updates, or one a policy update. An unfinished
    run stopped at the last point of its curve.
    """
    config = resolve(row, scale, seed)
    path = folder / "runs" / row / f"seed{seed}"
    generator = np.random.default_rng([seed, sum(map(ord, row))])
    with RunDirectory.open(path, config, f"train {row}") as run:
        stop = config.training.updates if finished else config.evaluation.steps[len(curve) - 1]
        records = [
            _metrics(config, step, metrics, generator) for step in range(-config.critic_only_steps, stop)
        ]
        append_records(path / "metrics.jsonl", METRIC_COLUMNS, records)
        for step, accuracy in zip(config.evaluation.steps, curve, strict=False):
            run.log_evaluations(evaluations(config, step, accuracy, generator))
        if finished:
            run.seal()
    return path


def write_warm_start(folder: Path, task: str, accuracy: float) -> None:
    """The shared warm start's evaluation at step 0, on the problems of `write_run`."""
    row = "sao_online" if task == "style" else "sao"
    path = folder / "prepare" / task / "warm_start" / "evaluations.jsonl"
    path.parent.mkdir(parents=True)
    records = evaluations(resolve(row, "cpu", 0), 0, accuracy, np.random.default_rng(0))
    append_records(path, EVALUATION_COLUMNS, records)
    seal(path.parent, "made up")


def evaluations(
    config: RunConfig, step: int, accuracy: float, generator: np.random.Generator
) -> list[dict[str, object]]:
    """One line a problem; exactly round(accuracy x PROBLEMS) are solved, the easy ones more often."""
    labels = [band for band, count in BANDS.items() for _ in range(count)]
    easiness = generator.gumbel(size=len(labels)) - np.repeat(np.arange(4), list(BANDS.values()))
    solved = np.argsort(-easiness)[: round(accuracy * PROBLEMS)]
    correct = np.isin(np.arange(PROBLEMS), solved)
    online = config.domain == "writing"
    return [
        {
            "step": step,
            "benchmark": config.task.name,
            "problem_id": f"problem-{index:03d}",
            "run_index": 0,
            "correct": bool(correct[index]),
            "status": "completed",
            "turns": 5,
            "action_tokens": 15,
            "label": label,
            "style": str(generator.choice(STYLES)) if online else None,
            "reward": float(correct[index]),
        }
        for index, label in enumerate(labels)
    ]


def spoil(path: Path, name: str, value: object) -> None:
    """Change one entry of a JSON file by hand."""
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(content | {name: value}), encoding="utf-8")


def _metrics(
    config: RunConfig,
    step: int,
    chosen: dict[str, float | Sequence[float | None] | None],
    generator: np.random.Generator,
) -> dict[str, object]:
    record: dict[str, object] = dict.fromkeys(METRIC_COLUMNS)
    record |= {
        "step": step,
        "version": max(step, 0),
        "wall_seconds": int(config.digest()[:6], 16) / 1e6 + step,  # no two runs take the same time
        "reward_mean": 0.4 + 0.2 * step / config.training.updates + generator.normal(0, 0.05),
        "masked_low": 0.004,
        "masked_high": 0.001,
        "critic_grad_norm": 0.5,
        "critic_grad_norm_attention": 0.1,
        "critic_grad_norm_rest": 0.4,
        "explained_variance_before": 0.3,
        "staleness_mean": 6.0,
        "action_tokens": 1500,
        "sampler_idle_share": 0.1,
        "trainer_idle_share": 0.3,
        "cpu_seconds": 1.2 * (step + config.critic_only_steps + 1),
        "sampler_tokens": 2000 * (step + config.critic_only_steps + 1),
    }
    for name, value in chosen.items():
        record[name] = value[max(step, 0)] if isinstance(value, Sequence) else value
    return record
