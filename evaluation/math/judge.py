"""An optional LLM judge for answers that rules cannot decide, behind any OpenAI-compatible endpoint.

It sees the problem, the reference answer and the final answer, at temperature 0, and ends with one of two
boxed words, the scale that the owner of IMOAnswerBench uses. Every reply is kept in a JSON Lines file under
the hash of its prompt and model, so that grading again asks nothing twice and any verdict can be traced.
"""

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evaluation.math.answers import extract_answer
from evaluation.math.verdicts import Verdict

INSTRUCTION = """\
You check the final answer to a mathematics problem against the reference answer. Do not solve the problem.

Decide whether both answers state the same mathematical content.
- Notation does not matter: an equivalent formula, another order of a set or list, renamed bound variables or
  free constants, an interval for its inequality, words for their formula.
- Content does: a missing or additional solution, another domain or endpoint, an unproved special case of a
  general answer, an approximation where the reference is exact, or a wrong sign make the answer incorrect.
- An answer that is incomplete, ambiguous or hedged between several values is incorrect.

Reason in a few sentences, then end with \\boxed{Correct} or \\boxed{Incorrect} and nothing after it.
"""
TEMPLATE = "Problem:\n{problem}\n\nReference answer:\n{gold}\n\nFinal answer to check:\n{answer}\n"
_FIELDS = re.compile(r"\{(?:problem|gold|answer)\}")
_VERDICTS: dict[str, Verdict] = {"correct": "right", "incorrect": "wrong"}


class JudgeError(RuntimeError):
    """The judge cannot be asked; the message says what to mend."""


@dataclass(frozen=True)
class Judgement:
    """A judge's verdict, with what is needed to trace it: model, hash of the prompt, and the whole reply."""

    verdict: Verdict
    model: str
    prompt_sha256: str
    reply: str

    def fields(self) -> dict[str, Any]:
        """The judgement as JSON fields."""
        return asdict(self)


class Judge:
    """Asks one model at one endpoint, and remembers its replies in `store`.

    The key comes from the environment variable OPENAI_API_KEY; endpoints without keys take any. `prompt` is
    a file whose text is sent in place of the instruction here, with {problem}, {gold} and {answer} filled in;
    the reply, too, has to end with one of the boxed words. Raises JudgeError where it lacks one of the three.
    """

    def __init__(
        self, url: str, model: str, store: Path, timeout_seconds: float = 600, prompt: Path | None = None
    ) -> None:
        import openai  # only a judge needs it

        self.model = model
        self._instruction, self._template = INSTRUCTION, TEMPLATE
        if prompt is not None:
            self._instruction, self._template = "", _read_template(prompt)
        self.store = store
        self._errors = (openai.OpenAIError,)
        self._client = openai.OpenAI(
            base_url=url, api_key=os.environ.get("OPENAI_API_KEY", "none"), timeout=timeout_seconds
        )
        self._known: dict[str, Judgement] = {}
        if store.exists():
            for number, line in enumerate(store.read_text(encoding="utf-8").splitlines(), start=1):
                try:
                    judgement = Judgement(**json.loads(line))
                except (json.JSONDecodeError, TypeError):
                    raise JudgeError(
                        f"{store}:{number}: not a judgement; remove the line to ask again"
                    ) from None
                self._known[_key(judgement.model, judgement.prompt_sha256)] = judgement

    def ask(self, problem: str, gold: str, answer: str) -> Judgement:
        """The judge's verdict on one answer; "undecided" where its reply has no boxed verdict.

        Raises JudgeError when the endpoint fails or the problem's text is missing.
        """
        if not problem.strip():
            raise JudgeError(
                "the samples carry no `problem` text, which the judge needs; add it or drop --judge-url"
            )
        values = {"{problem}": problem, "{gold}": gold, "{answer}": answer}
        prompt = _FIELDS.sub(lambda found: values[found.group()], self._template)
        digest = hashlib.sha256((self._instruction + prompt).encode()).hexdigest()
        key = _key(self.model, digest)
        if key not in self._known:
            reply = self._reply(prompt)
            boxed = extract_answer(reply).answer or ""
            judgement = Judgement(
                _VERDICTS.get(boxed.strip().lower(), "undecided"), self.model, digest, reply
            )
            with self.store.open("a", encoding="utf-8") as file:
                file.write(json.dumps(judgement.fields()) + "\n")
            self._known[key] = judgement
        return self._known[key]

    def _reply(self, prompt: str) -> str:
        messages: list[Any] = [{"role": "user", "content": prompt}]
        if self._instruction:
            messages.insert(0, {"role": "system", "content": self._instruction})
        try:
            completion = self._client.chat.completions.create(
                model=self.model, temperature=0, messages=messages
            )
        except self._errors as problem:
            raise JudgeError(f"judge {self.model} at {self._client.base_url}: {problem}") from None
        return completion.choices[0].message.content or ""


def _read_template(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise JudgeError(f"--judge-prompt {path}: cannot be read: {problem}") from None
    missing = [name for name in ("{problem}", "{gold}", "{answer}") if name not in text]
    if missing:
        raise JudgeError(f"--judge-prompt {path}: has no place for {', '.join(missing)}; write it there")
    return text


def _key(model: str, digest: str) -> str:
    return f"{model} {digest}"
