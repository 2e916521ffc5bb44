"""Where the runs of the report come from: commits, versions, machines, commands and hours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.load import Logs, Run
from analysis.render import EMPTY
from analysis.report.markup import Cell, Linker, TableView
from analysis.report.rows import ordered_rows

HEADER = (
    "run",
    "commit",
    "uncommitted changes",
    "machine",
    "versions",
    "attempts",
    "start",
    "end",
    "CPU-hours",
    "GPU-hours",
    "command",
)
NAMED_PACKAGES = ("python", "torch", "transformers", "openrlhf", "vllm", "numpy")


@dataclass(frozen=True)
class Provenance:
    """`totals`: (what, value) over all runs of the report, and the table of each."""

    totals: Sequence[tuple[str, str]]
    view: TableView


def provenance(logs: Logs, linker: Linker) -> Provenance:
    runs = [run for row in ordered_rows(logs) for _, run in sorted(logs.runs[row].items())]
    runs += [run for row in logs.imported for run in row.runs]
    lines = [_line(run) for run in runs]
    view = TableView(
        "Provenance of every run",
        HEADER,
        [
            [Cell(linker.name(line["run"])), *(linker.cell(line[name]) for name in HEADER[1:])]
            for line in lines
        ],
    )
    known = [run.record.provenance for run in runs if run.record.provenance]
    totals = [
        ("runs", f"{len(runs)}, {sum(run.finished for run in runs)} of them finished"),
        ("commits", _distinct(lines, "commit")),
        ("runs with uncommitted changes", str(sum(line["uncommitted changes"] == "yes" for line in lines))),
        ("machines", _distinct(lines, "machine")),
        ("versions", _distinct(lines, "versions")),
        ("CPU-hours", f"{sum(one.get('cpu_hours') or 0 for one in known):.2f}"),
        ("GPU-hours", f"{sum(one.get('gpu_hours') or 0 for one in known):.2f}"),
        ("runs without provenance", str(len(runs) - len(known))),
    ]
    return Provenance(totals, view)


def _line(run: Run) -> dict[str, str]:
    known = run.record.provenance
    git, attempts = known.get("git") or {}, known.get("attempts") or []
    hours = {name: known.get(name) for name in ("cpu_hours", "gpu_hours")}
    return {
        "run": run.directory,
        "commit": (git.get("commit") or EMPTY)[:12],
        "uncommitted changes": ("yes" if git.get("diff_sha256") else "no") if git else EMPTY,
        "machine": _machine(known.get("hardware") or {}),
        "versions": _versions(known.get("packages") or {}),
        "attempts": str(len(attempts)) if attempts else EMPTY,
        "start": attempts[0].get("start") or EMPTY if attempts else EMPTY,
        "end": attempts[-1].get("end") or EMPTY if attempts else EMPTY,
        "CPU-hours": EMPTY if hours["cpu_hours"] is None else f"{hours['cpu_hours']:.3f}",
        "GPU-hours": EMPTY if hours["gpu_hours"] is None else f"{hours['gpu_hours']:.3f}",
        "command": f"`{known['command']}`" if known.get("command") else EMPTY,
    }


def _machine(hardware: Mapping[str, Any]) -> str:
    if not hardware:
        return EMPTY
    memory = hardware.get("memory_bytes")
    parts = [str(hardware.get("processor") or hardware.get("system")), f"{hardware.get('cores')} cores"]
    parts += [f"{memory / 2**30:.0f} GiB"] if memory else []
    gpus = [str(gpu.get("name", gpu) if isinstance(gpu, dict) else gpu) for gpu in hardware.get("gpus") or []]
    return ", ".join([*parts, *gpus])


def _versions(packages: Mapping[str, str]) -> str:
    named = [f"{name} {packages[name]}" for name in NAMED_PACKAGES if name in packages]
    return ", ".join(named) or EMPTY


def _distinct(lines: Sequence[Mapping[str, str]], name: str) -> str:
    """Each value once with the number of runs that have it."""
    values = [line[name] for line in lines]
    counts = {value: values.count(value) for value in dict.fromkeys(values)}
    return "; ".join(f"{value} ({count} runs)" for value, count in counts.items()) or EMPTY
