"""Fingerprints of weights that trainer and engine can compare tensor by tensor.

A fingerprint is the SHA-256 of a tensor's dtype, shape and bytes, so two experts that changed places differ,
which sums would not see. Both sides name tensors as transformers does: vLLM keeps q, k and v in one tensor,
names the experts differently and pads the vocabulary, and `unfused` takes that back.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

EXPERTS = {"w13_weight": "gate_up_proj", "w2_weight": "down_proj"}
VOCABULARY = ("model.embed_tokens.weight", "lm_head.weight")
SHOWN = 5
LARGEST_DIFFERENCE = 0.1  # nats; bf16 makes less than 0.01, and dropout made 0.86 in a reported run


class WeightMismatch(RuntimeError):
    """Trainer and engine hold different weights; the message names the tensors."""


def weight_hash(tensor: Tensor, dtype: torch.dtype) -> str:
    """SHA-256 in hex of a tensor cast to `dtype`, in row-major order."""
    plain = tensor.detach().to("cpu", dtype).contiguous()
    described = f"{plain.dtype} {tuple(plain.shape)} ".encode()
    return hashlib.sha256(described + plain.view(torch.uint8).numpy().tobytes()).hexdigest()


def weight_hashes(tensors: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> dict[str, str]:
    """Name to `weight_hash` of each tensor; `dtype` is the engine's."""
    return {name: weight_hash(tensor, dtype) for name, tensor in tensors}


def unfused(tensors: Iterable[tuple[str, Tensor]], config: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of vLLM's Qwen3-MoE under their transformers names, q, k and v apart.

    `config` is the transformers configuration. Raises ValueError where a tensor is a shard of the whole, as
    under tensor parallelism: its fingerprint could not be compared.
    """
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    for name, tensor in tensors:
        stem, _, last = name.rpartition(".")
        if ".qkv_proj." in name:
            _check_rows(name, tensor, queries + 2 * keys)
            for letter, part in zip("qkv", tensor.split([queries, keys, keys]), strict=True):
                yield name.replace(".qkv_proj.", f".{letter}_proj."), part
        elif last in EXPERTS:
            _check_rows(name, tensor, config.num_experts)
            yield f"{stem.removesuffix('.routed_experts')}.{EXPERTS[last]}", tensor
        elif name in VOCABULARY:
            yield name, tensor[: config.vocab_size]  # vLLM pads them
        else:
            yield name, tensor


def _check_rows(name: str, tensor: Tensor, rows: int) -> None:
    if len(tensor) != rows:
        raise ValueError(f"{name} has {len(tensor)} of {rows} rows: it is a shard, which cannot be compared")


def check_equal(trainer: Mapping[str, str], engine: Mapping[str, str]) -> None:
    """Raises WeightMismatch unless both sides hold the same tensors with the same fingerprints."""
    faults = [f"{name} is missing in the engine" for name in trainer.keys() - engine.keys()]
    faults += [f"{name} is missing in the trainer" for name in engine.keys() - trainer.keys()]
    faults += [f"{name} differs" for name in trainer.keys() & engine.keys() if trainer[name] != engine[name]]
    if faults:
        more = f" and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise WeightMismatch(
            f"after the weight sync trainer and engine differ: {', '.join(sorted(faults)[:SHOWN])}{more}"
        )


def check_agreement(difference: float) -> None:
    """Raises WeightMismatch where trainer and engine give tokens other log-probs at equal weights.

    difference: mean of |log pi_theta - log pi_rollout| over action tokens, in nats.
    """
    if not difference <= LARGEST_DIFFERENCE:
        raise WeightMismatch(
            f"before the first policy update the trainer's log-probs differ from the engine's by "
            f"{difference:.3g} nats on average, and rounding explains {LARGEST_DIFFERENCE:g} at most: the "
            "engine computes another model; compare its weights, precision and sampling settings"
        )
