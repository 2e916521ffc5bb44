"""The Python tool: sessions keep state, answer briefly, end with their owner; no sandbox, no tool."""

from __future__ import annotations

import os
import pickle
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from sandbox_sessions import (
    LIMITS,
    all_gone,
    eventually,
    needs_bubblewrap,
    open_tool,
    processes_of,
    server_of,
)

from evaluation.math import sandbox
from evaluation.math.sandbox import PythonTool, SandboxError, SandboxLimits, Session, ToolResult
from evaluation.math.sandbox_cell import Cell, Usage
from evaluation.math.sandbox_command import server_command
from evaluation.math.sandbox_isolation import Instruction, filter_program

TESTS = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def tool() -> Iterator[PythonTool]:
    with open_tool() as tool:
        yield tool


@pytest.fixture
def session(tool: PythonTool) -> Iterator[Session]:
    with tool.open_session() as session:
        yield session


# What a session is


def test_variables_last_and_the_last_expression_is_shown(session: Session) -> None:
    assert session.run("import sympy\nx = sympy.Symbol('x')") == ToolResult("", "ok", False)
    assert session.run("print('roots')\nsympy.solve(x**2 - 2)").output == "roots\n[-sqrt(2), sqrt(2)]\n"
    assert session.run("def double(n):\n    return 2 * n").output == ""
    assert session.run("[double(n) for n in (1, 2)]").output == "[2, 4]\n"
    assert session.run("None").output == ""
    assert session.run("").output == ""


def test_files_last_and_can_be_imported(session: Session) -> None:
    session.run("open('helper.py', 'w').write('answer = 42')")
    assert session.run("import helper, os\nhelper.answer, os.getcwd(), os.path.realpath('/tmp')").output == (
        "(42, '/scratch', '/scratch')\n"
    )


def test_errors_show_the_models_frames_and_nothing_else(session: Session) -> None:
    session.run("import json")
    result = session.run("def load(text):\n    return json.loads(text)\n\nload('{')")
    assert result.status == "error"
    assert result.output == (
        "  cell 2, line 4, in <module>\n    load('{')\n"
        "  cell 2, line 2, in load\n    return json.loads(text)\n"
        "json.decoder.JSONDecodeError: "
        "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)\n"
    )
    syntax = session.run("x = = 1")
    assert syntax.status == "error"
    assert syntax.output.splitlines()[-1] == "SyntaxError: invalid syntax"


def test_what_was_printed_before_an_error_is_kept(session: Session) -> None:
    result = session.run("import sys\nprint('out')\nprint('err', file=sys.stderr)\n1 / 0")
    assert result.output.startswith("out\nerr\n")
    assert result.output.endswith("ZeroDivisionError: division by zero\n")


def test_long_output_loses_its_middle(session: Session) -> None:
    result = session.run("print('a' * 5000 + 'é' * 50_000 + 'b' * 5000)")
    head, middle, tail = result.output.split("\n", 2)
    assert (head, tail) == ("a" * 1000, "b" * 999 + "\n")
    assert middle == f"[... {5000 + 50_000 + 5001 - 2000} characters left out ...]"
    assert session.run("'c' * 1997").output == "'" + "c" * 1997 + "'\n"  # 2000 characters


def test_a_long_error_message_is_cut(session: Session) -> None:
    result = session.run("raise ValueError('x' * 10_000)")
    assert result.status == "error"
    assert len(result.output) < 1200


def test_sessions_draw_different_random_numbers(tool: PythonTool) -> None:
    with tool.open_session() as one, tool.open_session() as other:
        for code in ("import random\nrandom.random()", "import numpy\nnumpy.random.random()"):
            assert one.run(code).output != other.run(code).output


def test_sessions_work_side_by_side_from_threads(tool: PythonTool) -> None:
    outputs: dict[int, str] = {}

    def work(number: int) -> None:
        with tool.open_session() as session:
            session.run(f"n = {number}")
            outputs[number] = session.run("n * n").output

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == {number: f"{number * number}\n" for number in range(6)}


def test_a_call_that_waits_is_stopped_and_keeps_variables() -> None:
    limits = SandboxLimits(seconds_per_call=0.5)
    with open_tool(limits) as tool, tool.open_session() as session:
        result = session.run("x = 1\nimport time\ntime.sleep(60)")
        assert result.status == "timeout"
        assert "  cell 1, line 3, in <module>\n    time.sleep(60)\n" in result.output
        assert result.output.endswith("Stopped: it took longer than 0.5 s.")
        assert session.run("x").output == "1\n"


# Ends


def test_closing_ends_every_process_at_once(tool: PythonTool) -> None:
    session = tool.open_session()
    processes = processes_of(session)
    assert len(processes) == 2
    failures: list[SandboxError] = []

    def wait() -> None:
        try:
            session.run("while True: pass")
        except SandboxError as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    session.close()
    thread.join(5)
    assert not thread.is_alive()
    assert len(failures) == 1
    assert eventually(lambda: all_gone(processes))
    with pytest.raises(SandboxError, match="the session is closed"):
        session.run("1")


@needs_bubblewrap
def test_sessions_end_with_the_program_that_opened_them() -> None:
    code = (
        "import os\nfrom sandbox_sessions import PythonTool, processes_of, server_of\n"
        "tool = PythonTool()\nsession = tool.open_session()\n"
        "print(*processes_of(session), *server_of(tool), flush=True)\nos.kill(os.getpid(), 9)"
    )
    paths = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
    )
    processes = [int(word) for word in run.stdout.split()]
    assert len(processes) >= 4, run.stderr
    assert eventually(lambda: all_gone(processes))


def test_the_warm_process_is_started_again() -> None:
    with open_tool() as tool:
        session = tool.open_session()
        processes = processes_of(session)
        for process in server_of(tool)[1:]:
            os.kill(process, signal.SIGKILL)
        assert eventually(lambda: all_gone(processes))
        with pytest.raises(SandboxError, match="warm process"):
            session.run("1")
        assert session.run("1 + 1").output == "2\n"
    with pytest.raises(SandboxError, match="the Python tool is closed"):
        tool.open_session()


# Refusals


def fake_bubblewrap(folder: Path, script: str) -> None:
    path = folder / "bwrap"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_without_bubblewrap_the_tool_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match=r"bwrap.* is not installed.*apt-get install bubblewrap.*\"none\""):
        PythonTool()


def test_without_namespaces_the_tool_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_bubblewrap(tmp_path, "echo 'bwrap: No permissions to create new namespace' >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match=r"does not start: bwrap: No permissions .*namespaces.*\"none\""):
        PythonTool()


@needs_bubblewrap
def test_namespaces_refused_within_the_sandbox_refuse_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_proc(*arguments: Any) -> list[str]:
        """Without the host's /proc in sight the kernel lets no session have its own."""
        words = server_command(*arguments)
        at = words.index("/proc")
        return words[: at - 1] + words[at + 2 :]

    monkeypatch.setattr(sandbox, "server_command", without_proc)
    with pytest.raises(SandboxError, match=r"no session in the bubblewrap sandbox: .*\"none\""):
        PythonTool()


def test_plain_processes_must_be_asked_for_and_are_flagged() -> None:
    limits = SandboxLimits(seconds_per_call=1, memory_mb=256, output_characters=2000)
    with PythonTool(limits, sandbox="none") as tool, tool.open_session() as session:
        assert tool.unsandboxed
        assert session.run("x = 6") == ToolResult("", "ok", True)
        assert session.run("x * 7") == ToolResult("42\n", "ok", True)
        assert session.run("while True: pass").status == "timeout"
        assert session.run("bytearray(10 * 2**30)").status == "memory"
        assert session.run("import os\nos._exit(1)").status == "killed"
        processes = processes_of(session)
        scratch = Path(session.run("import os\nprint(os.getcwd())").output.strip())
        assert scratch.is_dir()
    assert not scratch.exists()
    assert eventually(lambda: all_gone(processes))


def test_unknown_sandbox_is_refused() -> None:
    with pytest.raises(SandboxError, match="unknown value 'docker'"):
        PythonTool(sandbox="docker")


def test_limits_are_checked_and_travel_between_processes() -> None:
    assert pickle.loads(pickle.dumps(LIMITS)) == LIMITS
    with pytest.raises(ValueError, match="memory_mb must be positive, not 0"):
        SandboxLimits(memory_mb=0)
    with pytest.raises(ValueError, match="output_characters must be 1000000 at most"):
        SandboxLimits(output_characters=10**7)


def test_too_long_code_is_an_error(session: Session) -> None:
    result = session.run("x" * (sandbox.CODE_CHARACTERS + 1))
    assert result == ToolResult("The code is longer than 1000000 characters.", "error", False)
    assert session.run("len('" + "x" * 900_000 + "')").output == "900000\n"


# Parts


def test_usage_beyond_a_limit_stops_the_cell() -> None:
    cell = Cell("", asdict(LIMITS), started_cpu=5.0)
    before, after = cell.deadline - 1, cell.deadline + 1
    assert cell.excess(Usage(tasks=12, cpu_seconds=5.2, memory_mb=64), before) is None
    for used, now, status, gently in (
        (Usage(13, 5, 0), before, "killed", False),
        (Usage(1, 5, 64 + 65), before, "memory", False),
        (Usage(1, 5.6, 0), before, "timeout", True),
        (Usage(1, 5, 0), after, "timeout", True),
        (Usage(13, 5, 0), after, "killed", False),
    ):
        stop = cell.excess(used, now)
        assert stop and (stop.status, stop.gently) == (status, gently)


def verdict(program: list[Instruction], machine: int, number: int, argument: int = 0) -> int:
    """What a system call filter returns: the five instructions it uses, interpreted."""
    data, accumulator, at = {0: number, 4: machine, 16: argument}, 0, 0
    while True:
        operation, if_true, if_false, operand = program[at]
        at += 1
        if operation == 0x06:
            return operand
        if operation == 0x20:
            accumulator = data[operand]
            continue
        holds = {0x15: accumulator == operand, 0x35: accumulator >= operand, 0x45: accumulator & operand}
        at += if_true if holds[operation] else if_false


ALLOWED, NOT_PERMITTED, NO_SUCH_CALL, UNREACHABLE, KILLED = 0x7FFF0000, 0x50001, 0x50026, 0x50065, 0x80000000


@pytest.mark.parametrize(
    ("machine", "audit", "read", "ptrace", "clone", "socket", "prlimit"),
    [("x86_64", 0xC000003E, 0, 101, 56, 41, 302), ("aarch64", 0xC00000B7, 63, 117, 220, 198, 261)],
)
def test_the_system_call_filter(
    machine: str, audit: int, read: int, ptrace: int, clone: int, socket: int, prlimit: int
) -> None:
    program = filter_program(machine)
    for number, argument, expected in (
        (read, 0, ALLOWED),
        (ptrace, 0, NOT_PERMITTED),
        (272 if machine == "x86_64" else 97, 0, NOT_PERMITTED),  # unshare
        (clone, 0x01200011, ALLOWED),  # as fork calls it
        (clone, 0x003D0F00, ALLOWED),  # as threads are made
        (clone, 0x10000011, NOT_PERMITTED),  # with a new user namespace
        (435, 0, NO_SUCH_CALL),  # clone3
        (socket, 1, ALLOWED),  # AF_UNIX
        (socket, 2, UNREACHABLE),  # AF_INET
        (socket, 16, UNREACHABLE),  # AF_NETLINK
        (prlimit, 0, ALLOWED),
        (prlimit, 1, NOT_PERMITTED),
        (clone + 1, 0x10000011, ALLOWED),  # what follows a checked call is itself again
    ):
        assert verdict(program, audit, number, argument) == expected, (number, argument)
    assert verdict(program, 0x40000003, read) == KILLED  # 32-bit calls have other numbers
    if machine == "x86_64":
        assert verdict(program, audit, 0x40000000 + ptrace) == KILLED  # so have those of x32
    with pytest.raises(OSError, match="no system call filter for machine type riscv64"):
        filter_program("riscv64")
