"""A recording proxy: chat completions towards an agent's SDK, completions on token ids towards the engine.

Each conversation has an API key of its own, so that requests under it become one `Recording`: token ids,
action spans, the engine's log-probs, and the weight version of each token. The id that the SDK gives its
conversation (header x-litellm-session-id, or prompt_cache_key in the body) has to stay the same: a second one
is another history. Sampling has temperature 1 and top-p 1 and nothing else: a request that asks for another
sampling, or for what is not known here, is refused by name. A request whose history is not the recorded one
makes its conversation invalid and ends it.
"""

import asyncio
import json
import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from evaluation.endpoint import Completion, EndpointError, EndpointFailure
from evaluation.math.conversation import seeds
from sao.environments.chat_format import ChatFormat, ChatFormatError, Message
from sao.environments.swe import ModelAddress
from sao.environments.swe_recording import HistoryAltered, Recording, Tools

SESSION_HEADER = "x-litellm-session-id"


class Engine(Protocol):
    """Samples at temperature 1 and top-p 1 on token ids; `evaluation.endpoint.Endpoint` is one."""

    async def complete(
        self, token_ids: Sequence[int], max_tokens: int, stop_ids: Sequence[int], seed: int
    ) -> Completion: ...


class ChatRequest(BaseModel):
    """The part of the API that the proxy has; what it lacks it refuses by name."""

    model_config = ConfigDict(extra="forbid")

    model: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = []
    tool_choice: Literal["auto"] = "auto"
    parallel_tool_calls: Literal[True] = True
    temperature: Literal[1] = 1
    top_p: Literal[1] = 1
    top_k: Literal[0, -1] = -1
    min_p: Literal[0] = 0
    presence_penalty: Literal[0] = 0
    frequency_penalty: Literal[0] = 0
    repetition_penalty: Literal[1] = 1
    n: Literal[1] = 1
    stream: Literal[False] = False
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    prompt_cache_key: str | None = None
    return_token_ids: bool = False
    logprobs: bool = False
    user: str | None = None
    metadata: dict[str, Any] | None = None


@dataclass
class Conversation:
    """A recording under way; one request at a time continues it."""

    engine: Engine
    recording: Recording = field(default_factory=Recording)
    session: str | None = None
    requests: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class RecordingProxy:
    """Handlers of the conversations with one model.

    `engine` answers conversations that are opened without one of their own. `tokenizer` is the model's,
    `max_tokens` the longest conversation. `url` is set once the application is served. `version` gives the
    version of the weights for engines that do not say which sampled a token; where they change while a
    request is answered, all its tokens count as the older. `counts` holds how many conversations were opened
    and how many became invalid, by reason.
    """

    def __init__(
        self,
        engine: Engine | None,
        tokenizer: Any,
        model: str,
        max_tokens: int,
        version: Callable[[], int] = lambda: 0,
    ) -> None:
        self.engine, self.tokenizer, self.model, self.max_tokens = engine, tokenizer, model, max_tokens
        self.version = version
        self.url = ""
        self.counts: Counter[str] = Counter()
        self._conversations: dict[str, Conversation] = {}
        self._chats: dict[str, ChatFormat] = {}
        self._recording = threading.Lock()  # a conversation may be closed from another thread

    def app(self) -> Starlette:
        """The ASGI application; errors have the API's shape."""
        routes = [Route("/v1/chat/completions", self.chat_completions, methods=["POST"])]
        return Starlette(routes=routes, exception_handlers={HTTPException: self.failed})

    def open(self, engine: Engine | None = None) -> ModelAddress:
        """Expect a conversation; ValueError where no engine would answer it."""
        answering = engine or self.engine
        if answering is None:
            raise ValueError("the proxy has no engine of its own: give the conversation one")
        address = ModelAddress(f"{self.url}/v1", self.model, secrets.token_hex(16))
        self._conversations[address.key] = Conversation(answering)
        self.counts["opened"] += 1
        return address

    def close(self, address: ModelAddress) -> Recording:
        """Take the conversation's record; requests that come later are refused."""
        with self._recording:
            return self._conversations.pop(address.key).recording

    async def failed(self, request: Request, error: Exception) -> Response:
        """Answer an error in the API's shape."""
        assert isinstance(error, HTTPException)
        kind = "invalid_request_error" if error.status_code < 500 else "server_error"
        body = {"error": {"message": error.detail, "type": kind, "code": error.status_code}}
        return JSONResponse(body, status_code=error.status_code)

    async def chat_completions(self, request: Request) -> Response:
        """Sample the next assistant message of a conversation."""
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        conversation = self._conversations.get(key)
        if conversation is None:
            raise HTTPException(401, "the API key is that of no open conversation")
        wanted = self._read(await request.body())
        session = request.headers.get(SESSION_HEADER) or wanted.prompt_cache_key
        messages = [plain_message(message) for message in wanted.messages]
        async with conversation.lock:
            if conversation.session not in (None, session):
                self._invalidate(conversation.recording, "a second conversation of the SDK uses its key")
            conversation.session = session
            return JSONResponse(await self._continue(conversation, key, wanted, messages))

    async def _continue(
        self, conversation: Conversation, key: str, wanted: ChatRequest, messages: list[Message]
    ) -> dict[str, Any]:
        recording, chat = conversation.recording, self._chat(wanted.tools)
        try:
            if recording.invalid:
                raise HistoryAltered(recording.invalid)
            context = recording.context(messages, wanted.tools, chat)
        except HistoryAltered as altered:
            self._invalidate(recording, str(altered))
            raise HTTPException(409, f"the conversation is invalid: {altered}") from altered
        except ChatFormatError as error:
            raise HTTPException(400, str(error)) from error
        room = self.max_tokens - len(context)
        if room < 1:
            recording.cut = True
            raise HTTPException(
                400,
                f"This model's maximum context length is {self.max_tokens} tokens. However, your messages "
                f"resulted in {len(context)} tokens.",
            )
        room = min(room, wanted.max_tokens or room, wanted.max_completion_tokens or room)
        sampled, versions = await self._sample(conversation, key, context, room, chat)
        with self._recording:
            if self._conversations.get(key) is not conversation:
                raise HTTPException(401, "the conversation was closed meanwhile")
            answer = recording.record(
                messages, wanted.tools, context, chat, sampled.token_ids, sampled.logprobs, versions
            )
            recording.cut = sampled.finish_reason == "length"
        return self._answer(wanted, context, answer, sampled)

    async def _sample(
        self, conversation: Conversation, key: str, context: list[int], room: int, chat: ChatFormat
    ) -> tuple[Completion, list[int]]:
        """One whole action with the version of each token, also where the engine gives up in its middle."""
        seed = seeds(key)
        whole, versions = Completion([], [], "abort"), list[int]()
        while whole.finish_reason == "abort":
            before = self.version()
            try:
                part = await conversation.engine.complete(
                    context + whole.token_ids,
                    room - len(whole.token_ids),
                    chat.stop_ids,
                    seed(conversation.requests),
                )
            except (EndpointError, EndpointFailure) as error:
                raise HTTPException(502, f"the engine failed: {error}") from error
            conversation.requests += 1
            versions += part.policy_versions or [before] * len(part.token_ids)
            whole = Completion(
                whole.token_ids + part.token_ids, whole.logprobs + part.logprobs, part.finish_reason
            )
            if len(whole.token_ids) >= room and part.finish_reason == "abort":
                whole = Completion(whole.token_ids, whole.logprobs, "length")
        if not len(whole.token_ids) == len(whole.logprobs) == len(versions) or not whole.token_ids:
            raise HTTPException(502, "the engine's token ids, log-probs and versions cannot be aligned")
        if not all(map(math.isfinite, whole.logprobs)):
            raise HTTPException(502, "the engine sampled a token without its log-prob")
        return whole, versions

    def _invalidate(self, recording: Recording, reason: str) -> None:
        if recording.invalid is None:
            recording.invalid = reason
            self.counts["invalid"] += 1
            self.counts[f"invalid: {reason}"] += 1

    def _read(self, body: bytes) -> ChatRequest:
        try:
            wanted = ChatRequest.model_validate_json(body)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"][:1]) or "body"
            raise HTTPException(
                400, f"{place}: {first['msg']}; the proxy samples at temperature 1, top-p 1"
            ) from error
        if wanted.model != self.model:
            raise HTTPException(
                404, f"the model {wanted.model!r} does not exist; the proxy has {self.model!r}"
            )
        return wanted

    def _chat(self, tools: Tools) -> ChatFormat:
        listed = json.dumps(tools, sort_keys=True)
        if listed not in self._chats:
            try:
                self._chats[listed] = ChatFormat(self.tokenizer, tools)
            except ChatFormatError as error:
                raise HTTPException(400, str(error)) from error
        return self._chats[listed]

    def _answer(
        self, wanted: ChatRequest, context: list[int], message: Message, sampled: Completion
    ) -> dict[str, Any]:
        reason = "tool_calls" if message.get("tool_calls") else sampled.finish_reason
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": reason}
        answer: dict[str, Any] = {
            "id": f"chatcmpl-{secrets.token_hex(8)}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self.model,
            "choices": [choice],
        }
        if wanted.return_token_ids:
            choice["token_ids"], answer["prompt_token_ids"] = sampled.token_ids, context
        if wanted.logprobs:
            named = zip(sampled.token_ids, sampled.logprobs, strict=True)
            content: list[dict[str, Any]] = [
                {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
                for token, logprob in named
            ]
            choice["logprobs"] = {"content": content}
        usage = {"prompt_tokens": len(context), "completion_tokens": len(sampled.token_ids)}
        return answer | {"usage": usage | {"total_tokens": sum(usage.values())}}


def plain_message(message: dict[str, Any]) -> Message:
    """The message with its content as one text; HTTPException 400 for what is no text."""
    content = message.get("content")
    if isinstance(content, list):
        if other := [part.get("type") for part in content if part.get("type") != "text"]:
            raise HTTPException(400, f"messages: content of type {other[0]!r}; the proxy has text alone")
        content = "\n".join(part["text"] for part in content)
    if message.get("role") not in ("system", "user", "assistant", "tool"):
        raise HTTPException(400, f"messages: the role {message.get('role')!r} is not known")
    return message | {"content": content or ""}
