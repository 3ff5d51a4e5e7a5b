"""Space files: the shipped ones, merged from general to specific, and users' own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from meltpoint.adapters import heads, modes
from meltpoint.adapters.hyperparameters import Parameter
from meltpoint.search_spaces import build, documents, ranges
from meltpoint.search_spaces.documents import SHIPPED
from meltpoint.search_spaces.ranges import check_known
from meltpoint.search_spaces.space import Space
from meltpoint.tasks import names as task_names

CELL = ("encoder", "mode", "task", "head")
SECTION = ("parameters", "early_stopping")
POOLED, POOLING = "pooled", "pooling"
"""`MODE.pooled.yaml` is the file for head `pooling` on an encoder that ships its own pooling."""
TOP, KEY = (*CELL, *SECTION, "modes", "provenance"), "key of a space file"


@dataclass
class MergedEntries:
    """The merged entries of several files or sections; later ones override earlier ones."""

    declared: dict[str, object] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    early_stopping: object = None
    stopping_source: str = "space"

    def add(self, section: Mapping[str, object], where: str) -> None:
        """Merge a section over the earlier ones.

        Raises:
            ValueError: `parameters` is not a mapping.
        """
        for name, entry in parameters_of(section, where).items():
            self.declared[name] = ranges.merged(self.declared.get(name), entry)
            self.sources[name] = where
        if "early_stopping" in section:
            self.early_stopping, self.stopping_source = section["early_stopping"], where


def shipped() -> list[str]:
    """The names of the shipped spaces, for `meltpoint list spaces`."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def stems(mode: str, encoder: str, task: str, head: str = "", has_pooling: bool = False) -> list[str]:
    """The names of the space files that may apply to a cell, the most general first.

    A task's family is the part of its name before the first underscore (`demo_sentiment` → `demo`); a variant
    (`yahoo:sports+health`) reads its task's files, and `elmo:FOLDER` reads the files of `elmo`. `hf:…` encoders and
    users' tasks have no specific files. The files of `Mode.space` come first.

    Args:
        mode, encoder, task, head: the cell; with head "", the files that apply to every head.
        has_pooling: whether the encoder ships its own pooling.
    """
    task = task.partition(":")[0]
    tasks = list(dict.fromkeys((task.partition("_")[0], task))) if task in task_names() else []
    parts = [head, *tasks] if head else tasks
    stem = f"{mode}.{encoder.partition(':')[0].partition('@')[0]}"
    pooled = [f"{mode}.{POOLED}"] if has_pooling and head == POOLING else []
    general = [mode, *(f"{mode}.{name}" for name in parts), *pooled]
    own = general if encoder.startswith("hf:") else [*general, stem, *(f"{stem}.{name}" for name in parts)]
    below = modes.get(mode).space if mode in modes.names() else ""
    return [*stems(below, encoder, task, head, has_pooling), *own] if below else own


def find(
    mode: str, encoder: str, task: str, head: str, allowed: Mapping[str, Parameter], *, has_pooling: bool = False,
    every: Mapping[str, Parameter] | None = None, folder: Path = SHIPPED,
) -> Space:  # fmt: skip
    """The shipped space of a cell, merged from the files of `stems`; for each key, the most specific file wins.

    A file that names no head applies to all, so parameters of other heads are ignored.

    Args:
        mode, encoder, task, head: the cell.
        allowed: every parameter that a setting of the cell may have.
        has_pooling: whether the encoder ships its own pooling.
        every: every parameter of all modes and heads, to tell other heads' parameters from mistakes.
        folder: the folder of the files.

    Raises:
        ValueError: there is no file for the mode, or a file is invalid.
    """
    layers = merged(mode, encoder, task, head, folder, has_pooling)
    of_others = set(every or ()) - set(allowed)
    declared = {name: entry for name, entry in layers.declared.items() if name not in of_others}
    return Space.of(
        declared, allowed, sources=layers.sources, early_stopping=layers.early_stopping, where=layers.stopping_source,
        elsewhere=of_others,
    )  # fmt: skip


def merged(
    mode: str, encoder: str, task: str, head: str = "", folder: Path = SHIPPED, has_pooling: bool = False
) -> MergedEntries:
    """The entries that the files of `stems` declare for a cell, and the file of each.

    Raises:
        ValueError: there is no file for the mode, or a file is invalid.
    """
    paths = [
        path for stem in stems(mode, encoder, task, head, has_pooling) if (path := folder / f"{stem}.yaml").is_file()
    ]
    if not paths:
        raise ValueError(f"Mode {mode} has no search_spaces/{mode}.yaml; add one, or name a space with --space FILE.")
    layers = MergedEntries()
    for path in paths:
        data = documents.read(path)
        check_known(data, SECTION, KEY, path.name)
        layers.add(data, path.name)
    return layers


def load(
    path: Path | str, allowed: Mapping[str, Parameter], *, mode: str = "", every: Mapping[str, Parameter] | None = None
) -> Space:
    """Load a user's space file or an exported setting; it is not merged with the shipped files.

    Args:
        path: a YAML file with `parameters`, and optionally `modes: {MODE: {parameters: …}}` for single modes.
        allowed: every parameter that a setting of the cell may have.
        mode: the mode whose section under `modes` is merged over the file's `parameters`.
        every: every parameter of all modes and heads, for messages.

    Raises:
        ValueError: the file is invalid; one line with the file, the key and the remedy.
    """
    where = str(path)
    data = documents.read(Path(path))
    check_known(data, TOP, KEY, where)
    cell = cell_of(data, where)
    if mode and cell.get("mode", mode) != mode:
        raise ValueError(f"{where}: is a space for mode {cell['mode']}, not for {mode}; sweep {cell['mode']} only.")
    sections = mode_sections(data, {**allowed, **(every or {})}, where)
    chosen = [section for section in (data, sections.get(mode)) if section is not None and "parameters" in section]
    if not chosen:
        named = f" for mode {mode}; add `modes: {{{mode}: {{parameters: …}}}}`" if sections else "; add `parameters:`"
        raise ValueError(f"{where}: holds no search space{named}.")
    layers = MergedEntries()
    for section in (data, sections.get(mode, {})):
        layers.add(section, where)
    provenance = _mapping_at("provenance", data, where, "write a mapping, or leave it out")
    of_pairs = {name for name, one in (every or {}).items() if one.of_pairs and name not in allowed}
    idle = of_pairs if provenance else set()  # exports of earlier versions name them for single sentences too
    space = Space.of(
        {name: entry for name, entry in layers.declared.items() if name not in idle}, allowed,
        early_stopping=layers.early_stopping, where=where, elsewhere=set(every or ()) - set(allowed),
        must_act=[name for name in parameters_of(chosen[-1], where) if name not in idle],
    )  # fmt: skip
    return replace(space, cell=cell, provenance=provenance)


def check(path: Path | str, every: Mapping[str, Parameter]) -> None:
    """Refuse mistakes in a user's space file that do not depend on the cell; `load` checks it for one cell.

    Args:
        path: a YAML file.
        every: every parameter of all modes and heads.

    Raises:
        ValueError: one line with the file, the key and the remedy.
    """
    where = str(path)
    data = documents.read(Path(path))
    check_known(data, TOP, KEY, where)
    cell_of(data, where)
    for section in (data, *mode_sections(data, every, where).values()):
        for name, entry in parameters_of(section, where).items():
            build.check_entry(name, entry, every, where)


def read_cell(path: Path | str) -> dict[str, str]:
    """Read the cell of a space file: its `encoder`, `mode`, `task` and `head`, if it names them.

    Raises:
        ValueError: the file cannot be read, or one of these values is not a string.
    """
    return cell_of(documents.read(Path(path)), str(path))


def check_setting(path: str) -> None:
    """Check that an exported setting can be read and names a known mode and head.

    Raises:
        ValueError: one line with the file or the name.
    """
    cell = read_cell(path)
    if "mode" in cell:
        modes.get(cell["mode"])
    if "head" in cell:
        heads.check(cell["head"])


def cell_of(data: Mapping[str, object], where: str) -> dict[str, str]:
    """The names of the cell among the top-level keys."""
    cell = {key: data[key] for key in CELL if data.get(key) is not None}
    for key, value in cell.items():
        if not isinstance(value, str):
            raise ValueError(f"{where}: {key} is {value!r}; write a name.")
    return {key: str(value) for key, value in cell.items()}


def parameters_of(section: Mapping[str, object], where: str) -> dict[str, object]:
    """The entries of a section."""
    return _mapping_at("parameters", section, where, "write one `name: range` per line below it")


def _mapping_at(key: str, data: Mapping[str, object], where: str, remedy: str) -> dict[str, Any]:
    """The mapping at a key; empty if there is none."""
    value = data.get(key)
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{where}: {key} is {value!r}; {remedy}.")
    return dict(value or {})


def mode_sections(
    data: Mapping[str, object], every: Mapping[str, Parameter], where: str
) -> dict[str, Mapping[str, object]]:
    """The sections under `modes`; all are checked for unknown keys, including sections that this sweep does not use."""
    sections: dict[str, Mapping[str, object]] = {}
    named = _mapping_at("modes", data, where, "write {MODE: {parameters: …}}")
    check_known(named, modes.names(), "mode", where)
    for mode in named:
        sections[mode] = section = _mapping_at(mode, named, f"{where}: modes", "write {parameters: …}")
        check_known(section, SECTION, KEY, where)
        for name in parameters_of(section, where):
            build.check_name(name, every, (), where)
    return sections
