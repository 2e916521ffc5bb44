"""One cell of a session as its supervisor sees it: output, use of the machine, limits and how it ended."""

from __future__ import annotations

import os
import resource
import signal
import time
from dataclasses import dataclass

from evaluation.math import sandbox_worker

FLOOD_BYTES = 16 * 2**20  # output of one cell beyond which it is stopped
SHARED_MB = 64  # pages of libraries that a process may map in without its own memory growing
CONTINUATION = bytes(range(0x80, 0xC0))  # the bytes of UTF-8 that begin no character
PAGE = resource.getpagesize()
TICKS = os.sysconf("SC_CLK_TCK")


class Output:
    """The output of one cell: its beginning and its end, and how much there was."""

    def __init__(self, characters: int) -> None:
        self.limit = characters
        self.head, self.tail = bytearray(), bytearray()
        self.bytes = self.characters = 0

    def add(self, data: bytes) -> None:
        self.bytes += len(data)
        self.characters += len(data.translate(None, CONTINUATION))
        keep = 4 * self.limit  # a character takes four bytes at most
        room = max(keep - len(self.head), 0)
        self.head += data[:room]
        self.tail = (self.tail + data[room:])[-keep:]

    def text(self) -> str:
        """The output with its middle left out where it is longer than the limit."""
        if self.bytes == len(self.head) + len(self.tail):
            text = (self.head + self.tail).decode("utf-8", "replace")
            head, tail, count = text, text, len(text)
        else:
            head, tail = (part.decode("utf-8", "replace") for part in (self.head, self.tail))
            text, count = "", max(self.characters, self.limit + 1)
        if count <= self.limit:
            return text
        half = self.limit // 2
        return f"{head[:half]}\n[... {count - 2 * half} characters left out ...]\n{tail[-half:]}"


@dataclass(frozen=True)
class Usage:
    """What the processes of a session use together."""

    tasks: int  # processes and threads
    cpu_seconds: float
    memory_mb: float  # resident, beyond what each inherited from the warm interpreter


def usage(processes: list[int], inherited_pages: int) -> Usage:
    tasks, ticks, pages = 0, 0, 0
    for process in processes:
        try:
            with open(f"/proc/{process}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += sum(map(int, fields[11:15]))  # its own and those of its ended children
        tasks += int(fields[17])
        pages += max(int(fields[21]) - inherited_pages, 0)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Usage(tasks, ticks / TICKS + ended.ru_utime + ended.ru_stime, pages * PAGE / 2**20)


@dataclass(frozen=True)
class Stop:
    """Why a cell was stopped; `gently` first interrupts, which keeps variables."""

    status: str
    why: str
    gently: bool = True


class Cell:
    """One cell's run: what is still to be sent to the interpreter, what came back, and why it was stopped."""

    def __init__(self, code: str, limits: dict[str, int], started_cpu: float) -> None:
        data = code.encode("utf-8", "surrogatepass")
        self.number = os.urandom(16)
        self.request = memoryview(sandbox_worker.REQUEST.pack(self.number, len(data)) + data)
        self.answer = b""
        self.ending: bytes | None = None
        self.output = Output(limits["output_characters"])
        self.limits = limits
        self.started_cpu = started_cpu
        self.deadline = time.monotonic() + limits["seconds_per_call"]
        self.stop: Stop | None = None

    def read_answer(self, data: bytes) -> None:
        """Looks for this cell's number; whatever else the code wrote to the channel is passed over."""
        self.answer += data
        at = self.answer.find(self.number)
        if at >= 0 and len(self.answer) > at + len(self.number):
            self.ending = self.answer[at + len(self.number) :][:1]
        elif at < 0:
            self.answer = self.answer[-len(self.number) + 1 :]

    def excess(self, used: Usage, now: float) -> Stop | None:
        """The first limit that is exceeded at time `now`; those that cannot wait come first."""
        limits = self.limits
        if used.tasks > limits["processes"]:
            why = f"it had more than {limits['processes']} processes and threads"
            return Stop("killed", why, gently=False)
        if used.memory_mb > limits["memory_mb"] + SHARED_MB:
            return Stop("memory", f"it used more than {limits['memory_mb']} MB of memory", gently=False)
        if now > self.deadline:
            return Stop("timeout", f"it took longer than {limits['seconds_per_call']} s")
        if used.cpu_seconds - self.started_cpu > limits["cpu_seconds"]:
            return Stop("timeout", f"it used more than {limits['cpu_seconds']} s of CPU time")
        if self.output.bytes > FLOOD_BYTES:
            return Stop("output", f"it printed more than {FLOOD_BYTES >> 20} MB")
        return None

    def report(self, exit_code: int | None) -> dict[str, str]:
        """The answer to the host. `exit_code` is that of an interpreter that is no more, else None."""
        status = {sandbox_worker.FINISHED: "ok", sandbox_worker.OUT_OF_MEMORY: "memory", None: "killed"}
        notes = [f"Stopped: {self.stop.why}."] if self.stop else []
        if exit_code is not None:
            how = "" if self.stop else f"{ending(exit_code)} and "
            notes.append(f"The interpreter {how}was restarted. Variables and imports are lost.")
        text = self.output.text()
        if notes and text and not text.endswith("\n"):
            text += "\n"
        return {
            "status": self.stop.status if self.stop else status.get(self.ending, "error"),
            "output": text + "\n".join(notes),
        }


def ending(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    return f"was ended by signal {-exit_code} ({signal.strsignal(-exit_code)})"
