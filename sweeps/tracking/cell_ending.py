"""The contents of a cell's run in MLflow at the end of a sweep, beside its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from meltpoint.adapters.hyperparameters import Value
from meltpoint.sweeps.storage.files import StoragePath


@dataclass(frozen=True)
class CellEnding:
    """The result of one cell, for its run.

    Attributes:
        setting: the best setting, complete; empty while trials that may change it are missing.
        note: its description in Markdown, without links.
        best: the id of the best search trial; "" of none.
        former: the ids of finals of a setting that was the best one before more trials were run.
        texts: file name → text.
        files: file name → the file that is copied.
        model: a local folder with the best finalist as an MLflow model, which is copied to `model/` and registered;
            None for none.
        finalist: the id of that finalist.
        card: its model card in Markdown, for the registered version; "" of none.
    """

    setting: Mapping[str, Value] = field(default_factory=dict)
    note: str = ""
    best: str = ""
    former: tuple[str, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, StoragePath] = field(default_factory=dict)
    model: Path | None = None
    finalist: str = ""
    card: str = ""
