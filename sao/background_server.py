"""An ASGI application served from a thread of the program that needs it."""

import socket
import threading
import time
from types import TracebackType
from typing import Any, Self

STOP_SECONDS = 5  # that requests under way get


class BackgroundServer:
    """Serves `app` on a free port of this machine between `with` and its end; `url` is its address.

    `host` is the address of this machine that it listens at.
    """

    url: str

    def __init__(self, app: Any, host: str = "127.0.0.1") -> None:
        import uvicorn

        self.host = host
        settings = uvicorn.Config(
            app, log_level="warning", lifespan="off", timeout_graceful_shutdown=STOP_SECONDS
        )
        self._server = uvicorn.Server(settings)

    def __enter__(self) -> Self:
        self._listener = socket.create_server((self.host, 0), backlog=1024)
        self.url = f"http://{self.host}:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listener]}, name="server", daemon=True
        )
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.01)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()
