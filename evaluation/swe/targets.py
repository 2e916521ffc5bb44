"""What the workflow evaluates on SWE-Bench, and with which options. No torch, no OpenHands.

results/<scale>/evaluations/<row>/seed<k>/step<n>/<benchmark>/ has predictions.jsonl once all tasks are
played, and seal.json once their patches are graded.
"""

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from evaluation.swe.protocol import BENCHMARKS
from sao.config import Scale

UNTRAINED = "base_swe"
ENVIRONMENT = Path(".venv-openhands/bin/python")  # where make openhands-environment puts it


def python_command(switches: Mapping[str, object]) -> str:
    """The interpreter of SWE-Bench's environment: the switch `openhands_python`, make's, or conda's."""
    if "openhands_python" in switches:
        return shlex.quote(str(switches["openhands_python"]))
    return str(ENVIRONMENT) if ENVIRONMENT.exists() else "python"


def playing_options(switches: Mapping[str, object]) -> str:
    """The runner's options, quoted for a shell: the switches `endpoint`, `model` and `swe`."""
    words = []
    for name in ("endpoint", "model"):
        words += [f"--{name}", str(switches[name])] if name in switches else []
    return shlex.join([*words, *shlex.split(str(switches.get("swe", "")))])


def grading_options(switches: Mapping[str, object]) -> str:
    """The grader's options, quoted for a shell: the switch `swe_grading`."""
    return shlex.join(shlex.split(str(switches.get("swe_grading", ""))))


def evaluation_seals(scale: Scale, root: str, rows: Iterable[str], seeds: Iterable[int]) -> list[str]:
    """Seals of the scale's evaluations: the released model, and trained rows at the last step.

    `root` is results/<scale>. At a scale without software engineering those that are there, finished or not.
    """
    if not (benchmarks := scale_benchmarks(scale)):
        specs = Path(root, "evaluations").glob("*/seed*/step*/*/spec.json")
        return sorted(f"{spec.parent}/seal.json" for spec in specs if spec.parent.name in BENCHMARKS)
    last = scale.evaluation.steps[-1]
    places = [f"{UNTRAINED}/seed0/step0"]
    places += [f"{row}/seed{seed}/step{last}" for row in rows if row != UNTRAINED for seed in seeds]
    return [f"{root}/evaluations/{place}/{name}/seal.json" for place in places for name in benchmarks]


def scale_benchmarks(scale: Scale) -> tuple[str, ...]:
    """The SWE-Bench benchmarks that a scale asks for."""
    asked = {name for _, task in scale.tasks if task for name in getattr(task, "benchmarks", None) or ()}
    return tuple(name for name in BENCHMARKS if name in asked)
