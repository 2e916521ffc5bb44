"""OpenHands' terminal tool, whose terminal has run a command before the model's first one.

The first command of a fresh terminal sometimes loses its output, so one that does nothing is sent and its
output discarded. This module and the one it imports go into the agent server, wherever that runs: they
import nothing else of this suite.
"""

from collections.abc import Sequence
from typing import Any

from openhands.sdk.llm.utils.model_features import SEND_REASONING_CONTENT_MODELS
from openhands.sdk.tool import register_tool
from openhands.tools.terminal.definition import TerminalAction, TerminalTool
from sao_turns import limit_all_runs

WARM_UP = "true"


class WarmTerminalTool(TerminalTool):
    """The terminal under its own name. Thinking of models named `keep_reasoning` is sent back to them."""

    name = "terminal"

    @classmethod
    def create(
        cls, conv_state: Any, warm_up: bool = True, keep_reasoning: str = "", **settings: Any
    ) -> Sequence["WarmTerminalTool"]:
        if keep_reasoning and keep_reasoning not in SEND_REASONING_CONTENT_MODELS:
            SEND_REASONING_CONTENT_MODELS.append(keep_reasoning)
        tools = super().create(conv_state, **settings)
        if warm_up:
            for tool in tools:
                tool.executor(TerminalAction(command=WARM_UP))
        return tools


limit_all_runs()
register_tool("warm_terminal", WarmTerminalTool)
