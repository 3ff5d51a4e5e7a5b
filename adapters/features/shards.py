"""One shard of an entry: `shard-0007.bin` holds the states, (layers, positions, dim); its manifest is written last."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from meltpoint.adapters.files import write_atomically

States = NDArray[Any]
"""(layers, positions, dim), float32, or int16 that holds the bits of bfloat16, which NumPy does not know."""

_DIGESTS: dict[tuple[int, int, int, int], str] = {}
"""(device, inode, time of change, bytes) → sha256: a file is read through once a process, not at each opening."""


class Manifest(BaseModel):
    """What a shard's file holds.

    Attributes:
        layers: the encoder's layers in it, bottom → top.
        positions, dim: its shape, beside the layers.
        dtype: "float32" or "bfloat16".
        bytes, sha256: of the file.
        written_by: host and process.
    """

    model_config = ConfigDict(frozen=True)

    layers: tuple[int, ...]
    positions: int
    dim: int
    dtype: str
    bytes: int
    sha256: str
    written_by: str


@dataclass(frozen=True)
class Shard:
    """A shard's files and the shape that its split and encoder give it."""

    folder: Path
    number: int
    positions: int
    dim: int
    dtype: torch.dtype

    def path(self, suffix: str) -> Path:
        """One of its files."""
        return self.folder / f"shard-{self.number:04}.{suffix}"

    def size_bytes(self, layers: int) -> int:
        """What its states take with so many layers."""
        return layers * self.positions * self.dim * self.dtype.itemsize

    def manifest(self) -> Manifest | None:
        """Its manifest; None where there is none, or one that does not fit the shard."""
        try:
            found = Manifest.model_validate_json(self.path("json").read_bytes())
        except (FileNotFoundError, ValidationError):
            return None
        fits = (found.positions, found.dim, found.dtype) == (self.positions, self.dim, _name(self.dtype))
        return found if fits and found.bytes == self.size_bytes(len(found.layers)) else None

    def open(self, layers: Sequence[int]) -> tuple[Manifest, States] | None:
        """Its states, mapped into memory; None where the file is missing, damaged or lacks a layer.

        Every process that maps it shares one copy in memory; a stray write would reach this process's pages only.
        """
        manifest = self.manifest()
        if manifest is None or not set(layers) <= set(manifest.layers):
            return None
        try:
            with self.path("bin").open("rb") as file:
                if os.fstat(file.fileno()).st_size != manifest.bytes or _digest(file) != manifest.sha256:
                    return None
                # np.memmap would keep a file descriptor a shard, and a worker has many shards open.
                size = manifest.bytes // self.dtype.itemsize
                mapped = torch.from_file(str(self.path("bin")), shared=False, size=size, dtype=self.dtype)
                if not os.path.samestat(os.fstat(file.fileno()), self.path("bin").stat()):
                    return None  # replaced just now, by one with more layers: another look, under the lock, finds it
        except FileNotFoundError:
            return None
        return manifest, _bits(mapped.view(len(manifest.layers), self.positions, self.dim))

    def write(self, layers: Sequence[int], blocks: Iterable[Tensor]) -> None:
        """Write the states and then the manifest; the caller holds the shard's lock.

        Args:
            layers: bottom → top.
            blocks: (layers, positions, dim) tensors on the CPU, which follow one another along the positions.

        Raises:
            OSError: the disk is full or refuses; nothing is left that could be taken for a shard.
        """
        beside = self.path("part")  # one name is enough under the lock; what a killed process left is overwritten
        try:
            with beside.open("w+b") as file:
                self._write_blocks(file, len(layers), blocks)
                file.flush()
                os.fsync(file.fileno())
                manifest = Manifest(
                    layers=tuple(layers), positions=self.positions, dim=self.dim, dtype=_name(self.dtype),
                    bytes=self.size_bytes(len(layers)), sha256=_digest(file),
                    written_by=f"{socket.gethostname()}:{os.getpid()}",
                )  # fmt: skip
            beside.replace(self.path("bin"))
            write_atomically(self.path("json"), manifest.model_dump_json())
        except OSError as error:
            raise self._refusal(error, len(layers)) from error
        finally:
            beside.unlink(missing_ok=True)

    def _write_blocks(self, file: IO[bytes], layers: int, blocks: Iterable[Tensor]) -> None:
        """Each layer is contiguous in the file, and a block goes to all of them: memory holds one batch at a time."""
        start = 0
        for block in blocks:
            assert block.dtype == self.dtype, "states come in the shard's type"
            for layer, states in enumerate(_bits(block)):
                file.seek((layer * self.positions + start) * self.dim * self.dtype.itemsize)
                file.write(states.data)
            start += block.shape[1]
        assert start == self.positions, "a state for every position"

    def _refusal(self, error: OSError, layers: int) -> OSError:
        """The error, in words that say what to do."""
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return error
        wanted = f"no room for {self.size_bytes(layers) / 1e6:.1f} MB of cached features"
        return OSError(error.errno, f"{wanted}; free some space, or run `meltpoint cache rm`", str(self.folder))


def _bits(block: Tensor) -> States:
    """A tensor as an array: bfloat16 as the int16 of the same bits."""
    block = block.contiguous()
    bits: States = (block.view(torch.int16) if block.dtype == torch.bfloat16 else block).numpy()
    return bits


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _digest(file: IO[bytes]) -> str:
    """sha256 of a file, once a process as long as the file does not change."""
    found = os.fstat(file.fileno())
    key = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
    if key not in _DIGESTS:
        file.seek(0)
        _DIGESTS[key] = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    return _DIGESTS[key]
