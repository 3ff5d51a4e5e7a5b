"""Files that are there whole or not at all: written beside, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside the one that is wanted; what is written there takes its place if nothing goes wrong.

    A reader sees the old file or the new one, never half of one, also after a power cut: it is on the disk first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{uuid4().hex}.tmp")  # processes of two machines may have the same id
    try:
        yield beside
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write or replace a text file."""
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")
