"""What the workflow evaluates on the mathematics benchmarks, and what each evaluation starts from. No torch.

results/<scale>/evaluations/<row>/seed<k>/step<n>/<benchmark>/seal.json
"""

import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from evaluation.data_files import read_pins
from evaluation.math.protocol import BENCHMARKS
from evaluation.training_data import SETS, fetched_file
from sao.config import Scale, load_scale, scale_names
from sao.config_tasks import DataTask
from sao.grid import Grid, alternatives
from sao.openrlhf.sft_flags import traces_file

BASE_ROWS = {"base_python": "initial_policy", "sft_python": "policy"}
"""Rows without training by the folder of their policy in the warm start; each also without the tool."""


def with_python(row: str) -> str:
    """The row that samples the same policy with the tool."""
    return row.replace("_no_python", "_python")


def untrained_rows(scale: Scale | None = None) -> list[str]:
    """Rows of Table 1 that are not trained by reinforcement learning, with and without the tool.

    At a scale whose released model is not fine-tuned there is none of the fine-tuned one.
    """
    tuned = scale is None or scale.warm_start is not None or scale.sft is not None
    rows = [row for row in BASE_ROWS if tuned or row != "sft_python"]
    return [form for row in rows for form in (row, row.replace("_python", "_no_python"))]


def served_by_vllm(scale: Scale) -> bool:
    """Whether an evaluation starts vLLM: released models are beyond the local engine."""
    return scale.model.path is not None


def evaluation_environment(grid: Grid, switches: Mapping[str, object]) -> str:
    """Conda file of the jobs that evaluate: OpenRLHF's where they start vLLM."""
    return "experiments/environments/openrlhf.yaml" if _starts_vllm(grid, switches) else "environment.yml"


def evaluation_python(grid: Grid, switches: Mapping[str, object]) -> str:
    """The interpreter of those jobs, quoted for a shell; `openrlhf_python` names the one with vLLM."""
    return shlex.quote(grid.openrlhf_python or "python") if _starts_vllm(grid, switches) else "python"


def _starts_vllm(grid: Grid, switches: Mapping[str, object]) -> bool:
    known = grid.trains or grid.scale in scale_names()
    return known and "endpoint" not in switches and served_by_vllm(load_scale(grid.scale))


def policy_seals(scale: Scale, root: str, row: str, seed: int | str) -> list[str]:
    """Seal of the run or of the warm start that made a row's policy; `root` is results/<scale>.

    Empty for the base rows of a released model, which nothing here makes.
    """
    if with_python(row) == "base_python" and scale.model.path is not None:
        return []
    if with_python(row) in BASE_ROWS:
        task = scale.tasks.reasoning
        return [f"{root}/prepare/{task.name if task else 'none'}/warm_start/seal.json"]
    return [f"{root}/runs/{row}/seed{seed}/seal.json"]


def policy_pattern(rows: Iterable[str], served: bool) -> str:
    """Regular expression of the rows that can be evaluated: at an endpoint (`served`), models of any name."""
    return r"[A-Za-z0-9][A-Za-z0-9_.-]*" if served else alternatives([*rows, *untrained_rows()])


def endpoint_options(switches: Mapping[str, object], row: str, rows: Collection[str]) -> str:
    """Runner's options for the workflow's switches `endpoint`, `model` and `benchmarks`, quoted for a shell.

    A model that is no row of the scale is a reference model, which is asked in chat messages.
    """
    words = ["--data-dir", str(switches["benchmarks"])] if "benchmarks" in switches else []
    if "endpoint" not in switches:
        return shlex.join(words)
    words += ["--endpoint", str(switches["endpoint"])]
    words += ["--model", str(switches["model"])] if "model" in switches else []
    words += [] if row in {*rows, *untrained_rows()} else ["--chat"]
    return shlex.join(words)


def traces_folder(scale: Scale, results: str) -> str:
    """Where the teacher's attempts lie that a scale's fine-tuning chooses from."""
    task = scale.tasks.reasoning
    return f"{results}/{scale.name}/prepare/{task.name if task else 'none'}/traces"


def data_inputs(grid: Grid, task_name: str) -> list[str]:
    """The fetched set of a task, where the workflow has to fetch it first; empty where it is there."""
    task = load_scale(grid.scale).task(task_name)
    return _to_fetch(task.data, grid.results) if isinstance(task, DataTask) else []


def values_inputs(grid: Grid, task: str, frozen: str) -> list[str]:
    """What value pretraining starts from; nothing once it is finished."""
    finished = Path(grid.root, "prepare", task, f"values_{frozen}", "seal.json").exists()
    return [] if finished else grid.values_inputs(task) + data_inputs(grid, task)


def traces_inputs(grid: Grid, task: str) -> list[str]:
    """What the teacher starts from, where it has to be fetched first; nothing once it is finished."""
    scale = load_scale(grid.scale)
    if scale.sft is None or Path(grid.root, "prepare", task, "traces", "seal.json").exists():
        return []
    return _to_fetch(scale.sft.data, grid.results)


def warm_start_inputs(grid: Grid, task: str) -> list[str]:
    """The traces that a scale fine-tunes on, where they are not there yet; nothing once it is finished."""
    scale = load_scale(grid.scale)
    if scale.sft is None or Path(grid.root, "prepare", task, "warm_start", "seal.json").exists():
        return []
    file = traces_file(scale.sft, grid.results)
    return [] if file.exists() else [str(file)]


def training_inputs(grid: Grid, row: str, seed: str) -> list[str]:
    """What a run starts from: its preparation and its data; a finished run needs none."""
    run = grid.run(row, seed)
    task = run.settings.task.name if run.settings else ""
    return [] if run.finished else [*grid.preparation(row, seed), *data_inputs(grid, task)]


def fetched_sets() -> list[str]:
    """Names of the sets that `evaluation.training_data` fetches."""
    return list(read_pins(SETS))


def _to_fetch(name: str, results: str) -> list[str]:
    file = fetched_file(name, results)
    return [str(file)] if name in fetched_sets() and not file.exists() else []


def fetching_options(switches: Mapping[str, object]) -> str:
    """Options of `evaluation.training_data`, quoted for a shell: the switches `data` and `benchmarks`."""
    folders = [("--data-dir", "data"), ("--benchmarks-dir", "benchmarks")]
    return shlex.join(
        word for option, name in folders if name in switches for word in (option, str(switches[name]))
    )


def teacher_options(switches: Mapping[str, object]) -> str:
    """Options of `evaluation.math.traces sample` for the switch `teacher`, quoted for a shell."""
    return shlex.join(["--endpoint", str(switches["teacher"])]) if "teacher" in switches else ""


def scale_benchmarks(scale: Scale) -> tuple[str, ...]:
    """Names of the benchmarks that the scale asks for; none at a scale whose task has no text."""
    task = scale.tasks.reasoning
    if task is None or task.environment not in ("python_math", "math"):
        return ()
    return tuple(name for name in BENCHMARKS if name in task.benchmarks)


def evaluation_seals(
    scale: Scale, root: str, trained: Iterable[str], seeds: Iterable[int]
) -> dict[str, tuple[str, ...]]:
    """Seals by row of the scale's benchmarks: of rows without training, and of trained ones at the last step.

    Empty at a scale without benchmarks.
    """
    benchmarks = scale_benchmarks(scale)
    if not benchmarks:
        return {}
    last = scale.evaluation.steps[-1]
    places = {row: [f"{row}/seed0/step0"] for row in untrained_rows(scale)}
    places |= {row: [f"{row}/seed{seed}/step{last}" for seed in seeds] for row in trained}
    return {
        row: tuple(f"{root}/evaluations/{place}/{name}/seal.json" for place in there for name in benchmarks)
        for row, there in places.items()
    }


def with_evaluations(grid: Grid) -> Grid:
    """The grid with the evaluations of its evaluated tables' rows; of logged runs, those that are there.

    Refused rows are left out, as their runs are.
    """
    if not grid.trains:
        return replace(grid, evaluations=_logged_seals(Path(grid.source)))
    tables = [artifact for artifact in grid.artifacts.values() if artifact.evaluated]
    trained = [
        row
        for row in grid.paper_rows()
        if row not in grid.refused and any(row in table.rows for table in tables)
    ]
    return replace(grid, evaluations=evaluation_seals(load_scale(grid.scale), grid.root, trained, grid.seeds))


def _logged_seals(folder: Path) -> Mapping[str, tuple[str, ...]]:
    seals: dict[str, tuple[str, ...]] = {}
    for seal in sorted(folder.glob("evaluations/*/seed*/step*/*/seal.json")):
        row = seal.parents[3].name
        seals[row] = (*seals.get(row, ()), seal.as_posix())
    return seals
