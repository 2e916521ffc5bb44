"""Table 1 from evaluations on benchmarks, against cells worked out by hand, and what must make no number.

Intervals of two seeds rest on problems alone. That of three problems one is drawn three times has a chance of
1/27, more than 2.5%, so that the bounds are the means of the lowest and of the highest problem.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis import row, tables
from analysis.command import run_command
from analysis.evaluation_table import EVALUATION_COLUMNS, build_evaluation_table
from analysis.evaluations import load_evaluations
from analysis.load import AnalysisError, load_logs
from analysis.render import EMPTY
from analysis.statistics import accuracy_interval
from evaluation.math import protocol
from evaluation.math.store import SampleStore
from sao.config import resolve
from sao.runlog import RunDirectory

ROOT = Path(__file__).parents[1]
SCALE = "cpu_math"
STEP = 120  # its last
PROBLEMS = "abc"
SYNTHETIC = {"source": "synthetic", "patch_set": None}
LIMITS = {"max_tokens": 256, "max_turns": 4, "temperature": 1.0, "top_p": 1.0}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks of 3 problems with 4 runs each, BeyondAIME with 2."""
    for name, benchmark in protocol.BENCHMARKS.items():
        runs = 2 if name == "beyond_aime" else 4
        small = protocol.Benchmark(name, benchmark.title, benchmark.published, 3, runs)
        monkeypatch.setitem(protocol.BENCHMARKS, name, small)


def write(
    folder: Path,
    row: str,
    right: Sequence[int],
    seed: int = 0,
    step: int = STEP,
    benchmark: str = "aime_2025",
    runs: int = 4,
    missing: int = 0,
    undecided: int = 0,
    data: dict[str, Any] | None = None,
    limits: dict[str, Any] | None = None,
) -> Path:
    """An evaluation with `right` of `runs` samples right of each problem; sealed unless some are missing.

    Of the wrong ones, the first `undecided` are so.
    """
    path = folder / "evaluations" / row / f"seed{seed}" / f"step{step}" / benchmark
    spec = {
        "row": row,
        "seed": seed,
        "step": step,
        "benchmark": benchmark,
        "protocol": {"python": True, "sandbox": "bubblewrap", **LIMITS, **(limits or {})},
        "data": data or SYNTHETIC,
        "samples": dict.fromkeys(PROBLEMS, runs),
    }
    with SampleStore(path, spec) as store:
        for problem, run in store.due[: len(store.due) - missing]:
            verdict = "right" if run < right[PROBLEMS.index(problem)] else "wrong"
            if verdict == "wrong" and undecided:
                verdict, undecided = "undecided", undecided - 1
            store.append(sample(problem, run, verdict))
        if not missing:
            store.seal()
    return path


def sample(problem: str, run: int, verdict: str) -> dict[str, Any]:
    usual = dict.fromkeys(("turns", "action_tokens", "tool_calls", "tool_errors", "malformed_calls"), 1)
    ended = {"label": "sum", "finish_reason": "stop", "status": "completed"}
    return {"problem_id": problem, "run_index": run, "verdict": verdict, **usual, **ended}


def write_sao(folder: Path) -> None:
    """Problem means of its two seeds: 1, .5, 0 and 1, 1, .25; together 1, .75, .125, on average .625."""
    write(folder, "sao", (4, 2, 0), seed=0)
    write(folder, "sao", (4, 4, 1), seed=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / SCALE
    write_sao(folder)
    return folder


def build(folder: Path) -> pd.DataFrame:
    logs = load_logs(folder, ["sao", "grpo_dis", "grpo_vanilla", "sao_dis_only"])
    evaluations = load_evaluations(logs)
    assert evaluations
    return build_evaluation_table(logs, evaluations, "table1")


def cell(data: pd.DataFrame, row: str, column: str = "AIME2025", measure: str = "evaluation") -> pd.Series:
    found = data[(data["row"] == row) & (data["measure"] == measure) & (data["column"] == column)]
    assert len(found) == 1, found
    return found.iloc[0]


def numbers(line: pd.Series, *names: str) -> list[float]:
    return [float(line[name]) for name in names]


VALUE = ("value", "low", "high")
DIFFERENCE = ("difference_to_sao", "difference_low", "difference_high")


def test_column_names_are_frozen() -> None:
    frozen = "seeds_planned runs_per_problem undecided data revision patch_set max_tokens max_turns"
    assert " ".join(EVALUATION_COLUMNS[-8:]) == frozen and EVALUATION_COLUMNS[0] == "table"


@pytest.mark.usefixtures("small")
def test_value_and_interval_by_hand(folder: Path) -> None:
    line = cell(build(folder), "sao")
    assert numbers(line, *VALUE) == pytest.approx([62.5, 12.5, 100.0])
    assert line["interval"] == "bootstrap over problems only"
    assert (line["seeds"], line["problems"], line["runs_per_problem"]) == (2, 3, 4)
    assert (line["step"], line["status"], line["note"]) == (STEP, "2 of 2 seeds", "")
    assert line["runs"] == ("evaluations/sao/seed0/step120/aime_2025 evaluations/sao/seed1/step120/aime_2025")
    assert np.isnan(line["difference_to_sao"])
    assert cell(build(folder), "sao", measure="paper")["value"] == 97.3


@pytest.mark.usefixtures("small")
def test_one_policy_stands_against_every_seed_of_sao(folder: Path) -> None:
    """By problem 0 - 0, 0 - .75, 0 - .125."""
    write(folder, "sft_python", (4, 0, 0), step=0)
    line = cell(build(folder), "sft_python")
    assert numbers(line, *VALUE) == pytest.approx([100 / 3, 0.0, 100.0])
    assert numbers(line, *DIFFERENCE) == pytest.approx([-87.5 / 3, -75.0, 0.0])
    assert (line["difference_seeds"], line["status"], line["seeds"]) == (2, "one policy", 1)


@pytest.mark.usefixtures("small")
def test_further_seeds_of_one_policy_are_further_runs(folder: Path) -> None:
    write(folder, "base_python", (4, 0, 0), step=0)
    write(folder, "base_python", (2, 2, 0), step=0, seed=1)
    line = cell(build(folder), "base_python")
    assert numbers(line, *VALUE) == pytest.approx([100 / 3, 0.0, 75.0])
    assert (line["seeds"], line["runs_per_problem"], line["label"]) == (1, 8, "Base w/ python")


@pytest.mark.usefixtures("small")
def test_trained_rows_are_paired_by_seed(folder: Path) -> None:
    """Seed 0 alone is shared: .5 - 1, .5 - .5, .5 - 0."""
    write(folder, "grpo_dis", (2, 2, 2), seed=0)
    write(folder, "grpo_dis", (4, 4, 4), seed=2)
    line = cell(build(folder), "grpo_dis")
    assert numbers(line, *VALUE) == pytest.approx([75.0, 75.0, 75.0])
    assert numbers(line, *DIFFERENCE) == pytest.approx([0.0, -50.0, 50.0])
    assert line["note"] == "difference on the 1 seeds of both rows"


@pytest.mark.usefixtures("small")
def test_rows_that_solve_nothing_have_no_difference(tmp_path: Path) -> None:
    """The exact interval of 0 of 3 problems: 1 - .025^(1/3)."""
    write(tmp_path / SCALE, "sao", (0, 0, 0))
    write(tmp_path / SCALE, "sft_python", (0, 0, 0), step=0)
    line = cell(build(tmp_path / SCALE), "sft_python")
    assert numbers(line, *VALUE) == pytest.approx([0.0, 0.0, 100 * (1 - 0.025 ** (1 / 3))])
    assert np.isnan(line["difference_to_sao"])
    assert line["note"] == "no difference: all outcomes differ alike from those of sao"


@pytest.mark.usefixtures("small")
def test_three_seeds_cross_seeds_and_problems(folder: Path) -> None:
    write(folder, "sao", (3, 3, 0), seed=2)
    line = cell(build(folder), "sao")
    expected = accuracy_interval(np.array([[1, 0.5, 0], [1, 1, 0.25], [0.75, 0.75, 0]]))
    assert line["interval"] == expected.method == "crossed bootstrap over seeds and problems"
    assert numbers(line, *VALUE) == pytest.approx(
        [100 * expected.estimate, 100 * expected.low, 100 * expected.high]
    )
    assert line["value"] == pytest.approx(100 * 5.25 / 9)


@pytest.mark.usefixtures("small")
def test_what_is_missing_says_so_and_makes_no_number(folder: Path, tmp_path: Path) -> None:
    write(folder, "sao", (4, 4, 4), seed=2, missing=3)
    write(folder, "grpo_dis", (4, 4, 4), missing=2)
    with RunDirectory.open(folder / "runs/grpo_vanilla/seed0", resolve("grpo_vanilla", SCALE, 0), "x") as run:
        run.fail("out of memory")
    write(folder, "grpo_vanilla", (4, 4, 4))  # of what was trained before
    write(folder, "sao_dis_only", (4, 4, 4), step=60)
    data = build(folder)
    sao = cell(data, "sao")
    assert numbers(sao, "value") == [62.5]
    assert (sao["status"], sao["note"]) == ("2 of 3 seeds", "seed 2: 9 of 12 samples")
    lines = {name: cell(data, name) for name in ("grpo_dis", "grpo_vanilla", "sao_dis_only", "base_python")}
    assert all(np.isnan(line["value"]) and np.isnan(line["difference_to_sao"]) for line in lines.values())
    assert {name: line["status"] for name, line in lines.items()} == {
        "grpo_dis": "10 of 12 samples",
        "grpo_vanilla": "failed",
        "sao_dis_only": "not run",
        "base_python": "not run",
    }
    assert lines["grpo_vanilla"]["note"] == "failed: out of memory (step 0 of 120)"
    assert "counts at step 120, and evaluations are there of step 60" in lines["sao_dis_only"]["note"]
    assert cell(data, "sao", "BeyondAIME")["status"] == "not run"
    tables.main(["--runs", str(folder), "--out", str(tmp_path / "t"), "--artifact", "table1"])
    shown = (tmp_path / "t" / "table1.md").read_text()
    assert f"| 62.5 [12.5, 100.0] (2 of 3 seeds) | {EMPTY} |" in shown
    assert f"| 84.2 [b] | failed | {EMPTY} |" in shown


@pytest.mark.usefixtures("small")
def test_an_evaluation_that_failed_says_why(folder: Path) -> None:
    path = write(folder, "sao_dis_only", (4, 4, 4), missing=2)
    spec = json.loads((path / "spec.json").read_text())
    spec.pop("digest")
    with SampleStore(path, spec) as store, pytest.raises(OSError), store.attempt("runner"):
        raise OSError("the endpoint broke down")
    line = cell(build(folder), "sao_dis_only")
    assert line["status"] == "failed" and np.isnan(line["value"])
    assert line["note"] == "failed: 10 of 12 samples; the endpoint broke down"
    with SampleStore(path, spec) as store, pytest.raises(KeyboardInterrupt), store.attempt("runner"):
        raise KeyboardInterrupt
    assert cell(build(folder), "sao_dis_only")["status"] == "10 of 12 samples"


def test_another_denominator_makes_no_number(folder: Path) -> None:
    """The protocol has 30 x 16."""
    line = cell(build(folder), "sao")
    assert np.isnan(line["value"])
    assert line["status"] == "3 x 4 samples where the protocol has 30 x 16"


@pytest.mark.usefixtures("small")
def test_other_problems_are_not_compared(folder: Path, tmp_path: Path) -> None:
    patched = {"source": "published", "revision": "r2", "patch_set": "patch1"}
    write(folder, "glm_4_7", (4, 4, 0), step=0, data=patched)
    write(folder, "sft_python", (4, 0, 0), step=0, limits={"max_tokens": 512})
    write(folder, "my_model", (4, 4, 4), step=0, undecided=0)
    data = build(folder)
    for name in ("glm_4_7", "sft_python"):
        line = cell(data, name)
        assert line["value"] > 0 and np.isnan(line["difference_to_sao"])
        assert line["note"] == "no difference: other problems, corrections or limits than those of sao"
    assert list(dict.fromkeys(data["row"]))[:4] == ["claude_sonnet_4_5", "gpt_5_high", "glm_4_7", "my_model"]
    assert numbers(cell(data, "my_model"), *DIFFERENCE) == pytest.approx([37.5, 0.0, 87.5])
    tables.main(["--runs", str(folder), "--out", str(tmp_path / "t"), "--artifact", "table1"])
    shown = (tmp_path / "t" / "table1.md").read_text()
    assert "AIME 2025: published problems, with the corrections patch1 (glm_4_7)." in shown
    assert "AIME 2025: synthetic problems, without corrections (my_model, sft_python, sao)." in shown
    assert "At most 512 tokens and 4 turns a sample (sft_python)." in shown
    assert "ours: AIME 2025 (%)" in shown, "not called synthetic where one row's are published"
    written = pd.read_csv(tmp_path / "t" / "table1.csv")
    assert cell(written, "glm_4_7")["revision"] == "r2"


@pytest.mark.usefixtures("small")
def test_the_sheet_as_a_reader_sees_it(folder: Path, tmp_path: Path) -> None:
    write(folder, "sft_no_python", (2, 0, 0), step=0, undecided=3)
    write(folder, "sao", (2, 0, 0), benchmark="beyond_aime", runs=2)
    tables.main(["--runs", str(folder), "--out", str(tmp_path / "t"), "--artifact", "table1"])
    lines = (tmp_path / "t" / "table1.md").read_text().splitlines()
    header = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert header[1:3] == ["paper: AIME 2025 (%)", "ours: AIME 2025, synthetic (%)"]
    assert header[3] == "AIME 2025: difference to sao" and len(header) == 1 + 4 * 3 + 2
    shown = {line.split("`")[1]: line for line in lines if line.startswith("| ") and "`" in line}
    assert list(shown)[3:] == [
        "base_python",
        "base_no_python",
        "sft_python",
        "sft_no_python",
        "grpo_vanilla",
        "grpo_dis",
        "sao_dis_only",
        "sao",
    ]
    assert f"| 2 x 4, 1 x 2, {EMPTY}, {EMPTY} |" in shown["sao"]
    assert "| 74.8 | 33.3 [0.0, 100.0] (1 of 2 seeds) |" in shown["sao"]
    assert "BeyondAIME: seed 1: not run" in shown["sao"]
    assert "undecided answers, not counted as right: AIME 2025 25.0%" in shown["sft_no_python"]
    text = "\n".join(lines)
    assert "Scale cpu_math." in text and "Synthetic problems are generated here" in text
    assert "AIME 2025: synthetic problems, without corrections." in text
    assert "difficulty bands" not in text
    assert "most likely a copying error" in text
    latex = (tmp_path / "t" / "table1.tex").read_text()
    assert "62.5 [12.5, 100.0] & --" in latex and r"\texttt" not in latex


@pytest.mark.usefixtures("small")
def test_page_of_a_row_has_its_line(folder: Path, tmp_path: Path) -> None:
    with RunDirectory.open(folder / "runs/sao/seed0", resolve("sao", SCALE, 0), "x") as run:
        run.fail("out of memory")
    row.main(["--runs", str(folder), "--row", "sao", "--out", str(tmp_path / "sao.md")])
    text = (tmp_path / "sao.md").read_text()
    assert "| 100.0" not in text
    assert "75.0 [25.0, 100.0] (1 of 2 seeds)" in text, "seed 1, which is of no run of this folder"
    assert "seed 0: failed: out of memory" in text


@pytest.mark.usefixtures("small")
def test_a_scale_without_a_file_needs_no_runs(tmp_path: Path) -> None:
    """Where no scale says which step is the last, the latest evaluation counts."""
    folder = tmp_path / "elsewhere"
    write(folder, "sao", (4, 4, 4), step=100)
    write(folder, "sao", (4, 2, 0), step=200)
    line = cell(build(folder), "sao")
    assert (line["step"], line["value"]) == (200, 50.0)
    assert cell(build(folder), "grpo_dis")["status"] == "not run"


@pytest.mark.usefixtures("small")
def test_scales_without_benchmarks_keep_their_bands(tmp_path: Path) -> None:
    write(tmp_path / "cpu", "glm_4_7", (4, 4, 4), step=0)
    tables.main(["--runs", str(tmp_path / "cpu"), "--out", str(tmp_path), "--artifact", "table1"])
    assert "difficulty bands" in (tmp_path / "table1.md").read_text()


@pytest.mark.usefixtures("small")
def test_a_scale_asks_for_its_benchmarks_alone(tmp_path: Path) -> None:
    """`smoke_math` has AIME 2025."""
    write(tmp_path / "smoke_math", "sao", (4, 2, 0), step=3)
    data = build(tmp_path / "smoke_math")
    assert cell(data, "sao")["value"] == 50.0
    assert cell(data, "sao", "BeyondAIME")["status"] == "not at this scale"


def _truncate(path: Path) -> None:
    file = path / "scores.jsonl"
    file.write_bytes(file.read_bytes()[:-40])


def _break_a_line(path: Path) -> None:
    (path / "seal.json").unlink()
    file = path / "samples.jsonl"
    file.write_bytes(b"{broken\n" + file.read_bytes())


def _copy_to_another_seed(path: Path) -> None:
    shutil.copytree(path, path.parents[2] / "seed7" / path.parent.name / path.name)


def _correct_other_problems(path: Path) -> None:
    shutil.rmtree(path)
    write(path.parents[4], "sao", (4, 4, 4), data=SYNTHETIC | {"patch_set": "patch1"})


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_truncate, "aime_2025/scores.jsonl: was changed after it was sealed"),
        (_break_a_line, "aime_2025/samples.jsonl: line 1 is damaged"),
        (_copy_to_another_seed, "seed7/step120/aime_2025/spec.json: is of sao/seed0/step120/aime_2025"),
        (_correct_other_problems, "are of other problems, corrections or limits"),
    ],
)
def test_damaged_evaluations_are_one_clear_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Any, message: str
) -> None:
    spoil(folder / "evaluations/sao/seed0/step120/aime_2025")
    arguments = ["--runs", str(folder), "--out", str(tmp_path / "t"), "--artifact", "table1"]
    assert run_command(lambda: tables.main(arguments)) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
    assert not (tmp_path / "t").exists()


@pytest.mark.usefixtures("small")
def test_a_cut_sample_file_is_an_unfinished_evaluation(folder: Path) -> None:
    path = folder / "evaluations/sao/seed0/step120/aime_2025"
    (path / "seal.json").unlink()
    file = path / "samples.jsonl"
    file.write_bytes(file.read_bytes()[:-1])
    line = cell(build(folder), "sao")
    assert (line["status"], line["note"]) == ("1 of 2 seeds", "seed 0: 11 of 12 samples")


def test_evaluations_of_another_scale_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "evaluations/sao_dis_only/seed0" / f"step{STEP}" / "aime_2025"
    spec = json.loads((folder / f"evaluations/sao/seed0/step{STEP}/aime_2025/spec.json").read_text())
    del spec["digest"]
    arguments = ["--runs", str(folder), "--artifact", "table1", "--out", str(tmp_path / "tables")]
    for scale, code in (("cpu_math", 0), ("smoke_math", 2)):
        shutil.rmtree(path, ignore_errors=True)
        with SampleStore(path, spec | {"row": "sao_dis_only", "scale": scale}):
            pass
        assert run_command(lambda: tables.main(arguments)) == code
    assert "is of scale smoke_math, in a folder of scale cpu_math" in capsys.readouterr().err


def test_folder_without_evaluations_or_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="no run here has data; train first"):
        load_logs(tmp_path / SCALE, ["sao"])


def test_analysis_needs_no_torch() -> None:
    code = "import sys, analysis.tables, analysis.row, analysis.figures; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
