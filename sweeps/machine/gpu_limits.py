"""The limits of methods on a GPU: sharing by measured memory; the fork server and bundles of finals are off there.

The fork server was never run on a GPU; bundles of finals were, and change what a final gives. `doctor` and the
documents say so; a limit changes with a measurement on a GPU, with the figures in `docs/log.md`.
"""

from __future__ import annotations

FORKS_WORKERS = False
"""Whether workers may be forks of one process (`on_ray.fork_server`) on a machine with GPUs."""

MOST_TRIALS = 8
"""The most trials that `--gpus-per-trial auto` lets share one GPU; each has a process and a CUDA context of its own.
Eight that fine-tune all-MiniLM-L6-v2 train 7.7 times as many examples a second as one on an H100, ten on an H200 took
about as long as one (`docs/log.md`, 2026-11-26)."""

MARGIN = 0.5
"""Memory that a sharing trial gets beyond what was measured of it, as a part of that: torch fragments its memory."""

BUNDLES_FINALS = False
"""Whether finals of a frozen encoder, each with its own seed and order of data, train side by side on a GPU.

Four of ESIM did in 2.8 times less of an H100 than one by one (`docs/log.md`, 2026-11-26). But a final's dropout masks
depend on the width that the others' batches give its own: two of four had other scores, by more than a point, than by
themselves, and than `train` of their export gives."""


def in_words() -> str:
    """The limits, for `doctor` and the screen."""
    share = f"with `--gpus-per-trial auto` at most {MOST_TRIALS} trials share a GPU, each with {MARGIN:.0%} more memory"
    return f"{share} than was measured of it; off: forked workers (never run on a GPU), finals side by side"
