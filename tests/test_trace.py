"""A trajectory in the terminal: shown tokens and numbers, choice of problem and step, and damaged logs."""

import io
import json
from math import log
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from synthetic_runs import write_run

from analysis import trace
from analysis.command import run_command
from analysis.trace import FILE, TRAINING_FILE, dis_band, parts, ratio, token_table
from sao.config import resolve
from sao.runlog import TRAINING_TRAJECTORY_COLUMNS, TRAJECTORY_COLUMNS, append_records
from sao.runlog_files import append_lines

LOGGED = Path(__file__).parents[1] / "results/logged/cpu/runs"
CURVE = (0.40, 0.45, 0.50, 0.55, 0.60)


def trajectory(step: int = 24, problem: str = "abc1", **changed: Any) -> dict[str, Any]:
    """Prompt of two tokens, an action of two, an observation of one, an action of one."""
    return {
        "step": step,
        "problem_id": problem,
        "label": "1 lock",
        "status": "completed",
        "reward": 1.0,
        "token_ids": [1, 2, 3, 4, 5, 6],
        "token_texts": ["<bos>", "[L1]", "?", "3", "below", "!"],
        "action_mask": [0, 0, 1, 1, 0, 1],
        "rollout_logprobs": [None, None, -1.0, -2.0, None, -0.5],
        "trainer_logprobs": [None, None, -1.0, -2.0 + log(0.5), None, -0.5 + log(2.0)],
        "values": [None, None, 0.25, 0.5, None, 0.75],
        "advantages": [None, None, 0.1, -0.2, None, 0.0],
        "policy_versions": [-1, -1, 24, 24, -1, 24],
    } | changed


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that stopped after two evaluations and logged two problems in each."""
    path = write_run(tmp_path / "cpu", "sao", 0, CURVE[:2], finished=False)
    records = [trajectory(step, problem) for step in (24, 48) for problem in ("abc1", "abd2")]
    append_records(path / FILE, TRAJECTORY_COLUMNS, records)
    return path


def shown(path: Path, *arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    trace.main([str(path), *arguments])
    return capsys.readouterr().out


def cells(line: dict[str, Any], band: tuple[float, float] | None) -> list[list[str]]:
    """Lines of the table as they look on a wide terminal."""
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(token_table(line, band))
    return [text.split() for text in console.export_text().splitlines()[3:] if text.strip()]


def test_tokens_with_their_numbers() -> None:
    assert cells(trajectory(), (0.7, 6.0)) == [
        ["0-1", "prompt", "<bos>", "[L1]"],
        ["2", "action", "?", "-1.000", "1.000", "0.250", "+0.100", "24"],
        ["3", "action", "3", "-2.000", "0.500", "masked", "0.500", "-0.200", "24"],
        ["4", "observation", "below"],
        ["5", "action", "!", "-0.500", "2.000", "0.750", "+0.000", "24"],
    ]


def test_rows_without_critic_or_band() -> None:
    lines = cells(trajectory(values=None, advantages=None), None)
    assert lines[2] == ["3", "action", "3", "-2.000", "0.500", "\N{EN DASH}", "\N{EN DASH}", "24"]


def test_ratio_is_trainer_over_sampler() -> None:
    assert ratio(trajectory(), 3) == pytest.approx(0.5)
    assert ratio(trajectory(), 0) is None
    far = trajectory(trainer_logprobs=[0.0] * 6, rollout_logprobs=[-1000.0] * 6)
    assert ratio(far, 3) == pytest.approx(1.0142e304, rel=1e-3)


def test_parts_of_a_trajectory() -> None:
    assert list(parts([0, 1, 1, 0, 0, 1])) == [
        ("prompt", [0]),
        ("action", [1, 2]),
        ("observation", [3, 4]),
        ("action", [5]),
    ]


def test_band_of_dis_is_one_minus_low_and_one_plus_high() -> None:
    band = dis_band(resolve("sao", "cpu", 0).settings())
    assert band == pytest.approx((0.7, 6.0))
    assert dis_band(resolve("vapo", "cpu", 0).settings()) is None


def test_latest_step_unless_one_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "after 48 updates" in shown(run, "--problem", "abc1", capsys=capsys).replace("\n", " ")
    named = shown(run, "--problem", "abc1", "--step", "24", capsys=capsys).replace("\n", " ")
    assert "after 24 updates" in named
    assert "DIS keeps ratios inside (0.7, 6)" in named


def test_problems_are_listed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(run, capsys=capsys)
    assert "abc1" in text and "abd2" in text and "24: 1, 48: 1" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--problem", "xyz"], "--problem xyz: is not logged"),
        (["--problem", "ab"], "is the beginning of several"),
        (
            ["--problem", "abc", "--step", "72"],
            "--step 72: problem abc1 was not logged then; there are: 24, 48",
        ),
    ],
)
def test_unknown_choices_name_the_known_ones(
    run: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(run, arguments, capsys)


def refused(path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run_command(lambda: trace.main([str(path), *arguments])) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


def test_damaged_logs_are_named_with_their_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = trajectory(72, values=[0.5])
    append_lines(run / FILE, [json.dumps(short)])
    assert f"{run / FILE}: line 5: values is not as long" in refused(run, [], capsys)
    (run / FILE).unlink()
    append_lines(run / FILE, [json.dumps({"step": 24, "problem_id": "abc1"})])
    assert f"{run / FILE}: line 1: lacks label, status" in refused(run, [], capsys)
    (run / FILE).write_bytes(b"no gzip")
    assert f"{run / FILE}: damaged after byte 0" in refused(run, [], capsys)


def test_runs_without_trajectories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run(tmp_path / "cpu", "sao", 0, CURVE)
    assert "the first seed alone has them" in refused(path, [], capsys)
    assert "is no run directory" in refused(tmp_path, [], capsys)


def test_training_trajectories_with_ratios_outside_the_band(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = [trajectory(47, "abc1", reward=reward) for reward in (0.0, 1.0)]
    append_records(run / TRAINING_FILE, TRAINING_TRAJECTORY_COLUMNS, [*group, trajectory(47, "abd2")])
    text = shown(run, "--training", "--problem", "abc1", capsys=capsys)
    assert "0.500 masked" in text
    flat = " ".join(text.split())
    assert "in update 47: completed, reward 0," in flat
    assert "Masked here: 1 of 3 action tokens." in flat and "rounding alone" not in flat
    second = shown(run, "--training", "--problem", "abc1", "--sample", "1", capsys=capsys)
    assert "reward 1," in " ".join(second.split())
    assert "47: 0, 47: 1" in shown(run, "--training", capsys=capsys)
    message = refused(run, ["--training", "--problem", "abc1", "--sample", "2"], capsys)
    assert "--sample 2: problem abc1 has 2 at step 47" in message
    damaged = trajectory(48, values=[0.5])
    append_lines(run / TRAINING_FILE, [json.dumps(damaged)])
    assert f"{run / TRAINING_FILE}: line 4: values" in refused(run, ["--training"], capsys)


def test_shipped_runs_have_no_training_trajectories(capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(LOGGED / "sao/seed0", ["--training"], capsys)
    assert TRAINING_FILE in message and "runs of older versions have none of training" in message


@pytest.mark.parametrize("row", ["sao", "grpo_dis"])
def test_shipped_run(row: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, lines = trace.load_trajectories(LOGGED / row / "seed0")
    last = lines[-1]
    text = shown(LOGGED / row / "seed0", "--problem", last["problem_id"], capsys=capsys)
    assert text.count(" action ") == sum(last["action_mask"])
    assert ("No values: this row has no critic" in text) == (row == "grpo_dis")
    assert "(update 119: 1% " in text.replace("\n", " ")
