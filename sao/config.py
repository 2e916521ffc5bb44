"""Configuration of runs: `resolve(row, scale, seed)` and the command `python -m sao.config`.

    python -m sao.config show vapo --scale cpu     every resolved key, its value and where it comes from
    python -m sao.config check                     validates every row at every scale

A row file states only its differences from rows/sao.yaml, a scale file those from the scale it `extends`.
Blocks are merged key by key; a block that states another `kind`, or an `environment`, stands whole.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from typing import Any

from pydantic import Field, ValidationError

from sao.config_files import ConfigError, Merged, closest, file_of, names_in, read_yaml, shown, validated
from sao.config_rows import DECISION, Block, Frozen, RowConfig, RowSettings
from sao.config_scales import ScaleConfig, ScaleSettings, Task

__all__ = [
    "ConfigError",
    "RowConfig",
    "RunConfig",
    "Scale",
    "digest_of",
    "load_row",
    "load_scale",
    "preparation_digest",
    "resolve",
    "row_names",
    "scale_names",
    "sources",
    "value_pretraining_run",
]

BASE_ROW = "sao"


NOT_IN_DIGEST = ("title", "logging", "job")  # what a run is called, where it also logs, what its job asks for


def digest_of(settings: dict[str, Any]) -> str:
    """SHA-256 in hex of a run's settings as canonical JSON: sorted keys, no spaces, without NOT_IN_DIGEST."""
    counted = {name: value for name, value in settings.items() if name not in NOT_IN_DIGEST}
    plain = json.loads(json.dumps(counted))
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


class RunConfig(ScaleSettings, RowSettings):
    """Everything that determines one run: a row, a scale and a seed, resolved."""

    row: str
    scale: str
    seed: int = Field(ge=0)
    task: Task

    @property
    def pretrains_values(self) -> bool:
        """Whether it is value pretraining: critic-only steps and no update of the policy."""
        return self.training.updates == 0

    @property
    def critic_only_steps(self) -> int:
        """Batches that train the critic alone, numbered from -critic_only_steps to -1; 0 without a critic."""
        return self.critic.critic_only_steps if self.critic else 0

    @property
    def metrics_lines(self) -> int:
        """Lines of metrics.jsonl of a complete run."""
        return self.critic_only_steps + self.training.updates

    @property
    def preparation_steps(self) -> tuple[str, ...]:
        """Steps of `sao.prepare` that the run starts from: "warm_start", "values_<frozen>", both or none."""
        fine_tuned = self.warm_start is not None or self.sft is not None
        pretrained = self.critic is not None and self.critic.pretrained
        values = f"values_{self.critic.frozen}" if self.critic else ""
        return (*(("warm_start",) if fine_tuned else ()), *((values,) if pretrained else ()))

    @property
    def prompts_per_batch(self) -> int:
        """Prompts whose trajectories fill one batch."""
        return self.training.batch_trajectories // self.sampling.group_size

    def settings(self) -> dict[str, Any]:
        """All settings as JSON-ready values, as spec.json records them."""
        return self.model_dump(mode="json")

    def digest(self) -> str:
        """SHA-256 in hex of the canonical JSON of all settings but NOT_IN_DIGEST."""
        return digest_of(self.settings())


class Scale(ScaleConfig):
    """A scale and the grid it spans."""

    def rows(self) -> tuple[str, ...]:
        """Names of the rows whose domain the scale has a task for."""
        return tuple(name for name in row_names() if getattr(self.tasks, load_row(name).domain) is not None)

    def task(self, name: str) -> Task:
        """The scale's task of that name; ConfigError where it has none."""
        tasks = {task.name: task for _, task in self.tasks if task is not None}
        if name not in tasks:
            file = shown(file_of("scales", self.name))
            raise ConfigError(f"{file}: tasks: no task {name}{closest(name, tasks)}")
        return tasks[name]


def row_names() -> tuple[str, ...]:
    """Names of all rows, sorted."""
    return names_in("rows")


def scale_names() -> tuple[str, ...]:
    """Names of all scales, sorted."""
    return names_in("scales")


def load_row(name: str) -> RowConfig:
    """The row with what it inherits from rows/sao.yaml; ConfigError for any fault in the files."""
    merged = _merged_row(name)
    if merged.origins.get(("title",)) != merged.path:
        raise ConfigError(f"{shown(merged.path)}: title: is missing; a row states its own")
    return validated(RowConfig, merged, name=name)


def load_scale(name: str) -> Scale:
    """The scale with what it inherits; ConfigError for any fault in the files."""
    return validated(Scale, _merged_scale(name), name=name)


def resolve(row: str, scale: str, seed: int) -> RunConfig:
    """The complete configuration of one run; ConfigError where the row cannot run at the scale."""
    row_config, scale_config = load_row(row), load_scale(scale)
    file = shown(file_of("scales", scale))
    task = getattr(scale_config.tasks, row_config.domain)
    if task is None:
        raise ConfigError(
            f"{file}: tasks.{row_config.domain}: the scale has no such task, and row {row} trains on it; "
            f"choose another scale or one of the rows {', '.join(scale_config.rows())}"
        )
    batch = scale_config.training.batch_trajectories
    for divisor, name in (
        (row_config.sampling.group_size, "sampling.group_size"),
        (row_config.minibatches_per_batch, "minibatches_per_batch"),
    ):
        if batch % divisor:
            raise ConfigError(
                f"{file}: training.batch_trajectories: {batch} is not divisible by {name} {divisor} "
                f"of {shown(file_of('rows', row))}; use a multiple of {divisor}"
            )
    return _combined(row_config, scale_config, seed, task)


def _combined(row: RowConfig, scale: Scale, seed: int, task: Task) -> RunConfig:
    settings = {name: getattr(row, name) for name in RowSettings.model_fields}
    settings |= {name: getattr(scale, name) for name in ScaleSettings.model_fields}
    try:
        return RunConfig.model_validate(
            {**settings, "row": row.name, "scale": scale.name, "seed": seed, "task": task}
        )
    except ValidationError as error:
        raise ConfigError(f"seed: {error.errors()[0]['msg']}, and is {seed}") from None


def value_pretraining_run(scale: Scale, task: str, frozen: Frozen, seed: int) -> RunConfig:
    """Value pretraining of a task as a run that ends before its first update of the policy.

    One critic update on each batch of the initial policy's rollouts, target the final return, is all it does:
    of the base row it has the sampling, the optimizer and the target.
    """
    run = _combined(load_row(BASE_ROW), scale, seed, scale.task(task))
    settings = scale.value_pretraining
    assert run.critic is not None  # of the base row
    critic = {
        "updates_per_batch": 1,
        "frozen": frozen,
        "pretrained": False,
        "critic_only_steps": settings.rollouts // settings.batch_trajectories,
        "learning_rate_factor": settings.learning_rate / run.training.learning_rate,
    }
    training = {"batch_trajectories": settings.batch_trajectories, "updates": 0}
    return run.model_copy(
        update={
            "row": f"values_{frozen}",
            "critic": run.critic.model_copy(update=critic),
            "training": run.training.model_copy(update=training),
            "evaluation": run.evaluation.model_copy(update={"steps": ()}),
        }
    )


def preparation_digest(scale: str, task: str) -> str:
    """SHA-256 in hex of what determines the warm start and value pretraining that a task's rows share."""
    config = load_scale(scale)
    settings = config.model_dump(
        mode="json", include={"backend", "model", "warm_start", "sft", "value_pretraining", "sampler"}
    )
    settings["evaluation"] = config.evaluation.model_dump(mode="json", exclude={"steps"})
    settings["task"] = config.task(task).model_dump(mode="json")
    return digest_of(settings)


def sources(row: str, scale: str, seed: int = 0) -> list[tuple[str, Any, str]]:
    """(dotted key, value, source) of every setting; source is a place in the paper, "decision", or the file.

    Keys that the row inherits from rows/sao.yaml name the paper or a decision; its own differences its file.
    """
    config = resolve(row, scale, seed)
    merged_row, merged_scale = _merged_row(row), _merged_scale(scale)
    rows = []
    for at, value, tag in _leaves(config):
        top = at[0]
        if top in ("row", "scale", "seed"):
            source = "command line"
        elif top == "task":
            source = f"scale {merged_scale.origin(('tasks', config.domain, *at[1:])).name}"
        elif top in ScaleSettings.model_fields:
            source = f"scale {merged_scale.origin(at).name}"
        else:
            origin = merged_row.origins.get(at)
            own = origin is not None and origin.stem != BASE_ROW
            source = f"row {origin.name}" if own and origin else tag
        rows.append((".".join(at), value, source))
    return rows


def _leaves(block: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, str]]:
    """(path, JSON-ready value, source tag of the schema) of every key below a block."""
    values = block.model_dump(mode="json")
    for name, field in type(block).model_fields.items():
        value = getattr(block, name)
        if isinstance(value, Block):
            yield from _leaves(value, (*at, name))
        else:
            if name not in values:
                continue  # an optional key that is absent
            extra = field.json_schema_extra
            tag = extra.get("source", DECISION) if isinstance(extra, dict) else DECISION
            yield (*at, name), values[name], str(tag)


def _merged_row(name: str) -> Merged:
    merged = Merged(file_of("rows", BASE_ROW))
    for layer in dict.fromkeys((BASE_ROW, name)):
        path = file_of("rows", layer)
        merged.lay(path, read_yaml(path))
    return merged


def _merged_scale(name: str) -> Merged:
    layers: list[str] = []
    contents: list[dict[str, Any]] = []
    parent: Any = name
    while parent is not None:
        if not isinstance(parent, str) or parent not in scale_names():
            owner = shown(file_of("scales", layers[-1] if layers else str(parent)))
            raise ConfigError(f"{owner}: extends: no scale {parent}{closest(str(parent), scale_names())}")
        if parent in layers:
            raise ConfigError(
                f"{shown(file_of('scales', name))}: extends: {' -> '.join([*layers, parent])} is a circle"
            )
        layers.append(parent)
        contents.append(dict(read_yaml(file_of("scales", parent))))
        parent = contents[-1].pop("extends", None)
    merged = Merged(file_of("scales", name))
    for layer, content in zip(reversed(layers), reversed(contents), strict=True):
        merged.lay(file_of("scales", layer), content)
    return merged


def _show(row: str, scale: str, seed: int) -> None:
    table = [(key, json.dumps(value), source) for key, value, source in sources(row, scale, seed)]
    widths = [max(len(line[column]) for line in table) for column in range(2)]
    for key, value, source in table:
        print(f"{key:{widths[0]}}  {value:{widths[1]}}  {source}")
    print(f"digest {resolve(row, scale, seed).digest()}")


def _check() -> int:
    faults: dict[str, None] = {}
    runs = 0
    for scale in scale_names():
        try:
            config = load_scale(scale)
            grid = config.rows()
        except ConfigError as error:
            faults[str(error)] = None
            continue
        for row in grid:
            try:
                resolve(row, scale, config.seeds[0])
                runs += len(config.seeds)
            except ConfigError as error:
                faults[str(error)] = None
    for fault in faults:
        print(fault, file=sys.stderr)
    if not faults:
        print(f"{len(row_names())} rows at {len(scale_names())} scales are valid: {runs} runs")
    return 2 if faults else 0


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns 0, or 2 for a mistake in the configuration."""
    parser = argparse.ArgumentParser(prog="python -m sao.config", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    show = commands.add_parser("show", help="every resolved key of a run, its value and where it comes from")
    show.add_argument("row")
    show.add_argument("--scale", default="cpu")
    show.add_argument("--seed", type=int, default=0)
    commands.add_parser("check", help="validate every row at every scale")
    options = parser.parse_args(arguments)
    try:
        if options.command == "check":
            return _check()
        _show(options.row, options.scale, options.seed)
        return 0
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
