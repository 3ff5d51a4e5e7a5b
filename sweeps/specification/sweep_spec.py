"""The specification of a sweep: the part of the command line that its results depend on."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from meltpoint.adapters.families import encoder_word, short_name
from meltpoint.sweeps.ledger.records import CellKey, cell_key
from meltpoint.sweeps.specification.sweep_options import MODELS, MOST_BY_GP, SEEDS, TRIALS, Searcher

MOST_TRIALS, MOST_SEEDS = 1_000_000, 10_000
"""The limits of a cell, far beyond any real sweep. A larger number is a typo, and its plans would fill the memory."""


class Block(BaseModel):
    """Cells of a sweep that share a head and overrides: a product of encoders, modes and tasks.

    Attributes:
        name: a few words for messages; "" for the only block of a plain command line.
        encoders, modes, tasks: names, or task files; an encoder may have a short name (`NAME=ENCODER`). The cells are
            their product.
        head: a head's name, or None for each mode's default.
        variant: part of its cells' names, if the same encoder, mode and task occur in several blocks.
        overrides: `--set` options.
        trials: number of settings to search per cell.
        seeds: number of seeds with which each cell's best setting is run again.
        searcher: its cells' searcher; None for the sweep's.
        train_examples: the size of its cells' nested sample of train (`--train-sizes`); 0 for the sweep's own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = ""
    encoders: tuple[str, ...]
    modes: tuple[str, ...]
    tasks: tuple[str, ...]
    head: str | None = None
    variant: str = ""
    overrides: tuple[str, ...] = ()
    trials: int = TRIALS
    seeds: int = SEEDS
    searcher: Searcher | None = None
    train_examples: int = 0

    def keys(self) -> list[CellKey]:
        """The keys of its cells, with names as given by the user: a task file is a path here."""
        product = itertools.product(map(short_name, self.encoders), self.modes, self.tasks)
        return [cell_key(encoder, mode, task, self.variant) for encoder, mode, task in product]


class SweepSpec(BaseModel):
    """The specification of a sweep, which does not change during the sweep.

    Attributes:
        name: the name of its folder under the storage, and of its MLflow experiment.
        encoders, modes, tasks: names; the matrix is their product. Empty if there are blocks.
        head: the head of every cell, or None for each mode's default.
        trials: number of settings to search per cell.
        seeds: number of seeds with which each cell's best setting is run again.
        searcher: as `--searcher`, for blocks that name none.
        space: a space file for every cell, or None for the shipped ones.
        overrides: `--set` options.
        data_dir, max_train_examples, max_dev_examples, test_from: see `tasks.core.task.DataSpec`; the third is None in
            files of older versions.
        seed: for the searchers and every search trial; finalists use the seeds `seed`, `seed + 1`, ….
        blocks: the blocks of a specification file (`spec_files`), which replace the product above; their heads, trials
            and seeds apply, and their overrides include those of the command line.
        origin: the name of the specification file; tables use it to find a paper's numbers.
        replaced: `NAME=ENCODER` options: the encoder to use for an encoder's name in the file.
        left_out: encoders in the file whose location was not given, so that their cells are left out.
        notes: the file's notes on what its cells compare, for tables.
        default_finals: whether the published setting is also run with the finals' seeds and scored on test; False in
            files of older versions.
        split: "dev" to leave test closed: finals are scored only on dev, as in a paper's table of dev scores.
        margin: a fraction; modes within it count as equal for the recommendation.
        price_per_hour: of a GPU, or of a trial's CPUs; None if reports show no price.
        race: whether cells that can no longer win get no further trials (`search.early_ends`).
        auto_trials: whether a search ends before `trials` if more of them would gain little.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    encoders: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    head: str | None = None
    trials: int = TRIALS
    seeds: int = SEEDS
    searcher: Searcher = "auto"
    space: str | None = None
    overrides: tuple[str, ...] = ()
    data_dir: str | None = None
    max_train_examples: int | None = None
    max_dev_examples: int | Literal["auto"] | None = None
    test_from: str | None = None
    seed: int = 0
    blocks: tuple[Block, ...] = ()
    origin: str = ""
    replaced: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    default_finals: bool = False
    split: Literal["dev", "test"] = "test"
    margin: float = 0.01
    price_per_hour: float | None = None
    race: bool = False
    auto_trials: bool = False

    def __repr__(self) -> str:
        """The fields that differ from their defaults; blocks and notes as counts."""
        given = self.model_dump(exclude_defaults=True, exclude={"blocks", "notes"})
        given |= {name: len(value) for name in ("blocks", "notes") if (value := getattr(self, name))}
        return f"SweepSpec({', '.join(f'{name}={value!r}' for name, value in given.items())})"

    def products(self) -> tuple[Block, ...]:
        """The blocks that make up the matrix; for a plain command line, its product as the only block."""
        product = {name: getattr(self, name) for name in PRODUCT}
        return self.blocks or (Block.model_validate(product),)

    def train_examples_of(self, variant: str) -> int:
        """The size of the nested sample of train that the cells of a variant train on; 0 for the sweep's own."""
        return next((block.train_examples for block in self.blocks if block.variant == variant), 0)

    def searcher_of(self, block: Block) -> Searcher:
        """The searcher of a block's cells; `auto` is a Gaussian process for few trials, else TPE."""
        searcher = block.searcher or self.searcher
        if searcher != "auto":
            return searcher
        return "gp" if block.trials <= MOST_BY_GP else "tpe"

    def task_words(self) -> tuple[str, ...]:
        """The tasks as given by the user (names or files), each once."""
        return tuple(dict.fromkeys(word for block in self.products() for word in block.tasks))

    def encoder_words(self) -> dict[str, str]:
        """Short name → location, for the encoders that have a short name."""
        words = dict.fromkeys(word for block in self.products() for word in block.encoders)
        return {short_name(word): encoder_word(word) for word in words if short_name(word) != word}

    def named_encoder(self, name: str) -> str:
        """An encoder as given by the user, found by its name in this sweep: `NAME=ENCODER`, or the name itself."""
        words = self.encoder_words()
        return f"{name}={words[name]}" if name in words else name

    def stands_for(self, encoder: str) -> str:
        """The name in the specification file that an encoder replaces; the encoder's own name if it replaces none."""
        names = {replacement: name for name, replacement in self.replacements().items()}
        return names.get(encoder, encoder)

    def replacements(self) -> dict[str, str]:
        """Encoder's name in the specification file → the encoder to use for it."""
        return {word: encoder for word, _, encoder in (text.partition("=") for text in self.replaced)}

    def missing(self) -> list[str]:
        """One line for each encoder of the specification file that is left out, with the remedy."""
        return [
            f"Left out: {word}, because its location is unknown. Add --with {word}=FOLDER, now or later; its cells "
            "join under the same --name."
            for word in self.left_out
        ]

    def growth(self, other: SweepSpec) -> tuple[str, ...]:
        """The additions of this specification to an earlier one under the same name: more trials, seeds or cells."""
        kept = set(self.differences(other, may_grow=True))
        lines = (line for line in self.differences(other) if line not in kept)
        return tuple(line for line in lines if not line.startswith("searcher "))  # it needs no --grow

    def differences(self, other: SweepSpec, may_grow: bool = False) -> list[str]:
        """The differences from another specification, one text per field: `field OTHER → THIS`, `tasks + NEW`.

        Paths are not compared: data, and encoders with short names, are compared by their fingerprints, and spaces by
        their contents. Finals of the published setting may be added or dropped later, and the margin and the early ends
        of searches may change: no other trial depends on them. Test may be closed later but not opened later, because
        finals that were scored without it are not scored again.

        Args:
            other: the earlier specification.
            may_grow: whether to ignore more trials, seeds and cells, on which no earlier trial depends either.
        """
        mine, theirs = (
            {
                **spec.model_dump(),
                "encoders": tuple(map(short_name, spec.encoders)),
                "searcher": spec.searcher_of(spec.products()[0]),
            }
            for spec in (self, other)
        )
        ignored = {"data_dir", "space", "blocks", "replaced", "left_out", "notes", "default_finals"}
        ignored |= {"price_per_hour", *EARLY_ENDS}
        ignored |= {"split"} if self.split == "dev" else set()
        # The fingerprint of the data shows whether the default sample leaves examples out.
        ignored |= {"max_dev_examples"} if {self.max_dev_examples, other.max_dev_examples} == {None, "auto"} else set()
        has_blocks = bool(self.blocks or other.blocks)
        ignored |= {*PRODUCT, "searcher"} if has_blocks else set()
        pairs = [(key, theirs[key], mine[key]) for key in mine if key not in ignored]
        fields = [_change(*pair) for pair in pairs if pair[1] != pair[2] and not (may_grow and has_grown(*pair))]
        return fields + (self._cell_differences(other, may_grow) if has_blocks else [])

    def _cell_differences(self, other: SweepSpec, may_grow: bool) -> list[str]:
        """The cells that are missing, new or different. New cells of encoders that were left out before are allowed."""
        mine, theirs = ({key: block for block in spec.products() for key in block.keys()} for spec in (self, other))  # noqa: SIM118
        joining = {encoder for word, encoder in self.replacements().items() if word in other.left_out}
        lines = [f"{'.'.join(key)} is gone" for key in theirs if key not in mine]
        added = [key for key in mine if key not in theirs and key[0] not in joining]
        lines += [f"{'.'.join(key)} is new" for key in added if not may_grow]
        for key in mine.keys() & theirs.keys():
            new, old = mine[key], theirs[key]
            fields = ("head", "overrides", "trials", "seeds")
            pairs = [(field, getattr(old, field), getattr(new, field)) for field in fields]
            pairs.append(("searcher", other.searcher_of(old), self.searcher_of(new)))
            changed = [pair for pair in pairs if pair[1] != pair[2] and not (may_grow and has_grown(*pair))]
            lines += [_change(*pair) for pair in changed]
        return sorted(dict.fromkeys(lines))


DEFAULT = "default"
"""The role of the published setting's finals; like a variant, it is a part of their file names."""

PRODUCT = ("encoders", "modes", "tasks", "head", "overrides", "trials", "seeds")
"""The fields that the only block of a plain command line takes from the specification."""


EARLY_ENDS = ("margin", "race", "auto_trials")
"""The fields by which a search may end before its last trial."""

GROWING = ("trials", "seeds", "encoders", "modes", "tasks")
"""The fields that may grow under the same name, because no earlier trial depends on them."""


def has_grown(field: str, before: Any, now: Any) -> bool:
    """True if a field contains all its earlier contents, and more, or if a model continues another one's search."""
    if field == "searcher":
        return {before, now} <= MODELS
    if field not in GROWING:
        return False
    return set(before) < set(now) if isinstance(before, tuple) else before < now


def _change(field: str, before: Any, now: Any) -> str:
    """A change of a field, as text."""
    if isinstance(before, tuple) and has_grown(field, before, now):
        return f"{field} + {', '.join(word for word in now if word not in before)}"
    return f"{field} {before!r} → {now!r}"


def check(spec: SweepSpec) -> None:
    """Check a specification as far as possible without reading data.

    Raises:
        ValueError: one line with the remedy.
    """
    check_name(spec.name)
    if _is_reserved(spec.name):
        raise ValueError(f"--name {spec.name}: that name is reserved by Meltpoint or MLflow; choose another.")
    for block in spec.products():
        with within(block):
            _check_block(block)
            if spec.default_finals and block.variant == DEFAULT:
                raise ValueError(
                    f"variant {DEFAULT!r}: the published setting's finals use that word in their file names; choose "
                    "another variant, or add --no-default-finals."
                )
    _check_clashes(spec.products())
    for word, size in (("train", spec.max_train_examples), ("dev", spec.max_dev_examples)):
        if isinstance(size, int) and size < 1:
            raise ValueError(f"--max-{word}-examples {size}: write a number of at least 1.")


def check_name(name: str) -> None:
    """Check a sweep's name: it becomes a folder in the storage, and must not lead out of it.

    Raises:
        ValueError: one line with the remedy.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ValueError(f"--name {name!r}: use at most 100 letters, digits, '.', '_' and '-'.")


def _is_reserved(name: str) -> bool:
    """True if the storage folder or MLflow uses a name itself. Case is ignored, as on some file systems."""
    lower = name.lower()
    return lower in ("cache", "mlartifacts") or lower.startswith("mlflow.db") or name == "Default" or name.endswith(".")


def _check_block(block: Block) -> None:
    """Check a block for missing cells, repeated names and invalid numbers."""
    for option, words in (("--encoder", block.encoders), ("--mode", block.modes), ("--task", block.tasks)):
        if not words:
            raise ValueError(f"{option} is empty; `meltpoint list {option[2:]}s` shows the choices.")
        if len(set(words)) < len(words):
            raise ValueError(f"{option} names the same word twice: {', '.join(words)}; drop one.")
    if len({short_name(word) for word in block.encoders}) < len(block.encoders):
        raise ValueError(f"--encoder gives two encoders the same name: {', '.join(block.encoders)}; rename one.")
    for option, count, most in (("--trials", block.trials, MOST_TRIALS), ("--seeds", block.seeds, MOST_SEEDS)):
        if not 1 <= count <= most:
            raise ValueError(f"{option} {count}: write a number from 1 to {most}.")
    if block.variant and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", block.variant):
        raise ValueError(f"variant {block.variant!r}: use at most 40 letters, digits, '_' and '-'.")


def _check_clashes(blocks: tuple[Block, ...]) -> None:
    """Check that no two blocks have the same cell, because their trials could not be distinguished."""
    owners: dict[CellKey, Block] = {}
    for block in blocks:
        for key in block.keys():  # noqa: SIM118 - a block is not a mapping
            other = owners.setdefault(key, block)
            if other is not block:
                raise ValueError(
                    f"blocks '{other.name}' and '{block.name}' both have the cell {'.'.join(key)}; "
                    "give one of them a `variant: WORD`."
                )


@contextmanager
def within(block: Block) -> Iterator[None]:
    """Prefix the message of a `ValueError` with the block's name."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"block '{block.name}': {error}" if block.name else str(error)) from None
