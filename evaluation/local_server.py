"""The local engine's HTTP server as a child of the program that evaluates with it."""

import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

STOP_SECONDS = 30
KEY_VARIABLE = "SAO_API_KEY"


class ServerError(Exception):
    """The server did not start; the message is its own."""


class LocalServer:
    """Serves a checkpoint on a free port of this machine.

    `url` and `model` are there once it is entered. It ends with this process, however that ends.
    """

    url: str
    model: str

    def __init__(self, checkpoint: Path, slots: int, max_tokens: int) -> None:
        self.checkpoint, self.slots, self.max_tokens = checkpoint, slots, max_tokens
        self.key = secrets.token_hex(16)

    def __enter__(self) -> Self:
        command = [
            sys.executable,
            "-m",
            "sao.local.serve",
            "--checkpoint",
            str(self.checkpoint),
            "--port",
            "0",
        ]
        command += ["--slots", str(self.slots), "--max-tokens", str(self.max_tokens), "--until-eof"]
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=os.environ | {KEY_VARIABLE: self.key},
            start_new_session=True,  # an interrupt at the terminal is for the evaluation to handle
        )
        assert self._process.stdout
        words = self._process.stdout.readline().split()
        if words[:1] != ["serving"]:
            self._process.wait(STOP_SECONDS)
            self._log.seek(0)
            lines = self._log.read().decode(errors="replace").strip().splitlines() or ["no message"]
            self._stop()
            raise ServerError(f"{self.checkpoint}: the local server does not start: {lines[-1]}")
        self.model, self.url = words[1], words[3]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()
