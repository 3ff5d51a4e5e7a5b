"""The search of one cell: an Optuna study that proposes settings and receives their results."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import optuna
from optuna.trial import TrialState, create_trial

from meltpoint.adapters.hyperparameters import MAX_PIECES, Setting, Value
from meltpoint.search_spaces.space import Space
from meltpoint.sweeps.ledger.records import SuggestedBy, TrialRecord
from meltpoint.sweeps.specification.sweep_options import Searcher
from meltpoint.tasks.core.metrics import gain

ATTEMPTS = 30  # repeated draws in a row after which a finite space is enumerated instead
STARTUP_TRIALS = 5  # results that TPE's model needs, including the published setting's; random draws before

Identify = Callable[[Setting], tuple[str, dict[str, Value]]]
"""A space's setting → (the trial's identity, the complete setting)."""


class Suggestion(NamedTuple):
    """A setting to try: its trial's identity, the complete setting, and its source."""

    trial: str
    setting: dict[str, Value]
    by: SuggestedBy


def derived_seed(*parts: object) -> int:
    """A seed derived from names and numbers, the same on every machine."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big")


def sampler(seed: int) -> optuna.samplers.BaseSampler:
    """TPE as a cell's study uses it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # With `group`, multivariate TPE models each branch of a conditional space separately.
        return optuna.samplers.TPESampler(
            seed=seed, multivariate=True, group=True, constant_liar=True, n_startup_trials=STARTUP_TRIALS
        )


class Study:
    """A cell's searcher: the published setting first, then TPE, random draws or the grid; never a setting twice.

    Only TPE uses Optuna's study: other searchers need no results, and Optuna keeps and scans every trial.

    The study is in memory and is rebuilt from the ledger's records. A proposal depends on the seed, its number and the
    known results, but not on how often the sweep was interrupted: random draws restart with each process and skip
    those already taken; TPE draws with a separate seed for each proposal.

    Attributes:
        seen: identities of all trials proposed so far.
        asked: identity → Optuna's trial, for trials without a result yet.
        borrowed: number of settings borrowed from other cells.
    """

    def __init__(self, space: Space, searcher: Searcher, seed: tuple[object, ...], past: list[TrialRecord]) -> None:
        self.space, self.searcher, self.seed = space, searcher, seed
        self.seen: set[str] = {record.id for record in past}
        self.asked: dict[str, optuna.Trial] = {}
        self.borrowed = sum(record.suggested_by == "sibling" for record in past)
        self._points = iter(space.points()) if searcher == "grid" or space.size() is not None else iter(())
        self._to_pass = len(past)
        self.random = np.random.default_rng(derived_seed(*seed, 0))
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = optuna.create_study(direction="maximize", sampler=sampler(derived_seed(*seed, 0)))
        for record in past:
            self._add(record)

    def ask(self, identify: Identify) -> Suggestion | None:
        """Propose an untried setting; None if none is left."""
        published = self._take(self.space.first(), identify, "first")
        if published is not None:
            return published
        if self.searcher == "grid":
            return self._enumerated(identify)
        if len(self.seen) >= STARTUP_TRIALS:
            self.study.sampler = sampler(derived_seed(*self.seed, len(self.seen)))
        passed, self._to_pass = self._to_pass, 0
        for _ in range(ATTEMPTS + passed):
            taken = self._drawn(identify)
            if taken is not None:
                return taken
        if self.space.size() is not None:
            return self._enumerated(identify)
        # TPE may draw the same point again and again where every continuous range is conditional and inactive there.
        attempts = range(ATTEMPTS + len(self.seen))  # a restarted generator repeats its draws
        draws = (self._take(self.space.sample(self.random), identify, "random") for _ in attempts)
        return next((taken for taken in draws if taken is not None), None)

    def borrow(self, setting: Setting, identify: Identify) -> Suggestion | None:
        """Propose a complete setting of another cell; None if this space does not contain it, or it was tried here.

        Its longest input becomes this cell's if the space fixes one, since that is a property of the task.
        """
        length = self.space.parameters.get(MAX_PIECES.name)
        own = {MAX_PIECES.name: length.start} if length is not None and length.count == 1 else {}
        try:
            trimmed = self.space.trimmed({**setting, **own})
        except ValueError:
            return None
        taken = self._take(trimmed, identify, "sibling")
        self.borrowed += taken is not None
        return taken

    def expect(self, trial: str, setting: Setting, by: SuggestedBy | None = None) -> None:
        """Register a trial that runs again, because the sweep was interrupted or the trial was lost."""
        self.borrowed += by == "sibling"
        self._to_pass += 1  # a restarted generator draws it once more
        self._running(trial, setting)

    def tell(self, record: TrialRecord) -> None:
        """Report the end of a trial to TPE. An error of its setting ranks it last; a lost trial is ignored."""
        trial = self.asked.pop(record.id, None)
        if trial is None:
            self._add(record)
            return
        if record.is_lost:
            self.study.tell(trial, state=TrialState.FAIL)  # TPE ignores failed trials
            return
        if record.status == "finished":
            self.study.tell(trial, _gain(record))
            return
        if record.status == "stopped":
            for epoch in record.epochs:
                trial.report(gain(record.metric, epoch.dev[record.metric]), epoch.epoch)
        # TPE ranks a pruned trial without values below all others; FAIL would be ignored, and the region drawn again.
        self.study.tell(trial, state=TrialState.PRUNED)

    def _drawn(self, identify: Identify) -> Suggestion | None:
        """Draw a setting at random or by TPE; None if it was tried before."""
        if self.searcher == "random":
            return self._take(self.space.sample(self.random), identify, "random")
        by: SuggestedBy = "tpe" if self._has_model() else "random"
        trial = self.study.ask()
        setting = self.space.suggest(trial)
        identity, full = identify(setting)
        if identity in self.seen:
            self.study.tell(trial, state=TrialState.FAIL)  # a repeated setting has no new result
            return None
        self.seen.add(identity)
        self.asked[identity] = trial
        return Suggestion(identity, full, by)

    def _has_model(self) -> bool:
        """True if TPE draws from its model: enough trials have a result (optuna 5.0, `TPESampler._sample_relative`).

        Pruned trials count; running and failed ones do not.
        """
        states = (TrialState.COMPLETE, TrialState.PRUNED)
        return len(self.study.get_trials(deepcopy=False, states=states)) >= STARTUP_TRIALS

    def _take(self, setting: Setting, identify: Identify, by: SuggestedBy) -> Suggestion | None:
        """Propose a given setting; None if it was tried before."""
        identity, full = identify(setting)
        if identity in self.seen:
            return None
        self._running(identity, setting)
        return Suggestion(identity, full, by)

    def _enumerated(self, identify: Identify) -> Suggestion | None:
        """Propose the first untried point of the space, in order; None if none is left."""
        for setting in self._points:  # all earlier points are seen already
            taken = self._take(setting, identify, "grid")
            if taken is not None:
                return taken
        return None

    def _running(self, identity: str, setting: Setting) -> None:
        """Register a trial with a given setting as running."""
        self.seen.add(identity)
        if self.searcher != "tpe":
            return
        params, _ = self.space.from_params(setting)
        self.study.enqueue_trial(params)
        trial = self.study.ask()
        self.space.suggest(trial)
        self.asked[identity] = trial

    def _add(self, record: TrialRecord) -> None:
        """Add a past trial to the study, if the searcher uses it."""
        if record.is_lost or self.searcher != "tpe":
            return
        params, distributions = self.space.from_params(record.setting)
        finished = record.status == "finished"
        steps = (
            {e.epoch: gain(record.metric, e.dev[record.metric]) for e in record.epochs}
            if record.status == "stopped"
            else {}
        )
        self.study.add_trial(
            create_trial(
                state=TrialState.COMPLETE if finished else TrialState.PRUNED,
                params=params, distributions=distributions, value=_gain(record) if finished else None,
                intermediate_values=steps,
            )
        )  # fmt: skip


def _gain(record: TrialRecord) -> float | None:
    """The dev score to maximise."""
    return None if record.dev is None else gain(record.metric, record.dev)
