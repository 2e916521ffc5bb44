"""What commands in a sandbox of the tiny tasks may take of this machine."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluation.swe import sandbox
from evaluation.swe.sandbox import Sandbox

pytestmark = pytest.mark.skipif(not shutil.which("bwrap"), reason="needs bubblewrap")
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
