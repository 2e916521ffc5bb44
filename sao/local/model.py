"""The policy network of the local engine: a small Qwen3-MoE from transformers, run on packed buckets.

Trajectories of one batch have very different lengths, so a padded [batch, tokens] forward spends most of its
time on padding. Here the rows are sorted by length and cut into buckets of nearly equal length; all buckets
lie behind each other in one row of tokens, so that embeddings, norms, experts and the output layer see a
single long row, and only attention looks at one bucket at a time.
"""

import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from torch.nn import functional
from transformers import AttentionInterface, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.utils import logging

from sao.config_scales import Model
from sao.runlog_files import RunError, writing

ATTENTION = "sao_bucketed"
EXPERTS = "eager"  # a loop over experts: the fastest for small experts on one thread


@dataclass(frozen=True)
class Bucket:
    """`rows` sequences, each right-padded to `length` tokens, from `start` on in the packed row."""

    start: int
    rows: int
    length: int


@dataclass(frozen=True)
class PackedTokens:
    """A batch of token sequences laid out as one row.

    `token_ids` and `position_ids` are int64 [1, packed]; `slots` is int64 [batch, tokens] and maps a position
    of the padded batch to its place in the packed row (0 where the batch itself is padded).
    """

    token_ids: torch.Tensor
    position_ids: torch.Tensor
    slots: torch.Tensor
    buckets: tuple[Bucket, ...]

    @classmethod
    def from_padded(
        cls, token_ids: torch.Tensor, lengths: torch.Tensor, bucket_rows: int = 4
    ) -> "PackedTokens":
        """Pack right-padded `token_ids` [batch, tokens] of `lengths` [batch], `bucket_rows` to a bucket."""
        order = torch.argsort(lengths, stable=True)
        slots = torch.zeros_like(token_ids)
        pieces, positions, buckets = [], [], []
        start = 0
        for rows in order.split(bucket_rows):
            length = int(lengths[rows].max())
            pieces.append(token_ids[rows, :length].reshape(-1))
            positions.append(torch.arange(length, device=token_ids.device).repeat(len(rows)))
            size = len(rows) * length
            slots[rows, :length] = torch.arange(start, start + size, device=token_ids.device).view(
                len(rows), length
            )
            buckets.append(Bucket(start, len(rows), length))
            start += size
        return cls(torch.cat(pieces)[None], torch.cat(positions)[None], slots, tuple(buckets))

    def backbone_inputs(self) -> dict[str, Any]:
        """Arguments of a backbone's forward."""
        return {"input_ids": self.token_ids, "position_ids": self.position_ids, "buckets": self.buckets}

    def places_before(self) -> torch.Tensor:
        """Packed place of the token before each token, int64 [batch, tokens]: where its prediction stands."""
        return torch.roll(self.slots, 1, dims=1)


def bucketed_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    buckets: tuple[Bucket, ...] | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each sequence of a packed row.

    `query` is [1, heads, packed, head_size]; `key` and `value` have the key-value heads. Padding lies behind
    the real tokens of a sequence, so the causal mask alone keeps it out. Without `buckets` the input is an
    ordinary batch. Returns [1, packed, heads, head_size].
    """
    if buckets is None:
        out = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=True, dropout_p=dropout
        )
        return out.transpose(1, 2), None
    pieces = []
    for bucket in buckets:
        stop = bucket.start + bucket.rows * bucket.length
        shaped = [
            states[0, :, bucket.start : stop].unflatten(1, (bucket.rows, bucket.length)).transpose(0, 1)
            for states in (query, key, value)
        ]
        out = functional.scaled_dot_product_attention(
            shaped[0], shaped[1], shaped[2], is_causal=True, scale=scaling, enable_gqa=True, dropout_p=dropout
        )
        pieces.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(pieces)[None], None


logging.disable_progress_bar()  # loading a model takes milliseconds here
AttentionInterface.register(ATTENTION, bucketed_attention)


def build_policy(model: Model, vocabulary_size: int, max_tokens: int, seed: int) -> Qwen3MoeForCausalLM:
    """A freshly initialised Qwen3-MoE policy in float32; the same seed gives the same weights."""
    config = Qwen3MoeConfig(  # type: ignore[call-arg]  # its base class takes the last keywords
        vocab_size=vocabulary_size,
        hidden_size=model.hidden_size,
        intermediate_size=2 * model.hidden_size,
        moe_intermediate_size=model.expert_intermediate_size,
        num_hidden_layers=model.layers,
        num_attention_heads=model.attention_heads,
        num_key_value_heads=model.key_value_heads,
        head_dim=model.head_dimension,
        num_experts=model.experts,
        num_experts_per_tok=model.experts_per_token,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        max_position_embeddings=max_tokens,
        tie_word_embeddings=False,
        use_cache=False,
        initializer_range=model.initializer_range,
        attn_implementation=ATTENTION,
        experts_implementation=EXPERTS,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3MoeForCausalLM(config)


def load_policy(path: Path) -> Qwen3MoeForCausalLM:
    """An exported policy (`save_pretrained` folder), ready for packed forwards."""
    return Qwen3MoeForCausalLM.from_pretrained(
        path, attn_implementation=ATTENTION, experts_implementation=EXPERTS, dtype=torch.float32
    )


def on_device(policy: Qwen3MoeForCausalLM, device: str | None) -> Qwen3MoeForCausalLM:
    """The policy on the scale's device, which is the CPU where it is None; RunError without such a device."""
    if device is None:
        return policy
    if not torch.cuda.is_available():
        raise RunError(f"device: {device}: torch finds no GPU here; run where there is one, or drop the key")
    return policy.to(device)  # type: ignore[arg-type]  # transformers narrows the argument


def export_policy(policy: Qwen3MoeForCausalLM, folder: Path, tokenizer: Any = None) -> None:
    """Write weights and config as transformers does, and the task's tokenizer if there is one.

    The folder gets its name once it is complete.
    """
    temporary = folder.with_name(f".{folder.name}.tmp")
    with writing(folder):
        shutil.rmtree(temporary, ignore_errors=True)
        save_weights(policy, temporary)
        if tokenizer is not None:
            tokenizer.save_pretrained(temporary)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)


def save_weights(policy: Qwen3MoeForCausalLM, folder: Path) -> None:
    """`save_pretrained`, with a failed write raised as OSError; safetensors has an error of its own."""
    try:
        policy.save_pretrained(folder)
    except SafetensorError as error:
        free = shutil.disk_usage(folder).free
        code = errno.ENOSPC if "os error 28" in str(error) or free < 2**20 else errno.EIO
        raise OSError(code, os.strerror(code), str(folder)) from error
