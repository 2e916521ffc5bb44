"""Tables from made-up runs: values, missing and failed seeds, frozen columns, and the three formats."""

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_runs import PROBLEMS, spoil, write_run, write_warm_start

from analysis import row, tables
from analysis.artifacts import load_artifacts, load_published
from analysis.command import run_command
from analysis.comparisons import band_scores, build_comparisons
from analysis.design import build_design
from analysis.load import AnalysisError, Logs, load_logs
from analysis.render import EMPTY, Sheet, latex_escape, to_latex, to_markdown
from analysis.statistics import interquartile_mean
from analysis.table_data import COLUMNS, build_table
from sao.config import resolve
from sao.runlog import RunDirectory

STABLE = (0.40, 0.45, 0.50, 0.55, 0.60)
COLLAPSING = (0.50, 0.55, 0.50, 0.20, 0.10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of Tables 1, 4 and 5 in every state a run can be in."""
    folder = tmp_path_factory.mktemp("results") / "cpu"
    write_warm_start(folder, "locks", 0.25)
    for seed in range(3):
        write_run(folder, "sao", seed, STABLE)
        write_run(folder, "grpo_vanilla", seed, COLLAPSING if seed else STABLE)
        write_run(folder, "vapo", seed, COLLAPSING)
    write_run(folder, "step_average", 0, (0.3, 0.35, 0.4, 0.4, 0.4))
    write_run(folder, "running_mean", 0, STABLE)
    write_run(folder, "running_mean", 1, STABLE[:2], finished=False)
    with RunDirectory.open(folder / "runs/running_mean/seed2", resolve("running_mean", "cpu", 2), "x") as run:
        run.fail("out of memory")
    refused = write_run(folder, "sao_full_critic", 0, STABLE[:2], finished=False)
    make_older(refused)
    return folder


def make_older(path: Path) -> None:
    """Give a run the settings of an older grid."""
    from sao.config import digest_of
    from sao.runlog_files import read_json

    spec = read_json(path / "spec.json")
    config = spec["config"] | {"minibatches_per_batch": 4}
    spoil(path / "spec.json", "config", config)
    spoil(path / "spec.json", "digest", digest_of(config))


@pytest.fixture(scope="module")
def logs(folder: Path) -> Logs:
    rows = [name for table in load_artifacts().tables.values() for name in table.run_rows]
    return load_logs(folder, rows)


def solved(accuracy: float) -> float:
    """The share that a made-up run of this accuracy really solves."""
    return round(accuracy * PROBLEMS) / PROBLEMS


def cell(data: pd.DataFrame, row: str, measure: str, column: str = "all tasks") -> pd.Series:
    found = data[(data["row"] == row) & (data["measure"] == measure) & (data["column"] == column)]
    assert len(found) == 1, found
    return found.iloc[0]


def test_column_names_are_frozen() -> None:
    frozen = (
        "table row label kind measure column step value low high interval seeds problems difference_to_sao "
        "difference_low difference_high difference_interval difference_seeds cpu_minutes status note runs "
        "variance interquartile_mean interquartile_low interquartile_high stratified_low stratified_high "
        "p p_holm comparisons detectable"
    )
    assert " ".join(COLUMNS) == frozen


def test_last_step_and_score_are_those_of_the_curve(logs: Logs) -> None:
    data = build_table(logs, "table4")
    assert cell(data, "sao", "last step")["value"] == pytest.approx(100 * solved(0.6))
    both = 50 * (solved(0.55) + solved(0.60))
    assert cell(data, "sao", "score")["value"] == pytest.approx(both)
    assert cell(data, "sao", "score")["problems"] == PROBLEMS
    assert cell(data, "sao", "last step")["cpu_minutes"] == pytest.approx(1.2 * 130 / 60)


def test_difference_to_sao_is_paired_and_contains_its_estimate(logs: Logs) -> None:
    line = cell(build_table(logs, "table4"), "vapo", "score")
    expected = 50 * (solved(0.2) + solved(0.1) - solved(0.55) - solved(0.6))
    assert line["difference_to_sao"] == pytest.approx(expected)
    assert line["difference_low"] < expected < line["difference_high"] < 0
    assert line["difference_seeds"] == 3


def test_collapsed_row_shows_the_last_evaluation_before_it(logs: Logs) -> None:
    line = cell(build_table(logs, "table1"), "grpo_vanilla", "before the collapse")
    assert line["value"] == pytest.approx(100 * solved(0.5))
    assert line["seeds"] == 2
    assert line["note"] == "collapsed in 2 of 3 seeds (at step 96, 96)"
    assert line["runs"] == "runs/grpo_vanilla/seed1 runs/grpo_vanilla/seed2"
    stable = build_table(logs, "table4")
    assert stable[(stable["row"] == "sao") & (stable["measure"] == "before the collapse")].empty


def test_compared_values_have_their_statistics_in_the_table(logs: Logs) -> None:
    data = build_table(logs, "table4")
    tested = data[data["p"].notna()]
    assert set(tested["measure"]) == {"score"} and set(tested["column"]) == {"all tasks"}
    apart = build_comparisons(logs, ["table4"]).set_index("row")
    for line in tested.to_dict("records"):
        other = apart.loc[line["row"]]
        assert (line["p"], line["p_holm"]) == pytest.approx((other["p"], other["p_holm"]))
        assert line["comparisons"] == other["comparisons"] == len(tested) == 2
    design = build_design(logs, ["table4"], (3,)).set_index("row")
    vapo = cell(data, "vapo", "score")
    assert vapo["detectable"] == pytest.approx(design.loc["vapo", "detectable"])
    assert np.isnan(cell(data, "running_mean", "score")["detectable"])  # one seed says nothing of seeds
    assert np.isnan(cell(data, "sao", "score")["p"])


def test_interquartile_mean_and_stratified_interval_of_a_row(logs: Logs) -> None:
    line = cell(build_table(logs, "table4"), "vapo", "score")
    scores = band_scores(logs, "vapo")
    assert line["interquartile_mean"] == pytest.approx(100 * interquartile_mean(scores))
    assert line["interquartile_low"] < line["interquartile_mean"] < line["interquartile_high"]
    assert line["stratified_low"] < line["value"] < line["stratified_high"]
    last = cell(build_table(logs, "table4"), "vapo", "last step")
    assert np.isnan(last["interquartile_mean"]) and np.isnan(last["stratified_low"])


def test_every_interval_says_whose_variance_it_shows(logs: Logs) -> None:
    for name in load_artifacts().tables:
        data = build_table(logs, name)
        shown = data[data["low"].notna()]
        assert set(shown["variance"]) <= {"seeds and problems", "problems"}
        for line in shown.to_dict("records"):
            whose = "seeds and problems" if line["seeds"] >= 3 and line["value"] > 0 else "problems"
            assert line["variance"] == whose, line
        assert set(data.loc[data["low"].isna(), "variance"]) <= {""}


def test_footer_says_variance_n_and_comparisons(folder: Path, tmp_path: Path) -> None:
    tables.main(["--runs", str(folder), "--out", str(tmp_path), "--artifact", "table4"])
    for suffix in ("md", "tex"):
        text = (tmp_path / f"table4.{suffix}").read_text(encoding="utf-8")
        assert "Variance shown: problems (n = 1 or 3 seeds x 16 to 128 problems); " in text
        assert "; seeds and problems (n = 3 seeds x 16 to 128 problems)." in text
        assert "the 2 comparisons of this table" in text
        assert "p (Holm)" in text and "detectable" in text and "interquartile mean" in text


def test_bands_stand_for_the_benchmarks_of_table_1(logs: Logs) -> None:
    data = build_table(logs, "table1")
    ours = data[(data["row"] == "sao") & (data["measure"] == "last step")].set_index("column")
    assert list(ours.index) == ["1 lock", "2 locks", "3 locks", "4 or 6 locks", "all tasks"]
    weights = np.array([64, 32, 16, 16]) / 128
    assert float(ours["value"].iloc[:4] @ weights) == pytest.approx(ours["value"]["all tasks"])


def test_rows_without_training_at_this_scale_say_so(logs: Logs) -> None:
    data = build_table(logs, "table1")
    assert cell(data, "base_python", "last step")["status"] == "not defined at this scale"
    assert cell(data, "sft_python", "last step")["status"] == "at this scale the row warm_start"
    assert cell(data, "warm_start", "warm start")["value"] == pytest.approx(25.0)
    assert cell(data, "warm_start", "warm start")["runs"] == "prepare/locks/warm_start"


def test_table_5_reads_all_rows_at_40_percent_and_at_the_end(logs: Logs) -> None:
    data = build_table(logs, "table5")
    assert cell(data, "sao", "paper", "AIME2025")["value"] == 89.8
    early = cell(data, "sao", "40% of the steps")
    assert (early["step"], early["value"]) == (48, pytest.approx(100 * solved(0.45)))
    assert cell(data, "sao", "last step")["step"] == 120


def test_step_comes_from_the_config_and_never_from_the_best_evaluation(tmp_path: Path) -> None:
    lucky = (0.3, 0.9, 0.8, 0.7, 0.65)
    write_run(tmp_path / "cpu", "sao", 0, lucky)
    data = build_table(load_logs(tmp_path / "cpu", ["sao"]), "table3")
    assert cell(data, "sao", "last step")["value"] == pytest.approx(100 * solved(0.65))


def test_unfinished_seeds_are_left_out_and_named(logs: Logs) -> None:
    data = build_table(logs, "table4")
    line = cell(data, "running_mean", "last step")
    assert (line["seeds"], line["status"]) == (1, "1 of 3 seeds")
    assert line["note"] == "seed 1: stopped at step 48 of 120; seed 2: failed: out of memory (step 0 of 120)"
    assert line["runs"] == "runs/running_mean/seed0"
    refused = cell(data, "sao_full_critic", "last step")
    assert refused["seeds"] == 0
    assert refused["note"].startswith("seed 0: refused")
    assert "seed 1, 2: not run" in refused["note"]
    assert cell(data, "sao_critic_1x", "last step")["note"] == "not run"


def test_one_seed_rests_on_problems_only(logs: Logs) -> None:
    line = cell(build_table(logs, "table4"), "running_mean", "score")
    assert line["interval"] == "bootstrap over problems only"
    assert line["difference_seeds"] == 1


def test_every_value_of_ours_names_existing_runs(logs: Logs, folder: Path) -> None:
    for name in load_artifacts().tables:
        data = build_table(logs, name)
        ours = data[(data["measure"] != "paper") & data["value"].notna()]
        assert len(ours) or name == "table2", "Table 2 has no row of a scale with locks"
        for runs in ours["runs"]:
            assert runs
            assert all((folder / run).is_dir() for run in runs.split())


def test_paper_values_are_those_of_the_published_file() -> None:
    published = load_published()
    assert published.groupby("artifact").size().to_dict() == {
        "table1": 44,
        "table2": 3,
        "table3": 6,
        "table4": 10,
        "table5": 6,
    }
    slips = published[published["note"].str.contains("copying error")]
    assert sorted(slips["value"]) == [14.6, 17.3]


def test_formats_agree(folder: Path, tmp_path: Path) -> None:
    tables.main(["--runs", str(folder), "--out", str(tmp_path)])
    written = {path.name for path in tmp_path.iterdir()}
    names = ("table1", "table2", "table3", "table4", "table5", "beyond")
    assert written == {f"{name}.{suffix}" for name in names for suffix in ("csv", "md", "tex")}
    with open(tmp_path / "table4.csv", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert tuple(lines[0]) == COLUMNS
    markdown, latex = ((tmp_path / f"table4.{suffix}").read_text() for suffix in ("md", "tex"))
    for line in lines:
        if line["measure"] == "paper":
            shown = f"{float(line['value']):.1f}"
        elif line["value"]:
            shown = f"{float(line['value']):.1f} [{float(line['low']):.1f}, {float(line['high']):.1f}]"
        else:
            continue
        in_sheet = line["measure"] in ("paper", "last step") or line["column"] == "all tasks"
        assert not in_sheet or (shown in markdown and shown in latex)
    command = f"python -m analysis.tables --runs {folder} --out {tmp_path} --artifact table4"
    assert command in markdown
    assert "Scale cpu, task locks, finished seeds a row: 1 or 3, 128 held-out problems" in markdown


def test_table_is_the_same_when_written_again(folder: Path, tmp_path: Path) -> None:
    for place in ("first", "second"):
        tables.main(["--runs", str(folder), "--out", str(tmp_path / place), "--artifact", "table4"])
    first, second = (tmp_path / place / "table4.csv" for place in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()


def test_markdown_and_latex_escape_what_they_would_read_as_markup() -> None:
    sheet = Sheet("50% of a_b", ["a|b", "c & d"], [["x_y {z}", "a < b ~ #1 $2 ^ \\"]], ["`code_x`"])
    assert "| a\\|b | c & d |" in to_markdown(sheet)
    latex = to_latex(sheet)
    assert r"\caption{50\% of a\_b}" in latex
    assert (
        r"x\_y \{z\} & a \textless{} b \textasciitilde{} \#1 \$2 \textasciicircum{} \textbackslash{} \\"
        in latex
    )
    assert r"code\_x" in latex
    assert latex_escape(EMPTY) == "--"


def test_row_report_shows_paper_tables_and_seeds(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows" / "vapo.md"
    row.main(["--runs", str(folder), "--row", "vapo", "--out", str(out)])
    text = out.read_text()
    assert "91.3" in text
    assert "Table 4" in text
    assert "`runs/vapo/seed2`" in text
    assert "at step 96" in text
    assert "Finished seeds: 3 of 3." in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--artifact", "tabel4"], "did you mean table4?"),
        (["--artifact", "figure9"], "known are table1"),
    ],
)
def test_unknown_artifact(folder: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(AnalysisError, match=message.replace("?", r"\?")):
        tables.main(["--runs", str(folder), "--out", str(tmp_path), *arguments])


def test_unknown_row_lists_the_known_ones(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="there are: grpo_vanilla, running_mean, sao"):
        row.main(["--runs", str(folder), "--row", "saoo", "--out", str(tmp_path / "x.md")])


def test_folder_without_data_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run_command(lambda: tables.main(["--runs", str(tmp_path), "--out", str(tmp_path / "tables")]))
    message = capsys.readouterr().err
    assert code == 2
    assert message.count("\n") == 1
    assert "no run here has data; train first" in message


def test_hand_edited_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run(tmp_path / "cpu", "sao", 0, STABLE) / "evaluations.jsonl"
    path.write_text(path.read_text().replace('"correct": false', '"correct": true'))
    arguments = ["--runs", str(tmp_path / "cpu"), "--out", str(tmp_path / "tables")]
    assert run_command(lambda: tables.main(arguments)) == 2
    assert f"{path}: was changed after the run was sealed" in capsys.readouterr().err


def test_unwritable_output_is_one_clear_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tables").write_text("a file where a folder should be")
    arguments = ["--runs", str(folder), "--out", str(tmp_path / "tables"), "--artifact", "table3"]
    assert run_command(lambda: tables.main(arguments)) == 1
    assert "choose another place with --out" in capsys.readouterr().err


def test_rows_on_other_problems_are_not_paired(tmp_path: Path) -> None:
    write_run(tmp_path / "cpu", "sao", 0, STABLE)
    other = write_run(tmp_path / "cpu", "vapo", 0, STABLE)
    path = other / "evaluations.jsonl"
    path.write_text(path.read_text().replace("problem-000", "problem-999"))
    (other / "seal.json").unlink()
    with RunDirectory.open(other, resolve("vapo", "cpu", 0), "x") as run:
        run.seal()
    with pytest.raises(AnalysisError, match="cannot be paired"):
        build_table(load_logs(tmp_path / "cpu", ["sao", "vapo"]), "table4")
