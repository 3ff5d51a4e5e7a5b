"""What a worker process does as soon as Ray has started it, before any trial: the imports that take seconds.

Ray runs it in the workers that a local cluster starts by itself, while the driver still opens the data.
"""

from __future__ import annotations

import os
from pathlib import Path

WORKER_HOOK = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"  # ray 2.60, ray._private.ray_constants
FOLDER, WHAT = "MELTPOINT_WARM_FOLDER", "MELTPOINT_WARM_ENCODER"


def warm_up() -> None:
    """Import what training needs, load the encoder, and note that it is done."""
    note = Path(os.environ[FOLDER]) / str(os.getpid())
    try:
        note.with_suffix(".begun").touch()
        _import(os.environ[WHAT])
        note.with_suffix(".warm").touch()
    except Exception:  # noqa: BLE001 - the trial comes upon the same trouble, and it has an outcome to tell it by
        return


def _import(what: str) -> None:
    import ray.tune  # noqa: F401

    from meltpoint.sweeps.worker import warm_encoder

    word, kind = what.rsplit("|", 1)
    warm_encoder(word, kind)


def warm(folder: Path) -> int:
    """How many workers are ready."""
    return sum(1 for _ in folder.glob("*.warm"))


def has_begun(folder: Path) -> bool:
    """Whether any worker has begun."""
    return any(folder.glob("*.begun"))
