"""How often Python looks for garbage: importing torch, transformers, Ray and MLflow makes a million objects that stay.

With Python's own thresholds a third of the imports' time went into looking through them again and again (5.0 s instead
of 3.4 in the driver, 4.6 instead of 3.4 in a worker), and another second at the interpreter's end.
"""

from __future__ import annotations

import gc

OBJECTS = 100_000
"""New objects until the next look; Python's own are 700. A few of them may hold a model's tensors: where models come
and go (workers, scoring), `memory.drop_garbage` looks after each."""


def raise_gc_threshold() -> None:
    """Look for garbage after many new objects only; for a process that is about to import."""
    gc.set_threshold(OBJECTS)


def freeze_heap() -> None:
    """Never again look through what there is now: imports are done, or the process ends. A fork then copies less."""
    gc.freeze()
