"""What a sweep is: the part of the command line that its results depend on."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

import meltpoint
from meltpoint.tasks.core.words import unknown

Searcher = Literal["tpe", "random", "grid"]
SEARCHERS = ("tpe", "random", "grid")


class SweepSpec(BaseModel):
    """A sweep's specification; a name stands for one specification for good.

    Attributes:
        name: its folder under the storage, and its MLflow experiment.
        encoders, modes, tasks: words; the matrix is their product.
        head: the head of every cell, or None for each mode's own.
        trials: settings to search, each cell.
        seeds: seeds to re-run each cell's best setting with.
        searcher: "tpe", "random" or "grid".
        space: a space file for every cell, or None for the shipped ones.
        overrides: `--set` texts.
        data_dir, max_train_examples, test_from: see `tasks.core.task.DataSpec`.
        seed: of the searchers and of every search trial; finalists take seed, seed + 1, ….
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    encoders: tuple[str, ...]
    modes: tuple[str, ...]
    tasks: tuple[str, ...]
    head: str | None = None
    trials: int = 16
    seeds: int = 5
    searcher: Searcher = "tpe"
    space: str | None = None
    overrides: tuple[str, ...] = ()
    data_dir: str | None = None
    max_train_examples: int | None = None
    test_from: str | None = None
    seed: int = 0

    def differences(self, other: SweepSpec) -> list[str]:
        """`field: this value, not that one`, for each field that differs.

        Paths do not count: moved data is the same data (its fingerprint is compared), and so is a moved space file.
        """
        mine, theirs = self.model_dump(), other.model_dump()
        paths = {"data_dir", "space"}
        return [
            f"{key} {theirs[key]!r} → {mine[key]!r}" for key in mine if key not in paths and mine[key] != theirs[key]
        ]


CACHE_BYTES = 50 * 10**9
"""Room for the frozen states of, say, BERT-base (13 layers of 768, bf16) over 2.5 million pieces."""

CACHE_KEEP_BYTES = 200 * 10**6
"""What a finished sweep leaves of them: some small tasks. Encoding again costs less than an epoch without a cache."""


@dataclass(frozen=True)
class Resources:
    """Where and with what a sweep runs; nothing that its numbers are chosen by.

    Attributes:
        storage: `--storage`.
        tracking_uri: the MLflow server or store, or None for the SQLite store in the storage folder.
        address: a running Ray cluster, or None for a local one.
        cpus, gpus: what one trial gets; a GPU can be shared by fractions, and "auto" measures each cell's (`packing`).
        time_budget_seconds: how long the search may take, or None.
        retry_failed: run failed trials once more.
        cache_bytes, cache_overflow: room for frozen states, and what to do with those that do not fit
            (`features.budget.Budget`).
        cache_keep_bytes: what stays of them once the sweep is done.
    """

    storage: str = "runs"
    tracking_uri: str | None = None
    address: str | None = None
    cpus: float = 1.0
    gpus: float | Literal["auto"] = 0.0
    time_budget_seconds: float | None = None
    retry_failed: bool = False
    cache_bytes: int = CACHE_BYTES
    cache_overflow: Literal["on_the_fly", "bf16"] = "on_the_fly"
    cache_keep_bytes: int = CACHE_KEEP_BYTES


def check(spec: SweepSpec) -> None:
    """Refuse what can be refused without opening any data.

    Raises:
        ValueError: one line with the remedy.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", spec.name):
        raise ValueError(f"--name {spec.name!r}: use letters, digits, '.', '_' and '-', at most 100 of them.")
    for option, words in (("--encoder", spec.encoders), ("--mode", spec.modes), ("--task", spec.tasks)):
        if not words:
            raise ValueError(f"{option} names nothing; `meltpoint list {option[2:]}s` shows what there is.")
        if len(set(words)) < len(words):
            raise ValueError(f"{option} names the same word twice: {', '.join(words)}.")
    for option, count in (("--trials", spec.trials), ("--seeds", spec.seeds)):
        if count < 1:
            raise ValueError(f"{option} {count}: at least 1.")
    if spec.searcher not in SEARCHERS:
        raise unknown(spec.searcher, "searcher", SEARCHERS)
    if spec.max_train_examples is not None and spec.max_train_examples < 1:
        raise ValueError(f"--max-train-examples {spec.max_train_examples}: at least 1.")


@cache
def code_version() -> str:
    """Meltpoint's version and a digest of the code that a trial's numbers depend on (`adapters/`, `tasks/`)."""
    root = Path(meltpoint.__path__[0])
    files = sorted(path for room in ("adapters", "tasks") for path in (root / room).rglob("*.py"))
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return f"{meltpoint.__version__}+{digest.hexdigest()[:8]}"
