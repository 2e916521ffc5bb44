"""How far a row of the grid got: the seeds that count, and why others do not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analysis.load import Logs

NOT_RUN = "not run"


@dataclass(frozen=True)
class RowStatus:
    """`finished` of `planned` seeds; `note` says what became of the others, empty when all finished."""

    finished: int
    planned: int
    note: str

    @property
    def seeds(self) -> str:
        return f"{self.finished} of {self.planned}"


def row_status(logs: Logs, row: str) -> RowStatus:
    """Status of a row's seeds: those of the scale's file and any other that was run."""
    runs = logs.runs.get(row, {})
    seeds = sorted({*logs.planned_seeds, *runs})
    reasons = {
        seed: unfinished_reason(logs, row, seed)
        for seed in seeds
        if not (seed in runs and runs[seed].finished)
    }
    return status_of(seeds, reasons)


def status_of(seeds: Sequence[int], reasons: Mapping[int, str]) -> RowStatus:
    """Status of `seeds`, those among `reasons` being unfinished for the reason given."""
    by_reason: dict[str, list[int]] = {}
    for seed, reason in reasons.items():
        by_reason.setdefault(reason, []).append(seed)
    finished = len(seeds) - len(reasons)
    if not finished and len(by_reason) <= 1:
        return RowStatus(0, len(seeds), next(iter(by_reason), NOT_RUN))
    note = "; ".join(f"seed {', '.join(map(str, seeds))}: {reason}" for reason, seeds in by_reason.items())
    return RowStatus(finished, len(seeds), note)


def unfinished_reason(logs: Logs, row: str, seed: int) -> str:
    """Why a seed of a row does not count, for one that is not finished."""
    run = logs.runs.get(row, {}).get(seed)
    if run is None:
        return NOT_RUN
    status, detail = run.record.status, run.record.status_detail
    if status == "running":
        return detail if detail.startswith("stopped") else f"running at {detail}"
    if status == "refused":
        return "refused: it has other settings than the grid (python -m sao.runlog check says which)"
    return NOT_RUN if status == "planned" else f"{status}: {detail}"
