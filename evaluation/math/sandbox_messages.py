"""Messages between the Python tool and a session's supervisor: a length and JSON, over a stream socket."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

LENGTH = struct.Struct("!I")
LARGEST_BYTES = 2**26  # a peer that announces more is not believed


def send(channel: socket.socket, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    channel.sendall(LENGTH.pack(len(data)) + data)


def receive(channel: socket.socket) -> dict[str, Any] | None:
    """One message, or None where the other end is closed."""
    head = read_exactly(channel, LENGTH.size)
    if head is None or LENGTH.unpack(head)[0] > LARGEST_BYTES:
        return None
    data = read_exactly(channel, LENGTH.unpack(head)[0])
    return None if data is None else json.loads(data)


def read_exactly(channel: socket.socket, count: int) -> bytes | None:
    """`count` bytes, or None where the other end closes before."""
    data = bytearray()
    while len(data) < count:
        chunk = channel.recv(min(count - len(data), 1 << 16))
        if not chunk:
            return None
        data += chunk
    return bytes(data)
