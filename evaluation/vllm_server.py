"""vLLM's OpenAI-compatible server as a child of the program that samples from it."""

import functools
import importlib.util
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from evaluation.local_server import ServerError
from sao.temporary_folder import TemporaryFolder

START_SECONDS = 3600.0  # 60 GB of weights over a network's file system take their time
STOP_SECONDS = 60.0
POLL_SECONDS = 0.5
KEY_VARIABLE = "VLLM_API_KEY"
CPU_OPTIONS = ("--dtype", "float32", "--enforce-eager", "--no-enable-chunked-prefill")
"""Without CUDA vLLM ends where it splits the prompt of a request with a seed: generators have no offset."""
LEAST_BATCHED_TOKENS = 2048
LAST_LINES = 4000  # bytes of the log that are searched for the reason of a failure


class VLLMServer:
    """Serves a model (a folder, or a name on the Hub) on a free port of this machine with vLLM.

    `url`, `model` and `key` are there once it is entered. `tensor_parallel` GPUs share the model;
    `memory_share` of each is used; at most `max_tokens` a request, `requests` at once. `more` are further
    words of its command line. All output goes to `log`. It ends with this process, however that ends, and its
    temporary files go with it.

    Raises ServerError where vLLM is not installed or does not start.
    """

    url: str

    def __init__(
        self,
        model: str,
        log: Path,
        max_tokens: int,
        requests: int,
        tensor_parallel: int = 1,
        memory_share: float = 0.9,
        more: Sequence[str] = (),
    ) -> None:
        self.path, self.log, self.model = model, log, Path(model).name
        self.key = secrets.token_hex(16)
        self.batched_tokens = max(max_tokens, LEAST_BATCHED_TOKENS)
        self.settings = {
            "--model": model,
            "--served-model-name": self.model,
            "--host": "127.0.0.1",
            "--max-model-len": max_tokens,
            "--max-num-seqs": requests,
            "--tensor-parallel-size": tensor_parallel,
            "--gpu-memory-utilization": memory_share,
            "--generation-config": "vllm",  # no defaults of the model's own
            "--logprobs-mode": "processed_logprobs",
        }
        self.more = list(more)

    def command(self, port: int) -> list[str]:
        """The server's command line."""
        words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        for name, value in (self.settings | {"--port": port}).items():
            words += [name, str(value)]
        return words + self.more

    def __enter__(self) -> Self:
        if importlib.util.find_spec("vllm") is None:
            raise ServerError(
                f"{self.path}: vLLM is not installed in {sys.executable}; use the environment of "
                "experiments/environments/openrlhf.yaml (in the workflow: --config openrlhf_python=FILE), or "
                "serve it elsewhere and name the endpoint"
            )
        from sao.openrlhf import cpu
        from sao.openrlhf.launch import end_with
        from sao.openrlhf.ports import free_port

        if cpu.is_needed():
            self.more += [*CPU_OPTIONS, "--max-num-batched-tokens", str(self.batched_tokens)]
        port = free_port()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = TemporaryFolder.of_launch()
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                self.command(port),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | cpu.environment() | {KEY_VARIABLE: self.key} | self._temporary.variables,
                start_new_session=True,  # an interrupt at the terminal is for the evaluation to handle
                preexec_fn=functools.partial(end_with, os.getpid()),
            )
        self._temporary.watch(self._process.pid)
        self.url = f"http://127.0.0.1:{port}/v1"
        try:
            self._wait(f"http://127.0.0.1:{port}/health")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _wait(self, health: str) -> None:
        import httpx

        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise ServerError(f"{self.path}: vLLM does not start: {self._reason()}; see {self.log}")
            try:
                if httpx.get(health, timeout=5).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(POLL_SECONDS)
        raise ServerError(f"{self.path}: vLLM does not answer after {START_SECONDS:.0f} s; see {self.log}")

    def _reason(self) -> str:
        """The last line of the log that names an error, or the last of all."""
        lines = self.log.read_bytes()[-LAST_LINES:].decode(errors="replace").strip().splitlines()
        errors = [line for line in lines if "Error" in line or "error:" in line]
        return (errors or lines or ["no message"])[-1].strip()[:300]

    def _stop(self) -> None:
        """End the server and its workers, which are its session, and delete what they left."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(STOP_SECONDS)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        self._temporary.close()
