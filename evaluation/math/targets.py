"""What the workflow's target `math` evaluates, and what each evaluation starts from. Imports no torch.

results/<scale>/evaluations/<row>/seed<k>/step<n>/<benchmark>/seal.json
"""

import shlex
from collections.abc import Collection, Iterable, Mapping

from evaluation.math.protocol import BENCHMARKS
from sao.config import Scale
from sao.grid import alternatives

BASE_ROWS = {"base_python": "initial_policy", "sft_python": "policy"}
"""Rows without training by the folder of their policy in the warm start; each also without the tool."""


def with_python(row: str) -> str:
    """The row that samples the same policy with the tool."""
    return row.replace("_no_python", "_python")


def untrained_rows() -> list[str]:
    """Rows of Table 1 that are not trained by reinforcement learning, with and without the tool."""
    return [form for row in BASE_ROWS for form in (row, row.replace("_python", "_no_python"))]


def policy_seal(scale: Scale, root: str, row: str, seed: int | str) -> str:
    """Seal of the run or of the warm start that made a row's policy; `root` is results/<scale>."""
    if with_python(row) in BASE_ROWS:
        task = scale.tasks.reasoning
        return f"{root}/prepare/{task.name if task else 'none'}/warm_start/seal.json"
    return f"{root}/runs/{row}/seed{seed}/seal.json"


def policy_pattern(rows: Iterable[str], served: bool) -> str:
    """Regular expression of the rows that can be evaluated: at an endpoint (`served`), models of any name."""
    return r"[A-Za-z0-9][A-Za-z0-9_.-]*" if served else alternatives([*rows, *untrained_rows()])


def endpoint_options(switches: Mapping[str, object], row: str, rows: Collection[str]) -> str:
    """Runner's options for the workflow's switches `endpoint` and `model`, quoted for a shell.

    A model that is no row of the scale is a reference model, which is asked in chat messages.
    """
    if "endpoint" not in switches:
        return ""
    words = ["--endpoint", str(switches["endpoint"])]
    words += ["--model", str(switches["model"])] if "model" in switches else []
    words += [] if row in {*rows, *untrained_rows()} else ["--chat"]
    return shlex.join(words)


def evaluation_seals(scale: Scale, root: str, trained: Iterable[str], seeds: Iterable[int]) -> list[str]:
    """Seals of the scale's benchmarks for the rows without training and the last step of trained ones.

    Empty at a scale whose task has no text, and so no benchmarks.
    """
    task = scale.tasks.reasoning
    if task is None or task.environment != "python_math":
        return []
    last = scale.evaluation.steps[-1]
    places = [f"{row}/seed0/step0" for row in untrained_rows()]
    places += [f"{row}/seed{seed}/step{last}" for row in trained for seed in seeds]
    benchmarks = [name for name in BENCHMARKS if name in task.benchmarks]
    return [f"{root}/evaluations/{place}/{name}/seal.json" for place in places for name in benchmarks]
