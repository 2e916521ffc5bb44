"""A chat endpoint over real HTTP whose answers follow a script, faults among them."""

import contextlib
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Answer = str | int | bytes | float | None
"""Text of a reply; a status; a raw body of status 200; seconds to stay silent; None closes the connection."""


@dataclass
class JudgeServer:
    """`script` gives the answer to a request by its body and number (from 0); `requests` holds all bodies."""

    script: Callable[[dict[str, Any], int], Answer]
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    url: str = ""
    released: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def serve(self) -> Iterator["JudgeServer"]:
        """The server while it runs; `url` is its base URL."""
        lock, judge = threading.Lock(), self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    number = len(judge.requests)
                    judge.requests.append(body)
                    judge.keys.append(self.headers["Authorization"])
                self.answer(judge.script(body, number), body)

            def answer(self, answer: Answer, body: dict[str, Any]) -> None:
                if isinstance(answer, float):
                    judge.released.wait(answer)
                    answer = None
                if answer is None:
                    self.close_connection = True
                    return
                if isinstance(answer, int):
                    self.send(answer, json.dumps({"error": {"message": f"scripted {answer}"}}).encode())
                    return
                self.send(200, answer if isinstance(answer, bytes) else completion(body, answer))

            def send(self, status: int, content: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.send_header("retry-after-ms", "1")
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        web.daemon_threads = True
        threading.Thread(target=web.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{web.server_port}/v1"
        try:
            yield self
        finally:
            self.released.set()
            web.shutdown()
            web.server_close()


def completion(body: dict[str, Any], text: str) -> bytes:
    """A chat completion with one message."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    created = int(time.time())
    reply = {"id": "1", "object": "chat.completion", "created": created, "model": body["model"]}
    return json.dumps(reply | {"choices": [choice]}).encode()
