"""The report of one scale: tables, figures, claims, rows and provenance in one HTML file that opens offline.

    python -m analysis.report --runs results/cpu --out results/cpu/report.html

reads the runs and writes nothing but the file; docs/report.md says what is in it.
"""

import sys

from analysis.command import beside_parser, run_command
from analysis.load import AnalysisError, load_logs
from analysis.report.pages import rows_to_read, write_report


def main(arguments: list[str] | None = None) -> None:
    parser = beside_parser("analysis.report", "Write the report as one HTML file that opens offline.")
    options = parser.parse_args(arguments)
    if options.out.is_dir():
        raise AnalysisError(
            f"--out {options.out}: is a folder; name a file, e.g. {options.out / 'report.html'}"
        )
    logs = load_logs(options.runs, rows_to_read(options.runs, options.beside), options.beside)
    size = write_report(logs, options)
    print(f"wrote {options.out} ({size / 1e6:.1f} MB)")


if __name__ == "__main__":
    sys.exit(run_command(main))
