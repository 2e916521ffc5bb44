"""Imported runs in tables and figures: beside this suite's rows under their own label, never among them."""

import csv
from pathlib import Path

import numpy as np
import pytest
from foreign_logs import write_events
from matplotlib.axes import Axes
from swe_scores import evaluate, outcomes
from synthetic_runs import write_run, write_warm_start

from analysis import claims, figures, importers, row, tables
from analysis.artifacts import load_artifacts
from analysis.command import run_command
from analysis.curves import Curve
from analysis.imported import imported_curves
from analysis.load import load_logs
from analysis.report.__main__ import main as report

OURS = (0.40, 0.45, 0.50, 0.55, 0.60)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our rows at scale cpu, and two imported seeds of `sao` at scale my_30b."""
    results = tmp_path_factory.mktemp("results")
    write_warm_start(results / "cpu", "locks", 0.25)
    for seed in range(2):
        write_run(results / "cpu", "sao", seed, OURS)
    write_run(results / "cpu", "grpo_dis", 0, OURS)
    for seed in range(2):
        rows = [
            (
                step,
                {
                    "critic/score/mean": 0.25 + 0.25 * seed,
                    "critic/vf_explained_var": 0.5,
                    "critic/grad_norm": 2.0 + seed,
                    **({"val-core/aime/acc/mean@32": (step + 10 * seed) / 100} if step % 20 == 0 else {}),
                },
            )
            for step in range(1, 61)
        ]
        write_events(results / "log" / str(seed), rows)
        source = str(results / "log" / str(seed))
        words = ["tensorboard", source, "--mapping", "verl", "--row", "sao", "--scale", "my_30b"]
        importers.main([*words, "--seed", str(seed), "--label", "SAO, 30B", "--results", str(results)])
    return results


def lines_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def curves(results: Path, figure: str, panel: int, axis: str = "updates") -> list[Curve]:
    logs = load_logs(results / "cpu", ["sao"], [results / "my_30b"])
    return imported_curves(logs.imported, load_artifacts().figures[figure].panels[panel], axis)


def test_our_lines_of_a_table_stay_as_they_are(results: Path, tmp_path: Path) -> None:
    arguments = ["--runs", str(results / "cpu"), "--artifact", "table4"]
    tables.main([*arguments, "--out", str(tmp_path / "alone")])
    tables.main([*arguments, "--out", str(tmp_path / "both"), "--beside", str(results / "my_30b")])
    alone, both = lines_of(tmp_path / "alone" / "table4.csv"), lines_of(tmp_path / "both" / "table4.csv")
    assert both[: len(alone)] == alone
    imported = both[len(alone) :]
    assert [(line["row"], line["kind"], line["label"]) for line in imported] == [
        ("sao@my_30b", "imported", "SAO, 30B (imported)")
    ] * 2
    # seed 0 ends at 0.60 and seed 1 at 0.70; the last two are 0.40, 0.60 and 0.50, 0.70
    measures = {line["measure"]: float(line["value"]) for line in imported}
    assert measures == {"last step": pytest.approx(65.0), "score": pytest.approx(55.0)}
    assert {(line["column"], line["seeds"], line["step"]) for line in imported} == {("aime", "2", "60")}
    assert {(line["low"], line["high"], line["difference_to_sao"]) for line in imported} == {("", "", "")}


def test_a_table_shows_imported_rows_in_a_line_of_their_own(results: Path, tmp_path: Path) -> None:
    arguments = ["--runs", str(results / "cpu"), "--artifact", "table4", "--out", str(tmp_path)]
    tables.main([*arguments, "--beside", str(results / "my_30b")])
    rows = [line.split(" | ") for line in (tmp_path / "table4.md").read_text().splitlines() if " | " in line]
    header, last = rows[0], rows[-1]
    assert all(len(row) == len(header) for row in rows)
    assert last[0].strip("| ") == "SAO, 30B (imported) (`sao@my_30b`)"
    assert last[header.index("aime, last step (%)")] == "65.0"
    assert last[header.index("aime, score (%)")] == "55.0"
    assert last[header.index("seeds")] == "2"
    assert "no interval: outcomes by problem are not known" in last[-1]
    ours = next(row for row in rows if "(`sao`)" in row[0])
    assert ours[header.index("aime, last step (%)")] == "\N{EN DASH}"
    assert f"--beside {results / 'my_30b'}" in (tmp_path / "table4.md").read_text()
    assert "imported" in (tmp_path / "table4.tex").read_text()


@pytest.mark.parametrize(
    ("scale", "table", "row"), [("cpu_math", "table1", "sao"), ("paper_swe", "table2", "sao_swe")]
)
def test_tables_of_evaluations_show_imported_rows_too(
    results: Path, tmp_path: Path, scale: str, table: str, row: str
) -> None:
    """They were left out there without a word."""
    folder, mine = tmp_path / scale, tmp_path / "my_30b"
    evaluate(folder / "evaluations", row, outcomes(range(149)), step=200, scale=scale)
    source = str(results / "log" / "0")
    words = ["tensorboard", source, "--mapping", "verl", "--row", row, "--scale", "my_30b"]
    importers.main([*words, "--label", "SAO, 30B", "--results", str(tmp_path)])
    arguments = ["--runs", str(folder), "--artifact", table, "--out", str(tmp_path)]
    tables.main([*arguments, "--beside", str(mine)])
    imported = [line for line in lines_of(tmp_path / f"{table}.csv") if line["kind"] == "imported"]
    assert {line["row"] for line in imported} == {f"{row}@my_30b"} and len(imported) == 2
    rows = [
        line.split(" | ") for line in (tmp_path / f"{table}.md").read_text().splitlines() if " | " in line
    ]
    assert all(len(line) == len(rows[0]) for line in rows)
    assert rows[-1][0].strip("| ") == f"SAO, 30B (imported) (`{row}@my_30b`)"
    assert rows[-1][rows[0].index("aime, last step (%)")] == "60.0"


def test_accuracy_curve_of_imported_runs(results: Path) -> None:
    (curve,) = curves(results, "figure3", 0)
    assert curve.label == "SAO, 30B (imported): aime"
    assert list(curve.x) == [20, 40, 60]
    assert list(curve.mean) == pytest.approx([25.0, 45.0, 65.0])
    assert list(curve.low) == pytest.approx([20.0, 40.0, 60.0])
    assert curve.seeds == 2


def test_metric_curves_of_imported_runs_and_what_they_lack(results: Path) -> None:
    (variance,) = curves(results, "figure4", 0)
    assert list(variance.mean) == [0.5] * 60
    (norm,) = curves(results, "figure4", 1)
    assert (list(norm.mean), list(norm.x)) == ([2.5] * 60, list(range(60)))
    assert curves(results, "figure4", 2) == []  # no masked shares were logged
    assert curves(results, "figure3", 0, "compute") == []  # no processor time was logged


def test_figures_draw_and_name_imported_runs(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Curve] = []
    draw = figures.drawing.draw_curve

    def draw_and_keep(axes: Axes, curve: Curve, *more: object, **named: object) -> None:
        drawn.append(curve)
        draw(axes, curve, *more, **named)

    monkeypatch.setattr(figures.drawing, "draw_curve", draw_and_keep)
    arguments = ["--runs", str(results / "cpu"), "--out", str(tmp_path), "--beside", str(results / "my_30b")]
    figures.main([*arguments, "--artifact", "figure3"])
    assert [(curve.label, curve.seeds) for curve in drawn] == [
        ("SAO", 2),
        ("GRPO + DIS", 1),
        ("SAO, 30B (imported): aime", 2),
    ]
    assert drawn[0].mean[-1] == pytest.approx(100 * round(0.6 * 128) / 128)
    caption = (tmp_path / "figure3.md").read_text()
    assert "Imported: trained elsewhere" in caption
    assert f"- `{results}/my_30b/runs/sao/seed0`: tensorboard log {results}/log/0/events" in caption
    assert f"--beside {results / 'my_30b'}" in caption
    figures.main([*arguments, "--artifact", "figure4"])
    caption = (tmp_path / "figure4.md").read_text()
    assert "- SAO, 30B (imported): no masked_low" in caption


def test_imported_runs_alone_leave_our_rows_planned(results: Path, tmp_path: Path) -> None:
    arguments = ["--runs", str(results / "my_30b"), "--out", str(tmp_path)]
    tables.main(arguments)
    ours = [
        line
        for line in lines_of(tmp_path / "table4.csv")
        if line["kind"] == "run" and line["measure"] != "paper"
    ]
    assert {line["status"] for line in ours} == {"0 of 0 seeds"}
    assert {line["value"] for line in ours} == {""}
    figures.main(arguments)
    assert "Imported: trained elsewhere" in (tmp_path / "figure6.md").read_text()


def test_only_imported_runs_can_stand_beside(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--runs", str(results / "cpu"), "--out", str(tmp_path), "--beside", str(results / "cpu")]
    assert run_command(lambda: tables.main(arguments)) == 2
    assert f"{results / 'cpu'}: holds no imported run" in capsys.readouterr().err


def test_collapse_of_an_imported_seed_is_noted(tmp_path: Path) -> None:
    scores = {20: 0.5, 40: 0.6, 60: 0.1, 80: 0.1}
    rows = [
        (step, {"critic/score/mean": 0.5, "val-core/a/acc/mean@1": value}) for step, value in scores.items()
    ]
    write_events(tmp_path / "log", rows)
    words = ["tensorboard", str(tmp_path / "log"), "--mapping", "verl", "--row", "sao", "--scale", "mine"]
    importers.main([*words, "--results", str(tmp_path)])
    tables.main(["--runs", str(tmp_path / "mine"), "--artifact", "table4", "--out", str(tmp_path)])
    line = lines_of(tmp_path / "table4.csv")[-1]
    assert "collapsed in 1 of 1 seeds" in line["note"]
    assert np.isclose(float(line["value"]), 10.0)


def test_page_of_a_row_shows_imported_runs_of_it_alone(results: Path, tmp_path: Path) -> None:
    for name in ("sao", "grpo_dis"):
        options = ["--runs", str(results / "cpu"), "--row", name, "--out", str(tmp_path / f"{name}.md")]
        row.main([*options, "--beside", str(results / "my_30b")])
    assert "SAO, 30B (imported)" in (tmp_path / "sao.md").read_text()
    assert "30B" not in (tmp_path / "grpo_dis.md").read_text().replace("my_30b", "")


def test_claims_name_imported_runs_and_rest_on_none(results: Path, tmp_path: Path) -> None:
    options = ["--runs", str(results / "cpu"), "--out"]
    claims.main([*options, str(tmp_path / "alone")])
    claims.main([*options, str(tmp_path / "beside"), "--beside", str(results / "my_30b")])
    assert (tmp_path / "alone.csv").read_bytes() == (tmp_path / "beside.csv").read_bytes()
    # The two seeds end at 0.6 and 0.7.
    sentence = "Beside, in no verdict: SAO, 30B (imported), aime 65.0%."
    assert sentence in (tmp_path / "beside.md").read_text()
    assert sentence not in (tmp_path / "alone.md").read_text()


def test_report_shows_imported_runs_and_says_so(results: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    report([*("--runs", str(results / "cpu"), "--out", str(out)), "--beside", str(results / "my_30b")])
    page = out.read_text()
    assert "Runs trained elsewhere" in page and "SAO, 30B (imported): aime" in page
    assert "SAO, 30B (imported)</th>" in page or "SAO, 30B (imported) (" in page
