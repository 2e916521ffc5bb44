"""Starts Ray on all nodes of a job, runs a command against it, and ends both.

    python -m sao.openrlhf.nodes --nodes 12 --gpus 8 -- python -m sao.train --row sao --scale paper_math

Inside a SLURM job, Ray's head starts on the job's first node and a worker on each other one, with srun. Where
RAY_ADDRESS is set, as on Kubernetes, that cluster is used as it is. In both cases it must have the nodes and
GPUs asked for before the command starts. Imports no torch.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

PORT = 6379
START_SECONDS = 300.0
POLL_SECONDS = 2.0
STOP_SECONDS = 30.0
COUNT = (
    "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='error'); "
    "alive = [node for node in ray.nodes() if node['Alive']]; "
    "print(len(alive), int(sum(node['Resources'].get('GPU', 0) for node in alive)))"
)


class NodesError(Exception):
    """Ray does not run on the nodes asked for; the message says what is missing and what mends it."""


def job_hosts(environment: Mapping[str, str]) -> list[str]:
    """Names of the nodes of this SLURM job, the one that runs this first."""
    job = environment.get("SLURM_JOB_ID")
    if job is None:
        raise NodesError(
            "several nodes: neither RAY_ADDRESS nor SLURM_JOB_ID is set; start the workflow with "
            "--profile profiles/slurm, or Ray by hand and set RAY_ADDRESS"
        )
    names = _read("squeue", "--jobs", job, "--noheader", "--format", "%N")
    hosts = _read("scontrol", "show", "hostnames", names.strip()).split()
    if not hosts:
        raise NodesError(f"SLURM job {job}: has no nodes; is it still running?")
    return hosts


def start_commands(hosts: Sequence[str], gpus: int) -> list[list[str]]:
    """Commands of Ray's head and, where there are more nodes, of its workers; each stays until ended."""
    step = ["srun", "--overlap", "--ntasks-per-node=1", "--gpus-per-node", str(gpus), "--kill-on-bad-exit=1"]
    start = [sys.executable, "-m", "sao.openrlhf.ray_node"]
    ray = [*start, "--num-gpus", str(gpus), "--disable-usage-stats", "--block"]
    head = [*step, "--nodes=1", "--ntasks=1", "--nodelist", hosts[0], *ray, "--head", "--port", str(PORT)]
    others = list(hosts[1:])
    if not others:
        return [head]
    count = ["--nodes", str(len(others)), "--ntasks", str(len(others)), "--nodelist", ",".join(others)]
    return [head, [*step, *count, *ray, "--address", f"{hosts[0]}:{PORT}"]]


def alive(address: str) -> tuple[int, int]:
    """Nodes and GPUs of the Ray cluster at an address; (0, 0) while it does not answer."""
    command = [sys.executable, "-c", COUNT, address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        nodes, gpus = (int(word) for word in done.stdout.split()[-2:])
    except (subprocess.TimeoutExpired, ValueError):
        return 0, 0
    return nodes, gpus


def wait_for_nodes(
    address: str, nodes: int, gpus: int, steps: Sequence[subprocess.Popen[bytes]], seconds: float
) -> None:
    """Until the cluster has `nodes` nodes and `gpus` GPUs on all of them; NodesError where it never does."""
    end = time.monotonic() + seconds
    found = (0, 0)
    while time.monotonic() < end:
        if any(step.poll() is not None for step in steps):
            raise NodesError("Ray ended on a node while it started; see the job's log")
        found = alive(address)
        if found[0] >= nodes and found[1] >= gpus:
            return
        time.sleep(POLL_SECONDS)
    raise NodesError(
        f"Ray at {address} has {found[0]} nodes with {found[1]} GPUs after {seconds:.0f} s, and the scale "
        f"asks for {nodes} with {gpus}; give the job more, or change cluster and job in the scale"
    )


@contextlib.contextmanager
def ray_cluster(
    nodes: int, gpus: int, environment: Mapping[str, str], seconds: float = START_SECONDS
) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """Address of a Ray cluster of `nodes` nodes with `gpus` GPUs each, and the processes that hold it."""
    if address := environment.get("RAY_ADDRESS"):
        wait_for_nodes(address, nodes, nodes * gpus, [], seconds)
        yield address, []
        return
    hosts = job_hosts(environment)
    if len(hosts) < nodes:
        raise NodesError(f"the job has {len(hosts)} nodes, and the scale asks for {nodes}")
    _needed("srun", "ray")
    address = f"{hosts[0]}:{PORT}"
    steps = [
        subprocess.Popen(command, start_new_session=True) for command in start_commands(hosts[:nodes], gpus)
    ]
    try:
        wait_for_nodes(address, nodes, nodes * gpus, steps, seconds)
        yield address, steps
    finally:
        for step in steps:
            _stop(step)


def run(command: Sequence[str], address: str, steps: Sequence[subprocess.Popen[bytes]]) -> int:
    """Run the command with RAY_ADDRESS set; its exit code. A node that Ray loses ends it, with code 1."""
    process = subprocess.Popen(command, env=os.environ | {"RAY_ADDRESS": address})
    handler = signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(signal.SIGTERM))
    try:
        while process.poll() is None:
            if any(step.poll() is not None for step in steps):
                print(
                    "Ray ended on a node; the run goes on from its checkpoint at the next attempt",
                    file=sys.stderr,
                )
                _stop(process)
                return 1
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(POLL_SECONDS)
    except KeyboardInterrupt:
        process.wait()  # the command got the interrupt too, and ends its attempt
    finally:
        signal.signal(signal.SIGTERM, handler)
    return process.returncode


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _needed(*names: str) -> None:
    for name in names:
        if shutil.which(name) is None:
            raise NodesError(
                f"{name}: is not on the PATH of this node; activate the environment that holds it"
            )


def _read(*command: str) -> str:
    _needed(command[0])
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise NodesError(f"{' '.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the command's exit code, or 2 where Ray does not run on the nodes."""
    parser = argparse.ArgumentParser(
        prog="python -m sao.openrlhf.nodes", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--gpus", type=int, required=True, help="of each node")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("no command; put it behind --")
    try:
        with ray_cluster(options.nodes, options.gpus, os.environ) as (address, steps):
            return run(command, address, steps)
    except NodesError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
