"""The work of a cell: its floating-point operations, its trials and finals, and which of them train together.

`plan` prices a cell by its operations, and cells are ordered by them. Kaplan et al. 2020, section 2.1: about 2 · N
operations per piece forward, twice that backward; N without embeddings. A head's weights count per piece, or per word
or input if the head reads those."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache

import torch

from meltpoint.adapters import encoders, heads, modes
from meltpoint.adapters.encoders import EncoderReference
from meltpoint.adapters.head import HeadShape
from meltpoint.adapters.hyperparameters import Setting, Value
from meltpoint.adapters.layers.bundle import MemberRng
from meltpoint.adapters.multiplier_table import Phase
from meltpoint.adapters.settings import PATIENCE, complete
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tasks.core.task import Kind

BEST_EPOCH = 10
"""The expected best epoch of a trial with patience: the median of 14 on frozen minilm, 5 to 18
(docs/internals/log.md)."""


@dataclass(frozen=True)
class Operations:
    """Floating-point operations of a cell: `once` for a frozen encoder's cached states, `trial` for each trial."""

    once: float
    trial: float


def operations_of(cell: OpenCell) -> Operations:
    """The operations of a cell's published setting.

    Each phase counts `expected_epochs`.
    """
    setting = complete(cell.space.first(), cell.mode, cell.head, cell.task.kind)
    pieces = cell.length.mean
    firsts = cell.mean_words if cell.task.of_kind.labels_words else 1.0  # first pieces of words, or [CLS]
    encoding = 2.0 * encoders.weights_without_embeddings(cell.reference) * pieces
    scoring = 2.0 * head_weights(cell, setting) * (firsts if heads.get(cell.head).reads == "first" else pieces)
    once = trial = 0.0
    for phase in modes.get(cell.mode).phases(setting):
        if phase.encoder_trains:
            train, dev = 3 * (encoding + scoring), encoding + scoring
        else:
            once, train, dev = encoding * (cell.train_examples + cell.epoch_dev_examples), 3 * scoring, scoring
        trial += expected_epochs(phase, setting) * (train * cell.train_examples + dev * cell.epoch_dev_examples)
    return Operations(once, trial)


def expected_epochs(phase: Phase, setting: Setting) -> int:
    """The expected epochs of a phase: all of them, or with patience the best one plus the wait."""
    patience = int(setting.get(PATIENCE, 0))
    return min(phase.epochs, BEST_EPOCH + patience) if patience else phase.epochs


def head_weights(cell: OpenCell, setting: Setting) -> int:
    """Number of weights in a trial's head, counted on a head that is built once."""
    task, chosen = cell.task, tuple(sorted(setting.items()))
    return _head_weights(cell.reference, cell.head, task.kind, task.outputs, task.label_range, chosen)


# transformers takes 0.1 s to build a head, and each cell needs it twice.
@lru_cache(maxsize=4096)
def _head_weights(
    reference: EncoderReference, head: str, kind: Kind, outputs: int, label_range: tuple[float, float] | None,
    setting: tuple[tuple[str, Value], ...],
) -> int:  # fmt: skip
    head_class = heads.get(head)
    native = encoders.native_head(reference) if head_class.is_native else None
    own, joins_pairs = encoders.pooling(reference), reference.joins_pairs
    shape = HeadShape(kind, encoders.state_size(reference), outputs, label_range, native, own, joins_pairs)
    # On the meta device unless weights are read from a file: initialising a BiLSTM takes seconds.
    with nullcontext() if head_class.is_native else torch.device("meta"):
        built = head_class(shape, [dict(setting)], MemberRng([0]))
    return sum(parameter.numel() for parameter in built.parameters())


def can_bundle(cell: OpenCell) -> bool:
    """True if trials of a cell can train as a bundle: the encoder is frozen, and there is no early stopping."""
    return not modes.get(cell.mode).trains_encoder and cell.space.early_stopping is None


def work_of(cell: OpenCell) -> float:
    """The duration of a cell's trial relative to those of other cells: its floating-point operations.

    The one-time cost of a frozen encoder is split among all of a cell's runs.
    """
    operations = operations_of(cell)
    return operations.trial + operations.once / (planned_trials(cell) + cell.seeds)


def planned_trials(cell: OpenCell) -> int:
    """The number of search trials of a cell: `--trials`, or the number of points of a smaller space.

    Raises:
        ValueError: the grid searcher is used with a range without grid points.
    """
    if cell.searcher == "grid" or cell.space.size() is not None:
        return sum(1 for _ in itertools.islice(cell.space.points(), cell.trials))
    return cell.trials


def default_seeds(cell: OpenCell, spec: SweepSpec) -> int:
    """The number of finals of a cell's published setting, in addition to those of its best one.

    0 if they are not wanted, or if no other setting is tried: the published setting is then the best one.
    """
    return cell.seeds if spec.default_finals and planned_trials(cell) > 1 else 0
