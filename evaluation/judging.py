"""An LLM judge behind any OpenAI-compatible endpoint: retries, a rate limit, and a log that is its memory.

Every reply is appended to a JSON Lines file with its verdict, the hash of its prompt, the model and how long
it took; a prompt that was decided is never asked again. What is asked, and how a reply is read, belongs to
the judges of the tasks (`evaluation.math.judge`, `evaluation.writing.judge`).
"""

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sao.environments.base import EnvironmentUnusable

RETRIES = 6  # with pauses of 0.5 to 8 seconds, or as long as the server asks for
FIRST_RETRIES = 2  # until the endpoint has answered once: a wrong address is told in seconds
TIMEOUT_SECONDS = 600.0
KEY_VARIABLE = "OPENAI_API_KEY"
UNDECIDED = "undecided"


class JudgeError(EnvironmentUnusable):
    """The judge cannot be asked; the message says what to mend."""


class JudgeUnavailable(JudgeError):
    """This request failed after its retries; another may not."""


@dataclass(frozen=True)
class Judgement:
    """A verdict with what is needed to trace it.

    `prompt_sha256` is the hash of instruction and prompt, `reply` the whole raw answer. `latency_seconds` is
    the time of the request, its retries included; None in logs of older versions.
    """

    verdict: str
    model: str
    prompt_sha256: str
    reply: str
    latency_seconds: float | None = None

    def fields(self) -> dict[str, Any]:
        """The judgement as JSON fields."""
        return asdict(self)


class RateLimit:
    """Lets at most `per_minute` requests of this process begin in a minute, evenly spaced; None: no limit.

    Retries of a request are not counted; the server's own pauses space them.
    """

    def __init__(
        self,
        per_minute: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._interval = 60 / per_minute if per_minute else 0.0
        self._clock, self._sleep = clock, sleep
        self._next = -float("inf")
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Return once the next request may begin."""
        with self._lock:
            now = self._clock()
            begin = max(now, self._next)
            self._next = begin + self._interval
        if begin > now:
            self._sleep(begin - now)


class LoggedJudge:
    """Asks one model at one endpoint, at temperature 0; `store` is its log and its memory.

    Status 408, 409, 429 and 500 and above, timeouts and lost connections are tried again `retries` times. The
    key comes from the environment variable `key_variable`; endpoints without keys take any. `attempts`: how
    often an undecided prompt is asked; with more than one, undecided replies of earlier runs are asked again.

    Raises JudgeError where the log holds something else than judgements.
    """

    def __init__(
        self,
        url: str,
        model: str,
        store: Path,
        timeout_seconds: float = TIMEOUT_SECONDS,
        retries: int = RETRIES,
        requests_per_minute: float | None = None,
        attempts: int = 1,
        key_variable: str = KEY_VARIABLE,
    ) -> None:
        import openai  # only a judge needs it

        self.model, self.store, self.attempts = model, store, attempts
        self._openai = openai
        self._client = openai.OpenAI(
            base_url=url,
            api_key=os.environ.get(key_variable, "none"),
            timeout=timeout_seconds,
            max_retries=retries,
        )
        self._key_variable = key_variable
        self._first, self._answered = min(retries, FIRST_RETRIES), False
        self._rate = RateLimit(requests_per_minute)
        self._lock = threading.Lock()
        self._known: dict[str, Judgement] = {}
        for judgement in read_judgements(store):
            self._remember(judgement)

    def judge(self, instruction: str, prompt: str, read: Callable[[str], str]) -> Judgement:
        """The judgement on a prompt; `read` turns a reply into a verdict, `UNDECIDED` where it holds none.

        Raises JudgeUnavailable where the endpoint fails for this request, JudgeError where it refuses it.
        """
        digest = hashlib.sha256((instruction + prompt).encode()).hexdigest()
        known = self._known.get(_key(self.model, digest))
        if known is not None:
            return known
        for _ in range(self.attempts):
            began = time.monotonic()
            reply = self._reply(instruction, prompt)
            seconds = round(time.monotonic() - began, 3)
            judgement = Judgement(read(reply), self.model, digest, reply, seconds)
            self._log(judgement)
            if judgement.verdict != UNDECIDED:
                break
        return judgement

    def _remember(self, judgement: Judgement) -> None:
        if judgement.verdict != UNDECIDED or self.attempts == 1:
            self._known[_key(judgement.model, judgement.prompt_sha256)] = judgement

    def _log(self, judgement: Judgement) -> None:
        line = json.dumps(judgement.fields()) + "\n"
        with self._lock:
            self.store.parent.mkdir(parents=True, exist_ok=True)
            with self.store.open("ab", buffering=0) as file:  # one write a line: processes may share the log
                file.write(line.encode())
            self._remember(judgement)

    def _reply(self, instruction: str, prompt: str) -> str:
        messages: list[Any] = [{"role": "user", "content": prompt}]
        if instruction:
            messages.insert(0, {"role": "system", "content": instruction})
        self._rate.wait()
        client = self._client if self._answered else self._client.with_options(max_retries=self._first)
        try:
            completion = client.chat.completions.create(model=self.model, temperature=0, messages=messages)
        except self._openai.OpenAIError as problem:
            raise self._classified(problem) from None
        except ValueError as problem:  # a body that is no JSON
            raise JudgeUnavailable(f"{self._who}: answers with something else than JSON: {problem}") from None
        self._answered = True
        choices = getattr(completion, "choices", None)
        if not choices or choices[0].message is None:
            raise JudgeUnavailable(f"{self._who}: answers without choices")
        return choices[0].message.content or ""

    @property
    def _who(self) -> str:
        return f"judge {self.model} at {self._client.base_url}"

    def _classified(self, problem: Exception) -> JudgeError:
        """The error of a request as one of the two classes, with a message for the user."""
        said = " ".join(str(problem).split())[:300]
        if not isinstance(problem, self._openai.APIStatusError):
            return JudgeUnavailable(f"{self._who}: {said}")  # timeouts, lost connections, answers of no JSON
        if isinstance(problem, self._openai.AuthenticationError | self._openai.PermissionDeniedError):
            return JudgeError(f"{self._who}: refuses the key; set {self._key_variable} ({said})")
        if problem.status_code in (408, 409, 429) or problem.status_code >= 500:
            return JudgeUnavailable(f"{self._who}: {said}")
        return JudgeError(f"{self._who}: refuses the request: {said}")


def read_judgements(store: Path) -> list[Judgement]:
    """The judgements of a log in order; none where there is no log yet.

    Raises JudgeError, naming the line, for one that is no judgement.
    """
    if not store.exists():
        return []
    judgements = []
    for number, line in enumerate(store.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            judgements.append(Judgement(**json.loads(line)))
        except (json.JSONDecodeError, TypeError):
            raise JudgeError(f"{store}:{number}: not a judgement; remove the line to ask again") from None
    return judgements


def _key(model: str, digest: str) -> str:
    return f"{model} {digest}"
