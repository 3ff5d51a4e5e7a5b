"""Questions about paths that a person wrote: what cannot be a path is not there."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}


def exists(path: Path) -> bool:
    """True if there is a file or folder; False also for a name that is longer than the system allows."""
    return _mode(path) is not None


def is_file(path: Path) -> bool:
    """True if there is a file; False as in `exists`."""
    return stat.S_ISREG(_mode(path) or 0)


def is_folder(path: Path) -> bool:
    """True if there is a folder; False as in `exists`."""
    return stat.S_ISDIR(_mode(path) or 0)


def _mode(path: Path) -> int | None:
    """The mode of what lies there, links followed; None if nothing does or can.

    Raises:
        OSError: it may not be looked at, or the disk fails.
    """
    try:
        return path.stat().st_mode
    except ValueError:  # a null character in a name
        return None
    except OSError as error:
        if error.errno not in NOT_THERE:
            raise
        return None


def expanded(text: str) -> Path:
    """The path that a text names, `~` being a home; as it is written where that is the home of nobody."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def matching(folder: Path, pattern: str) -> list[Path]:
    """The files below a folder whose names match a pattern with `*` (`**` for any folders), in the order of names."""
    place = Path(pattern)
    root = Path(place.anchor) if place.is_absolute() else folder
    inside = pattern[len(place.anchor) :] if place.is_absolute() else pattern
    try:
        return sorted(path for path in root.glob(inside) if is_file(path))
    except (ValueError, NotImplementedError):  # `a**`, or a null character
        return []
