"""Measured limits of the machine: bf16 products of square matrices, and memory copies."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

ROUNDS, CALLS = 7, 10
COPY_BYTES = {
    "cuda": 2**30,
    "cpu": 2**26,
}  # far larger than the last-level cache: 50 MB on an H100, tens of MB on a server's CPU


def matmul_flops(device: str, edges: tuple[int, ...]) -> float:
    """The best bf16 rate over several sizes, in FLOP/s; a product of n × n matrices has 2 n³ FLOPs."""
    return max(2 * edge**3 / _product_seconds(torch.device(device), edge) for edge in edges)


def _product_seconds(device: torch.device, edge: int) -> float:
    left, right = (torch.randn(edge, edge, device=device, dtype=torch.bfloat16) for _ in range(2))
    return seconds_of(lambda: left @ right, device)


def copy_bytes(device: str) -> float:
    """Memory bandwidth of a copy in bytes/s, counting reads and writes."""
    source = torch.empty(COPY_BYTES[device], device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds_of(lambda: target.copy_(source), torch.device(device))


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Seconds per call: the median over rounds of several calls, after a warm-up round."""
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
    """Wait until the device has finished all work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
