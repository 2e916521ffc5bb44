"""Ports at which the ranks of a run meet, and what is left of a session."""

import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from sao.openrlhf import actor, critic, ports
from sao.openrlhf.launch import end_session


def kernel_gives_out(first: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "range"
    file.write_text(f"{first}\t60999\n")
    monkeypatch.setattr(ports, "KERNELS_PORTS", file)


def test_a_port_is_free_and_none_of_the_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three ports two are taken: the third is found, and none when it is taken too."""
    monkeypatch.setattr(ports, "FIRST_PORT", 23_017)
    kernel_gives_out(23_020, tmp_path, monkeypatch)
    with socket.create_server(("", 23_017)), socket.create_server(("", 23_019)):
        assert {ports.free_port() for _ in range(20)} == {23_018}
        with (
            socket.create_server(("", 23_018)),
            pytest.raises(OSError, match="no port is free between 23017 and 23019"),
        ):
            ports.free_port()


def test_where_the_kernel_gives_out_all_ports_it_chooses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel_gives_out(1024, tmp_path, monkeypatch)
    assert 1024 <= ports.free_port() <= 65_535


@pytest.mark.parametrize("kind", [actor.PolicyActor, critic.CriticActor])
def test_ranks_meet_there(kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "FIRST_PORT", 23_027)
    kernel_gives_out(23_028, tmp_path, monkeypatch)
    assert kind(1, 0, None, None).get_master_addr_port()[1] == 23_027


def test_a_process_without_parent_ends_with_its_session() -> None:
    """The leader ends and leaves its child, as a killed process of Ray leaves its engine."""
    code = "import subprocess, sys; print(subprocess.Popen(['sleep', '600'], stdout=sys.stderr).pid)"
    leader = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    output, _ = leader.communicate()
    child = psutil.Process(int(output))
    end_session(leader.pid)
    assert not psutil.wait_procs([child], timeout=10)[1]
