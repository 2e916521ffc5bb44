"""Ends workers and deletes their folder when the program that started them is gone, however it went.

    python -m evaluation.swe.training_watch FOLDER

Each line of input names a worker's process group. Input ends with the program that holds its other end, also
where that was killed; then the groups that are left are killed, and the folder is deleted. It leaves the
program's family at once, because there are programs (Ray's workers) that kill their children when they end.
Its output ends when it does. Standard library only, so that it is there at once.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

TRIES = 50  # to delete what a process that is being killed still writes to
PAUSE_SECONDS = 0.1


def main() -> None:
    """Wait for the end of input, then clear away."""
    if os.fork():
        os._exit(0)
    groups = [int(line) for line in sys.stdin]
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    delete(Path(sys.argv[1]))


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


if __name__ == "__main__":
    main()
