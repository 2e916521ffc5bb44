"""Graded evaluations of SWE-Bench on made-up tasks, as runner and grader leave them."""

import json
from pathlib import Path
from typing import Any

from evaluation.math.store import SampleStore
from evaluation.swe.outcomes import INFRASTRUCTURE_ERROR, RESOLVED, TESTS_FAIL, UNGRADED

IDS = [f"project__name-{number}" for number in range(500)]


def specification(row: str, seed: int, step: int, scale: str) -> dict[str, Any]:
    return {
        "row": row,
        "scale": scale,
        "seed": seed,
        "step": step,
        "benchmark": "swe_bench_verified",
        "policy": {"model": row},
        "protocol": {"sandbox": "docker", "max_turns": 300, "max_tokens": 131072},
        "data": {"source": "published", "tasks_sha256": "0"},
        "samples": dict.fromkeys(IDS, 1),
    }


def sample(name: str) -> dict[str, Any]:
    return {
        "problem_id": name,
        "run_index": 0,
        "verdict": UNGRADED,
        "finish_reason": "finish",
        "turns": 10,
        "tool_calls": 12,
        "action_tokens": 900,
    }


def evaluate(
    root: Path,
    row: str,
    outcomes: dict[str, str],
    played: list[str] = IDS,
    backend: str = "docker",
    protocol: dict[str, Any] | None = None,
    seed: int = 0,
    step: int = 400,
    scale: str = "paper_swe",
    measured: dict[str, float] | None = None,
) -> Path:
    """An evaluation as runner and grader leave it; sealed where it is complete."""
    folder = root / row / f"seed{seed}" / f"step{step}" / "swe_bench_verified"
    spec = specification(row, seed, step, scale)
    spec["protocol"] |= protocol or {}
    with SampleStore(folder, spec) as store:
        for name in played:
            store.append(sample(name) | (measured or {}))
        scores = [
            sample(name)
            | {
                "outcome": outcome,
                "verdict": "right" if outcome == RESOLVED else "wrong",
                "backend": backend,
            }
            for name, outcome in outcomes.items()
        ]
        (folder / "grading").mkdir()
        lines = [json.dumps(score) + "\n" for score in scores]
        (folder / "grading" / "outcomes.jsonl").write_text("".join(lines))
        if len(scores) == len(IDS) and INFRASTRUCTURE_ERROR not in outcomes.values():
            store.seal(scores)
    return folder


def outcomes(resolved: range | list[int], otherwise: str = TESTS_FAIL) -> dict[str, str]:
    return {name: RESOLVED if place in resolved else otherwise for place, name in enumerate(IDS)}
