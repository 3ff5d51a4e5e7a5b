"""Limits on a GPU: how many trials share it by measured memory, and no finals side by side.

`doctor` and the guides show them. Change a limit only after a measurement on a GPU, with the figures in
`docs/internals/log.md`.
"""

from __future__ import annotations

MOST_TRIALS = 8
"""The most trials that share one GPU under `--gpus-per-trial auto`; each has its own process and CUDA context.
Eight that fine-tune all-MiniLM-L6-v2 train 7.7 times as many examples a second as one on an H100, ten on an H200 took
about as long as one (`docs/internals/log.md`, 2026-11-26)."""

MARGIN = 0.5
"""Extra memory of a trial that shares a GPU, as a part of the measured need: torch fragments its memory."""

BUNDLES_FINALS = False
"""Whether finals of a frozen encoder, each with its own seed and order of data, train side by side on a GPU.

Four finals of ESIM took 2.8 times less of an H100 side by side than alone (`docs/internals/log.md`, 2026-11-26). But a
final's dropout masks depend on the width that the others' batches give its own: two of the four differed by more than a
point from their scores alone, which `train` of their export gives."""


def in_words() -> str:
    """The limits, for `doctor` and the screen."""
    share = f"with `--gpus-per-trial auto` at most {MOST_TRIALS} trials share a GPU, each with {MARGIN:.0%} more memory"
    return f"{share} than measured; off: finals side by side"
