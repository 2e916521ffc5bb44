"""The shipped runs: their tables are what the analysis makes of them, and the README quotes these tables."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from analysis import claims, tables
from sao.runlog import read_run

ROOT = Path(__file__).parents[1]
LOGGED = ROOT / "results" / "logged"
README = (ROOT / "README.md").read_text(encoding="utf-8")


def readme_rows(heading: str) -> list[list[str]]:
    """Cells of the README's table whose heading line starts with `heading`."""
    lines = README.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    body = lines[start + 2 :]
    end = next(number for number, line in enumerate(body) if not line.startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body[:end]]


@pytest.mark.parametrize("table", ["table4", "beyond"])
def test_shipped_tables_come_from_the_shipped_runs(table: str, tmp_path: Path) -> None:
    tables.main(["--runs", str(LOGGED / "cpu"), "--out", str(tmp_path), "--artifact", table])
    assert (tmp_path / f"{table}.csv").read_bytes() == (LOGGED / "cpu/tables" / f"{table}.csv").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["cpu", "cpu_plain", "cpu_long"])
def test_every_shipped_artifact_is_made_again_byte_for_byte_without_torch(scale: str, tmp_path: Path) -> None:
    """Tables, figures, claims and comparisons, where importing torch, transformers or openai fails."""
    for name in ("torch", "transformers", "openai"):
        (tmp_path / "absent").mkdir(exist_ok=True)
        (tmp_path / "absent" / f"{name}.py").write_text(f"raise ImportError('{name} is not here')\n")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path / 'absent'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "analysis.verify", f"results/logged/{scale}"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    count = sum(
        path.is_file() for name in ("tables", "figures") for path in (LOGGED / scale / name).iterdir()
    )
    assert f"{count} files are what the runs give" in done.stdout


def test_shipped_claims_come_from_the_shipped_runs(tmp_path: Path) -> None:
    claims.main(["--runs", str(LOGGED / "cpu"), "--out", str(tmp_path / "claims")])
    assert (tmp_path / "claims.csv").read_bytes() == (LOGGED / "cpu/tables/claims.csv").read_bytes()


def test_readme_quotes_the_shipped_tables() -> None:
    names = ("table1", "table3", "table4", "table5", "beyond")
    data = pd.concat([pd.read_csv(LOGGED / "cpu/tables" / f"{name}.csv") for name in names])
    data = (
        data[data["column"] == "all tasks"].drop_duplicates(["row", "measure"]).set_index(["row", "measure"])
    )
    rows = readme_rows("row")
    assert len(rows) == 22
    for row, seeds, last, score, difference, _ in rows:
        name = row.strip("`")
        if name == "warm_start":
            assert last == interval(data.loc[(name, "warm start")], "value", "low", "high")
            continue
        shown = data.loc[(name, "score")]
        assert int(seeds) == shown["seeds"]
        assert last == interval(data.loc[(name, "last step")], "value", "low", "high")
        assert score == interval(shown, "value", "low", "high")
        if name != "sao":
            assert difference.lstrip("+") == interval(
                shown, "difference_to_sao", "difference_low", "difference_high"
            )


def interval(line: pd.Series, value: str, low: str, high: str) -> str:
    return f"{line[value]:.1f} [{line[low]:.1f}, {line[high]:.1f}]"


def test_readme_quotes_the_shipped_verdicts() -> None:
    listed = pd.read_csv(LOGGED / "cpu/tables/claims.csv")
    verdicts = [cells[3] for cells in readme_rows("claim")]
    assert verdicts == list(listed["verdict"])


def test_shipped_runs_are_those_of_the_preregistered_settings() -> None:
    """Each was trained from a commit without local changes, at the present settings."""
    for seal in sorted(LOGGED.glob("*/runs/*/seed0/seal.json")):
        run = read_run(seal.parent, against_grid=True)
        assert run.status == "finished", (seal, run.status_detail)
        assert run.provenance["git"]["diff"] is None
        assert re.fullmatch("[0-9a-f]{40}", run.provenance["git"]["commit"])
