"""Commands on run directories: archive a row, list runs that differ from the grid, publish sealed runs."""

import argparse
import sys
from collections.abc import Collection
from pathlib import Path

from sao.config import ConfigError, load_row, load_scale
from sao.runlog_files import RunError, compressed, is_locked, write_atomic, writing
from sao.runlog_reader import grid_refusal, read_run, read_spec, run_paths

PUBLISHED_AS_THEY_ARE = ("spec.json", "provenance.json", "seal.json")
PUBLISHED_COMPRESSED = ("metrics.jsonl", "evaluations.jsonl")
# Samples to read; one seed a row keeps the logs small.
PUBLISHED_OF_FIRST_SEED = ("trajectories.jsonl.gz", "training_trajectories.jsonl.gz")


def archive(results: Path, scale: str, row: str, seed: int | None = None) -> Path:
    """Moves a row's runs, or one seed's, to results/<scale>/archive/<row>-<n>, which it returns.

    Deletes nothing.  Raises RunError where there is nothing to move or a process is at work there.
    """
    source = results / scale / "runs" / row
    runs = [source / f"seed{seed}"] if seed is not None else run_paths(results / scale, row)
    if not any(run.is_dir() for run in runs):
        where = source if seed is None else runs[0]
        raise RunError(
            f"{where}: there is no run to archive; look at the names in {results / scale / 'runs'}"
        )
    for run in runs:
        if is_locked(run / ".lock"):
            raise RunError(f"{run}: a process is working on this run; stop it first")
    archives = results / scale / "archive"
    number = 1
    while (archives / f"{row}-{number}").exists():
        number += 1
    target = archives / f"{row}-{number}"
    with writing(target):
        if seed is None:
            archives.mkdir(parents=True, exist_ok=True)
            source.rename(target)
        else:
            target.mkdir(parents=True)
            runs[0].rename(target / runs[0].name)
    return target


def refusals(results: Path, scale: str, row: str = "*") -> list[str]:
    """One message for each run whose settings differ from the grid's or whose spec is damaged."""
    messages = []
    for path in run_paths(results / scale, row):
        try:
            reason = grid_refusal(path, read_spec(path)) if (path / "spec.json").exists() else None
        except RunError as error:
            reason = str(error)
        if reason:
            messages.append(reason)
    return messages


def publish(
    results: Path, scale: str, row: str = "*", schedules: Collection[str] = ()
) -> tuple[list[Path], list[str]]:
    """Copies sealed runs and the warm starts' evaluations to results/logged/<scale>, tables as .jsonl.gz.

    The first seed of each row brings its sample trajectories along, that of the rows in `schedules` its
    schedule too.

    Returns the folders written, and a line for each run left out because it is not finished.  The same runs
    give the same bytes.  Raises RunError where a sealed run was changed.
    """
    source, target = results / scale, results / "logged" / scale
    written, left_out = [], []
    for path in run_paths(source, row):
        record = read_run(path)
        if record.status != "finished":
            left_out.append(f"{path}: left out: {record.status}, {record.status_detail}")
            continue
        written.append(_copy(path, target / path.relative_to(source)))
        if record.seed == load_scale(scale).seeds[0]:
            schedule = ["schedule.jsonl.gz"] if record.row in schedules else []
            for name in [*PUBLISHED_OF_FIRST_SEED, *schedule]:
                if (path / name).exists():
                    write_atomic(written[-1] / name, (path / name).read_bytes())
    for path in sorted(source.glob("prepare/*/warm_start")):
        if (path / "seal.json").exists():
            written.append(_copy(path, target / path.relative_to(source)))
    return written, left_out


def _copy(source: Path, target: Path) -> Path:
    with writing(target):
        target.mkdir(parents=True, exist_ok=True)
    for name in PUBLISHED_COMPRESSED:
        if (source / name).exists():
            write_atomic(target / f"{name}.gz", compressed((source / name).read_bytes()))
    for name in PUBLISHED_AS_THEY_ARE:
        if (source / name).exists():
            write_atomic(target / name, (source / name).read_bytes())
    return target


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns 0, 1 where `check` finds runs that differ, 2 for a user's mistake."""
    options = _parser().parse_args(arguments)
    results = Path(options.results)
    try:
        load_scale(options.scale)
        if options.row != "*" and options.command != "archive":
            load_row(options.row)
        if options.command == "archive":
            print(f"moved to {archive(results, options.scale, options.row, options.seed)}")
        elif options.command == "check":
            messages = refusals(results, options.scale, options.row)
            print("\n".join(messages) or f"all runs of {results / options.scale} have the grid's settings")
            return 1 if messages else 0
        else:
            written, left_out = publish(results, options.scale, options.row, options.schedules)
            print(
                "\n".join(
                    [*left_out, f"published {len(written)} folders to {results / 'logged' / options.scale}"]
                )
            )
    except (ConfigError, RunError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sao.runlog", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    helps = {
        "archive": "move a row's runs aside so that it can be trained anew; deletes nothing",
        "check": "list the runs whose settings differ from the grid's; exit code 1 if there are any",
        "publish": "copy sealed runs, compressed, to results/logged",
    }
    for name, text in helps.items():
        command = commands.add_parser(name, help=text)
        if name == "archive":
            command.add_argument("row")
            command.add_argument("--seed", type=int, help="one seed alone (default: all)")
        else:
            command.add_argument("--row", default="*", help="one row alone (default: all)")
        if name == "publish":
            text = "rows whose first seed brings its schedule along, for Figure 2"
            command.add_argument("--schedules", nargs="*", default=[], metavar="ROW", help=text)
        command.add_argument("--scale", default="cpu")
        command.add_argument("--results", default="results", help="folder of results (default: results)")
    return parser
