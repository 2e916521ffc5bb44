"""Shaping of outcome rewards."""

from torch import Tensor


def overlong_penalty(
    num_action_tokens: Tensor, max_action_tokens: int, buffer_tokens: int, penalty: float
) -> Tensor:
    """DAPO's soft penalty on overlong trajectories (arXiv:2503.14476, eq. 13): float32 [batch], at most 0.

    0 up to `max_action_tokens - buffer_tokens` action tokens, then falling linearly to `-penalty` at
    `max_action_tokens` and beyond. num_action_tokens: int [batch].
    """
    excess = num_action_tokens - (max_action_tokens - buffer_tokens)
    if buffer_tokens == 0:
        return -penalty * (excess > 0).float()
    return -penalty * (excess.float() / buffer_tokens).clamp(0, 1)
