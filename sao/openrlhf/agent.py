"""The file that OpenRLHF loads by its path (`--train.agent_func_path`)."""

from sao.openrlhf.environment import AgentExecutor

__all__ = ["AgentExecutor"]
