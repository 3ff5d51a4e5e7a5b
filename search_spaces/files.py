"""The space files: the shipped ones, laid over each other key by key, and a user's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from meltpoint.adapters import heads, modes
from meltpoint.adapters.hyperparameters import Parameter
from meltpoint.search_spaces import build, documents, entries
from meltpoint.search_spaces.documents import SHIPPED
from meltpoint.search_spaces.space import Space
from meltpoint.tasks.core.registry import unknown

CELL = ("encoder", "mode", "task", "head")
SECTION = ("parameters", "early_stopping")
TOP = (*CELL, *SECTION, "modes", "provenance")


@dataclass
class Layers:
    """Entries of several files or sections, the later over the earlier."""

    said: dict[str, object] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    early_stopping: object = None
    stopping_source: str = "space"

    def add(self, section: Mapping[str, object], where: str) -> None:
        """Lay a section over those before it.

        Raises:
            ValueError: `parameters` is no mapping.
        """
        for name, entry in parameters_of(section, where).items():
            self.said[name] = entries.over(self.said.get(name), entry)
            self.sources[name] = where
        if "early_stopping" in section:
            self.early_stopping, self.stopping_source = section["early_stopping"], where


def shipped() -> list[str]:
    """The names of the shipped spaces, for `meltpoint list spaces`."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def stems(mode: str, encoder: str, task: str) -> list[str]:
    """The names of the files that may speak for a cell, the most general first.

    A task's family is the part of its name before the first underscore (`demo_sentiment` → `demo`); a variant
    (`yahoo:sports+health`) reads its task's files. `hf:…` encoders have no file of their own; `elmo:FOLDER` reads those
    of `elmo`; a user's task file, named by a path, has none.
    """
    task = task.partition(":")[0]
    tasks = [word for word in dict.fromkeys((task.partition("_")[0], task)) if re.fullmatch(r"[\w-]+", word)]
    stem = f"{mode}.{encoder.partition(':')[0]}"
    general = [mode, *(f"{mode}.{word}" for word in tasks)]
    return general if encoder.startswith("hf:") else [*general, stem, *(f"{stem}.{word}" for word in tasks)]


def find(
    mode: str, encoder: str, task: str, allowed: Mapping[str, Parameter], *,
    every: Mapping[str, Parameter] | None = None, folder: Path = SHIPPED,
) -> Space:  # fmt: skip
    """The shipped space of a cell: the files of `stems`, the most specific saying the last word on each key.

    A file serves every head, so parameters of other heads are passed over.

    Args:
        mode, encoder, task: the cell.
        allowed: every parameter that a setting of the cell may hold.
        every: every parameter of all modes and heads, to tell those of other heads from mistakes.
        folder: where the files lie.

    Raises:
        ValueError: no file speaks for the mode, or a file is wrong.
    """
    paths = [path for stem in stems(mode, encoder, task) if (path := folder / f"{stem}.yaml").is_file()]
    if not paths:
        raise ValueError(f"Mode {mode} has no search_spaces/{mode}.yaml; add one, or name a space with --space FILE.")
    layers = Layers()
    for path in paths:
        data = documents.read(path)
        check_keys(data, SECTION, path.name)
        layers.add(data, path.name)
    strangers = set(every or ()) - set(allowed)
    said = {name: entry for name, entry in layers.said.items() if name not in strangers}
    return Space.of(
        said, allowed, sources=layers.sources, early_stopping=layers.early_stopping, where=layers.stopping_source,
        elsewhere=elsewhere(allowed, every),
    )  # fmt: skip


def load(
    path: Path | str, allowed: Mapping[str, Parameter], *, mode: str = "", every: Mapping[str, Parameter] | None = None
) -> Space:
    """A user's space file or an exported setting; it is the whole space, nothing shipped shows through.

    Args:
        path: a YAML file with `parameters`, and perhaps `modes: {MODE: {parameters: …}}` for some modes only.
        allowed: every parameter that a setting of the cell may hold.
        mode: whose section under `modes` to lay over the file's own `parameters`.
        every: every parameter of all modes and heads, for messages.

    Raises:
        ValueError: any mistake in the file; one line with the file, the key and the remedy.
    """
    where = str(path)
    data = documents.read(Path(path))
    check_keys(data, TOP, where)
    cell = cell_of(data, where)
    if mode and cell.get("mode", mode) != mode:
        raise ValueError(f"{where}: is a space for mode {cell['mode']}, not for {mode}; sweep {cell['mode']} only.")
    sections = mode_sections(data, {**allowed, **(every or {})}, where)
    chosen = [section for section in (data, sections.get(mode)) if section is not None and "parameters" in section]
    if not chosen:
        named = f" for mode {mode}; add `modes: {{{mode}: {{parameters: …}}}}`" if sections else "; add `parameters:`"
        raise ValueError(f"{where}: holds no space{named}.")
    layers = Layers()
    for section in (data, sections.get(mode, {})):
        layers.add(section, where)
    space = Space.of(
        layers.said, allowed, early_stopping=layers.early_stopping, where=where,
        elsewhere=elsewhere(allowed, every), must_act=list(parameters_of(chosen[-1], where)),
    )  # fmt: skip
    return replace(space, cell=cell, provenance=provenance_of(data, where))


def check(path: Path | str, every: Mapping[str, Parameter]) -> None:
    """Refuse what is wrong in a user's space file whatever the cell; `load` checks it for one cell.

    Args:
        path: a YAML file.
        every: every parameter of all modes and heads.

    Raises:
        ValueError: one line with the file, the key and the remedy.
    """
    where = str(path)
    data = documents.read(Path(path))
    check_keys(data, TOP, where)
    cell_of(data, where)
    for section in (data, *mode_sections(data, every, where).values()):
        for name, entry in parameters_of(section, where).items():
            build.check_entry(name, entry, every, where)


def read_cell(path: Path | str) -> dict[str, str]:
    """What a space file says of its cell: those of `encoder`, `mode`, `task`, `head` that it names.

    Raises:
        ValueError: the file cannot be read, or one of them is not a word.
    """
    return cell_of(documents.read(Path(path)), str(path))


def cell_of(data: Mapping[str, object], where: str) -> dict[str, str]:
    """The cell's words among the top-level keys."""
    found: dict[str, str] = {}
    for key in CELL:
        value = data.get(key)
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{where}: {key} is {value!r}; write a name.")
        if value is not None:
            found[key] = value
    return found


def provenance_of(data: Mapping[str, object], where: str) -> dict[str, object]:
    """What an exported setting says of its origin."""
    said = data.get("provenance")
    if said is not None and not isinstance(said, dict):
        raise ValueError(f"{where}: provenance is {said!r}; write a mapping, or leave it out.")
    return dict(said or {})


def parameters_of(section: Mapping[str, object], where: str) -> dict[str, object]:
    """The entries of a section."""
    said = section.get("parameters")
    if said is not None and not isinstance(said, dict):
        raise ValueError(f"{where}: parameters is {said!r}; write one `name: range` a line below it.")
    return dict(said or {})


def mode_sections(
    data: Mapping[str, object], every: Mapping[str, Parameter], where: str
) -> dict[str, Mapping[str, object]]:
    """The sections under `modes`; all are checked for unknown keys, also those that no cell of this sweep reads."""
    said = data.get("modes")
    if said is None:
        return {}
    if not isinstance(said, dict):
        raise ValueError(f"{where}: modes is {said!r}; write {{MODE: {{parameters: …}}}}.")
    for mode, section in said.items():
        if mode not in modes.names():
            raise ValueError(f"{where}: {unknown(mode, 'mode', modes.names())}")
        if not isinstance(section, dict):
            raise ValueError(f"{where}: modes: {mode} is {section!r}; write {{parameters: …}}.")
        check_keys(section, SECTION, where)
        for name in parameters_of(section, where):
            build.check_name(name, every, {}, where)
    return said


def check_keys(section: Mapping[str, object], known: tuple[str, ...], where: str) -> None:
    """Refuse a key that a section cannot have.

    Raises:
        ValueError: with near misses.
    """
    for key in section:
        if key not in known:
            raise ValueError(f"{where}: {unknown(key, 'key of a space file', known)}")


def elsewhere(allowed: Mapping[str, Parameter], every: Mapping[str, Parameter] | None) -> dict[str, str]:
    """The parameters that exist but not for this cell → why, and what to do."""
    return {name: _reason(name) for name in every or {} if name not in allowed}


def _reason(name: str) -> str:
    """To which mode or head a parameter belongs."""
    owner = name.partition(".")[0]
    if owner in modes.names():
        return f"it belongs to mode {owner}; put it under `modes: {{{owner}: …}}`, or leave it out"
    owners = [head for head in heads.names() if any(own.name == name for own in heads.get(head).hyperparameters)]
    if owners:
        return f"it belongs to head {' or '.join(owners)}; choose that head with --head, or leave it out"
    able = [mode for mode in modes.names() if modes.get(mode).trains_encoder]
    return f"it needs an encoder that trains; put it under `modes:` for {' or '.join(able)}, or leave it out"
