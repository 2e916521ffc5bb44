"""The checks on published values: what they find in the paper's, and that they find what is put in."""

import csv
import hashlib
import shutil
from pathlib import Path

import pandas as pd
import pytest

from analysis import published
from analysis.artifacts import PUBLISHED_FILE
from analysis.command import run_command
from analysis.published_checks import (
    BASELINE_AHEAD,
    COPIED,
    DISAGREEING,
    MISLABELLED,
    OFF_GRID,
    SAME_CAPTION,
    baselines_ahead,
    copied_cells,
    disagreeing_tables,
    off_grid,
    own_runs_by_chance,
    repeated_captions,
    wrong_labels,
)
from analysis.published_values import (
    OWN_RUN,
    REPEATED,
    RunCount,
    Value,
    load_captions,
    load_curves,
    load_run_counts,
    load_values,
)

FOLDER = PUBLISHED_FILE.parent
COUNTS = [
    RunCount("paper.csv", "", name, problems, runs)
    for name, problems, runs in (("AIME", 30, 16), ("Beyond", 100, 4), ("IMO", 400, 16), ("SWE", 500, 1))
]


def value(row: str, benchmark: str, text: str, place: str = "table1", origin: str = OWN_RUN) -> Value:
    return Value("paper.csv", 2, place, row, row.upper(), benchmark, text, origin)


def table(**rows: tuple[str, str, str, str]) -> list[Value]:
    names = ("AIME", "HMMT", "Beyond", "IMO")
    return [
        value(row, name, text) for row, cells in rows.items() for name, text in zip(names, cells, strict=True)
    ]


@pytest.mark.parametrize(("benchmark", "samples"), [("AIME", 480), ("Beyond", 400), ("SWE", 500)])
@pytest.mark.parametrize("decimals", [1, 2])
def test_grid_is_that_of_all_counts_written_out(benchmark: str, samples: int, decimals: int) -> None:
    """Every printable value from 0 to 100, against the list of k / n rounded either way at a half."""
    exact = [100 * k / samples for k in range(samples + 1)]
    unit = 10**decimals
    possible = {round(x * unit + nudge) for x in exact for nudge in (1e-7, -1e-7)}
    for step in range(100 * unit + 1):
        text = f"{step / unit:.{decimals}f}"
        found = off_grid([value("sao", benchmark, text)], COUNTS)
        assert (not found) == (step in possible), text


def test_grid_of_many_samples_tells_nothing() -> None:
    imo = value("sao", "IMO", "74.0")
    assert not COUNTS[2].tells(imo) and COUNTS[0].tells(value("sao", "AIME", "97.3"))
    assert off_grid([value("sao", "unknown", "12.3")], COUNTS) == []


def test_nearest_count_and_chance() -> None:
    assert COUNTS[0].nearest(value("sao", "AIME", "97.3")) == 467
    finding = off_grid([value("sao", "AIME", "95.7")], COUNTS)[0]
    assert "459 would be 95.62" in finding.detail
    two = [value("sao", "AIME", "97.3"), value("sao", "SWE", "29.8"), value("sao", "IMO", "74.0")]
    assert own_runs_by_chance(two, COUNTS) == pytest.approx(481 / 1001 * 501 / 1001)


def test_two_repeated_cells_are_a_copy_and_the_odd_row_has_them() -> None:
    rows = {
        "base": ("14.6", "17.3", "10.5", "7.8"),
        "fine": ("85.0", "76.7", "63.0", "55.3"),
        "sft": ("14.6", "17.3", "46.8", "42.0"),
        "other": ("80.4", "75.2", "53.3", "53.3"),
    }
    for order in (rows, dict(reversed(rows.items()))):
        findings = copied_cells(table(**order))
        assert {(f.value.row, f.value.benchmark) for f in findings} == {("sft", "AIME"), ("sft", "HMMT")}
        assert all("'BASE'" in finding.detail for finding in findings)


def test_one_equal_cell_or_a_whole_row_is_no_copy() -> None:
    one = table(a=("14.6", "17.3", "10.5", "7.8"), b=("14.6", "17.4", "46.8", "42.0"))
    whole = table(a=("14.6", "17.3", "10.5", "7.8"), b=("14.6", "17.3", "10.5", "7.8"))
    assert copied_cells(one) == copied_cells(whole) == []


def test_tables_may_differ_by_rounding_alone() -> None:
    first = value("sao", "AIME", "90.62", place="table3")
    assert disagreeing_tables([first, value("sao", "AIME", "90.6", place="table4")]) == []
    assert disagreeing_tables([first, value("vapo", "AIME", "91.3", place="table4")]) == []
    found = disagreeing_tables([first, value("sao", "AIME", "90.5", place="table4")])
    assert [finding.kind for finding in found] == [DISAGREEING]


def test_wrong_labels_are_those_whose_value_is_another_rows() -> None:
    cells = [value("grpo", "AIME", "84.2"), value("dis", "AIME", "93.5")]

    def found(label: str, text: str) -> list[str]:
        repeated = Value("relabelled.csv", 2, "blog", "", label, "AIME", text, REPEATED)
        return [finding.detail for finding in wrong_labels([*cells, repeated])]

    assert found("DIS", "93.5") == found("DIS", "50.0") == []
    assert found("DIS", "84.2") == ["'DIS' has 93.5 in the tables; 84.2 is 'GRPO' (table1, paper.csv:2)"]


def test_captions_are_compared_without_their_numbers(copy: Path, tmp_path: Path) -> None:
    lines = [
        "table2,Table 2: Results on other tasks.,made up",
        "table3,Table 3: Effects of  two settings.,made up",
        "table4,Table 4. Effects of two settings.,made up",
    ]
    (copy / "captions.csv").write_text("artifact,caption,source\n" + "\n".join(lines) + "\n")
    found = repeated_captions(load_captions(copy))
    assert [(f.kind, f.value.place, f.value.line) for f in found] == [(SAME_CAPTION, "table4", 4)]
    published.main(["--values", str(copy), "--out", str(tmp_path / "out")])
    text = (tmp_path / "out.md").read_text(encoding="utf-8")
    assert "| repeated caption | table4 | caption |" in text and "`captions.csv:4`" in text
    assert "curves.csv is not there" in text and "captions.csv is not there" not in text


def test_a_caption_and_its_fingerprint_are_the_same(copy: Path) -> None:
    digest = hashlib.sha256(b"effects of two settings.").hexdigest()[:16]
    lines = ["table3,Table 3: Effects of  two settings.,made up", f"table4,sha256:{digest},made up"]
    (copy / "captions.csv").write_text("artifact,caption,source\n" + "\n".join(lines) + "\n")
    assert [found.value.place for found in repeated_captions(load_captions(copy))] == ["table4"]


def test_table_4_of_the_paper_has_the_caption_of_table_3() -> None:
    found = repeated_captions(load_captions(FOLDER))
    assert [(f.value.place, f.value.line) for f in found] == [("table4", 5)]
    assert found[0].detail == "is the caption of table3 too (captions.csv:4)"


def test_baseline_that_leads_in_a_phase_is_found(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heights = {
        "sao_online": {1: (0.2, 0.4), 2: (0.5, 0.7)},
        "running_mean_online": {1: (0.5, 0.3), 2: (0.1, 0.2)},
    }
    lines = ["artifact,row,label,phase,step,value,source"]
    for row, phases in heights.items():
        for phase, values in phases.items():
            lines += [f"figure5b,{row},{row},{phase},{step},{v},made up" for step, v in enumerate(values)]
    (copy / "curves.csv").write_text("\n".join(lines) + "\n")
    found = baselines_ahead(load_curves(copy))
    assert [(f.kind, f.value.row, f.value.line) for f in found] == [
        (BASELINE_AHEAD, "running_mean_online", 6)
    ]
    assert found[0].detail == "phase 1: mean 0.4 against 0.3 of 'sao_online'"
    (copy / "curves.csv").write_text(lines[0] + "\nfigure5b,sao_online,SAO,one,0,0.5,made up\n")
    assert "curves.csv: line 2:" in refused(copy, capsys)


def test_what_cannot_be_checked_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published.main(["--out", str(tmp_path / "published")])
    out = capsys.readouterr().out
    assert "captions.csv" not in out.rpartition("not checked")[2]
    assert "not checked: curves read off the paper's figures" in out
    text = (tmp_path / "published.md").read_text(encoding="utf-8")
    assert "Not checked, for lack of data: curves" in text
    assert repeated_captions([]) == baselines_ahead([]) == []


def test_findings_in_the_published_values() -> None:
    values = load_values(FOLDER)
    findings = published.check_values(values, load_run_counts(FOLDER))
    copied = {(f.value.row, f.value.benchmark, f.value.text) for f in findings if f.kind == COPIED}
    assert copied == {("sft_no_python", "AIME2025", "14.6"), ("sft_no_python", "HMMT_Nov_2025", "17.3")}
    assert not [f for f in findings if f.kind == OFF_GRID and f.value.is_own_run]
    labelled = {(f.value.place, f.value.text) for f in findings if f.kind == MISLABELLED}
    repeated = {("secondary sources", text) for text in ("84.2", "54.8", "76.0", "55.8")}
    assert labelled == repeated | {("Figure 1", "27.0")}
    assert not [f for f in findings if f.kind == DISAGREEING]


def test_every_value_names_its_source_line(tmp_path: Path) -> None:
    published.main(["--out", str(tmp_path / "published")])
    written = pd.read_csv(tmp_path / "published.csv", dtype=str)
    for line in written.to_dict("records"):
        lines = (FOLDER / line["file"]).read_text(encoding="utf-8").splitlines()
        assert line["value"] in next(csv.reader([lines[int(line["line"]) - 1]]))
    reported = sum(
        bool(cells["value"])
        for name in ("paper", "independent_runs", "relabelled")
        for cells in csv.DictReader((FOLDER / f"{name}.csv").open(encoding="utf-8"))
    )
    assert len(written) == reported
    text = (tmp_path / "published.md").read_text(encoding="utf-8")
    assert "| copied cell | table1 | SFT w/o python | AIME2025 | 14.6 | `paper.csv:26` |" in text


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "published"))


def refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert run_command(lambda: published.main(["--values", str(folder), "--out", str(folder / "x")])) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


def test_changed_digit_is_found(copy: Path, tmp_path: Path) -> None:
    path = copy / "paper.csv"
    path.write_text(path.read_text().replace(",97.3,", ",97.4,", 1))
    published.main(["--values", str(copy), "--out", str(tmp_path / "out")])
    kinds = pd.read_csv(tmp_path / "out.csv").dropna(subset="finding")["finding"]
    assert OFF_GRID in set(kinds) and DISAGREEING in set(kinds)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("paper.csv", ",94.6,", ",946,", "paper.csv: line 6: value is '946'"),
        ("paper.csv", ",94.6,", ",nan,", "paper.csv: line 6: value is 'nan'"),
        ("paper.csv", "benchmark,value", "benchmark,score", "line 1: lacks the column value"),
        ("paper.csv", ",AIME2025,94.6,percent", "", "paper.csv: line 6: has not 8 cells"),
        ("run_counts.csv", "AIME2025,30,16", "AIME2025,30,many", "run_counts.csv: line 2: runs is 'many'"),
    ],
)
def test_damaged_files_are_named(
    copy: Path, name: str, old: str, new: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    assert message in refused(copy, capsys)


def test_missing_file_is_named(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "run_counts.csv").unlink()
    assert "run_counts.csv: cannot be read: No such file" in refused(copy, capsys)
