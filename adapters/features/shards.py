"""The shards of a cache entry: `shard-0007.bin` has the states, (layers, positions, dim), `.json` their manifest."""

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
"""(layers, positions, dim), float32, or int16 with the bits of bfloat16, which NumPy does not have."""

_DIGESTS: dict[tuple[int, int, int, int], str] = {}
"""(device, inode, modification time, bytes) → sha256, so that a process hashes a file once, not at every opening."""


class Manifest(BaseModel):
    """The description of a shard's file of states.

    Attributes:
        layers: indices of the encoder's layers in it, bottom → top.
        positions, dim: the other dimensions of its shape.
        dtype: "float32" or "bfloat16".
        bytes, sha256: of the file.
        written_by: host and process id.
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
        """The path of the shard's file with this suffix."""
        return self.folder / f"shard-{self.number:04}.{suffix}"

    def size_bytes(self, layers: int) -> int:
        """The size of the shard's states with this number of layers."""
        return layers * self.positions * self.dim * self.dtype.itemsize

    def manifest(self) -> Manifest | None:
        """The shard's manifest; None if it is missing, damaged, or describes another shape."""
        try:
            manifest = Manifest.model_validate_json(self.path("json").read_bytes())
        except (FileNotFoundError, ValidationError):
            return None
        fits = (manifest.positions, manifest.dim, manifest.dtype) == (self.positions, self.dim, _name(self.dtype))
        return manifest if fits and manifest.bytes == self.size_bytes(len(manifest.layers)) else None

    def open(self, layers: Sequence[int]) -> tuple[Manifest, States] | None:
        """The manifest and the memory-mapped states; None if the file is missing, damaged or lacks a layer.

        The processes that map it share one copy in memory. The mapping is private (copy-on-write), so that an
        accidental write would not reach the others.
        """
        manifest = self.manifest()
        if manifest is None or not set(layers) <= set(manifest.layers):
            return None
        try:
            with self.path("bin").open("rb") as file:
                if os.fstat(file.fileno()).st_size != manifest.bytes or _digest(file) != manifest.sha256:
                    return None
                # np.memmap would keep one file descriptor per shard, and a worker has many shards open.
                size = manifest.bytes // self.dtype.itemsize
                mapped = torch.from_file(str(self.path("bin")), shared=False, size=size, dtype=self.dtype)
                if not os.path.samestat(os.fstat(file.fileno()), self.path("bin").stat()):
                    return None  # just replaced by one with more layers; the caller opens it again under the lock
        except FileNotFoundError:
            return None
        return manifest, _bits(mapped.view(len(manifest.layers), self.positions, self.dim))

    def write(self, layers: Sequence[int], blocks: Iterable[Tensor]) -> None:
        """Write the states and then the manifest; the caller holds the shard's lock.

        Args:
            layers: indices of the encoder's layers, bottom → top.
            blocks: (layers, positions, dim) tensors on the CPU, consecutive along the positions.

        Raises:
            OSError: the file cannot be written, for example on a full disk; no incomplete shard is left.
        """
        beside = self.path("part")  # a fixed name suffices under the lock; a killed process's file is overwritten
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
        """Write blocks one at a time, a block's layers to their parts of the file: only one batch is in memory."""
        start = 0
        for block in blocks:
            assert block.dtype == self.dtype, "states have the shard's type"
            for layer, states in enumerate(_bits(block)):
                file.seek((layer * self.positions + start) * self.dim * self.dtype.itemsize)
                file.write(states.data)
            start += block.shape[1]
        assert start == self.positions, "a state for every position"

    def _refusal(self, error: OSError, layers: int) -> OSError:
        """The error to raise: with the remedy if the disk or a quota is full, otherwise unchanged."""
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return error
        wanted = f"no room for {self.size_bytes(layers) / 1e6:.1f} MB of cached features"
        return OSError(error.errno, f"{wanted}; free some space, or run `meltpoint cache rm`", str(self.folder))


def _bits(block: Tensor) -> States:
    """A tensor as an array; bfloat16 as int16 with the same bits."""
    block = block.contiguous()
    bits: States = (block.view(torch.int16) if block.dtype == torch.bfloat16 else block).numpy()
    return bits


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _digest(file: IO[bytes]) -> str:
    """sha256 of a file; computed once per process as long as the file does not change."""
    stat = os.fstat(file.fileno())
    key = (stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size)
    if key not in _DIGESTS:
        file.seek(0)
        _DIGESTS[key] = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    return _DIGESTS[key]
