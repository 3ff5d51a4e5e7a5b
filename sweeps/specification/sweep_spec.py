"""What a sweep is: the part of the command line that its results depend on."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from meltpoint.sweeps.ledger.records import CellKey, cell_key
from meltpoint.tasks.core.registry import unknown

Searcher = Literal["tpe", "random", "grid"]
Overflow = Literal["on_the_fly", "bf16"]
SEARCHERS = ("tpe", "random", "grid")


class Block(BaseModel):
    """Cells of a sweep that share a head and a space: a product of encoders, modes and tasks.

    Attributes:
        name: a few words for messages; "" for the one block of a plain command line.
        head: or None for each mode's own.
        variant: a word that becomes part of its cells' names, where the same encoder, mode and task come twice.
        overrides: `--set` texts.
        trials: settings to search, each cell.
        seeds: seeds to re-run each cell's best setting with.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = ""
    encoders: tuple[str, ...]
    modes: tuple[str, ...]
    tasks: tuple[str, ...]
    head: str | None = None
    variant: str = ""
    overrides: tuple[str, ...] = ()
    trials: int = 16
    seeds: int = 5

    def keys(self) -> list[CellKey]:
        """Its cells, by the words as given: a user's task file is a path here."""
        product = itertools.product(self.encoders, self.modes, self.tasks)
        return [cell_key(encoder, mode, task, self.variant) for encoder, mode, task in product]


class SweepSpec(BaseModel):
    """A sweep's specification; a name stands for one specification for good.

    Attributes:
        name: its folder under the storage, and its MLflow experiment.
        encoders, modes, tasks: words; the matrix is their product. Empty where there are blocks.
        head: the head of every cell, or None for each mode's own.
        trials: settings to search, each cell.
        seeds: seeds to re-run each cell's best setting with.
        searcher: "tpe", "random" or "grid".
        space: a space file for every cell, or None for the shipped ones.
        overrides: `--set` texts.
        data_dir, max_train_examples, test_from: see `tasks.core.task.DataSpec`.
        seed: of the searchers and of every search trial; finalists take seed, seed + 1, ….
        blocks: the products that a specification file (`spec_files`) names in place of the one above; its heads, trials
            and seeds count, and its overrides hold those of the command line too.
        origin: that file's name, by which tables find a paper's numbers.
        replaced: `WORD=ENCODER`: which encoder stands for which word of the file.
        left_out: encoders of the file that nobody said where to find, so that their cells are missing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    encoders: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
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
    blocks: tuple[Block, ...] = ()
    origin: str = ""
    replaced: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def products(self) -> tuple[Block, ...]:
        """The products whose union is the matrix: the blocks, or of a plain command line the one that it names."""
        own = {name: getattr(self, name) for name in PRODUCT}
        return self.blocks or (Block.model_validate(own),)

    def task_words(self) -> tuple[str, ...]:
        """Every task's word, each once."""
        return tuple(dict.fromkeys(word for block in self.products() for word in block.tasks))

    def stands_for(self, encoder: str) -> str:
        """The word of the specification file that an encoder stands for; the encoder itself where it replaces none."""
        words = {found: word for word, found in self.replacements().items()}
        return words.get(encoder, encoder)

    def replacements(self) -> dict[str, str]:
        """Word of the specification file → the encoder in its place."""
        return {word: encoder for word, _, encoder in (text.partition("=") for text in self.replaced)}

    def missing(self) -> list[str]:
        """What stands in the specification file and is not searched, a line each."""
        return [
            f"Left out: {word}, because nothing says where it lies. Add --with {word}=FOLDER, now or later; its cells "
            "join under the same --name."
            for word in self.left_out
        ]

    def differences(self, other: SweepSpec) -> list[str]:
        """`field: this value, not that one`, for each field that differs.

        Paths do not count: moved data is the same data (its fingerprint is compared), and so is a moved space file.
        """
        mine, theirs = self.model_dump(), other.model_dump()
        passed = {"data_dir", "space", "blocks", "replaced", "left_out"}
        has_blocks = bool(self.blocks or other.blocks)
        passed |= set(PRODUCT) if has_blocks else set()
        found = [
            f"{key} {theirs[key]!r} → {mine[key]!r}" for key in mine if key not in passed and mine[key] != theirs[key]
        ]
        return found + (self._cell_differences(other) if has_blocks else [])

    def _cell_differences(self, other: SweepSpec) -> list[str]:
        """Cells that are gone, new, or have other settings. Cells of an encoder that was left out before may join."""
        mine, theirs = ({key: block for block in spec.products() for key in block.keys()} for spec in (self, other))  # noqa: SIM118
        joining = {encoder for word, encoder in self.replacements().items() if word in other.left_out}
        found = [f"{'.'.join(key)} is gone" for key in theirs if key not in mine]
        found += [f"{'.'.join(key)} is new" for key in mine if key not in theirs and key[0] not in joining]
        for key in mine.keys() & theirs.keys():
            new, old = mine[key], theirs[key]
            fields = ("head", "overrides", "trials", "seeds")
            pairs = [(field, getattr(old, field), getattr(new, field)) for field in fields]
            found += [f"{field} {before!r} → {now!r}" for field, before, now in pairs if before != now]
        return sorted(dict.fromkeys(found))


PRODUCT = ("encoders", "modes", "tasks", "head", "overrides", "trials", "seeds")
"""The fields that a plain command line's only block takes over."""


CACHE_BYTES = 50 * 10**9
"""Room for the frozen states of, say, BERT-base (13 layers of 768, bf16) over 2.5 million pieces."""

CACHE_KEEP_BYTES = 200 * 10**6
"""What a finished sweep leaves of them: some small tasks. Encoding again costs less than an epoch without a cache."""


@dataclass(frozen=True)
class Resources:
    """Where and with what a sweep runs; nothing that its numbers are chosen by.

    What of it may change a number is on record: threads and GPU decide last bits (`HardwareRecord`), as does whether
    frozen states fit the cache (the trial's notes). `cache_overflow` may round those states: it stays as it was.

    Attributes:
        storage: `--storage`.
        tracking_uri: the MLflow server or store, or None for the SQLite store in the storage folder.
        address: a running Ray cluster, or None for a local one.
        cpus, gpus: what one trial gets; a GPU can be shared by fractions. "auto" is 0 where Ray has no GPU, and a
            measured share a cell where it has (`placement`).
        time_budget_seconds: how long the search may take, or None.
        retry_failed: run failed trials once more.
        cache_bytes, cache_overflow: room for frozen states, and what to do with those that do not fit
            (`features.budget.Budget`).
        cache_keep_bytes: what stays of them once the sweep is done.
        mix_code_versions: go on with a sweep that another version of the code has begun; its trials are kept.
    """

    storage: str = "runs"
    tracking_uri: str | None = None
    address: str | None = None
    cpus: float = 1.0
    gpus: float | Literal["auto"] = "auto"
    time_budget_seconds: float | None = None
    retry_failed: bool = False
    cache_bytes: int = CACHE_BYTES
    cache_overflow: Overflow = "on_the_fly"
    cache_keep_bytes: int = CACHE_KEEP_BYTES
    mix_code_versions: bool = False


def check(spec: SweepSpec) -> None:
    """Refuse what can be refused without opening any data.

    Raises:
        ValueError: one line with the remedy.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", spec.name):
        raise ValueError(f"--name {spec.name!r}: use letters, digits, '.', '_' and '-', at most 100 of them.")
    if _is_reserved(spec.name):
        raise ValueError(f"--name {spec.name}: that name is kept for Meltpoint's or MLflow's own use; take another.")
    for block in spec.products():
        with within(block):
            _check_block(block)
    _check_clashes(spec.products())
    if spec.searcher not in SEARCHERS:
        raise unknown(spec.searcher, "searcher", SEARCHERS)
    if spec.max_train_examples is not None and spec.max_train_examples < 1:
        raise ValueError(f"--max-train-examples {spec.max_train_examples}: at least 1.")


def _is_reserved(name: str) -> bool:
    """Whether a storage folder, or MLflow, has a thing of its own under a name; file systems may ignore case."""
    lower = name.lower()
    return lower in ("cache", "mlartifacts") or lower.startswith("mlflow.db") or name == "Default" or name.endswith(".")


def _check_block(block: Block) -> None:
    for option, words in (("--encoder", block.encoders), ("--mode", block.modes), ("--task", block.tasks)):
        if not words:
            raise ValueError(f"{option} names nothing; `meltpoint list {option[2:]}s` shows what there is.")
        if len(set(words)) < len(words):
            raise ValueError(f"{option} names the same word twice: {', '.join(words)}.")
    for option, count in (("--trials", block.trials), ("--seeds", block.seeds)):
        if count < 1:
            raise ValueError(f"{option} {count}: at least 1.")
    if block.variant and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", block.variant):
        raise ValueError(f"variant {block.variant!r}: use letters, digits, '_' and '-', at most 40 of them.")


def _check_clashes(blocks: tuple[Block, ...]) -> None:
    """Refuse two blocks with one cell: nothing would tell their trials apart."""
    owners: dict[CellKey, Block] = {}
    for block in blocks:
        for key in block.keys():  # noqa: SIM118 - a block is no mapping
            other = owners.setdefault(key, block)
            if other is not block:
                raise ValueError(
                    f"blocks '{other.name}' and '{block.name}' both have the cell {'.'.join(key)}; "
                    "give one of them a `variant: WORD`."
                )


@contextmanager
def within(block: Block) -> Iterator[None]:
    """A mistake in a block of a specification file says which block it is in."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"block '{block.name}': {error}" if block.name else str(error)) from None
