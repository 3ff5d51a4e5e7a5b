"""The limits of methods that were never measured on a GPU: fork server, sharing by measured memory, bundles of finals.

Each is conservative where there are GPUs. `doctor` and the documents say so; a limit changes with a measurement on a
GPU, with the figures in `docs/log.md`.
"""

from __future__ import annotations

FORKS_WORKERS = False
"""Whether workers may be forks of one process (`on_ray.fork_server`) on a machine with GPUs."""

MOST_TRIALS = 2
"""The most trials that `--gpus-per-trial auto` lets share one GPU; each has a process and a CUDA context of its own."""

MARGIN = 0.5
"""Memory that a sharing trial gets beyond what was measured of it, as a part of that: torch fragments its memory."""

BUNDLES_FINALS = False
"""Whether finals of a frozen encoder, each with its own seed and order of data, train side by side on a GPU."""


def in_words() -> str:
    """The limits, for `doctor` and the screen."""
    share = f"with `--gpus-per-trial auto` at most {MOST_TRIALS} trials share a GPU, each with {MARGIN:.0%} more memory"
    return f"{share} than was measured of it; a final trains by itself; workers are not forked"
