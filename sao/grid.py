"""What the workflow plans: the runs of a scale, their preparation, refusals and artifacts. Imports no torch.

The Snakefile holds rules alone; what it must know before a job starts is worked out here, at parse time.

    python -m sao.grid plan --scale cpu     runs left, with estimated CPU time, memory and disk
    python -m sao.grid check --scale cpu    rows refused because of older data; exit code 1 if there are any
"""

import argparse
import hashlib
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import yaml

from sao import config
from sao.cluster_costs import attempts_needed
from sao.config_files import closest
from sao.config_scales import ScaleSettings
from sao.jobs import Request, evaluation_request, preparation_request, training_request
from sao.runlog import RunError, refusal
from sao.switches import GridError, Switches

ARTIFACTS_FILE = Path(__file__).parents[1] / "experiments" / "artifacts.yaml"
REFERENCE_ROW = "sao"  # every row is printed with its paired difference to this one

__all__ = ["Artifact", "Grid", "GridError", "Run", "alternatives", "open_grid", "read_artifacts"]


@dataclass(frozen=True)
class Run:
    """One run of the grid, or one logged run."""

    row: str
    seed: int
    folder: str  # run directory
    settings: config.RunConfig | None = None  # None for logged runs, which are taken as they are
    preparation: tuple[str, ...] = ()  # seals of the preparation steps that training starts from

    @property
    def seal(self) -> str:
        return f"{self.folder}/seal.json"

    @cached_property
    def digest(self) -> str:
        return self.settings.digest() if self.settings else ""

    @property
    def finished(self) -> bool:
        return Path(self.seal).exists()

    @property
    def begun(self) -> bool:
        return _begun(self.seal)


@dataclass(frozen=True)
class Artifact:
    """One table or figure of experiments/artifacts.yaml.

    `evaluated`: at scales with benchmarks it is made from their evaluations.
    """

    name: str
    kind: Literal["table", "figure"]
    rows: tuple[str, ...]
    evaluated: bool = False


@dataclass(frozen=True)
class Grid:
    """Runs, preparation and artifacts, as the Snakefile's rules ask for them."""

    scale: str
    results: str  # folder of all scales
    root: str  # folder that the workflow writes to
    source: str  # folder that tables and figures read runs from
    runs: tuple[Run, ...]
    beyond: frozenset[str] = frozenset()  # rows that the paper lacks
    warm_starts: tuple[str, ...] = ()  # seals of the warm starts that tables print as a row of their own
    preparation_digests: Mapping[str, str] = field(default_factory=dict)  # by task
    evaluations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # seals by row, of benchmarks
    trains: bool = True  # False: reads logged runs
    openrlhf_python: str | None = None  # interpreter with OpenRLHF; None: that of the rule's environment
    beside: tuple[str, ...] = ()  # folders of imported runs that tables, figures and report show too

    @cached_property
    def rows(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.row for run in self.runs))

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({run.seed for run in self.runs}))

    @cached_property
    def refused(self) -> dict[str, str]:
        """Message by row, for rows whose run directories hold data of another config."""
        messages: dict[str, str] = {}
        for run in self.runs:
            if run.row not in messages and run.settings and (reason := _refusal(run, run.settings)):
                messages[run.row] = reason
        return messages

    @cached_property
    def artifacts(self) -> dict[str, Artifact]:
        """Tables and figures with at least one row in this grid, by name."""
        return {
            artifact.name: artifact for artifact in read_artifacts() if set(artifact.rows) & set(self.rows)
        }

    def paper_rows(self) -> list[str]:
        return [row for row in self.rows if row not in self.beyond]

    def beyond_rows(self) -> list[str]:
        return [row for row in self.rows if row in self.beyond]

    def run(self, row: str, seed: int | str) -> Run:
        return next(run for run in self.runs if run.row == row and run.seed == int(seed))

    def seals(self, rows: Iterable[str]) -> list[str]:
        """Seals of the rows' runs; refused rows are left out, so that the others go on."""
        wanted = set(rows) - self.refused.keys()
        return [run.seal for run in self.runs if run.row in wanted]

    def refusal_marker(self, rows: Iterable[str]) -> list[str]:
        """A file that no job can make, where one of the rows is refused: the workflow then ends as failed."""
        return [f"{self.root}/no_row_is_refused"] if set(rows) & self.refused.keys() else []

    def preparation(self, row: str, seed: str) -> tuple[str, ...]:
        """Seals that training this run starts from; a finished run needs none, so nothing trains it again."""
        run = self.run(row, seed)
        return () if run.finished else run.preparation

    def training_command(self, row: str) -> str:
        """What a job starts `-m sao.train` with: an interpreter, behind Ray's start for several nodes."""
        settings = next(run.settings for run in self.runs if run.row == row)
        return self._command(settings, self.training(row))

    def preparing_command(self, step: str) -> str:
        """The same for a preparation step; models that are built here are prepared by the local engine."""
        scale = config.load_scale(self.scale) if self.trains else None
        released = scale is not None and scale.model.path is not None
        ray = step.startswith("values")  # fine-tuning starts its own processes on the job's nodes
        return self._command(scale if released else None, self.preparing(step) if ray else Request())

    def _command(self, settings: ScaleSettings | None, request: Request) -> str:
        if settings is None or settings.backend != "openrlhf":
            return "python -u"
        python = shlex.quote(self.openrlhf_python or "python")
        if request.nodes == 1:
            return f"{python} -u"
        nodes = f"--nodes {request.nodes} --gpus {request.gpus}"
        return f"{python} -u -m sao.openrlhf.nodes {nodes} -- {python} -u"

    def environment(self) -> str:
        """Conda file of the jobs that train."""
        known = self.trains and config.load_scale(self.scale).backend == "openrlhf"
        return "experiments/environments/openrlhf.yaml" if known else "environment.yml"

    def training(self, row: str) -> Request:
        """What the job of each of the row's runs asks for."""
        settings = next(run.settings for run in self.runs if run.row == row)
        return training_request(settings) if settings else Request()

    def preparing(self, step: str) -> Request:
        """What the job of a preparation step asks for."""
        return preparation_request(config.load_scale(self.scale), step) if self.trains else Request()

    def retries(self) -> int:
        """Attempts of a run beyond its first: one, and those that jobs shorter than a run need."""
        return max((attempts_needed(run.settings) for run in self.runs if run.settings), default=1)

    def evaluating(self) -> Request:
        """What the job of an evaluation on a benchmark asks for."""
        known = self.trains or self.scale in config.scale_names()
        return (
            evaluation_request(config.load_scale(self.scale)) if known else Request(cores=2, memory_mb=3000)
        )

    def values_inputs(self, task: str) -> list[str]:
        """Seals that pretraining a task's values starts from; none for a model released as it is."""
        seal = f"{self.root}/prepare/{task}/warm_start/seal.json"
        return [seal] if any(seal in run.preparation for run in self.runs) else []

    def names(self, kind: str) -> list[str]:
        return [artifact.name for artifact in self.artifacts.values() if artifact.kind == kind]

    def wanted(self, kind: str, beyond: bool = False) -> list[str]:
        """Names of the paper's tables or figures, or of those with rows beyond it; of logged runs all."""
        return [
            name
            for name in self.names(kind)
            if not self.trains or beyond == bool(set(self.artifacts[name].rows) & self.beyond)
        ]

    def row_inputs(self, row: str) -> list[str]:
        """Seals for the page of one row; for a refused row the marker alone, so that nothing runs."""
        rows = self.page_rows(row)
        evaluated = self.evaluated(rows) if row in self.evaluated_rows() else []
        return self.refusal_marker([row]) or self.seals(rows) + evaluated

    def page_rows(self, row: str) -> set[str]:
        """The row, and where a table compares it with SAO, SAO."""
        compared = any(row in self.artifacts[name].rows for name in self.names("table"))
        return {row, REFERENCE_ROW} if compared else {row}

    def artifact_inputs(self, name: str) -> list[str]:
        rows = self.artifacts[name].rows
        evaluated = self.evaluated(rows) if self.artifacts[name].evaluated else []
        return self.seals(rows) + (list(self.warm_starts) if "warm_start" in rows else []) + evaluated

    def evaluated(self, rows: Iterable[str]) -> list[str]:
        """Seals of the rows' evaluations on benchmarks."""
        wanted = set(rows)
        return [seal for row, seals in self.evaluations.items() if row in wanted for seal in seals]

    def evaluated_tables(self) -> list[str]:
        """Names of the tables that are made from evaluations on benchmarks; none where there are none."""
        return [name for name in self.names("table") if self.evaluations and self.artifacts[name].evaluated]

    def evaluated_rows(self) -> list[str]:
        """The grid's rows in those tables."""
        shown = {row for name in self.evaluated_tables() for row in self.artifacts[name].rows}
        return [row for row in self.rows if row in shown]

    def claim_inputs(self) -> list[str]:
        """Seals of the paper's rows, and of those beyond that are finished already."""
        beyond = [seal for seal in self.seals(self.beyond_rows()) if Path(seal).exists()]
        return self.seals(self.paper_rows()) + beyond

    def report_inputs(self) -> list[str]:
        """What the claims stand on, the warm starts, and the evaluations that are finished already."""
        evaluations = [seal for seal in self.evaluated(self.evaluations) if Path(seal).exists()]
        return [*self.claim_inputs(), *self.warm_starts, *evaluations]

    @property
    def beside_options(self) -> str:
        """The folders beside as options of the analysis commands; empty without any."""
        return " ".join(f"--beside {shlex.quote(folder)}" for folder in self.beside)

    def state(self, rows: Iterable[str]) -> str:
        """Digest of configs and refusals of some rows; a change of either builds what shows them again."""
        wanted = set(rows)
        parts = [f"{run.row} {run.seed} {run.digest}" for run in self.runs if run.row in wanted]
        parts += [f"refused {row}" for row in sorted(wanted & self.refused.keys())]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def unfinished(self, kind: str) -> list[str]:
        """Names of tables or figures that a begun run or evaluation without a seal keeps from being made."""
        begun = {run.row for run in self.runs if run.begun}
        names = self.wanted(kind) + (self.wanted(kind, beyond=True) if begun & self.beyond else [])
        evaluations_begun = any(map(_begun, self.evaluated(self.evaluations)))
        return [
            name
            for name in names
            if begun & set(self.artifacts[name].rows)
            or (evaluations_begun and name in self.evaluated_tables())
        ]

    def age_unfinished(self) -> None:
        """Date unfinished tables, figures and report before all runs, so that they are made again."""
        for kind in ("table", "figure"):
            names = self.unfinished(kind)
            for name in names + (["claims"] if kind == "table" and names else []):
                for path in Path(self.root, f"{kind}s").glob(f"{name}.*"):
                    os.utime(path, (0, 0))
        report = Path(self.root, "report.html")
        if self.unfinished("table") and report.exists():
            os.utime(report, (0, 0))

    def check_targets(self, arguments: Iterable[str]) -> None:
        """Raise GridError for a row, table or figure that this grid lacks: misspelt, or another scale's."""
        kinds = {"rows": ("row", list(self.rows)), "runs": ("row", list(self.rows))}
        others = ["claims", "claims_beyond", "comparisons", "published", "math_scores", "math_problems"]
        kinds |= {
            "tables": ("table", [*self.names("table"), *others]),
            "figures": ("figure", self.names("figure")),
        }
        for argument in arguments:
            if argument == "math" and not self.evaluations:
                raise GridError(
                    f"math: {self.source} has no mathematics benchmarks; add --config scale=cpu_math"
                )
            target = re.fullmatch(
                rf"(?P<root>[^=]+)/(?P<folder>{'|'.join(kinds)})/(?P<name>[^/.]+)[/.].*", argument
            )
            if target is None:
                continue
            if target["root"] != self.root and Path(target["root"]).parent == Path(self.results):
                scale = Path(target["root"]).name
                raise GridError(f"{argument}: is not of scale {self.scale}; add --config scale={scale}")
            kind, known = kinds[target["folder"]]
            if target["root"] == self.root and target["name"] not in known:
                hint = closest(target["name"], known)
                raise GridError(f"{argument}: scale {self.scale} has no {kind} {target['name']}{hint}")


def open_grid(given: Mapping[str, Any]) -> Grid:
    """Grid of the workflow's switches; raises GridError with a one-line message for a user's mistake."""
    switches = Switches.parse(given)
    try:
        grid = logged_grid(switches.runs, switches.results) if switches.runs else planned_grid(switches)
    except config.ConfigError as error:
        raise GridError(str(error)) from error
    return replace(grid, beside=switches.beside)


def planned_grid(switches: Switches) -> Grid:
    """Every row of the scale with every seed."""
    scale = config.load_scale(switches.scale)
    root = f"{switches.results}/{scale.name}"
    runs: list[Run] = []
    digests: dict[str, str] = {}
    for row in scale.rows():
        for seed in switches.seeds or scale.seeds:
            settings = config.resolve(row, scale.name, seed)
            task = settings.task.name
            if task not in digests:
                digests[task] = config.preparation_digest(scale.name, task)
            steps = tuple(f"{root}/prepare/{task}/{step}/seal.json" for step in settings.preparation_steps)
            runs.append(Run(row, seed, f"{root}/runs/{row}/seed{seed}", settings, steps))
    return Grid(
        scale=scale.name,
        results=switches.results,
        root=root,
        source=root,
        runs=tuple(runs),
        beyond=frozenset(row for row in scale.rows() if config.load_row(row).group == "beyond"),
        warm_starts=tuple(
            f"{root}/prepare/{task}/warm_start/seal.json"
            for task in dict.fromkeys(
                run.settings.task.name for run in runs if run.settings and run.row == REFERENCE_ROW
            )
            if scale.warm_start is not None
        ),
        preparation_digests=digests,
        openrlhf_python=switches.openrlhf_python,
    )


def logged_grid(folder: str, results: str) -> Grid:
    """Finished runs of a folder, which are only read; output goes to results/plots/<name of the folder>."""
    source = Path(folder)
    seals = sorted(source.glob("runs/*/seed*/seal.json"))
    if not seals:
        looked = f"{folder}/runs/<row>/seed<k>/seal.json"
        raise GridError(f"--config runs={folder}: holds no finished run (looked for {looked})")
    runs = [(seal.parents[1].name, int(seal.parent.name.removeprefix("seed")), seal.parent) for seal in seals]
    name = source.resolve().name
    return Grid(
        scale=name,
        results=results,
        root=f"{results}/plots/{name}",
        source=source.as_posix(),
        runs=tuple(Run(row, seed, path.as_posix()) for row, seed, path in runs),
        warm_starts=tuple(seal.as_posix() for seal in sorted(source.glob("prepare/*/warm_start/seal.json"))),
        trains=False,
    )


def read_artifacts(path: Path = ARTIFACTS_FILE) -> list[Artifact]:
    """Name, kind and rows of each table and figure; `analysis` reads and validates the rest of the file."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    artifacts = []
    for name, table in content["tables"].items():
        rows = tuple(entry["row"] for entry in table["rows"])
        artifacts.append(Artifact(name, "table", rows, table.get("evaluated", False)))
    for name, figure in content["figures"].items():
        ours = [panel for panel in figure["panels"] if panel["quantity"] != "published"]
        series = [entry["row"] for panel in ours for entry in panel["series"]]
        artifacts.append(Artifact(name, "figure", tuple(dict.fromkeys(series))))
    return artifacts


def alternatives(names: Iterable[object]) -> str:
    """Regular expression of a wildcard that takes these values and no others."""
    return "|".join(re.escape(str(name)) for name in names) or "(?!)"


def _begun(seal: str) -> bool:
    """Whether a run or an evaluation has a folder with its settings, and no seal yet."""
    return not Path(seal).exists() and Path(seal).with_name("spec.json").exists()


def _refusal(run: Run, settings: config.RunConfig) -> str | None:
    try:
        return refusal(Path(run.folder), settings)
    except RunError as error:
        return str(error)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns 0, 1 where `check` finds refused rows, 2 for a user's mistake."""
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m sao.grid", description=summary)
    parser.add_argument("command", choices=["plan", "check"])
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--results", default="results")
    parser.add_argument("--seeds", help="a count (5: seeds 0 to 4) or a list (0,3,4); default: the scale's")
    options = vars(parser.parse_args(arguments))
    command = options.pop("command")
    try:
        grid = open_grid({name: value for name, value in options.items() if value is not None})
    except GridError as error:
        print(str(error).replace("--config ", "--"), file=sys.stderr)
        return 2
    if command == "plan":
        from sao.costs import plan_table

        print(plan_table(grid))
        return 0
    print("\n".join(grid.refused.values()) or f"no row of scale {grid.scale} is refused")
    return 1 if grid.refused else 0


if __name__ == "__main__":
    sys.exit(main())
