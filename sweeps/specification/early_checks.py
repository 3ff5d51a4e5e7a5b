"""Command-line checks that need no torch, Ray or MLflow; they run before those are imported.

A typo is reported within half a second of CPU time (`tests/test_typos.py`). Checks that need a head's class or large
data are in `cells`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from meltpoint.adapters import encoders, heads, modes, settings
from meltpoint.search_spaces import build, files
from meltpoint.sweeps.specification.cells import data_spec
from meltpoint.sweeps.specification.sweep_spec import Block, SweepSpec, check, within
from meltpoint.tasks import get
from meltpoint.tasks.core import sources
from meltpoint.tasks.core.files import is_file
from meltpoint.tasks.core.registry import is_task_file
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import Kind

_ANY_KIND: Kind = "sentence_classification"
"""The kind for which encoders are looked up if every task file is on another machine."""


def _nowhere_else(word: str) -> bool:
    return False


def check_spec(spec: SweepSpec, is_elsewhere: Callable[[str], bool] = _nowhere_else) -> None:
    """Check a specification for unknown names, missing files or folders, and malformed or impossible values.

    Args:
        is_elsewhere: true for an encoder, task file or data folder on another machine, which is not checked.

    Raises:
        ValueError: one line with the remedy.
    """
    check(spec)
    for block in spec.products():
        with within(block):
            _check_words(block, is_elsewhere)
            check_overrides(block.overrides)
    if spec.space is not None:
        files.check(spec.space, {parameter.name: parameter for parameter in settings.all_parameters()})
    for word in spec.task_words():
        if not is_elsewhere(word) and not is_elsewhere(spec.data_dir or ""):
            sources.check(data_spec(spec, word))
            _read_own_data(spec, word)


MOST_EARLY_BYTES = 2**23
"""The most data of a user's task that are read here (and again later): 8 MiB take a few tenths of a second."""


def _read_own_data(spec: SweepSpec, word: str) -> None:
    """Read the data of a user's task if they are small, to report a broken row before torch is imported."""
    data = data_spec(spec, word)
    if is_task_file(word) and 0 < sources.open_bytes(data) <= MOST_EARLY_BYTES:
        load_training_data(data)


def _check_words(block: Block, is_elsewhere: Callable[[str], bool]) -> None:
    """Check a block for unknown modes, heads, tasks and encoders."""
    for mode in block.modes:
        modes.get(mode)
    if block.head is not None:
        heads.check(block.head)
    kinds = dict.fromkeys(get(word).kind for word in block.tasks if not is_elsewhere(word)) or {_ANY_KIND: None}
    for encoder in (word for word in block.encoders if not is_elsewhere(word)):
        for kind in kinds:
            encoders.resolve(encoder, kind)


def check_overrides(texts: Sequence[str]) -> None:
    """Check for `--set` options that are invalid for every cell.

    Raises:
        ValueError: one is not `KEY=VALUE`, has an unknown key, or a value outside its limits.
    """
    every = {parameter.name: parameter for parameter in settings.all_parameters()} if texts else {}
    for name, (entry, where) in build.overrides(texts).items():
        if name == "early_stopping":
            build.parse_stopping(entry, where)
        else:
            build.check_entry(name, entry, every, where)


def check_features(encoder: str, text: Path, layers: str) -> None:
    """Check for an unknown encoder, a missing text file and malformed layers.

    Raises:
        ValueError: one line with the remedy.
    """
    encoders.resolve(encoder, "sequence_labelling")
    if not is_file(text):
        raise ValueError(f"{text} is not a file; name a text file with --input.")
    if not re.fullmatch(r"all|top|\d+(,\d+)*", layers):
        raise ValueError(f"--layers {layers!r}: write all, top, or numbers from 0, for example 0,1.")
