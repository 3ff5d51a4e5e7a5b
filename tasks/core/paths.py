"""Questions about paths that a person wrote: what cannot be a path is not there."""

from __future__ import annotations

from pathlib import Path


def exists(path: Path) -> bool:
    """True if there is a file or folder; False also for a name that is longer than the system allows."""
    try:
        return path.exists()
    except OSError:
        return False


def is_file(path: Path) -> bool:
    """True if there is a file; False as in `exists`."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """True if there is a folder; False as in `exists`."""
    try:
        return path.is_dir()
    except OSError:
        return False


def expanded(text: str) -> Path:
    """The path that a text names, `~` being a home; as it is written where that is the home of nobody."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)
