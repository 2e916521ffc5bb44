"""What vLLM's workers can do beyond vLLM: receive weights from the trainer and fingerprint what they hold.

vLLM makes its worker class inherit from `WeightReceiver`, which it finds by name.
"""

from typing import Any

import torch

from sao.openrlhf import cpu_engine, weights
from sao.openrlhf.weight_group import weight_group

cpu_engine.keep_weights_plain()  # a worker imports this module before it builds the model


class WeightReceiver:
    """Methods that the engine calls on every worker; `self` is the vLLM worker."""

    device: torch.device
    model_runner: Any
    model_config: Any

    def init_process_group(
        self,
        master_address: str,
        master_port: int,
        rank_offset: int,
        world_size: int,
        group_name: str,
        backend: str = "nccl",
        use_ray: bool = False,
    ) -> None:
        """Join the group that the trainer broadcasts weights over."""
        if use_ray:
            raise ValueError("weights travel over a process group; leave out --vllm.sync_with_ray")
        rank = torch.distributed.get_rank() + rank_offset
        self._trainer_group = weight_group(
            master_address, master_port, rank, world_size, self.device, backend=backend
        )

    def update_weight(
        self, name: str, dtype: torch.dtype, shape: tuple[int, ...], empty_cache: bool = False
    ) -> None:
        """Receive one tensor, named and shaped as transformers has it, and load it into the model."""
        weight = torch.empty(shape, dtype=dtype, device=self.device)
        stream = None if self.device.type == "cpu" else torch.cuda.current_stream()
        self._trainer_group.broadcast(weight, src=0, stream=stream)
        self.load_weight(name, weight)

    def load_weight(self, name: str, weight: torch.Tensor) -> None:
        """Load one tensor; raises ValueError when the model has no place for it."""
        if not self.model_runner.model.load_weights(weights=[(name, weight)]):
            raise ValueError(f"the engine's model has no tensor {name}: trainer and engine differ")

    def weight_hashes(self) -> dict[str, str]:
        """Fingerprint of every tensor that this worker holds, under its transformers name."""
        tensors = weights.unfused(
            self.model_runner.model.named_parameters(), self.model_config.hf_text_config
        )
        return weights.weight_hashes(tensors, self.model_config.dtype)
