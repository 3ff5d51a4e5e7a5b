"""How the kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba.extending import intrinsic


def compiled(function: Callable[..., Any]) -> Any:
    """Compile when it is first called, and keep what was compiled on disk; Python's lock is free while it runs.

    A product and a sum may become one rounding (FMA). Else the arithmetic is as written: NaN stays NaN, and vectors of
    any width give the same.
    """
    return _compiled(function, {"contract"})


def summing(function: Callable[..., Any]) -> Any:
    """The same, for loops that add along a vector: in any order, else they could not be vectorised."""
    return _compiled(function, {"contract", "reassoc", "nsz"})


def _compiled(function: Callable[..., Any], fastmath: set[str]) -> Any:
    options = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither beside the code nor in the user's folder can a file be written: compile each time
        return numba.njit(**options)(function)


def inline(function: Callable[..., Any]) -> Any:
    """A function for kernels that writes LLVM's instructions itself: its types, and who builds them."""
    return intrinsic(function)
