"""The terminal's first output, which OpenHands sometimes loses, is there after the warm-up command."""

import sys
from types import SimpleNamespace

import pytest

from evaluation.swe.workspaces import SERVER_SIDE

sys.path.append(str(SERVER_SIDE))
import sao_terminal
from openhands.sdk.llm.utils.model_features import SEND_REASONING_CONTENT_MODELS, get_features
from openhands.tools.terminal.definition import TerminalAction


def fresh_terminal(folder: object, **settings: object) -> sao_terminal.WarmTerminalTool:
    workspace = SimpleNamespace(working_dir=str(folder))
    state = SimpleNamespace(workspace=workspace, env_observation_persistence_dir=None)
    (tool,) = sao_terminal.WarmTerminalTool.create(state, **settings)
    return tool


@pytest.mark.parametrize("terminals", [10, pytest.param(50, marks=pytest.mark.slow)])
def test_first_output_of_fresh_terminals(terminals: int, tmp_path: object) -> None:
    lost = []
    for number in range(terminals):
        tool = fresh_terminal(tmp_path)
        try:
            observation = tool.executor(TerminalAction(command=f"echo first-{number}; echo second-{number}"))
        finally:
            tool.executor.close()
        text = "\n".join(part.text for part in observation.to_llm_content)
        if f"first-{number}\nsecond-{number}" not in text:
            lost.append(text)
    assert lost == []


def test_tool_keeps_its_name_and_the_models_thinking(tmp_path: object) -> None:
    assert not get_features("openai/tiny-coder").send_reasoning_content
    tool = fresh_terminal(tmp_path, warm_up=False, keep_reasoning="tiny-coder")
    try:
        assert tool.name == "terminal"
        assert get_features("openai/tiny-coder").send_reasoning_content
    finally:
        tool.executor.close()
        SEND_REASONING_CONTENT_MODELS.remove("tiny-coder")
