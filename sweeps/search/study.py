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
from meltpoint.sweeps.specification.sweep_options import MODELS, Searcher
from meltpoint.tasks.core.metrics import gain

ATTEMPTS = 30  # repeated draws in a row, before others are tried or a finite space is enumerated
STARTUP_TRIALS = 4  # results that a model needs, as many as a first bundle has; earlier settings are random draws

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


def sampler(searcher: Searcher, seed: int) -> optuna.samplers.BaseSampler:
    """TPE, or a Gaussian process, as a cell's study uses it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if searcher == "gp":
            # A parameter that not every trial has is drawn at random.
            return optuna.samplers.GPSampler(
                seed=seed, n_startup_trials=STARTUP_TRIALS, warn_independent_sampling=False
            )
        # With `group`, multivariate TPE models each branch of a conditional space separately.
        return optuna.samplers.TPESampler(
            seed=seed, multivariate=True, group=True, constant_liar=True, n_startup_trials=STARTUP_TRIALS
        )


class Study:
    """A cell's searcher: the published setting first, then a model, random draws or the grid; never a setting twice.

    Only models use Optuna's study: other searchers need no results, and Optuna keeps and scans every trial.

    The study is in memory and is rebuilt from the ledger's records. A proposal depends on the seed, its number and the
    known results, but not on how often the sweep was interrupted: random draws restart with each process and skip
    those already taken; a model draws with a separate seed for each proposal.

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
        self._points = iter(space.points()) if searcher == "grid" or space.is_finite else iter(())
        self._to_pass = len(past)
        self.random = np.random.default_rng(derived_seed(*seed, 0))
        optuna.logging.set_verbosity(optuna.logging.ERROR)  # the speed that greenlet would add is no news for users
        self.study = optuna.create_study(direction="maximize", sampler=sampler(searcher, derived_seed(*seed, 0)))
        for record in sorted(past, key=lambda record: record.number):  # the order of an undisturbed search
            self._add(record)

    def ask(self, identify: Identify) -> Suggestion | None:
        """Propose an untried setting; None if none is left."""
        published = self._take(self.space.first(), identify, "first")
        if published is not None:
            return published
        if self.searcher == "grid":
            return self._enumerated(identify)
        if len(self.seen) >= STARTUP_TRIALS:
            self.study.sampler = sampler(self.searcher, derived_seed(*self.seed, len(self.seen)))
        passed, self._to_pass = self._to_pass, 0
        # The Gaussian process proposes the same point again where it proposed one that was tried before.
        for _ in range(1 if self.searcher == "gp" and self._has_model() else ATTEMPTS + passed):
            taken = self._drawn(identify)
            if taken is not None:
                return taken
        # A model may repeat a point again and again where every continuous range is conditional and inactive there.
        attempts = range(ATTEMPTS + len(self.seen))  # a restarted generator repeats its draws
        draws = (self._take(self.space.sample(self.random), identify, "random") for _ in attempts)
        taken = next((taken for taken in draws if taken is not None), None)
        return self._enumerated(identify) if taken is None and self.space.is_finite else taken

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
        """Report the end of a trial to the model; a lost trial is ignored."""
        trial = self.asked.pop(record.id, None)
        if trial is None:
            self._add(record)
            return
        if record.is_lost:
            self.study.tell(trial, state=TrialState.FAIL)  # models ignore failed trials
            return
        state, value, steps = self._end(record)
        for epoch, score in steps.items():
            trial.report(score, epoch)
        self.study.tell(trial, value, state)

    def _end(self, record: TrialRecord) -> tuple[TrialState, float | None, dict[int, float]]:
        """(state, score, epoch → score) of a trial for the model.

        TPE ranks a pruned trial without values below all others. The Gaussian process ignores it, but learns the score
        that a stopped trial reached. Neither depends on the order in which trials end.
        """
        if record.status == "finished":
            return TrialState.COMPLETE, _gain(record), {}
        steps = (
            {epoch.epoch: gain(record.metric, epoch.dev[record.metric]) for epoch in record.epochs}
            if record.status == "stopped"
            else {}
        )
        if self.searcher == "gp" and steps:
            return TrialState.COMPLETE, max(steps.values()), {}
        return TrialState.PRUNED, None, steps

    def _drawn(self, identify: Identify) -> Suggestion | None:
        """Draw a setting at random or by the model; None if it was tried before."""
        if self.searcher == "random":
            return self._take(self.space.sample(self.random), identify, "random")
        model: SuggestedBy = "gp" if self.searcher == "gp" else "tpe"
        by = model if self._has_model() else "random"
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
        """True if enough trials have a result for the model; TPE counts pruned ones, too."""
        pruned = () if self.searcher == "gp" else (TrialState.PRUNED,)
        return len(self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, *pruned))) >= STARTUP_TRIALS

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
        if self.searcher not in MODELS:
            return
        params, _ = self.space.from_params(setting)
        self.study.enqueue_trial(params)
        trial = self.study.ask()
        self.space.suggest(trial)
        self.asked[identity] = trial

    def _add(self, record: TrialRecord) -> None:
        """Add a past trial to the study, if the searcher uses it."""
        if record.is_lost or self.searcher not in MODELS:
            return
        params, distributions = self.space.from_params(record.setting)
        state, value, steps = self._end(record)
        self.study.add_trial(
            create_trial(
                state=state, params=params, distributions=distributions, value=value, intermediate_values=steps
            )
        )


def _gain(record: TrialRecord) -> float | None:
    """The dev score to maximise."""
    return None if record.dev is None else gain(record.metric, record.dev)
