"""The decode engine: continuous batching of Qwen3-MoE over a fixed number of slots with a key-value cache.

It reads the weights of a `Qwen3MoeForCausalLM` and computes the same function as transformers does, one step
at a time. A step feeds each busy slot the tokens that its cache lacks (one sampled token, or that token and
the observation after it) and returns the logits behind the last of them. Weights may be exchanged between two
steps: what a slot has cached stays, as in production engines that update weights in flight.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from transformers import Qwen3MoeForCausalLM

FLOAT8_MAXIMUM = 448.0  # largest finite value of float8_e4m3fn
ATTENTION_GROUP_ROWS = 48

Weights = dict[str, torch.Tensor]


def round_to_float8(weight: torch.Tensor) -> torch.Tensor:
    """`weight` [..., out, in] rounded to float8 e4m3 with one scale per output channel, as a float32 copy."""
    scale = weight.abs().amax(-1, keepdim=True).clamp_min(1e-12) / FLOAT8_MAXIMUM
    return (weight / scale).to(torch.float8_e4m3fn).to(weight.dtype) * scale


@dataclass(frozen=True)
class AttentionGroup:
    """Rows of one step with equal chunk size and like context, so that short rows do not pay for long ones.

    `tokens` int64 [rows, chunk] places in the step's flat tokens, `slots` int64 [rows], `context` tokens of
    cache, `visible` bool [rows, 1, chunk, context].
    """

    tokens: torch.Tensor
    slots: torch.Tensor
    context: int
    visible: torch.Tensor


@dataclass(frozen=True)
class FeedingPlan:
    """Where each token of one step lies, its slot and position int64 [tokens], and each chunk's last one."""

    slots: torch.Tensor
    positions: torch.Tensor
    last_tokens: torch.Tensor
    groups: list[AttentionGroup]

    @classmethod
    def build(
        cls, slots: Sequence[int], starts: Sequence[int], sizes: Sequence[int], device: torch.device
    ) -> "FeedingPlan":
        """Plan a step that feeds `sizes[i]` tokens to slot `slots[i]` from position `starts[i]` on."""
        slot, start, size = (torch.tensor(numbers, device=device) for numbers in (slots, starts, sizes))
        row = torch.repeat_interleave(size)
        offset = size.cumsum(0) - size
        place = torch.arange(len(row), device=device)
        order = torch.argsort(start + size, stable=True)
        groups = []
        for chunk in sorted(set(sizes)):
            steps = torch.arange(chunk, device=device)
            for rows in order[size[order] == chunk].split(ATTENTION_GROUP_ROWS):
                context = int(start[rows[-1]]) + chunk
                queries = start[rows, None] + steps
                visible = torch.arange(context, device=device) <= queries[..., None]
                groups.append(
                    AttentionGroup(offset[rows, None] + steps, slot[rows], context, visible[:, None])
                )
        return cls(slot[row], place - offset[row] + start[row], offset + size - 1, groups)


class DecodeEngine:
    """Decodes up to `slots` sequences of at most `max_tokens` tokens.

    `rounding` "fp8" rounds every matrix (not embeddings and norms) to float8 e4m3 before use, "none" keeps it
    exact.
    """

    def __init__(self, policy: Qwen3MoeForCausalLM, slots: int, max_tokens: int, rounding: str) -> None:
        self.config = policy.config
        self.slots, self.max_tokens, self.rounding = slots, max_tokens, rounding
        self.device = policy.device
        config = self.config
        shape = (config.num_hidden_layers, slots, config.num_key_value_heads, max_tokens, config.head_dim)
        self.keys = torch.zeros(shape, device=self.device)
        self.values = torch.zeros(shape, device=self.device)
        positions = torch.arange(max_tokens, device=self.device)[None]
        self.cosine, self.sine = (part[0] for part in policy.model.rotary_emb(self.keys, positions))
        self.load_weights(policy)

    @torch.no_grad()
    def load_weights(self, policy: Qwen3MoeForCausalLM) -> None:
        """Copies the policy's weights, rounded; the trainer's later updates do not reach the copy."""

        def rounded(weight: torch.Tensor) -> torch.Tensor:
            return round_to_float8(weight) if self.rounding == "fp8" else weight.clone()

        self.embedding = policy.model.embed_tokens.weight.clone()
        self.final_norm = policy.model.norm.weight.clone()
        self.output = rounded(policy.lm_head.weight)
        self.layers = []
        for layer in policy.model.layers:
            attention, experts = layer.self_attn, layer.mlp.experts
            projections = (attention.q_proj, attention.k_proj, attention.v_proj)
            self.layers.append(
                {
                    "input_norm": layer.input_layernorm.weight.clone(),
                    "query_norm": attention.q_norm.weight.clone(),
                    "key_norm": attention.k_norm.weight.clone(),
                    "projection": torch.cat([rounded(part.weight) for part in projections]),
                    "attention_output": rounded(attention.o_proj.weight),
                    "expert_norm": layer.post_attention_layernorm.weight.clone(),
                    "router": rounded(layer.mlp.gate.weight),
                    "gate_up": rounded(experts.gate_up_proj).flatten(0, 1),
                    "down": rounded(experts.down_proj).transpose(1, 2).flatten(0, 1).contiguous(),
                }
            )

    def state_dict(self, used_tokens: int) -> dict[str, Any]:
        """Weights in use and the first `used_tokens` positions of the caches."""
        return {
            "embedding": self.embedding,
            "final_norm": self.final_norm,
            "output": self.output,
            "layers": self.layers,
            "keys": self.keys[..., :used_tokens, :].clone(),
            "values": self.values[..., :used_tokens, :].clone(),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restores what `state_dict` returned."""
        self.embedding, self.final_norm, self.output = (
            saved["embedding"],
            saved["final_norm"],
            saved["output"],
        )
        self.layers = saved["layers"]
        used_tokens = saved["keys"].shape[-2]
        self.keys[..., :used_tokens, :] = saved["keys"]
        self.values[..., :used_tokens, :] = saved["values"]

    @torch.no_grad()
    def step(
        self, slots: Sequence[int], starts: Sequence[int], chunks: Sequence[Sequence[int]]
    ) -> torch.Tensor:
        """Feed `chunks[i]` to slot `slots[i]` from position `starts[i]` on.

        Returns float32 logits [len(slots), vocabulary] behind the last token of each chunk. Raises ValueError
        when a chunk is empty or ends beyond `max_tokens`.
        """
        ends = [start + len(chunk) for start, chunk in zip(starts, chunks, strict=True)]
        if not all(chunks) or max(ends) > self.max_tokens:
            raise ValueError(f"a chunk must hold 1 token or more and end within {self.max_tokens} tokens")
        plan = FeedingPlan.build(slots, starts, [len(chunk) for chunk in chunks], self.device)
        tokens = torch.tensor([token for chunk in chunks for token in chunk], device=self.device)
        states = self.embedding[tokens]
        rotation = self.cosine[plan.positions, None], self.sine[plan.positions, None]
        for index, layer in enumerate(self.layers):
            states = self._attend(index, layer, states, plan, rotation)
            states = self._experts(layer, states)
        return functional.linear(self._norm(states[plan.last_tokens], self.final_norm), self.output)

    def _norm(self, states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(states, (states.shape[-1],), weight, self.config.rms_norm_eps)

    def _attend(
        self,
        index: int,
        layer: Weights,
        states: torch.Tensor,
        plan: FeedingPlan,
        rotation: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        config = self.config
        heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        projected = functional.linear(self._norm(states, layer["input_norm"]), layer["projection"])
        query, key, value = projected.unflatten(1, (-1, size)).split((heads, kv_heads, kv_heads), dim=1)
        query = self._rotate(self._norm(query, layer["query_norm"]), *rotation)
        keys, values = self.keys[index], self.values[index]
        keys[plan.slots, :, plan.positions] = self._rotate(self._norm(key, layer["key_norm"]), *rotation)
        values[plan.slots, :, plan.positions] = value
        attended = torch.empty_like(query)
        for group in plan.groups:
            out = functional.scaled_dot_product_attention(
                query[group.tokens].transpose(1, 2),
                keys[:, :, : group.context].index_select(0, group.slots),
                values[:, :, : group.context].index_select(0, group.slots),
                attn_mask=group.visible,
                enable_gqa=True,
            )
            attended[group.tokens] = out.transpose(1, 2)
        return states + functional.linear(attended.flatten(1), layer["attention_output"])

    @staticmethod
    def _rotate(states: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        first, second = states.chunk(2, dim=-1)
        return states * cosine + torch.cat((-second, first), dim=-1) * sine

    def _experts(self, layer: Weights, states: torch.Tensor) -> torch.Tensor:
        config = self.config
        normed = self._norm(states, layer["expert_norm"])
        shares = functional.linear(normed, layer["router"]).softmax(-1)
        weights, chosen = shares.topk(config.num_experts_per_tok, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        gates = torch.zeros_like(shares).scatter_(1, chosen, weights)
        # For experts this small every expert on every token is cheaper than gathering each expert's tokens.
        gate, up = (
            functional.linear(normed, layer["gate_up"])
            .unflatten(1, (config.num_experts, -1))
            .chunk(2, dim=-1)
        )
        inner = functional.silu(gate) * up * gates[..., None]
        return states + inner.flatten(1) @ layer["down"]
