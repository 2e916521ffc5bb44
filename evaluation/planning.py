"""The whole plan of a scale: training, evaluations, and what this machine lacks for them. Starts nothing.

python -m evaluation.planning --scale paper_math
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

import yaml

from evaluation.data_files import DataError, read_pins
from evaluation.math.protocol import BENCHMARKS
from evaluation.math.store import StoreError
from evaluation.math.targets import scale_benchmarks, with_evaluations
from evaluation.swe.contamination import require_checked
from evaluation.swe.costs import IMAGES_GB, cost_lines
from evaluation.swe.machine import DockerError, docker_version
from evaluation.swe.targets import evaluation_seals
from evaluation.swe.tasks import TaskError
from evaluation.training_data import SETS, fetch_command, fetched_file, fetched_rows
from evaluation.writing.judge import URL_VARIABLE
from sao.cluster_plan import disk_left
from sao.config import Scale, load_scale
from sao.config_tasks import DataTask, JudgedStyles, Scaffolded, SWETask
from sao.costs import local_disk_left, plan_table
from sao.grid import Grid, GridError, open_grid
from sao.jobs import evaluation_request
from sao.preflight import Finding, findings

DOCKER_FOLDER = Path("/var/lib/docker")


def evaluation_lines(grid: Grid, scale: Scale) -> list[str]:
    """Evaluations left: samples, the most tokens of them, and GPU-hours where throughput was measured."""
    left = [seal for seals in grid.evaluations.values() for seal in seals if not Path(seal).exists()]
    if not left:
        return []
    samples = sum(BENCHMARKS[Path(seal).parent.name].samples for seal in left)
    task = scale.tasks.reasoning
    most = task.max_tokens if task is not None and task.environment in ("python_math", "math") else 0
    text = f"evaluations left: {len(left)} jobs, {samples:,} samples of at most {most:,} tokens"
    job = scale.job
    if job is None or job.engine_tokens_per_second is None or job.tokens_per_trajectory is None:
        return [
            f"{text}; GPU-hours need job.tokens_per_trajectory and job.engine_tokens_per_second, measured"
        ]
    gpu_seconds = samples * job.tokens_per_trajectory / job.engine_tokens_per_second
    return [
        f"{text}; {gpu_seconds / 3600:,.0f} GPU-hours on engines of {evaluation_request(scale).gpus} GPUs"
    ]


def data_findings(scale: Scale, results: str, sets: Path = SETS) -> list[Finding]:
    """Whether the sets that the scale's tasks and fine-tuning draw from were fetched."""
    names = [task.data for _, task in scale.tasks if isinstance(task, DataTask)]
    names += [scale.sft.data] if scale.sft else []
    known = read_pins(sets)
    found = []
    for name in names:
        file = fetched_file(name, results)
        if name not in known:
            found.append(Finding(f"data {name}", f"{sets.name} has no such set", "add it there"))
        elif file.is_file():
            found.append(_fetched_finding(name, known[name]["loader"], results))
        else:
            mend = f"fetch it: {fetch_command(name, results)}"
            found.append(Finding(f"data {name}", f"{known[name]['hub']} is not there as {file}", mend))
    return found


def _fetched_finding(name: str, loader: str, results: str) -> Finding:
    """Whether a set's file is whole and holds the recorded rows; of `loader` swe, whether it was compared.

    That is, with SWE-Bench Verified.
    """
    try:
        if loader == "swe":
            require_checked(fetched_file(name, results))
        rows = None if loader == "swe" else fetched_rows(name, results)
    except (DataError, TaskError) as error:
        said, _, mend = str(error).rpartition("; ")
        return Finding(f"data {name}", said, mend)
    count = "" if rows is None else f", {len(rows):,} rows"
    return Finding(f"data {name}", f"{fetched_file(name, results)}{count}")


def sandbox_finding() -> Finding:
    """Whether bubblewrap is here, in which the code runs that models write for mathematics."""
    place = shutil.which("bwrap")
    mend = "" if place else "install bubblewrap on every node that trains or evaluates (docs/sandbox.md)"
    return Finding("sandbox", place or "bubblewrap (bwrap) is not installed", mend)


def judge_finding(model: str) -> Finding:
    """Whether an endpoint is named for the judge of free texts; it is not asked."""
    url = os.environ.get(URL_VARIABLE)
    mend = "" if url else f"set {URL_VARIABLE} to the endpoint that serves it (docs/writing.md)"
    return Finding(f"judge {model}", url or "no endpoint is named", mend)


def task_findings(scale: Scale) -> list[Finding]:
    """What the scale's tasks need beside data: sandbox, judge, Docker."""
    tasks = [task for _, task in scale.tasks if task is not None]
    found = [sandbox_finding()] if any(task.environment in ("python_math", "math") for task in tasks) else []
    found += [judge_finding(task.judge) for task in tasks if isinstance(task, JudgedStyles)]
    scaffolded = [task for task in tasks if isinstance(task, Scaffolded)]
    with_docker = any("docker" in (task.workspace, task.grading) for task in scaffolded)
    return found + ([docker_finding()] if with_docker else [])


def docker_finding() -> Finding:
    """Whether Docker runs here, in which software engineering tasks are worked on and graded."""
    try:
        return Finding("Docker", docker_version())
    except FileNotFoundError:
        return Finding("Docker", "is not installed", "install it, or use Apptainer or a remote agent server")
    except DockerError as error:
        return Finding("Docker", str(error), "start the daemon, and let this user use it (group docker)")


def images_finding(results: Path, docker: Path = DOCKER_FOLDER) -> Finding:
    """Free disk for the images of SWE-Bench, where Docker keeps them, or without Docker in the results."""
    place = docker if docker.is_dir() else results
    there = next(folder for folder in (place, *place.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(there).free / 1e9
    mend = "free disk there, or move Docker's data-root" if free < IMAGES_GB else ""
    return Finding("images", f"{free:,.0f} GB free in {place}, {IMAGES_GB} GB needed for SWE-Bench", mend)


def preflight_lines(grid: Grid, scale: Scale) -> list[str]:
    """What was looked for on this machine, one line each, the missing ones last."""
    disk = disk_left(grid) if scale.backend == "openrlhf" else local_disk_left(grid)
    found = findings(scale, Path(grid.results), disk)
    found += data_findings(scale, grid.results) + task_findings(scale)
    if isinstance(scale.tasks.coding, SWETask):
        found.append(images_finding(Path(grid.results)))
    missing = sum(finding.missing for finding in found)
    lines = [f"preflight: {missing} of {len(found)} missing on this machine"]
    return lines + [f"  {finding}" for finding in sorted(found, key=lambda finding: finding.missing)]


def plan_text(grid: Grid) -> str:
    """The plan of a grid that trains."""
    scale = load_scale(grid.scale)
    lines = [plan_table(grid)]
    if scale_benchmarks(scale):
        lines += evaluation_lines(with_evaluations(grid), scale)
    lines += cost_lines(scale, evaluation_seals(scale, grid.root, grid.paper_rows(), grid.seeds))
    return "\n".join([*lines, *preflight_lines(grid, scale)])


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns 0 whatever is missing, or 2 for a user's mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.planning", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--results", default="results")
    parser.add_argument("--seeds", help="a count (5: seeds 0 to 4) or a list (0,3,4); default: the scale's")
    options = vars(parser.parse_args(arguments))
    try:
        print(plan_text(open_grid({name: value for name, value in options.items() if value is not None})))
    except GridError as error:
        print(str(error).replace("--config ", "--"), file=sys.stderr)
        return 2
    except yaml.YAMLError as error:
        print(f"{SETS}: {error}", file=sys.stderr)
        return 2
    except StoreError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
