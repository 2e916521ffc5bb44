"""One logged trajectory in the terminal: tokens with their ratios, values and advantages.

    python -m analysis.trace results/cpu/runs/sao/seed0                       # which trajectories are logged
    python -m analysis.trace results/cpu/runs/sao/seed0 --problem 9e514fea [--step 72]

    python -m analysis.trace results/cpu/runs/sao/seed0 --training [--problem 1f0c --sample 1]

Every evaluation of a run logs a few trajectories; without `--step` the latest of the problem is shown.
`--training` shows those of the batch trained on before it, whose ratios tell how far the sampler was behind.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from math import exp
from pathlib import Path
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.command import run_command
from analysis.load import AnalysisError
from analysis.render import EMPTY
from sao.runlog import TRAJECTORY_COLUMNS, RunError, RunRecord, read_run
from sao.runlog_files import read_records

FILE, TRAINING_FILE = "trajectories.jsonl.gz", "training_trajectories.jsonl.gz"
TOKEN_COLUMNS = [name for name, column in TRAJECTORY_COLUMNS.items() if column.type == "list"]
RATIO_NOTE = (
    "Evaluations are sampled with the trainer's exact weights, so ratios differ from 1 by rounding alone; "
    "what stale and rounded weights do in training is in the ratio columns of metrics.jsonl"
)
TRAINING_NOTE = (
    "Ratios: the trainer's weights before this update over the weights that sampled the token, which were "
    "older and rounded. Values and advantages are from before the critic's updates on this batch."
)

Trajectory = dict[str, Any]


def load_trajectories(path: Path, training: bool = False) -> tuple[RunRecord, list[Trajectory]]:
    """The run in directory `path` and its logged trajectories, in the order of their steps.

    Those of evaluations, or with `training` those of batches that were trained on.

    Raises AnalysisError where the folder holds no run, the run logged none, or a file is damaged.
    """
    if not (path / "spec.json").is_file():
        raise AnalysisError(
            f"{path}: is no run directory, it has no spec.json; name one like results/cpu/runs/sao/seed0"
        )
    try:
        record = read_run(path)
    except RunError as error:
        raise AnalysisError(str(error)) from error
    lines = read_trajectories(path, training)
    if not lines:
        older = ", and runs of older versions have none of training" if training else ""
        raise AnalysisError(
            f"{path / _file(training)}: no trajectories; they are logged from the first evaluation on, and "
            f"of published runs the first seed alone has them{older}"
        )
    return record, lines


def read_trajectories(path: Path, training: bool = False) -> list[Trajectory]:
    """Trajectories of the run in `path`, in the order of their steps; AnalysisError for a damaged file."""
    file = path / _file(training)
    try:
        lines = read_records(file)
    except RunError as error:
        raise AnalysisError(str(error)) from error
    for number, line in enumerate(lines, start=1):
        _check(file, number, line)
    return lines


def pick(lines: list[Trajectory], path: Path, problem: str, step: int | None, sample: int = 0) -> Trajectory:
    """The trajectory of a problem, given by its id or the id's beginning, at `step` or at the latest one.

    `sample`: which of several of that problem and step, from 0. Raises AnalysisError, naming what there is,
    where none fits or the beginning fits several problems.
    """
    known = list(dict.fromkeys(line["problem_id"] for line in lines))
    found = [name for name in known if name.startswith(problem)]
    if len(found) != 1:
        what = "is the beginning of several" if found else "is not logged"
        raise AnalysisError(f"--problem {problem}: {what} in {path}; there are: {', '.join(found or known)}")
    logged: dict[int, list[Trajectory]] = {}
    for line in lines:
        if line["problem_id"] == found[0]:
            logged.setdefault(line["step"], []).append(line)
    if step is not None and step not in logged:
        steps = ", ".join(map(str, sorted(logged)))
        raise AnalysisError(f"--step {step}: problem {found[0]} was not logged then; there are: {steps}")
    chosen = logged[max(logged) if step is None else step]
    if not 0 <= sample < len(chosen):
        raise AnalysisError(
            f"--sample {sample}: problem {found[0]} has {len(chosen)} at step {chosen[0]['step']}; "
            f"give a number from 0 to {len(chosen) - 1}"
        )
    return chosen[sample]


def list_trajectories(lines: list[Trajectory]) -> Table:
    """One line a problem: the rewards of its trajectories by step."""
    table = Table("problem", "label", "reward by step")
    for problem in dict.fromkeys(line["problem_id"] for line in lines):
        of_problem = [line for line in lines if line["problem_id"] == problem]
        rewards = ", ".join(f"{line['step']}: {line['reward']:g}" for line in of_problem)
        table.add_row(Text(problem), Text(of_problem[0]["label"] or EMPTY), rewards)
    return table


def token_table(trajectory: Trajectory, band: tuple[float, float] | None) -> Table:
    """One line an action token, and one line for each run of prompt or observation tokens.

    `band`: ratios at its bounds or outside are marked as masked.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("at", "part", "token", "log-prob", "ratio", "value", "advantage", "version"):
        side: Literal["left", "right"] = "left" if name in ("at", "part", "token") else "right"
        table.add_column(name, justify=side, no_wrap=name != "token")
    for part, positions in parts(trajectory["action_mask"]):
        if part == "action":
            for position in positions:
                table.add_row(*_action_cells(trajectory, position, band))
            continue
        span = f"{positions[0]}-{positions[-1]}" if len(positions) > 1 else str(positions[0])
        text = " ".join(trajectory["token_texts"][position] for position in positions)
        table.add_row(span, part, Text(text, style="dim"))
    return table


def parts(action_mask: Sequence[int]) -> Iterator[tuple[str, list[int]]]:
    """Runs of positions of one kind: prompt, then actions and observations in turn."""
    for is_action, run in groupby(range(len(action_mask)), key=lambda position: bool(action_mask[position])):
        positions = list(run)
        other = "prompt" if positions[0] == 0 else "observation"
        yield "action" if is_action else other, positions


def ratio(trajectory: Trajectory, position: int) -> float | None:
    """Trainer's over sampler's probability of an action token; None where a log-prob is null."""
    trainer = trajectory["trainer_logprobs"][position]
    rollout = trajectory["rollout_logprobs"][position]
    return None if trainer is None or rollout is None else exp(min(trainer - rollout, 700.0))


def dis_band(config: dict[str, Any]) -> tuple[float, float] | None:
    """The open interval of ratios that DIS keeps, (1 - eps_low, 1 + eps_high); None for other objectives."""
    objective = config["objective"]
    if objective["kind"] != "dis":
        return None
    return 1 - objective["eps_low"], 1 + objective["eps_high"]


def show(console: Console, record: RunRecord, trajectory: Trajectory, training: bool = False) -> None:
    """Print one trajectory: what it is, its tokens, and how to read them."""
    when = f"in update {trajectory['step']}" if training else f"after {trajectory['step']} updates"
    band = dis_band(record.config)
    actions = sum(trajectory["action_mask"])
    console.print(
        Text(
            f"{record.path}  problem {trajectory['problem_id']} ({trajectory['label'] or 'no label'}) "
            f"{when}: {trajectory['status']}, reward {trajectory['reward']:g}, "
            f"{len(trajectory['action_mask'])} tokens, {actions} of them actions"
        )
    )
    console.print(token_table(trajectory, band))
    for note in notes(record, trajectory, band, training):
        console.print(Text(note))


def notes(
    record: RunRecord, trajectory: Trajectory, band: tuple[float, float] | None, training: bool = False
) -> list[str]:
    """What the columns mean for this run."""
    lines = [f"{RATIO_NOTE}{_training_ratios(record, trajectory['step'])}."]
    if training:
        lines = [TRAINING_NOTE]
    if band is not None:
        lines.append(f"DIS keeps ratios inside ({band[0]:g}, {band[1]:g}); others are marked 'masked'.")
        lines += [_masked_count(trajectory, band)] if training else []
    if trajectory["values"] is None:
        lines.append("No values: this row has no critic.")
    if trajectory["advantages"] is None:
        lines.append("No advantages: this row defines none for a single trajectory.")
    return lines


def _action_cells(trajectory: Trajectory, position: int, band: tuple[float, float] | None) -> list[Text]:
    kept = ratio(trajectory, position)
    masked = band is not None and kept is not None and not band[0] < kept < band[1]
    advantage = _at(trajectory["advantages"], position)
    colour = "green" if (advantage or 0) > 0 else "red" if (advantage or 0) < 0 else ""
    return [
        Text(str(position)),
        Text("action"),
        Text(trajectory["token_texts"][position], style=f"bold {colour}"),
        Text(_number(trajectory["rollout_logprobs"][position])),
        Text(_number(kept) + (" masked" if masked else ""), style="yellow" if masked else ""),
        Text(_number(_at(trajectory["values"], position))),
        Text(_number(advantage, signed=True), style=colour),
        Text(str(trajectory["policy_versions"][position])),
    ]


def _masked_count(trajectory: Trajectory, band: tuple[float, float]) -> str:
    ratios = [ratio(trajectory, position) for position in range(len(trajectory["action_mask"]))]
    known = [value for value in ratios if value is not None]
    masked = sum(not band[0] < value < band[1] for value in known)
    return f"Masked here: {masked} of {len(known)} action tokens."


def _training_ratios(record: RunRecord, step: int) -> str:
    """Quantiles of the ratio in the update before an evaluation after `step` updates."""
    lines = record.metrics[record.metrics["step"] == step - 1]
    if lines.empty:
        return ""
    low, middle, high = (lines[f"ratio_q{quantile}"].iloc[0] for quantile in ("01", "50", "99"))
    return f" (update {step - 1}: 1% {low:.3g}, median {middle:.3g}, 99% {high:.3g})"


def _file(training: bool) -> str:
    return TRAINING_FILE if training else FILE


def _check(path: Path, number: int, line: Trajectory) -> None:
    """AnalysisError where a line lacks a column, or its lists are not all as long as the tokens."""
    mend = "restore the file, or archive the run and train it again"
    if missing := [name for name in TRAJECTORY_COLUMNS if name not in line]:
        raise AnalysisError(f"{path}: line {number}: lacks {', '.join(missing)}; {mend}")
    for name in TOKEN_COLUMNS:
        if line[name] is None and TRAJECTORY_COLUMNS[name].nullable:
            continue
        if not isinstance(line[name], list) or len(line[name]) != len(line["token_ids"]):
            raise AnalysisError(f"{path}: line {number}: {name} is not as long as token_ids; {mend}")


def _at(values: Sequence[float | None] | None, position: int) -> float | None:
    return None if values is None else values[position]


def _number(value: float | None, signed: bool = False) -> str:
    return EMPTY if value is None else f"{value:{'+' if signed else ''}.3f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.trace", description="Show a logged trajectory token by token."
    )
    parser.add_argument("run", type=Path, help="run directory, e.g. results/cpu/runs/sao/seed0")
    parser.add_argument(
        "--problem", help="problem id or its beginning; without it the logged ones are listed"
    )
    parser.add_argument(
        "--step",
        type=int,
        help="policy updates before the evaluation, or with --training the update (default: the latest)",
    )
    parser.add_argument(
        "--training", action="store_true", help="trajectories of the batches trained on before evaluations"
    )
    parser.add_argument(
        "--sample", type=int, default=0, help="which of several of one problem and step, from 0"
    )
    options = parser.parse_args(arguments)
    record, lines = load_trajectories(options.run, options.training)
    console = Console()
    if options.problem is None:
        console.print(list_trajectories(lines))
        return
    file = options.run / (TRAINING_FILE if options.training else FILE)
    chosen = pick(lines, file, options.problem, options.step, options.sample)
    show(console, record, chosen, options.training)


if __name__ == "__main__":
    sys.exit(run_command(main))
