"""What training on tasks of software engineering needs of this machine; looked for before anything starts."""

import os
import shutil
import socket
import subprocess
from pathlib import Path

from evaluation.swe.sandbox import SandboxError, require_bubblewrap
from evaluation.swe.training import ROOT, ScaffoldSettings
from sao.config import ConfigError

PYTHON_VARIABLE, IMAGE_VARIABLE, SERVER_VARIABLE = "SAO_OPENHANDS_PYTHON", "SAO_SWE_IMAGE", "SAO_SWE_SERVER"
RELEASES = "from evaluation.swe.versions import AGENT, HARNESS, require; require(AGENT | HARNESS)"
CHECK_SECONDS = 120
DOCKER_SECONDS = 30


def check_scaffold(settings: ScaffoldSettings) -> None:
    """Raise ConfigError, with the mend, where workers with these settings cannot work here. Starts none."""
    check_interpreter(settings.python)
    if settings.workspace == "local" or settings.backend == "bubblewrap":
        try:
            require_bubblewrap()
        except SandboxError as error:
            raise ConfigError(
                str(error).replace("use --workspace docker", "set workspace: docker")
            ) from error
    if settings.workspace == "local" and shutil.which("tmux") is None:
        raise ConfigError("tmux is not installed (apt install tmux), which the agent's terminal needs")
    if settings.workspace == "apptainer" and shutil.which("apptainer") is None:
        raise ConfigError("apptainer is not installed; install it, or set workspace: docker")
    if settings.workspace in ("docker", "apptainer") and not settings.image:
        raise ConfigError(
            f"workspace: {settings.workspace} needs the agent server's image of a task; set {IMAGE_VARIABLE}"
            ", such as ghcr.io/openhands/eval-agent-server:TAG-{instance}-source-minimal"
        )
    if settings.workspace == "remote" and not settings.server:
        raise ConfigError(f"workspace: remote needs the address of a running server; set {SERVER_VARIABLE}")
    if "docker" in (settings.workspace, settings.backend):
        check_docker()


def check_interpreter(python: Path) -> None:
    """Raise ConfigError where the workers' Python is missing, or lacks the releases that they need."""
    if not python.exists():
        raise ConfigError(
            f"{python}: there is no such Python, and the agent runs in it; make it with: "
            f"make openhands-environment, or name another in {PYTHON_VARIABLE}"
        )
    try:
        done = subprocess.run(
            [str(python), "-c", RELEASES],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=CHECK_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{python}: cannot be run: {error}; name another in {PYTHON_VARIABLE}") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ConfigError(f"{python}: {last.rpartition('VersionError: ')[2]}")


def check_docker() -> None:
    """Raise ConfigError where Docker does not answer."""
    mend = "start its daemon and let this user use it (group docker), or set another workspace and grading"
    try:
        docker_version()
    except FileNotFoundError:
        raise ConfigError("docker is not installed; install it, or set workspace and grading") from None
    except DockerError as error:
        raise ConfigError(f"Docker does not work here ({error}); {mend}") from None


class DockerError(Exception):
    """Docker's daemon cannot be used; the message is its own."""


def docker_version() -> str:
    """Version of the daemon; DockerError where it does not answer, FileNotFoundError without Docker."""
    try:
        done = subprocess.run(
            ["docker", "info", "--format", "{{.ServerVersion}}"],
            capture_output=True,
            text=True,
            timeout=DOCKER_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise DockerError("its daemon does not answer") from None
    version = done.stdout.strip()
    if done.returncode or not version:
        raise DockerError((done.stderr.strip().splitlines() or ["no answer"])[-1][:200])
    return version


def node_address() -> str:
    """The address by which other hosts reach this machine: that of its way out, on which nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address of no host (RFC 5737)
        except OSError as error:
            raise ConfigError(
                "this machine has no network, and the workspaces docker and remote ask the model over it; "
                "set workspace: local or apptainer"
            ) from error
        return str(probe.getsockname()[0])
