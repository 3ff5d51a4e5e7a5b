"""Running a sweep from its specification to its table; what `meltpoint sweep` and `demo` call."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from meltpoint.sweeps.driver.cell_endings import cell_endings, place_tags
from meltpoint.sweeps.driver.driver import SweepDriver
from meltpoint.sweeps.driver.finals import TestSplitCheck, looking_at_test_splits
from meltpoint.sweeps.driver.opening import (
    closed_lines,
    kept_lines,
    open_planner,
    settle_specification,
)
from meltpoint.sweeps.driver.progress import Progress
from meltpoint.sweeps.driver.record_writer import LOOK_SECONDS, whole_records
from meltpoint.sweeps.ledger.lease import LeaseLostError
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import CellKey, TrialRecord, strays_in_words
from meltpoint.sweeps.machine.ray_address import unused_variable
from meltpoint.sweeps.machine.signals import StopRequest, reason_of, request_stop, say_now, status_of
from meltpoint.sweeps.on_ray.cluster import Cluster, Lost, parts, watched
from meltpoint.sweeps.on_ray.placement import place
from meltpoint.sweeps.on_ray.preflight import require_fit_nodes
from meltpoint.sweeps.on_ray.room import WHOLE, Board, ClusterShare
from meltpoint.sweeps.results.cost import CellCost
from meltpoint.sweeps.results.export import export_cells
from meltpoint.sweeps.results.guards import cell_guards
from meltpoint.sweeps.results.mlflow_model import finalist_models
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary, summarise
from meltpoint.sweeps.specification.cells import fault_lines, length_lines, open_cells, test_lines
from meltpoint.sweeps.specification.sweep_spec import Resources, SweepSpec
from meltpoint.sweeps.specification.tracking_uri import default_uri
from meltpoint.sweeps.storage.files import StoragePath, storage_folder
from meltpoint.sweeps.tracking.tracker import Tracker, check_before_start
from meltpoint.sweeps.worker.finalist_scoring import Scorer
from meltpoint.tasks.core.wording import printable, some


@dataclass(frozen=True)
class Outcome:
    """The outcome of a sweep.

    Attributes:
        state: "done", "stopped" (Ctrl-C, a signal, a lost cluster), or "failed" (a cell has no result).
        troubles: what a person should know, a line each.
        stop: what stopped it; None where nothing did.
        dashboard: the address of its cells on MLflow's server; "" where `meltpoint ui` has to start one.
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
        """The command's: 0 only for a sweep that is done."""
        return status_of(self.stop) if self.stop is not None else int(self.state != "done")


HURRY_SECONDS = 6.0
"""How long MLflow may take after Ctrl-C or a signal: a local store takes milliseconds, a hung server minutes."""

Leave = Callable[[Outcome], None]


@dataclass(frozen=True)
class Writers:
    """The functions that put a sweep's results into words.

    Attributes:
        files: from the results to the files that show them: file name → text.
        card: from the results and one cell to the model card of its best finalist; None where there is none.
        note: from the results to the sentences with which the experiment's note in MLflow begins; called after `files`.
        recommended: the cells that are recommended, one a task; called after `files`.
    """

    files: Callable[[SweepSummary], Mapping[str, str]]
    card: Callable[[SweepSummary, CellSummary], str | None]
    note: Callable[[SweepSummary], str]
    recommended: Callable[[SweepSummary], Collection[CellKey]]


def sweep(
    spec: SweepSpec, resources: Resources, console: Console, writers: Writers, cluster: Cluster, leave: Leave
) -> Outcome:  # fmt: skip
    """Search, select, run the finals, score them on test, export; or go on with a sweep that was cut off.

    Args:
        writers: put the results into words.
        cluster: where it trains; it may still be starting.
        leave: shows an outcome and ends the process, where Ray waits for what is lost; perhaps in another thread.

    Raises:
        ValueError: bad input, found before the first trial; one line with the remedy.
        StopRequest: another driver has taken over the sweep.
    """
    try:
        return _sweep(spec, resources, console, writers, cluster, leave)
    except LeaseLostError as lost:
        raise _lost(lost) from None


def _lost(error: LeaseLostError) -> StopRequest:
    return StopRequest(str(error), status=1, may_write=False)


def _sweep(
    spec: SweepSpec, resources: Resources, console: Console, writers: Writers, cluster: Cluster, leave: Leave
) -> Outcome:  # fmt: skip
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
    looking = looking_at_test_splits(ledger, cells)
    with ledger.driving(say, on_lost=lambda lost: request_stop(_lost(lost))), looking as test_splits:
        settled = settle_specification(
            ledger, spec, cells, resources.cache_overflow, resources.mix_code_versions, resources.grow
        )
        records = whole_records(ledger, spec, settled.codes, cells, say)
        planner = open_planner(ledger, spec, settled.codes, cells, records, resources, say)
        left_out = [*ledger.late_lines(), *([strays_in_words(planner.strays)] if planner.strays else [])]
        for line in (*kept_lines(planner), *left_out, *ledger.clean_started(), *closed_lines(ledger, planner)):
            say(line)
        ledger.clean_states(records)
        planner.recall(ledger.unfinished())
        tracker = Tracker(spec.name, uri, storage, say, ledger.attempt)
        tracker.open(cells, spec.model_dump_json(), planner.is_complete())
        tracker.catch_up(planner.counted(), planner.proposal_of)
        with Progress(lambda: list(planner.cells.values()), console) as progress:
            driver = SweepDriver(planner, ledger, tracker, progress, Scorer(ledger.folder), resources)

            progress.remaining.slots = lambda: driver.slots
            driver.finals.drop_unasked()

            def cut_off(lost: Lost) -> None:
                request = StopRequest(str(lost), status=1, without_ray=True)
                say_now(f"{lost}: the sweep ends; what finished is kept, and the same command goes on.")
                request_stop(request, otherwise=lambda: leave(_close_after(request, driver, writers)))

            _drive(driver, cluster, cut_off, test_splits)
        try:
            outcome = _close(driver, writers)
        except KeyboardInterrupt as stop:  # what it has done is done again, in a moment
            _stop(driver, stop)
            outcome = _close(driver, writers)
        if isinstance(driver.stop, StopRequest) and driver.stop.without_ray:
            leave(outcome)
        return outcome


def note_runs(ledger: Ledger, tracker: Tracker, records: Iterable[TrialRecord]) -> None:
    """Trials that ended while MLflow was away have their runs now; their records say which."""
    for record in records:
        run = tracker.run_of(record.id)
        if run is not None and run != record.mlflow_run_id:
            ledger.write(record.model_copy(update={"mlflow_run_id": run}))


def _close_after(stop: StopRequest, driver: SweepDriver, writers: Writers) -> Outcome:
    """Close a sweep whose main thread waits for what is lost."""
    driver.is_done = False
    _stop(driver, stop)
    driver.interrupted()
    return _close(driver, writers)


def _drive(
    driver: SweepDriver, cluster: Cluster, cut_off: Callable[[Lost], None], test_splits: TestSplitCheck
) -> None:  # fmt: skip
    if driver.planner.is_complete():
        driver.is_done = True
        driver.progress.say("Nothing is left to train or to score.")
    else:
        _train(driver, cluster, cut_off, test_splits)


def _train(
    driver: SweepDriver, cluster: Cluster, cut_off: Callable[[Lost], None], test_splits: TestSplitCheck
) -> None:  # fmt: skip
    resources, progress = driver.resources, driver.progress
    try:
        cluster.join()
        test_splits.require()
        if resources.address is not None:
            cells = [progress.cell for progress in driver.planner.unfinished()]
            require_fit_nodes(driver.ledger.folder.parent, cells, resources.cpus, progress.say)
        elif unused := unused_variable(None):
            progress.say(unused)
        board = None if resources.address is None else Board()
        if board is not None:
            board.announce(driver.planner.spec.name, WHOLE)  # before it waits for room, which others then give
        placed = place(driver.planner, driver.order, resources, progress.say)
        driver.resources, driver.shares, driver.slots = placed.resources, placed.shares, placed.slots
        progress.say(placed.line)
        driver.share = ClusterShare(
            driver.planner.spec.name, resources.cpus, placed.least_gpus, resources.max_workers, board
        )
        driver.note_part()
        if driver.share.part.is_limited:
            progress.say(f"The sweep {driver.share.part}.")
        progress.say(f"{progress.planned()}.")
        cells = [one.cell for one in driver.planner.cells.values()]
        for line in (*test_lines(cells), *fault_lines(cells)):
            progress.say(f"{line}.")
        with watched(parts(), cut_off):
            _run_all(driver)
        while not driver.writer.write_waiting():
            time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt as stop:
        driver.is_done = False
        _stop(driver, stop)
    except LeaseLostError as lost:
        _stop(driver, _lost(lost))
    finally:
        driver.interrupted()  # whatever is still under way, for whatever reason


def _run_all(driver: SweepDriver) -> None:
    from meltpoint.sweeps.on_ray.experiment import run_on_tune  # Ray Tune, which the cluster's thread imports

    is_over = False
    while not is_over:  # again where a finalist's weights turn out to be damaged
        run_on_tune(driver, unfit=driver.finals.scorer.unfit)
        while driver.is_done and driver.score(timeout_seconds=0.5):
            pass
        is_over = not driver.is_done or not driver.planner.has_work_again()


def _stop(driver: SweepDriver, stop: KeyboardInterrupt) -> None:
    """Note why the sweep ends, and let MLflow hurry; raise it again where another driver has the sweep."""
    driver.stop = stop = reason_of(stop)
    driver.tracker.hurry(HURRY_SECONDS)
    if isinstance(stop, StopRequest) and not stop.may_write:
        driver.tracker.leave()
        raise stop


def _close(driver: SweepDriver, writers: Writers) -> Outcome:
    """Let MLflow have everything that the ledger has, then write the results."""
    ledger, tracker = driver.ledger, driver.tracker
    strays = {record.id for record in driver.planner.strays}
    records = [record for record in ledger.records() if record.id not in strays]
    tracker.reconcile(records, driver.planner.proposal_of)
    note_runs(ledger, tracker, records)
    return _finish(driver, ledger, tracker, writers)


def _finish(driver: SweepDriver, ledger: Ledger, tracker: Tracker, writers: Writers) -> Outcome:
    troubles = _settle_baselines(ledger) if driver.is_done else []
    summary = summarise(ledger)
    export_cells(ledger, summary, ledger.folder / "exports")
    tables = writers.files(summary)
    for name, text in tables.items():
        ledger.place(ledger.folder / name, text)
    done = driver.is_done and not driver.finals.scorer.pending
    wanted = summary.cells if done and driver.resources.register else []
    with finalist_models(ledger, summary, wanted, writers.card) as (models, without_model):
        # A page has megabytes, and each cell's run would have a copy of it.
        artifacts = {name: text for name, text in tables.items() if not name.endswith(".html")}
        tracker.describe(writers.note(summary))
        _tell_mlflow(driver, tracker, summary, artifacts, done, models, writers.recommended(summary))
        troubles += without_model
    troubles += [f"{trial}: not scored on test: {why}" for trial, why in driver.finals.scorer.troubles.items()]
    empty = [".".join(cell.header.key) for cell in summary.cells if done and cell.best is None]
    unfinished = [f"{name}: no trial finished; `meltpoint status {summary.name}` says why." for name in empty]
    searched = [cell for cell in summary.cells if done and cell.best is not None]
    unfinished += [
        line for cell in searched for line in (missing_finals(summary, cell), missing_defaults(cell)) if line
    ]
    if unfinished and driver.budget.has_left_trials_out:  # as it was asked to
        unfinished, troubles = [], [*troubles, "The time budget left trials out: the same command runs them."]
    troubles += unfinished
    lost = len(driver.writer.unwritten)
    troubles += [f"The disk had no room for the records of {some(lost, 'trial')}: they run again."] if lost else []
    troubles += tracker.notes() + ([tracker.trouble] if tracker.trouble else [])
    lacks = bool(driver.finals.scorer.troubles or unfinished)
    state = "stopped" if not done else "failed" if lacks else "done"
    return Outcome(state, summary, ledger.folder, tracker.uri, troubles, driver.stop, tracker.address())


def _tell_mlflow(
    driver: SweepDriver, tracker: Tracker, summary: SweepSummary, tables: dict[str, str], done: bool,
    models: Mapping[CellKey, Path], recommended: Collection[CellKey],
) -> None:  # fmt: skip
    """Write the results to the cells' runs, and wait for MLflow.

    Args:
        models: the MLflow models of some cells' finalists.
        recommended: the cells that are recommended.
    """
    figures = [(cell.header.key, cell_figures(cell)) for cell in summary.cells]
    places = place_tags(summary, recommended)
    tags = {cell.header.key: places[cell.header.key] | cell_tags(cell, summary) for cell in summary.cells}
    opened = {progress.cell.key: progress.cell for progress in driver.planner.cells.values()}
    tracker.close(figures, done, tables, tags, cell_endings(summary, opened, done, models, recommended))


def _settle_baselines(ledger: Ledger) -> list[str]:
    """Make the baselines of the sweep's tasks that are not there yet; a line where that was not possible."""
    from meltpoint.sweeps.results.baselines import settle_baselines  # scikit-learn, which takes a second

    try:
        settle_baselines(ledger, summarise(ledger))
    except (ValueError, OSError) as error:
        return [f"no baselines to compare with: {error}"]
    return []


def missing_finals(summary: SweepSummary, cell: CellSummary) -> str | None:
    """One line on the finals of a searched cell that have no result; None where all have one."""
    planned = summary.seeds_of(cell)
    return _without(cell, f"{planned} finals", planned - len(cell.finals), cell.failed_finals)


def missing_defaults(cell: CellSummary) -> str | None:
    """One line on the planned finals of a cell's published setting that have no result; None where all have one."""
    planned = cell.default_seeds
    ended = len(cell.default_finals) if planned else 0
    return _without(cell, f"{planned} finals of the published setting", planned - ended, cell.failed_defaults)


def _without(cell: CellSummary, what: str, count: int, failed: Sequence[TrialRecord]) -> str | None:
    """One line on `count` finals without a result, with an error of theirs and what tries them again; None of none."""
    if count <= 0:
        return None
    why = f" ({failed[0].error})" if failed else ""
    is_by_setting = any(not final.is_lost for final in failed)
    way = "--retry-failed tries again" if is_by_setting else "the same command tries again"
    return f"{'.'.join(cell.header.key)}: {count} of {what} without a result{why}; {way}."


def cell_tags(cell: CellSummary, summary: SweepSummary) -> dict[str, str]:
    """The tags of a cell's MLflow run: its warnings, and the versions of the code where its trials are of several."""
    warnings = [guard.text for guard in cell_guards(cell, summary.baselines.get(cell.header.task))]
    return {
        **({"meltpoint.warnings": "; ".join(warnings)} if warnings else {}),
        **({"meltpoint.code_versions": "; ".join(map(str, cell.code_uses))} if cell.mixes_code else {}),
    }


def cell_figures(cell: CellSummary) -> dict[str, float]:
    """A cell's figures for its MLflow run, the scores first: a run's page shows them in this order."""
    scores = {"test": cell.test, "dev": cell.dev, "default_test": cell.default_test, "default_dev": cell.default_dev}
    figures = {}
    for name, over in scores.items():
        if over is not None:
            figures[f"{name}_mean"] = over.mean
            figures |= {} if over.std is None else {f"{name}_std": over.std}
    if cell.best is not None and cell.best.dev is not None:
        figures["best_dev"] = cell.best.dev
    figures |= {"seeds": float(len(cell.finals)), "trials_finished": float(cell.counts["finished"])}
    return figures | {"train_hours": cell.seconds / 3600} | cost_figures(cell.cost)


def cost_figures(cost: CellCost) -> dict[str, float]:
    """A cell's cost beside its hours, as far as it is known."""
    peak, joules = cost.peak_memory_bytes, cost.energy_joules
    figures = {"gpu_hours": cost.gpu_hours, "trained_parameters": cost.trained_parameters}
    figures |= {"seconds_of_a_final": cost.seconds_of_a_final}
    figures |= {"peak_memory_gb": None if peak is None else peak / 1e9}
    figures |= {"energy_kj": None if joules is None else joules / 1e3}
    return {name: float(value) for name, value in figures.items() if value is not None}
