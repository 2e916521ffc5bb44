"""Speed of the Python tool: a new session with its first call, and later calls, with 64 sessions open.

    python benchmarks/sandbox.py [--sessions 64] [--calls 10] [--sandbox bubblewrap]

Sessions are opened one after another and kept; then each runs every later call in turn. Prints medians and
95th percentiles in milliseconds, and how busy the machine was meanwhile: on a busy one the times are mostly
the wait for a processor. Exits 1 when a median exceeds its target: 50 ms for a new session with its first
call, 2 ms for a later call.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

from evaluation.math.sandbox import PythonTool, SandboxError, Session

TARGET_NEW, TARGET_LATER = 50.0, 2.0  # milliseconds
FIRST = "import sympy\nx = sympy.Symbol('x')\nsympy.factorint(2025)"
LATER = "n = {n}\nsum(d for d in range(1, n) if n % d == 0)"


def timed_call(session: Session, code: str) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    result = session.run(code)
    elapsed = 1000 * (time.perf_counter() - start)
    if result.status != "ok":
        raise SandboxError(f"a call of the benchmark ended with {result.status}: {result.output}")
    return elapsed


def busy_share() -> tuple[float, float]:
    """Seconds that all processors were busy and idle since the machine started."""
    with open("/proc/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, idle


def described(name: str, times: list[float], target: float) -> str:
    ordered = sorted(times)
    p95 = ordered[int(0.95 * (len(ordered) - 1))]
    return (
        f"{name:<32} median {statistics.median(times):7.2f} ms   "
        f"10% {ordered[len(ordered) // 10]:7.2f} ms   95% {p95:7.2f} ms   target {target:g} ms"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Speed of the Python tool.")
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--calls", type=int, default=10, help="later calls of each session")
    parser.add_argument("--sandbox", default="bubblewrap")
    arguments = parser.parse_args()
    before = busy_share()
    start = time.perf_counter()
    with PythonTool(sandbox=arguments.sandbox) as tool:
        print(f"warm process ready after {time.perf_counter() - start:.2f} s")
        sessions, new, later = [], [], []
        for _ in range(arguments.sessions):
            start = time.perf_counter()
            session = tool.open_session()
            opened = 1000 * (time.perf_counter() - start)
            new.append(opened + timed_call(session, FIRST))
            sessions.append(session)
        for call in range(arguments.calls):
            later += [timed_call(session, LATER.format(n=1000 + call)) for session in sessions]
    after = busy_share()
    busy, idle = after[0] - before[0], after[1] - before[1]
    print(described("new session with its first call", new, TARGET_NEW))
    print(described("later call", later, TARGET_LATER))
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} processors, {100 * busy / (busy + idle):.0f}% busy meanwhile, load {load:.1f}")
    return int(statistics.median(new) > TARGET_NEW or statistics.median(later) > TARGET_LATER)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SandboxError as error:
        sys.exit(str(error))
