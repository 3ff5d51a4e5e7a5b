"""What the machine can do at best: bf16 products of square matrices, and copies in its memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

ROUNDS, CALLS = 7, 10
COPY_BYTES = {"cuda": 2**30, "cpu": 2**26}  # far beyond the last cache: 50 MB on an H100, tens of MB on a server's CPU


def matmul_flops(device: str, edges: tuple[int, ...]) -> float:
    """The best bf16 rate over several sizes, in FLOP/s: a product of n × n matrices is 2 n³."""
    return max(2 * edge**3 / _product_seconds(torch.device(device), edge) for edge in edges)


def _product_seconds(device: torch.device, edge: int) -> float:
    left, right = (torch.randn(edge, edge, device=device, dtype=torch.bfloat16) for _ in range(2))
    return seconds_of(lambda: left @ right, device)


def copy_bytes(device: str) -> float:
    """Memory rate of a copy in bytes/s, reads and writes counted."""
    source = torch.empty(COPY_BYTES[device], device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds_of(lambda: target.copy_(source), torch.device(device))


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """One call's time: the median over rounds of several calls, after a round that warms up."""
    times = []
    for _ in range(1 + ROUNDS):
        wait(device)
        started = time.perf_counter()
        for _ in range(CALLS):
            work()
        wait(device)
        times.append((time.perf_counter() - started) / CALLS)
    return statistics.median(times[1:])


def wait(device: torch.device) -> None:
    """Until everything that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
