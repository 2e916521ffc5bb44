"""Artifacts that were edited, lost, added or overtaken by their runs are found, file by file."""

import shutil
from collections.abc import Callable
from pathlib import Path

import matplotlib
import pandas as pd
import pytest
from report_pages import write_report, write_results
from synthetic_runs import write_run

from analysis import claims, comparisons, figures, importers, published, row, tables, verify
from analysis.command import run_command
from analysis.differences import first_difference, stated_command

LOGGED = Path(__file__).parents[1] / "results" / "logged"
CURVE = (0.40, 0.45, 0.50, 0.55, 0.60)


@pytest.fixture(scope="module")
def _source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs with every kind of artifact beside them."""
    folder = write_results(tmp_path_factory.mktemp("results") / "cpu")
    runs = ["--runs", str(folder), "--out"]
    tables.main([*runs, str(folder / "tables"), "--artifact", "table4"])
    figures.main([*runs, str(folder / "figures"), "--artifact", "figure3"])
    figures.main([*runs, str(folder / "figures"), "--artifact", "figure5", "--x", "compute"])
    claims.main([*runs, str(folder / "tables/claims")])
    comparisons.main([*runs, str(folder / "tables/comparisons"), "--artifact", "table4"])
    published.main(["--out", str(folder / "tables/published")])
    row.main([*runs, str(folder / "rows/sao.md"), "--row", "sao"])
    write_report(folder, folder / "report.html")
    return folder


@pytest.fixture
def folder(_source: Path, tmp_path: Path) -> Path:
    """A copy, whose runs stay at their place, as links in the report say where they are."""
    for name in ("tables", "figures", "rows"):
        shutil.copytree(_source / name, tmp_path / "made" / name)
    return Path(shutil.copy(_source / "report.html", tmp_path / "made")).parent


@pytest.fixture
def check(folder: Path, _source: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[], tuple[int, str]]:
    """Exit code of the command on the copy, and what it printed."""

    def run() -> tuple[int, str]:
        code = run_command(lambda: verify.main([str(folder), "--runs", str(_source)]))
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return code, said.out + said.err

    return run


Check = Callable[[], tuple[int, str]]


def edit(path: Path, old: str, new: str) -> None:
    content = path.read_text(encoding="utf-8")
    assert old in content
    path.write_text(content.replace(old, new, 1), encoding="utf-8")


def test_artifacts_as_they_were_made_pass(folder: Path, check: Check) -> None:
    count = sum(path.is_file() for path in folder.rglob("*"))
    code, said = check()
    assert code == 0
    assert said == f"{folder}: {count} files are what the runs give, byte for byte\n"
    assert count == 3 * 4 + 5 * 2 + 2


def keep(folder: Path, *stems: str) -> None:
    """Remove all artifacts but those named, so that a test makes no others again."""
    for path in folder.rglob("*"):
        if path.is_file() and path.relative_to(folder).with_suffix("").as_posix() not in stems:
            path.unlink()


def test_an_edited_cell_is_named_with_line_column_and_both_values(folder: Path, check: Check) -> None:
    keep(folder, "tables/table4")
    path = folder / "tables/table4.csv"
    data = pd.read_csv(path, dtype=str, keep_default_na=False)
    line = next(index for index, cell in enumerate(data["measure"]) if cell == "score")
    true = data.loc[line, "value"]
    data.loc[line, "value"] = "99.9"
    data.to_csv(path, index=False, lineterminator="\n")
    code, said = check()
    assert code == 2
    assert f"{path}: line {line + 2}, column value: holds '99.9', the runs give '{true}'\n" in said
    assert said.endswith("restore them, or make them again\n") and "1 of 3 files are not" in said


def test_edited_texts_and_pictures_are_named(folder: Path, check: Check) -> None:
    names = ["tables/table4.md", "tables/comparisons.tex", "rows/sao.md", "report.html"]
    keep(folder, "tables/table4", "tables/comparisons", "rows/sao", "report", "figures/figure3")
    places = {}
    for name in names:
        lines = (folder / name).read_text(encoding="utf-8").split("\n")
        places[name] = next(place for place, line in enumerate(lines, start=1) if "SAO" in line)
        edit(folder / name, "SAO", "S4O")
    picture = folder / "figures/figure3.png"
    content = bytearray(picture.read_bytes())
    content[-20] ^= 1
    picture.write_bytes(content)
    code, said = check()
    assert code == 2
    for name, place in places.items():
        fault = next(
            line for line in said.splitlines() if line.startswith(f"{folder / name}: line {place}: ")
        )
        assert "S4O" in fault.split("the runs give")[0] and "S4O" not in fault.split("the runs give")[1]
    assert f"{picture}: is not the picture that the runs give" in said


def test_lost_and_added_files_are_named(folder: Path, check: Check) -> None:
    keep(folder, "tables/table4", "figures/figure5_compute", "rows/sao")
    (folder / "tables/table4.tex").unlink()
    (folder / "figures/figure5_compute.csv").unlink()
    (folder / "tables/table9.csv").write_text("row,value\nsao,100\n")
    (folder / "rows/nonsense.md").write_text("# sao: 100\n")
    code, said = check()
    assert code == 2
    assert f"{folder / 'tables/table4.tex'}: is missing, the runs give it" in said
    assert f"{folder / 'figures/figure5_compute.csv'}: is missing" in said
    for name in ("tables/table9.csv", "rows/nonsense.md"):
        assert f"{folder / name}: no command makes this file of these runs" in said


def test_without_its_markdown_the_data_are_still_compared(folder: Path, check: Check) -> None:
    keep(folder, "tables/table4")
    (folder / "tables/table4.md").unlink()
    edit(folder / "tables/table4.csv", "last step", "best step")
    code, said = check()
    assert code == 2
    assert f"{folder / 'tables/table4.md'}: is missing" in said
    assert "column measure: holds 'best step', the runs give 'last step'" in said
    assert f"not checked: {folder / 'tables/table4.tex'}: quotes a command that is missing" in said


def test_pictures_of_another_matplotlib_are_left_out_and_said_to_be(folder: Path, check: Check) -> None:
    keep(folder, "figures/figure3")
    path = folder / "figures/figure3.svg"
    edit(path, f"Matplotlib v{matplotlib.__version__}", "Matplotlib v1.2.3")
    code, said = check()
    assert code == 0
    for suffix in ("pdf", "svg", "png"):
        assert f"not checked: {path.with_suffix('.' + suffix)}: drawn by Matplotlib 1.2.3" in said
    edit(folder / "figures/figure3.csv", "5", "6")
    assert check()[0] == 2


def test_a_table_that_its_runs_have_overtaken_is_found(
    _source: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(folder, "tables/table4")
    later = shutil.copytree(_source, tmp_path / "later")
    write_run(later, "sao", 9, CURVE)
    assert run_command(lambda: verify.main([str(folder), "--runs", str(later)])) == 2
    assert f"{folder / 'tables/table4.csv'}: line" in capsys.readouterr().err


def test_figures_with_imported_runs_are_made_of_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, beside = tmp_path / "cpu", tmp_path / "mine"
    write_run(folder, "sao", 0, CURVE)
    (tmp_path / "mine.csv").write_text("step,reward\n0,0.5\n1,0.6\n")
    (tmp_path / "mine.yaml").write_text("extends: verl\ncolumns: {reward_mean: reward}\n")
    words = ["csv", str(tmp_path / "mine.csv"), "--mapping", str(tmp_path / "mine.yaml"), "--row", "sao"]
    importers.main([*words, "--scale", "mine", "--label", "SAO, mine", "--results", str(tmp_path)])
    arguments = ["--runs", str(folder), "--beside", str(beside), "--out", str(folder / "figures")]
    figures.main([*arguments, "--artifact", "figure6"])
    assert run_command(lambda: verify.main([str(folder)])) == 0
    shutil.rmtree(beside)
    capsys.readouterr()
    assert run_command(lambda: verify.main([str(folder)])) == 2
    assert f"{beside}: holds no imported run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, "holds no table, figure or report"),
        (lambda folder: tables_without_runs(folder), "no run here has data"),
    ],
)
def test_nothing_to_compare_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], None], message: str
) -> None:
    make(tmp_path)
    assert run_command(lambda: verify.main([str(tmp_path)])) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def tables_without_runs(folder: Path) -> None:
    (folder / "tables").mkdir()
    (folder / "tables/table4.csv").write_text("row,value\n")


def test_shipped_artifacts_are_what_their_runs_give() -> None:
    assert run_command(lambda: verify.main([str(LOGGED / "cpu_long")])) == 0


@pytest.mark.parametrize(
    ("found", "made", "suffix", "said"),
    [
        ("a,b\n1,2\n", "a,b\n1,3\n", ".csv", "line 2, column b: holds '2', the runs give '3'"),
        ('a,b\n"1,2",2\n', 'a,b\n"1,3",2\n', ".csv", "line 2, column a: holds '1,2', the runs give '1,3'"),
        ("a,b\r\n1,2\n", "a,b\n1,2\n", ".csv", "line 1: holds 'a,b\\r', the runs give 'a,b'"),
        ("a\n1\n2\n", "a\n1\n", ".csv", "line 3: holds '2', the runs give ''"),
        ("a\n1", "a\n1\n2", ".csv", "line 3: is missing, the runs give '2'"),
        ("| x | 1 |\n| y | 2 |", "| x | 1 |\n| z | 3 |", ".md", "line 2: holds 'y', the runs give 'z'"),
        ("1\n1\n1", "2\n1\n2", ".tex", "line 1: holds '1', the runs give '2' (2 lines differ)"),
        ("\x89PNG", "\x89PN", ".png", "is not the picture that the runs give"),
    ],
)
def test_differences_in_words(found: str, made: str, suffix: str, said: str) -> None:
    assert first_difference(found.encode(), made.encode(), suffix).startswith(said)


def test_long_cells_are_cut_around_their_difference() -> None:
    said = first_difference(("x" * 500 + "1" + "y" * 500).encode(), ("x" * 500 + "2").encode(), ".html")
    assert said == f"line 1: holds ...'{'x' * 30}1{'y' * 49}'..., the runs give ...'{'x' * 30}2'"


def test_the_stated_command_is_read_as_written() -> None:
    text = "Regenerate: `python -m analysis.tables --runs a/b --out c`"
    assert stated_command(text, "analysis.tables") == "python -m analysis.tables --runs a/b --out c"
    html = "<code>python -m analysis.report --runs &#39;a &amp; b&#39; --out c</code>"
    assert stated_command(html, "analysis.report") == "python -m analysis.report --runs 'a & b' --out c"
    assert stated_command(text, "analysis.claims") == ""
