"""Whose doing a failure of the agent server is: the machine's, the endpoint's, or the model's."""

import threading
import time
import uuid
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from openhands.sdk.conversation.exceptions import ConversationRunError

from evaluation.swe.conversation import SERVER_ENDED, Limits, TurnCounter, Watch, _change, _ending
from sao.environments.base import EnvironmentFailure


class Conversation:
    """Has its agent answer once where `answers`, and fails then."""

    def __init__(self, turns: TurnCounter, failure: Exception, answers: bool) -> None:
        self.turns, self.failure, self.answers = turns, failure, answers
        self.state = SimpleNamespace(events=[])

    def send_message(self, message: str) -> None:
        pass

    def run(self, **_: Any) -> None:
        if self.answers:
            self.turns(SimpleNamespace(source="agent", llm_response_id="1"))  # type: ignore[arg-type]
        raise self.failure


class Workspace:
    """Looks as it was told to."""

    def __init__(self, seen: bool = False) -> None:
        self.seen = seen

    def ended(self) -> str:
        return ""

    def model_answered(self) -> bool:
        return self.seen


def ending(failure: Exception, answers: bool = True, seen: bool = False, stop: bool = False) -> str:
    turns, stopped = TurnCounter(9), threading.Event()
    if stop:
        stopped.set()
    watch = Watch(Workspace(seen), stopped)  # type: ignore[arg-type]
    conversation = Conversation(turns, failure, answers)
    return _ending(conversation, "go", turns, Limits(9), time.monotonic() + 9, watch)


def reported(code: str) -> ConversationRunError:
    error: Any = SimpleNamespace(code=code, detail="")
    return ConversationRunError(uuid.uuid4(), RuntimeError(f"{code}: it broke"), conversation_error=error)


GONE = ConversationRunError(uuid.uuid4(), httpx.ConnectError("refused"))


def test_a_server_that_fails_after_an_answer_does_so_by_the_models_doing() -> None:
    assert ending(GONE) == SERVER_ENDED
    assert ending(httpx.ReadTimeout("silent")) == SERVER_ENDED
    assert ending(reported("FileNotFoundError")) == SERVER_ENDED  # its own files were deleted
    assert ending(GONE, answers=False, seen=True) == SERVER_ENDED  # before the event came through


@pytest.mark.parametrize("failure", [GONE, httpx.ReadTimeout("silent"), reported("FileNotFoundError")])
def test_before_the_first_answer_it_is_a_failure(failure: Exception) -> None:
    with pytest.raises(EnvironmentFailure):
        ending(failure, answers=False)


@pytest.mark.parametrize("code", ["LLMAuthenticationError", "InternalServerError", "APIConnectionError"])
def test_a_fault_of_the_models_endpoint_is_a_failure_whenever_it_comes(code: str) -> None:
    with pytest.raises(EnvironmentFailure, match=f"{code}: it broke"):
        ending(reported(code))


def test_a_run_that_is_stopped_is_no_ending() -> None:
    with pytest.raises(EnvironmentFailure):
        ending(GONE, stop=True)


def test_a_change_that_the_ended_server_cannot_tell_is_empty() -> None:
    def change(commit: str) -> str:
        raise EnvironmentFailure("the agent server does not answer")

    workspace: Any = SimpleNamespace(change=change)
    assert _change(workspace, "c0", SERVER_ENDED) == ""
    with pytest.raises(EnvironmentFailure):
        _change(workspace, "c0", "finish")
