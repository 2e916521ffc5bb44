"""Ray on several nodes of a job, with stand-ins for SLURM's commands and for Ray."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sao.openrlhf import nodes
from sao.openrlhf.nodes import NodesError

HOSTS = ["gpu-07", "gpu-08", "gpu-11"]
JOB = {"SLURM_JOB_ID": "42"}


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """SLURM's commands in front of the PATH; srun writes its arguments down and stays until it is ended."""
    folder = tmp_path / "bin"
    folder.mkdir()
    install(folder, "squeue", '[ "$2" = 42 ] && echo "gpu-[07-08,11]"')
    install(folder, "scontrol", '[ "$3" = "gpu-[07-08,11]" ] && printf "gpu-07\\ngpu-08\\ngpu-11\\n"')
    install(folder, "srun", f'echo "$@" >> {tmp_path}/started; exec sleep 600')
    install(folder, "ray", "exit 0")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(nodes, "POLL_SECONDS", 0.05)
    return folder


def install(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_nodes_are_those_of_the_job(commands: Path) -> None:
    assert nodes.job_hosts(JOB) == HOSTS
    with pytest.raises(
        NodesError, match="neither RAY_ADDRESS nor SLURM_JOB_ID is set; start the workflow with"
    ):
        nodes.job_hosts({})
    install(commands, "squeue", "echo 'Invalid job id specified' >&2; exit 1")
    with pytest.raises(NodesError, match=r"squeue --jobs 42 .*: Invalid job id specified"):
        nodes.job_hosts(JOB)


def test_head_on_the_first_node_and_a_worker_on_each_other() -> None:
    head, workers = nodes.start_commands(HOSTS, gpus=8)
    assert head[head.index("--nodelist") + 1] == "gpu-07" and "--head" in head
    assert workers[workers.index("--nodelist") + 1] == "gpu-08,gpu-11"
    assert workers[workers.index("--address") + 1] == "gpu-07:6379"
    for command in (head, workers):
        assert command[command.index("--num-gpus") + 1] == "8" and "--block" in command
        assert command[command.index("--gpus-per-node") + 1] == "8"
    assert len(nodes.start_commands(HOSTS[:1], gpus=1)) == 1


def test_ray_of_a_node_takes_its_temporary_files_along(
    commands: Path, tmp_path: Path, temporary_files: Path
) -> None:
    """Ended as srun ends it; `ray` stands for one that keeps a session and starts workers with TMPDIR."""
    ray = 'echo "$@" > $TMPDIR/words; mkdir $6; echo $6 $TMPDIR; exec sleep 600'
    install(commands, "ray", ray)
    words = ["--num-gpus", "8", "--block"]
    node = subprocess.Popen(
        [sys.executable, "-m", "sao.openrlhf.ray_node", *words],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    session, place = (Path(word) for word in node.stdout.readline().split())
    assert session.parent == place and place.parent == temporary_files and session.is_dir()
    assert (place / "words").read_text().split() == ["start", *words, "--temp-dir", str(session)]
    node.terminate()
    assert node.wait(10) == -signal.SIGTERM % 256
    node.stdout.close()
    assert not list(temporary_files.iterdir())


def test_the_command_runs_against_the_cluster_which_then_ends(
    commands: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    counts = iter([(0, 0), (1, 8), (3, 24)])
    monkeypatch.setattr(nodes, "alive", lambda address: next(counts))
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    code = [sys.executable, "-c", "import os, sys; print(os.environ['RAY_ADDRESS']); sys.exit(7)"]
    assert nodes.main(["--nodes", "3", "--gpus", "8", "--", *code]) == 7
    assert capfd.readouterr().out.strip() == "gpu-07:6379"
    started = (tmp_path / "started").read_text().splitlines()
    assert len(started) == 2
    left = subprocess.run(["pgrep", "-f", f"{commands}/srun"], capture_output=True, text=True).stdout.split()
    assert left == []


def test_a_cluster_that_lacks_nodes_is_refused(
    commands: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nodes, "alive", lambda address: (2, 16))
    with (
        pytest.raises(
            NodesError, match="has 2 nodes with 16 GPUs after 0 s, and the scale asks for 3 with 24"
        ),
        nodes.ray_cluster(3, 8, JOB, seconds=0.2),
    ):
        pass
    with (
        pytest.raises(NodesError, match="the job has 3 nodes, and the scale asks for 4"),
        nodes.ray_cluster(4, 8, JOB),
    ):
        pass
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert nodes.main(["--nodes", "2", "--gpus", "8", "--", "true"]) == 2
    assert "set RAY_ADDRESS" in capfd.readouterr().err


def test_ray_that_ends_while_it_starts_is_named(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(commands, "srun", "exit 1")
    monkeypatch.setattr(nodes, "alive", lambda address: (0, 0))
    with (
        pytest.raises(NodesError, match="Ray ended on a node while it started"),
        nodes.ray_cluster(3, 8, JOB),
    ):
        pass


def test_a_node_lost_during_the_run_ends_it(commands: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lost = subprocess.Popen(["sleep", "0.3"])
    began = time.monotonic()
    assert nodes.run(["sleep", "600"], "gpu-07:6379", [lost]) == 1
    assert time.monotonic() - began < 60
    assert "the run goes on from its checkpoint" in capfd.readouterr().err


def test_a_cluster_that_runs_already_is_used(
    commands: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "alive", lambda address: (12, 96) if address == "ray-head:6379" else (0, 0))
    with nodes.ray_cluster(12, 8, {"RAY_ADDRESS": "ray-head:6379"}) as (address, steps):
        assert (address, steps) == ("ray-head:6379", [])
    assert not (tmp_path / "started").exists()


def test_missing_programs_and_commands_are_named(
    commands: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (commands / "ray").unlink()
    with pytest.raises(NodesError, match="ray: is not on the PATH"), nodes.ray_cluster(3, 8, JOB):
        pass
    with pytest.raises(SystemExit):
        nodes.main(["--nodes", "1", "--gpus", "1"])
    assert "no command; put it behind --" in capsys.readouterr().err
