"""The `--config` switches of the workflow: scale, results, runs, seeds and others. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sao.config_files import closest


class GridError(ValueError):
    """A user's mistake in a switch or target; the message says how to mend it."""


@dataclass(frozen=True)
class Switches:
    """What may be set on the command line; everything else is in experiments/."""

    scale: str = "cpu"
    results: str = "results"
    runs: str | None = None  # folder of logged runs to read in place of training
    seeds: tuple[int, ...] | None = None  # None: the scale's own
    beside: tuple[str, ...] = ()  # folders of imported runs to show too, apart by commas
    endpoint: str | None = None  # base URL that serves what is evaluated, in place of the local engine
    data: str | None = None  # folder of the sets that training draws from, for work offline
    benchmarks: str | None = None  # folder of the benchmarks' files, for work offline
    teacher: str | None = None  # base URL that serves the model whose traces fine-tuning imitates
    model: str | None = None  # its name there; the row by default
    openrlhf_python: str | None = None  # interpreter with OpenRLHF, where no conda environment is made of it
    swe: str | None = None  # further options of the SWE-Bench runner, as on its command line
    swe_grading: str | None = None  # options of its grader
    openhands_python: str | None = None  # interpreter of its environment; .venv-openhands's by default

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> "Switches":
        """Validate what Snakemake read after `--config`; raises GridError."""
        known = [entry.name for entry in fields(cls)]
        values: dict[str, str] = {}
        for name, value in given.items():
            if name not in known:
                raise GridError(f"--config {name}={value}: no switch {name}{closest(name, known)}")
            values[name] = str(value).strip()
            if not values[name]:
                raise GridError(f"--config {name}=: is empty; state a value or leave the switch out")
        if "runs" in values and values.keys() & {"scale", "seeds"}:
            raise GridError("--config runs=...: scale and seeds are those of the logged runs; leave them out")
        if "model" in values and "endpoint" not in values:
            raise GridError("--config model=...: names a model at an endpoint; add endpoint=URL")
        if "results" in values:
            values["results"] = values["results"].rstrip("/") or "/"
        seeds = parse_seeds(values.pop("seeds")) if "seeds" in values else None
        beside = parse_folders(values.pop("beside")) if "beside" in values else ()
        return cls(**values, seeds=seeds, beside=beside)


def parse_folders(text: str) -> tuple[str, ...]:
    """Folders of imported runs as `results/my_30b,results/other`; raises GridError for one without any."""
    folders = tuple(folder.strip().rstrip("/") for folder in text.split(",") if folder.strip())
    for folder in folders:
        if not any(Path(folder).glob("runs/*/seed*/accuracies.jsonl*")):
            raise GridError(
                f"--config beside={text}: {folder} holds no imported run; import one first "
                "(python -m analysis.importers)"
            )
    return folders


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds as `5` (the first five: 0 to 4) or as a list `0,3,4`; raises GridError."""
    parts = [part.strip() for part in text.strip("[]() ").split(",")]
    numbers = [int(part) for part in parts if part.isdecimal()]
    if len(parts) == 1 and numbers and numbers[0] > 0:
        return tuple(range(numbers[0]))
    listed = len(parts) > 1 and all(part.isdecimal() for part in parts if part)
    if not listed or not numbers or len(set(numbers)) < len(numbers):
        raise GridError(
            f"--config seeds={text}: expected a count (seeds=5 is 0 to 4) or a list of distinct seeds "
            "(seeds=0,3,4; a single one: seeds=3,)"
        )
    return tuple(numbers)
