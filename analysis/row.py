"""One row of the grid beside the paper's values.

    python -m analysis.row --runs results/cpu --row vapo --out results/cpu/rows/vapo.md

prints and writes every table line of the row, its paired difference to SAO, and its seeds one by one.
"""

import sys

from analysis.artifacts import load_artifacts, row_label
from analysis.command import beside_parser, regenerate_command, run_command
from analysis.load import AnalysisError, Logs, Run, load_logs
from analysis.render import Sheet, to_markdown
from analysis.rows import row_status
from analysis.table_data import REFERENCE_ROW
from analysis.tables import make_table


def describe_row(logs: Logs, row: str, command: str) -> str:
    """Markdown: the row's line in each of its tables, then its runs.

    Raises AnalysisError where it has neither a run nor an evaluation.
    """
    places = [*logs.folder.glob("runs/*"), *logs.folder.glob("evaluations/*")]
    if row not in {path.name for path in places}:
        known = ", ".join(sorted({path.name for path in places}))
        raise AnalysisError(f"--row {row}: no run of it in {logs.folder}; there are: {known}")
    parts = [f"# {row_label(row)} (`{row}`), scale {logs.scale}", ""]
    tables = load_artifacts().tables
    for name in (name for name, table in tables.items() if row in [entry.row for entry in table.rows]):
        _, sheet = make_table(logs, name, command, only=row)
        parts.append("#" + to_markdown(sheet))
    if row not in logs.runs:
        return "\n".join(parts)
    status = row_status(logs, row)
    parts.append(f"Finished seeds: {status.seeds}. {status.note}".rstrip() + "\n")
    parts.append("#" + to_markdown(_seeds_sheet(logs.finished(row))))
    return "\n".join(parts)


def _seeds_sheet(runs: list[Run]) -> Sheet:
    """One line a seed: its curve, score and compute."""
    header = ["run", "accuracy by step (%)", "score: mean of last two (%)", "collapse", "CPU-min"]
    rows = [
        [
            f"`{run.directory}`",
            ", ".join(f"{step}: {100 * value:.1f}" for step, value in run.accuracies.items()),
            f"{100 * run.score().mean():.1f}",
            "none" if run.collapse_step is None else f"at step {run.collapse_step}",
            f"{run.cpu_minutes:.1f}",
        ]
        for run in runs
    ]
    return Sheet("Runs", header, rows)


def main(arguments: list[str] | None = None) -> None:
    options_parser = beside_parser("analysis.row", "Print one row beside the paper's values.")
    options_parser.add_argument("--row", required=True, help="row id, e.g. vapo")
    options = options_parser.parse_args(arguments)
    command = regenerate_command("analysis.row", options, "--row", options.row)
    logs = load_logs(options.runs, [options.row, REFERENCE_ROW], options.beside)
    text = describe_row(logs, options.row, command)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    sys.exit(run_command(main))
