"""A small copy of the project, in which the real Snakefile runs with stand-ins for training and analysis.

The stand-ins keep the run directory's rules (lock, spec, refusal, seal) through `sao.runlog`; they take a
moment, so that failures, kills and changed rows can be tried. test_smoke_grid.py runs the real commands.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
SMOKE = "experiments/scales/smoke.yaml"
# Tests over OpenRLHF run in its environment, which has no Snakemake.
SNAKEMAKE = [os.environ.get("SAO_WORKFLOW_PYTHON", sys.executable), "-m", "snakemake"]

TRAIN = """
import argparse, json, os, sys, time
from pathlib import Path
from sao import config
from sao.runlog import RunDirectory, RunError

parser = argparse.ArgumentParser()
for name in ("row", "scale", "seed", "results"):
    parser.add_argument("--" + name)
options = parser.parse_args()
settings = config.resolve(options.row, options.scale, int(options.seed))
path = Path(options.results, options.scale, "runs", options.row, "seed" + options.seed)
try:
    with RunDirectory.open(path, settings, "stand-in"):
        steps = path / "steps.txt"
        done = len(steps.read_text().splitlines()) if steps.exists() else 0
        for step in range(done, 4):
            if step == 2 and options.row == os.environ.get("FAILING_ROW"):
                sys.exit(f"{options.row}: broken on purpose")
            time.sleep(float(os.environ.get("STEP_SECONDS", "0")))
            with steps.open("a") as file:
                file.write(f"{step}\\n")
            print(f"{options.row} step {step}")
        (path / "seal.json").write_text(json.dumps({"digest": settings.digest()}))
except RunError as error:
    sys.exit(str(error))
"""

PREPARE = """
import argparse
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("step")
for name in ("task", "scale", "frozen", "results"):
    parser.add_argument("--" + name)
options = parser.parse_args()
step = "warm_start" if options.step == "warm-start" else f"values_{options.frozen}"
folder = Path(options.results, options.scale, "prepare", options.task, step)
folder.mkdir(parents=True, exist_ok=True)
(folder / "seal.json").write_text("{}")
"""

EVALUATE = """
import argparse, os, sys
from pathlib import Path

parser = argparse.ArgumentParser()
for name in ("row", "scale", "seed", "step", "benchmark", "results"):
    parser.add_argument("--" + name)
options = parser.parse_args()
place = f"seed{options.seed}/step{options.step}/{options.benchmark}"
folder = Path(options.results, options.scale, "evaluations", options.row, place)
folder.mkdir(parents=True, exist_ok=True)
(folder / "spec.json").write_text("{}")
if options.row == os.environ.get("FAILING_EVALUATION"):
    sys.exit(f"{options.row}: endpoint broken on purpose")
(folder / "seal.json").write_text("{}")
"""

SUMMARY = """
import argparse
from pathlib import Path

parser = argparse.ArgumentParser()
for name in ("evaluations", "out"):
    parser.add_argument("--" + name)
out = Path(parser.parse_args().out)
for name in ("math_scores.csv", "math_scores.md", "math_problems.csv"):
    (out / name).write_text("scores")
"""

# Writes the seals that it sees, as an artifact does that is made from finished runs and evaluations.
ANALYSIS = """
import argparse
from pathlib import Path

parser = argparse.ArgumentParser()
for name in ("runs", "out", "artifact", "row", "beside"):
    parser.add_argument("--" + name)
options = parser.parse_args()
patterns = ("runs/*/seed*/seal.json", "evaluations/*/seed*/step*/*/seal.json")
seals = sorted(path.as_posix() for pattern in patterns for path in Path(options.runs or "none").glob(pattern))
base = f"{options.out}/{options.artifact}" if options.artifact else options.out
for suffix in SUFFIXES:
    file = Path(base + suffix)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\\n".join(seals) + "\\n")
"""


class Project:
    """A copy with the rows given, at scale smoke: one seed, and no writing task unless asked for."""

    def __init__(
        self, folder: Path, rows: tuple[str, ...], standins: bool = True, writing: bool = False
    ) -> None:
        self.folder = folder
        for name in (
            "Snakefile",
            "environment.yml",
            "evaluation",
            "profiles",
            "docs/captions",
            "experiments/artifacts.yaml",
            "experiments/scales",
        ):
            self._copy(name)
        for row in rows:
            self._copy(f"experiments/rows/{row}.yaml")
        if not standins:
            for name in ("sao", "analysis", "results/published"):
                self._copy(name)
        else:
            for file in (ROOT / "sao").glob("*.py"):
                self._copy(f"sao/{file.name}")
            self.write("sao/train.py", TRAIN)
            self.write("sao/prepare.py", PREPARE)
            self.write("evaluation/math/runner.py", EVALUATE)
            self.write("evaluation/summary.py", SUMMARY)
            for module, suffixes in {
                "tables": (".csv", ".md", ".tex"),
                "figures": (".pdf", ".svg", ".png", ".csv"),
                "claims": (".csv", ".md", ".tex"),
                "comparisons": (".csv", ".md", ".tex"),
                "published": (".csv", ".md", ".tex"),
                "report": ("",),
                "row": ("",),
            }.items():
                self.write(f"analysis/{module}.py", ANALYSIS.replace("SUFFIXES", repr(suffixes)))
        if not writing:
            smoke = yaml.safe_load(self.path(SMOKE).read_text())
            smoke["tasks"]["writing"] = None
            self.write(SMOKE, yaml.safe_dump(smoke))

    def path(self, name: str) -> Path:
        return self.folder / name

    def write(self, name: str, text: str) -> None:
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_text(text)

    def _copy(self, name: str) -> None:
        source, target = ROOT / name, self.path(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Snakemake at scale smoke in a session of its own, so that signals reach it and its jobs alone."""
        command = [*SNAKEMAKE, *arguments, "--cores", "2"]
        if "--config" not in arguments:
            command += ["--config", "scale=smoke"]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": "", **environment},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def run(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """Exit code and output."""
        process = self.start(*arguments, **environment)
        try:
            output, _ = process.communicate(timeout=1800)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        return process.returncode, output

    def module(self, *arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", *arguments], cwd=self.folder, check=True, capture_output=True, text=True
        ).stdout

    def seals(self) -> set[str]:
        """Rows with a finished run."""
        return {path.parents[1].name for path in self.path("results/smoke/runs").glob("*/seed*/seal.json")}

    def steps(self, row: str) -> list[str]:
        file = self.path(f"results/smoke/runs/{row}/seed0/steps.txt")
        return file.read_text().split() if file.exists() else []


def wait_for(path: Path, seconds: float = 300) -> None:
    """Until a file is there and has a line; raises TimeoutError."""
    end = time.monotonic() + seconds
    while not (path.exists() and path.stat().st_size):
        if time.monotonic() > end:
            raise TimeoutError(f"{path} did not appear")
        time.sleep(0.05)


def job_counts(output: str) -> dict[str, int]:
    """Snakemake's table of job counts, the first one printed."""
    table = output.split("Job stats:", 1)[1].split("total", 1)[0]
    pairs = [line.split() for line in table.splitlines()[3:] if line.strip()]
    return {name: int(count) for name, count in pairs}
