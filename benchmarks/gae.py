"""Speed of skip-observation GAE on [16, 131072] float32 values, as ratios within one run.

    python benchmarks/gae.py

Compares with a loop over tokens that does all rows at once, and with a copy of the values. Scan and copy are
timed in turn, so that both find the caches in the same state, and their medians compared. Exits 1 when the
scan is less than 100 times faster than the loop or takes more than 40 copies.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from sao.advantages import length_adaptive_lambda, skip_observation_gae

ROWS, TOKENS = 16, 131072
REPEATS = 30
GAMMA, ALPHA = 1.0, 1.5
TURN, OBSERVATION = 512, 128  # every turn of 512 tokens ends with an observation of 128


def loop_over_tokens(
    values: Tensor, rewards: Tensor, action_mask: Tensor, gamma: float, lam: Tensor
) -> Tensor:
    """The recursion written down token by token, from the last one back, carried in float64."""
    advantages = torch.zeros_like(values)
    next_value = torch.zeros(len(values), dtype=torch.float64)
    next_advantage = torch.zeros(len(values), dtype=torch.float64)
    decay = gamma * lam
    for t in range(values.shape[1] - 1, -1, -1):
        is_action = action_mask[:, t]
        advantage = rewards[:, t] + gamma * next_value - values[:, t] + decay * next_advantage
        next_advantage = torch.where(is_action, advantage, next_advantage)
        next_value = torch.where(is_action, values[:, t], next_value)
        advantages[:, t] = torch.where(is_action, advantage, 0)
    return advantages


def timed(run: Callable[[], Tensor]) -> tuple[float, Tensor]:
    """Seconds and the result."""
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def main() -> int:
    torch.set_num_threads(1)  # as every run of the suite has
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(ROWS, TOKENS, generator=generator)
    action_mask = (torch.arange(TOKENS) % TURN < TURN - OBSERVATION).expand(ROWS, TOKENS).clone()
    rewards = torch.zeros(ROWS, TOKENS)
    rewards[:, TOKENS - OBSERVATION - 1] = 1
    lam = length_adaptive_lambda(action_mask.sum(dim=1), ALPHA)
    arguments = (values, rewards, action_mask, GAMMA, lam)

    loop, expected = timed(lambda: loop_over_tokens(*arguments))
    scans, copies = [], []
    for _ in range(REPEATS):
        seconds, advantages = timed(lambda: skip_observation_gae(*arguments))
        scans.append(seconds)
        seconds, copied = timed(values.clone)
        copies.append(seconds)
    assert torch.equal(copied, values)
    scan, copy = statistics.median(scans), statistics.median(copies)
    difference = (advantages - expected).abs().max().item()
    print(f"[{ROWS}, {TOKENS}] float32, one thread, largest difference {difference:.1e}")
    print(f"copy {1e3 * copy:.2f} ms, scan {1e3 * scan:.1f} ms, loop {1e3 * loop:.0f} ms")
    print(f"scan: {loop / scan:.0f} times faster than the loop, {scan / copy:.1f} copies")
    return 0 if loop >= 100 * scan and scan <= 40 * copy else 1


if __name__ == "__main__":
    sys.exit(main())
