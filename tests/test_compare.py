"""Comparison of two runs: settings, paired test, curves, and the runs that cannot be compared."""

import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from synthetic_runs import PROBLEMS, write_run

from analysis import compare
from analysis.command import run_command
from analysis.compare import paired_lines, setting_differences
from analysis.load import load_run
from sao.config import resolve
from sao.runlog import RunDirectory

CURVE = (0.40, 0.45, 0.50, 0.55, 0.60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results") / "cpu"
    write_run(folder, "sao", 0, CURVE, reward_mean=0.7)
    write_run(folder, "sao", 1, CURVE[:2], finished=False)
    write_run(folder, "grpo_dis", 0, (0.30, 0.35, 0.35, 0.30, 0.35), reward_mean=0.4)
    write_run(folder, "sao_online", 0, CURVE)
    return folder


def run(folder: Path, row: str, seed: int = 0) -> str:
    return str(folder / "runs" / row / f"seed{seed}")


def test_settings_that_differ() -> None:
    first = {"row": "a", "title": "A", "objective": {"kind": "dis", "eps_low": 0.3}, "critic": {"updates": 2}}
    second = {"row": "b", "title": "B", "objective": {"kind": "dis", "eps_low": 0.8}, "critic": None}
    assert setting_differences(first, second) == [
        ("row", '"a"', '"b"'),
        ("objective.eps_low", "0.3", "0.8"),
        ("critic.updates", "2", "\N{EN DASH}"),
    ]
    assert setting_differences(first, first) == []


def test_paired_test_of_each_step(folder: Path) -> None:
    a, b = load_run(Path(run(folder, "sao"))), load_run(Path(run(folder, "grpo_dis")))
    lines = paired_lines(a, b)
    assert [line["evaluation"] for line in lines] == ["24", "48", "72", "96", "120", compare.SCORE]
    last = lines[4]
    differences = (a.at(120) - b.at(120)).to_numpy()
    assert last["difference"] == pytest.approx(
        100 * (round(0.6 * PROBLEMS) - round(0.35 * PROBLEMS)) / PROBLEMS
    )
    assert last["only_a"] - last["only_b"] == pytest.approx(differences.sum())
    exact = stats.binomtest(last["only_a"], last["only_a"] + last["only_b"]).pvalue
    assert last["p"] == pytest.approx(exact, abs=0.005)
    assert all(line["holm"] >= line["p"] for line in lines[:5])
    assert "holm" not in lines[5]


def test_printed_comparison(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare.main([run(folder, "sao"), run(folder, "grpo_dis")])
    text = capsys.readouterr().out
    assert "| `sampling.group_size` | 1 | 8 |" in text
    assert "| `reward_mean` | 0.7 | 0.4 | reward |" in text
    assert f"Held-out evaluations ({PROBLEMS} problems)" in text
    assert "one run each says nothing of other seeds" in text


def test_written_comparison(folder: Path, tmp_path: Path) -> None:
    compare.main([run(folder, "sao"), run(folder, "grpo_dis"), "--out", str(tmp_path / "out")])
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"comparison.md", "curves.csv", "curves.pdf", "curves.png", "curves.svg"}
    curves = pd.read_csv(tmp_path / "out" / "curves.csv")
    accuracy = curves[curves["quantity"] == compare.ACCURACY]
    assert list(accuracy["step"]) == [24, 48, 72, 96, 120]
    assert accuracy["a"].iloc[-1] == pytest.approx(round(0.6 * PROBLEMS) / PROBLEMS, abs=1e-6)
    rewards = curves[curves["quantity"] == "reward_mean"]
    assert len(rewards) == 120 and set(rewards["b"]) == {0.4}


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run_command(lambda: compare.main(arguments)) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


def test_runs_that_are_not_comparable(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sao = run(folder, "sao")
    assert "other tasks (locks and style)" in refused([sao, run(folder, "sao_online")], capsys)
    assert "is not finished (running: stopped at step 48 of 120)" in refused(
        [sao, run(folder, "sao", 1)], capsys
    )
    assert "is named twice" in refused([sao, sao], capsys)
    assert "is no run directory" in refused([sao, str(folder / "runs")], capsys)


def test_other_problems_are_not_paired(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_run(tmp_path / "cpu", "vapo", 0, CURVE)
    path = other / "evaluations.jsonl"
    path.write_text(path.read_text().replace("problem-000", "problem-999"))
    (other / "seal.json").unlink()
    with RunDirectory.open(other, resolve("vapo", "cpu", 0), "x") as directory:
        directory.seal()
    assert f"({PROBLEMS - 1} in common" in refused([run(folder, "sao"), str(other)], capsys)


def test_damaged_runs_are_named(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = write_run(tmp_path / "cpu", "vapo", 0, CURVE)
    path = damaged / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    message = refused([run(folder, "sao"), str(damaged)], capsys)
    assert f"{path}: was changed after the run was sealed" in message
    (damaged / "spec.json").write_text("{")
    assert f"{damaged / 'spec.json'}: cannot be read" in refused([run(folder, "sao"), str(damaged)], capsys)


def test_steps_in_common_are_compared(tmp_path: Path) -> None:
    first = load_run(write_run(tmp_path / "cpu", "sao", 0, CURVE))
    second = load_run(write_run(tmp_path / "cpu", "vapo", 0, CURVE))
    shorter = type(second)(second.record, second.directory, second.correct.loc[[72, 120]], second.bands)
    assert [line["evaluation"] for line in paired_lines(first, shorter)] == ["72", "120", compare.SCORE]
    none = type(second)(
        second.record, second.directory, second.correct.set_axis(np.arange(5) + 1), second.bands
    )
    with pytest.raises(Exception, match="no evaluation step in common"):
        compare.check_comparable(first, none)


def test_a_reader_that_leaves_early_is_no_error(folder: Path, tmp_path: Path) -> None:
    """`| head -1`: no traceback, and what was asked for with --out is written all the same."""
    pair = [run(folder, "sao"), run(folder, "grpo_dis")]
    words = [sys.executable, "-m", "analysis.compare", *pair, "--out", str(tmp_path / "out")]
    command = f"{shlex.join(words)} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == "" and done.returncode in (0, 1)
    assert (tmp_path / "out/comparison.md").is_file() and (tmp_path / "out/curves.csv").is_file()


def test_commands_need_no_torch() -> None:
    names = ("compare", "trace", "comparisons", "design", "published", "verify")
    modules = ", ".join(f"analysis.{name}" for name in names)
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
