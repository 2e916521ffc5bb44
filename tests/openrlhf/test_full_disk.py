"""A whole run whose disk is full at its first checkpoint: one message, and the next attempt ends it.

The disk is a small one in memory, which bubblewrap makes. `make openrlhf-nightly` runs it.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_end_to_end import lines

from sao import config, prepare

SCALE, ROW = "openrlhf_smoke", "grpo_dis"
REPOSITORY = Path(__file__).parents[2]
SECONDS = 900
DISK_BYTES = 64 * 2**20
FREE_BYTES = 1_200_000  # more than the logs and a copy of the weights take, less than a checkpoint does
ATTEMPTS = """
import json, shutil, subprocess, sys
from pathlib import Path

prepared, results, out = map(Path, sys.argv[1:4])
shutil.copytree(prepared, results, dirs_exist_ok=True)
ballast = results / "ballast"
ballast.write_bytes(bytes(shutil.disk_usage(results).free - FREE))
for attempt in ("first", "second"):
    done = subprocess.run(sys.argv[4:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    shutil.copytree(results, out / attempt, ignore=shutil.ignore_patterns("ballast"))
    (out / attempt / "said.json").write_text(json.dumps([done.returncode, done.stdout]))
    ballast.unlink(missing_ok=True)
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
]


@pytest.fixture(scope="module")
def attempts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies of the results after an attempt on the full disk and after one with room."""
    folder = tmp_path_factory.mktemp("full_disk")
    prepared, results, out = (folder / name for name in ("prepared", "results", "out"))
    for place in (results, out):
        place.mkdir()
    words = ["warm-start", "--scale", SCALE, "--task", "locks", "--results", str(prepared)]
    assert prepare.main(words) == 0
    disk = ["bwrap", "--die-with-parent", "--dev-bind", "/", "/"]
    disk += ["--size", str(DISK_BYTES), "--tmpfs", str(results)]
    script = ATTEMPTS.replace("FREE", str(FREE_BYTES))
    both = [sys.executable, "-c", script, *map(str, (prepared, results, out))]
    train = [sys.executable, "-m", "sao.train", "--row", ROW, "--scale", SCALE, "--results", str(results)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    subprocess.run([*disk, *both, *train], cwd=REPOSITORY, env=environment, timeout=SECONDS, check=True)
    return out


def run_folder(attempts: Path, name: str) -> Path:
    return attempts / name / SCALE / "runs" / ROW / "seed0"


def test_a_full_disk_ends_the_run_with_one_message(attempts: Path) -> None:
    code, said = json.loads((attempts / "first" / "said.json").read_text())
    message = said.strip().splitlines()[-1]
    assert code in (1, 2)  # 2 where not even the reason could be written down
    assert "No space left on device" in message and "Traceback" not in said, said
    folder = run_folder(attempts, "first")
    assert lines(folder, "metrics.jsonl") and not (folder / "seal.json").exists()
    assert not list(folder.glob("checkpoint-*"))


def test_with_room_the_same_command_ends_it(attempts: Path) -> None:
    code, said = json.loads((attempts / "second" / "said.json").read_text())
    assert code == 0, said
    folder, updates = run_folder(attempts, "second"), config.resolve(ROW, SCALE, 0).training.updates
    assert (folder / "seal.json").exists()
    assert [line["step"] for line in lines(folder, "metrics.jsonl")] == list(range(updates))
