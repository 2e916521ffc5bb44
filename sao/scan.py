"""Linear recurrences along tokens, from the last token back, without a loop over them."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 32  # tokens, a power of two


def scan_from_the_end(increments: Tensor, is_action: Tensor, decay: Tensor, last: Tensor) -> Tensor:
    """y_t = x_t + c_t y_{t+1} along dimension 1, where c_t is decay [batch] on actions and 1 elsewhere.

    `last` [batch] stands beyond the end. Blocks of 32 tokens are scanned in the dtype of the increments, the
    row of blocks in float64 with exact powers of decay, whose rounding would otherwise grow with the length.
    `is_action` (0 or 1, in the same dtype) is overwritten.
    """
    blocks = increments.shape[1] // BLOCK
    in_blocks = is_action[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK))
    powers = decay[:, None] ** torch.arange(BLOCK + 1, device=decay.device)
    block_decays = powers.gather(1, in_blocks.sum(dim=2).long())
    decays = is_action.mul_((decay - 1).to(increments.dtype)[:, None]).add_(1)
    return _scan_pairs(increments, decays, last.to(increments.dtype), block_decays)


def _scan_pairs(x: Tensor, c: Tensor, last: Tensor, block_decays: Tensor | None, width: int = 1) -> Tensor:
    """One level of the scan: join neighbours to pairs, scan the pairs, fill in their second halves.

    An element covers `width` tokens. Where it covers a block, `block_decays` replace the decays.
    """
    length = x.shape[1]
    if width == BLOCK and block_decays is not None:
        return _scan_pairs(x.double(), block_decays, last.double(), None).to(x.dtype)
    if length == 0:
        return x
    result = torch.empty_like(x)
    if length % 2:
        last = result[:, -1] = torch.addcmul(x[:, -1], c[:, -1], last)
        x, c = x[:, :-1], c[:, :-1]
    if length > 1:
        pairs = result[:, : x.shape[1]]
        first, second, c_first, c_second = x[:, ::2], x[:, 1::2], c[:, ::2], c[:, 1::2]
        joined = torch.addcmul(first, c_first, second)
        joined = _scan_pairs(joined, c_first * c_second, last, block_decays, 2 * width)
        pairs[:, ::2] = joined
        torch.addcmul(second[:, :-1], c_second[:, :-1], joined[:, 1:], out=pairs[:, 1:-1:2])
        torch.addcmul(second[:, -1], c_second[:, -1], last, out=pairs[:, -1])
    return result
