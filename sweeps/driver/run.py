"""A sweep on one page: open, train, finish. `meltpoint sweep`, `tune` and `demo` run it.

From here to a training step: `on_ray/experiment.py` runs Tune, `driver.py` hands out orders and ends trials,
`on_ray/workers.py` and `worker/worker.py` carry an order out, and `adapters/training/trainer.py` has the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from meltpoint.sweeps.driver.cell_endings import cell_endings, cell_figures, cell_tags, missing_runs, place_tags
from meltpoint.sweeps.driver.driver import SweepDriver
from meltpoint.sweeps.driver.finals import require_test_splits
from meltpoint.sweeps.driver.progress import Progress
from meltpoint.sweeps.driver.start import closed_lines, kept_lines, open_planner, settle_specification
from meltpoint.sweeps.ledger.lease import LeaseLostError
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import CellKey, TrialRecord, strays_in_words
from meltpoint.sweeps.machine.services import unused_variable
from meltpoint.sweeps.machine.signals import StopRequest, reason_of, request_stop, say_now, status_of
from meltpoint.sweeps.on_ray.cluster import Cluster, parts, watched
from meltpoint.sweeps.on_ray.cluster_capacity import ClusterShare
from meltpoint.sweeps.on_ray.placement import place
from meltpoint.sweeps.on_ray.workers import Scorer
from meltpoint.sweeps.results.export import export_cells
from meltpoint.sweeps.results.summary import SweepSummary, summarise
from meltpoint.sweeps.specification.cells import fault_lines, length_lines, open_cells, test_lines
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.specification.tracking_uri import default_uri
from meltpoint.sweeps.storage.files import StoragePath, storage_folder
from meltpoint.sweeps.tracking.loggers import Loggers
from meltpoint.sweeps.tracking.tracker import Tracker, check_before_start
from meltpoint.tasks.core.wording import printable


@dataclass(frozen=True)
class Outcome:
    """The outcome of a sweep.

    Attributes:
        state: "done", "stopped" (Ctrl-C, a signal, a lost cluster), or "failed" (a cell has no result).
        troubles: failures and warnings, one line each.
        stop: the request or interrupt that stopped it; None if none did.
        dashboard: the address of its cells on MLflow's server; "" if `meltpoint ui` has to start one.
    """

    state: str
    summary: SweepSummary
    folder: StoragePath
    tracking_uri: str
    troubles: list[str]
    stop: KeyboardInterrupt | None = None
    dashboard: str = ""

    @property
    def exit_status(self) -> int:
        """The command's exit status: 0 only if the sweep is done."""
        return status_of(self.stop) if self.stop is not None else int(self.state != "done")


HURRY_SECONDS = 6.0
"""MLflow's time after Ctrl-C or a signal: a local store takes milliseconds, a hung server minutes."""

Leave = Callable[[Outcome], None]


@dataclass(frozen=True)
class Writers:
    """The functions that turn a sweep's results into text.

    Attributes:
        files: returns the files that show the results: file name → text.
        note: returns the first sentences of the experiment's note in MLflow; called after `files`.
        recommended: returns the recommended cells, one per task; called after `files`.
    """

    files: Callable[[SweepSummary], Mapping[str, str]]
    note: Callable[[SweepSummary], str]
    recommended: Callable[[SweepSummary], Collection[CellKey]]


def sweep(
    spec: SweepSpec, resources: Resources, console: Console, writers: Writers, cluster: Cluster, leave: Leave
) -> Outcome:  # fmt: skip
    """Search, select, run the finals, score them on test, export; or resume a sweep that was cut off.

    Args:
        writers: turn the results into text.
        cluster: the cluster to train on; it may still be starting.
        leave: shows an outcome and ends the process, if Ray waits for a lost node; may run in another thread.

    Raises:
        ValueError: bad input, found before the first trial; one line with the remedy.
        StopRequest: another driver has taken over the sweep.
    """
    try:
        with _opened(spec, resources, console) as driver:

            def cut_off(lost: str) -> None:
                request = StopRequest(lost, status=1, without_ray=True)
                say_now(f"{lost}: the sweep ends; finished trials are kept, and the same command resumes it.")
                request_stop(request, otherwise=lambda: leave(_close_after(request, driver, writers)))

            with driver.progress:
                if driver.planner.is_complete():
                    driver.is_done = True
                    driver.progress.say("Nothing is left to train or to score.")
                else:
                    _train(driver, cluster, cut_off)
            try:
                outcome = _finish(driver, writers)
            except KeyboardInterrupt as stop:  # the second attempt repeats the first, and is quick
                _stop(driver, stop)
                outcome = _finish(driver, writers)
            if isinstance(driver.stop, StopRequest) and driver.stop.without_ray:
                leave(outcome)
            return outcome
    except LeaseLostError as lost:
        raise _lost(lost) from None


# Open.


@contextmanager
def _opened(
    spec: SweepSpec, resources: Resources, console: Console
) -> Iterator[SweepDriver]:  # fmt: skip
    """The driver of an opened sweep: its cells are read, its lease is held, its ledger is loaded."""

    def say(line: str) -> None:
        console.print(printable(line), highlight=False, markup=False, soft_wrap=True)

    storage = storage_folder(resources.storage)
    uri = resources.tracking_uri or default_uri(storage)
    ledger = Ledger(storage / spec.name)
    ledger.check_place()
    away = check_before_start(uri, has_begun=ledger.specification.exists())
    cells = open_cells(spec)
    for line in [*spec.missing(), *([away] if away else []), *length_lines(cells, only_cut=True)]:
        say(line)
    with ledger.driving(say, on_lost=lambda lost: request_stop(_lost(lost))):
        settled = settle_specification(
            ledger, spec, cells, resources.cache_overflow, resources.mix_code_versions, resources.grow
        )
        records = ledger.records()
        planner = open_planner(ledger, spec, settled.codes, cells, records, resources, say)
        left_out = [*ledger.late_lines(), *([strays_in_words(planner.strays)] if planner.strays else [])]
        for line in (*kept_lines(planner), *left_out, *ledger.clean_started(), *closed_lines(ledger, planner)):
            say(line)
        ledger.clean_states(records)
        planner.recall(ledger.unfinished())
        logs = ledger.folder / "logs" if isinstance(ledger.folder, Path) else Path("logs") / spec.name
        loggers = Loggers(resources.loggers, spec.name, logs, say)
        tracker = Tracker(spec.name, uri, storage, say, loggers)
        tracker.open(cells, spec.model_dump_json(), planner.is_complete())
        progress = Progress(lambda: list(planner.cells.values()), console)
        scorer = Scorer(ledger.folder, is_local=resources.address is None)
        driver = SweepDriver(planner, ledger, tracker, progress, scorer, resources)
        progress.remaining.slots = lambda: driver.slots
        yield driver


# Train.


def _train(driver: SweepDriver, cluster: Cluster, cut_off: Callable[[str], None]) -> None:
    """Let Ray's workers train until nothing is left, the budget is spent, or the sweep is stopped."""
    try:
        cells = [one.cell for one in driver.planner.cells.values()]
        cluster.join()
        require_test_splits(driver.ledger, cells)
        _settle_place(driver)
        driver.progress.say(f"{driver.progress.planned()}.")
        for line in (*test_lines(cells), *fault_lines(cells)):
            driver.progress.say(f"{line}.")
        with watched(parts(), cut_off):
            _run_all(driver)
    except KeyboardInterrupt as stop:
        driver.is_done = False
        _stop(driver, stop)
    except LeaseLostError as lost:
        _stop(driver, _lost(lost))
    finally:
        driver.interrupted()  # everything still under way, for any reason


def _settle_place(driver: SweepDriver) -> None:
    """Settle each trial's share of a GPU and the sweep's places on the cluster."""
    resources, progress = driver.resources, driver.progress
    if resources.address is None and (unused := unused_variable()):
        progress.say(unused)
    placed = place(driver.planner, driver.order, resources, progress.say)
    driver.resources, driver.shares, driver.slots = placed.resources, placed.shares, placed.slots
    progress.say(placed.line)
    driver.share = ClusterShare(resources.cpus_per_trial, placed.least_gpus, resources.max_workers)
    driver.note_part()
    if driver.share.part.is_limited:
        progress.say(f"The sweep may use {driver.share.part}.")


def _run_all(driver: SweepDriver) -> None:
    from meltpoint.sweeps.on_ray.experiment import run_on_tune  # Ray Tune, which the cluster's thread imports

    is_over = False
    while not is_over:  # again if a finalist's weights turn out to be damaged
        run_on_tune(driver, unfit=driver.finals.scorer.unfit)
        driver.finals.scorer.processes = driver.slots  # no trial needs the CPUs now
        while driver.is_done and driver.score(timeout_seconds=0.5):
            driver.tick()
        is_over = not driver.is_done or not driver.planner.has_work_again()


def _stop(driver: SweepDriver, stop: KeyboardInterrupt) -> None:
    """Note why the sweep ends, and make MLflow hurry; raise again if another driver has the sweep."""
    driver.stop = stop = reason_of(stop)
    driver.tracker.hurry(HURRY_SECONDS)
    if isinstance(stop, StopRequest) and not stop.may_write:
        driver.tracker.leave()
        raise stop


def _lost(error: LeaseLostError) -> StopRequest:
    return StopRequest(str(error), status=1, may_write=False)


def _close_after(stop: StopRequest, driver: SweepDriver, writers: Writers) -> Outcome:
    """Finish a sweep whose main thread waits for a lost node."""
    driver.is_done = False
    _stop(driver, stop)
    driver.interrupted()
    return _finish(driver, writers)


# Finish.


def _finish(driver: SweepDriver, writers: Writers) -> Outcome:
    """Write the results, and bring MLflow up to date with the ledger."""
    ledger, tracker, scorer = driver.ledger, driver.tracker, driver.finals.scorer
    strays = {record.id for record in driver.planner.strays}
    records = [record for record in ledger.records() if record.id not in strays]
    tracker.reconcile(records)
    note_runs(ledger, tracker, records)
    troubles = _settle_baselines(ledger) if driver.is_done else []
    summary = summarise(ledger)
    export_cells(summary, ledger.folder / "exports")
    tables = writers.files(summary)
    for name, text in tables.items():
        ledger.place(ledger.folder / name, text)
    done = driver.is_done and not scorer.pending
    recommended = writers.recommended(summary)
    places = place_tags(summary, recommended)
    opened = {progress.cell.key: progress.cell for progress in driver.planner.cells.values()}
    tracker.describe(writers.note(summary))
    tracker.close(
        [(cell.header.key, cell_figures(cell)) for cell in summary.cells],
        done,
        # A page takes megabytes, and each cell's run would have a copy.
        {name: text for name, text in tables.items() if not name.endswith(".html")},
        {cell.header.key: places[cell.header.key] | cell_tags(cell, summary) for cell in summary.cells},
        cell_endings(summary, opened, recommended),
    )
    troubles += [f"{trial}: not scored on test: {why}" for trial, why in scorer.troubles.items()]
    unfinished = missing_runs(summary) if done else []
    if unfinished and driver.budget.has_left_trials_out and any(cell.best for cell in summary.cells):
        unfinished = missing_runs(replace(summary, cells=[cell for cell in summary.cells if cell.has_failed]))
        troubles.append("The time budget left out trials: the same command runs them.")
    troubles += unfinished
    troubles += [tracker.trouble] if tracker.trouble else []
    state = "stopped" if not done else "failed" if scorer.troubles or unfinished else "done"
    return Outcome(state, summary, ledger.folder, tracker.uri, troubles, driver.stop, tracker.address())


def _settle_baselines(ledger: Ledger) -> list[str]:
    """Make the missing baselines of the sweep's tasks; a line if that fails."""
    from meltpoint.sweeps.results.ensembles_and_baselines import settle_baselines  # scikit-learn, which takes a second

    try:
        settle_baselines(ledger, summarise(ledger))
    except (ValueError, OSError) as error:
        return [f"no baselines to compare with: {error}"]
    return []


def note_runs(ledger: Ledger, tracker: Tracker, records: Iterable[TrialRecord]) -> None:
    """Add the run ids of trials that ended while MLflow was away to their records."""
    for record in records:
        run = tracker.run_of(record.id)
        if run is not None and run != record.mlflow_run_id:
            ledger.write(record.model_copy(update={"mlflow_run_id": run}))
