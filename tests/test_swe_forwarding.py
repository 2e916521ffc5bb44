"""Connections that are passed on, also to an encrypted address; and what is left of them."""

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from evaluation.swe import forwarding
from evaluation.swe.forwarding import Forwarder


class Answer(BaseHTTPRequestHandler):
    """Says back the path, the host header and how long the body is."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        said = f"{self.path} {self.headers['host']} {len(body)}".encode()
        self.send_response(200)
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)


def served(context: ssl.SSLContext | None = None) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture
def plain() -> Iterator[ThreadingHTTPServer]:
    server = served()
    yield server
    server.shutdown()
    server.server_close()


def forwarder(url: str) -> tuple[Forwarder, str]:
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    return Forwarder(listener, url), address


def test_many_requests_pass_at_once(plain: ThreadingHTTPServer) -> None:
    made, address = forwarder(f"http://127.0.0.1:{plain.server_address[1]}/v1")
    assert not made.forwarded
    body = b"x" * 3_000_000
    said = []

    def ask(number: int) -> None:
        with httpx.Client(headers={"Host": "models"}) as client:  # two on one connection
            said.extend(client.post(f"{address}/{number}", content=body).text for _ in range(2))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(said) == sorted([f"/{number} models {len(body)}" for number in range(8)] * 2)
    assert made.forwarded
    made.close()


def test_closing_ends_what_is_connected(plain: ThreadingHTTPServer) -> None:
    made, address = forwarder(f"http://127.0.0.1:{plain.server_address[1]}")
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as open_connection:
        open_connection.sendall(b"POST / HTTP/1.1\r\n")
        made.close()
        made.close()
        open_connection.settimeout(5)
        with contextlib.suppress(ConnectionResetError):  # where it was not taken yet
            assert open_connection.recv(10) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


def test_a_question_without_an_answer_is_not_forwarded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        made, address = forwarder(f"http://127.0.0.1:{silent.getsockname()[1]}")
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as asking:
            asking.sendall(b"POST / HTTP/1.1\r\n")
            taken, _ = silent.accept()
            with taken:
                assert taken.recv(4) == b"POST"
        made.close()
    assert not made.forwarded


def test_there_are_never_more_connections_than_the_limit(
    plain: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "CONNECTIONS", 2)
    made, address = forwarder(f"http://127.0.0.1:{plain.server_address[1]}")
    host, port = address.removeprefix("http://").split(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(2)]
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(address, content=b"", timeout=0.5)
    idle.pop().close()
    assert httpx.post(address, content=b"").is_success
    idle.pop().close()
    made.close()


def test_where_nobody_answers_the_connection_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    made, address = forwarder(f"http://127.0.0.1:{port}")
    with pytest.raises(httpx.HTTPError):
        httpx.post(address, content=b"")
    assert not made.forwarded
    made.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
def test_an_encrypted_address_is_checked_and_passed_on_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    words += f" -addext subjectAltName=DNS:localhost -keyout {key} -out {certificate}"
    subprocess.run(words.split(), check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = served(context)
    url = f"https://localhost:{server.server_address[1]}/v1"
    untrusting, address = forwarder(url)
    with pytest.raises(httpx.HTTPError):
        httpx.post(address, content=b"")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    trusting, address = forwarder(url)
    said = httpx.post(f"{address}/v1", content=b"12", headers={"Host": "localhost"}, trust_env=False)
    assert said.text == "/v1 localhost 2"
    for made in (untrusting, trusting):
        made.close()
    server.shutdown()
    server.server_close()
