"""A tiny policy in the SWE environment with the real OpenHands and harness, where these are installed."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.swe.tiny_traces import TinyTasks, demonstrator
from sao.environments.swe_tiny import actions_of, tiny_tokenizer
from sao.local.swe_training import main, tiny_run, warmed_policy
from sao.trajectory import Trajectory

ROOT = Path(__file__).parents[1]
OPENHANDS = Path(os.environ.get("SAO_OPENHANDS_PYTHON", ROOT / ".venv-openhands/bin/python"))
needs_openhands = pytest.mark.skipif(
    not (OPENHANDS.exists() and shutil.which("bwrap") and shutil.which("tmux")),
    reason="needs the environment of `make openhands-environment`, bubblewrap and tmux",
)


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def train(out: Path, *options: str) -> list[dict[str, Any]]:
    assert main(["--openhands", str(OPENHANDS), "--out", str(out), *options]) == 0
    lines = read(out / "metrics.jsonl")
    assert all(line["policy_grad_norm"] > 0 for line in lines if line["step"] >= 0)
    assert all(line["policy_loss"] != 0 for line in lines if line["step"] >= 0)
    assert all(line["mean_turns"] >= 1 and line["action_tokens"] > 0 for line in lines)
    # Without FP8 or lag between sampler and trainer the ratio would be 1; with both it stays close.
    assert all(0.8 < line["ratio_q50"] < 1.25 for line in lines if line["step"] >= 0)
    return lines


@needs_openhands
def test_a_policy_acts_and_learns_in_the_real_environment(tmp_path: Path) -> None:
    lines = train(tmp_path, "--tasks", "1", "--batch", "3", "--updates", "1", "--workers", "2")
    assert [line["step"] for line in lines] == [-1, 0]
    summary = read(tmp_path / "summary.json")[0]
    assert summary["reward_1"] >= 1 and summary["trajectories"] == 6
    traces = [Trajectory(**trace) for trace in read(tmp_path / "demonstrations.jsonl")]
    assert [trace.reward for trace in traces] == [1.0, 0.0]
    assert (tmp_path / "policy/config.json").exists() and not list(tmp_path.glob("swe-training-*"))


@needs_openhands
@pytest.mark.slow
def test_a_few_updates_on_all_five_tasks(tmp_path: Path) -> None:
    lines = train(tmp_path, "--tasks", "5", "--batch", "8", "--updates", "3")
    assert [line["step"] for line in lines] == [-1, 0, 1, 2]
    rewards = [line["reward_mean"] for line in lines]
    assert 0 < sum(rewards) < len(rewards)  # some of the attempts earn 1, and some do not
    versions = [line["version"] for line in lines]
    assert versions == [0, 1, 2, 3]


def test_a_missing_environment_has_one_clear_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["--openhands", str(tmp_path / "none"), "--out", out]) == 2
    said = capsys.readouterr().err
    assert (
        said.startswith(f"--openhands {tmp_path / 'none'}: there is no such Python") and "\n" not in said[:-1]
    )
    wrong = tmp_path / "python"
    wrong.write_text("#!/bin/sh\necho 'SWE-Bench has an environment of its own' >&2\nexit 2\n")
    wrong.chmod(0o755)
    assert main(["--openhands", str(wrong), "--out", out]) == 2
    assert "the worker does not start: SWE-Bench has an environment of its own" in capsys.readouterr().err


def test_fine_tuning_learns_the_traces_by_heart(tmp_path: Path) -> None:
    """Two traces that part at one action: what is left of the loss is the choice between them."""
    tasks = TinyTasks.build(tmp_path, 1)
    tokenizer = tiny_tokenizer(tasks.scripts, tasks.titles)
    chat = demonstrator(tokenizer)
    prompt = chat.prompt_ids([{"role": "user", "content": f"<issue>\n{tasks.titles[0]}\n"}])
    traces = []
    for script in tasks.scripts:
        ids, spans = list(prompt), []
        for action in actions_of(script, chat):
            spans.append((len(ids), len(ids) + len(action)))
            ids += action + chat.following_ids([{"role": "tool", "content": "ok"}])
        mask = np.zeros(len(ids), dtype=bool)
        for start, end in spans:
            mask[start:end] = True
        logprobs = np.where(mask, -1.0, np.nan).astype(np.float32)
        traces.append(
            Trajectory(
                np.array(ids), np.array(spans), logprobs, np.where(mask, 0, -1), float(script.resolves)
            )
        )
    run = tiny_run(batch=2, updates=1, learning_rate=1e-4, seed=0, concurrency=1)
    _, loss = warmed_policy(run, len(tokenizer), traces, steps=150)
    actions = [trace.num_action_tokens for trace in traces]
    # Of three sequences (the solution twice) two go one way: entropy 0.6365 nats at the one open choice.
    least = 3 * 0.6365 / (2 * actions[0] + actions[1])
    assert least * 0.99 < loss < least + 0.02
