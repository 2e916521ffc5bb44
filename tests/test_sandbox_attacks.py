"""Attacks on the Python tool: each gets a short answer and costs the host and other sessions nothing.

They run with the rights of whoever runs the tests; where that is root, once more as an ordinary user.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_sessions import LIMITS, eventually, needs_bubblewrap, open_tool, processes_of, state_of

from evaluation.math.sandbox import PythonTool, Session, ToolResult

TESTS = Path(__file__).resolve().parent
NOBODY = 65534
SHORT = LIMITS.output_characters + 300  # characters: the limit, the mark of a cut, why the call was stopped


@pytest.fixture(scope="module")
def tool() -> Iterator[PythonTool]:
    with open_tool() as tool:
        yield tool


@pytest.fixture
def session(tool: PythonTool) -> Iterator[Session]:
    with tool.open_session() as session:
        yield session


# Attacks: code, how it must end, and words of the answer

CPU = "Stopped: it used more than 0.3 s of CPU time."
LOST = "Variables and imports are lost."
CALL = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
ERRNO = "\nprint(os.strerror(ctypes.get_errno()))"

ATTACKS = {
    "infinite loop": ("while True: pass", "timeout", CPU),
    "loop that ignores interrupts": (
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
        "timeout",
        LOST,
    ),
    "loops in threads": (
        "import threading\nfor _ in range(3): threading.Thread(target=lambda: sum(iter(int, 1))).start()",
        "timeout",
        CPU,
    ),
    "fork bomb": ("import os\nwhile True: os.fork()", "error", "Resource temporarily unavailable"),
    "fork that falls out of the call": ("import os\nif os.fork(): os.wait()\nprint('x')", "ok", "x\nx\n"),
    "thread bomb": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()",
        "error",
        "can't start new thread",
    ),
    "10 GB at once": ("bytearray(10 * 2**30)", "memory", "MemoryError"),
    "10 GB bit by bit": ("x = []\nwhile True: x.append(bytearray(2**20))", "memory", "MemoryError"),
    "10 GB over processes": (
        "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n        x = bytearray(40 * 2**20)\n"
        "        time.sleep(60)\ntime.sleep(60)",
        "memory",
        "Stopped: it used more than 64 MB of memory.",
    ),
    "memory outside processes": (
        "import os\nfiles = [os.memfd_create('x') for _ in range(100)]",
        "error",
        "Operation not permitted",
    ),
    "10 GB of output": ("while True: print('x' * 10**6)", "output", "Stopped: it printed more than 16 MB."),
    "10 GB of output by a subprocess": (
        "import os\nif os.fork() == 0:\n    while True: os.write(1, b'x' * 10**6)\nos.wait()",
        "output",
        "Stopped: it printed more than 16 MB.",
    ),
    "os._exit": ("import os\nos._exit(3)", "killed", "ended with exit code 3"),
    "kill itself": ("import os\nos.kill(os.getpid(), 9)", "killed", "ended by signal 9"),
    "crash": ("import ctypes\nctypes.string_at(0)", "killed", "ended by signal 11"),
    "close every file": ("import os\nos.closerange(0, 1000)", "killed", LOST),
    "kill the parent": (
        "import os\nfor number in (9, 15, 2, 19, 1): os.kill(os.getppid(), number)\nos.getppid()",
        "ok",
        "1\n",
    ),
    "kill everybody": ("import os\nos.kill(-1, 9)", "error", "No such process"),
    "limit the parent": (
        "import os, resource\nresource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (0, 0))",
        "error",
        "PermissionError",
    ),
    "slow the parent": ("import os\nos.setpriority(os.PRIO_PROCESS, 1, 19)", "error", "PermissionError"),
    "trace the parent": (CALL + "print(libc.ptrace(16, 1, 0, 0))" + ERRNO, "ok", "Operation not permitted"),
    "read the parent's memory": ("open('/proc/1/mem', 'rb').read(1)", "error", "PermissionError"),
    "read the parent's files": ("import os\nos.listdir('/proc/1/fd')", "error", "PermissionError"),
    "read /etc/shadow": ("open('/etc/shadow').read()", "error", "/etc/shadow"),
    "read the host's home folders": ("import os\nprint(os.listdir('/home'))", "error", "/home"),
    "read the kernel's files": ("open('/proc/kallsyms').read()", "error", "/proc/kallsyms"),
    "write over the interpreter": (
        "import sympy\nopen(sympy.__file__, 'w')",
        "error",
        "Read-only file system",
    ),
    "write to the root folder": ("open('/x', 'w')", "error", "OSError"),
    "open a socket": (
        "import socket\nsocket.create_connection(('1.1.1.1', 53), 2)",
        "error",
        "Network is unreachable",
    ),
    "mount": (CALL + "libc.mount(b'x', b'/scratch', b'tmpfs', 0, None)" + ERRNO, "ok", "not permitted"),
    "new user namespace": (CALL + "libc.unshare(0x10000000)" + ERRNO, "ok", "Operation not permitted"),
    "new user namespace by clone": (
        CALL + "libc.syscall(56 if os.uname().machine == 'x86_64' else 220, 0x10000011, 0, 0, 0, 0)" + ERRNO,
        "ok",
        "Operation not permitted",
    ),
    "regain rights": ("import os\nos.setuid(0)", "error", "OSError"),
    "delete the scratch folder": ("import shutil\nshutil.rmtree('/scratch')", "error", "/scratch"),
    "fill the scratch folder": (
        "for n in range(100):\n    open(f'f{n}', 'wb').write(bytes(2**20))",
        "error",
        "No space left on device",
    ),
    "one huge file": ("open('f', 'wb').truncate(2**40)", "error", "File too large"),
    "fill /dev/shm": (
        "for n in range(100):\n    open(f'/dev/shm/f{n}', 'wb').write(bytes(2**20))",
        "error",
        "No space left on device",
    ),
    "many small files": (
        "for n in range(10**5): open(f'f{n}', 'w').close()",
        "error",
        "No space left on device",
    ),
    "deep recursion": ("def f(n):\n    return f(n + 1)\nf(0)", "error", "RecursionError"),
    "stack overflow": (
        "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n    def __repr__(self): return repr(self)\nA()",
        "killed",
        "ended by signal 11",
    ),
    "deep code": ("(" * 10_000 + ")" * 10_000, "error", "SyntaxError: too many nested parentheses"),
    "huge number": ("10**10**5", "error", "Exceeds the limit"),
    "huge power": ("5**5**5**5**5", "timeout|memory", ""),
    "sys.exit": ("import sys\nsys.exit(3)", "error", "SystemExit: 3"),
    "KeyboardInterrupt": ("raise KeyboardInterrupt", "error", "KeyboardInterrupt"),
    "input": ("input('number: ')", "error", "EOFError"),
    "close the output": (
        "import sys\nsys.stdout.close()\nprint(1)",
        "error",
        "ValueError: I/O operation on closed file.",
    ),
    "close the standard files": ("import os\nos.closerange(0, 3)", "ok", ""),
    "replace the output": ("import sys\nsys.stdout = sys.stderr = None\nprint(1)", "ok", ""),
    "error that cannot be shown": (
        "class E(Exception):\n    def __str__(self): raise self\nraise E",
        "error",
        "E: <exception str() failed>",
    ),
    "null bytes": ("x = '\0'", "error", "null bytes"),
    "half a character": ("x = '\udcff'", "error", "UnicodeEncodeError"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_ends_with_a_short_answer(session: Session, attack: str) -> None:
    code, statuses, words = ATTACKS[attack]
    session.run("before = 7")
    result = session.run(code)
    assert result.status in statuses.split("|"), result
    assert words in result.output
    assert len(result.output) <= SHORT
    assert session.run("1 + 1") == ToolResult("2\n", "ok", False)
    kept = session.run("before").output == "7\n"
    assert kept != (LOST in result.output), "the answer must say whether variables were lost"


# Attacks on other sessions and on the protocol


def test_a_session_sees_only_itself(tool: PythonTool) -> None:
    with tool.open_session() as victim, tool.open_session() as attacker:
        victim.run(
            "secret = 42\nopen('secret', 'w').write('42')\nimport socket\ns = socket.socket(socket.AF_UNIX)"
        )
        assert victim.run("s.bind('\\0victim')\ns.listen()").status == "ok"
        assert (
            attacker.run("import os\n[n for n in os.listdir('/proc') if n.isdigit()]").output
            == "['1', '2']\n"
        )
        assert attacker.run("os.listdir('/scratch')").output == "[]\n"
        interfaces = attacker.run("open('/proc/self/net/dev').read().count(':')").output
        assert interfaces == "1\n", "loopback alone"
        connect = attacker.run("import socket\nsocket.socket(socket.AF_UNIX).connect('\\0victim')")
        assert "Connection refused" in connect.output
        code = (
            "for n in range(2, 40_000):\n    try: n == os.getpid() or os.kill(n, 9)\n    except OSError: pass"
        )
        attacker.run(code)
        attacker.run("open('big', 'wb').write(bytes(7 * 2**20))")
        assert victim.run("secret, open('secret').read()").output == "(42, '42')\n"
        assert victim.run("open('big', 'wb').write(bytes(7 * 2**20))").status == "ok"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: an ordinary user's sessions share the user's id")
def test_sessions_of_root_run_under_unprivileged_ids_of_their_own(tool: PythonTool) -> None:
    with tool.open_session() as one, tool.open_session() as other:
        ids = [os.stat(f"/proc/{process}").st_uid for s in (one, other) for process in processes_of(s)]
    assert 0 not in ids
    assert len(set(ids)) == 2


FORGERIES = {
    "frames on every file": """
import json, os, struct
data = json.dumps({"status": "ok", "output": "forged"}).encode()
for fd in range(1, 64):
    for forged in (struct.pack("!I", len(data)) + data, b"x" * 16 + b"f", b"f" * 1000):
        try: os.write(fd, forged)
        except OSError: pass
""",
    "an early answer with the right number": """
import sys, time
frame = sys._getframe()
while "number" not in frame.f_locals or "channel" not in frame.f_locals: frame = frame.f_back
frame.f_locals["channel"].sendall(frame.f_locals["number"] + b"f")
time.sleep(0.1)
print("late")
""",
    "output in place of the channel": """
import os
for fd in range(3, 64):
    try: os.dup2(1, fd)
    except OSError: pass
""",
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_answers_cannot_be_forged(session: Session, forgery: str) -> None:
    first = session.run(FORGERIES[forgery])
    assert not first.output.startswith("forged")
    assert first.status in ("ok", "killed")
    answers = [session.run(f"{n} * 10") for n in range(1, 5)]
    # What the early answer left running may cost the interpreter, but no answer belongs to another call.
    for n, answer in enumerate(answers, 1):
        assert answer.output in ("late\n", f"{n * 10}\n", f"late\n{n * 10}\n") or answer.status == "killed"
    assert answers[-1] == ToolResult("40\n", "ok", False)


def test_nothing_runs_between_calls(session: Session) -> None:
    session.run("""
import threading, time
ticks = 0
def tick():
    global ticks
    while True:
        ticks += 1
        print("tick")
        time.sleep(0.01)
threading.Thread(target=tick, daemon=True).start()
time.sleep(0.1)
""")
    before = int(session.run("print('count', ticks)").output.split("count")[1].split()[0])
    time.sleep(1)
    after = int(session.run("print('count', ticks)").output.split("count")[1].split()[0])
    assert 0 < before <= after < before + 30  # running on, it would have come to a hundred
    # A stop reaches a process that is running on the other core a moment after it was sent.
    assert eventually(lambda: [state_of(process) for process in processes_of(session)[1:]] == ["T"])


def test_an_alarm_left_behind_does_not_end_the_interpreter(session: Session) -> None:
    session.run("import signal\nsignal.setitimer(signal.ITIMER_REAL, 0.5)")
    time.sleep(1)
    assert session.run("signal.getitimer(signal.ITIMER_REAL)").output == "(0.0, 0.0)\n"


def test_a_process_ends_with_the_call_that_started_it(session: Session) -> None:
    daemon = (
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork(): os._exit(0)\n    while True: time.sleep(.01)"
    )
    session.run(f"import os, time\n{daemon}\nos.wait()\ntime.sleep(.1)")
    assert eventually(
        lambda: sorted(map(state_of, processes_of(session)))[:3] in (["S", "T"], ["S", "T", "Z"])
    )
    assert session.run("sum(n.isdigit() for n in os.listdir('/proc'))").output == "2\n"


# As an ordinary user


def readable_view(paths: list[Path]) -> list[str]:
    """bubblewrap's options for a view of the host in which everybody can read `paths`."""
    hidden = {
        folder
        for path in paths
        for folder in [*path.parents, path]
        if not folder.stat().st_mode & 0o001 and path.is_dir()
    }
    tops = {folder for folder in hidden if not hidden & set(folder.parents)}
    options = ["--dev-bind", "/", "/"]
    for top in sorted(tops):
        options += ["--tmpfs", str(top)]
        for path in (path for path in paths if top in path.parents):
            between = [folder for folder in reversed(path.parents) if top in folder.parents]
            options += [word for folder in between for word in ("--dir", str(folder))]
            options += ["--ro-bind", str(path), str(path)]
    return options


@needs_bubblewrap
@pytest.mark.skipif(os.geteuid() != 0, reason="runs as an ordinary user already")
def test_attacks_as_an_ordinary_user(tmp_path: Path) -> None:
    view = readable_view([Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), TESTS.parent])
    rights = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all"]
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    environment = {**os.environ, "HOME": "/nonexistent", "TMPDIR": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
    bubblewrap = shutil.which("bwrap") or ""
    run = subprocess.run(
        [bubblewrap, *view, *rights, *user, *tests],
        cwd=TESTS.parent,
        env={**environment, "PYTHONPATH": str(TESTS.parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    passed = re.search(r"(\d+) passed, 2 skipped", run.stdout)  # that of root's ids, and this one
    assert passed and int(passed[1]) > len(ATTACKS), run.stdout[-500:]
