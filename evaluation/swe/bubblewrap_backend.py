"""The part of docker's Python client that the official harness uses, over bubblewrap.

Not for published scores.

A container is a sandbox on a copy of a folder of files; its commands see this machine's programs and
Python, and no network. Results graded with it are marked `bubblewrap`: they are comparable with each other,
and with Docker's only for tasks that need nothing but Python and pytest.
"""

import io
import shlex
import tarfile
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from types import SimpleNamespace
from typing import Any

import docker.errors

from evaluation.swe.protocol import REPOSITORY
from evaluation.swe.sandbox import Sandbox, image_folder

READ_BYTES = 1 << 16


@dataclass
class ExecResult:
    """What `Container.exec_run` returns."""

    exit_code: int
    output: bytes


class Container:
    """A sandbox with docker's methods."""

    def __init__(self, client: "BubblewrapClient", image: str, name: str) -> None:
        self.client, self.name, self.id = client, name, uuid.uuid4().hex
        self.sandbox = Sandbox(client.folder / self.id, image_folder(client.image_folder, image))

    def start(self) -> None:
        """Nothing to do: each command starts the sandbox."""

    def exec_run(self, cmd: str | Sequence[str], workdir: str = REPOSITORY, **_: Any) -> ExecResult:
        """Run a command to its end; output and errors are one text."""
        return ExecResult(*self.sandbox.run(_words(cmd), workdir))

    def put_archive(self, path: str, data: bytes) -> bool:
        """Unpack a tar archive at a place inside."""
        target = self.sandbox.folder / str(path).strip("/")
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extractall(target, filter="data")
            for name in archive.getnames():
                self.sandbox.user.own(target / name)
        return True

    def remove(self, force: bool = False) -> None:
        """End what runs inside and delete its files."""
        self.client.forget(self)
        self.sandbox.close()


class Api:
    """docker's low-level interface, as far as a command with a time limit needs it."""

    def __init__(self, client: "BubblewrapClient") -> None:
        self.client = client
        self.commands: dict[str, tuple[Container, list[str]]] = {}
        self.running: dict[str, Popen[bytes]] = {}

    def exec_create(self, container: str, cmd: str | Sequence[str]) -> dict[str, str]:
        name = uuid.uuid4().hex
        self.commands[name] = (self.client.by_id(container), _words(cmd))
        return {"Id": name}

    def exec_start(self, exec_id: str, stream: bool = False) -> Iterator[bytes]:
        container, words = self.commands[exec_id]
        process = self.running[exec_id] = container.sandbox.start(words, REPOSITORY)
        assert process.stdout
        while part := process.stdout.read1(READ_BYTES):  # type: ignore[attr-defined]
            yield part
        process.wait()

    def exec_inspect(self, exec_id: str) -> dict[str, int]:
        """The harness asks only to end a command that ran too long: by then the number is of no process."""
        process = self.running[exec_id]
        if process.poll() is None:
            process.kill()
            process.wait()
        return {"Pid": process.pid}


class BubblewrapClient:
    """Stands in for `docker.DockerClient`. `images` holds the images' folders, `folder` the containers'."""

    def __init__(self, images: Path, folder: Path) -> None:
        self.image_folder, self.folder = images, folder
        self._containers: dict[str, Container] = {}
        self._lock = threading.Lock()
        self.api = Api(self)
        self.images = SimpleNamespace(get=self._image, pull=self._image, list=lambda **_: [])
        self.containers = SimpleNamespace(get=self._get, create=self._create, list=self._list)

    def by_id(self, container_id: str) -> Container:
        return next(container for container in self._list() if container.id == container_id)

    def forget(self, container: Container) -> None:
        with self._lock:
            self._containers.pop(container.name, None)

    def close(self) -> None:
        for container in self._list():
            container.remove()

    def _image(self, name: str) -> str:
        if not image_folder(self.image_folder, name).is_dir():
            raise docker.errors.ImageNotFound(f"{self.image_folder} has no folder for {name}")
        return name

    def _get(self, name: str) -> Container:
        if name not in self._containers:
            raise docker.errors.NotFound(name)
        return self._containers[name]

    def _create(self, image: str, name: str, **_: Any) -> Container:
        container = Container(self, image, name)
        with self._lock:
            self._containers[name] = container
        return container

    def _list(self, **_: Any) -> list[Container]:
        with self._lock:
            return list(self._containers.values())


def _words(command: str | Sequence[str]) -> list[str]:
    return shlex.split(command) if isinstance(command, str) else list(command)
