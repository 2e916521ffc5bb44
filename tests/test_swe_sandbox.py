"""What commands in a sandbox of the tiny tasks may take of this machine."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fork_bomb import fork_bomb

from evaluation.swe import sandbox
from evaluation.swe.sandbox import Sandbox

pytestmark = pytest.mark.skipif(not shutil.which("bwrap"), reason="needs bubblewrap")
ROOT = Path(__file__).parents[1]
FORKS = 200
REACH = """\
import errno, socket
print(socket.if_nameindex())
for place in (("127.0.0.1", PORT), ("192.0.2.1", 80)):
    try:
        socket.create_connection(place, timeout=5)
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
TAKE = "import sys; taken = bytearray(int(sys.argv[1])); print(len(taken))"


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Sandbox]:
    (tmp_path / "image/testbed").mkdir(parents=True)
    made = Sandbox(tmp_path / "box", tmp_path / "image")
    yield made
    made.close()


def take(opened: Sandbox, bytes_wanted: int, *before: str) -> tuple[int, str]:
    status, output = opened.run([*before, "python", "-c", TAKE, str(bytes_wanted)])
    return status, output.decode()


def test_memory_of_a_process_is_limited(opened: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MEMORY_BYTES", 2**29)
    assert take(opened, 2**27) == (0, f"{2**27}\n")
    status, said = take(opened, 2**30)
    assert status == 1 and said.endswith("MemoryError\n")


def test_nothing_inside_raises_the_limit(opened: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MEMORY_BYTES", 2**29)
    _, said = opened.run(["bash", "-c", "ulimit -v unlimited; prlimit --as=unlimited --pid $$; ulimit -v"])
    assert said.decode().splitlines()[-1] == str(2**29 // 1024) and b"not permitted" in said


def test_a_sandbox_that_is_held_open_has_the_limit_too(
    opened: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "MEMORY_BYTES", 2**29)
    _, inside = opened.hold()
    limits = Path(f"/proc/{inside}/limits").read_text()
    [line] = [line for line in limits.splitlines() if line.startswith("Max address space")]
    assert line.split()[3:5] == [str(2**29)] * 2


def test_a_sandbox_that_nobody_holds_any_more_ends(opened: Sandbox) -> None:
    """Without bubblewrap's signal, which a sandbox that is still starting misses."""
    process, _ = opened.hold()
    assert process.stdin and process.poll() is None
    process.stdin.close()
    assert process.wait(timeout=20) == 0


def test_the_number_of_processes_is_limited(opened: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "PROCESSES", 40)
    _, said = opened.run(["python", "-c", fork_bomb(FORKS)])
    made, _, reason = said.decode().strip().partition(" ")
    assert reason == "Resource temporarily unavailable" and 30 < int(made) <= 40
    _, said = opened.run(["bash", "-c", "ulimit -u unlimited; prlimit --nproc=unlimited --pid $$; ulimit -u"])
    assert said.decode().splitlines()[-1] == "40" and b"not permitted" in said


def test_sandboxes_do_not_share_the_limit(
    opened: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "PROCESSES", 40)
    full = opened.start(["python", "-c", fork_bomb(FORKS).replace("os.killpg(0, 9)", "time.sleep(60)")])
    assert full.stdout and b"unavailable" in full.stdout.readline()
    other = Sandbox(tmp_path / "other", tmp_path / "image")
    assert other.run(["bash", "-c", "(echo one); (echo two)"]) == (0, b"one\ntwo\n")
    other.close()


def test_no_network_is_reached(opened: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        program = REACH.replace("PORT", str(listener.getsockname()[1]))
        _, said = opened.run(["python", "-c", program])
    assert said.decode().splitlines() == ["[(1, 'lo')]", "ECONNREFUSED", "ENETUNREACH"]


def test_commands_run_as_a_user_without_rights_who_owns_the_files(opened: Sandbox) -> None:
    script = "whoami; grep CapEff /proc/self/status; stat -c %U . /tmp ~; echo > /etc/x; echo > /usr/x"
    _, said = opened.run(["bash", "-c", script])
    name, _, rights, *owners = said.decode().split()
    assert (name, rights, owners[:3]) == ("agent", "0" * 16, ["agent"] * 3)
    assert b"/usr/x: Read-only file system" in said and b"/etc/x" not in said


def test_root_without_another_user_is_refused() -> None:
    program = "from evaluation.swe.sandbox import require_bubblewrap; require_bubblewrap()"
    words = ["unshare", "--user", "--map-root-user", sys.executable, "-c", program]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert "SandboxError: root has no other user here" in done.stderr.splitlines()[-1]
