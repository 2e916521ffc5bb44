"""Ray on one node of a job; its session and its workers' temporary files go with it.

    python -m sao.openrlhf.ray_node --head --port 6379 --num-gpus 8 --block

takes the words of `ray start`. `sao.openrlhf.nodes` has it started on every node. Imports no Ray.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from sao.temporary_folder import TemporaryFolder


def main(words: Sequence[str]) -> int:
    """Runs `ray start` until it ends; returns its exit code."""
    with TemporaryFolder.of_launch() as temporary:
        command = ["ray", "start", *words, "--temp-dir", str(temporary.path / "ray")]
        process = subprocess.Popen(command, env=os.environ | temporary.variables)
        signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number))
        return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
