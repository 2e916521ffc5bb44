"""Requests of many clients decoded together: one thread runs the engine, a token a step and request.

Each request has its own random state, so what it gets depends on its seed and not on what else is decoded at
the same time (up to the rounding of a batched matrix product).
"""

import queue
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from transformers import Qwen3MoeForCausalLM

from sao.local.decode import DecodeEngine


@dataclass(frozen=True)
class Sampling:
    """`temperature` 0 takes the likeliest token; sampling ends at `stop_ids` or after `max_tokens`."""

    max_tokens: int
    temperature: float = 1.0
    stop_ids: frozenset[int] = frozenset()
    seed: int | None = None


@dataclass(frozen=True)
class Sampled:
    """Sampled ids, a stop token among them, with the log-prob of each at the request's temperature and the
    version of the weights that sampled it.
    """

    token_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish_reason: str  # "stop" or "length"


class EngineStopped(RuntimeError):
    """The engine was stopped before the request was done."""


@dataclass
class Job:
    """A request in the engine: `future` brings the result, `abandon` gives its slot to another request."""

    prompt_ids: list[int]
    sampling: Sampling
    generator: torch.Generator
    future: "Future[Sampled]" = field(default_factory=Future)
    abandoned: bool = False
    slot: int = -1
    fed: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def abandon(self) -> None:
        """The result is wanted no more."""
        self.abandoned = True

    def unfed(self) -> list[int]:
        """The tokens that the engine has not seen."""
        return self.token_ids[-1:] or self.prompt_ids

    def append(self, token: int, logprob: float, version: int) -> bool:
        """Take a token that weights of `version` sampled; true when it was the last one."""
        self.fed = len(self.prompt_ids) + len(self.token_ids)
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        stopped = token in self.sampling.stop_ids
        if not stopped and len(self.token_ids) < self.sampling.max_tokens:
            return False
        reason = "stop" if stopped else "length"
        self.future.set_result(Sampled(self.token_ids, self.logprobs, self.versions, reason))
        return True


class BatchedEngine:
    """Decodes submitted requests in the slots of an engine until `stop`; `version` is that of its weights."""

    def __init__(self, engine: DecodeEngine, version: int = 0) -> None:
        self.engine, self.version = engine, version
        self._loads: queue.SimpleQueue[tuple[Qwen3MoeForCausalLM, int, Future[None]]] = queue.SimpleQueue()
        self._waiting: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._free = list(range(engine.slots))
        self._running: list[Job] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, prompt_ids: list[int], sampling: Sampling) -> Job:
        """Queue a request.

        Raises ValueError for an empty prompt, a token outside the vocabulary, or more tokens than a slot has;
        EngineStopped after `stop`.
        """
        vocabulary, longest = self.engine.config.vocab_size, self.engine.max_tokens
        if not prompt_ids:
            raise ValueError("the prompt is empty")
        if wrong := [token for token in prompt_ids if not 0 <= token < vocabulary]:
            raise ValueError(f"the prompt holds token {wrong[0]}; the vocabulary has {vocabulary} tokens")
        if len(prompt_ids) + sampling.max_tokens > longest:
            raise ValueError(
                f"{len(prompt_ids)} prompt tokens and max_tokens {sampling.max_tokens} exceed the maximum "
                f"context length of {longest} tokens"
            )
        if self._stopping.is_set():
            raise EngineStopped("the server is shutting down")
        generator = torch.Generator()
        if sampling.seed is None:
            generator.seed()
        else:
            generator.manual_seed(sampling.seed)
        job = Job(prompt_ids, sampling, generator)
        self._waiting.put(job)
        return job

    def load_weights(self, policy: Qwen3MoeForCausalLM, version: int) -> None:
        """Sample with the policy's weights from the next token on, in the middle of requests.

        Requests under way keep what they have cached. Returns once the weights are in use; EngineStopped
        after `stop`.
        """
        if self._stopping.is_set():
            raise EngineStopped("the server is shutting down")
        loaded: Future[None] = Future()
        self._loads.put((policy, version, loaded))
        self._waiting.put(None)  # wakes an idle engine
        loaded.result()

    def stop(self) -> None:
        """End the thread; requests under way fail with EngineStopped."""
        self._stopping.set()
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._admit()
            self._take_weights()
            try:
                if self._running:
                    self._step()
            except Exception as error:  # fails the requests at hand; the next ones may fare better
                self._fail_all(error)
        self._admit()
        self._take_weights()
        self._fail_all(EngineStopped("the server is shutting down"))
        while not self._waiting.empty():
            if waiting := self._waiting.get():
                waiting.future.set_exception(EngineStopped("the server is shutting down"))

    def _admit(self) -> None:
        for job in [job for job in self._running if job.abandoned]:
            self._release(job)
        while self._free:
            try:
                waiting = self._waiting.get(block=not self._running and not self._stopping.is_set())
            except queue.Empty:
                return
            if waiting is None:
                return
            waiting.slot = self._free.pop()
            self._running.append(waiting)

    def _take_weights(self) -> None:
        while not self._loads.empty():
            policy, self.version, loaded = self._loads.get()
            self.engine.load_weights(policy)
            loaded.set_result(None)

    def _step(self) -> None:
        jobs = self._running
        slots, starts = [job.slot for job in jobs], [job.fed for job in jobs]
        logits = self.engine.step(slots, starts, [job.unfed() for job in jobs]).cpu()
        tokens, logprobs = _draw(logits, jobs)
        drawn = zip(jobs, tokens, logprobs, strict=True)
        for done in [job for job, token, logprob in drawn if job.append(token, logprob, self.version)]:
            self._release(done)

    def _release(self, job: Job) -> None:
        self._running.remove(job)
        self._free.append(job.slot)

    def _fail_all(self, error: Exception) -> None:
        for job in list(self._running):
            job.future.set_exception(error)
            self._release(job)


def _draw(logits: torch.Tensor, jobs: list[Job]) -> tuple[list[int], list[float]]:
    """One token of each row of float32 logits [jobs, vocabulary] with its log-prob, each by its own rules."""
    temperatures = torch.tensor([job.sampling.temperature for job in jobs])
    logprobs = (logits / torch.where(temperatures > 0, temperatures, 1.0)[:, None]).log_softmax(-1)
    scores = logprobs.clone()
    for row, job in enumerate(jobs):
        if job.sampling.temperature > 0:  # Gumbel-max: a draw from the softmax
            scores[row] -= torch.empty(logits.shape[1]).exponential_(generator=job.generator).log()
    tokens = scores.argmax(-1)
    return tokens.tolist(), logprobs.gather(1, tokens[:, None])[:, 0].tolist()
