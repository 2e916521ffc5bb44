"""An optional LLM judge for answers that rules cannot decide, behind any OpenAI-compatible endpoint.

It sees the problem, the reference answer and the final answer, at temperature 0, and ends with one of two
boxed words, the scale that the owner of IMOAnswerBench uses. Every reply is kept in a JSON Lines file under
the hash of its prompt and model, so that grading again asks nothing twice and any verdict can be traced.
"""

import re
from pathlib import Path

from evaluation.judging import TIMEOUT_SECONDS, UNDECIDED, JudgeError, Judgement, LoggedJudge
from evaluation.math.answers import extract_answer

__all__ = ["INSTRUCTION", "Judge", "JudgeError", "Judgement"]

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
_VERDICTS = {"correct": "right", "incorrect": "wrong"}


class Judge:
    """Asks one model at one endpoint, and remembers its replies in `store`.

    The key comes from the environment variable OPENAI_API_KEY; endpoints without keys take any. `prompt` is
    a file whose text is sent in place of the instruction here, with {problem}, {gold} and {answer} filled in;
    the reply, too, has to end with one of the boxed words. Raises JudgeError where it lacks one of the three.
    """

    def __init__(
        self,
        url: str,
        model: str,
        store: Path,
        timeout_seconds: float = TIMEOUT_SECONDS,
        prompt: Path | None = None,
    ) -> None:
        self._instruction, self._template = INSTRUCTION, TEMPLATE
        if prompt is not None:
            self._instruction, self._template = "", _read_template(prompt)
        self._judge = LoggedJudge(url, model, store, timeout_seconds)

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
        return self._judge.judge(self._instruction, prompt, _read_verdict)


def _read_verdict(reply: str) -> str:
    boxed = extract_answer(reply).answer or ""
    return _VERDICTS.get(boxed.strip().lower(), UNDECIDED)


def _read_template(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise JudgeError(f"--judge-prompt {path}: cannot be read: {problem}") from None
    missing = [name for name in ("{problem}", "{gold}", "{answer}") if name not in text]
    if missing:
        raise JudgeError(f"--judge-prompt {path}: has no place for {', '.join(missing)}; write it there")
    return text
