"""One study a cell: which setting to try next, told how the others did."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable

import numpy as np
import optuna
from optuna.trial import TrialState, create_trial

from meltpoint.adapters.hyperparameters import Setting, Value
from meltpoint.search_spaces.space import Space
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.specification.sweep_spec import Searcher

ATTEMPTS = 30  # draws before a repeated setting is taken as a sign to look through the space in order

Identify = Callable[[Setting], tuple[str, dict[str, Value]]]
"""From a space's setting to (the trial's identity, the complete setting)."""


def derived_seed(*parts: object) -> int:
    """A seed from names and numbers, the same on every machine."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big")


class Study:
    """A cell's searcher: the published setting first, then TPE, random draws or the grid, and never a setting twice.

    It lives in memory: the ledger's records rebuild it. The seed takes in how many trials are past, because a fixed
    seed would replay the start-up draws each time a sweep goes on.
    """

    def __init__(self, space: Space, searcher: Searcher, seed: tuple[object, ...], past: list[TrialRecord]) -> None:
        self.space, self.searcher = space, searcher
        self.seen: set[str] = {record.id for record in past}
        self.asked: dict[str, optuna.Trial] = {}
        self.borrowed = 0  # settings taken over from other cells, since this process began
        number = derived_seed(*seed, len(past))
        self.random = np.random.default_rng(number)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # `group` lets multivariate TPE model each branch of a conditional space by itself.
            sampler = optuna.samplers.TPESampler(
                seed=number, multivariate=True, group=True, constant_liar=True, n_startup_trials=5
            )
            self.study = optuna.create_study(direction="maximize", sampler=sampler)
        for record in past:
            self._add(record)

    def ask(self, identify: Identify) -> tuple[str, dict[str, Value]] | None:
        """A setting that nobody has tried: (its trial's identity, the complete setting); None if none is left."""
        if not self.seen:
            return self._take(self.space.first(), identify)
        if self.searcher == "grid":
            return self._enumerated(identify)
        for _ in range(ATTEMPTS):
            taken = self._drawn(identify)
            if taken is not None:
                return taken
        return self._enumerated(identify) if self.space.size() is not None else None

    def borrow(self, setting: Setting, identify: Identify) -> tuple[str, dict[str, Value]] | None:
        """A complete setting of another cell, if this space has it and nobody has tried it here; else None."""
        try:
            own = self.space.trimmed(setting)
        except ValueError:
            return None
        taken = self._take(own, identify)
        self.borrowed += taken is not None
        return taken

    def expect(self, trial: str, setting: Setting) -> None:
        """A trial runs again that began before the sweep was cut off."""
        self._running(trial, setting)

    def tell(self, record: TrialRecord) -> None:
        """How a trial ended. An error of its setting closes it as the worst there is; a lost trial says nothing."""
        trial = self.asked.pop(record.id, None)
        if trial is None:
            self._add(record)
            return
        if record.is_lost:
            self.study.tell(trial, state=TrialState.FAIL)  # which TPE leaves out
            return
        if record.status == "finished":
            self.study.tell(trial, record.dev)
            return
        if record.status == "stopped":
            for epoch in record.epochs:
                trial.report(epoch.dev[record.metric], epoch.epoch)
        # Pruned without a value ranks below every value in TPE; FAIL would be forgotten, and the region drawn again.
        self.study.tell(trial, state=TrialState.PRUNED)

    def _drawn(self, identify: Identify) -> tuple[str, dict[str, Value]] | None:
        if self.searcher == "random":
            return self._take(self.space.sample(self.random), identify)
        trial = self.study.ask()
        setting = self.space.suggest(trial)
        identity, full = identify(setting)
        if identity in self.seen:
            self.study.tell(trial, state=TrialState.FAIL)  # a repeat says nothing new
            return None
        self.seen.add(identity)
        self.asked[identity] = trial
        return identity, full

    def _take(self, setting: Setting, identify: Identify) -> tuple[str, dict[str, Value]] | None:
        identity, full = identify(setting)
        if identity in self.seen:
            return None
        self._running(identity, setting)
        return identity, full

    def _enumerated(self, identify: Identify) -> tuple[str, dict[str, Value]] | None:
        for setting in self.space.points():
            taken = self._take(setting, identify)
            if taken is not None:
                return taken
        return None

    def _running(self, identity: str, setting: Setting) -> None:
        self.seen.add(identity)
        params, _ = self.space.from_params(setting)
        self.study.enqueue_trial(params)
        trial = self.study.ask()
        self.space.suggest(trial)
        self.asked[identity] = trial

    def _add(self, record: TrialRecord) -> None:
        if record.is_lost:
            return
        params, distributions = self.space.from_params(record.setting)
        finished = record.status == "finished"
        steps = {e.epoch: e.dev[record.metric] for e in record.epochs} if record.status == "stopped" else {}
        self.study.add_trial(
            create_trial(
                state=TrialState.COMPLETE if finished else TrialState.PRUNED,
                params=params, distributions=distributions, value=record.dev if finished else None,
                intermediate_values=steps,
            )
        )  # fmt: skip
