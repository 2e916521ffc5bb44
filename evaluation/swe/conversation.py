"""One task played by the agent through OpenHands' SDK, until it finishes or a limit ends it."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
from litellm import exceptions
from openhands.sdk import LLM, Agent, LocalWorkspace, RemoteConversation, Tool
from openhands.sdk.conversation.exceptions import ConversationRunError, WebSocketConnectionError
from openhands.sdk.conversation.request import StartConversationRequest
from openhands.sdk.event import ActionEvent, Event, MessageEvent
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.task_tracker import TaskTrackerTool
from pydantic import SecretStr

from evaluation.swe.patches import HandedIn, hand_in
from evaluation.swe.protocol import (
    CONTINUE,
    CONTINUES,
    INSTRUCTION,
    KEEP_REASONING,
    MAX_TURNS,
    REPOSITORY,
    SAMPLING,
    WALL_SECONDS,
)
from evaluation.swe.tasks import Task
from evaluation.swe.workspaces import SERVER_SIDE, Workspace
from sao.environments.base import EnvironmentFailure

os.environ.setdefault("OPENHANDS_REMOTE_WS_READY_TIMEOUT", "300")  # seconds, for a busy machine
sys.path.append(str(SERVER_SIDE))
import sao_terminal  # noqa: F401  registers the terminal by the name under which the server imports it

FINISH = "finish"  # the tool
FINISHED, TEXT, TURNS, CONTEXT, STUCK, WALL_CLOCK, SERVER_ENDED = (
    "finish",
    "text",
    "turns",
    "context",
    "stuck",
    "wall_clock",
    "server_ended",
)
"""How a conversation ends: by the tool, by answers without a tool call, at a limit, or with its server."""
TRUNCATED = (TURNS, CONTEXT, WALL_CLOCK)
MAX_ITERATIONS = "MaxIterationsReached"
CONTEXT_ERRORS = ("LLMContextWindowExceedError", "ContextWindowExceededError")
POLL_SECONDS = 0.5
WATCH_SECONDS = 1.0
TOOL_MODULES = {
    "warm_terminal": "sao_terminal",
    FileEditorTool.name: "openhands.tools.file_editor.definition",
    TaskTrackerTool.name: "openhands.tools.task_tracker.definition",
}
"""Modules that the agent server imports for the tools."""


@dataclass(frozen=True)
class Model:
    """The policy behind an OpenAI-compatible endpoint. `keep_reasoning`: earlier thinking is sent back."""

    url: str
    name: str
    key: str = "none"
    timeout: int = 7200
    retries: int = 5
    keep_reasoning: bool = KEEP_REASONING
    headers: Mapping[str, str] = field(default_factory=dict)
    extra_body: dict[str, Any] = field(default_factory=dict)

    def language_model(self) -> LLM:
        """The SDK's client, which sends the protocol's sampling and nothing else that changes it.

        Names that it does not know it takes for models that reason, for which it would send an effort in
        place of temperature and top-p.
        """
        return LLM(
            model=f"openai/{self.name}",
            base_url=self.url,
            api_key=SecretStr(self.key),
            api_mode="chat",
            usage_id="agent",
            **SAMPLING,
            timeout=self.timeout,
            num_retries=self.retries,
            reasoning_effort=None,
            extended_thinking_budget=None,
            prompt_cache_retention=None,
            caching_prompt=False,
            input_cost_per_token=0.0,
            output_cost_per_token=0.0,
            litellm_extra_body=self.extra_body,
            extra_headers=dict(self.headers),
            capability_overrides={
                "supports_sampling_params": True,
                "supports_reasoning_effort": False,
                "supports_responses_api": False,
                "supports_prompt_cache": False,
                "supports_prompt_cache_retention": False,
                "thinking_mode": "none",
            },
        )


@dataclass(frozen=True)
class Limits:
    """Limits of one task: answers of the model over all runs, seconds, requests to go on."""

    turns: int = MAX_TURNS
    seconds: float = WALL_SECONDS
    continues: int = CONTINUES


@dataclass(frozen=True)
class Played:
    """What became of a conversation; `events` are the SDK's, as JSON."""

    ending: str
    handed_in: HandedIn
    instruction: str
    turns: int
    continues: int
    events: list[dict[str, Any]]
    metrics: dict[str, Any]

    @property
    def prompt_tokens(self) -> int:
        return int((self.metrics.get("accumulated_token_usage") or {}).get("prompt_tokens", 0))

    @property
    def completion_tokens(self) -> int:
        return int((self.metrics.get("accumulated_token_usage") or {}).get("completion_tokens", 0))

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation in short: what the model said and did, and what it saw."""
        return [message for event in self.events if (message := _short(event))]


def build_agent(model: Model) -> Agent:
    """The agent with OpenHands' default tools but the browser; its history is never rewritten."""
    terminal = {"keep_reasoning": model.name} if model.keep_reasoning else {}
    return Agent(
        llm=model.language_model(),
        tools=[
            Tool(name="warm_terminal", params=terminal),
            Tool(name=FileEditorTool.name),
            Tool(name=TaskTrackerTool.name),
        ],
        system_prompt_kwargs={"cli_mode": True},
        condenser=None,
        tool_concurrency_limit=1,
    )


def play(
    task: Task, workspace: Workspace, model: Model, limits: Limits, stop: threading.Event | None = None
) -> Played:
    """Play a task to its end.

    Raises EnvironmentFailure where something broke that says nothing about the model, or `stop` was set.
    """
    deadline = time.monotonic() + limits.seconds
    turns = TurnCounter(limits.turns)
    base_commit = workspace.base(task.base_commit)
    conversation = _started(workspace, model, limits, turns)
    instruction = INSTRUCTION.format(repository=REPOSITORY, name=task.row["repo"], problem=task.problem)
    watch = Watch(workspace, stop or threading.Event())
    try:
        ending = _ending(conversation, instruction, turns, limits, deadline, watch)
        metrics = _metrics(conversation, ending)
        change = _change(workspace, base_commit, ending)
        if ending == SERVER_ENDED:
            workspace.check_machine()
        events = [event.model_dump(mode="json") for event in conversation.state.events[:]]
    except (httpx.HTTPError, ConversationRunError, RuntimeError) as error:
        raise EnvironmentFailure(f"the agent server failed: {error}") from error
    finally:
        conversation.close()
        workspace.remote.reset_client()
    handed_in = hand_in(change, task.row["patch"], task.row["test_patch"])
    return Played(ending, handed_in, instruction, turns.count, turns.continues, events, metrics)


def _started(workspace: Workspace, model: Model, limits: Limits, turns: "TurnCounter") -> RemoteConversation:
    url, headers = workspace.inside(model.url)
    try:
        return RemoteConversation.create(
            workspace.remote,
            StartConversationRequest(
                agent=build_agent(replace(model, url=url, headers={**model.headers, **headers})),
                workspace=LocalWorkspace(working_dir=REPOSITORY),
                tool_module_qualnames=TOOL_MODULES,
                max_iterations=limits.turns,
                stuck_detection=True,
                autotitle=False,  # it would ask the model for a title
            ),
            callbacks=[turns],
            visualizer=None,
        )
    except (httpx.HTTPError, WebSocketConnectionError, RuntimeError) as error:
        raise EnvironmentFailure(f"the conversation did not start: {error}") from error


def _ending(
    conversation: Any,
    instruction: str,
    turns: "TurnCounter",
    limits: Limits,
    deadline: float,
    watch: "Watch",
) -> str:
    """How the conversation ends.

    A server that fails after the model's first answer does so by what the model did: SERVER_ENDED. The caller
    looks whether the machine is well.
    """
    try:
        with watch:
            ending = _run(conversation, instruction, turns, limits, deadline)
            conversation.state.events.reconcile()
        if ending == WALL_CLOCK:
            _interrupt(conversation)
        return ending
    except (httpx.HTTPError, ConversationRunError, RuntimeError) as error:
        acted = turns.count > 0 or watch.workspace.model_answered()
        if watch.stop.is_set() or not acted or _of_the_model(error):
            raise EnvironmentFailure(watch.reason or _said(error)) from error
        return SERVER_ENDED


def _of_the_model(error: Exception) -> bool:
    """Whether an error of the conversation is one of the model's endpoint."""
    found = getattr(error, "conversation_error", None)
    return found is not None and (found.code.startswith("LLM") or hasattr(exceptions, found.code))


def _said(error: Exception) -> str:
    return " ".join(str(getattr(error, "original_exception", error)).split())[:500]


def _metrics(conversation: Any, ending: str) -> dict[str, Any]:
    """The counts of tokens, as far as they are known here where the server has ended."""
    try:
        return conversation.conversation_stats.get_combined_metrics().model_dump(mode="json")
    except (httpx.HTTPError, RuntimeError):
        if ending != SERVER_ENDED:
            raise
        return {}


def _change(workspace: Workspace, base_commit: str, ending: str) -> str:
    """The change so far; none where the server that could tell it has ended by the model's doing."""
    try:
        return workspace.change(base_commit)
    except EnvironmentFailure:
        if ending != SERVER_ENDED:
            raise
        return ""


class Watch:
    """Ends the wait for a conversation whose agent server ended, or which shall stop: `reason` says why.

    The SDK would ask a server that is gone again until the time limit.
    """

    def __init__(self, workspace: Workspace, stop: threading.Event) -> None:
        self.workspace, self.stop = workspace, stop
        self.reason = ""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(WATCH_SECONDS):
            self.reason = self.workspace.ended() or ("stopped" if self.stop.is_set() else "")
            if self.reason:
                self.workspace.remote.client.close()
                return


class TurnCounter:
    """Counts the model's answers as their events arrive, and how often it was asked to go on."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.continues = 0
        self._answers: set[str] = set()

    @property
    def count(self) -> int:
        return len(self._answers)

    @property
    def reached(self) -> bool:
        return self.count >= self.limit

    def __call__(self, event: Event) -> None:
        answer = getattr(event, "llm_response_id", None)
        if answer is not None and getattr(event, "source", "") == "agent":
            self._answers.add(answer)


def _run(conversation: Any, instruction: str, turns: TurnCounter, limits: Limits, deadline: float) -> str:
    """Run the conversation, and on after answers without a tool call."""
    message = instruction
    while True:
        conversation.send_message(message)
        ending = _run_once(conversation, deadline)
        for event in conversation.state.events[:]:  # some may have come past the callbacks
            turns(event)
        if ending != TEXT or turns.continues >= limits.continues:
            return ending
        if turns.reached:
            return TURNS
        message, turns.continues = CONTINUE, turns.continues + 1


def _run_once(conversation: Any, deadline: float) -> str:
    left = deadline - time.monotonic()
    if left <= 0:
        return WALL_CLOCK
    try:
        conversation.run(poll_interval=POLL_SECONDS, timeout=left)
    except ConversationRunError as error:
        return _ending_of(error)
    events = conversation.state.events[:]
    for event in reversed(events):
        if isinstance(event, ActionEvent) and event.tool_name == FINISH:
            return FINISHED
        if isinstance(event, MessageEvent) and event.source == "agent":
            return TEXT
    raise RuntimeError("the conversation ended without an answer of the model")


def _ending_of(error: ConversationRunError) -> str:
    """The ending that the SDK reports as an error; raises `error` where it is none."""
    cause = error.original_exception
    if isinstance(cause, TimeoutError):
        return WALL_CLOCK
    code = error.conversation_error.code if error.conversation_error else ""
    if code == MAX_ITERATIONS:
        return TURNS
    if code in CONTEXT_ERRORS:
        return CONTEXT
    if "got stuck" in str(cause):
        return STUCK
    raise error


def _interrupt(conversation: Any) -> None:
    with contextlib.suppress(httpx.HTTPError, RuntimeError):  # the workspace is closed next
        conversation.interrupt()


def _short(event: dict[str, Any]) -> dict[str, Any] | None:
    kind = event.get("kind")
    if kind == "ActionEvent":
        return {
            "role": "assistant",
            "answer": event.get("llm_response_id"),
            "content": _text(event.get("thought") or []),
            "tool": event.get("tool_name"),
            "arguments": (event.get("tool_call") or {}).get("arguments", ""),
        }
    if kind == "ObservationEvent":
        return {"role": "tool", "tool": event.get("tool_name"), "content": _observed(event["observation"])}
    if kind == "AgentErrorEvent":
        return {
            "role": "tool",
            "tool": event.get("tool_name"),
            "content": event.get("error", ""),
            "error": True,
        }
    if kind == "MessageEvent":
        message = event.get("llm_message") or {}
        return {
            "role": message.get("role", "user"),
            "answer": event.get("llm_response_id"),
            "content": _text(message.get("content") or []),
        }
    return None


def _observed(observation: dict[str, Any]) -> str:
    return _text(observation.get("content") or [])


def _text(parts: Iterable[dict[str, Any]]) -> str:
    return "\n".join(part["text"] for part in parts if part.get("text"))
