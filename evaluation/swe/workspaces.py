"""Where the agent works: Docker, Apptainer, an agent server that runs already, or a folder in bubblewrap.

All four are an agent server of OpenHands that the same client talks to; the agent, its calls to the model
and its tools run there. So the model's address must be one that the workspace reaches.
"""

import os
import secrets
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import httpx
from openhands.sdk.workspace import RemoteWorkspace

from evaluation.swe.agent_servers import MODEL_PORT, server_parent
from evaluation.swe.changes import base_script, change_script, checked_base, checked_change
from evaluation.swe.forwarding import Forwarder
from evaluation.swe.protocol import REPOSITORY
from evaluation.swe.sandbox import Sandbox, SandboxError, end, image_folder, require_bubblewrap
from evaluation.swe.tasks import Task
from evaluation.swe.versions import OFFLINE
from sao.environments.base import EnvironmentFailure

KINDS = ("docker", "apptainer", "remote", "local")
LOOPBACK = "127.0.0.1"
AGENT_FOLDER = "/var/agent"  # the server's own files inside
SERVER_SIDE = Path(__file__).parent / "server_side"
SERVER_SIDE_INSIDE = "/opt/sao_server_side"
START_SECONDS = 600.0
COMMAND_SECONDS = 120.0
SILENCES = 10  # unanswered questions after health in a row, after which a server counts as gone
SERVER_SETTINGS = {
    **OFFLINE,
    "OH_ENABLE_VSCODE": "false",
    "OH_ENABLE_VNC": "false",
    "OH_PRELOAD_TOOLS": "false",
    "OH_EXTRA_PYTHON_PATH": SERVER_SIDE_INSIDE,
}


class WorkspaceError(Exception):
    """A workspace of this kind cannot be used here; the message says why and how to mend it."""


class Workspace(Protocol):
    """A task's repository with an agent server beside it. `close` ends and removes all of it."""

    remote: RemoteWorkspace

    def ended(self) -> str:
        """Why the agent server has ended; empty while it runs."""

    def inside(self, url: str) -> tuple[str, dict[str, str]]:
        """The model's address as the agent server reaches it, and headers that its requests need."""

    def model_answered(self) -> bool:
        """Whether the agent server is seen to have had an answer of the model."""

    def check_machine(self) -> None:
        """Open another workspace of the kind and close it; EnvironmentFailure where none comes up."""

    def base(self, commit: str) -> str:
        """The hash of the commit that the task starts from; EnvironmentFailure where it is not there."""

    def change(self, base_commit: str) -> str:
        """The difference to the base commit, with new files; EnvironmentFailure where it cannot be told."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class WorkspaceOptions:
    """What a kind of workspace needs.

    `image` is a pattern of the server's image with {instance} and {image}, a .sif file for Apptainer;
    `server` the pattern of a running server's address; `images` the folder of the images' files for kind
    local; `folder` takes the copies of kind local. `endpoint` is the model's address as this machine
    reaches it.
    """

    kind: str
    folder: Path
    images: Path = Path("images")
    image: str = ""
    server: str = ""
    key: str = ""
    endpoint: str = ""
    forward: tuple[str, ...] = ()


def check(options: WorkspaceOptions) -> None:
    """Raise WorkspaceError where this kind of workspace cannot work here."""
    if options.kind == "local":
        try:
            require_bubblewrap()
        except SandboxError as error:
            raise WorkspaceError(str(error)) from error
        if shutil.which("tmux") is None:
            raise WorkspaceError("tmux is not installed (apt install tmux), which the agent's terminal needs")
        return
    host = urlsplit(options.endpoint).hostname or ""
    if options.kind in ("docker", "apptainer") and not options.image:
        raise WorkspaceError(
            f"--workspace {options.kind} needs --image, the agent server's image of a task, such as "
            "ghcr.io/openhands/eval-agent-server:TAG-{instance}-source-minimal"
        )
    if options.kind == "remote" and not options.server:
        raise WorkspaceError("--workspace remote needs --server, the address of a running agent server")
    if options.kind == "docker" and host in ("localhost", "127.0.0.1", "::1"):
        raise WorkspaceError(
            f"--endpoint {options.endpoint}: the model is asked from a container, where {host} is the "
            "container itself; give an address that is reached from there"
        )
    tool = {"docker": "docker", "apptainer": "apptainer"}.get(options.kind)
    if tool and shutil.which(tool) is None:
        raise WorkspaceError(f"{tool} is not installed; install it, or use another --workspace")


def open_workspace(options: WorkspaceOptions, task: Task, stop: threading.Event | None = None) -> Workspace:
    """Start a task's workspace; EnvironmentFailure where it does not come up, or `stop` is set meanwhile."""
    stop = stop or threading.Event()
    makers: dict[str, Callable[[WorkspaceOptions, Task, threading.Event], Workspace]] = {
        "local": LocalFolder,
        "docker": _docker,
        "apptainer": _apptainer,
        "remote": _running,
    }
    try:
        return makers[options.kind](options, task, stop)
    except (SandboxError, OSError, RuntimeError, httpx.HTTPError) as error:
        raise EnvironmentFailure(f"the workspace did not start: {error}") from error


def check_another(options: WorkspaceOptions, task: Task) -> None:
    """Open a further workspace for a task and close it; EnvironmentFailure where it does not come up."""
    open_workspace(replace(options, folder=options.folder / "another"), task).close()


class LocalFolder:
    """A copy of the task's files in bubblewrap, with an agent server of its own in there.

    Of all networks its processes reach the model alone, at MODEL_PORT of their loopback.
    """

    def __init__(self, options: WorkspaceOptions, task: Task, stop: threading.Event) -> None:
        self.options, self.task = options, task
        self.key = secrets.token_hex(16)
        self.log = options.folder / f"{task.instance_id}.log"
        self.sandbox = Sandbox(
            options.folder / task.instance_id,
            image_folder(options.images, task.image),
            binds={SERVER_SIDE: SERVER_SIDE_INSIDE},
            environment=SERVER_SETTINGS
            | {
                "OH_CONVERSATIONS_PATH": f"{AGENT_FOLDER}/conversations",
                "OH_BASH_EVENTS_DIR": f"{AGENT_FOLDER}/commands",
                "TMUX_TMPDIR": AGENT_FOLDER,
            },
        )
        try:
            self._start(stop)
        except BaseException:
            self.close()
            raise

    def inside(self, url: str) -> tuple[str, dict[str, str]]:
        parts = urlsplit(url)
        address = parts._replace(scheme="http", netloc=f"{LOOPBACK}:{MODEL_PORT}")
        return address.geturl(), {"Host": parts.netloc.rpartition("@")[2]}

    def model_answered(self) -> bool:
        return self.forwarder.forwarded

    def check_machine(self) -> None:
        check_another(self.options, self.task)

    def base(self, commit: str) -> str:
        return checked_base(*self._git(base_script(commit)))

    def change(self, base_commit: str) -> str:
        """Read in a sandbox of its own, so that it works whatever the agent left running."""
        self._stop()
        return checked_change(*self._git(change_script(base_commit)))

    def _git(self, script: str) -> tuple[int, str]:
        try:
            status, output = self.sandbox.run(["bash", "-c", script], "/", COMMAND_SECONDS)
        except SandboxError as error:
            raise EnvironmentFailure(f"the repository cannot be read: {error}") from error
        except subprocess.TimeoutExpired as error:
            raise EnvironmentFailure("git did not end in time") from error
        return status, output.decode(errors="replace")

    def close(self) -> None:
        self._stop()
        self.sandbox.close()
        self.log.unlink(missing_ok=True)

    def _start(self, stop: threading.Event) -> None:
        folder = self.sandbox.folder / AGENT_FOLDER.strip("/")
        folder.mkdir(parents=True)
        self.sandbox.user.own(folder.parent)
        self.log.touch()
        self.process, inside = self.sandbox.hold()
        variables = self.sandbox.variables | {"OH_SESSION_API_KEYS_0": self.key}
        port, listener = server_parent().start(self.sandbox, inside, variables, AGENT_FOLDER, self.log)
        self.forwarder = Forwarder(listener, self.options.endpoint)
        address = f"http://{LOOPBACK}:{port}"
        _wait_until_ready(address, lambda: self.ended() or stopped(stop))
        self.remote = RemoteWorkspace(host=address, api_key=self.key, working_dir=REPOSITORY)
        self.health = Health(address)

    def ended(self) -> str:
        health = getattr(self, "health", None)
        if self.process.poll() is None and not (health and health.lost(refusals=1)):
            return ""
        return " ".join(self.log.read_text(errors="replace").split()[-60:]) or "the agent server ended"

    def _stop(self) -> None:
        if forwarder := getattr(self, "forwarder", None):
            forwarder.close()
        if process := getattr(self, "process", None):
            end(process)


@dataclass
class Health:
    """Asks a server that was ready whether it still answers; a busy one may be silent for a while."""

    address: str
    silences: int = 0
    refusals: int = 0

    def lost(self, refusals: int = SILENCES) -> str:
        """Why the server counts as gone; `refusals` is how many refused connections in a row make it so."""
        try:
            httpx.get(f"{self.address}/health", timeout=10.0)
            self.silences = self.refusals = 0
        except httpx.HTTPError as error:
            self.silences += 1
            self.refusals += isinstance(error, httpx.ConnectError)
            if self.silences >= SILENCES or self.refusals >= refusals:
                return f"the agent server does not answer: {error}"
        return ""


class ServerWorkspace:
    """A workspace that is reached through its agent server alone, with this machine's way to the model."""

    def __init__(self, remote: RemoteWorkspace, options: WorkspaceOptions, task: Task) -> None:
        self.remote, self.options, self.task = remote, options, task
        self.health = Health(remote.host)

    def inside(self, url: str) -> tuple[str, dict[str, str]]:
        return url, {}

    def model_answered(self) -> bool:
        return False  # it cannot be seen from here

    def check_machine(self) -> None:
        check_another(self.options, self.task)

    def ended(self) -> str:
        return self.health.lost()

    def base(self, commit: str) -> str:
        return checked_base(*self._git(base_script(commit)))

    def change(self, base_commit: str) -> str:
        return checked_change(*self._git(change_script(base_commit)))

    def _git(self, script: str) -> tuple[int, str]:
        # A shell of its own: the script ends it, and the server's may go on.
        command = f"bash -c {shlex.quote(script)}"
        try:
            result = self.remote.execute_command(command, timeout=COMMAND_SECONDS)
        except httpx.HTTPError as error:
            raise EnvironmentFailure(f"the agent server does not answer: {error}") from error
        if result.timeout_occurred:
            raise EnvironmentFailure("git did not end in time")
        failed = result.exit_code != 0
        return result.exit_code, result.stdout + (result.stderr if failed else "")

    def close(self) -> None:
        cleanup = getattr(self.remote, "cleanup", None)
        if cleanup:
            cleanup()
        else:
            self.remote.reset_client()


def _docker(options: WorkspaceOptions, task: Task, stop: threading.Event) -> Workspace:
    from openhands.workspace import DockerWorkspace

    os.environ.update(SERVER_SETTINGS)
    return ServerWorkspace(
        DockerWorkspace(
            server_image=_named(options.image, task),
            working_dir=REPOSITORY,
            volumes=[f"{SERVER_SIDE}:{SERVER_SIDE_INSIDE}:ro"],
            forward_env=[*SERVER_SETTINGS, *options.forward],
            detach_logs=False,
            health_check_timeout=START_SECONDS,
        ),
        options,
        task,
    )


def _apptainer(options: WorkspaceOptions, task: Task, stop: threading.Event) -> Workspace:
    from openhands.workspace import ApptainerWorkspace

    os.environ.update(SERVER_SETTINGS)
    image = _named(options.image, task)
    place = {"sif_file": image} if image.endswith(".sif") else {"server_image": image}
    return ServerWorkspace(
        ApptainerWorkspace(
            **place,
            working_dir=REPOSITORY,
            extra_bind_mounts=[f"{SERVER_SIDE}:{SERVER_SIDE_INSIDE}:ro"],
            forward_env=[*SERVER_SETTINGS, *options.forward],
            detach_logs=False,
            health_check_timeout=START_SECONDS,
        ),
        options,
        task,
    )


def _running(options: WorkspaceOptions, task: Task, stop: threading.Event) -> Workspace:
    address = _named(options.server, task)
    _wait_until_ready(address, lambda: stopped(stop), seconds=10.0)
    remote = RemoteWorkspace(host=address, api_key=options.key or None, working_dir=REPOSITORY)
    return ServerWorkspace(remote, options, task)


def _named(pattern: str, task: Task) -> str:
    return pattern.replace("{instance}", task.instance_id).replace("{image}", task.image)


def _wait_until_ready(address: str, ended: Callable[[], str], seconds: float = START_SECONDS) -> None:
    """Wait for a server's /health; RuntimeError where it ends or does not come up in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if reason := ended():
            raise RuntimeError(reason)
        try:
            if httpx.get(f"{address}/health", timeout=2.0).is_success:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise RuntimeError(f"{address}: no agent server answers within {seconds:.0f} seconds")


def stopped(stop: threading.Event) -> str:
    return "stopped" if stop.is_set() else ""
