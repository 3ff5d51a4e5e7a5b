"""MLflow's empty SQLite store, kept for the next storage folder: MLflow takes 1.5 s of processor time to make one.

It makes its tables by dozens of migrations, one after the other. The result depends on MLflow's version alone, so the
first one that is made on a machine is copied to the user's cache, without its default experiment, whose place is a
folder of that sweep; MLflow makes a new one.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from uuid import uuid4

import mlflow

from meltpoint.adapters.atomic import give_usual_mode, replacing
from meltpoint.sweeps.tracking_uri import sqlite_file

EXPERIMENTS = ("experiment_tags", "experiments")
"""The tables that hold something in a store without runs."""


def template() -> Path:
    """Where this version's empty store is kept: in $XDG_CACHE_HOME, or ~/.cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "meltpoint" / f"mlflow-{mlflow.__version__}.db"


def put(uri: str) -> bool:
    """Put a copy of the kept store where MLflow would make one.

    Returns:
        Whether MLflow has to make it: there is none yet, and none is kept. `keep` may follow then.
    """
    path = sqlite_file(uri)
    if path is None or path.exists():
        return False
    kept = template()
    try:
        if not _is_sound(kept):
            return True
        beside = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
        try:
            beside.touch()  # SQLite would make it without write permission for the group, whatever the umask
            _copy(kept, beside)
            os.link(beside, path)  # unlike a rename, it never replaces what another sweep has put there meanwhile
        finally:
            beside.unlink(missing_ok=True)
    except (OSError, sqlite3.Error):  # MLflow's own way is there still, and says what is wrong with the folder
        return not path.exists()
    return False


def keep(uri: str) -> None:
    """Keep a copy of a store that MLflow has just made, before anything is logged; not to be able to is no harm."""
    path = sqlite_file(uri)
    assert path is not None, "only SQLite stores are kept"
    with contextlib.suppress(OSError):
        give_usual_mode(path)
    with contextlib.suppress(OSError, sqlite3.Error), replacing(template()) as beside:
        _copy(path, beside)
        with contextlib.closing(sqlite3.connect(beside)) as copy:
            for table in EXPERIMENTS:
                copy.execute(f"DELETE FROM {table}")
            copy.commit()
            copy.execute("VACUUM")


def _is_sound(kept: Path) -> bool:
    """Whether there is a kept store that can be read; a damaged one is removed."""
    if not kept.exists():
        return False
    try:
        with contextlib.closing(sqlite3.connect(f"{kept.absolute().as_uri()}?mode=ro", uri=True)) as store:
            made = store.execute("SELECT version_num FROM alembic_version").fetchone()
            if made and store.execute("PRAGMA quick_check").fetchone() == ("ok",):
                return True
    except sqlite3.DatabaseError:
        pass
    kept.unlink(missing_ok=True)
    return False


def _copy(source: Path, target: Path) -> None:
    """A copy by SQLite itself, which takes what its journal still holds too."""
    with contextlib.closing(sqlite3.connect(source)) as one, contextlib.closing(sqlite3.connect(target)) as other:
        one.backup(other)
