"""Passes connections on from a socket of another network to an address that is reached from here."""

import asyncio
import socket
import ssl
import threading
from contextlib import closing
from urllib.parse import urlsplit

READ_BYTES = 1 << 16
CONNECTIONS = 64  # at once; further ones wait, and cannot use up this process's files
PORTS = {"http": 80, "https": 443}


class Forwarder:
    """Passes each connection that `listener` takes on to the host and port of `url`, in a thread of its own.

    The one who connects speaks plain HTTP; encryption is between here and an https address. `forwarded` says
    whether any answer came back. `close` ends all connections.
    """

    def __init__(self, listener: socket.socket, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or PORTS[parts.scheme]
        self.encryption = ssl.create_default_context() if parts.scheme == "https" else None
        self.forwarded = False
        self._listener = listener
        self._connections: set[socket.socket] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="forwarder", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all connections and the thread; nothing where that was done already."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()

    def _run(self) -> None:
        with self._listener, asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())  # cancels what is left
        for connection in self._connections:  # of tasks that were cancelled before they began
            connection.close()

    async def _serve(self) -> None:
        accepting = asyncio.create_task(self._accept())
        await self._closing.wait()
        accepting.cancel()

    async def _accept(self) -> None:
        self._listener.setblocking(False)
        free = asyncio.Semaphore(CONNECTIONS)
        while await free.acquire():
            connection, _ = await self._loop.sock_accept(self._listener)
            self._connections.add(connection)
            task = asyncio.create_task(self._connected(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: free.release())

    async def _connected(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        self._connections.discard(connection)
        with closing(writer):
            try:
                answers, questions = await asyncio.open_connection(self.host, self.port, ssl=self.encryption)
            except OSError:  # who connected sees that nobody answers
                return
            with closing(questions):
                ways = {
                    asyncio.create_task(self._pass_on(reader, questions)),
                    asyncio.create_task(self._pass_on(answers, writer, back=True)),
                }
                # HTTP closes no single direction: the first to end ends both.
                _, other = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in other:
                    way.cancel()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: bool = False
    ) -> None:
        try:
            while part := await reader.read(READ_BYTES):
                self.forwarded |= back
                writer.write(part)
                await writer.drain()
        except OSError:  # the connection broke, which ends it as well
            pass
