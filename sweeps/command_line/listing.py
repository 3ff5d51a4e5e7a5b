"""Listings for `meltpoint list`: plug-ins, search spaces and specifications as rows of plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from meltpoint import tasks
from meltpoint.adapters import heads, modes, tricks
from meltpoint.adapters.hyperparameters import Parameter, Value
from meltpoint.adapters.multiplier_table import Mode, Trick
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.task import KINDS, SPLITS, Task

if TYPE_CHECKING:
    from meltpoint.adapters.head import Head  # imports torch, which takes seconds
    from meltpoint.search_spaces.files import MergedEntries

Row = dict[str, object]


def inventory(what: str) -> list[Row]:
    """One row per plug-in, space or specification, its name first.

    Args:
        what: "encoders", "modes", "tasks", "heads", "tricks", "spaces" or "specs".
    """
    return ROWS[what]()


def overview() -> list[Row]:
    """One row for each argument of `list`: the number of entries, and two examples."""
    found = {word: [str(row["name"]) for row in make()] for word, make in ROWS.items()}
    return [{"list": word, "count": len(names), "for example": names[:2]} for word, names in found.items()]


def parameters_of_cell(mode: str, encoder: str, task: str, head: str = "") -> list[Row]:
    """One row per parameter that the shipped spaces name for a cell: the values tried, their file, and the source.

    Without a head, the rows are those that apply to every head, followed by rows from files for a single head.

    Args:
        mode, encoder, task, head: as on the command line of `sweep`; task and head may be "".

    Raises:
        ValueError: an unknown mode, head, encoder or task.
    """
    from meltpoint.adapters import encoders, settings
    from meltpoint.search_spaces import files

    modes.get(mode)
    if encoder.partition(":")[0] not in ("hf", *encoders.FAMILIES):
        encoders.summary(encoder)  # raises for an unknown name
    kind, has_pooling = tasks.get(task).kind if task else None, encoders.traits(encoder).has_pooling
    if head:
        heads.get(head, kind)  # raises for an unknown name
        # Without the parameters of other heads and of tricks that cannot be on.
        allowed = {one.name: one for one in settings.parameters(mode, head, kind)}
        every = {one.name: one for one in settings.all_parameters()}
        space = files.find(mode, encoder, task, head, allowed, has_pooling=has_pooling, every=every)
        rows = _rows_of(files.merged(mode, encoder, task, head, has_pooling=has_pooling))
        return [row for row in rows if row["parameter"] in space.parameters]
    general = set(files.stems(mode, encoder, task))
    found = _rows_of(files.merged(mode, encoder, task))
    for one in heads.names():
        rows = _rows_of(files.merged(mode, encoder, task, one, has_pooling=has_pooling))
        found += [row for row in rows if str(row["file"]).removesuffix(".yaml") not in general]
    return [row for row in found if row["parameter"] not in modes.get(mode).unused]


def _rows_of(layers: MergedEntries) -> list[Row]:
    """One row per parameter of merged files."""
    rows: list[Row] = []
    for name, entry in layers.declared.items():
        said: Mapping[str, Any] = entry if isinstance(entry, Mapping) else {"fixed": entry}
        rows.append({
            "parameter": name, "searched": "fixed" not in said, "values": _range(entry),
            "first": _written(said["first"]) if "first" in said else "", "file": layers.sources[name],
            "source": said.get("source", ""),
        })  # fmt: skip
    return rows


def _encoders() -> list[Row]:
    from meltpoint.adapters import encoders

    named: list[Row] = []
    for name in encoders.names():
        references = [encoders.resolve(name, kind) for kind in KINDS]
        places = [f"{one.source}@{one.revision}" if one.revision else one.source for one in references]
        named.append({
            "name": name, "from": list(dict.fromkeys(places)), "pooling": str(references[0].pooling or ""),
            "summary": encoders.summary(name),
        })  # fmt: skip
    families = {
        "elmo:FOLDER": ("", "a released ELMo: options.json and weights.hdf5"),
        "skipthoughts:FOLDER": (
            "", "published Skip-thoughts (Kiros et al. 2015); FOLDER#uni or #bi selects one of its models",
        ),
        "hf:ID or hf:FOLDER": ("as in its modules.json", "any other Hugging Face encoder"),
    }  # fmt: skip
    return named + [
        {"name": name, "from": [], "pooling": pooling, "summary": summary}
        for name, (pooling, summary) in families.items()
    ]


def _mode(mode: Mode) -> Row:
    layers = mode.layers({parameter.name: parameter.default for parameter in mode.hyperparameters})
    return {
        "name": mode.name, "symbol": mode.symbol, "default_heads": _default_heads(mode),
        "trains_encoder": mode.trains_encoder, "layers": layers, "parameters": _parameters(mode.hyperparameters),
        "summary": mode.summary,
    }  # fmt: skip


def _default_heads(mode: Mode) -> list[str]:
    """`KIND: HEAD` for BERT, with the heads of ELMo and of encoders with their own pooling if they differ."""
    lines = []
    heads = mode.default_heads
    for kind in KINDS:
        head, pooled = heads.with_native(kind).name, heads.with_pooling(kind)
        found = {
            "ELMo": heads.without_native(kind, joins_pairs=False).name,
            "sentence encoders": pooled.name if pooled else head,
        }
        differing = "; ".join(f"{who}: {name}" for who, name in found.items() if name != head)
        lines.append(f"{kind}: {head}" + (f" ({differing})" if differing else ""))
    return lines


def _task(task: Task) -> Row:
    return {
        "name": task.name, "kind": task.kind, "metric": task.metric, "splits": _splits(task),
        "test_labels": task.test_labels, "folder": task.folder,
        "hub": f"{task.hub.id}@{task.hub.revision}" if task.hub else "",
        "labels": list(task.labels), "range": list(task.label_range or ()), "description": task.description,
    }  # fmt: skip


def _splits(task: Task) -> list[str]:
    """The splits that the task's files or its hub data set have."""
    there = set(task.readers) | (set(task.hub.splits) | set(task.hub.elsewhere) if task.hub else set())
    return [split for split in SPLITS if split in there]


def _head(name: str, head: type[Head]) -> Row:
    ways = (("joint", head.joint_pairs), ("separate", head.separate_pairs))
    pairs = [way for way, serves in ways if serves and any(kinds.get(kind).is_pair for kind in head.kinds)]
    return {
        "name": name, "kinds": list(head.kinds), "pairs": pairs, "parameters": _parameters(head.hyperparameters),
        "summary": head.summary,
    }  # fmt: skip


def _trick(trick: Trick) -> Row:
    how = f"schedule: {trick.name}" if trick.is_schedule else f"{trick.name}: true"
    return {
        "name": trick.name, "type": "schedule" if trick.is_schedule else "switch", "on_by": how,
        "parameters": _parameters(trick.hyperparameters), "summary": trick.summary,
    }  # fmt: skip


def _parameters(parameters: tuple[Parameter, ...]) -> list[str]:
    """`name = default: domain` for each parameter."""
    return [f"{one.name} = {_written(one.default)}: {one.domain()}" for one in parameters]


def _spaces() -> list[Row]:
    from meltpoint.search_spaces import documents, files

    rows: list[Row] = []
    for name in files.shipped():
        data = documents.read(documents.SHIPPED / f"{name}.yaml")
        entries_by_key = files.parameters_of(data, f"{name}.yaml")
        ranges = [f"{key} {_range(entry)}" for key, entry in entries_by_key.items()]
        rows.append({"name": f"{name}.yaml", "parameters": ranges, "early_stopping": _stopping(data)})
    return rows


def _specs() -> list[Row]:
    from meltpoint.sweeps.specification import spec_files

    return [
        {
            "name": file.name, "encoders": file.words("encoders"), "modes": file.words("modes"),
            "tasks": file.words("tasks"), "cells": sum(block.size for block in file.blocks),
            "needs": [f"--with {encoder}=FOLDER: {what}" for encoder, what in file.folders.items()],
            "source": file.source, "summary": file.summary,
        }
        for file in map(spec_files.read, spec_files.shipped())
    ]  # fmt: skip


def _range(entry: object) -> str:
    """An entry of a space without its source: `log_uniform 1e-05…0.0001`, `2 | 3 | 4`, or a fixed value."""
    if not isinstance(entry, Mapping):
        return _written(cast(Value, entry))
    from meltpoint.search_spaces.ranges import RANGE_KINDS

    kind = next(kind for kind in RANGE_KINDS if kind in entry)
    if kind == "fixed":
        return _written(entry[kind])
    separator = " | " if kind == "choice" else "…"
    values = separator.join(_written(value) for value in entry[kind])
    return values if kind == "choice" else f"{kind} {values}"


def _stopping(data: Mapping[str, object]) -> str:
    """The early stopping that a file declares: its numbers, "off", or "" if a more general file decides."""
    declared = data.get("early_stopping", "")
    if isinstance(declared, Mapping):
        return ", ".join(f"{key} {value}" for key, value in declared.items())
    return "off" if declared is None else ""


def _written(value: Value) -> str:
    """A value as YAML writes it."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


ROWS: Mapping[str, Callable[[], list[Row]]] = {
    "encoders": _encoders,
    "modes": lambda: [_mode(modes.get(name)) for name in modes.names()],
    "tasks": lambda: [_task(tasks.get(name)) for name in tasks.names()],
    "heads": lambda: [_head(name, heads.get(name)) for name in heads.names()],
    "tricks": lambda: [_trick(trick) for trick in tricks.every()],
    "spaces": _spaces,
    "specs": _specs,
}
"""Argument of `meltpoint list` → the function that returns its rows."""
