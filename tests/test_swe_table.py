"""Table 2 and claim C15 from evaluations on SWE-Bench Verified, and that all that show them agree."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import beta, binom
from swe_scores import IDS, evaluate, outcomes
from synthetic_runs import write_run

from analysis import claims, comparisons, tables
from analysis.command import run_command
from analysis.load import Logs, load_logs
from analysis.render import EMPTY
from analysis.report.__main__ import main as write_report
from analysis.report.evaluations import evaluation_page
from analysis.report.markup import Linker
from analysis.row import main as write_row
from analysis.swe_evaluations import load_swe
from analysis.swe_table import SWE_COLUMNS, build_swe_table
from evaluation.math.store import SampleStore
from evaluation.swe import summary
from evaluation.swe.outcomes import EMPTY_PATCH, INFRASTRUCTURE_ERROR, RESOLVED

SCALE, STEP = "paper_swe", 200  # its last
BASE = [*range(50, 149), *range(300, 316)]  # 115 as the paper's, 50 + 16 by one of it and SAO alone
GROUP = [*range(32, 149), *range(200, 218)]  # 135, 32 + 18


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The paper's three scores, on made-up tasks."""
    folder = tmp_path / SCALE
    put(folder, "sao_swe", range(149))
    put(folder, "grpo_dis_swe", GROUP)
    put(folder, "base_swe", BASE, step=0)
    return folder


def put(folder: Path, row: str, resolved: Any, step: int = STEP, **more: Any) -> Path:
    found = resolved if isinstance(resolved, dict) else outcomes(resolved)
    return evaluate(folder / "evaluations", row, found, step=step, **more)


def logs_of(folder: Path) -> Logs:
    return load_logs(folder, ["sao_swe", "grpo_dis_swe"])


def ours(folder: Path) -> pd.DataFrame:
    logs = logs_of(folder)
    data = build_swe_table(logs, load_swe(logs), "table2")
    return data[data["measure"] == "evaluation"].set_index("row")


def claim_line(folder: Path) -> dict[str, Any]:
    data = claims.build_claims(logs_of(folder))
    return dict(data[data["claim"] == "C15"].iloc[0])


def test_column_names_are_frozen() -> None:
    counts = "seeds_planned resolved only_row only_sao max_tokens max_turns"
    assert " ".join(SWE_COLUMNS[-11:]) == f"{counts} se_paired se_unpaired backend workspace data"


def test_cells_hold_n_interval_and_test(folder: Path) -> None:
    data = ours(folder)
    sao, group, base = (data.loc[row] for row in ("sao_swe", "grpo_dis_swe", "base_swe"))
    assert (sao["value"], sao["resolved"], sao["problems"], sao["interval"]) == (
        pytest.approx(29.8),
        149,
        500,
        "Clopper-Pearson",
    )
    assert sao["low"] == pytest.approx(100 * beta.ppf(0.025, 149, 352))
    assert sao["high"] == pytest.approx(100 * beta.ppf(0.975, 150, 351))
    assert np.isnan(sao["difference_to_sao"]) and sao["status"] == "1 of 1 seeds"
    assert group["difference_to_sao"] == pytest.approx(-2.8)
    assert group["se_unpaired"] == pytest.approx(100 * math.sqrt((0.27 * 0.73 + 0.298 * 0.702) / 500))
    assert group["se_paired"] == pytest.approx(100 * math.sqrt(50 - 14**2 / 500) / 500)
    assert (group["only_row"], group["only_sao"]) == (18, 32)
    assert group["p"] == pytest.approx(2 * binom.cdf(18, 50, 0.5))
    assert base["p"] == pytest.approx(2 * binom.cdf(16, 66, 0.5)) and base["status"] == "one policy"


def test_tests_are_corrected_for_the_tables_two_comparisons(folder: Path) -> None:
    data = ours(folder)
    group, base = data.loc["grpo_dis_swe"], data.loc["base_swe"]
    assert base["p"] < group["p"] and (group["comparisons"], base["comparisons"]) == (2, 2)
    assert base["p_holm"] == pytest.approx(2 * base["p"]) and group["p_holm"] == pytest.approx(group["p"])


def test_the_claim_is_judged_by_the_paired_test(folder: Path) -> None:
    line = claim_line(folder)
    assert line["verdict"] == "one seed: problems only (inconclusive)" and line["effect"] == pytest.approx(
        2.8
    )
    assert line["low"] < 0 < line["high"]
    assert "standard error 1.41 points paired, 2.85 unpaired" in line["detail"]
    assert "tasks that one alone resolves: 32 + 18" in line["detail"]
    assert f"exact McNemar p {2 * binom.cdf(18, 50, 0.5):.2g}" in line["detail"]
    assert line["runs"].split() == [
        f"evaluations/{row}/seed0/step200/swe_bench_verified" for row in ("sao_swe", "grpo_dis_swe")
    ]


@pytest.mark.parametrize(
    ("group", "word"), [(range(30, 149), "reproduced"), (range(180), "contradicted"), (GROUP, "inconclusive")]
)
def test_verdicts(tmp_path: Path, group: Any, word: str) -> None:
    put(tmp_path / SCALE, "sao_swe", range(149))
    put(tmp_path / SCALE, "grpo_dis_swe", group)
    assert claim_line(tmp_path / SCALE)["verdict"] == f"one seed: problems only ({word})"


def test_table_claim_report_and_summary_agree(folder: Path, tmp_path: Path) -> None:
    """One pair of rows by four ways, to the digit."""
    tables.main(["--runs", str(folder), "--artifact", "table2", "--out", str(tmp_path)])
    assert summary.main(["--evaluations", str(folder / "evaluations"), "--out", str(tmp_path)]) == 0
    table = pd.read_csv(tmp_path / "table2.csv").query("measure == 'evaluation'").set_index("row")
    scores = pd.read_csv(tmp_path / "swe_scores.csv").set_index("row")
    for row in ("sao_swe", "grpo_dis_swe", "base_swe"):
        same = [("value", "score"), ("low", "low"), ("high", "high"), ("resolved", "resolved")]
        for name, other in same:
            assert table.loc[row, name] == pytest.approx(scores.loc[row, other], rel=1e-5), (row, name)
    pairs = pd.read_csv(tmp_path / "swe_comparisons.csv")
    claim = claim_line(folder)
    page = evaluation_page(logs_of(folder), Linker())
    assert page is not None
    shown = page.tables[1]
    for row in ("grpo_dis_swe", "base_swe"):
        mine, line = table.loc[row], pairs[pairs["row"].str.startswith(row)].iloc[-1]
        assert line["other"] == "sao_swe seed 0 step 200"
        for name, other in [
            ("difference_to_sao", "difference"),
            ("difference_low", "low"),
            ("difference_high", "high"),
            ("se_paired", "se_paired"),
            ("se_unpaired", "se_unpaired"),
            ("p", "p_value"),
            ("p_holm", "p_holm"),
            ("comparisons", "comparisons"),
            ("only_row", "only_row"),
            ("only_sao", "only_other"),
        ]:
            assert mine[name] == pytest.approx(line[other], rel=1e-5), (row, name)
        cells = next(cells for cells in shown.rows if row in cells[0].html and "sao_swe" in cells[1].html)
        reported = dict(zip(shown.header, [str(cell.html) for cell in cells], strict=True))
        assert float(reported["p holm"]) == pytest.approx(mine["p_holm"], rel=1e-5)
        assert float(reported["difference"]) == pytest.approx(mine["difference_to_sao"])
    group = table.loc["grpo_dis_swe"]
    assert (claim["effect"], claim["low"], claim["high"]) == pytest.approx(
        (-group["difference_to_sao"], -group["difference_high"], -group["difference_low"]), rel=1e-5
    )
    assert f"{group['se_paired']:.2f} points paired, {group['se_unpaired']:.2f} unpaired" in claim["detail"]


def test_the_sheet_as_a_reader_sees_it(folder: Path, tmp_path: Path) -> None:
    tables.main(["--runs", str(folder), "--artifact", "table2", "--out", str(tmp_path)])
    text = (tmp_path / "table2.md").read_text()
    group = next(line for line in text.splitlines() if "`grpo_dis_swe`" in line)
    assert "| 27.0 [b] | 27.0 [23.2, 31.1] | 135 of 500 | -2.8 [-5.6, 0.2] |" in group
    assert "| 0.065 (0.065) | 1.41 | 2.85 | 18 + 32 |" in group and "[b] 135 of 500." in text
    assert "corrected for the 2 comparisons of this table" in text
    assert "problems (n = 1 seed x 500 problems)" in text
    assert "At most 300 turns and 131,072 tokens a task" in text


@pytest.mark.parametrize(
    ("graded", "played", "status"),
    [
        (
            outcomes(range(9)) | {IDS[7]: INFRASTRUCTURE_ERROR},
            IDS,
            "1 of 500 tasks with an infrastructure error",
        ),
        (dict.fromkeys(IDS[:490], RESOLVED), IDS, "10 of 500 tasks not graded"),
        (dict.fromkeys(IDS[:490], RESOLVED), IDS[:490], "490 of 500 tasks played"),
    ],
)
def test_500_or_no_number(
    folder: Path, tmp_path: Path, graded: dict[str, str], played: list[str], status: str
) -> None:
    other = tmp_path / "other" / SCALE
    put(other, "sao_swe", graded, played=played)
    put(other, "grpo_dis_swe", GROUP)
    line = ours(other).loc["sao_swe"]
    assert line["status"] == status and np.isnan(line["value"]) and np.isnan(line["low"])
    assert ours(other).loc["grpo_dis_swe"]["note"].startswith("no difference: sao_swe has no complete")
    claim = claim_line(other)
    assert (claim["verdict"], claim["detail"]) == ("not measured", f"sao_swe: {status}")
    assert np.isnan(claim["effect"]) and claim["runs"] == ""
    tables.main(["--runs", str(other), "--artifact", "table2", "--out", str(tmp_path)])
    shown = next(line for line in (tmp_path / "table2.md").read_text().splitlines() if "`sao_swe`" in line)
    assert f"| 29.8 [c] | {status} | {EMPTY} | {EMPTY} |" in shown


@pytest.mark.parametrize(("empty", "said"), [(50, False), (51, True), (276, True)])
def test_many_empty_patches_are_pointed_out_beside_the_score(tmp_path: Path, empty: int, said: bool) -> None:
    found = outcomes(range(144)) | dict.fromkeys(IDS[-empty:], EMPTY_PATCH)
    put(tmp_path / SCALE, "sao_swe", found)
    line = ours(tmp_path / SCALE).loc["sao_swe"]
    note = f"sao_swe seed 0 step 200: {empty} of 500 patches are empty, so that a fault of the run is likely"
    assert line["value"] == pytest.approx(28.8)
    assert (note in line["note"]) == said


def test_what_nobody_evaluated(tmp_path: Path) -> None:
    put(tmp_path / SCALE, "base_swe", BASE, step=0)
    data = ours(tmp_path / SCALE)
    assert list(data.loc[["grpo_dis_swe", "sao_swe"], "status"]) == ["not run", "not run"]
    claim = claim_line(tmp_path / SCALE)
    assert (claim["verdict"], claim["detail"]) == ("not measured", "sao_swe: not run; grpo_dis_swe: not run")


def test_scales_without_the_benchmark(tmp_path: Path) -> None:
    write_run(tmp_path / "cpu", "sao", 0, (0.4, 0.45, 0.5, 0.55, 0.6))
    data = ours(tmp_path / "cpu")
    assert set(data["status"]) == {"not at this scale"} and data["value"].isna().all()
    claim = claim_line(tmp_path / "cpu")
    assert (claim["verdict"], claim["detail"]) == ("not run", "not run at this scale")


def test_evaluations_of_an_earlier_step_are_named_and_not_counted(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / SCALE
    put(other, "sao_swe", range(149), step=40)
    line = ours(other).loc["sao_swe"]
    assert (line["status"], np.isnan(line["value"])) == ("not run", True)
    assert "the row counts at step 200, and evaluations are there of step 40" in line["note"]


def test_other_limits_make_no_difference(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / SCALE
    put(other, "sao_swe", range(149))
    put(other, "grpo_dis_swe", GROUP, protocol={"max_turns": 100})
    line = ours(other).loc["grpo_dis_swe"]
    assert line["value"] == pytest.approx(27.0) and np.isnan(line["difference_to_sao"])
    assert line["note"] == "no difference: other tasks, limits or graders than those of sao_swe"
    assert claim_line(other)["verdict"] == "not measured"


def test_grading_away_from_the_official_images_is_said(tmp_path: Path) -> None:
    for row in ("sao_swe", "grpo_dis_swe"):
        put(tmp_path / SCALE, row, range(149), backend="bubblewrap")
    tables.main(["--runs", str(tmp_path / SCALE), "--artifact", "table2", "--out", str(tmp_path)])
    assert "graded over bubblewrap" in (tmp_path / "table2.md").read_text()
    assert "Only tests graded over docker ran on the official images." in (tmp_path / "table2.md").read_text()
    assert "graded over bubblewrap" in claim_line(tmp_path / SCALE)["detail"]


def test_several_seeds_are_averaged_and_paired_by_seed(tmp_path: Path) -> None:
    """Seeds 0 and 1 of both rows: (149 + 151) of 1,000, less (135 + 145)."""
    folder = tmp_path / SCALE
    for seed, (first, second) in enumerate([(149, 135), (151, 145)]):
        put(folder, "sao_swe", range(first), seed=seed)
        put(folder, "grpo_dis_swe", range(second), seed=seed)
    put(folder, "base_swe", range(100), step=0)
    data = ours(folder)
    assert data.loc["sao_swe", "value"] == pytest.approx(30.0) and data.loc["sao_swe", "resolved"] == 300
    assert data.loc["sao_swe", "interval"] == "bootstrap over problems only"
    group = data.loc["grpo_dis_swe"]
    assert (group["difference_to_sao"], group["difference_seeds"]) == (pytest.approx(-2.0), 2)
    assert (group["only_row"], group["only_sao"]) == (0, 14 + 6)
    shares = np.array([[place < first for place in range(500)] for first in (149, 151)]).mean(axis=0)
    others = np.array([[place < second for place in range(500)] for second in (135, 145)]).mean(axis=0)
    assert group["se_paired"] == pytest.approx(100 * np.std(shares - others, ddof=1) / math.sqrt(500))
    assert data.loc["base_swe", "difference_to_sao"] == pytest.approx(-10.0), "one policy against both seeds"
    assert claim_line(folder)["verdict"].startswith("two seeds: problems only")


def test_a_missing_seed_is_said(tmp_path: Path) -> None:
    folder = tmp_path / SCALE
    for seed in range(2):
        put(folder, "sao_swe", range(149), seed=seed)
    put(folder, "sao_swe", dict.fromkeys(IDS[:3], RESOLVED), played=IDS[:3], seed=2)
    line = ours(folder).loc["sao_swe"]
    assert (line["status"], line["note"]) == ("2 of 3 seeds", "seed 2: 3 of 500 tasks played")


def test_all_tables_at_once_where_only_mathematics_was_evaluated(tmp_path: Path) -> None:
    """Table 2 says that it is of another scale, and stops none of the others."""
    path = tmp_path / "cpu_math/evaluations/sao/seed0/step120/aime_2025"
    spec = {
        "row": "sao",
        "seed": 0,
        "step": 120,
        "benchmark": "aime_2025",
        "protocol": {"max_tokens": 256, "max_turns": 4, "python": True, "sandbox": "none"},
        "data": {"source": "synthetic", "patch_set": None},
        "samples": {"a": 1},
    }
    with SampleStore(path, spec):
        pass
    tables.main(["--runs", str(tmp_path / "cpu_math"), "--out", str(tmp_path / "tables")])
    assert "not at this scale" in (tmp_path / "tables/table2.md").read_text()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda path: (path / "scores.jsonl").write_text(""),
            "scores.jsonl: was changed after it was sealed",
        ),
        (
            lambda path: path.parents[1].rename(path.parents[1].with_name("seed7")),
            "spec.json: is of row sao_swe, seed 0, step 200",
        ),
        (
            lambda path: path.parents[2].rename(path.parents[2].with_name("grpo_dis_swe")),
            "spec.json: is of row sao_swe, seed 0, step 200",
        ),
    ],
)
def test_damaged_or_misplaced_evaluations_are_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Any, message: str
) -> None:
    damage(put(tmp_path / SCALE, "sao_swe", range(149)))
    for command, out in ((tables.main, "t"), (claims.main, "c"), (write_report, "r.html")):
        arguments = ["--runs", str(tmp_path / SCALE), "--out", str(tmp_path / out)]
        assert run_command(lambda: command(arguments)) == 2  # noqa: B023
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


def test_evaluations_of_another_scale_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path / SCALE, "sao_swe", range(149))
    put(tmp_path / SCALE, "grpo_dis_swe", range(149), scale="my_swe")
    arguments = ["--runs", str(tmp_path / SCALE), "--artifact", "table2", "--out", str(tmp_path)]
    assert run_command(lambda: tables.main(arguments)) == 2
    assert "is of scale" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"problem_id": "project__name-0"', "line 501 is damaged"),
        ('{"problem_id": "elsewhere-1", "outcome": "resolved"}', "task elsewhere-1 which spec.json does not"),
        ('{"problem_id": "project__name-0", "outcome": "resolved"}', "task project__name-0 twice"),
        ('{"problem_id": "project__name-0", "outcome": "won"}', "outcome is 'won'"),
    ],
)
def test_damaged_outcomes_before_the_seal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    path = put(tmp_path / SCALE, "sao_swe", outcomes(range(9)) | {IDS[7]: INFRASTRUCTURE_ERROR})
    file = path / "grading" / "outcomes.jsonl"
    if "won" in line:
        file.write_text("")
    with file.open("a") as content:
        content.write(line + "\n")
    arguments = ["--runs", str(tmp_path / SCALE), "--artifact", "table2", "--out", str(tmp_path)]
    assert run_command(lambda: tables.main(arguments)) == 2
    assert "outcomes.jsonl: line" in (error := capsys.readouterr().err) and message in error


def test_page_of_a_row_that_was_evaluated_and_not_trained_here(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--runs", str(folder), "--out", str(tmp_path / "row.md")]
    write_row([*arguments, "--row", "grpo_dis_swe"])
    text = (tmp_path / "row.md").read_text()
    assert "27.0 [23.2, 31.1] | 135 of 500 | -2.8 [-5.6, 0.2]" in text and "Finished seeds" not in text
    assert run_command(lambda: write_row([*arguments, "--row", "sao"])) == 2
    known = f"no run of it in {folder}; there are: base_swe, grpo_dis_swe, sao_swe"
    assert known in capsys.readouterr().err


def test_the_list_of_comparisons_has_those_of_table_2(folder: Path, tmp_path: Path) -> None:
    comparisons.main(["--runs", str(folder), "--out", str(tmp_path / "comparisons")])
    lines = pd.read_csv(tmp_path / "comparisons.csv").query("table == 'table2'").set_index("row")
    assert lines.loc["base_swe", "p_holm"] == pytest.approx(4 * binom.cdf(16, 66, 0.5), rel=1e-5)
    assert lines.loc["grpo_dis_swe", "difference_to_sao"] == -2.8
    assert "exact McNemar test" in (tmp_path / "comparisons.md").read_text()


def test_the_report_shows_table_2_and_the_claim(folder: Path, tmp_path: Path) -> None:
    write_report(["--runs", str(folder), "--out", str(tmp_path / "report.html")])
    text = (tmp_path / "report.html").read_text()
    assert 'id="table-table2"' in text and "27.0 [23.2, 31.1]" in text
    assert "one seed: problems only (inconclusive)" in text
    assert "C15 stands on all 500 tasks of SWE-Bench Verified." in text
