"""A data set in its original layout: its files, the task file that reads them, and the expected examples."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Layout:
    """A data set as its authors publish it.

    Attributes:
        files: path → contents.
        yaml: the task file.
        train, dev: the expected examples: (texts or words, label's name or score or tags), in order; None where dev is
            drawn, and `train` then holds those of both.
        notes: the expected remarks.
        asked: the files and folders that `new-task` is given.
        guessed: what `new-task` has to find: keys of the task file with their values.
    """

    files: Mapping[str, bytes]
    yaml: str
    train: list[tuple[object, object]]
    dev: list[tuple[object, object]] | None = None
    notes: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    guessed: Mapping[str, object] | None = None

    def write(self, folder: Path) -> str:
        """Write the files and the task file; returns its path."""
        for name, contents in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents)
        task = folder / "task.yaml"
        task.write_text(self.yaml, encoding="utf-8")
        return str(task)

    def yaml_lines(self) -> int:
        """The number of lines of the task file."""
        return len(self.yaml.strip().splitlines())


def json_lines(*rows: object) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def zipped(name: str, contents: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, contents)
    return out.getvalue()
