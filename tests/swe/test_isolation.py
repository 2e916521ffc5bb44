"""What commands in a local workspace reach of this machine and its network, while its agent server works."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from conftest import eventually, processes_of
from fork_bomb import fork_bomb
from scripted_model import ScriptedModel

from evaluation.swe.sandbox import PROCESSES
from evaluation.swe.tasks import Task
from evaluation.swe.tiny_tasks import build_tiny_tasks
from evaluation.swe.workspaces import LocalFolder, WorkspaceOptions

CONNECT = """\
import errno, socket, sys
for place in sys.argv[1:]:
    host, port = place.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
        print("open")
    except OSError as error:
        print(errno.errorcode.get(error.errno, error))
"""
# The server's sockets lead outside: whoever had one could connect it to another place.
TAKE = """\
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
[server] = [name for name in os.listdir("/proc") if name.isdigit()
            and b"evaluation.swe.server_parent" in open(f"/proc/{name}/cmdline", "rb").read()]
handle = os.pidfd_open(int(server))
taken = [libc.syscall(438, handle, number, 0) for number in range(64)]
print({os.strerror(ctypes.get_errno()) if number < 0 else number for number in taken})
for name in ("mem", "environ", "maps"):
    try:
        open(f"/proc/{server}/{name}", "rb").read(1)
        print("read")
    except PermissionError:
        print("refused")
"""
FORKS = 2000


def opened(folder: Path, task: Task, images: Path, endpoint: str) -> LocalFolder:
    folder.mkdir()
    options = WorkspaceOptions("local", folder, images, endpoint=endpoint)
    return LocalFolder(options, task, threading.Event())


class Two:
    """Two workspaces of one task at once, and a port of this machine that is no model's."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        task = build_tiny_tasks(folder)[0]
        self.private = socket.create_server(("127.0.0.1", 0))
        self.first = opened(folder / "first", task, folder / "images", url)
        self.second = opened(folder / "second", task, folder / "images", url)

    def close(self) -> None:
        self.private.close()
        self.first.close()
        self.second.close()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    with ScriptedModel({}) as model:
        made = Two(tmp_path_factory.mktemp("two"), model.url)
        yield made
        made.close()


def networks() -> set[str]:
    """The network namespaces that have a process."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.add(os.readlink(process / "ns/net"))
        except OSError:
            continue
    return found


def python(workspace: LocalFolder, program: str, *arguments: str) -> list[str]:
    """Output lines of a program that runs as the agent's commands do: the server starts it."""
    (workspace.sandbox.folder / "tmp/program.py").write_text(program)
    result = workspace.remote.execute_command(f"python /tmp/program.py {' '.join(arguments)}", timeout=60)
    return (result.stdout + result.stderr).splitlines()


def test_the_model_answers_inside_and_nothing_else_does(two: Two) -> None:
    url, headers = two.first.inside("https://user@models.example:8443/v1?a=1")
    assert (url, headers) == ("http://127.0.0.1:1023/v1?a=1", {"Host": "models.example:8443"})
    asked = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:1023/v1/models').read().decode())"
    assert python(two.first, asked) == [
        '{"object": "list", "data": [{"id": "tiny-coder", "object": "model"}]}'
    ]
    private, server = two.private.getsockname()[1], two.first.remote.host.rpartition(":")[2]
    places = (f"127.0.0.1:{private}", f"127.0.0.1:{server}", "192.0.2.1:80", "8.8.8.8:53")
    assert python(two.first, CONNECT, *places) == ["ECONNREFUSED"] * 2 + ["ENETUNREACH"] * 2
    assert python(two.first, "import socket; print(socket.if_nameindex())") == ["[(1, 'lo')]"]


def test_both_are_reached_from_outside_and_neither_from_the_other(two: Two) -> None:
    for workspace in (two.first, two.second):
        assert httpx.get(f"{workspace.remote.host}/health").is_success and workspace.ended() == ""
    listen = "import socket, time; s = socket.create_server(('127.0.0.1', 8000)); time.sleep(20)"
    (two.first.sandbox.folder / "tmp/listen.py").write_text(listen)
    two.first.remote.execute_command("python /tmp/listen.py >/dev/null 2>&1 & sleep 2", timeout=30)
    assert python(two.first, CONNECT, "127.0.0.1:8000") == ["open"]
    assert python(two.second, CONNECT, "127.0.0.1:8000") == ["ECONNREFUSED"]
    taken = "import socket; socket.create_server(('127.0.0.1', 1023))"
    assert python(two.second, taken)[-1].startswith(("PermissionError", "OSError: [Errno 98]"))


def test_nobody_inside_takes_the_servers_sockets_or_reads_its_memory(two: Two) -> None:
    assert python(two.second, TAKE) == ["{'Operation not permitted'}", "refused", "refused", "refused"]
    rights = "print([line for line in open('/proc/self/status') if line.startswith('CapEff')][0])"
    assert python(two.second, rights)[0].split() == ["CapEff:", "0" * 16]


def test_a_fork_bomb_ends_at_the_limit_and_the_server_lives(two: Two) -> None:
    [said] = [line for line in python(two.second, fork_bomb(FORKS)) if "unavailable" in line]
    assert PROCESSES - 200 < int(said.split()[0]) < PROCESSES < FORKS
    assert two.second.ended() == "" and python(two.second, "print('well')") == ["well"]
    assert python(two.first, "print('well')") == ["well"]


def test_closing_leaves_no_process_folder_port_or_network(two: Two) -> None:
    place = two.first.remote.host.removeprefix("http://").split(":")
    own = "import os; print(os.readlink('/proc/self/ns/net'))"
    mine = {python(workspace, own)[0] for workspace in (two.first, two.second)}
    assert len(mine) == 2 and mine <= networks()
    two.close()
    assert eventually(lambda: not mine & networks() and processes_of(two.folder) == [])
    assert [list((two.folder / name).iterdir()) for name in ("first", "second")] == [[], []]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((place[0], int(place[1])))
    assert not [thread for thread in threading.enumerate() if thread.name == "forwarder"]
