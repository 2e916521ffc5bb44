"""A model server that plays scripts of tool calls, in place of a language model.

It stands in because the outcomes to be tested (a solved task, a turn limit, a hang, a forged test run) have
to come up for certain and in seconds, which no model on a processor does. All behind it is real: HTTP,
OpenHands' SDK, agent server and tools, the sandbox, and the harness.
"""

import contextlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Step = tuple[str, Any]
"""(tool, its arguments), ("say", text), ("hang", seconds) or ("refuse", (status, message))."""


class ScriptedModel:
    """Serves chat completions; `scripts` holds the steps by a text that the task's instruction contains.

    Which step is due follows from the assistant messages of the request, so a conversation that starts anew
    starts its script anew. After its last step a script goes on repeating it. `refused` counts, by the same
    texts, requests that are refused before the script begins.
    """

    def __init__(
        self,
        scripts: Mapping[str, Sequence[Step]],
        model: str = "tiny-coder",
        refused: Mapping[str, int] | None = None,
    ) -> None:
        self.scripts, self.model = scripts, model
        self.refused = dict(refused or {})
        self.requests: list[dict[str, Any]] = []
        self.hosts: set[str] = set()  # that requests named in their header
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

            def do_GET(self) -> None:
                self.send(200, {"object": "list", "data": [{"id": owner.model, "object": "model"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                owner.answer(self, body)

            def send(self, status: int, content: Any) -> None:
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> "ScriptedModel":
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._server.shutdown()
        self._server.server_close()

    def of(self, text: str) -> list[dict[str, Any]]:
        """Bodies of the requests of one task."""
        return [body for body in self.requests if text in _instruction(body)]

    def answer(self, handler: Any, body: dict[str, Any]) -> None:
        with self._lock:
            self.requests.append(body)
            self.hosts.add(handler.headers["host"])
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._play(handler, body)

    def _play(self, handler: Any, body: dict[str, Any]) -> None:
        place = sum(message["role"] == "assistant" for message in body["messages"])
        text = next(text for text in self.scripts if text in _instruction(body))
        script = self.scripts[text]
        kind, value = script[min(place, len(script) - 1)]
        if self.refused.get(text):
            self.refused[text] -= 1
            kind, value = "refuse", (401, "this key is not known yet")
        if kind == "hang":
            self._stopped.wait(value)
            return
        if kind == "refuse":
            status, message = value
            handler.send(
                status, {"error": {"message": message, "type": "invalid_request_error", "code": status}}
            )
            return
        message: dict[str, Any] = {
            "role": "assistant",
            "content": value if kind == "say" else f"I use the {kind}.",
        }
        if kind != "say":
            call = {"name": kind, "arguments": json.dumps(value)}
            message["tool_calls"] = [{"id": f"call_{place}", "type": "function", "function": call}]
        reason = "stop" if kind == "say" else "tool_calls"
        usage = {"prompt_tokens": 100 + place, "completion_tokens": 7, "total_tokens": 107 + place}
        handler.send(
            200,
            {
                "id": f"chatcmpl-{time.monotonic_ns()}",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": reason}],
                "usage": usage,
            },
        )


def _instruction(body: dict[str, Any]) -> str:
    """The first message of the user."""
    content = next(message["content"] for message in body["messages"] if message["role"] == "user")
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)
