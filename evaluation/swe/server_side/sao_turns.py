"""Has the SDK's limit of iterations hold over all runs of a conversation: by itself it counts each run anew.

A client can only pause a run after it saw an event, which comes too late where answers are quick.
"""

from typing import Any

from openhands.sdk.conversation.impl.local_conversation import LocalConversation


def answers(events: Any) -> int:
    """The model's answers among the events of a conversation; one answer may make several."""
    ids = {getattr(event, "llm_response_id", None) for event in events if event.source == "agent"}
    return len(ids - {None})


def limit_all_runs() -> None:
    """Let each run have the iterations that those before left over."""
    plain = LocalConversation.arun

    async def arun(self: LocalConversation) -> None:
        whole = self.max_iteration_per_run
        self.max_iteration_per_run = whole - answers(self.state.events)
        try:
            await plain(self)
        finally:
            self.max_iteration_per_run = whole

    LocalConversation.arun = arun
