"""One Ray Tune experiment for the whole matrix: the driver's orders in, the workers' events out.

Tune's searcher, scheduler and callback are thin adapters to the driver. Tune's own experiment state is
discarded: its snapshots are seconds apart, and the ledger is the source of truth. Imports Ray, so import it late.
"""

from __future__ import annotations

import contextlib
import logging
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.exceptions import OutOfMemoryError, RayTaskError
from ray.tune import Callback, PlacementGroupFactory
from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher, SearchGenerator

from meltpoint.sweeps.ledger.records import CellKey
from meltpoint.sweeps.machine.limits import freeze_heap, raise_gc_threshold
from meltpoint.sweeps.on_ray.cluster_capacity import elsewhere, may_grow, trials_on
from meltpoint.sweeps.on_ray.workers import EVENTS, UNFIT_NODE, Driver, Trainable, train_on_ray
from meltpoint.sweeps.worker.outcome import (
    RESTARTED,
    STOPPED_BY_BUDGET,
    STOPPED_EARLY,
    TrialOutcome,
    failed,
    is_broken_device,
    lost_gpu,
    lost_worker,
)
from meltpoint.sweeps.worker.work_order import Order, WorkOrder, to_config

FOREVER = 10**9
"""The number of samples given to Tune; the searcher ends the experiment."""

AVOID = "avoid"
"""The configuration key for the ids of nodes that refused an order (`workers.refusal`)."""

PAUSE_SECONDS = 1.0
"""Time between two ticks of the driver while other sweeps have all places."""

WORKER_SECONDS = 60.0
"""Time that a trial is reserved for the worker being started for it; no idle worker takes it."""

Orders = dict[str, WorkOrder]
"""Tune's trial id → the order that it runs."""
Outcomes = dict[str, TrialOutcome]
"""Tune's trial id → how the order's open trials ended: noted by the scheduler, passed to the driver by the searcher."""


def run_on_tune(driver: Driver, trainable: Trainable = train_on_ray, unfit: set[str] | None = None) -> None:
    """Run until the driver has no more orders, or until Ctrl-C.

    Args:
        trainable: runs an order in a worker.
        unfit: ids of the nodes that get no orders; those that refuse one are added.
    """
    raise_gc_threshold()
    freeze_heap()
    for name in ("ray", "ray.tune"):  # failures are in the ledger and on the screen, in one line each
        logging.getLogger(name).setLevel(logging.CRITICAL)
    unfit = set() if unfit is None else unfit
    while not _run_experiment(driver, trainable, unfit):
        while driver.has_enough():
            driver.tick()
            time.sleep(PAUSE_SECONDS)


def _run_experiment(driver: Driver, trainable: Trainable, unfit: set[str]) -> bool:
    """Run one experiment of Tune's; True if the driver has no more orders.

    It also ends while other sweeps have all places (`YieldingSearch`), and when Ray's memory monitor kills a worker:
    that worker's order is lost, and the others, which Tune 2.60 ends too, restart in the next experiment.
    """
    orders: Orders = {}
    outcomes: Outcomes = {}
    search = CellSearch(driver, orders, outcomes, unfit)
    listener = Listener(driver, orders, unfit)
    with tempfile.TemporaryDirectory(prefix="meltpoint-tune-") as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tuner = tune.Tuner(
            tune.with_resources(trainable, resources_of),
            tune_config=tune.TuneConfig(
                search_alg=YieldingSearch(search), scheduler=AshaPerCell(driver, orders, outcomes), num_samples=FOREVER,
                reuse_actors=True, trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name="sweep", storage_path=str(Path(scratch).absolute()), verbose=0, callbacks=[listener],
                failure_config=tune.FailureConfig(max_failures=0), checkpoint_config=tune.CheckpointConfig(),
            ),
        )  # fmt: skip
        try:
            tuner.fit()
        except Exception as error:
            if driver.failure is not None:
                raise driver.failure from None
            kill = memory_kill_behind(error)
            if kill is None:
                raise
            hand_back(driver, orders, listener.processes, kill)
            return False
    return search.is_done


def resources_of(config: dict[str, Any]) -> PlacementGroupFactory:
    """The resources of one work order: its trials' CPUs and GPUs, which differ by cell.

    With `reuse_actors`, Tune 2.60 gives an idle worker only trials that request the same resources as its last one, and
    ends it while a trial that requests others waits.
    """
    bundle = {"CPU": config["cpus"], "GPU": config["gpus"]}
    if AVOID in config:
        return PlacementGroupFactory([bundle], bundle_label_selector=[elsewhere(config[AVOID])])
    return PlacementGroupFactory([bundle])


@contextlib.contextmanager
def failure_noted(driver: Driver) -> Iterator[None]:
    """Keep an error of the driver, such as a full disk, which Tune would bury in its own text."""
    try:
        yield
    except Exception as error:
        driver.failure = error
        raise


class NotPickled:
    """A part of Tune with no pickled state: Tune's restore never happens, and the driver cannot be pickled."""

    def __getstate__(self) -> dict[str, Any]:
        """Return no state."""
        return {}


class CellSearch(NotPickled, Searcher):
    """Takes orders from the driver and reports their ends to it. Saves nothing: the ledger has everything."""

    def __init__(self, driver: Driver, orders: Orders, outcomes: Outcomes, unfit: set[str]) -> None:
        super().__init__(metric="score", mode="max")
        self.driver, self.orders, self.outcomes, self.unfit = driver, orders, outcomes, unfit
        self.is_done = False

    def suggest(self, trial_id: str) -> Any:
        """The next order as a Tune configuration."""
        with failure_noted(self.driver):
            order = self.driver.next_order()
        if isinstance(order, str):
            self.is_done = order == "done"
            return str(Searcher.FINISHED) if self.is_done else None
        self.orders[trial_id] = order
        return to_config(order) | ({AVOID: sorted(self.unfit)} if self.unfit else {})

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Report a trial that left Tune: it is done, was stopped by `AshaPerCell`, or lost its worker."""
        order = self.orders.pop(trial_id, None)
        outcome = self.outcomes.pop(trial_id, None) or lost_worker("")
        if order is not None:
            with failure_noted(self.driver):
                self.driver.on_order_end(order, outcome)

    def save(self, checkpoint_path: str) -> None:
        """Save nothing, in the file that Tune expects."""
        Path(checkpoint_path).touch()

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing."""


class YieldingSearch(SearchGenerator):
    """Reports that the search is over while idle workers would only take places from other sweeps.

    Tune then ends its idle workers. If no trial runs either, the experiment ends, and `run_on_tune` starts another once
    places are free.
    """

    searcher: CellSearch

    def is_finished(self) -> bool:
        """True if no trial may be added now."""
        return super().is_finished() or self.searcher.driver.has_enough()


class AshaPerCell(NotPickled, FIFOScheduler):
    """Stops trials early by a bracket per cell, if the space declares early stopping; lets all others finish."""

    def __init__(
        self, driver: Driver, orders: Orders, outcomes: Outcomes, clock: Callable[[], float] = time.monotonic
    ) -> None:  # fmt: skip
        super().__init__()  # type: ignore[no-untyped-call]
        self.driver, self.orders, self.outcomes, self.clock = driver, orders, outcomes, clock
        self.brackets: dict[CellKey, AsyncHyperBandScheduler] = {}
        self.chosen = ""  # Tune's id of the trial that was chosen last
        self.since: dict[str, float] = {}  # Tune's id of a waiting trial → when it was first seen waiting

    def _bracket(self, trial: Trial) -> AsyncHyperBandScheduler | None:
        order = self.orders.get(trial.trial_id)
        rule = self.driver.early_stopping(order) if order is not None and order[0].role == "search" else None
        if order is None or rule is None:
            return None
        cell = order[0].cell
        if cell not in self.brackets:
            by_share = rule.grace_fraction is not None
            grace = round(100 * rule.grace_fraction) if rule.grace_fraction is not None else rule.grace_epochs
            self.brackets[cell] = AsyncHyperBandScheduler(
                time_attr="percent" if by_share else "epoch", metric="score", mode="max",
                max_t=100 if by_share else 10**6, grace_period=grace, reduction_factor=rule.reduction_factor,
                stop_last_trials=False,
            )  # fmt: skip
        return self.brackets[cell]

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """The waiting trial that gets the next idle worker, in turn.

        Tune would take the first one, and end the worker that it has begun to start for it. So the first trials, one
        per worker still to come, are reserved for those workers for a while. The last choice is not repeated at once:
        its worker may not have answered yet, and the others would stay idle.
        """
        open_trials = tune_controller.get_live_trials()  # not all of them: ten thousand may have ended
        waiting: dict[str, Trial] = {one.trial_id: one for one in open_trials if one.status == Trial.PENDING}
        now = self.clock()
        self.since = {trial_id: self.since.get(trial_id, now) for trial_id in self.orders if trial_id in waiting}
        running = sum(trial.status == Trial.RUNNING for trial in open_trials)
        to_come = max(0, self.driver.slots - running - 1)  # one of them may be idle already
        kept = {trial_id for trial_id in list(self.since)[:to_come] if now - self.since[trial_id] < WORKER_SECONDS}
        found = [trial_id for trial_id in self.since if trial_id not in kept]
        if not found:
            return None
        index = (found.index(self.chosen) + 1) % len(found) if self.chosen in found else 0
        self.chosen = found[index]
        return waiting[self.chosen]

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Add a trial to its cell's bracket."""
        bracket = self._bracket(trial)
        if bracket is not None:
            bracket.on_trial_add(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Note the outcome of a trial whose worker died or raised; Tune next calls the searcher, without the error."""
        self.outcomes[trial.trial_id] = outcome_of_error(trial)
        super().on_trial_error(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Continue or stop after an epoch: by the cell's bracket, or because the time budget is spent."""
        order = self.orders.get(trial.trial_id)
        events = result[EVENTS]
        if order is None or not any(event.epoch is not None for event in events):
            is_start = all(event.outcome is None for event in events)
            if order is None or not is_start or not self.driver.begins_too_late(order):
                return str(TrialScheduler.CONTINUE)
            self.outcomes[trial.trial_id] = STOPPED_BY_BUDGET
            return str(TrialScheduler.STOP)
        bracket = self._bracket(trial) if "score" in result else None  # trials that share a worker have no bracket
        decision = TrialScheduler.CONTINUE
        if bracket is not None:
            decision = bracket.on_trial_result(tune_controller, trial, result)
        outcome = STOPPED_EARLY if decision == TrialScheduler.STOP else None
        if self.driver.wants_stop(order):
            decision, outcome = TrialScheduler.STOP, STOPPED_BY_BUDGET
        if outcome is not None:
            self.outcomes[trial.trial_id] = outcome
        return str(decision)


class Listener(NotPickled, Callback):
    """Passes Tune's events on to the driver.

    Attributes:
        unfit: ids of the nodes whose workers refused an order; they get no more.
        processes: Tune's trial id → process id of its worker.
    """

    def __init__(self, driver: Driver, orders: Orders, unfit: set[str]) -> None:
        self.driver, self.orders, self.unfit = driver, orders, unfit
        self.processes: dict[str, int] = {}

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Report that a worker picked up a trial."""
        with failure_noted(self.driver):
            self.driver.on_start(self.orders[trial.trial_id])

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """Pass on a worker's events."""
        if trial.trial_id in self.orders:
            self.processes[trial.trial_id] = result["pid"]
            with failure_noted(self.driver):
                for event in result[EVENTS]:
                    self.driver.on_event(event)
                if UNFIT_NODE in result:
                    self._avoid(result[UNFIT_NODE], self.orders[trial.trial_id][0], result[EVENTS][0].outcome.error)

    def _avoid(self, node: str, order: Order, fault: str) -> None:
        """Send no more orders to a node that refused one.

        Raises:
            ValueError: no other node has room for it.
        """
        self.unfit.add(node)
        others = [one for one in ray.nodes() if one["Alive"] and one["NodeID"] not in self.unfit]  # type: ignore[no-untyped-call]
        if not any(trials_on(one, order.cpus, order.gpus) for one in others) and not may_grow(others):
            raise ValueError(f"No machine is left to train on: {fault}. The same command resumes the sweep.")

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Forget a trial's worker."""
        self.processes.pop(trial.trial_id, None)

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Let the driver do its work between events."""
        with failure_noted(self.driver):
            self.driver.tick()


def outcome_of_error(trial: Trial) -> TrialOutcome:
    """The outcome of a trial that ended in an error: Meltpoint's code raised, or the worker was lost."""
    error = trial.get_pickled_error()
    if isinstance(error, RayTaskError) and is_broken_device(error.cause):
        return lost_gpu(error.cause)
    if isinstance(error, RayTaskError):
        lines = str(error.cause).strip().splitlines()
        # A fault of the setting is an outcome of the worker's own; an import, a mount or Ray failed here.
        return failed("worker", lines[0] if lines else repr(error.cause))
    return lost_worker(str(error or trial.get_error()))


def memory_kill_behind(error: BaseException | None) -> OutOfMemoryError | None:
    """The kill by Ray's memory monitor that caused Tune's error; None if none did."""
    while error is not None and not isinstance(error, OutOfMemoryError):
        error = error.__cause__ or error.__context__
    return error


def hand_back(driver: Driver, orders: Orders, processes: Mapping[str, int], kill: OutOfMemoryError) -> None:
    """Return all orders of an experiment to the driver after a memory kill has ended it.

    Args:
        processes: Tune's trial id → process id. If the error names none of them, all count as killed.
    """
    said = {int(number) for number in re.findall(r"Selected to kill:.*\bpid=(\d+)", str(kill))}
    killed = {trial_id for trial_id, process in processes.items() if process in said} & orders.keys()
    for trial_id in list(orders):
        order = orders.pop(trial_id)
        if not killed or trial_id in killed:
            driver.on_order_end(order, lost_worker(str(kill)))
        else:
            driver.on_order_end(order, RESTARTED)
