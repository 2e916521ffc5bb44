"""Run directories as TensorBoard event files or as runs of a local Trackio project.

    python -m analysis.exporters tensorboard results/cpu/runs/sao/seed0 --out tensorboard/sao
    python -m analysis.exporters trackio results/cpu/runs/sao/seed0 --out trackio --project sao

Names are `sao/<column>` at the number of the update and `accuracy/<benchmark>` at the number of updates done;
`python -m analysis.importers tensorboard FOLDER --mapping sao` reads them back.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from analysis.command import run_command
from analysis.load import AnalysisError
from analysis.mapping import importable_columns
from sao.runlog import RunError, RunRecord, read_run

EXTRAS = {
    "tensorboard": "install the extra that writes it: pip install '.[importers]'",
    "trackio": "install it in an environment of its own: pip install '.[trackio]' without constraints.txt",
}


def export_tensorboard(run: RunRecord, out: Path) -> int:
    """Writes one event file into the new folder `out`; returns the number of values.

    Critic-only steps keep their negative numbers. Raises AnalysisError where `out` holds files already.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    _refuse_filled(out)
    writer = EventFileWriter(str(out))
    count = 0
    for step, values in numbers(run):
        summary = Summary(
            value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        )
        writer.add_event(Event(step=step, summary=summary))
        count += len(values)
    writer.close()
    return count


def export_trackio(run: RunRecord, out: Path, project: str) -> int:
    """Logs the run to the local Trackio project `project` in folder `out`; returns the number of values.

    Raises AnalysisError where the project has a run of that name already.
    """
    name = _run_name(run)
    os.environ["TRACKIO_DIR"] = str(out.resolve())  # read when trackio is imported
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    if SQLiteStorage.get_project_db_path(project).parent != out.resolve():
        raise AnalysisError(f"--out {out}: trackio was imported with another folder; export in a new process")
    out.mkdir(parents=True, exist_ok=True)
    if name in SQLiteStorage.get_runs(project):
        raise AnalysisError(f"--project {project}: has a run {name} already; choose another project")
    config = {"run": str(run.path)}
    # Without its own look at processor and GPU, which would be those of this export.
    trackio.init(
        project=project, name=name, config=config, embed=False, auto_log_gpu=False, auto_log_cpu=False
    )
    count = 0
    for step, values in numbers(run):
        trackio.log(dict(values), step=step)
        count += len(values)
    trackio.finish()
    return count


def numbers(run: RunRecord) -> Iterator[tuple[int, dict[str, float]]]:
    """(step, values by name) of a run's metrics, then of its held-out accuracies; nulls are left out."""
    for record in run.metrics.to_dict("records"):
        values = {
            f"sao/{name}": float(record[name]) for name in importable_columns() if pd.notna(record[name])
        }
        yield int(record["step"]), values
    for benchmark, series in _accuracies(run).items():
        for step, accuracy in zip(series.index.astype(int), series, strict=True):
            yield int(step), {f"accuracy/{benchmark}": float(accuracy)}


def _accuracies(run: RunRecord) -> dict[str, pd.Series]:
    """Held-out accuracy by step, for each benchmark."""
    if run.accuracies is not None:
        table = run.accuracies
        return {str(name): lines.set_index("step")["accuracy"] for name, lines in table.groupby("benchmark")}
    table = run.evaluations.astype({"correct": float})
    by_problem = table.groupby(["benchmark", "step", "problem_id"])["correct"].mean()
    means = by_problem.groupby(["benchmark", "step"]).mean()
    return {str(name): means[name] for name in means.index.unique("benchmark")}


def _run_name(run: RunRecord) -> str:
    return f"{run.scale}/{run.row}/seed{run.seed}"


def _refuse_filled(out: Path) -> None:
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise AnalysisError(f"--out {out}: is there already, and is not written into; choose a new folder")


def _read(path: Path) -> RunRecord:
    try:
        run = read_run(path)
    except RunError as error:
        raise AnalysisError(str(error)) from error
    if run.metrics.empty:
        raise AnalysisError(
            f"{path}: holds no metrics; name a run directory, e.g. results/cpu/runs/sao/seed0"
        )
    return run


def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    run = _read(options.run)
    try:
        if options.format == "tensorboard":
            count = export_tensorboard(run, options.out)
        else:
            count = export_trackio(run, options.out, options.project)
    except ModuleNotFoundError as error:
        raise AnalysisError(f"{error}; {EXTRAS[options.format]}") from error
    print(f"exported {count} values of {options.run} to {options.out}; histograms were left out")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.exporters", description="Write a run for another program to show."
    )
    formats = parser.add_subparsers(dest="format", required=True)
    for name, text in {"tensorboard": "event files", "trackio": "a local Trackio project"}.items():
        command = formats.add_parser(name, help=text)
        command.add_argument("run", type=Path, help="run directory, e.g. results/cpu/runs/sao/seed0")
        command.add_argument("--out", type=Path, required=True, help="folder to write")
        if name == "trackio":
            command.add_argument("--project", default="sao", help="name of the project (default: sao)")
    return parser


if __name__ == "__main__":
    sys.exit(run_command(main))
