"""HTTP server of the local engine: a subset of OpenAI's completions API, with token ids in and out.

    python -m sao.local.serve --checkpoint results/smoke_math/prepare/arithmetic/warm_start/policy --port 0

Prints `serving NAME at http://127.0.0.1:PORT/v1` once it listens. POST /v1/completions takes a prompt of
token ids (or text, where the checkpoint has a tokenizer) and returns the sampled ids, a stop token among
them, with the log-prob of each and the version of the weights that sampled it; GET /v1/models names the model
and its longest context. Where the environment variable SAO_API_KEY is set, requests must carry it as their
bearer token.
"""

import argparse
import asyncio
import os
import signal
import socket
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from sao.local.batching import BatchedEngine, Sampled

KEY_VARIABLE = "SAO_API_KEY"
DRAIN_SECONDS = 5  # that requests under way get when the server is asked to stop


class CompletionRequest(BaseModel):
    """The part of the API that this server has; what it lacks it refuses by name."""

    model_config = ConfigDict(extra="forbid")

    prompt: str | list[int]
    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] = 16
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    top_p: Literal[1] = 1
    top_k: Literal[0, -1] = 0
    min_p: Literal[0] = 0
    repetition_penalty: Literal[1] = 1
    n: Literal[1] = 1
    stream: Literal[False] = False
    stop_token_ids: list[int] = []
    logprobs: Annotated[int, Field(ge=0, le=1)] | None = None
    return_token_ids: bool = False
    seed: int | None = None


class Server:
    """Handlers of one model's requests; `tokenizer` is None where the checkpoint has none."""

    def __init__(self, engine: "BatchedEngine", tokenizer: Any, name: str, key: str | None = None) -> None:
        self.engine, self.tokenizer, self.name, self.key = engine, tokenizer, name, key
        self.created = int(time.time())

    def app(self) -> Starlette:
        """The ASGI application; errors have the API's shape."""
        routes = [
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/completions", self.completions, methods=["POST"]),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: self.failed})

    async def failed(self, request: Request, error: Exception) -> Response:
        """Answer an error; an unknown path gets told the known ones."""
        assert isinstance(error, HTTPException)
        message = error.detail
        if error.status_code == 404 and message == "Not Found":
            message = f"no such path: {request.url.path}; there are /v1/models and /v1/completions"
        body = {"error": {"message": message, "type": "invalid_request_error", "code": error.status_code}}
        return JSONResponse(body, status_code=error.status_code)

    async def models(self, request: Request) -> Response:
        """The one model that is served."""
        self._authorize(request)
        model = {"id": self.name, "object": "model", "created": self.created, "owned_by": "local"}
        model["max_model_len"] = self.engine.engine.max_tokens
        return JSONResponse({"object": "list", "data": [model]})

    async def completions(self, request: Request) -> Response:
        """Sample one completion."""
        from sao.local.batching import EngineStopped, Sampling

        self._authorize(request)
        wanted = self._read(await request.body())
        prompt_ids = self._prompt_ids(wanted.prompt)
        sampling = Sampling(
            wanted.max_tokens, wanted.temperature, frozenset(wanted.stop_token_ids), wanted.seed
        )
        try:
            job = self.engine.submit(prompt_ids, sampling)
            result: asyncio.Future[Any] = asyncio.wrap_future(job.future)
            gone: asyncio.Future[Any] = asyncio.ensure_future(_disconnected(request))
            await asyncio.wait({result, gone}, return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            if not result.done():
                job.abandon()
                return Response(status_code=499)
            return JSONResponse(self._answer(wanted, prompt_ids, result.result()))
        except ValueError as error:
            raise HTTPException(400, str(error)) from error
        except EngineStopped as error:
            raise HTTPException(503, str(error)) from error

    def _authorize(self, request: Request) -> None:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            raise HTTPException(401, "the API key is missing or wrong")

    def _read(self, body: bytes) -> CompletionRequest:
        try:
            wanted = CompletionRequest.model_validate_json(body)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"][:1]) or "body"
            raise HTTPException(400, f"{place}: {first['msg']}") from error
        if wanted.model not in (None, self.name):
            raise HTTPException(
                404, f"the model {wanted.model!r} does not exist; this server has {self.name!r}"
            )
        return wanted

    def _prompt_ids(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, list):
            return prompt
        if self.tokenizer is None:
            raise HTTPException(400, "prompt: the checkpoint has no tokenizer; send token ids")
        return self.tokenizer.encode(prompt, add_special_tokens=False)

    def _answer(self, wanted: CompletionRequest, prompt_ids: list[int], sampled: "Sampled") -> dict[str, Any]:
        ids = sampled.token_ids
        stopped = sampled.finish_reason == "stop"
        choice: dict[str, Any] = {
            "index": 0,
            "text": self._text(ids[:-1] if stopped else ids),
            "finish_reason": sampled.finish_reason,
            "stop_reason": ids[-1] if stopped else None,
        }
        if wanted.logprobs is not None:
            choice["logprobs"] = {
                "tokens": [f"token_id:{token}" for token in ids],
                "token_logprobs": sampled.logprobs,
                "top_logprobs": None,
                "text_offset": None,
            }
        if wanted.return_token_ids:
            choice |= {"token_ids": ids, "prompt_token_ids": prompt_ids}
            choice["policy_versions"] = sampled.versions
        usage = {"prompt_tokens": len(prompt_ids), "completion_tokens": len(ids)}
        return {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.name,
            "choices": [choice],
            "usage": usage | {"total_tokens": sum(usage.values())},
        }

    def _text(self, token_ids: list[int]) -> str:
        if self.tokenizer is None:
            return ""
        return self.tokenizer.decode(token_ids, skip_special_tokens=False)


async def _disconnected(request: Request) -> None:
    """Return when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _stop_at_end_of_input() -> None:
    while sys.stdin.buffer.read(4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def load_server(checkpoint: Path, slots: int, max_tokens: int | None, key: str | None) -> Server:
    """A server of an exported policy; ValueError where the folder holds none."""
    import torch

    from sao.local.batching import BatchedEngine
    from sao.local.decode import DecodeEngine
    from sao.local.model import load_policy

    if not (checkpoint / "config.json").exists():
        raise ValueError(f"{checkpoint}: holds no exported policy (config.json is missing)")
    torch.set_num_threads(1)
    policy = load_policy(checkpoint)
    longest = policy.config.max_position_embeddings
    engine = DecodeEngine(policy, slots, min(max_tokens or longest, longest), rounding="none")
    tokenizer = None
    if (checkpoint / "tokenizer.json").exists():
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    return Server(BatchedEngine(engine), tokenizer, checkpoint.name, key)


def main(arguments: list[str] | None = None) -> int:
    """Command line: serves until SIGTERM or Ctrl-C; returns 0, or 2 for a user's mistake."""
    import uvicorn

    parser = argparse.ArgumentParser(
        prog="python -m sao.local.serve", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="exported policy, e.g. weights/step-120"
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--slots", type=int, default=64, help="requests decoded at once")
    parser.add_argument("--max-tokens", type=int, help="longest context; the model's own by default")
    parser.add_argument(
        "--until-eof",
        action="store_true",
        help="stop when standard input ends, with the program that holds it",
    )
    options = parser.parse_args(arguments)
    try:
        listener = socket.create_server((options.host, options.port), backlog=1024)
    except OSError as error:
        print(f"{options.host}:{options.port}: cannot listen: {error.strerror}", file=sys.stderr)
        return 2
    with listener:
        try:
            server = load_server(
                options.checkpoint, options.slots, options.max_tokens, os.environ.get(KEY_VARIABLE)
            )
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
        host, port = listener.getsockname()[:2]
        # uvicorn shuts down in good order at the first signal and then raises it again, which is enough.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        if options.until_eof:
            threading.Thread(target=_stop_at_end_of_input, daemon=True).start()
        print(f"serving {server.name} at http://{host}:{port}/v1", flush=True)
        settings = uvicorn.Config(
            server.app(), log_level="warning", lifespan="off", timeout_graceful_shutdown=DRAIN_SECONDS
        )
        uvicorn.Server(settings).run(sockets=[listener])
        server.engine.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
