"""Scores of SWE-Bench evaluations: exact shares, intervals, paired tests, and when there is no number."""

from math import comb, sqrt
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from scipy.stats import beta
from swe_scores import IDS, evaluate, outcomes

from evaluation.summary import find_evaluations
from evaluation.swe.comparisons import comparison_line, comparison_lines, difference_interval
from evaluation.swe.graded import COMPLETE, find_graded
from evaluation.swe.outcomes import (
    EMPTY_PATCH,
    INFRASTRUCTURE_ERROR,
    RESOLVED,
    SUSPECT,
)
from evaluation.swe.summary import main, summary_line


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """149 and 135 resolved tasks as the paper's rows, 32 and 18 of them by one alone."""
    evaluate(tmp_path, "sao_swe", outcomes(range(149)))
    evaluate(tmp_path, "grpo_dis_swe", outcomes([*range(32, 149), *range(200, 218)]))
    return tmp_path


def test_score_is_exact_with_its_interval(pair: Path) -> None:
    ours = summary_line(find_graded(pair)[1])
    assert (ours["status"], ours["tasks"], ours["resolved"], ours["score"]) == (COMPLETE, 500, 149, 29.8)
    assert ours["low"] == pytest.approx(100 * beta.ppf(0.025, 149, 352))
    assert ours["high"] == pytest.approx(100 * beta.ppf(0.975, 150, 351))


def test_paired_test_and_both_errors_of_the_published_gap(pair: Path) -> None:
    theirs, ours = find_graded(pair)
    line = comparison_line(ours, theirs)
    assert (line["only_row"], line["only_other"], line["discordant"]) == (32, 18, 10.0)
    assert line["difference"] == pytest.approx(2.8)
    assert line["se_unpaired"] == pytest.approx(2.85, abs=0.005)
    assert line["se_paired"] == pytest.approx(1.41, abs=0.005)
    tail = sum(comb(50, wins) for wins in range(32, 51)) / 2**50
    assert line["p_value"] == pytest.approx(2 * tail)


def test_paired_error_at_a_fifth_of_discordant_tasks(tmp_path: Path) -> None:
    evaluate(tmp_path, "sao_swe", outcomes(range(149)))
    evaluate(tmp_path, "grpo_dis_swe", outcomes([*range(57, 149), *range(200, 243)]))
    theirs, ours = find_graded(tmp_path)
    line = comparison_line(ours, theirs)
    assert (line["discordant"], line["difference"]) == (20.0, pytest.approx(2.8))
    assert line["se_paired"] == pytest.approx(100 * sqrt((100 - 14**2 / 500) / 500**2))


def test_interval_excludes_0_just_where_the_exact_test_says_so() -> None:
    for one in range(61):
        for other in range(61 - one):
            low, high = difference_interval(one, other, 500)
            tail = sum(comb(one + other, wins) for wins in range(max(one, other), one + other + 1))
            p = min(1.0, 2 * tail / 2 ** (one + other))
            assert (low > 0 or high < 0) == (p < 0.05), (one, other)
            assert low <= (one - other) / 500 <= high
            assert low == pytest.approx(-difference_interval(other, one, 500)[1])


def test_interval_of_the_difference_by_hand() -> None:
    """Won 32 of 50: the lower end by the exact share's quantile, the upper by the wider normal interval."""
    low, high = difference_interval(32, 18, 500)
    assert low == pytest.approx((2 * beta.ppf(0.025, 32, 19) - 1) / 10)
    assert high == pytest.approx(0.028 + 1.959964 * sqrt(50 - 14**2 / 500) / 500)
    assert difference_interval(0, 0, 500) == pytest.approx(
        (-(1 - 0.025 ** (1 / 500)), 1 - 0.025 ** (1 / 500))
    )


def test_comparisons_with_sao_are_corrected_together(tmp_path: Path) -> None:
    """Of three pairs two are with SAO: the smaller p counts twice, the larger at least as much."""
    evaluate(tmp_path, "sao_swe", outcomes(range(149)))
    evaluate(tmp_path, "grpo_dis_swe", outcomes([*range(32, 149), *range(200, 218)]))
    evaluate(tmp_path, "base_swe", outcomes([*range(50, 149), *range(300, 316)]), step=0)
    lines = {(line["row"].split()[0], line["other"].split()[0]): line for line in _lines(tmp_path)}
    base, group = lines["base_swe", "sao_swe"], lines["grpo_dis_swe", "sao_swe"]
    assert base["p_value"] < group["p_value"]
    assert base["p_holm"] == pytest.approx(2 * base["p_value"]) and base["comparisons"] == 2
    assert group["p_holm"] == pytest.approx(group["p_value"])
    assert pd.isna(lines["base_swe", "grpo_dis_swe"]["p_holm"])


def test_other_steps_and_seeds_are_corrected_apart(tmp_path: Path) -> None:
    for step in (200, 400):
        evaluate(tmp_path, "sao_swe", outcomes(range(149)), step=step)
        evaluate(tmp_path, "grpo_dis_swe", outcomes([*range(32, 149), *range(200, 218)]), step=step)
    found = [line["comparisons"] for line in _lines(tmp_path)]
    assert sorted(count for count in found if not pd.isna(count)) == [1, 1] and len(found) == 6


def _lines(folder: Path) -> list[dict[str, Any]]:
    return comparison_lines(find_graded(folder))


def test_rows_that_resolve_the_same_tasks_do_not_differ(tmp_path: Path) -> None:
    for row in ("sao_swe", "grpo_dis_swe"):
        evaluate(tmp_path, row, outcomes(range(10)))
    line = comparison_line(*find_graded(tmp_path))
    assert (line["difference"], line["se_paired"], line["p_value"]) == (0, 0, 1)


@pytest.mark.parametrize(
    ("changed", "compared"),
    [
        ({"backend": "bubblewrap"}, 0),
        ({"protocol": {"keep_reasoning": False}}, 0),
        ({"protocol": {"sandbox": "apptainer"}}, 1),
    ],
)
def test_only_evaluations_played_and_graded_alike_are_compared(
    tmp_path: Path, changed: dict[str, Any], compared: int
) -> None:
    evaluate(tmp_path, "sao_swe", outcomes(range(10)))
    evaluate(tmp_path, "grpo_dis_swe", outcomes(range(10)), **changed)
    assert len(comparison_lines(find_graded(tmp_path))) == compared


def test_suspect_tasks_are_not_resolved(tmp_path: Path) -> None:
    evaluate(tmp_path, "sao_swe", outcomes(range(100)) | {IDS[400]: SUSPECT})
    line = summary_line(find_graded(tmp_path)[0])
    assert (line["resolved"], line["suspect"], line["score"]) == (100, 1, 20.0)


def test_suspect_tasks_are_not_resolved_in_paired_tests(tmp_path: Path) -> None:
    evaluate(tmp_path, "sao_swe", outcomes(range(10)))
    evaluate(tmp_path, "grpo_dis_swe", outcomes(range(10)) | {IDS[400]: SUSPECT})
    line = comparison_line(*find_graded(tmp_path))
    assert (line["only_row"], line["only_other"], line["difference"]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("graded", "played", "status"),
    [
        (
            outcomes(range(100)) | {IDS[7]: INFRASTRUCTURE_ERROR},
            IDS,
            "1 of 500 tasks with an infrastructure error",
        ),
        (dict.fromkeys(IDS[:490], RESOLVED), IDS, "10 of 500 tasks not graded"),
        (dict.fromkeys(IDS[:490], RESOLVED), IDS[:490], "490 of 500 tasks played"),
    ],
)
def test_no_number_without_all_tasks(
    tmp_path: Path, graded: dict[str, str], played: list[str], status: str
) -> None:
    evaluate(tmp_path, "sao_swe", graded, played)
    line = summary_line(find_graded(tmp_path)[0])
    assert line["status"] == status
    assert pd.isna(line["score"]) and pd.isna(line["low"])


def test_command_writes_scores_beside_the_papers(
    pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(pair, "base_swe", outcomes(range(100), EMPTY_PATCH))
    assert main(["--evaluations", str(pair), "--out", str(tmp_path / "tables")]) == 0
    scores = pd.read_csv(tmp_path / "tables" / "swe_scores.csv").set_index("row")
    published = pd.read_csv("results/published/paper.csv").query("artifact == 'table2'").set_index("row")
    for row in ("base_swe", "grpo_dis_swe", "sao_swe"):
        assert scores.loc[row, "paper"] == published.loc[row, "value"]
    comparisons = pd.read_csv(tmp_path / "tables" / "swe_comparisons.csv")
    assert len(comparisons) == 3
    printed = capsys.readouterr().out
    assert "29.8 [25.8, 34.0]" in printed
    # normal: -2.8 - 1.96 x 1.41; exact: of 50 tasks 18 are won, up to 50.8%, and 2 x .508 - 1 of 10%
    assert "| -2.8 [-5.6, 0.2] | 1.41 | 2.85 | 18 + 32 |" in printed
    assert "base_swe seed 0 step 400: 400 empty patches; a fault of the run is likely." in printed


def test_changed_scores_are_refused(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = pair / "sao_swe/seed0/step400/swe_bench_verified/scores.jsonl"
    file.write_text(file.read_text().replace("tests_fail", "resolved"))
    assert main(["--evaluations", str(pair), "--out", str(pair / "tables")]) == 2
    assert "scores.jsonl: was changed after it was sealed" in capsys.readouterr().err


def test_the_summary_of_mathematics_leaves_them_out(pair: Path) -> None:
    assert find_evaluations(pair) == []


def test_folder_without_evaluations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--evaluations", str(tmp_path), "--out", str(tmp_path / "tables")]) == 2
    assert "holds none of SWE-Bench" in capsys.readouterr().err
