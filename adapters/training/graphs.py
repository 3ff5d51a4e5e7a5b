"""Steps and forward passes as CUDA graphs: one launch in place of a thousand.

On a GPU, a small batch takes as long as the host needs to start its kernels (some 30 µs each). A CUDA graph starts all
kernels of a step at once, but always with the same addresses and shapes. So batches are padded to a few widths
(`data.batching.static_width`) and copied to the addresses of the first batch of their shape, and whatever changes from
step to step (learning rates, random bits) is written to the device before the graph runs. The first batch of a shape
runs plainly, the second is recorded, and all graphs share one pool of memory, since only one of them runs at a time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import Tensor

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.layers.bundle import MemberRng

T = TypeVar("T")


class CudaRecorder:
    """Records work on a device, so that it can run again on the same tensors: CUDA graphs on a stream of their own.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.renew()

    def renew(self) -> None:
        """Begin anew, after everything recorded has been forgotten.

        torch gives up a pool of memory with the last graph that used it.
        """
        self._pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def used(self) -> Iterator[None]:
        """The context of all work, recorded or not: its own stream, after all earlier and before all later work."""
        outside = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(outside)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            outside.wait_stream(self._stream)

    def plainly(self, work: Callable[[], T]) -> T:
        """Run work that will be recorded later.

        Raises:
            RuntimeError: the host waits for the device in it, so it cannot be recorded.
        """
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            return work()
        finally:
            torch.cuda.set_sync_debug_mode(before)

    def record(self, work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Record work without running it; return its result's tensors, which each run of it fills.

        Other threads may use the GPU meanwhile.
        """
        free, total = torch.cuda.mem_get_info(self.device)
        if 2 * free < total:
            torch.cuda.empty_cache()  # a graph's pool cannot use the memory that plain steps have left
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            found = work()
        except BaseException:
            with suppress(RuntimeError):  # its cause is raised: too little memory, perhaps
                graph.capture_end()
            raise
        graph.capture_end()
        return found, graph.replay


@dataclass
class _Known(Generic[T]):
    """What is kept for one shape.

    Attributes:
        batch: the tensors that the graph reads.
        held: the random numbers that it reads (`MemberRng.begin`).
        result: the work's result, whose tensors each run fills.
        run: runs the graph; None before it is recorded.
    """

    batch: Batch
    held: dict[int, Tensor] = field(default_factory=dict)
    result: T | None = None
    run: Callable[[], None] | None = None


class Recorded(Generic[T]):
    """Work on batches, recorded once for each shape.

    Args:
        work: what a batch is for; its tensors, other than the batch's, stay at their addresses (else call `clear`).
        rng: the random numbers that it draws.
        recorder: records it; None runs it plainly always.
        undo: undoes the first half of the work, after the recorder has refused it.

    Attributes:
        refusal: why the work cannot be recorded, one line; None if it can, as far as known.
    """

    def __init__(
        self, work: Callable[[Batch], T], rng: MemberRng, recorder: CudaRecorder | None,
        undo: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._work, self._rng, self._recorder, self._undo = work, rng, recorder, undo
        self._known: dict[Hashable, _Known[T]] = {}
        self.refusal: str | None = None

    @property
    def records(self) -> bool:
        """True if batches may be recorded, as far as known."""
        return self._recorder is not None and self.refusal is None

    def __call__(self, batch: Batch, step: int, state: Hashable = None) -> T:
        """Run the work on a batch.

        Args:
            step: determines the random numbers; the caller has begun it (`MemberRng.begin`).
            state: whatever else changes the work; equal for calls that may share a graph.

        Returns:
            The work's result; its tensors are overwritten by the next call.
        """
        if self._recorder is None or not self.records or not batch.is_static:
            return self._work(batch)
        key = (state, batch.lanes, batch.padded, *((name, own.shape) for name, own in batch.tensors().items()))
        known = self._known.get(key)
        if known is None:
            return self._first(batch, step, key)
        into, given = known.batch.tensors(), batch.tensors()
        torch._foreach_copy_(list(into.values()), list(given.values()))
        self._rng.begin(step, known.held)
        if known.run is None:
            known.result, known.run = self._recorder.record(lambda: self._work(known.batch))
        known.run()
        return known.result  # type: ignore[return-value]

    def _first(self, batch: Batch, step: int, key: Hashable) -> T:
        """Run the first batch of a shape, which becomes the tensors of its graph."""
        assert self._recorder is not None, "nothing is recorded without a recorder"
        known: _Known[T] = _Known(batch.mapped(Tensor.clone))
        self._rng.begin(step, known.held)
        try:
            found = self._recorder.plainly(lambda: self._work(known.batch))
        except RuntimeError as error:
            if "synchroniz" not in str(error):
                raise
            self.refusal = "no CUDA graphs: in each step, the host waits for the GPU"
            self._undo()
            self._rng.begin(step)
            return self._work(batch)
        self._known[key] = known
        return found

    def clear(self) -> None:
        """Forget all graphs, because tensors other than a batch's have moved."""
        self._known.clear()
