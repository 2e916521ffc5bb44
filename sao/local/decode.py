"""The decode engine: continuous batching of Qwen3-MoE over a fixed number of slots with a key-value cache.

It reads the weights of a `Qwen3MoeForCausalLM` and computes the same function as transformers does, one step
at a time. A step feeds each busy slot the tokens that its cache lacks (one sampled token, or that token and
the observation after it) and returns the logits behind the last of them. Weights may be exchanged between two
steps: what a slot has cached stays, as in production engines that update weights in flight.
"""

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import Qwen3MoeForCausalLM

FLOAT8_MAXIMUM = 448.0  # largest finite value of float8_e4m3fn
ATTENTION_GROUP_ROWS = 32  # as many rows share a call whatever their contexts
LIKE_CONTEXT = 1.25  # and any number of rows whose contexts differ by this ratio at most

Weights = dict[str, torch.Tensor]


def round_to_float8(weight: torch.Tensor) -> torch.Tensor:
    """`weight` [..., out, in] rounded to float8 e4m3 with one scale per output channel, as a float32 copy."""
    scale = weight.abs().amax(-1, keepdim=True).clamp_min(1e-12) / FLOAT8_MAXIMUM
    return (weight / scale).to(torch.float8_e4m3fn).to(weight.dtype) * scale


@dataclass(frozen=True)
class AttentionGroup:
    """Rows of one step with equal chunk size and like context, so that short rows do not pay for long ones.

    `tokens` are the places of their rows * chunk tokens in the step, `context` the tokens of cache they see.
    `slots` is a slice where the rows' slots follow each other, else int64 [rows]. `bias` float32
    [rows, 1, chunk, context] is 0 where a token may look and -inf where it may not; None where all may look
    everywhere.
    """

    tokens: slice
    slots: torch.Tensor | slice
    context: int
    bias: torch.Tensor | None


@dataclass(frozen=True)
class FeedingPlan:
    """In which order one step takes its rows, group by group, and where their tokens lie.

    `rows` are the step's rows in that order; `places` in the flat cache and `positions` in the sequence are
    int64 [tokens]; `last_tokens` int64 [rows] are the chunks' last tokens in the step, in the caller's order.
    """

    rows: list[int]
    places: torch.Tensor
    positions: torch.Tensor
    last_tokens: torch.Tensor
    groups: list[AttentionGroup]

    @classmethod
    def build(
        cls, slots: Sequence[int], starts: Sequence[int], sizes: Sequence[int], engine: "DecodeEngine"
    ) -> "FeedingPlan":
        """Plan a step that feeds `sizes[i]` tokens to slot `slots[i]` from position `starts[i]` on."""

        def tensor(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array).to(engine.device)

        slot, start, size = (np.array(numbers) for numbers in (slots, starts, sizes))
        groups_of_rows = group_rows(slot, start, size)
        order = np.concatenate(groups_of_rows)
        ends = size[order].cumsum()
        row = np.repeat(order, size[order])
        positions = np.arange(len(row)) - np.repeat(ends - size[order], size[order]) + start[row]
        groups, first = [], 0
        for rows in groups_of_rows:
            chunk, context = int(size[rows[0]]), int((start + size)[rows].max())
            tokens = slice(first, first + chunk * len(rows))
            hidden = np.arange(context) > positions[tokens].reshape(-1, 1, chunk, 1)
            bias = tensor(np.where(hidden, np.float32(-np.inf), np.float32(0))) if hidden.any() else None
            low, high = int(slot[rows[0]]), int(slot[rows[-1]])
            adjacent = high - low == len(rows) - 1
            where = slice(low, high + 1) if adjacent else tensor(slot[rows])
            groups.append(AttentionGroup(tokens, where, context, bias))
            first = tokens.stop
        last_tokens = np.empty_like(order)
        last_tokens[order] = ends - 1
        places = slot[row] * engine.max_tokens + positions
        return cls(order.tolist(), tensor(places), tensor(positions), tensor(last_tokens), groups)


def group_rows(slot: np.ndarray, start: np.ndarray, size: np.ndarray) -> list[np.ndarray]:
    """Rows that share an attention call: equal size, like context; each group in the order of its slots."""
    waiting = np.lexsort((start + size, size))
    groups = []
    while len(waiting):
        contexts = (start + size)[waiting]
        equal = np.searchsorted(size[waiting], size[waiting[0]], side="right")
        like = np.searchsorted(contexts[:equal], LIKE_CONTEXT * contexts[0], side="right")
        count = min(equal, max(like, ATTENTION_GROUP_ROWS))
        rows, waiting = waiting[:count], waiting[count:]
        groups.append(rows[np.argsort(slot[rows])])
    return groups


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
        self.heads, self.kv_heads, self.head_size = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.experts, self.chosen_experts = config.num_experts, config.num_experts_per_tok
        self.norm_epsilon = config.rms_norm_eps
        size, width = config.head_dim, config.num_key_value_heads * config.head_dim
        # Keys, then values: [layers, 2, slots, tokens, key-value heads * size].
        self.cache = torch.zeros(config.num_hidden_layers, 2, slots, max_tokens, width, device=self.device)
        self.gathered = torch.empty(self.cache[0].numel(), device=self.device)
        # Widens a query so that it meets its own key-value head alone: [1, heads, 1, heads, 1].
        self.own_head = torch.eye(config.num_key_value_heads, device=self.device)[None, :, None, :, None]
        positions = torch.arange(max_tokens, device=self.device)[None]
        self.cosine, sine = (part[0, :, None] for part in policy.model.rotary_emb(self.cache, positions))
        self.sine = torch.cat((-sine[..., : size // 2], sine[..., size // 2 :]), dim=-1)
        self.load_weights(policy)

    @torch.no_grad()
    def load_weights(self, policy: Qwen3MoeForCausalLM) -> None:
        """Copies the policy's weights, rounded; the trainer's later updates do not reach the copy."""

        def rounded(weight: torch.Tensor) -> torch.Tensor:
            return round_to_float8(weight) if self.rounding == "fp8" else weight.clone()

        config, size = self.config, self.config.head_dim
        self.embedding = policy.model.embed_tokens.weight.clone()
        self.final_norm = policy.model.norm.weight.clone()
        self.output = rounded(policy.lm_head.weight)
        self.layers = []
        for layer in policy.model.layers:
            attention, experts = layer.self_attn, layer.mlp.experts
            projections = (attention.q_proj, attention.k_proj, attention.v_proj)
            gate_up = rounded(experts.gate_up_proj)  # [experts, gate and up, hidden]
            self.layers.append(
                {
                    "input_norm": layer.input_layernorm.weight.clone(),
                    "head_norm": torch.cat(
                        (
                            attention.q_norm.weight.expand(config.num_attention_heads, -1) * size**-0.5,
                            attention.k_norm.weight.expand(config.num_key_value_heads, -1),
                        )
                    ),
                    "projection": torch.cat([rounded(part.weight) for part in projections]),
                    "attention_output": rounded(attention.o_proj.weight),
                    "expert_norm": layer.post_attention_layernorm.weight.clone(),
                    "router": rounded(layer.mlp.gate.weight),
                    "gate_up": gate_up.unflatten(1, (2, -1)).transpose(0, 1).flatten(0, 2).contiguous(),
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
            "cache": self.cache[..., :used_tokens, :].clone(),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restores what `state_dict` returned."""
        self.embedding, self.final_norm, self.output = (
            saved["embedding"],
            saved["final_norm"],
            saved["output"],
        )
        self.layers = saved["layers"]
        self.cache[..., : saved["cache"].shape[-2], :] = saved["cache"]

    @torch.inference_mode()
    def step(
        self, slots: Sequence[int], starts: Sequence[int], chunks: Sequence[Sequence[int]]
    ) -> torch.Tensor:
        """Feed `chunks[i]` to slot `slots[i]` from position `starts[i]` on.

        Returns float32 logits [len(slots), vocabulary] behind the last token of each chunk. Raises ValueError
        when a chunk is empty or ends beyond `max_tokens`.
        """
        sizes = [len(chunk) for chunk in chunks]
        if not all(sizes) or max(map(operator.add, starts, sizes)) > self.max_tokens:
            raise ValueError(f"a chunk must hold 1 token or more and end within {self.max_tokens} tokens")
        plan = FeedingPlan.build(slots, starts, sizes, self)
        fed = itertools.chain.from_iterable(chunks[row] for row in plan.rows)
        tokens = torch.tensor(list(fed), device=self.device)
        states = functional.embedding(tokens, self.embedding)
        rotation = self.cosine.index_select(0, plan.positions), self.sine.index_select(0, plan.positions)
        for index, layer in enumerate(self.layers):
            states = self._attend(index, layer, states, plan, rotation)
            states = self._experts(layer, states)
        last = states.index_select(0, plan.last_tokens)
        return functional.linear(self._norm(last, self.final_norm), self.output)

    def _norm(self, states: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
        return functional.rms_norm(states, (states.shape[-1],), weight, self.norm_epsilon)

    def _attend(
        self,
        index: int,
        layer: Weights,
        states: torch.Tensor,
        plan: FeedingPlan,
        rotation: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        cache = self.cache[index]
        heads, kv_heads, size = self.heads, self.kv_heads, self.head_size
        projected = functional.linear(self._norm(states, layer["input_norm"]), layer["projection"])
        projected = projected.unflatten(1, (-1, size))
        turned = self._norm(projected[:, : heads + kv_heads]) * layer["head_norm"]
        # Rotation by the position's angles: the halves of `sine` have opposite signs.
        turned = torch.addcmul(turned * rotation[0], turned.roll(size // 2, -1), rotation[1])
        new = turned[:, heads:].flatten(1), projected[:, heads + kv_heads :].flatten(1)
        for part, states_of_tokens in zip(cache.flatten(1, 2), new, strict=True):
            part.index_copy_(0, plan.places, states_of_tokens)
        query = turned[:, :heads]
        attended = torch.cat([self._attend_group(group, query[group.tokens], cache) for group in plan.groups])
        return states + functional.linear(attended.flatten(1), layer["attention_output"])

    def _attend_group(self, group: AttentionGroup, query: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        """Attention of scaled queries [rows * chunk, heads, size], which share key-value heads."""
        cache = cache[:, :, : group.context]
        if isinstance(group.slots, slice):
            keys, values = cache[:, group.slots]
        else:
            keys, values = (
                torch.index_select(part, 0, group.slots, out=memory[: len(group.slots)])
                for part, memory in zip(cache, self._gathered(group.context), strict=True)
            )
        rows, kv_heads, size = len(keys), self.kv_heads, self.head_size
        if len(query) > rows:
            chunks = query.unflatten(0, (rows, -1)).transpose(1, 2)
            keys, values = (part.unflatten(2, (kv_heads, size)).transpose(1, 2) for part in (keys, values))
            out = functional.scaled_dot_product_attention(
                chunks, keys, values, group.bias, scale=1.0, enable_gqa=True
            )
            return out.transpose(1, 2).flatten(0, 1)
        # For a single query two products of all heads at once are faster, though most of each is not used.
        wide = query.view(rows, kv_heads, -1, 1, size) * self.own_head
        scores = wide.view(rows, -1, kv_heads * size) @ keys.transpose(1, 2)
        if group.bias is not None:
            scores += group.bias[:, 0]
        mixed = (scores.softmax(-1) @ values).view(wide.shape)
        return mixed.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2).reshape(query.shape)

    def _gathered(self, context: int) -> torch.Tensor:
        """Memory for keys and values [2, slots, context, key-value heads * size]; fresh pages are slow."""
        shape = (2, self.slots, context, self.cache.shape[-1])
        return self.gathered[: math.prod(shape)].view(shape)

    def _experts(self, layer: Weights, states: torch.Tensor) -> torch.Tensor:
        normed = self._norm(states, layer["expert_norm"])
        shares = functional.linear(normed, layer["router"]).softmax(-1)
        weights, chosen = shares.topk(self.chosen_experts, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        gates = torch.zeros_like(shares).scatter_(1, chosen, weights)
        # For experts this small every expert on every token is cheaper than gathering each expert's tokens.
        gate, up = functional.linear(normed, layer["gate_up"]).chunk(2, dim=-1)
        inner = functional.silu(gate).mul_(up).unflatten(1, (self.experts, -1)).mul_(gates[..., None])
        return states + inner.flatten(1) @ layer["down"]
