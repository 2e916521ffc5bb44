"""Peak memory of token_logprobs, forward and backward, on 32,768 tokens and a vocabulary of 151,936.

    python benchmarks/token_logprobs.py

The measurement runs in a process of its own: resident memory is sampled while it computes, and its level
before that, with the inputs there, is subtracted. Exits 1 when the peak exceeds 1.5 GB. Takes minutes on one
core.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import threading
import time
from dataclasses import dataclass

GIGABYTE = 1e9
LIMIT = 1.5 * GIGABYTE


@dataclass
class Measurement:
    peak_bytes: int  # above the inputs
    forward_seconds: float
    backward_seconds: float


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class PeakMemory:
    """Samples the resident memory of this process every few milliseconds."""

    def __enter__(self) -> PeakMemory:
        self.start = self.peak = resident_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._stop.wait(0.005):
            self.peak = max(self.peak, resident_bytes())

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def measure(tokens: int, vocabulary: int, width: int) -> Measurement:
    import torch

    from sao.logprobs import token_logprobs

    hidden = torch.randn(tokens, width).requires_grad_()
    weight = torch.randn(vocabulary, width).requires_grad_()
    token_ids = torch.randint(0, vocabulary, (tokens,))
    token_logprobs(hidden[:1], weight, token_ids[:1])[0].sum().backward()  # loads the kernels
    hidden.grad = weight.grad = None
    with PeakMemory() as memory:
        start = time.perf_counter()
        logprobs, _ = token_logprobs(hidden, weight, token_ids)
        middle = time.perf_counter()
        logprobs.sum().backward()
        end = time.perf_counter()
    return Measurement(memory.peak - memory.start, middle - start, end - middle)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--hidden-size", type=int, default=64)
    options = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        result = pool.apply(measure, (options.tokens, options.vocabulary, options.hidden_size))
    full = 2 * 4 * options.tokens * options.vocabulary  # float32 logits and their gradient
    print(f"{options.tokens} tokens, vocabulary {options.vocabulary}, width {options.hidden_size}, float32")
    print(f"forward {result.forward_seconds:.1f} s, backward {result.backward_seconds:.1f} s")
    print(
        f"peak {result.peak_bytes / GIGABYTE:.2f} GB above the inputs; full logits and their gradient take "
        f"{full / GIGABYTE:.1f} GB, {full / max(result.peak_bytes, 1):.0f} times as much"
    )
    return 0 if result.peak_bytes <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
