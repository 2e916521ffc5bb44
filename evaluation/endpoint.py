"""Client of an OpenAI-compatible endpoint: completions on token ids, and chat completions with tools.

Completions carry token ids and log-probs both ways (vLLM, `sao.local.serve`), so that a trajectory is never
tokenised twice. Reference models behind APIs take chat messages. Rate limits, server errors and lost
connections are tried again with growing pauses by the `openai` client; what is left falls into two classes:

    EndpointError     the endpoint cannot be used as it is: address, key, model, limits. Stops the run.
    EndpointFailure   this request failed, another may not. The sample is tried again, and is no wrong answer.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import openai

from evaluation.math.protocol import TEMPERATURE, TOP_P

RETRIES = 6  # with pauses of 0.5 to 8 seconds, or as long as the server asks for
CHECK_RETRIES = 1
NEUTRAL = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Sampling that changes nothing; unsaid, vLLM takes what the model's generation_config.json says."""
TIMEOUT_SECONDS = 7200  # 128k tokens at 20 tokens a second
CONNECT_SECONDS = 20.0
MOSTLY = "the address of an OpenAI-compatible endpoint mostly ends in /v1"
DROPPABLE = ("temperature", "top_p")  # at 1 they are the defaults of APIs that refuse them by name


class EndpointError(Exception):
    """The endpoint cannot be used as it is; the message says why and how to mend it."""


class EndpointFailure(Exception):
    """A request failed in a way that says nothing about the model."""


@dataclass(frozen=True)
class Completion:
    """Sampled ids, a stop token among them, with the log-prob of each.

    `finish_reason` is "stop", "length" or "abort" (the server gave up in the middle; what it sampled counts).
    `policy_versions` is the version of the weights that sampled each, where the endpoint says it.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    policy_versions: list[int] | None = None


@dataclass(frozen=True)
class ChatTurn:
    """An assistant message as the endpoint sent it, its length in tokens, and whether it was cut."""

    message: dict[str, Any]
    completion_tokens: int
    prompt_tokens: int
    cut: bool


class Endpoint:
    """One model behind a base URL (which ends in /v1); open with `async with`."""

    def __init__(
        self,
        url: str,
        model: str,
        key: str = "none",
        timeout: float = TIMEOUT_SECONDS,
        retries: int = RETRIES,
    ) -> None:
        self.url, self.model = url.rstrip("/"), model
        self.refused_parameters: set[str] = set()
        self._answered = False
        self._client = openai.AsyncOpenAI(
            base_url=self.url,
            api_key=key,
            max_retries=retries,
            timeout=httpx.Timeout(timeout, connect=CONNECT_SECONDS),
        )

    async def __aenter__(self) -> "Endpoint":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def check(self, needed_tokens: int | None = None) -> None:
        """Raise EndpointError where address, key or model are wrong, or the model's context is too short.

        An endpoint that lists no models is taken at its word.
        """
        client = self._client.with_options(max_retries=CHECK_RETRIES, timeout=CONNECT_SECONDS)
        try:
            answer = await client.models.with_raw_response.list()
        except openai.NotFoundError:
            return
        except openai.OpenAIError as error:
            raise self._classified(error) from error
        listed = self._json(answer).get("data") or []
        if not isinstance(listed, list) or not all(isinstance(m, dict) and "id" in m for m in listed):
            raise EndpointError(f"{self.url}: lists no models; {MOSTLY}")
        models = {model["id"]: model for model in listed}
        self._answered = True
        if not models:
            return
        if self.model not in models:
            raise EndpointError(
                f"{self.url}: has no model {self.model!r}, but {', '.join(sorted(models)[:10])}; "
                "choose one with --model"
            )
        longest = models[self.model].get("max_model_len")
        if needed_tokens and longest and longest < needed_tokens:
            raise EndpointError(
                f"{self.url}: {self.model} is served with a context of {longest} tokens, and the protocol "
                f"asks for {needed_tokens}; serve it with a longer one (vLLM: --max-model-len "
                f"{needed_tokens}), or set --max-tokens"
            )

    async def complete(
        self, token_ids: Sequence[int], max_tokens: int, stop_ids: Sequence[int], seed: int
    ) -> Completion:
        """Sample a continuation of `token_ids`, at temperature 1 and top-p 1."""
        body = {"return_token_ids": True, "stop_token_ids": list(stop_ids), **NEUTRAL}
        answer = await self._ask(
            self._client.completions.with_raw_response.create,
            prompt=list(token_ids),
            max_tokens=max_tokens,
            logprobs=0,
            seed=seed,
            extra_body=body,
        )
        completion = self._completion(self._first_choice(answer))
        self._check_length(completion.finish_reason, len(completion.token_ids), max_tokens)
        return completion

    async def chat(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], max_tokens: int
    ) -> ChatTurn:
        """Sample the next assistant message."""
        name = "max_completion_tokens" if "max_tokens" in self.refused_parameters else "max_tokens"
        given = {"messages": list(messages), name: max_tokens} | ({"tools": list(tools)} if tools else {})
        try:
            answer = await self._ask(self._client.chat.completions.with_raw_response.create, **given)
        except _Refused as refused:
            self.refused_parameters.add(refused.parameter)
            return await self.chat(messages, tools, max_tokens)
        choice = self._first_choice(answer)
        usage = answer.get("usage") or {}
        sampled, prompt = usage.get("completion_tokens"), usage.get("prompt_tokens")
        if sampled is None or prompt is None:
            raise EndpointError(
                f"{self.url}: reports no usage with its answers, without which tokens cannot be counted nor "
                "cut answers found; have the server send it"
            )
        cut = choice.get("finish_reason") == "length"
        if cut:
            self._check_length("length", sampled, max_tokens)
        return ChatTurn(choice["message"], sampled, prompt, cut)

    async def _ask(self, method: Any, **given: Any) -> dict[str, Any]:
        sampling = {"temperature": TEMPERATURE, "top_p": TOP_P}
        kept = {name: value for name, value in sampling.items() if name not in self.refused_parameters}
        try:
            answer = await method(model=self.model, **kept, **given)
        except openai.OpenAIError as error:
            if (parameter := _refused_parameter(error)) and parameter in {*given, *kept}:
                raise _Refused(parameter) from error
            raise self._classified(error) from error
        self._answered = True
        return self._json(answer)

    def _json(self, answer: Any) -> dict[str, Any]:
        try:
            content = json.loads(answer.content)
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise EndpointError(f"{self.url}: answers with something else than a JSON object; {MOSTLY}")
        return content

    def _first_choice(self, answer: dict[str, Any]) -> dict[str, Any]:
        choices = answer.get("choices")
        if not choices:
            raise EndpointFailure(f"{self.url}: answers without choices: {json.dumps(answer)[:200]}")
        return choices[0]

    def _completion(self, choice: dict[str, Any]) -> Completion:
        token_ids = choice.get("token_ids")
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
        if token_ids is None or logprobs is None:
            lacking = "token ids" if token_ids is None else "log-probs"
            raise EndpointError(
                f"{self.url}: returns no {lacking} with completions; use vLLM 0.10.2 or newer or "
                "sao.local.serve, or --chat for an API without them"
            )
        if len(token_ids) != len(logprobs):
            raise EndpointError(
                f"{self.url}: returns {len(token_ids)} token ids with {len(logprobs)} log-probs; "
                "they cannot be aligned"
            )
        if any(logprob is None or not math.isfinite(logprob) for logprob in logprobs):
            raise EndpointError(f"{self.url}: a sampled token came without its log-prob")
        reason = choice.get("finish_reason") or "abort"
        if reason == "abort" and not token_ids:
            raise EndpointFailure(f"{self.url}: the server gave up a request before its first token")
        return Completion(token_ids, logprobs, reason, choice.get("policy_versions"))

    def _check_length(self, finish_reason: str, sampled: int, asked: int) -> None:
        if finish_reason == "length" and sampled < asked:
            raise EndpointError(
                f"{self.url}: cuts after {sampled} tokens where {asked} were asked for; raise the server's "
                "own limit, or set --max-tokens if a shorter limit is what you want to measure"
            )

    def _classified(self, error: openai.OpenAIError) -> Exception:
        """The error as one of the two classes, with a message for the user."""
        if isinstance(error, openai.APITimeoutError):
            return EndpointFailure(f"{self.url}: no answer in time; --timeout sets how long to wait")
        if isinstance(error, openai.APIConnectionError):
            reason = f"{self.url}: cannot be reached: {error.__cause__ or error}"
            if self._answered:
                return EndpointFailure(reason)
            return EndpointError(f"{reason}; check the address and that the server runs")
        if not isinstance(error, openai.APIStatusError):
            return EndpointFailure(f"{self.url}: {error}")
        said = _message(error)
        if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
            return EndpointError(
                f"{self.url}: refuses the API key ({error.status_code}: {said}); set --key-variable"
            )
        if isinstance(error, openai.RateLimitError) and error.code == "insufficient_quota":
            return EndpointError(f"{self.url}: the account's quota is used up: {said}")
        if isinstance(error, openai.NotFoundError) and "model" not in said.lower():
            return EndpointError(f"{self.url}: has no such path; the base URL mostly ends in /v1 ({said})")
        if "chat template" in said.lower():
            return EndpointError(
                f"{self.url}: {self.model} has no chat template ({said}); serve a chat model, or give the "
                "server a template (vLLM: --chat-template FILE)"
            )
        if (
            error.status_code == 408
            or error.status_code == 409
            or error.status_code == 429
            or error.status_code >= 500
        ):
            return EndpointFailure(f"{self.url}: status {error.status_code}: {said}")
        return EndpointError(f"{self.url}: refuses the request (status {error.status_code}): {said}")


class _Refused(Exception):
    """An API does not know a parameter; it may be left out, or goes by another name there."""

    def __init__(self, parameter: str) -> None:
        super().__init__(parameter)
        self.parameter = parameter


def _refused_parameter(error: openai.OpenAIError) -> str | None:
    if not isinstance(error, openai.BadRequestError):
        return None
    said = _message(error).lower()
    unsupported = "unsupported" in said or "not supported" in said
    return error.param if unsupported and error.param in (*DROPPABLE, "max_tokens") else None


def _message(error: openai.APIStatusError) -> str:
    """What the server said, in one line of at most 300 characters."""
    body = error.body
    if isinstance(body, dict):
        body = body.get("message") or body.get("error") or body.get("detail") or body
    text = " ".join(str(body or error.message).split())
    return text[:300]
