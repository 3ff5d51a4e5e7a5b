"""Frozen states: encode missing ones, open and read them, and keep the cache within its size limit.

If features do not fit, old entries are evicted; if that does not suffice, the features are stored in bf16, or the
encoder runs in each batch."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from meltpoint.adapters.data.batch import Batch, EncodedSplit
from meltpoint.adapters.data.batching import collate
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.features import bytes_of, describe, entries, hold, locked, make_room
from meltpoint.adapters.features.layout import ENCODING_BATCH, FeatureKey, Layout, Manifest, Shard, States, layout
from meltpoint.adapters.hardware import is_gpu_out_of_memory
from meltpoint.tasks.core.task import Kind


def encode(
    encoder: Encoder, split: EncodedSplit, kind: Kind, rows: Sequence[int], layers: Sequence[int], key: FeatureKey,
    device: torch.device, tick: Callable[[], None] = lambda: None,
) -> Iterator[Tensor]:  # fmt: skip
    """Yield the hidden states of rows, batch by batch, without gradients or dropout.

    Args:
        encoder: in evaluation mode on the device (`at_rest`).
        rows: the rows of whole batches of `ENCODING_BATCH`, in the layout's order.
        layers: indices of the encoder's layers, bottom → top.
        tick: called before each batch; may raise to end the work.

    Yields:
        (layers, positions of all rows of the batch, dim) in the key's type, on the CPU.
    """
    top = encoder.layers - 1

    def read(rows: Sequence[int]) -> Tensor:
        batch = collate(split.rows, rows, encoder.tokenizer.pad_piece, kind).to(device)
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=key.precision == "bf16"):
            found = {top: encoder.read_top(batch)} if tuple(layers) == (top,) else dict(enumerate(encoder.read(batch)))
        return torch.stack([_positions(found[layer], batch, key).to(key.dtype) for layer in layers]).cpu()

    for start in range(0, len(rows), ENCODING_BATCH):
        tick()
        yield _in_parts(read, rows[start : start + ENCODING_BATCH])


def _in_parts(read: Callable[[Sequence[int]], Tensor], rows: Sequence[int]) -> Tensor:
    """The states that `read` returns for some rows, (layers, positions, dim), in halves if a GPU's memory is too small.

    Raises:
        RuntimeError: the memory is too small for a single row (`is_gpu_out_of_memory`).
    """
    try:
        return read(rows)
    except RuntimeError as error:
        if not is_gpu_out_of_memory(error) or len(rows) == 1:
            raise
    if torch.cuda.is_available():  # by now the error has released the memory of the pass
        torch.cuda.empty_cache()
    half = len(rows) // 2
    return torch.cat([_in_parts(read, rows[:half]), _in_parts(read, rows[half:])], 1)


@contextmanager
def at_rest(encoder: Encoder, device: torch.device) -> Iterator[None]:
    """Put the encoder in evaluation mode on a device; its mode and device are restored afterwards."""
    training, home = encoder.training, next(encoder.parameters()).device
    encoder.to(device).eval()
    try:
        yield
    finally:
        encoder.to(home).train(training)


def _positions(states: Tensor, batch: Batch, key: FeatureKey) -> Tensor:
    """(batch, pieces, dim) → (positions, dim): all real pieces, or only first pieces (`batching.first_places`)."""
    if key.pieces == "all":
        return states[batch.piece_mask]
    if batch.word_starts is None or batch.word_mask is None:
        first = states[:, 0]
        if batch.cuts is None:
            return first
        second = states[torch.arange(len(batch), device=states.device), batch.cuts]
        return torch.stack([first, second], 1).flatten(0, 1)
    rows = torch.arange(len(batch), device=states.device)[:, None].expand_as(batch.word_starts)
    return states[rows[batch.word_mask], batch.word_starts[batch.word_mask]]


class Features:
    """The cached hidden states of one split: memory-mapped, read-only, one copy for all processes of a machine.

    Args:
        shards: each shard's manifest and states.
        layout: the position of each row in the shards.
        layers: indices of the layers to return, bottom → top.
        dtype: type of the states.
        held: the entry's lock file; the lock lasts as long as this object.

    Attributes:
        layers: indices of the encoder's layers, bottom → top.
        dtype: type of the states.
        lengths: number of positions of each row: its pieces, or its words (or 1) if only first pieces are stored.
        bytes: size of the mapped files.
    """

    def __init__(
        self, shards: Sequence[tuple[Manifest, States]], layout: Layout, layers: tuple[int, ...], dtype: torch.dtype,
        held: IO[str],
    ) -> None:  # fmt: skip
        self.layers, self.dtype = layers, dtype
        self.bytes = sum(states.nbytes for _, states in shards)
        self.lengths = layout.counts
        self._states = [_select(manifest.layers, layers, states) for manifest, states in shards]
        self._shard_of, self._starts = layout.shard_of, layout.starts
        self._dim = shards[0][0].dim if shards else 0
        self._held = held

    def gather(self, rows: Sequence[int]) -> Tensor:
        """The states of some rows, in the given order.

        Each row is copied from its slice of the file. That takes 0.65 ms for 32 rows of 7 layers × 25 × 384 in float32,
        compared with 0.93 and 1.08 ms for `index_select` and `np.take` over all rows (docs/internals/log.md).

        Returns:
            (layers, rows, longest, dim) in the stored type, 0 where padded; `longest` is the largest number of
            positions of these rows.
        """
        chosen = np.asarray(rows, dtype=np.int64)
        lengths = self.lengths[chosen].tolist()
        shape = (len(self.layers), len(lengths), max(lengths, default=0), self._dim)
        out = torch.empty(shape, dtype=self.dtype)
        into = (out.view(torch.int16) if self.dtype == torch.bfloat16 else out).numpy()
        places = zip(lengths, self._shard_of[chosen].tolist(), self._starts[chosen].tolist(), strict=True)
        for index, (length, shard, start) in enumerate(places):
            into[:, index, :length] = self._states[shard][:, start : start + length]
            into[:, index, length:] = 0
        return out


def _select(stored: tuple[int, ...], wanted: tuple[int, ...], states: States) -> States:
    """The wanted layers of a shard: a view if they are evenly spaced, as a single layer and all layers are."""
    places: NDArray[np.int64] = np.array([stored.index(layer) for layer in wanted], dtype=np.int64)
    steps = set(np.diff(places).tolist())
    if len(steps) > 1:
        return states[places]  # fancy indexing copies the states into memory
    step = steps.pop() if steps else 1
    return states[places[0] : places[-1] + 1 : step]


def open_features(
    folder: Path, key: FeatureKey, encoder: Encoder, split: EncodedSplit, kind: Kind, layers: Sequence[int],
    device: torch.device, note: Mapping[str, str], tick: Callable[[], None] = lambda: None, kept: Sequence[int] = (),
) -> Features:  # fmt: skip
    """Open a split's features, encoding the shards that are missing.

    Any number of processes, on any machines that share the folder, may open one entry at the same time: each encodes
    the shards that no other process is encoding, and waits for the rest. If one dies, the others encode its shard.

    Args:
        folder: the cache.
        key: `layout.feature_key` of this split.
        encoder: with the weights that it was loaded with; its mode and device are restored afterwards.
        layers: indices of the encoder's layers.
        device: the device to encode on.
        note: the user of the features ("encoder", "task", "split"), shown by `meltpoint cache ls`.
        tick: called before each batch; may raise to end the work, which keeps the shards that are complete.
        kept: further layers, which a pass of the encoder stores for other trials.

    Raises:
        OSError: the folder cannot be written, or its disk is full.
    """
    wanted, where = tuple(sorted(set(layers))), layout(split, key.pieces)
    shards = shards_of(folder, key, encoder, where)
    opened: dict[int, tuple[Manifest, States]] = {}

    def take(shard: Shard) -> bool:
        """Open a shard; returns False if it is missing or damaged."""
        if (found := shard.open(wanted)) is not None:
            opened[shard.number] = found
        return found is not None

    def encode_one(shard: Shard, wait: bool) -> None:
        """Encode a shard unless another process has done it meanwhile or, without `wait`, is doing it."""
        with locked(shard.path("lock"), wait) as acquired:
            if not acquired or take(shard):
                return
            stored = _with_stored(shard, (*wanted, *kept))
            with at_rest(encoder, device):
                rows = where.rows(shard.number)
                shard.write(stored, encode(encoder, split, kind, rows, stored, key, device, tick))
            taken = take(shard)
            assert taken, "a shard that was just written is complete"

    held = hold(folder, key.id)
    describe(folder / key.id, {**asdict(key), "rows": len(split.rows), "shards": len(shards)}, note)
    for shard in shards:
        take(shard)
    for wait in (False, True):  # first the shards that no other process is encoding, then the others
        for shard in shards:
            if shard.number not in opened:
                encode_one(shard, wait)
    return Features([opened[shard.number] for shard in shards], where, wanted, key.dtype, held)


def needed_bytes(
    folder: Path, key: FeatureKey, encoder: Encoder, split: EncodedSplit, layers: Sequence[int]
) -> int:  # fmt: skip
    """The number of bytes that `open_features` would write; 0 if nothing is missing. Reads manifests, no states."""
    missing = [shard for shard in shards_of(folder, key, encoder, layout(split, key.pieces)) if not _has(shard, layers)]
    return sum(shard.size_bytes(len(_with_stored(shard, layers))) for shard in missing)


def shards_of(folder: Path, key: FeatureKey, encoder: Encoder, where: Layout) -> list[Shard]:
    """The shards of an entry."""
    numbers = range(len(where.shards))
    return [Shard(folder / key.id, n, where.positions(n), encoder.dim, key.dtype) for n in numbers]


def _has(shard: Shard, layers: Sequence[int]) -> bool:
    """True if a shard's manifest lists the layers; the states are verified when the shard is opened."""
    manifest = shard.manifest()
    return manifest is not None and set(layers) <= set(manifest.layers) and shard.path("bin").exists()


def _with_stored(shard: Shard, layers: Sequence[int]) -> tuple[int, ...]:
    """The wanted layers and those already stored, which are rewritten so that no process encodes them again."""
    manifest = shard.manifest()
    return tuple(sorted({*layers, *(manifest.layers if manifest else ())}))


DISK_MARGIN_BYTES = 2**30
"""Disk space to keep free for weights, records and the tracking store, which are written at the same time."""


@dataclass(frozen=True)
class Budget:
    """The limits of the cache.

    Attributes:
        bytes: largest total size of all entries.
        overflow: the alternative for features that do not fit: "bf16" stores float32 features in bfloat16, at half the
            size; "on_the_fly" runs the encoder in each batch.
        disk_margin_bytes: space to keep free on the disk.
    """

    bytes: int
    overflow: Literal["on_the_fly", "bf16"] = "on_the_fly"
    disk_margin_bytes: int = DISK_MARGIN_BYTES


def choose(
    folder: Path, key: FeatureKey, encoder: Encoder, split: EncodedSplit, layers: Sequence[int], budget: Budget
) -> tuple[FeatureKey | None, str]:  # fmt: skip
    """Make room for an entry, or choose the alternative.

    The least recently used entries are removed first, except entries that a process has open. Two workers that begin
    different entries at the same moment do not see each other's, so one entry can exceed the budget.

    Returns:
        the entry to open, or None to run the encoder in each batch; and one line for the trial's notes.
    """
    needed = needed_bytes(folder, key, encoder, split, layers)
    if _make_room(folder, key, needed, budget):
        return key, f"features: cached in {key.precision}" + (f", {_size(needed)} to write" if needed else "")
    free = _size(free_bytes(folder))
    short = f"{_size(needed)} in {key.precision} do not fit ({_size(budget.bytes)} allowed, {free} free)"
    if budget.overflow == "bf16" and key.precision == "fp32":
        smaller, words = choose(folder, replace(key, precision="bf16"), encoder, split, layers, budget)
        return smaller, f"features: {short}; {words.removeprefix('features: ')}"
    return None, f"features: {short}; the encoder runs in each batch"


def _make_room(folder: Path, key: FeatureKey, needed: int, budget: Budget) -> bool:
    """Remove entries until the needed bytes fit; removes nothing if that could not suffice."""
    if needed == 0:
        return True
    kept = bytes_of(folder / key.id)
    if needed + kept > budget.bytes:
        return False
    others = [entry for entry in entries(folder) if entry.id != key.id]
    if needed > free_bytes(folder) - budget.disk_margin_bytes + sum(entry.bytes for entry in others):
        return False
    used = kept + sum(entry.bytes for entry in others)
    for entry in others:
        if _fits(folder, used + needed, needed, budget):
            break
        if make_room(folder, entry.id):
            used -= entry.bytes
    return _fits(folder, used + needed, needed, budget)


def _fits(folder: Path, total: int, needed: int, budget: Budget) -> bool:
    return total <= budget.bytes and needed <= free_bytes(folder) - budget.disk_margin_bytes


def free_bytes(folder: Path) -> int:
    """The free bytes of the disk that the folder is, or will be, on."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def _size(count: int) -> str:
    """A number of bytes as text."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
