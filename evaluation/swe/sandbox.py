"""Bubblewrap around a task: what its commands see of this machine, and how they are ended.

A sandbox has its own processes (which all end with it), a user and a network of its own (nothing but a
loopback), a writable root folder of its own, the machine's programs read-only, and an environment without
anything of the caller's. It may have PROCESSES processes and threads, and each may address MEMORY_BYTES; what
they write is not limited. Images of the tiny tasks are folders with the repository in `testbed`; a sandbox
works on a copy.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from evaluation.swe.sandbox_user import SandboxUser
from sao.temporary_folder import delete

MARK = "SAO_SWE_SANDBOX"  # environment variable of every process in a sandbox: its folder
HOME = "/root"
MEMORY_BYTES = 4 * 2**30  # address space of a process: the agent server takes the half, the tiny tests less
PROCESSES = 1024  # processes and threads of a sandbox at once: the agent server has some dozens
SYSTEM_FILES = ("alternatives", "ld.so.cache", "localtime", "nsswitch.conf", "ssl")
ISOLATION = ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net")
MERGED = ("bin", "sbin", "lib", "lib64")  # links into /usr on most systems


class SandboxError(Exception):
    """Bubblewrap or an image is missing; the message says which and how to mend it."""


def require_bubblewrap() -> None:
    """Raise SandboxError where bubblewrap is not installed, or namespaces or limits cannot be had here."""
    if shutil.which("bwrap") is None:
        raise SandboxError("bubblewrap is not installed (apt install bubblewrap); or use --workspace docker")
    user = SandboxUser.new()
    if user.outside == 0:
        raise SandboxError(
            "root has no other user here to run sandboxes as, so that the number of their processes cannot "
            "be limited; start this as another user, or use --workspace docker"
        )
    words = ["bwrap", *ISOLATION, *user.isolation, "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"]
    words += [*user.becoming, "prlimit", f"--nproc={PROCESSES}", "true"]
    tried = subprocess.run(words, capture_output=True, text=True)
    if tried.returncode:
        raise SandboxError(
            f"bubblewrap cannot make namespaces here ({tried.stderr.strip()}); use --workspace docker"
        )


def image_folder(images: Path, image: str) -> Path:
    """The folder that stands for an image of this name."""
    return images / image.replace("/", "__").replace(":", "__")


@dataclass
class Sandbox:
    """A root folder with a copy of an image in it. `binds` are folders to add, read-only, by their place.

    Raises SandboxError for an image that is not there. `close` ends its processes and removes its folder.
    """

    folder: Path
    image: Path
    binds: Mapping[Path, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    user: SandboxUser = field(default_factory=SandboxUser.new)
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not (self.image / "testbed").is_dir():
            raise SandboxError(
                f"{self.image}: there is no such image folder; --images names the folder of the images"
            )
        self.folder = self.folder.absolute()
        self.folder.mkdir(parents=True)
        # Bubblewrap would make the folders above a mount for itself alone.
        mounted = [str(Path(words[-1]).parent) for words in self._mounts()]
        for name in ("tmp", HOME, "etc", "usr", "proc", "dev", *mounted):
            (self.folder / name.strip("/")).mkdir(parents=True, exist_ok=True)
        for name in MERGED:
            if Path("/", name).is_symlink():
                (self.folder / name).symlink_to(os.readlink(f"/{name}"))
        (self.folder / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
        self.user.write_accounts(self.folder / "etc", HOME)
        shutil.copytree(self.image / "testbed", self.folder / "testbed", symlinks=True)
        self.user.own(self.folder)

    @property
    def testbed(self) -> Path:
        return self.folder / "testbed"

    def command(self, words: Sequence[str], directory: str = "/testbed") -> list[str]:
        """The words of bubblewrap's command line for a command inside."""
        inside = ["bwrap", "--die-with-parent", "--new-session", *ISOLATION, *self.user.isolation]
        inside += ["--bind", str(self.folder), "/", "--proc", "/proc", "--dev", "/dev"]
        inside += ["--perms", "1777", "--tmpfs", "/dev/shm"]
        inside += [word for pair in self._mounts() for word in pair]
        inside += ["--clearenv"]
        inside += [word for name, value in self.variables.items() for word in ("--setenv", name, value)]
        # Set inside: outside it would count all processes of the caller.
        limited = ["prlimit", f"--nproc={PROCESSES}", *words]
        return [*inside, "--chdir", directory, *self.user.becoming, *limited]

    def start(self, words: Sequence[str], directory: str = "/testbed") -> subprocess.Popen[bytes]:
        """Start a command inside, with its output and errors together in one pipe."""
        return self._popen(self.command(words, directory))

    def _popen(
        self, words: Sequence[str], files: Sequence[int] = (), stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        limits = [f"--as={MEMORY_BYTES}", "--core=0"]  # hard ones, which nothing inside can raise
        process = subprocess.Popen(
            ["prlimit", *limits, *words],
            pass_fds=files,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": os.environ.get("PATH", os.defpath), MARK: str(self.folder)},
        )
        self._processes.append(process)
        return process

    def run(
        self, words: Sequence[str], directory: str = "/testbed", timeout: float | None = None
    ) -> tuple[int, bytes]:
        """Exit code and output of a command inside.

        Raises subprocess.TimeoutExpired once it is ended, and SandboxError where bubblewrap itself failed.
        """
        process = self.start(words, directory)
        try:
            output, _ = process.communicate(timeout=timeout)
        finally:
            end(process)
        if process.returncode == 1 and output.startswith(b"bwrap: "):
            raise SandboxError(output.decode(errors="replace").strip())
        return process.returncode, output

    def hold(self) -> tuple[subprocess.Popen[bytes], int]:
        """Open the sandbox without a command: bubblewrap, and the id of a process in its namespaces.

        What waits inside ends with its input: one that is still starting when this process is killed misses
        bubblewrap's signal. Raises SandboxError where it cannot be opened.
        """
        reader, writer = os.pipe()
        words = self.command(["sh", "-c", "echo ready; exec cat >/dev/null"], "/")
        opening = [words[0], "--info-fd", str(writer), *words[1:]]
        process = self._popen(opening, (writer,), subprocess.PIPE)
        os.close(writer)
        with os.fdopen(reader) as file:
            information = file.read()
        assert process.stdout
        said = process.stdout.readline()
        if said != b"ready\n":
            raise SandboxError((said + process.stdout.read()).decode(errors="replace").strip())
        return process, int(json.loads(information)["child-pid"])

    def close(self) -> None:
        """End all that runs inside and remove the folder."""
        for process in self._processes:
            end(process)
        delete(self.folder)

    def _mounts(self) -> list[tuple[str, ...]]:
        mounts: list[tuple[str, ...]] = [("--ro-bind", "/usr", "/usr")]
        for name in MERGED:
            place = Path("/", name)
            if place.exists() and not place.is_symlink():
                mounts.append(("--ro-bind", str(place), str(place)))
        for name in SYSTEM_FILES:
            mounts.append(("--ro-bind-try", f"/etc/{name}", f"/etc/{name}"))
        for prefix in dict.fromkeys((sys.base_prefix, sys.prefix)):
            mounts.append(("--ro-bind", prefix, prefix))
        mounts += [("--ro-bind", str(outside), inside) for outside, inside in self.binds.items()]
        return mounts

    @property
    def variables(self) -> dict[str, str]:
        """The environment of what runs inside."""
        path = [f"{sys.prefix}/bin", "/usr/local/bin", "/usr/bin", "/bin"]
        return {
            "PATH": os.pathsep.join(path),
            "HOME": HOME,
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            MARK: str(self.folder),
            **self.environment,
        }


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill bubblewrap, and with it all that runs inside; nothing for a process that has ended."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()
