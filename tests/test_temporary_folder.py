"""The folder of a launch: gone when it is closed, and when its program was killed."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from sao.temporary_folder import LONGEST_SOCKET, SOCKET_PATH_BYTES, TemporaryFolder

REPOSITORY = Path(__file__).parents[1]
PROGRAM = """
import subprocess, sys, time
from pathlib import Path
from sao.temporary_folder import TemporaryFolder

folder = TemporaryFolder("kept-", Path(sys.argv[1]))
words = [sys.executable, "-c", "import tempfile, time; tempfile.mkdtemp(); time.sleep(600)"]
child = subprocess.Popen(words, env=folder.variables, start_new_session=True)
folder.watch(child.pid)
while not list(folder.path.iterdir()):
    time.sleep(0.01)
print(child.pid, folder.path, flush=True)
time.sleep(600)
"""


def runs(process: int) -> bool:
    stat = Path(f"/proc/{process}/stat")
    return stat.exists() and " Z " not in stat.read_text()


def test_it_goes_when_closed_with_all_that_is_in_it(tmp_path: Path) -> None:
    with TemporaryFolder("a-", tmp_path) as folder:
        assert folder.path.parent == tmp_path and folder.variables == {"TMPDIR": str(folder.path)}
        (folder.path / "closed" / "deep").mkdir(parents=True)
        (folder.path / "closed" / "deep" / "file").touch()
        (folder.path / "closed").chmod(0o000)
        sleeper = subprocess.Popen(["sleep", "600"], start_new_session=True)
        folder.watch(sleeper.pid)
    assert not list(tmp_path.iterdir())
    assert sleeper.wait(10) == -signal.SIGKILL
    folder.close()


def test_it_goes_with_a_program_that_is_killed(tmp_path: Path) -> None:
    """What the program's child keeps where temporary files lie is in it, and the child goes first."""
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
    )
    child, folder = program.stdout.readline().split()
    assert list(tmp_path.iterdir()) == [Path(folder)] and len(list(Path(folder).iterdir())) == 1
    program.kill()
    program.wait()
    program.stdout.close()
    deadline = time.monotonic() + 10
    while list(tmp_path.iterdir()) or runs(int(child)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(("length", "kept"), [(26, True), (27, False), (200, False)])
def test_a_launchs_folder_leaves_room_for_the_longest_socket(
    length: int, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = f"/tmp/{'x' * (length - 5)}"
    made: list[Path | None] = []
    monkeypatch.setattr(tempfile, "tempdir", usual)
    monkeypatch.setattr(tempfile, "mkdtemp", lambda prefix, dir: made.append(dir) or str(tmp_path / "sao-"))
    (tmp_path / "sao-").mkdir()
    TemporaryFolder.of_launch().close()
    assert made == [Path(usual if kept else "/tmp")]
    assert (len(usual + LONGEST_SOCKET) <= SOCKET_PATH_BYTES) == kept
