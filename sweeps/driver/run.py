"""Running a sweep from its specification to its table; what `meltpoint sweep` and `demo` call."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from meltpoint.adapters.files import write_atomically
from meltpoint.sweeps.driver.driver import SweepConductor
from meltpoint.sweeps.driver.progress import Progress
from meltpoint.sweeps.ledger.ledger import Ledger, storage_folder
from meltpoint.sweeps.ledger.records import CellKey, strays_in_words
from meltpoint.sweeps.on_ray import experiment
from meltpoint.sweeps.on_ray.cluster import Cluster
from meltpoint.sweeps.on_ray.placement import place
from meltpoint.sweeps.results.code_versions import kept_in_words
from meltpoint.sweeps.results.export import export_cells
from meltpoint.sweeps.results.summary import (
    CellHeader,
    CellSummary,
    SweepFile,
    SweepSummary,
    read_sweep,
    summarise,
    write_sweep,
)
from meltpoint.sweeps.search.closing import Closing, closing_of, in_words
from meltpoint.sweeps.search.planner import CellProgress, Planner, planned_trials
from meltpoint.sweeps.specification.cells import OpenCell, open_cells
from meltpoint.sweeps.specification.code_version import code_version
from meltpoint.sweeps.specification.sweep_spec import Overflow, Resources, SweepSpec
from meltpoint.sweeps.specification.tracking_uri import default_uri
from meltpoint.sweeps.tracking.tracker import Tracker
from meltpoint.sweeps.worker.finalist_scoring import Scorer


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended.

    Attributes:
        state: "done", "stopped" (Ctrl-C), or "failed" (a cell has no result).
        troubles: what a person should know, a line each.
    """

    state: str
    summary: SweepSummary
    folder: Path
    tracking_uri: str
    troubles: list[str]


HURRY_SECONDS = 6.0
"""How long MLflow may take after Ctrl-C: a local store takes milliseconds, a hung server would take minutes."""

Render = Callable[[SweepSummary], Mapping[str, str]]
"""From a sweep's results to the files that show them: file name → text."""


def sweep(spec: SweepSpec, resources: Resources, console: Console, render: Render, cluster: Cluster) -> Outcome:
    """Search, select, run the finals, score them on test, export; or go on with a sweep that was cut off.

    Args:
        render: makes the files that show the results.
        cluster: where it trains; it may be starting still (`early_start`).

    Raises:
        ValueError: bad input, found before the first trial; one line with the remedy.
    """
    storage = storage_folder(resources.storage)
    uri = resources.tracking_uri or default_uri(storage)
    ledger = Ledger(storage / spec.name)
    ledger.check_place()
    cells = open_cells(spec)
    for line in spec.missing():
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    with ledger.driving(), _interruptible():
        settled = settle_specification(ledger, spec, cells, resources.cache_overflow, resources.mix_code_versions)
        planner = Planner(spec, cells, ledger.records(), resources.retry_failed, settled.codes)
        left_out = [strays_in_words(planner.strays)] if planner.strays else []
        for line in (*kept_lines(planner), *left_out, *ledger.sweep_started(), *closed_lines(ledger, planner)):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        planner.recall(ledger.unfinished())
        tracker = Tracker(spec.name, uri, storage)
        tracker.open(cells, spec.model_dump_json())
        driver = _drive(resources, ledger, planner, tracker, console, cluster)
    return _finish(driver, ledger, tracker, render)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGINT stop the sweep, also where a shell started it in the background, which makes it ignore SIGINT."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def settle_specification(
    ledger: Ledger,
    spec: SweepSpec,
    cells: list[OpenCell],
    overflow: Overflow = "on_the_fly",
    mix_code_versions: bool = False,
) -> SweepFile:
    """Write down what the sweep is, or check that it is what stands there; gives back what stands there then.

    Raises:
        ValueError: the name is taken by another specification, or by other code that was not accepted; it says what
            differs.
    """
    now = asked_sweep(spec, cells, overflow)
    if not ledger.specification.exists():
        ledger.create()
        write_sweep(ledger, now)
        return now
    then = check_same(ledger, now, mix_code_versions)
    ledger.create()
    base = now if then.spec.blocks != spec.blocks else then  # then there are cells of an encoder that was left out
    settled = base.model_copy(update={"code": then.code, "continued_with": continued_with(then, now)})
    if settled != then:
        write_sweep(ledger, settled)
    return settled


def continued_with(then: SweepFile, now: SweepFile) -> tuple[str, ...]:
    """The versions of the code that a sweep went on with, once the one that runs now does."""
    return then.continued_with if then.codes[-1] == now.code else (*then.continued_with, now.code)


def asked_sweep(spec: SweepSpec, cells: list[OpenCell], overflow: Overflow) -> SweepFile:
    """What `sweep.json` would say of a sweep."""
    headers = tuple(header(spec, cell) for cell in cells)
    return SweepFile(spec=spec, code=code_version(), cells=headers, cache_overflow=overflow)


def check_same(ledger: Ledger, now: SweepFile, mix_code_versions: bool = False) -> SweepFile:
    """The sweep that stands under a name, if it is the one that is asked for.

    Raises:
        ValueError: it is another, or other code has run it and mixing was not asked for; one line says what differs.
    """
    then = read_sweep(ledger)
    differs = differences(then, now)
    before = then.codes[-1]
    if differs:
        differs += [f"Meltpoint's code {before} → {now.code}"] if before != now.code else []
        raise ValueError(
            f"The name '{now.spec.name}' is taken by another specification; what differs: {'; '.join(differs)}. "
            "Take another --name, or the old options and files."
        )
    if before != now.code and not mix_code_versions:
        raise ValueError(
            f"The sweep '{now.spec.name}' was run by Meltpoint's code {before}, and this is {now.code}, which may give "
            "other numbers. Take another --name, and this code trains everything; or add --mix-code-versions: trials "
            "that ended are kept, this code runs the rest, and tables mark each cell that has both."
        )
    return then


def header(spec: SweepSpec, cell: OpenCell) -> CellHeader:
    """What `sweep.json` says of a cell."""
    return CellHeader(
        encoder=cell.encoder, mode=cell.mode, task=cell.task_name, head=cell.head, kind=cell.task.kind,
        metric=cell.metric, planned=planned_trials(cell, spec), space=cell.space.dump(),
        space_fingerprint=cell.space.fingerprint(),
        data_fingerprint=cell.data_fingerprint, documents_fingerprint=cell.documents_fingerprint,
        encoder_fingerprint=cell.encoder_fingerprint, train_examples=cell.train_examples,
        dev_examples=cell.dev_examples, notes=cell.notes, variant=cell.variant, seeds=cell.seeds,
    )  # fmt: skip


def differences(then: SweepFile, now: SweepFile) -> list[str]:
    """What differs between the sweep that stands and the one that is asked for, in words."""
    differs = now.spec.differences(then.spec)
    old, new = ({cell.key: cell for cell in sweep.cells} for sweep in (then, now))
    differs = differs or _renamed(then.spec, now.spec, list(old), list(new))
    for key in new:
        differs += _cell_differences(old[key], new[key]) if key in old else []
    if then.cache_overflow != now.cache_overflow:
        differs.append(f"--cache-overflow {then.cache_overflow} → {now.cache_overflow}")
    return list(dict.fromkeys(differs))


def kept_lines(planner: Planner) -> list[str]:
    """A line about trials of other versions of the code that count, where there are any."""
    line = kept_in_words(planner.counted(), code_version())
    return [line] if line else []


def closed_lines(ledger: Ledger, planner: Planner) -> list[str]:
    """A line for each cell that was closed before all its search trials were run: more budget changes nothing there."""
    closings = {key: planned_closing(ledger, progress) for key, progress in planner.cells.items()}
    return [in_words(key, closing) for key, closing in closings.items() if closing and closing.is_early]


def planned_closing(ledger: Ledger, progress: CellProgress) -> Closing | None:
    """How a planner's cell was closed; None while it is open."""
    return closing_of(ledger, [*progress.search.values(), *progress.finals.values()], progress.target)


def _renamed(then: SweepSpec, now: SweepSpec, old: list[CellKey], new: list[CellKey]) -> list[str]:
    """Cells that are gone or new though the words are the same: a task file has another name in it."""
    joining = {encoder for word, encoder in now.replacements().items() if word in then.left_out}
    found = [f"{'.'.join(key)} is gone" for key in old if key not in new]
    return found + [f"{'.'.join(key)} is new" for key in new if key not in old and key[0] not in joining]


def _cell_differences(then: CellHeader, now: CellHeader) -> list[str]:
    """What differs in one cell; what an older file does not say is not compared."""
    cell = ".".join(now.key)
    pairs = {
        f"the metric of {now.task}": (then.metric, now.metric), f"the kind of {now.task}": (then.kind, now.kind),
        f"the head of {cell}": (then.head, now.head),
    }  # fmt: skip
    found = [f"{what}: {before} → {after}" for what, (before, after) in pairs.items() if before != after]
    wholes = {
        f"the space of {cell}": (then.space_fingerprint, now.space_fingerprint),
        f"the data of {now.task}": (then.data_fingerprint, now.data_fingerprint),
        f"which sentences of {now.task} share a document": (then.documents_fingerprint, now.documents_fingerprint),
        f"the files of encoder {now.encoder}": (then.encoder_fingerprint, now.encoder_fingerprint),
    }
    return found + [what for what, (before, after) in wholes.items() if before and before != after]


def note_runs(ledger: Ledger, tracker: Tracker) -> None:
    """Trials that ended while MLflow was away have their runs now; their records say which."""
    for record in ledger.records():
        run = tracker.run_of(record.id)
        if run is not None and run != record.mlflow_run_id:
            ledger.write(record.model_copy(update={"mlflow_run_id": run}))


def _drive(
    resources: Resources, ledger: Ledger, planner: Planner, tracker: Tracker, console: Console, cluster: Cluster
) -> SweepConductor:
    scorer = Scorer(ledger.folder)
    with Progress(lambda: list(planner.cells.values()), console) as progress:
        driver = SweepConductor(planner, ledger, tracker, progress, scorer, resources)
        if planner.is_complete():
            driver.is_done = True
            progress.say("Nothing is left to train or to score.")
        else:
            _train(driver, resources, progress, cluster)
        strays = {record.id for record in planner.strays}
        records = [record for record in ledger.records() if record.id not in strays]
        tracker.reconcile(records, planner.proposal_of)
        note_runs(ledger, tracker)
    return driver


def _train(driver: SweepConductor, resources: Resources, progress: Progress, cluster: Cluster) -> None:
    try:
        cluster.join()
        placed = place(driver.planner, driver.order, resources, progress.say)
        driver.resources, driver.shares, driver.slots = placed.resources, placed.shares, placed.slots
        progress.say(placed.line)
        progress.say(f"{progress.planned()}.")
        is_over = False
        while not is_over:  # again where a finalist's weights turn out to be damaged
            experiment.run_on_tune(driver, is_local=resources.address is None)
            while driver.is_done and driver.score(timeout_seconds=0.5):
                pass
            is_over = not driver.is_done or not driver.planner.has_work_again()
    except KeyboardInterrupt:
        driver.is_done = False
        driver.tracker.hurry(HURRY_SECONDS)
    finally:
        driver.interrupted()  # whatever is still under way, for whatever reason


def _finish(driver: SweepConductor, ledger: Ledger, tracker: Tracker, render: Render) -> Outcome:
    summary = summarise(ledger)
    export_cells(ledger, summary, ledger.folder / "exports")
    tables = render(summary)
    for name, text in tables.items():
        write_atomically(ledger.folder / name, text)
    done = driver.is_done and not driver.scorer.pending
    figures = [(cell.header.key, cell_figures(cell)) for cell in summary.cells]
    mixed = {cell.header.key: code_tags(cell) for cell in summary.cells if cell.mixes_code}
    tracker.close(figures, done, dict(tables), mixed)
    troubles = [f"{trial}: not scored on test: {why}" for trial, why in driver.scorer.troubles.items()]
    empty = [".".join(cell.header.key) for cell in summary.cells if done and cell.best is None]
    troubles += [f"{name}: no trial finished; `meltpoint status {summary.name}` says why." for name in empty]
    without = [missing_finals(summary, cell) for cell in summary.cells if done and cell.best is not None]
    troubles += [line for line in without if line is not None]
    troubles += tracker.notes() + ([tracker.trouble] if tracker.trouble else [])
    lacks = bool(empty or driver.scorer.troubles or any(without))
    state = "stopped" if not done else "failed" if lacks else "done"
    return Outcome(state, summary, ledger.folder, tracker.uri, troubles)


def missing_finals(summary: SweepSummary, cell: CellSummary) -> str | None:
    """One line on the finals of a searched cell that have no result; None where all have one."""
    planned, lost = summary.seeds_of(cell), [final for final in cell.failed_finals if final.is_lost]
    count = planned - len(cell.finals)
    if count <= 0:
        return None
    why = f" ({cell.failed_finals[0].error})" if cell.failed_finals else ""
    way = "--retry-failed tries again" if len(lost) < len(cell.failed_finals) else "the same command tries again"
    return f"{'.'.join(cell.header.key)}: {count} of {planned} finals without a result{why}; {way}."


def code_tags(cell: CellSummary) -> dict[str, str]:
    """The tag of a cell's MLflow run whose trials are of several versions of the code."""
    return {"meltpoint.code_versions": "; ".join(map(str, cell.code_uses))}


def cell_figures(cell: CellSummary) -> dict[str, float]:
    """A cell's figures for its MLflow run, by which the dashboard sorts."""
    figures = {"trials_finished": float(cell.counts["finished"]), "train_hours": cell.seconds / 3600}
    if cell.best is not None and cell.best.dev is not None:
        figures["best_dev"] = cell.best.dev
    for name, over in (("dev", cell.dev), ("test", cell.test)):
        if over is not None:
            figures[f"{name}_mean"] = over.mean
            figures |= {} if over.std is None else {f"{name}_std": over.std}
    return figures
