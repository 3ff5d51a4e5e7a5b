"""Specification files: experiments as YAML, a list of blocks, each a product of encoders × modes × tasks with a head.

The shipped files reproduce papers (`search_spaces/papers/*.yaml`); docs/papers.md explains how to run and write them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from meltpoint.adapters.modes import expanded
from meltpoint.search_spaces import documents
from meltpoint.sweeps.specification.sweep_options import SEARCHERS, SEEDS, TRIALS, Searcher
from meltpoint.tasks.core.files import exists
from meltpoint.tasks.core.registry import unknown
from meltpoint.tasks.core.wording import first_mistake

FOLDER = documents.SHIPPED / "papers"


def _listed(value: object) -> object:
    """Turn a single string into a list."""
    return [value] if isinstance(value, str) else value


NAMES = "write a word or a list of words, as in"
TEXT = "write one line of text in quotes"
COUNTED = "write a whole number of at least 1"
SEARCHED = f"write {', '.join(SEARCHERS[:-1])} or {SEARCHERS[-1]}, as in searcher: random"

Words = Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)]
Count = Annotated[int, Field(ge=1, strict=True)]


class FileBlock(BaseModel):
    """A block of a specification file; the description of a field is the remedy in error messages.

    Attributes:
        name: a few words, for messages.
        encoders, modes, tasks: names; the block's cells are their product.
        head: a head's name, or None for each mode's default.
        variant: part of its cells' names, if the same encoder, mode and task occur in several blocks.
        set: parameter → a value or a range, as in a space file; overrides the cells' spaces.
        trials, seeds, searcher: as `--trials`, `--seeds` and `--searcher`; None for the file's value.
        source: the source in the paper, only for readers of the file.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, description="write a few words, as in name: fine-tuned")
    encoders: Words = Field(description=f"{NAMES} encoders: [bert-base, minilm]")
    modes: Annotated[Words, AfterValidator(expanded)] = Field(
        description=f"{NAMES} modes: [feature_extraction, fine_tuning]"
    )
    tasks: Words = Field(description=f"{NAMES} tasks: [mrpc, stsb]")
    head: str | None = Field(None, description="write a head's name, as in head: bilstm")
    variant: str = Field("", description="write a word, as in variant: large")
    set: dict[str, Any] = Field(default_factory=dict, description="write a mapping, as in set: {epochs: 3}")
    trials: Count | None = Field(None, description=COUNTED)
    seeds: Count | None = Field(None, description=COUNTED)
    searcher: Searcher | None = Field(None, description=SEARCHED)
    source: str = Field("", description=TEXT)

    @property
    def size(self) -> int:
        """The number of cells."""
        return len(self.encoders) * len(self.modes) * len(self.tasks)

    def overrides(self) -> dict[str, str]:
        """Parameter → value, as in `--set`."""
        return {key: json.dumps(value) for key, value in self.set.items()}


class SpecFile(BaseModel):
    """A specification file.

    Attributes:
        name: the default name of the sweep, and the name of the paper's table to compare with.
        summary: one line for `meltpoint list specs`.
        source: the experiment that it reproduces.
        trials, seeds, searcher: defaults for the blocks.
        folders: encoder → a description of the files that its folder must contain. The user gives the folder with
            `--with elmo=FOLDER`; otherwise the encoder's cells are left out.
        notes: remarks on the comparison of the cells for readers of the tables, one line each.
        split: "dev" to leave test closed, for a paper's table of dev scores.
        max_train_examples: as `--max-train-examples`, which overrides it.
        base: a shipped specification that supplies the values and blocks that this file omits; its paper's numbers are
            shown with the results.
        blocks: the blocks.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        description="write letters, digits, '.', '_' and '-', at most 100, as in name: mine",
    )
    summary: str = Field(description=TEXT)
    source: str = Field("", description=TEXT)
    trials: Count = Field(TRIALS, description=COUNTED)
    seeds: Count = Field(SEEDS, description=COUNTED)
    searcher: Searcher = Field("auto", description=SEARCHED)
    folders: dict[str, str] = Field(
        default_factory=dict,
        description="write a mapping of encoders to the contents of their folders, as in folders: {elmo: the released "
        "files}",
    )
    notes: tuple[str, ...] = Field((), description="write a list of lines of text in quotes")
    split: Literal["dev", "test"] = Field("test", description="write dev, which leaves test closed, or test")
    max_train_examples: Count | None = Field(None, description=COUNTED)
    base: str | None = Field(None, description="write the name of a specification, as in base: table_4")
    blocks: tuple[FileBlock, ...] = Field(
        min_length=1, description="write a list of blocks, each with name, encoders, modes and tasks"
    )

    def words(self, what: str) -> list[str]:
        """The distinct `encoders`, `modes` or `tasks` of all blocks."""
        return list(dict.fromkeys(word for block in self.blocks for word in getattr(block, what)))


def shipped() -> list[str]:
    """The names of the shipped files."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read(word: str) -> SpecFile:
    """Read a specification file.

    Args:
        word: the name of a shipped file, or a path.

    Raises:
        ValueError: the file does not exist or contains a mistake; one line with the file, the key and the remedy.
    """
    if word in shipped():
        return parse(FOLDER / f"{word}.yaml", word)
    path = Path(word)
    if not word.endswith((".yaml", ".yml")):
        raise unknown(word, "specification", [*shipped(), "a FILE.yaml of your own"])
    if not exists(path):
        raise ValueError(f"--spec {word}: file not found; name an existing file, or one of {', '.join(shipped())}.")
    return parse(path, word)


def parse(path: Path, where: str) -> SpecFile:
    """Parse a specification file.

    Raises:
        ValueError: the file contains a mistake; the message begins with `where`.
    """
    data = documents.read(path, "contains no specification; write `name:`, `summary:` and `blocks:`")
    if isinstance(base := data.get("base"), str):
        if base not in shipped():
            raise ValueError(f"{where}: base is {base!r}; write one of {', '.join(shipped())}.")
        data = {**read(base).model_dump(mode="json", exclude={"name", "summary", "base"}), **data}
    try:
        return SpecFile.model_validate(data)
    except ValidationError as error:
        raise ValueError(f"{where}: {_first_mistake(error, data)}") from None


def _first_mistake(error: ValidationError, data: Mapping[str, object]) -> str:
    """The first mistake in one line: block, key and remedy."""
    first = error.errors(include_url=False, include_context=False)[0]
    place, document = first["loc"], data
    model: type[BaseModel] = SpecFile
    before, mapping = "", {}
    if place[:1] == ("blocks",) and len(place) > 1:
        model, number = FileBlock, int(place[1])
        blocks = data["blocks"]
        assert isinstance(blocks, list), "a block has a number"
        place, document = place[2:], blocks[number]
        name = document.get("name") if isinstance(document, Mapping) else None
        before = f"block {number + 1} '{name}': " if isinstance(name, str) else f"block {number + 1}: "
        mapping = {"": "write a mapping with name, encoders, modes and tasks"}
    if first["type"] == "extra_forbidden":
        return f"{before}{unknown(str(place[-1]), 'key of a specification', model.model_fields)}"
    wanted = mapping | {name: str(field.description) for name, field in model.model_fields.items()}
    return f"{before}{first_mistake(error, document, wanted, place)}"
