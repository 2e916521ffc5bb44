"""The command line of the Python tool's warm process: what bubblewrap lets it see."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import sysconfig
from pathlib import Path

from evaluation.math.sandbox_isolation import SCRATCH, SESSION_ID

NEEDED, OFFERED = ("numpy", "sympy", "mpmath"), ("scipy",)
CODE = [f"sandbox_{part}.py" for part in ("cell", "child", "isolation", "messages", "supervisor", "worker")]
BOOT = (
    "import json, sys; sys.path[:0] = json.loads(sys.argv[1])['path']; "
    "from evaluation.math.sandbox_child import main; main()"
)
SESSION_UIDS = 10_000
UID_CEILING = 2**31  # of the ids given to sessions; tools that keep ids in 32 signed bits stop here


class SandboxError(RuntimeError):
    """The sandbox cannot be had or has failed. One line that says why and how to mend it."""


def session_uids() -> tuple[int | None, int]:
    """First and number of the user ids that sessions run under; (None, 0) for a caller other than root."""
    if os.geteuid() != 0:
        return None, 0
    mapped = sum(int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines())
    return max(min(mapped, UID_CEILING) - 2 * SESSION_UIDS, 1), SESSION_UIDS


def server_environment() -> dict[str, str]:
    """Environment of the warm process. Hashes have a fixed seed: sets print in one order everywhere."""
    return {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def server_command(control: int, sandbox: str, first_uid: int | None, uids: int) -> list[str]:
    """Command line of the warm process, whose end of the control socket is the file descriptor `control`.

    Raises SandboxError where bubblewrap or a package is missing.
    """
    packages = package_folders()
    interpreter = os.path.realpath(sys.executable)
    settings = {"control": control, "namespaced": sandbox != "none", "first_uid": first_uid, "uids": uids}
    if sandbox == "none":
        folders = [str(Path(__file__).resolve().parents[2]), *sorted({str(p.parent) for p in packages})]
        return [*python(interpreter), json.dumps({**settings, "path": folders, "first_uid": None})]
    bubblewrap = shutil.which("bwrap")
    if bubblewrap is None:
        raise SandboxError(
            "bubblewrap (bwrap) is not installed, so code that a model wrote has no sandbox: "
            'apt-get install bubblewrap, or accept plain processes with sandbox "none"'
        )
    return [
        bubblewrap,
        *identity(root=first_uid is not None),
        *file_view(interpreter, packages),
        *python(interpreter),
        json.dumps({**settings, "path": ["/sandbox", "/packages"]}),
    ]


def python(interpreter: str) -> list[str]:
    """Without site-packages, its .pth files and the user's own modules; nothing is written."""
    return [interpreter, "-s", "-P", "-S", "-B", "-c", BOOT]


def package_folders() -> list[Path]:
    """The packages sessions may import, and the folders of shared libraries beside them."""
    folders = []
    for name in NEEDED + OFFERED:
        found = importlib.util.find_spec(name)
        if found and found.origin:
            folder = Path(found.origin).resolve().parent
            folders += [folder, folder.with_name(f"{name}.libs")]
        elif name in NEEDED:
            raise SandboxError(f"the Python tool needs {name}: pip install numpy sympy")
    return [folder for folder in folders if folder.is_dir()]


def identity(root: bool) -> list[str]:
    """Namespaces of the warm process. Root's may change to the sessions' ids and has no other capability."""
    namespaces = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if root:
        return [*namespaces, "--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    return ["--unshare-user", "--uid", str(SESSION_ID), "--gid", str(SESSION_ID), *namespaces]


def file_view(interpreter: str, packages: list[Path]) -> list[str]:
    """Shared libraries, the interpreter and the packages, all read-only; four devices; a place for scratch.

    /proc is the host's: the kernel lets a session mount its own only where a whole one is in sight, and that
    covers this one before any of the model's code runs.
    """
    links = {"/dev/fd": "/proc/self/fd", "/dev/shm": SCRATCH, "/tmp": SCRATCH}
    binds: dict[str, str] = {}  # target: source
    for folder in ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64"):
        if os.path.islink(folder):
            links[folder] = os.readlink(folder)
        elif os.path.isdir(folder):
            binds[folder] = folder
    standard = os.path.dirname(sysconfig.get_path("stdlib"))
    for path in (standard, os.path.join(sys.base_exec_prefix, sys.platlibdir), interpreter):
        binds.setdefault(os.path.realpath(path), os.path.realpath(path))
    for package in packages:
        binds[f"/packages/{package.name}"] = str(package)
    for name in CODE:
        binds[f"/sandbox/evaluation/math/{name}"] = str(Path(__file__).resolve().with_name(name))
    # bubblewrap would make missing parents for root alone.
    parents = {str(folder) for target in binds for folder in Path(target).parents} - {"/"}
    view = [word for folder in sorted({*parents, "/dev", SCRATCH}) for word in ("--dir", folder)]
    view += [word for target, source in sorted(binds.items()) for word in ("--ro-bind", source, target)]
    view += [word for link, target in links.items() for word in ("--symlink", target, link)]
    for device in ("null", "zero", "random", "urandom"):
        view += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    view += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    return [*view, "--bind", "/proc", "/proc", "--remount-ro", "/", "--hostname", "sandbox", "--chdir", "/"]
