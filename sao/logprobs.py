"""Log-probabilities and entropies of tokens without the full logits tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_ELEMENTS = 2**26  # logits held at once: 256 MiB in float32


def token_logprobs(
    hidden: Tensor,
    lm_head_weight: Tensor,
    token_ids: Tensor,
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probability of each token and entropy of its distribution, softmax(hidden @ lm_head_weight.T /
    temperature).

    hidden: float [tokens, hidden size] or [batch, tokens, hidden size], the state that predicts each token.
    lm_head_weight: float [vocabulary, hidden size]. token_ids: int, shape of `hidden` without its last
    dimension. Returns (logprobs, entropy), both float32 (float64 for float64 inputs) of the shape of
    token_ids, in nats. Gradients reach hidden and lm_head_weight through the log-probabilities; the entropy
    carries none.

    Logits exist for `chunk_tokens` tokens at a time and are computed again in backward; by default a chunk is
    as many tokens as fit 2**26 logits. Half-precision inputs are multiplied in float32, which takes a float32
    copy of the weight. Every token given counts: select the tokens that a loss needs first, since a NaN state
    would spoil the gradient of the weight even if its log-probability is masked later. Raises ValueError for
    shapes that do not fit, or a temperature or chunk that is not positive.
    """
    if hidden.shape[:-1] != token_ids.shape or hidden.shape[-1] != lm_head_weight.shape[1]:
        raise ValueError(
            f"hidden {list(hidden.shape)}, lm_head_weight {list(lm_head_weight.shape)} and "
            f"token_ids {list(token_ids.shape)} do not fit"
        )
    if not temperature > 0:
        raise ValueError(f"temperature {temperature} must be positive")
    if chunk_tokens is None:
        chunk_tokens = max(CHUNK_ELEMENTS // len(lm_head_weight), 1)
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens {chunk_tokens} must be at least 1")
    logprobs, entropy = _TokenLogprobs.apply(
        hidden.reshape(-1, hidden.shape[-1]), lm_head_weight, token_ids.reshape(-1), temperature, chunk_tokens
    )
    return logprobs.view(token_ids.shape), entropy.view(token_ids.shape)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, token_ids: Tensor, temperature: float, chunk_tokens: int
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        transposed = weight.to(dtype).T
        log_normalizer, logprobs, entropy = hidden.new_empty((3, len(hidden)), dtype=dtype)
        buffers = hidden.new_empty((2, min(chunk_tokens, len(hidden)), len(weight)), dtype=dtype)
        for start in range(0, len(hidden), chunk_tokens):
            chunk = slice(start, start + chunk_tokens)
            states = hidden[chunk].to(dtype) / temperature
            logits, exponentials = buffers[0, : len(states)], buffers[1, : len(states)]
            torch.mm(states, transposed, out=logits)
            largest = logits.amax(dim=1, keepdim=True)
            logits -= largest
            torch.exp(logits, out=exponentials)
            total = exponentials.sum(dim=1)
            log_total = total.log()
            logprobs[chunk] = logits.gather(1, token_ids[chunk, None])[:, 0] - log_total
            exponentials *= logits
            entropy[chunk] = log_total - exponentials.sum(dim=1) / total
            log_normalizer[chunk] = log_total + largest[:, 0]
        ctx.save_for_backward(hidden, weight, token_ids, log_normalizer)
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, token_ids, log_normalizer = ctx.saved_tensors
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        dtype = log_normalizer.dtype
        weight_full = weight.to(dtype)
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_weight = torch.zeros_like(weight_full) if needs_weight else None
        buffer = hidden.new_empty((min(ctx.chunk_tokens, len(hidden)), len(weight)), dtype=dtype)
        for start in range(0, len(hidden), ctx.chunk_tokens):
            chunk = slice(start, start + ctx.chunk_tokens)
            states = hidden[chunk].to(dtype) / ctx.temperature
            grad = grad_logprobs[chunk, None] / ctx.temperature
            # d logprob / d logits = one-hot(token) - softmax
            grad_logits = buffer[: len(states)]
            torch.mm(states, weight_full.T, out=grad_logits)
            grad_logits.sub_(log_normalizer[chunk, None]).exp_().mul_(-grad)
            grad_logits.scatter_add_(1, token_ids[chunk, None], grad)
            if grad_hidden is not None:
                grad_hidden[chunk] = grad_logits @ weight_full
            if grad_weight is not None:
                grad_weight.addmm_(grad_logits.T, hidden[chunk].to(dtype))
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None, None, None
