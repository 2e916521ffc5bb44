"""The paper's tables beside our own values, and the table of rows that the paper lacks.

    python -m analysis.tables --runs results/cpu --out results/cpu/tables [--artifact table4]

writes each table as CSV (one line a value, with the runs it comes from), Markdown and LaTeX.
"""

import sys
from pathlib import Path

import pandas as pd

from analysis.artifacts import load_artifacts
from analysis.command import artifact_parser, pick_artifacts, regenerate_command, run_command
from analysis.evaluation_layout import lay_out_evaluations
from analysis.evaluation_table import build_evaluation_table
from analysis.evaluations import load_evaluations
from analysis.layout import lay_out
from analysis.load import Logs, load_logs
from analysis.render import Sheet, write_sheet
from analysis.swe_evaluations import is_software, load_swe
from analysis.swe_layout import lay_out_swe
from analysis.swe_table import build_swe_table
from analysis.table_data import REFERENCE_ROW, build_table


def make_table(logs: Logs, name: str, command: str, only: str | None = None) -> tuple[pd.DataFrame, Sheet]:
    """Data and sheet of a table, or of its row `only`.

    The table of SWE-Bench is made from its evaluations; other evaluated tables are made from those on
    mathematics benchmarks where the scale has them.
    """
    table = load_artifacts().tables[name]
    if is_software(table):
        data = build_swe_table(logs, load_swe(logs), name, only)
        return data, lay_out_swe(data, logs, name, command)
    evaluations = load_evaluations(logs) if table.evaluated else None
    if evaluations is None:
        data = build_table(logs, name, only)
        return data, lay_out(data, logs, name, command)
    data = build_evaluation_table(logs, evaluations, name, only)
    return data, lay_out_evaluations(data, logs, name, command)


def write_table(logs: Logs, name: str, stem: Path, command: str) -> None:
    """Write a table as `<stem>.csv`, `.md` and `.tex`; `command` is what makes it again."""
    write_sheet(stem, *make_table(logs, name, command))


def main(arguments: list[str] | None = None) -> None:
    parser = artifact_parser("analysis.tables", "Write the tables as CSV, Markdown and LaTeX.")
    options = parser.parse_args(arguments)
    tables = load_artifacts().tables
    names = pick_artifacts(options.artifact, tables)
    rows = [REFERENCE_ROW, *(row for name in names for row in tables[name].run_rows)]
    logs = load_logs(options.runs, rows, options.beside)
    for name in names:
        command = regenerate_command("analysis.tables", options, "--artifact", name)
        write_table(logs, name, options.out / name, command)
        print(f"wrote {options.out / name}.csv, .md and .tex")


if __name__ == "__main__":
    sys.exit(run_command(main))
