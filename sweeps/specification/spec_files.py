"""Specification files: whole experiments as YAML, block by block a product of encoders × modes × tasks with its head.

The shipped ones are the papers' (`search_spaces/papers/*.yaml`); docs/papers.md says how to run and how to write one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from meltpoint.search_spaces import documents
from meltpoint.tasks.core.mistakes import first_mistake
from meltpoint.tasks.core.registry import unknown

FOLDER = documents.SHIPPED / "papers"


def _listed(said: object) -> object:
    """One word stands for a list of one."""
    return [said] if isinstance(said, str) else said


Words = Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)]
Count = Annotated[int, Field(ge=1, strict=True)]


NAMES = "write a word or a list of words, as in"
COUNTED = "write a whole number of at least 1"
BLOCK_WANTED = {
    "": "write a mapping with name, encoders, modes and tasks",
    "name": "write a few words, as in name: fine-tuned",
    "encoders": f"{NAMES} encoders: [bert-base, minilm]",
    "modes": f"{NAMES} modes: [feature_extraction, fine_tuning]",
    "tasks": f"{NAMES} tasks: [mrpc, stsb]",
    "head": "write a head's name, as in head: bilstm",
    "variant": "write a word, as in variant: large",
    "set": "write a mapping, as in set: {epochs: 3}",
    "trials": COUNTED,
    "seeds": COUNTED,
    "source": "write one line of text in quotes",
}
"""What to write for each key of a block."""
WANTED = {
    "name": "write letters, digits, '.', '_' and '-', at most 100, as in name: mine",
    "summary": "write one line of text in quotes",
    "source": "write one line of text in quotes",
    "trials": COUNTED,
    "seeds": COUNTED,
    "folders": "write a mapping of encoders to what their folders must hold, as in folders: {elmo: the released files}",
    "blocks": "write a list of blocks, each with name, encoders, modes and tasks",
}
"""What to write for each other key of a file."""


class FileBlock(BaseModel):
    """A block of a file; what it does not say is as at the top of the file.

    Attributes:
        name: a few words, for messages.
        encoders, modes, tasks: words; its cells are their product.
        head: or None for each mode's own.
        variant: a word for its cells' names, where the same encoder, mode and task come twice.
        set: parameter → a value or a range, as in a space file; laid over the cells' spaces.
        trials, seeds: as `--trials` and `--seeds`.
        source: where all this comes from; nothing reads it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    encoders: Words
    modes: Words
    tasks: Words
    head: str | None = None
    variant: str = ""
    set: dict[str, Any] = Field(default_factory=dict)
    trials: Count | None = None
    seeds: Count | None = None
    source: str = ""

    @property
    def size(self) -> int:
        """How many cells it has."""
        return len(self.encoders) * len(self.modes) * len(self.tasks)

    def overrides(self) -> dict[str, str]:
        """Parameter → what `--set` would say of it, as text."""
        return {key: json.dumps(value) for key, value in self.set.items()}


class SpecFile(BaseModel):
    """A specification file.

    Attributes:
        name: the sweep's name where the command line names none, and the table of the paper to set beside it.
        summary: one line for `meltpoint list specs`.
        source: the experiment that it repeats.
        trials, seeds: of the blocks that do not say.
        folders: encoder → what its folder must hold. Nothing is known of where such an encoder lies; it has to be said
            (`--with elmo=FOLDER`), and its cells are left out otherwise.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    summary: str
    source: str = ""
    trials: Count = 16
    seeds: Count = 5
    folders: dict[str, str] = Field(default_factory=dict)
    blocks: tuple[FileBlock, ...] = Field(min_length=1)

    def words(self, what: str) -> list[str]:
        """Every word of its blocks: `encoders`, `modes` or `tasks`."""
        return list(dict.fromkeys(word for block in self.blocks for word in getattr(block, what)))


def shipped() -> list[str]:
    """The names of the shipped files."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read(word: str) -> SpecFile:
    """A specification file.

    Args:
        word: a shipped one's name, or a path to a file of one's own.

    Raises:
        ValueError: no such file, or a mistake in it; one line with the file, the key and the remedy.
    """
    if word in shipped():
        return parse(FOLDER / f"{word}.yaml", word)
    path = Path(word)
    if not word.endswith((".yaml", ".yml")):
        raise unknown(word, "specification", [*shipped(), "a FILE.yaml of your own"])
    if not path.is_file():
        raise ValueError(f"--spec {word}: there is no such file; name one, or one of {', '.join(shipped())}.")
    return parse(path, word)


def parse(path: Path, where: str) -> SpecFile:
    """The contents of a file.

    Raises:
        ValueError: a mistake; `where` stands before it.
    """
    data = documents.read(path, "holds no specification; write `name:`, `summary:` and `blocks:`")
    try:
        return SpecFile.model_validate(data)
    except ValidationError as error:
        raise ValueError(f"{where}: {_said(error, data)}") from None


def _said(error: ValidationError, data: Mapping[str, object]) -> str:
    """The first mistake in one line: which block, which key, what would be right."""
    first = error.errors(include_url=False, include_context=False)[0]
    place, document = first["loc"], data
    model: type[BaseModel] = SpecFile
    before, wanted = "", WANTED
    if place[:1] == ("blocks",) and len(place) > 1:
        model, number = FileBlock, int(place[1])
        blocks = data["blocks"]
        assert isinstance(blocks, list), "a block has a number"
        before, place, document = f"block {number + 1}{_name_of(data, number)}: ", place[2:], blocks[number]
        wanted = BLOCK_WANTED
    if first["type"] == "extra_forbidden":
        return f"{before}{unknown(str(place[-1]), 'key of a specification', model.model_fields)}"
    return f"{before}{first_mistake(error, document, wanted, place)}"


def _name_of(data: Mapping[str, object], number: int) -> str:
    blocks = data.get("blocks")
    block = blocks[number] if isinstance(blocks, list) else None
    name = block.get("name") if isinstance(block, Mapping) else None
    return f" '{name}'" if isinstance(name, str) else ""
