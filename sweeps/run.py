"""Running a sweep from its specification to its table; what `meltpoint sweep` and `demo` call."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from meltpoint.sweeps import ray_tune
from meltpoint.sweeps.cells import OpenCell, cell_name, open_cells
from meltpoint.sweeps.conductor import SweepConductor
from meltpoint.sweeps.export import export_cells
from meltpoint.sweeps.ledger import Ledger, storage_folder, write_atomically
from meltpoint.sweeps.planner import Planner, Proposal
from meltpoint.sweeps.progress import Progress
from meltpoint.sweeps.records import TrialRecord
from meltpoint.sweeps.scoring import Scorer
from meltpoint.sweeps.specification import SweepSpec, code_version
from meltpoint.sweeps.summary import SweepSummary, summarise
from meltpoint.sweeps.tracking import Tracker, default_uri


@dataclass(frozen=True)
class Resources:
    """Where and with what a sweep runs; nothing that its numbers are chosen by.

    Attributes:
        storage: `--storage`.
        tracking_uri: the MLflow server or store, or None for the SQLite store in the storage folder.
        address: a running Ray cluster, or None for a local one.
        cpus, gpus: what one trial gets; a GPU can be shared by fractions.
        time_budget_seconds: how long the search may take, or None.
        retry_failed: run failed trials once more.
    """

    storage: str = "runs"
    tracking_uri: str | None = None
    address: str | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    time_budget_seconds: float | None = None
    retry_failed: bool = False


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


def sweep(spec: SweepSpec, resources: Resources, console: Console) -> Outcome:
    """Search, select, run the finals, score them on test, export; or go on with a sweep that was cut off.

    Raises:
        ValueError: bad input, found before the first trial; one line with the remedy.
    """
    storage = storage_folder(resources.storage)
    ledger = Ledger(storage / spec.name)
    cells = open_cells(spec)
    with ledger.driving():
        settle_specification(ledger, spec, cells)
        if resources.retry_failed:
            forget_failed(ledger)
        planner = Planner(spec, cells, ledger.records())
        planner.recall(ledger.unfinished())
        tracker = Tracker(spec.name, resources.tracking_uri or default_uri(storage), storage)
        tracker.open(cells, spec.model_dump_json())
        return _drive(spec, resources, ledger, planner, tracker, console)


def settle_specification(ledger: Ledger, spec: SweepSpec, cells: list[OpenCell]) -> None:
    """Write down what the sweep is, or check that it is what stands there.

    Raises:
        ValueError: the name is taken by another specification; it says what differs.
    """
    spaces = {cell.name: cell.space.dump() for cell in cells}
    data = {cell.task_name: cell.data_fingerprint for cell in cells}
    now = {"spec": spec.model_dump(mode="json"), "spaces": spaces, "data": data, "code": code_version()}
    if not ledger.specification.exists():
        ledger.create()
        write_atomically(ledger.specification, json.dumps(now, indent=1) + "\n")
        return
    then = read_specification(ledger)
    differs = spec.differences(SweepSpec.model_validate(then["spec"]))
    differs += [f"the space of {name}" for name in spaces if name in then["spaces"] and then["spaces"][name] != spaces[name]]
    differs += [f"the data of {name}" for name in data if then["data"].get(name, data[name]) != data[name]]
    if then["code"] != now["code"]:
        differs.append(f"Meltpoint's code {then['code']} → {now['code']}")
    if differs:
        raise ValueError(
            f"The name '{spec.name}' is taken by another specification; what differs: {'; '.join(differs)}. "
            "Take another --name, or the old options."
        )
    ledger.create()


def read_specification(ledger: Ledger) -> dict[str, dict[str, str]]:
    """`sweep.json`.

    Raises:
        ValueError: there is no such sweep, or its file is broken.
    """
    try:
        read: dict[str, dict[str, str]] = json.loads(ledger.specification.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = sorted(path.parent.name for path in ledger.folder.parent.glob("*/sweep.json"))
        there = f"There is: {', '.join(known)}." if known else "There is none yet; start one with `meltpoint sweep`."
        raise ValueError(f"No sweep '{ledger.folder.name}' under {ledger.folder.parent}. {there}") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise ValueError(f"{ledger.specification} is damaged; restore it, or start the sweep under a new name.") from None
    return read


def forget_failed(ledger: Ledger) -> None:
    """Strike failed trials off the ledger, so that they run again under the same identity."""
    for record in ledger.records():
        if record.status == "failed":
            (ledger.trials / f"{record.id}.json").unlink()


def _drive(
    spec: SweepSpec, resources: Resources, ledger: Ledger, planner: Planner, tracker: Tracker, console: Console
) -> Outcome:
    budget = resources.time_budget_seconds
    scorer = Scorer(ledger.folder, resources.cpus, resources.gpus)
    with Progress(lambda: list(planner.cells.values()), console) as progress:
        conductor = SweepConductor(
            planner, ledger, tracker, progress, scorer, resources.cpus, resources.gpus,
            None if budget is None else time.monotonic() + budget,
        )  # fmt: skip
        if _is_complete(planner):
            conductor.is_done = True
        else:
            _train(conductor, resources, progress)
        tracker.reconcile(ledger.records(), lambda record: _proposal(planner, record), code_version())
    return _finish(spec, conductor, ledger, tracker)


def _is_complete(planner: Planner) -> bool:
    """Whether every trial is in the ledger and every finalist scored, so that Ray need not start."""
    finals = [final for progress in planner.cells.values() for final in progress.finals.values()]
    return planner.next() == "done" and all(f.test is not None for f in finals if f.status == "finished")


def _train(conductor: SweepConductor, resources: Resources, progress: Progress) -> None:
    with ray_tune.cluster(resources.address):
        try:
            count = ray_tune.slots(resources.cpus, resources.gpus)
            progress.say(f"{len(conductor.planner.cells)} cells, {count} trials at a time.")
            ray_tune.run_on_tune(conductor, resources.cpus, resources.gpus)
            while conductor.is_done and conductor.score(timeout_seconds=0.5):
                pass
        except KeyboardInterrupt:
            conductor.is_done = False
        finally:
            conductor.interrupted()  # whatever is still under way, for whatever reason


def _proposal(planner: Planner, record: TrialRecord) -> Proposal:
    cell = planner.cells[record.cell].cell
    return Proposal(record.id, record.number, record.role, cell, record.setting, record.seed)


def _finish(spec: SweepSpec, conductor: SweepConductor, ledger: Ledger, tracker: Tracker) -> Outcome:
    from meltpoint.reports.tables import sweep_csv, sweep_markdown  # reports read summaries; only this end needs them

    summary = summarise(ledger, spec, list(conductor.planner.cells.values()))
    export_cells(ledger, summary, ledger.folder / "exports")
    markdown, csv = sweep_markdown(summary), sweep_csv(summary)
    write_atomically(ledger.folder / "report.md", markdown)
    write_atomically(ledger.folder / "report.csv", csv)
    done = conductor.is_done and not conductor.scorer.pending
    cells = [(progress.cell, summary.figures(*progress.cell.key)) for progress in conductor.planner.cells.values()]
    tracker.close(cells, done, {"table.md": markdown, "table.csv": csv})
    troubles = [f"{trial}: not scored on test: {why}" for trial, why in conductor.scorer.troubles.items()]
    empty = [cell_name(*p.cell.key) for p in conductor.planner.cells.values() if p.searched and p.best is None]
    troubles += [f"{name}: every trial failed; `meltpoint status {spec.name}` says why." for name in empty]
    troubles += [tracker.trouble] if tracker.trouble else []
    state = "stopped" if not done else "failed" if empty or conductor.scorer.troubles else "done"
    return Outcome(state, summary, ledger.folder, tracker.uri, troubles)
