"""Bounded reading of compressed files: gzip, bzip2, xz, and zip archives with one file.

A few kilobytes can stand for gigabytes. What is unpacked is bounded by the limit of the file's kind and, beyond
64 MiB, by `MOST_GROWTH` times the packed size.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from meltpoint.tasks.core.bounded import MOST_DATA_BYTES, MOST_DOCUMENT_BYTES, read_bytes, regular
from meltpoint.tasks.core.counts import some

MOST_GROWTH = 100
"""The most bytes that a packed byte may stand for: text packs to a half or a twentieth, tables to a fiftieth."""
PIECE_BYTES = 2**20

DAMAGED = (EOFError, OSError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError)
"""What the standard library raises for a file that is damaged, encrypted, or packed by an unknown method."""

OPENERS: Mapping[str, Callable[[Path], Any]] = {".gz": gzip.GzipFile, ".bz2": bz2.BZ2File, ".xz": lzma.LZMAFile}
"""Suffix → the class that reads such a file; `.zip` is read by `_only_member`."""
SUFFIXES = (*OPENERS, ".zip")


def is_compressed(path: Path) -> bool:
    """True if a file's name ends as those of compressed files do."""
    return path.suffix.lower() in SUFFIXES


def without_suffix(path: Path) -> Path:
    """The name of what a compressed file holds (`train.csv` of `train.csv.gz`); another file's own name."""
    return path.with_suffix("") if is_compressed(path) else path


def read_data_bytes(path: Path, most_bytes: int = MOST_DATA_BYTES) -> bytes:
    """The contents of a file, unpacked if its name says that it is compressed.

    Raises:
        ValueError: it is damaged, an archive of several files, or larger than allowed.
        OSError: it cannot be opened.
    """
    if not is_compressed(path):
        return read_bytes(path, most_bytes)
    packed = path.stat().st_size
    limit = min(most_bytes, max(MOST_DOCUMENT_BYTES, MOST_GROWTH * packed))
    pieces: list[bytes] = []
    with _opened(path) as file:
        for piece in iter(lambda: file.read(PIECE_BYTES), b""):
            pieces.append(piece)
            limit -= len(piece)
            if limit < 0:
                raise ValueError(
                    f"{path} unpacks to more than the {packed:,} bytes of it can stand for, or than is read. "
                    "Unpack it, and name the unpacked file."
                )
    return b"".join(pieces)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The unpacked contents; errors of reading them become one line."""
    regular(path).open("rb").close()  # its own errors (missing, no permission) are the caller's
    try:
        if path.suffix.lower() == ".zip":
            with zipfile.ZipFile(path) as archive, archive.open(_only_member(path, archive)) as file:
                yield file
        else:
            with OPENERS[path.suffix.lower()](path) as file:
                yield file
    except DAMAGED as error:
        raise ValueError(f"{path} cannot be unpacked ({error}). Replace it with the complete file.") from None


def _only_member(path: Path, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    members = [one for one in archive.infolist() if not one.is_dir() and not one.filename.startswith("__MACOSX/")]
    if len(members) != 1:
        names = ", ".join(member.filename for member in members[:5])
        raise ValueError(
            f"{path} holds {some(len(members), 'file')} ({names}), and one is read. Unpack it, and name the file in it."
        )
    return members[0]
