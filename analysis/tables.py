"""The paper's tables beside our own values, and the table of rows that the paper lacks.

    python -m analysis.tables --runs results/cpu --out results/cpu/tables [--artifact table4]

writes each table as CSV (one line a value, with the runs it comes from), Markdown and LaTeX.
"""

import sys

from analysis.artifacts import load_artifacts
from analysis.command import artifact_parser, pick_artifacts, regenerate_command, run_command
from analysis.layout import lay_out
from analysis.load import load_logs
from analysis.render import write_sheet
from analysis.table_data import REFERENCE_ROW, build_table


def main(arguments: list[str] | None = None) -> None:
    parser = artifact_parser("analysis.tables", "Write the tables as CSV, Markdown and LaTeX.")
    options = parser.parse_args(arguments)
    tables = load_artifacts().tables
    names = pick_artifacts(options.artifact, tables)
    rows = [REFERENCE_ROW, *(row for name in names for row in tables[name].run_rows)]
    logs = load_logs(options.runs, rows, options.beside)
    for name in names:
        data = build_table(logs, name)
        command = regenerate_command("analysis.tables", options, "--artifact", name)
        write_sheet(options.out / name, data, lay_out(data, logs, name, command))
        print(f"wrote {options.out / name}.csv, .md and .tex")


if __name__ == "__main__":
    sys.exit(run_command(main))
