"""Tests of the CPU kernels; nothing is collected here where `adapters/cpu` or the extra `cpu` is not installed."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("meltpoint.adapters.cpu") and find_spec("numba") else ["test_*.py"]
