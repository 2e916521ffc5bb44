"""Scores and their errors against values worked out by hand, and what is left out of the tables."""

import json
import subprocess
import sys
from math import comb, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.math import protocol
from evaluation.math.store import SampleStore, read_evaluation, read_samples, without_texts
from evaluation.summary import (
    COLUMNS,
    clustered_error,
    find_evaluations,
    main,
    outcome_matrix,
    pass_at_k,
    problem_lines,
    run_error,
    score_table,
    summary_line,
    with_paper,
)

OUTCOMES = np.array([[1, 1, 1, 1], [1, 0, 0, 1], [0, 0, 0, 0]], dtype=float)


def test_errors_by_hand() -> None:
    """Problem means 1, .5, 0: sd .5, over sqrt(3). Run means 2/3, 1/3, 1/3, 2/3: sd sqrt(1/27), over 2."""
    assert clustered_error(OUTCOMES) == pytest.approx(0.5 / sqrt(3))
    assert run_error(OUTCOMES) == pytest.approx(sqrt(1 / 27) / 2)
    assert np.isnan(clustered_error(OUTCOMES[:1])) and np.isnan(run_error(OUTCOMES[:, :1]))


def test_pass_at_k_by_hand() -> None:
    """Two of four right: a pair misses both with chance 1/6."""
    assert pass_at_k(4, 2, 1) == 0.5
    assert pass_at_k(4, 2, 2) == pytest.approx(5 / 6)
    assert (pass_at_k(4, 0, 4), pass_at_k(4, 1, 4)) == (0.0, 1.0)
    assert np.isnan(pass_at_k(4, 1, 5))


@settings(deadline=None)
@given(st.integers(1, 10), st.data())
def test_pass_at_k_is_the_share_of_subsets(samples: int, data: st.DataObject) -> None:
    from itertools import combinations

    right, k = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    hits = sum(min(chosen) < right for chosen in combinations(range(samples), k))
    assert pass_at_k(samples, right, k) == pytest.approx(hits / comb(samples, k))


def score(problem: str, run: int, verdict: str, **more: Any) -> dict[str, Any]:
    usual = {
        "label": "sum",
        "finish_reason": "stop",
        "status": "completed",
        "turns": 2,
        "action_tokens": 10,
        "tool_calls": 1,
        "tool_errors": 0,
        "malformed_calls": 0,
    }
    return {"problem_id": problem, "run_index": run, "verdict": verdict} | usual | more


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        protocol.BENCHMARKS, "aime_2025", protocol.Benchmark("aime_2025", "AIME 2025", "AIME2025", 3, 4)
    )


def make(
    folder: Path,
    row: str = "sao",
    missing: int = 0,
    seal: bool = True,
    source: str = "published",
    max_tokens: int = protocol.MAX_TOKENS,
    **more: Any,
) -> Path:
    """An evaluation with OUTCOMES, the last `missing` samples left out."""
    path = folder / row / "seed0" / "step7" / "aime_2025"
    spec = {
        "row": row,
        "seed": 0,
        "step": 7,
        "benchmark": "aime_2025",
        "protocol": {"python": True, "sandbox": "bubblewrap", "max_tokens": max_tokens, "max_turns": 50},
        "data": {"source": source, "patch_set": "corrected_1"},
        "samples": {"a": 4, "b": 4, "c": 4},
    }
    with SampleStore(path, spec) as store:
        verdicts = {"a": "right", "b": "right", "c": "wrong"}
        for problem, run in store.due[: 12 - missing]:
            right = OUTCOMES["abc".index(problem), run]
            store.append(score(problem, run, verdicts[problem] if right else "wrong", **more))
        if seal and not missing:
            store.seal()
    return path


@pytest.mark.usefixtures("small")
def test_a_complete_evaluation(tmp_path: Path) -> None:
    make(tmp_path, tool_calls=4, tool_errors=1, malformed_calls=1)
    (evaluation,) = find_evaluations(tmp_path)
    assert (outcome_matrix(evaluation) == OUTCOMES).all()
    line = summary_line(evaluation)
    assert set(line) == set(COLUMNS)
    assert line["status"] == "complete"
    assert (line["score"], line["at_least"]) == (50.0, 50.0)
    assert line["se_problems"] == pytest.approx(100 * 0.5 / sqrt(3))
    assert (line["pass_at_1"], line["pass_at_4"]) == (pytest.approx(50.0), pytest.approx(200 / 3))
    assert np.isnan(line["pass_at_16"])
    assert (line["tool_errors"], line["malformed_calls"], line["turns"]) == (25.0, 20.0, 2.0)


@pytest.mark.usefixtures("small")
def test_an_incomplete_evaluation_has_no_score_and_names_what_is_missing(tmp_path: Path) -> None:
    make(tmp_path, missing=2)
    (evaluation,) = find_evaluations(tmp_path)
    line = summary_line(evaluation)
    assert np.isnan(line["score"]) and np.isnan(line["pass_at_1"])
    assert line["status"] == "10 of 12 samples"
    assert line["at_least"] == pytest.approx(100 * 5 / 12), "run 3 of problem b is missing, which was right"
    lost = {one["problem_id"]: one["missing_runs"] for one in problem_lines(evaluation)}
    assert lost == {"a": "", "b": "3", "c": "3"}
    assert "10 of 12 samples" in score_table(with_paper([line]))


@pytest.mark.usefixtures("small")
def test_an_evaluation_without_seal_has_no_score(tmp_path: Path) -> None:
    make(tmp_path, seal=False)
    line = summary_line(find_evaluations(tmp_path)[0])
    assert np.isnan(line["score"]) and line["status"] == "not sealed"


def test_another_denominator_has_no_score(tmp_path: Path) -> None:
    make(tmp_path)
    line = summary_line(find_evaluations(tmp_path)[0])
    assert np.isnan(line["score"])
    assert line["status"] == "3 x 4 samples where the protocol has 30 x 16"


@pytest.mark.usefixtures("small")
def test_undecided_and_cut_samples_are_counted_apart(tmp_path: Path) -> None:
    path = make(tmp_path, seal=False)
    lines = [json.loads(line) for line in (path / "samples.jsonl").read_text().splitlines()]
    lines[0] |= {"verdict": "undecided"}
    lines[1] |= {"verdict": "wrong", "finish_reason": "length", "status": "truncated"}
    lines[2] |= {"finish_reason": "turns", "status": "truncated"}
    (path / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (evaluation,) = find_evaluations(tmp_path)
    line = summary_line(evaluation)
    assert line["undecided"] == line["cut_by_tokens"] == line["cut_by_turns"] == pytest.approx(100 / 12)
    assert line["at_least"] == pytest.approx(100 * 4 / 12)
    assert [one["undecided"] for one in problem_lines(evaluation)] == [1, 0, 0]
    assert sum(one["cut"] for one in problem_lines(evaluation)) == 2


@pytest.mark.usefixtures("small")
def test_the_judge_has_a_column_of_its_own(tmp_path: Path) -> None:
    """5 of 12 are right; with one undecided answer that the judge calls right, 6 of 12 beside them."""
    path = make(tmp_path)
    assert summary_line(find_evaluations(tmp_path)[0])["judged"] == 50.0, "nothing was undecided"
    spec = read_evaluation(path).spec
    for judge, judged in (({}, np.nan), ({"judge": {"verdict": "right"}}, 50.0)):
        with SampleStore(path, spec) as store:
            scores = [without_texts(one) for one in read_samples(path)]
            first = next(one for one in scores if one["verdict"] == "right")
            first |= {"verdict": "undecided"} | judge
            store.seal(scores)
        line = summary_line(find_evaluations(tmp_path)[0])
        assert line["score"] == pytest.approx(100 * 5 / 12), "no judge changes the score of the rules"
        assert line["judged"] == pytest.approx(judged, nan_ok=True)


@pytest.mark.usefixtures("small")
def test_limits_other_than_the_protocols_are_said(tmp_path: Path) -> None:
    make(tmp_path, max_tokens=4096)
    lines = list(with_paper(map(summary_line, find_evaluations(tmp_path))))
    assert lines[0]["max_tokens"] == 4096
    assert "corrected_1, at most 4096 tokens and 50 turns." in score_table(lines)


def test_an_unknown_benchmark_or_a_damaged_folder_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path)
    for name, content in (
        ("seal.json", "{"),
        ("spec.json", "[]"),
        ("spec.json", json.dumps({"benchmark": "aime_2025"})),
    ):
        whole = (path / name).read_text()
        (path / name).write_text(content)
        assert main(["--evaluations", str(tmp_path), "--out", str(tmp_path / "t")]) == 2
        said = capsys.readouterr().err
        assert f"{path / name}: " in said and said.count("\n") == 1
        (path / name).write_text(whole)
    monkeypatch.delitem(protocol.BENCHMARKS, "aime_2025")
    assert main(["--evaluations", str(tmp_path), "--out", str(tmp_path / "t")]) == 2
    assert "benchmark 'aime_2025', which is unknown here" in capsys.readouterr().err


@pytest.mark.usefixtures("small")
def test_the_command_writes_the_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "e")
    make(tmp_path / "e", row="grpo_dis", missing=5)
    assert main(["--evaluations", str(tmp_path / "e"), "--out", str(tmp_path / "t")]) == 0
    printed = capsys.readouterr().out
    assert (tmp_path / "t" / "math_scores.md").read_text() in printed
    assert "| sao | 0 | 7 | 50.0 ± 28.9 [97.3] |" in printed, "with the paper's value beside ours"
    scores = pd.read_csv(tmp_path / "t" / "math_scores.csv")
    assert list(scores.columns) == list(COLUMNS)
    assert scores["row"].tolist() == ["grpo_dis", "sao"]
    assert "AIME 2025: published problems, with the corrections corrected_1." in printed
    assert scores["paper"].tolist() == [93.5, 97.3]
    problems = pd.read_csv(tmp_path / "t" / "math_problems.csv")
    assert len(problems) == 6 and problems["missing"].sum() == 5
    assert main(["--evaluations", str(tmp_path / "nothing"), "--out", str(tmp_path / "t")]) == 2
    assert "holds no evaluation" in capsys.readouterr().err


@pytest.mark.usefixtures("small")
def test_generated_problems_are_not_set_beside_the_papers_values(tmp_path: Path) -> None:
    make(tmp_path, source="synthetic")
    (line,) = with_paper(map(summary_line, find_evaluations(tmp_path)))
    assert np.isnan(line["paper"])
    assert "| 50.0 ± 28.9 |" in score_table([line])


@pytest.mark.usefixtures("small")
def test_a_changed_file_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make(tmp_path)
    file = path / "scores.jsonl"
    file.write_text(file.read_text().replace("wrong", "right", 1))
    assert main(["--evaluations", str(tmp_path), "--out", str(tmp_path / "t")]) == 2
    assert "was changed after it was sealed" in capsys.readouterr().err


def test_it_needs_no_torch() -> None:
    code = "import sys, evaluation.summary; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1]).returncode == 0
