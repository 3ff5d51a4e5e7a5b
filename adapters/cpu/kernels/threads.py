"""A kernel's rows shared out among torch's threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch

SHARES = 4
"""Shares a thread: rows differ in length, so who has short ones takes more of them."""


def parallel_for(rows: int, run: Callable[[int, int], object]) -> None:
    """Call `run(first, last)` for all rows: in one go where torch has one thread, else in as many as it has."""
    threads = min(torch.get_num_threads(), rows)
    if threads <= 1:
        run(0, rows)
        return
    step = -(-rows // (threads * SHARES))
    firsts = range(0, rows, step)
    list(_pool(os.getpid(), threads).map(run, firsts, (min(first + step, rows) for first in firsts)))


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """One a process, since a fork has none of its parent's threads."""
    return ThreadPoolExecutor(threads, "meltpoint-kernel")
