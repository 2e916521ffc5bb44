"""Task `writing`: free text in a style that the policy chooses, graded by a judge.

    system   which styles there are, and to choose one and keep to it
    user     what to write
    action   the text, one action without observations

As in section 4.5 of arXiv:2607.07508 the reward is quality x style, both 0 or 1, and the rewarded style
switches twice while the policy trains; the candidates change with the last switch. The judge says whether the
text is good and which style it is in. A text that is cut by the token limit, or empty, gets 0 unseen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sao.environments.base import Instance, StepResult, content_hash
from sao.environments.chat_format import ChatFormat, Message
from sao.environments.style import MALFORMED, Phase

SYSTEM = """\
Before you write, choose one of these styles: {styles}.
Write your whole answer in the style that you chose, and do not name it."""


@dataclass(frozen=True)
class Judged:
    """Whether a text is good, and the candidate style that it is written in; None for none of them."""

    good: bool
    style: str | None


class StyleJudge(Protocol):
    """Grades a text; raises EnvironmentFailure where it has no verdict."""

    def grade(self, request: str, candidates: Sequence[str], text: str) -> Judged: ...


@dataclass(frozen=True)
class Writing:
    """What all attempts share. `switch_points`: shares of training at which the next of `phases` begins."""

    chat: ChatFormat
    judge: StyleJudge
    max_tokens: int
    phases: tuple[Phase, ...]
    switch_points: tuple[float, ...]

    def phase(self, progress: float) -> Phase:
        """Return the phase at a share of training done."""
        return self.phases[sum(progress >= point for point in self.switch_points)]

    def attempt(self, instance: Instance, progress: float) -> "WritingEpisode":
        """Start an episode in the phase that `progress` has reached."""
        return WritingEpisode(self, instance, self.phase(progress))


class WritingEpisode:
    """One attempt: a single action."""

    def __init__(self, shared: Writing, instance: Instance, phase: Phase) -> None:
        self._shared, self._phase = shared, phase
        self._request = str(instance.payload[0])
        self.prompt_ids = shared.chat.prompt_ids(messages(instance, phase))
        self.text = ""
        self._judged: Judged | None = None
        self._done = False

    @property
    def tokens_left(self) -> int:
        """Tokens that the text may have."""
        return self._shared.max_tokens - len(self.prompt_ids)

    def action_complete(self, action_ids: Sequence[int]) -> bool:
        """Tell whether the text has ended or used up its tokens."""
        ended = bool(action_ids) and action_ids[-1] in self._shared.chat.stop_ids
        return ended or len(action_ids) >= self.tokens_left

    def step(self, action_ids: Sequence[int]) -> StepResult:
        """Have the text graded; thinking before it is left out.

        Raises EnvironmentFailure where the judge has no verdict, RuntimeError after the end.
        """
        if self._done:
            raise RuntimeError("the episode is over: start a new one")
        self._done = True
        action = self._shared.chat.read(action_ids)
        self.text = action.text.strip()
        if not action.ended:
            return StepResult([], True, 0.0, "truncated")
        if not self.text:
            return StepResult([], True, 0.0)
        self._judged = self._shared.judge.grade(self._request, self._phase.candidates, self.text)
        good = self._judged.good and self._judged.style == self._phase.rewarded
        return StepResult([], True, float(good))

    def details(self) -> dict[str, str | int]:
        """Return the style of the text, "malformed" where it is in no candidate's or was not judged."""
        style = self._judged.style if self._judged else None
        return {"style": style or MALFORMED}


def messages(instance: Instance, phase: Phase) -> list[Message]:
    """The messages of a prompt; the instance says in which order it lists the candidates."""
    order = sorted(phase.candidates, key=lambda style: content_hash((instance.prompt_id, style)))
    styles = ", ".join(order)
    return [
        {"role": "system", "content": SYSTEM.format(styles=styles)},
        {"role": "user", "content": str(instance.payload[0])},
    ]
