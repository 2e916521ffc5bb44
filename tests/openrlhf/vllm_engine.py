"""A real vLLM engine on a CPU for tests: a tiny Qwen3-MoE in float32, without Ray."""

import asyncio
import socket
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import torch
from local_engine import VOCABULARY, ToyEnvironment, run_config
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from sao.openrlhf import agent, cpu
from sao.openrlhf.engine import RolloutEngine, sampling_parameters
from sao.openrlhf.environment import Answer, Ask
from sao.openrlhf.weight_group import weight_group

MAX_TOKENS = 400
BLOCK = 32  # tokens of a block of the KV cache


def tiny_model(seed: int) -> Qwen3MoeForCausalLM:
    """A random policy whose distributions are far from uniform and differ from another seed's."""
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=0,
        initializer_range=0.2,
    )
    return Qwen3MoeForCausalLM(config).eval()


class Engine:
    """A `RolloutEngine` with an event loop of its own, so that tests need not be coroutines."""

    def __init__(self, folder: Path, dtype: str = "float32") -> None:
        self.loop = asyncio.new_event_loop()
        self.raw = RolloutEngine.__new__(RolloutEngine)
        self.received: list[list[int]] = []  # for tests that watch tokens arrive
        settings = {
            "model": str(folder),
            "dtype": dtype,
            "enforce_eager": True,
            "max_model_len": MAX_TOKENS + 8,
            "block_size": BLOCK,
            "enable_prefix_caching": True,
            "seed": 0,
            "num_gpus": 1,
            "distributed_executor_backend": "uni",
            "agent_func_path": agent.__file__,
            "gpu_memory_utilization": 0.1,
        }
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_ADDRESS", "none")  # OpenRLHF asks Ray for it otherwise
            self.do(self.raw.__init__(**settings))
        self.do(self.raw.configure(run_config("sao")))
        self.do(self._join())

    async def _join(self) -> None:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            address = server.getsockname()
        joining = asyncio.ensure_future(self.raw.init_process_group(*address, 1, 2, "test", "gloo", False))
        self.group = await asyncio.to_thread(
            weight_group, *address, 0, 2, torch.device("cpu"), backend="gloo"
        )
        await joining

    def do(self, work: Coroutine[Any, Any, Any], seconds: float = 120.0) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, seconds))

    def use(self, environment: ToyEnvironment) -> None:
        self.raw.executor.environment = environment

    async def play(self, place: int, key: str) -> Answer:
        """One episode of the environment in use."""
        instance = self.raw.executor.environment.instances("train")[place]
        [answer] = await self.raw.generate_responses(
            prompt=Ask(instance, place, -1, 0.0, key),
            label=1.0,
            sampling_params=sampling_parameters(),
            max_length=MAX_TOKENS,
            hf_tokenizer=None,
        )
        return answer

    def play_all(self, places: range, key: str) -> list[Answer]:
        """Episodes side by side."""

        async def together() -> list[Answer]:
            return await asyncio.gather(*(self.play(place, f"{key} {place}") for place in places))

        return self.do(together())

    async def send(self, model: Qwen3MoeForCausalLM) -> None:
        """Give the paused engine a model's weights as the trainer does: one broadcast per tensor."""
        for name, tensor in model.named_parameters():
            receiving = asyncio.ensure_future(self.raw.update_weight(name, tensor.dtype, tensor.shape))
            await asyncio.to_thread(self.group.broadcast, tensor.detach(), 0)
            await receiving

    async def replace(self, model: Qwen3MoeForCausalLM, version: int) -> None:
        """Pause, send, state the version, resume."""
        await self.raw.pause_generation()
        await self.send(model)
        await self.raw.finish_weight_update(version)
        await self.raw.resume_generation()

    def stop(self) -> None:
        self.raw.llm.shutdown()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()


cpu.install()
