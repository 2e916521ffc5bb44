"""Runs trained elsewhere, from their logs, as run directories of a scale of their own.

    python -m analysis.importers tensorboard FOLDER --mapping verl --row sao --scale my_30b
    python -m analysis.importers wandb FOLDER --mapping openrlhf --row sao --scale my_30b --seed 1
    python -m analysis.importers csv FILE --mapping my.yaml --row sao --scale my_30b --label "SAO, 30B"

writes results/my_30b/runs/sao/seed0, which the tables and figures show with --beside results/my_30b.
docs/importing.md says more.
"""

import argparse
import difflib
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from analysis.artifacts import ROWS_FOLDER, row_label
from analysis.assembly import Account, assemble
from analysis.command import run_command
from analysis.csv_exports import read_csv_export
from analysis.event_files import read_event_files
from analysis.load import SCALES_FOLDER, AnalysisError
from analysis.mapping import Mapping, load_mapping
from analysis.readings import Readings
from analysis.wandb_files import read_wandb_run
from sao.runlog import RunError, write_imported_run

RESERVED = ("logged", "published")
EXTRA = "install the extra that reads it: pip install '.[importers]'"


def import_run(options: argparse.Namespace, command: str) -> tuple[Path, Account]:
    """Reads the log and writes the run directory, which it returns with an account of what became of the log.

    Raises AnalysisError for a user's mistake; nothing is written then.
    """
    path = _target(options)
    mapping, origin = load_mapping(options.mapping)
    readings = _read(options, mapping)
    fingerprints = readings.fingerprints()
    assembled = assemble(readings, mapping, options.first_update, options.duplicates)
    label = options.label or f"{row_label(options.row)}, {options.scale}"
    imported = {
        "label": label,
        "format": options.format,
        "mapping": mapping.title,
        "first_update": mapping.first_update if options.first_update is None else options.first_update,
        "columns": {name: filled["metric"] for name, filled in assembled.account.filled.items()},
        "accuracies": assembled.account.benchmarks,
        "sha256": [fingerprint["sha256"] for fingerprint in fingerprints],
    }
    try:
        write_imported_run(
            path,
            options.row,
            options.scale,
            options.seed,
            imported,
            _origin(command, fingerprints, origin, assembled.account),
            assembled.metrics,
            assembled.accuracies,
        )
    except RunError as error:
        raise AnalysisError(str(error)) from error
    return path, assembled.account


def _target(options: argparse.Namespace) -> Path:
    """The run directory to write; AnalysisError where the row is unknown or the place is taken."""
    rows = sorted(path.stem for path in ROWS_FOLDER.glob("*.yaml"))
    if options.row not in rows:
        close = difflib.get_close_matches(options.row, rows, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(rows)}"
        raise AnalysisError(f"--row {options.row}: no row of experiments/rows; {hint}")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", options.scale) or options.scale in RESERVED:
        raise AnalysisError(f"--scale {options.scale}: use letters, digits, _, - and ., e.g. my_30b")
    if (SCALES_FOLDER / f"{options.scale}.yaml").exists():
        raise AnalysisError(
            f"--scale {options.scale}: is a scale of this suite, whose runs are trained here; "
            "choose a name of your own"
        )
    if options.seed < 0:
        raise AnalysisError(f"--seed {options.seed}: must not be negative")
    path = Path(options.results) / options.scale / "runs" / options.row / f"seed{options.seed}"
    if path.exists():
        raise AnalysisError(
            f"{path}: is there already, and is not overwritten; move it away, or choose another "
            "--scale or --seed"
        )
    return path


def _read(options: argparse.Namespace, mapping: Mapping) -> Readings:
    try:
        if options.format == "tensorboard":
            return read_event_files(options.source, options.incomplete_end)
        if options.format == "wandb":
            return read_wandb_run(options.source, mapping, options.incomplete_end)
        return read_csv_export(options.source, mapping, options.step_column)
    except ModuleNotFoundError as error:
        raise AnalysisError(f"{options.source}: {error}; {EXTRA}") from error


def _origin(
    command: str, files: list[dict[str, Any]], mapping: dict[str, Any], account: Account
) -> dict[str, Any]:
    """Where the run comes from: the log's files, the mapping, and what became of each metric."""
    return {
        "command": command,
        "imported_from": files,
        "mapping": mapping,
        "account": {
            "filled": account.filled,
            "absent": account.absent,
            "unmapped": account.unmapped,
            "not_finite": dict(account.not_finite),
            "replaced": dict(account.replaced),
            "remarks": account.remarks,
        },
    }


def describe(path: Path, account: Account) -> str:
    """What the user should know of an import, one line a subject."""
    lines = [f"imported {path}"]
    for name, filled in account.filled.items():
        factor = "" if filled["factor"] == 1 else f" times {filled['factor']:g}"
        note = f" ({filled['note']})" if "note" in filled else ""
        lines.append(f"  {name}: {filled['metric']}{factor}, {filled['values']} values{note}")
    lines += [f"  accuracy of {name}: {metric}" for name, metric in account.benchmarks.items()]
    if not account.benchmarks:
        lines.append("  no accuracies: figures of accuracy and tables will not show this run")
    if account.absent:
        lines.append(f"null, not logged under a mapped name: {', '.join(account.absent)}")
    if account.unmapped:
        lines.append(f"logged and not imported, no mapping names them: {', '.join(account.unmapped)}")
    lines += [
        f"{name}: {count} values are NaN or infinite, null in the table"
        for name, count in account.not_finite.items()
    ]
    lines += [f"{name}: {count} values gave way to a later one" for name, count in account.replaced.items()]
    return "\n".join([*lines, *account.remarks])


def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    path, account = import_run(options, shlex.join(["python", "-m", "analysis.importers", *words]))
    print(describe(path, account))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.importers",
        description="Make a run directory from a log that another program wrote.",
    )
    formats = parser.add_subparsers(dest="format", required=True)
    helps = {
        "tensorboard": "a run's folder of event files, or one file",
        "wandb": "the folder of an offline run, or its .wandb file",
        "csv": "a file with one line a step and one column a metric",
    }
    for name, text in helps.items():
        command = formats.add_parser(name, help=text)
        command.add_argument("source", type=Path, help=text)
        command.add_argument("--mapping", required=True, help="openrlhf, verl, slime, sao or a YAML file")
        command.add_argument("--row", required=True, help="row whose method the run follows, e.g. sao")
        command.add_argument("--scale", required=True, help="your name for model and data, e.g. my_30b")
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--label", help="name in legends and tables (default: row's title and scale)")
        command.add_argument(
            "--results", type=Path, default=Path("results"), help="folder of results (default: results)"
        )
        command.add_argument(
            "--first-update",
            type=int,
            help="the logger's number of the first policy update (default: the mapping's)",
        )
        command.add_argument(
            "--duplicates",
            choices=["refuse", "last"],
            default="refuse",
            help="what to do where a step was logged twice with different values (default: refuse)",
        )
        if name == "csv":
            command.add_argument("--step-column", help="column that counts steps")
        else:
            command.add_argument(
                "--incomplete-end", action="store_true", help="accept a file that was cut off"
            )
    return parser


if __name__ == "__main__":
    sys.exit(run_command(main))
