"""Comparisons of tables with SAO and the designs' detectable differences, from made-up runs."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_runs import PROBLEMS, write_run

from analysis import comparisons, design
from analysis.command import run_command
from analysis.comparisons import band_scores, build_comparisons
from analysis.load import AnalysisError, Logs, Run, load_logs
from analysis.power import minimum_detectable_difference, variance_components
from analysis.statistics import p_value

CURVE = (0.40, 0.45, 0.50, 0.55, 0.60)
ROWS = ("sao", "sao_critic_1x", "sao_full_critic", "vapo", "running_mean")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Table 4: two rows of three seeds beside SAO, one of a single seed, one not begun."""
    folder = tmp_path_factory.mktemp("results") / "cpu"
    for seed in range(3):
        write_run(folder, "sao", seed, CURVE)
        write_run(folder, "vapo", seed, [value - 0.2 for value in CURVE])
        write_run(folder, "sao_full_critic", seed, [value + 0.01 * seed for value in CURVE])
    write_run(folder, "running_mean", 0, [value - 0.1 for value in CURVE])
    return folder


@pytest.fixture(scope="module")
def logs(folder: Path) -> Logs:
    return load_logs(folder, ROWS)


@pytest.fixture(scope="module")
def table(logs: Logs) -> pd.DataFrame:
    return build_comparisons(logs, ["table4"]).set_index("row")


def solved(accuracy: float) -> float:
    return 100 * round(accuracy * PROBLEMS) / PROBLEMS


def test_values_of_a_compared_row(logs: Logs, table: pd.DataFrame) -> None:
    line = table.loc["vapo"]
    assert line["score"] == pytest.approx((solved(0.35) + solved(0.40)) / 2)
    assert line["difference_to_sao"] == pytest.approx(line["score"] - table.loc["sao", "score"])
    assert line["difference_low"] < line["difference_to_sao"] < line["difference_high"]
    shares = np.stack([run.score().to_numpy() for run in logs.finished("vapo")])
    by_problem = shares.mean(axis=0)
    error = 100 * np.sqrt(by_problem.var(ddof=1) / PROBLEMS)
    assert line["standard_error_problems"] == pytest.approx(error)
    assert line["runs"] == "runs/vapo/seed0 runs/vapo/seed1 runs/vapo/seed2"


def test_p_values_are_corrected_within_the_table(logs: Logs, table: pd.DataFrame) -> None:
    compared = table["p"].dropna().sort_values()
    assert list(table["comparisons"].dropna().unique()) == [3]
    assert set(compared.index) == {"vapo", "sao_full_critic", "running_mean"}
    reference = logs.outcomes("sao", Run.score)
    vapo = logs.outcomes("vapo", Run.score)
    assert vapo is not None and reference is not None
    assert table.loc["vapo", "p"] == pytest.approx(p_value(vapo.shares - reference.shares))
    assert table.loc[compared.index[0], "p_holm"] == pytest.approx(min(1, 3 * compared.iloc[0]))
    assert table.loc[compared.index[1], "p_holm"] >= table.loc[compared.index[0], "p_holm"]


def test_interquartile_mean_is_over_seeds_and_bands(logs: Logs, table: pd.DataFrame) -> None:
    scores = band_scores(logs, "vapo")
    assert scores.shape == (3, 4)
    first = logs.finished("vapo")[0]
    hardest = [problem for problem, band in first.bands.items() if band == "4 or 6 locks"]
    assert scores[0, 3] == pytest.approx(first.score()[hardest].mean())
    middle = sorted(scores.ravel().tolist())[3:9]
    assert table.loc["vapo", "interquartile_mean"] == pytest.approx(100 * sum(middle) / 6)


def test_reference_and_missing_rows_have_no_comparison(table: pd.DataFrame) -> None:
    assert np.isnan(table.loc["sao", "p"]) and table.loc["sao", "seeds"] == 3
    missing = table.loc["sao_critic_1x"]
    assert missing["seeds"] == 0 and np.isnan(missing["score"]) and missing["note"] == "not run"
    assert table.loc["running_mean", "difference_interval"] == "bootstrap over problems only"


def test_comparisons_command_writes_three_formats(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "comparisons"
    comparisons.main(["--runs", str(folder), "--out", str(out), "--artifact", "table4"])
    assert len(pd.read_csv(f"{out}.csv")) == 5
    text = Path(f"{out}.md").read_text(encoding="utf-8")
    assert "`vapo`" in text and "--artifact table4" in text
    assert Path(f"{out}.tex").exists()


def test_design_reads_the_pilot(
    folder: Path, logs: Logs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "design.csv"
    arguments = ["--runs", str(folder), "--artifact", "table4", "--seeds", "3", "5", "--out", str(out)]
    design.main(arguments)
    data = pd.read_csv(out).set_index(["row", "seeds"])
    assert set(data.index.get_level_values(0)) == {"sao_full_critic", "vapo", "all comparisons"}
    outcomes, reference = (logs.outcomes(row, Run.score) for row in ("vapo", "sao"))
    assert outcomes is not None and reference is not None
    part = variance_components(outcomes.shares - reference.shares)
    expected = 100 * minimum_detectable_difference(part, 5, PROBLEMS)
    assert data.loc[("vapo", 5), "detectable"] == pytest.approx(expected, rel=1e-4)
    corrected = 100 * minimum_detectable_difference(part, 5, PROBLEMS, level=0.975)
    assert data.loc[("vapo", 5), "detectable_holm"] == pytest.approx(corrected, rel=1e-4)
    assert "| table4 | `vapo` | 3 |" in capsys.readouterr().out


def test_design_of_other_sizes(logs: Logs) -> None:
    small = design.build_design(logs, ["table4"], (3,), 50)
    large = design.build_design(logs, ["table4"], (3,), 500)
    assert (small["detectable"] > large["detectable"]).all()


@pytest.mark.parametrize("wrong", [["--seeds", "0"], ["--seeds", "three"], ["--problems", "-4"]])
def test_impossible_designs_are_refused(
    folder: Path, wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        design.main(["--runs", str(folder), *wrong])
    assert f"{wrong[1]} is no whole number of at least 1" in capsys.readouterr().err


def test_design_without_two_seeds_names_the_mend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "cpu", "sao", 0, CURVE)
    assert run_command(lambda: design.main(["--runs", str(tmp_path / "cpu")])) == 2
    message = capsys.readouterr().err
    assert "no row has two finished seeds" in message and message.count("\n") == 1
    with pytest.raises(AnalysisError, match="--problems 1"):
        design.main(["--runs", str(tmp_path / "cpu"), "--problems", "1"])
