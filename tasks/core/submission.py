"""Submission files for the GLUE server, for tasks whose test labels only the server has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from meltpoint.tasks.core import registry
from meltpoint.tasks.core.counts import some
from meltpoint.tasks.core.metric import Prediction
from meltpoint.tasks.core.task import Task

FILES: Mapping[str, str] = {
    "cola": "CoLA.tsv", "mnli": "MNLI-m.tsv", "mrpc": "MRPC.tsv", "qnli": "QNLI.tsv", "qqp": "QQP.tsv",
    "rte": "RTE.tsv", "sst2": "SST-2.tsv", "sst2_phrases": "SST-2.tsv", "sst2_subtrees": "SST-2.tsv",
    "stsb": "STS-B.tsv", "wnli": "WNLI.tsv",
}  # fmt: skip
"""Task → the file name that the server expects; also for a user's task with one of these names."""

# The server expects these tasks' labels as names and the others' as numbers.
_LABELS_AS_NAMES = frozenset({"mnli", "qnli", "rte"})


def write_glue_submission(task: Task, predictions: Sequence[Prediction], ids: Sequence[str], folder: Path) -> Path:
    """Write the predictions on GLUE's test split in the server's format: a header, then `index TAB prediction`.

    Args:
        task: a GLUE task.
        predictions: one class id or score for each test example.
        ids: the examples' ids: GLUE's own indices.
        folder: the folder of the file; created if missing.

    Returns:
        the file's path.

    Raises:
        ValueError: not a GLUE task, unequal lengths, or ids that are not a permutation of the numbers from 0.
    """
    if task.name not in FILES:
        raise registry.unknown(task.name, "GLUE task", FILES)
    if len(predictions) != len(ids):
        given = f"{some(len(predictions), 'prediction')} for {some(len(ids), 'id')}"
        raise ValueError(f"{given} of {task.name}; give one for each.")
    if sorted(ids) != sorted(str(index) for index in range(len(ids))):
        raise ValueError(f"The ids are not GLUE's indices 0 to {len(ids) - 1}; predict on GLUE's own {task.name} test.")
    rows = sorted((int(index), _formatted(task, value)) for index, value in zip(ids, predictions, strict=True))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILES[task.name]
    lines = ["index\tprediction", *(f"{index}\t{value}" for index, value in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    return path


def _formatted(task: Task, value: Prediction) -> str:
    assert isinstance(value, int | float), "GLUE has no sequence labelling"
    if task.label_range is not None:
        low, high = task.label_range
        return f"{min(max(value, low), high):.3f}"
    assert isinstance(value, int)
    return task.labels[value] if task.name in _LABELS_AS_NAMES else str(value)
