"""A cell's work, its progress through its search and finals, and the names of its trials.

The work is a trial's floating-point operations: `plan` prices a cell by them, and cells are ordered by them. Kaplan et
al. 2020, section 2.1: about 2 · N operations per piece forward, twice that backward; N without embeddings. A head's
weights count per piece, or per word or input if the head reads those.
"""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache

import torch

from meltpoint.adapters import encoders, heads, modes
from meltpoint.adapters.encoders import EncoderReference
from meltpoint.adapters.head import HeadShape
from meltpoint.adapters.hyperparameters import Setting, Value
from meltpoint.adapters.layers.bundle import MemberRng
from meltpoint.adapters.multiplier_table import Phase
from meltpoint.adapters.settings import PATIENCE, complete
from meltpoint.sweeps.ledger.records import Trial, TrialRecord, trial_label
from meltpoint.sweeps.search.early_ends import EarlyEnd, Entrant, scores_of
from meltpoint.sweeps.search.selection import best_of
from meltpoint.sweeps.search.study import Study
from meltpoint.sweeps.specification.cells import OpenCell, cell_name
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tasks.core.task import Kind

BEST_EPOCH = 10
"""The expected best epoch of a trial with patience: the median of 14 on frozen minilm, 5 to 18
(docs/internals/log.md)."""


@dataclass(frozen=True)
class Price:
    """The price of a cell, in floating-point operations or in worker seconds.

    Attributes:
        once: for a frozen encoder's states, which are cached.
        trial: for each trial.
    """

    once: float
    trial: float


def operations_of(cell: OpenCell) -> Price:
    """The price of a cell's published setting in floating-point operations.

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
            layers = encoders.layer_count(cell.reference) if phase.top_groups is not None else 0
            share = min(1.0, (phase.top_groups or 0) / layers) if layers else 1.0  # the states below are cached
            train, dev = 3 * (share * encoding + scoring), share * encoding + scoring
            once = max(once, (1.0 - share) * encoding * (cell.train_examples + cell.epoch_dev_examples))
        else:
            once, train, dev = encoding * (cell.train_examples + cell.epoch_dev_examples), 3 * scoring, scoring
        trial += expected_epochs(phase, setting) * (train * cell.train_examples + dev * cell.epoch_dev_examples)
    return Price(once, trial)


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


def searches_layers(cell: OpenCell) -> bool:
    """True if trials of a frozen encoder may read different layers (`probe.layers`, `feature_extraction.depth`, …)."""
    mode, searched = modes.get(cell.mode), {name for name, range_ in cell.space.parameters.items() if range_.count != 1}
    return not mode.trains_encoder and any(one.shapes and one.name in searched for one in mode.hyperparameters)


def can_bundle(cell: OpenCell, gpus: int) -> bool:
    """True if trials of a cell can train as a bundle, by its mode; never with early stopping."""
    mode = modes.get(cell.mode)
    return (not mode.trains_encoder or (mode.side_by_side and gpus > 0)) and cell.space.early_stopping is None


def is_as_alone(record: TrialRecord) -> bool:
    """True if a trial has the numbers that it has alone; beside others, a trained encoder draws other dropout masks."""
    return record.trained_together == 1 or not modes.get(record.mode).trains_encoder


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
    if cell.searcher == "grid" or cell.space.is_finite:
        return sum(1 for _ in itertools.islice(cell.space.points(), cell.trials))
    return cell.trials


def default_seeds(cell: OpenCell, spec: SweepSpec) -> int:
    """The number of finals of a cell's published setting, in addition to those of its best one.

    0 if they are not wanted, or if no other setting is tried: the published setting is then the best one.
    """
    return cell.seeds if spec.default_finals and planned_trials(cell) > 1 else 0


# The progress.


def trial_name(trial: Trial) -> str:
    """A trial's name in the sweep's output: its cell's name, then `trial_label`."""
    return f"{cell_name(*trial.cell)} {trial_label(trial)}"


@dataclass
class CellProgress:
    """The progress of a cell.

    Attributes:
        cell: the cell.
        planned: number of planned search trials: `--trials`, or the number of points of a smaller space.
        study: the cell's searcher.
        work: relative duration of one of its trials (`work_of`).
        search, finals, defaults: trial id → record, for trials that ended, by role.
        running: trial id → trial, for trials that have begun and not ended.
        again: interrupted or lost trials, which run again before any new one.
        early_end: the end of the search by a check (`early_ends`), or None.
        limit: number of search trials that may begin before the next check; None without one.
        cut: whether the search ended before `target`, by the time budget or because the cell is closed.
        finals_cut: whether the time budget allows only the first final.
        published: the space's published setting, complete; `published_trial` is the identity of its search trial.
        planned_defaults: the finals of the published setting; empty if not planned.
        planned_finals: the finals of the search trial `planned_for`, the best one when they were last planned.
        best: the best finished search trial so far; stored, since searching thousands of records for it takes time.
    """

    cell: OpenCell
    planned: int
    study: Study
    work: float
    search: dict[str, TrialRecord] = field(default_factory=dict)
    finals: dict[str, TrialRecord] = field(default_factory=dict)
    defaults: dict[str, TrialRecord] = field(default_factory=dict)
    running: dict[str, Trial] = field(default_factory=dict)
    again: list[Trial] = field(default_factory=list)
    early_end: EarlyEnd | None = None
    limit: int | None = None
    cut: bool = False
    finals_cut: bool = False
    published: dict[str, Value] = field(default_factory=dict)
    published_trial: str = ""
    planned_defaults: tuple[Trial, ...] = ()
    planned_for: str = ""
    planned_finals: tuple[Trial, ...] = ()
    best: TrialRecord | None = field(init=False)

    def __post_init__(self) -> None:
        self.best = best_of(self.search.values())

    def ended(self, record: TrialRecord) -> None:
        """Add the record of a trial that ended, or replace a changed one."""
        self.running.pop(record.id, None)
        if record.role == "search":
            is_new = record.id not in self.search
            self.search[record.id] = record
            # A new record is compared with the best one only; after a change, any other record may be the best.
            rivals = filter(None, (record, self.best)) if is_new else self.search.values()
            self.best = best_of(rivals)
        else:
            (self.finals if record.role == "final" else self.defaults)[record.id] = record

    @property
    def finalists(self) -> list[TrialRecord]:
        """The finals of the best and the published setting, which are scored on test."""
        return [*self.finals.values(), *self.defaults.values()]

    @property
    def wanted_defaults(self) -> tuple[Trial, ...]:
        """The finals of the published setting to run; none once it is found to be the best one."""
        is_best = self.searched and self.best is not None and self.best.setting == self.published
        return () if is_best else self.planned_defaults

    @property
    def unscored(self) -> list[TrialRecord]:
        """The finished finals without a test score; those of the published setting only if wanted."""
        wanted = {trial.id for trial in self.wanted_defaults}
        ended = [*self.finals.values(), *(record for record in self.defaults.values() if record.id in wanted)]
        return [record for record in ended if record.status == "finished" and record.test is None]

    @property
    def target(self) -> int:
        """The number of search trials, as far as the checks have decided."""
        return self.planned if self.early_end is None else self.early_end.trials

    @property
    def may_begin(self) -> bool:
        """True if a new search trial may begin now."""
        return not self.cut and self.begun < (self.target if self.limit is None else self.limit)

    def entrant(self) -> Entrant:
        """The cell as the checks see it."""
        cell, ended = self.cell, scores_of(self.search.values())
        dev = cell.epoch_dev_examples
        return Entrant(cell.key, cell.train_examples, self.planned, cell.metric, dev, ended, self.cut)

    @property
    def begun(self) -> int:
        """The number of search trials that have ended, are running, or will run again."""
        under_way = [*self.running.values(), *self.again]
        return len(self.search) + sum(trial.role == "search" for trial in under_way)

    @property
    def free_number(self) -> int:
        """The lowest number that no search trial has: a lost record's, or the next one."""
        begun = (*self.search.values(), *self.running.values(), *self.again)
        taken = {trial.number for trial in begun if trial.role == "search"}
        return next(number for number in itertools.count() if number not in taken)

    @property
    def due_again(self) -> list[Trial]:
        """The trials that run again. Search trials do not, once the search is cut and the cell has a result."""
        is_over = self.cut and self.best is not None
        return [trial for trial in self.again if trial.role != "search" or not is_over]

    @property
    def searched(self) -> bool:
        """True if the search is over."""
        under_way = [*self.running.values(), *self.due_again]
        return not any(p.role == "search" for p in under_way) and (len(self.search) >= self.target or self.cut)
