"""The plan's cost of SWE-Bench evaluations, worked out by hand."""

from pathlib import Path

import pytest
from swe_scores import IDS, evaluate, outcomes

from evaluation import planning
from evaluation.swe.costs import cost_lines, longest_hours, measure
from evaluation.swe.targets import evaluation_seals
from sao.config import load_scale

ROWS = ("grpo_dis_swe", "sao_swe")


def lines(root: Path) -> list[str]:
    scale = load_scale("paper_swe")
    return cost_lines(scale, evaluation_seals(scale, str(root), ROWS, [0]))


def test_limits_of_an_evaluation_that_nobody_began(tmp_path: Path) -> None:
    """63 rounds of 8 tasks with 6 hours each, on an engine of 4 GPUs; 250 rounds of 2 half hours of tests."""
    found = lines(tmp_path)
    assert found[0] == (
        "SWE-Bench left: 3 evaluations of 500 tasks, each of at most 300 turns and 131,072 tokens: "
        "at most 150,000 answers of the model and 65.5 million tokens of context an evaluation"
    )
    cost = "at most 378 hours, 1,512 GPU-hours; grading at most 125"
    assert found[1:4] == [
        f"  {name}: 500 of 500 tasks to play, {cost}"
        for name in ("base_swe seed0 step0", "grpo_dis_swe seed0 step200", "sao_swe seed0 step200")
    ]
    assert "6 hours of a task's wall clock, 8 at once, and 30 minutes of its tests, 2 at once" in found[4]
    assert "not estimated before a task is played here" in found[5]
    # (1.960 + 0.842) sqrt(.1 / 500) and sqrt(.2 / 500)
    assert "differences from 4.0 points on, where 10% of the tasks" in found[6]
    assert "and from 5.6, where 20% are (in about 80% of repeats)" in found[6]
    assert found[7].startswith("  disk: 120 GB for images, which swebench's documentation asks for, once")


@pytest.mark.parametrize(("tasks", "hours"), [(0, 0), (1, 6), (8, 6), (9, 12), (500, 378)])
def test_rounds(tasks: int, hours: float) -> None:
    assert longest_hours(tasks, 6 * 3600, 8) == hours


def test_what_was_played_is_measured_and_not_played_again(tmp_path: Path) -> None:
    """100 of 500 tasks of 20 turns and 12 minutes: 400 + 500 left, 900 x 0.2 / 8 = 22.5 hours."""
    more = {"turns": 20, "prompt_tokens": 30_000, "seconds": 720.0}
    evaluate(tmp_path / "evaluations", "sao_swe", {}, IDS[:100], step=200, measured=more)
    evaluate(tmp_path / "evaluations", "base_swe", outcomes(range(9)), step=0, measured=more)
    found = lines(tmp_path)
    assert found[0].startswith("SWE-Bench left: 2 evaluations")
    assert "sao_swe seed0 step200: 400 of 500 tasks to play, at most 300 hours, 1,200 GPU-hours" in found[2]
    assert found[4] == (
        "  likely: 22.5 hours, 90 GPU-hours for all, from the 600 tasks played here: 20.0 turns, "
        "900 tokens sampled and 30,000 read, 12.0 minutes a task"
    )
    assert measure([tmp_path]) is None


def test_stated_throughput_comes_before_what_was_played(tmp_path: Path) -> None:
    """1,500 tasks x 60,000 tokens at 500 a second and GPU."""
    scale = load_scale("paper_swe")
    assert scale.job
    job = scale.job.model_copy(update={"tokens_per_trajectory": 60_000, "engine_tokens_per_second": 500})
    measured = scale.model_copy(update={"job": job})
    found = cost_lines(measured, evaluation_seals(scale, str(tmp_path), ROWS, [0]))
    assert found[5].startswith("  likely: 50 GPU-hours for all, from job.tokens_per_trajectory")


def test_nothing_is_left_of_sealed_evaluations(tmp_path: Path) -> None:
    for row, step in (("base_swe", 0), ("grpo_dis_swe", 200), ("sao_swe", 200)):
        evaluate(tmp_path / "evaluations", row, outcomes(range(9)), step=step)
    assert lines(tmp_path) == []


def test_images_need_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "IMAGES_GB", 0)
    assert not planning.images_finding(tmp_path / "results", tmp_path / "none").missing
    monkeypatch.setattr(planning, "IMAGES_GB", 10**9)
    found = planning.images_finding(tmp_path / "results", tmp_path)
    assert found.missing and f"free in {tmp_path}, 1000000000 GB needed" in found.found


def test_the_plan_prints_them_and_a_damaged_file_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert planning.main(["--scale", "paper_swe"]) == 0
    assert "SWE-Bench left: 3 evaluations" in capsys.readouterr().out
    path = evaluate(tmp_path / "results/paper_swe/evaluations", "sao_swe", {}, IDS[:2], step=200)
    (path / "samples.jsonl").write_text("{\n")
    assert planning.main(["--scale", "paper_swe"]) == 2
    error = capsys.readouterr().err
    assert "samples.jsonl: line 1 is damaged" in error and error.count("\n") == 1


def test_other_scales_have_none(tmp_path: Path) -> None:
    scale = load_scale("cpu")
    assert cost_lines(scale, evaluation_seals(scale, str(tmp_path), ["sao"], [0])) == []
