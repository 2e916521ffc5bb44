"""The interpreter that runs the model's code: one cell after another in one namespace.

It talks to its supervisor over one socket. A request is a number used once, a length and the code; the answer
is that number and one letter. Everything the model is to see, errors included, goes to the standard output.
"""

from __future__ import annotations

import ast
import contextlib
import linecache
import os
import random
import signal
import socket
import struct
import sys
import traceback
import types
from typing import NoReturn, TextIO

import numpy

from evaluation.math.sandbox_messages import read_exactly

REQUEST = struct.Struct("!16sI")
FINISHED, RAISED, OUT_OF_MEMORY = b"f", b"r", b"m"
SHOWN_FRAMES = 3  # of the model's own frames, at either end of a traceback
MESSAGE_CHARACTERS = 1000


class Interpreter:
    """A namespace that lives over cells, and whether a cell is running just now."""

    def __init__(self) -> None:
        self.module = types.ModuleType("__main__")
        self.cells = 0
        self.running = False

    def interrupt(self, number: int, frame: types.FrameType | None) -> None:
        """Signal handler: a signal that comes too late for its cell is of no consequence."""
        if self.running:
            raise KeyboardInterrupt

    def run(self, code: str) -> bytes:
        """Runs one cell, prints its last expression's value or its error, and returns how it ended."""
        self.cells += 1
        signal.signal(signal.SIGINT, self.interrupt)
        try:
            self.running = True
            return self.run_reporting(code, f"<cell {self.cells}>")
        except BaseException as error:  # raised while another was being described
            say(type(error).__name__)
            return RAISED
        finally:
            self.running = False

    def run_reporting(self, code: str, filename: str) -> bytes:
        try:
            self.execute(code, filename)
        except MemoryError:
            say("MemoryError")
            return OUT_OF_MEMORY
        except BaseException as error:
            say(short_traceback(error))
            return RAISED
        return FINISHED

    def execute(self, code: str, filename: str) -> None:
        namespace = self.module.__dict__
        linecache.cache[filename] = (len(code), None, code.splitlines(keepends=True), filename)
        tree = ast.parse(code, filename)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, filename, "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), filename, "eval"), namespace)
            if value is not None:
                print(repr(value))


def say(text: str) -> None:
    """Writes past the code's sys.stdout, which may be closed; short enough for the pipe to take it whole."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    os.write(1, text.encode("utf-8", "backslashreplace") + b"\n")


def short_traceback(error: BaseException) -> str:
    """The model's own frames, the first and the last few, and the error's own line."""
    frames = [
        (frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename.startswith("<cell ")
    ]
    lines = [
        f"  {filename[1:-1]}, line {number}, in {name}\n    {linecache.getline(filename, number).strip()}"
        for filename, number, name in frames[:SHOWN_FRAMES] + frames[SHOWN_FRAMES:][-SHOWN_FRAMES:]
    ]
    if len(frames) > 2 * SHOWN_FRAMES:
        lines.insert(SHOWN_FRAMES, f"  ... {len(frames) - 2 * SHOWN_FRAMES} more ...")
    message = "".join(traceback.format_exception_only(error)).rstrip()
    if len(message) > MESSAGE_CHARACTERS:
        half = MESSAGE_CHARACTERS // 2
        message = f"{message[:half]} ... {message[-half:]}"
    return "\n".join([*lines, message])


def open_streams() -> tuple[TextIO, TextIO]:
    """Standard input, which is empty, and standard output, which is standard error as well."""
    output = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    return os.fdopen(0, encoding="utf-8", closefd=False), output


def next_cell(channel: socket.socket) -> tuple[bytes, str]:
    """Number and code of the next cell; the process ends with the supervisor's end of the channel."""
    head = read_exactly(channel, REQUEST.size)
    if head is None:
        os._exit(0)
    number, length = REQUEST.unpack(head)
    data = read_exactly(channel, length)
    if data is None:
        os._exit(0)
    return number, data.decode("utf-8", "surrogatepass")


def serve(channel: socket.socket, output: int) -> NoReturn:
    """Runs cells until the supervisor closes the channel. `output` is the pipe for standard output."""
    random.seed()
    numpy.random.seed()  # else every session would draw the same numbers
    interpreter = Interpreter()
    sys.modules["__main__"] = interpreter.module
    process = os.getpid()
    empty = os.open(os.devnull, os.O_RDONLY)
    while True:
        number, code = next_cell(channel)
        os.dup2(empty, 0)  # each cell finds its streams whole, whatever the one before did to them
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdin, sys.stdout = open_streams()
        sys.stderr = sys.stdout
        stream = sys.stdout
        ending = interpreter.run(code)
        signal.setitimer(signal.ITIMER_REAL, 0)  # the code's alarms would end the interpreter between cells
        for unwritten in (sys.stdout, stream):
            with contextlib.suppress(Exception):  # the code may have closed or replaced it
                unwritten.flush()
        if os.getpid() != process:  # a fork of the code's own
            os._exit(0)
        channel.sendall(number + ending)
