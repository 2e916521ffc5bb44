"""What vLLM's CPU backend needs so that its weights can be replaced while it runs.

After loading, that backend packs the weights of linear layers and experts for its kernels and computes with
the packed copies. What is loaded later never reaches the linear layers, and lands in the experts' packed
memory in another order. Here both compute with the weights as loaded, in torch. Does nothing with CUDA.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sao.openrlhf import cpu


def keep_weights_plain() -> None:
    """Replace the kernels in this process; comes before the model is built."""
    if not cpu.is_needed():
        return
    from vllm.model_executor.layers import utils
    from vllm.model_executor.layers.fused_moe.oracle import unquantized

    experts = _experts_class()
    original = unquantized.backend_to_kernel_cls

    def kernels(backend: Any) -> list[Any]:
        return [experts] if backend == unquantized.UnquantizedMoeBackend.CPU else original(backend)

    unquantized.backend_to_kernel_cls = kernels
    utils.dispatch_cpu_unquantized_gemm = _use_torch


def _use_torch(layer: Any, remove_weight: bool) -> None:
    layer.cpu_linear = functional.linear


def _experts_class() -> type:
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    class PlainExperts(CPUUnquantizedExperts):
        """Experts of a Qwen3-MoE layer, one after another."""

        def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
            self.use_grouped_topk, self.renormalize = layer.use_grouped_topk, layer.renormalize
            self.scoring_func = layer.scoring_func
            self.custom_routing_function = layer.custom_routing_function

        def apply(
            self, hidden_states: Tensor, w1: Tensor, w2: Tensor, router_logits: Tensor, *_: Any, **named: Any
        ) -> Tensor:
            weights, experts = self._select_experts(hidden_states, router_logits, None, None, None, None)
            return moe(hidden_states, w1, w2, weights, experts)

    return PlainExperts


def moe(states: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
    """Weighted sum over each token's experts of down(silu(gate) * up), [tokens, hidden].

    states [tokens, hidden]; gate_up [experts, 2 x intermediate, hidden]; down [experts, hidden,
    intermediate]; weights float and experts int [tokens, experts per token].
    """
    output = torch.zeros_like(states)
    for expert in experts.unique().tolist():
        tokens, places = (experts == expert).nonzero(as_tuple=True)
        gate, up = functional.linear(states[tokens], gate_up[expert]).chunk(2, dim=-1)
        made = functional.linear(functional.silu(gate) * up, down[expert])
        output.index_add_(0, tokens, (made * weights[tokens, places, None]).to(output.dtype))
    return output
