"""What the processes of a run learn beside OpenRLHF's arguments; imports no OpenRLHF."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Self

VALUES_FOLDER = "values"  # below the directory of a value pretraining: the value model that it makes


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What every process of a run learns as `strategy.args.run_settings`; `strategy.args.sao` is its config.

    directory     the run directory
    results       folder of all scales, below which fetched data lies
    value_model   folder of a pretrained value model, where the row starts from one
    checkpoint    (step, folder) to resume from, where there is one
    command, attempt, driver      what started the run, the attempt's number, process id of the driver
    """

    directory: Path
    results: str = "results"
    value_model: Path | None = None
    checkpoint: tuple[int, Path] | None = None
    command: str = ""
    attempt: int = 0
    driver: int = 0

    def with_driver(self, process_id: int) -> Self:
        """The same, told which process drives."""
        return dataclasses.replace(self, driver=process_id)
