"""Compilation of the kernels by numba, and the cache of compiled code."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache
from numba.core.registry import cpu_target
from numba.extending import intrinsic

KEPT_DAYS = 30
"""How long what was compiled is kept after it was last started from; each version has some MB."""


def processor() -> tuple[str, str, str]:
    """The target of the compilation: system, processor, and its instruction sets."""
    triple, name, features = cpu_target.target_context.codegen().magic_tuple()
    return triple, name, features


def cache_folder() -> Path:
    """The folder of compiled code: in $XDG_CACHE_HOME, or ~/.cache.

    A folder for each state of the kernels' code, since numba alone looks at the file that a function stands in, and
    misses a change in another that was compiled into it; for each kind of processor, since machines share homes; and
    for each place where that code lies, as numba has it: a folder with anything in it has what this process needs.
    """
    home = Path(__file__).parent
    digest = hashlib.sha256(repr((str(home), processor())).encode())
    for path in sorted(home.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "meltpoint" / f"kernels-{digest.hexdigest()[:16]}"


def forget_unused() -> None:
    """Remove the folders of other versions, places and processors that nobody has started from for `KEPT_DAYS` days.

    What cannot be removed stays.
    """
    try:
        own = cache_folder()
    except RuntimeError:  # a user without a home
        return
    oldest = time.time() - KEPT_DAYS * 24 * 3600
    for folder in own.parent.glob("kernels-*"):
        with contextlib.suppress(OSError):
            if folder != own and folder.stat().st_mtime < oldest:
                shutil.rmtree(folder)


def mark_used() -> None:
    """Keep this version's folder from `forget_unused` for the days to come."""
    with contextlib.suppress(OSError, RuntimeError):
        os.utime(cache_folder())


_config: Any = numba.config
if not _config.CACHE_DIR:  # NUMBA_CACHE_DIR comes first
    with contextlib.suppress(RuntimeError):  # a user without a home
        _config.CACHE_DIR = str(cache_folder())


def kernel(function: Callable[..., Any]) -> Any:
    """Compile when it is first called, and keep what was compiled on disk; Python's lock is free while it runs.

    A product and a sum may become one rounding (FMA). Else the arithmetic is as written: NaN stays NaN, and vectors of
    any width give the same.
    """
    found = _compiled(function, {"contract"})
    # No file can be written beside the code or in the user's folder, or the code's path is no text in this locale.
    with contextlib.suppress(RuntimeError, UnicodeEncodeError):
        found._cache = _Cache(function)  # type: ignore[no-untyped-call] # as numba's own `cache=True`
    return found


def inlined(function: Callable[..., Any]) -> Any:
    """The same, for what kernels are made of: it becomes part of every kernel that calls it.

    A call that stayed one would run the part as compiled by itself in a process that compiles, and as compiled once
    more within its kernel in one that reads the kernel from the disk: other roundings (FMA), so other last bits.
    """
    return _compiled(function, {"contract"})


def reduction(function: Callable[..., Any]) -> Any:
    """A part whose loops add along a vector: in any order, else they could not be vectorised."""
    return _compiled(function, {"contract", "reassoc", "nsz"})


class _Cache(FunctionCache):
    """numba's, but a full disk or a damaged file ends nothing: what is not kept is compiled again."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except Exception:  # noqa: BLE001 - a damaged pickle may raise any
            with contextlib.suppress(OSError):
                self.flush()  # type: ignore[no-untyped-call]
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]


def _compiled(function: Callable[..., Any], fastmath: set[str]) -> Any:
    return numba.njit(nogil=True, error_model="numpy", fastmath=fastmath, forceinline=True)(function)


def inline(function: Callable[..., Any]) -> Any:
    """A function for kernels that writes LLVM's instructions itself: its types, and who builds them."""
    return intrinsic(function)
