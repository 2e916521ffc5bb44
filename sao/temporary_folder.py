"""A folder for temporary files that goes with the program that opened it, also where that is killed.

    python -m sao.temporary_folder FOLDER

is the process that `TemporaryFolder` starts beside itself. Each line of input names a process group. Input
ends with the program that holds its other end, also where that was killed; then the groups that are left are
killed, and the folder is deleted. It leaves the program's family at once, because there are programs (Ray's
workers) that kill their children when they end. Its output ends when it does. Standard library only, so that
it is there at once.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

TRIES = 50  # to delete what a process that is being killed still writes to
PAUSE_SECONDS = 0.1
ROOT = Path(__file__).resolve().parents[1]
SOCKET_PATH_BYTES = 107  # that Linux allows
LONGEST_SOCKET = "/sao-12345678/ray/session_2026-12-31_23-59-59_999999_4194304/sockets/plasma_store"


class TemporaryFolder:
    """A new folder in `parent`, by default where temporary files lie; the end of `with` deletes it."""

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self._watch = subprocess.Popen(
            [sys.executable, "-m", "sao.temporary_folder", str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        self._watch.wait()  # the one started; the process that it leaves watches

    @classmethod
    def of_launch(cls) -> Self:
        """For what Ray, vLLM, torchrun and DeepSpeed leave; its path is short enough for their sockets."""
        usual = tempfile.gettempdir()
        fits = len(os.fsencode(usual + LONGEST_SOCKET)) <= SOCKET_PATH_BYTES
        return cls("sao-", Path(usual if fits else "/tmp"))

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables with which a process and its children keep their temporary files there."""
        return {"TMPDIR": str(self.path)}

    def watch(self, group: int) -> None:
        """Have a process group killed before the folder is deleted."""
        assert self._watch.stdin
        self._watch.stdin.write(b"%d\n" % group)
        self._watch.stdin.flush()

    def close(self) -> None:
        """Kill what is left of the groups watched, and delete the folder; returns when that is done."""
        assert self._watch.stdin and self._watch.stdout
        if not self._watch.stdin.closed:
            self._watch.stdin.close()
            self._watch.stdout.read()  # until all is cleared away
            self._watch.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def delete(folder: Path) -> None:
    """Delete a folder, also what a task's commands made unreadable in it, or are still writing."""
    for _ in range(TRIES):
        for place, _, _ in os.walk(folder):
            with contextlib.suppress(OSError):
                os.chmod(place, 0o700)
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(PAUSE_SECONDS)


def main() -> None:
    """Wait for the end of input, then clear away."""
    if os.fork():
        os._exit(0)
    groups = [int(line) for line in sys.stdin]
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    delete(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
