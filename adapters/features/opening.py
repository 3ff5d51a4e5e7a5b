"""Opening a split's features: what is there is mapped, what is missing or damaged is encoded, by many at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO

import torch

from meltpoint.adapters.data.batch import EncodedSplit
from meltpoint.adapters.data.batching import first_places
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.features.encoding import at_rest, encode
from meltpoint.adapters.features.entries import describe, hold, locked
from meltpoint.adapters.features.layout import FeatureKey, Layout, layout
from meltpoint.adapters.features.reading import Features
from meltpoint.adapters.features.shards import Manifest, Shard, States
from meltpoint.tasks.core.task import Kind


def open_features(
    folder: Path, key: FeatureKey, encoder: Encoder, split: EncodedSplit, kind: Kind, layers: Sequence[int],
    device: torch.device, note: Mapping[str, str],
) -> Features:  # fmt: skip
    """Open what is there, and encode what is missing.

    Any number of processes, of any machine that sees the folder, may open one entry at the same time: each encodes
    the shards that no other one is at, and waits for the rest. One that dies leaves its shard to the others.

    Args:
        folder: the cache.
        key: `layout.feature_key` of this split.
        encoder: with the weights that it was loaded with; left in the mode and on the device that it was on.
        layers: indices into what the encoder gives.
        device: where to encode.
        note: who asks, in words ("encoder", "task", "split"), for `meltpoint cache ls`.

    Raises:
        OSError: the folder cannot be written, or has no room.
    """
    wanted = tuple(sorted(set(layers)))
    served = _from_all_pieces(folder, key, encoder, split, wanted, note)
    if served is not None:
        return served
    return _Opening(folder, key, encoder, split, kind, wanted, device).run(note)


def needed_bytes(
    folder: Path, key: FeatureKey, encoder: Encoder, split: EncodedSplit, layers: Sequence[int]
) -> int:  # fmt: skip
    """How many bytes `open_features` would write: 0 where everything is there. Reads manifests, no states."""
    if _has_all_pieces(folder, key, encoder, split, layers):
        return 0
    missing = [shard for shard in shards_of(folder, key, encoder, layout(split, key.pieces)) if not _has(shard, layers)]
    return sum(shard.size_bytes(len(_with_stored(shard, layers))) for shard in missing)


def shards_of(folder: Path, key: FeatureKey, encoder: Encoder, where: Layout) -> list[Shard]:
    """The shards of an entry."""
    numbers = range(len(where.shards))
    return [Shard(folder / key.id, n, where.positions(n), encoder.dim, key.dtype) for n in numbers]


def _has(shard: Shard, layers: Sequence[int]) -> bool:
    """Whether a shard says that it has the layers; its bytes are checked when it is opened."""
    manifest = shard.manifest()
    return manifest is not None and set(layers) <= set(manifest.layers) and shard.path("bin").exists()


def _with_stored(shard: Shard, layers: Sequence[int]) -> tuple[int, ...]:
    """The layers asked for and those that the shard had: nobody who needs the latter shall encode again."""
    manifest = shard.manifest()
    return tuple(sorted({*layers, *(manifest.layers if manifest else ())}))


def _has_all_pieces(
    folder: Path, key: FeatureKey, encoder: Encoder, split: EncodedSplit, layers: Sequence[int]
) -> bool:  # fmt: skip
    """Whether an entry with all pieces is there, complete, for a key that asks for the first ones only."""
    whole = replace(key, pieces="all")
    if key.pieces == "all" or not (folder / whole.id).is_dir():
        return False
    return all(_has(shard, layers) for shard in shards_of(folder, whole, encoder, layout(split, "all")))


def _from_all_pieces(
    folder: Path, key: FeatureKey, encoder: Encoder, split: EncodedSplit, layers: tuple[int, ...],
    note: Mapping[str, str],
) -> Features | None:  # fmt: skip
    """First pieces out of a complete entry with all pieces; None where there is no sound one."""
    if not _has_all_pieces(folder, key, encoder, split, layers):
        return None
    whole, where = replace(key, pieces="all"), layout(split, "all")
    held = hold(folder, whole.id)
    opened = [shard.open(layers) for shard in shards_of(folder, whole, encoder, where)]
    sound = [one for one in opened if one is not None]
    if len(sound) < len(opened):
        return None
    describe(folder / whole.id, facts(whole, split, where), note)
    picks = [first_places(row) for row in split.rows]
    return Features(sound, where, layers, key.dtype, held, picks)


def facts(key: FeatureKey, split: EncodedSplit, where: Layout) -> dict[str, str | int]:
    """What `entry.json` says of an entry."""
    return {**asdict(key), "rows": len(split.rows), "shards": len(where.shards)}


class _Opening:
    """One call of `open_features`."""

    def __init__(
        self, cache: Path, key: FeatureKey, encoder: Encoder, split: EncodedSplit, kind: Kind,
        layers: tuple[int, ...], device: torch.device,
    ) -> None:  # fmt: skip
        self.cache, self.key, self.encoder, self.split = cache, key, encoder, split
        self.kind, self.layers, self.device = kind, layers, device
        self.layout = layout(split, key.pieces)
        self.shards = shards_of(cache, key, encoder, self.layout)
        self.opened: dict[int, tuple[Manifest, States]] = {}

    def run(self, note: Mapping[str, str]) -> Features:
        """Take what is there, encode what no other process is at, then wait for what others encode."""
        held: IO[str] = hold(self.cache, self.key.id)
        describe(self.cache / self.key.id, facts(self.key, self.split, self.layout), note)
        for shard in self._missing():
            self._look(shard)
        for wait in (False, True):
            for shard in self._missing():
                self._encode(shard, wait)
        ordered = [self.opened[shard.number] for shard in self.shards]
        return Features(ordered, self.layout, self.layers, self.key.dtype, held)

    def _missing(self) -> Iterator[Shard]:
        yield from [shard for shard in self.shards if shard.number not in self.opened]

    def _look(self, shard: Shard) -> bool:
        """Open a shard if it is there and whole."""
        found = shard.open(self.layers)
        if found is not None:
            self.opened[shard.number] = found
        return found is not None

    def _encode(self, shard: Shard, wait: bool) -> None:
        """Encode a shard unless another process did meanwhile, or (without `wait`) is at it."""
        with locked(shard.path("lock"), wait) as mine:
            if not mine or self._look(shard):
                return
            layers = _with_stored(shard, self.layers)
            rows = self.layout.rows(shard.number)
            with at_rest(self.encoder, self.device):
                states = encode(self.encoder, self.split, self.kind, rows, layers, self.key, self.device)
                shard.write(layers, states)
            found = self._look(shard)
            assert found, "a shard that was just written is whole"
