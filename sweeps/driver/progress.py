"""Progress of a running sweep on standard error: a live bar on a terminal, occasional lines when piped."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from meltpoint.adapters import modes
from meltpoint.adapters.training.epochs import EpochResult
from meltpoint.sweeps.ledger.records import CellKey, Trial, TrialRecord, trial_label
from meltpoint.sweeps.results.cost import CellWork, TimeLeft, finals_left, is_typical, planned_work, time_left
from meltpoint.sweeps.search.cell_progress import CellProgress, trial_name
from meltpoint.sweeps.tracking.dashboard import colour
from meltpoint.tasks.core.metrics import gain
from meltpoint.tasks.core.scoring import score_text
from meltpoint.tasks.core.wording import printable


@dataclass
class RemainingTime:
    """An estimate of the remaining time (`time_left`), refined by each trial that ends; cells are weighted by work.

    Attributes:
        slots: returns the number of trials at a time, which follows the cluster.
        measured: cell → (trials that ended in this command, the worker seconds that they took).
        most: returns the seconds left in a time budget that covers everything.
    """

    slots: Callable[[], int] = lambda: 1
    most: Callable[[], float] = lambda: math.inf
    measured: dict[CellKey, tuple[int, float]] = field(default_factory=dict)
    _counted: dict[tuple[CellKey, float], float] = field(default_factory=dict)

    def add(self, record: TrialRecord) -> None:
        """Add the time of a trial that has ended; trials of one order begin together, and its time counts once."""
        if not is_typical(record):
            return
        count, seconds = self.measured.get(record.cell, (0, 0.0))
        order = (record.cell, record.started_at)
        counted = self._counted.get(order, 0.0)
        self._counted[order] = max(counted, record.seconds)
        more = record.seconds_before + self._counted[order] - counted
        self.measured[record.cell] = count + 1, seconds + more

    def seconds_of_trial(self, cell: CellKey) -> float:
        """The mean worker seconds of a cell's trials; 0 until one has ended."""
        count, seconds = self.measured.get(cell, (0, 0.0))
        return seconds / max(1, count)

    def estimate(self, cells: Iterable[CellProgress], is_searching: bool = True) -> TimeLeft | None:
        """The time until the last final is trained; None until a trial has ended, and once nothing is left.

        Args:
            cells: the progress of every cell.
            is_searching: False to assume that no further search trial starts.
        """
        work = [
            CellWork(*self.measured.get(one.cell.key, (0, 0.0)), left(one, is_searching), one.work) for one in cells
        ]
        return time_left(work, max(1, self.slots()))

    def in_words(self, cells: Iterable[CellProgress]) -> str:
        """`about 12 min left`; "" without an estimate."""
        found = self.estimate(cells)
        return "" if found is None else str(replace(found, seconds=min(found.seconds, self.most())))


def left(progress: CellProgress, is_searching: bool = True) -> int:
    """The number of a cell's trials still to run: finals, and search trials unless the search is cut off."""
    search = 0 if progress.cut or not is_searching else max(0, progress.target - len(progress.search))
    defaults = sum(trial.id in progress.defaults for trial in progress.wanted_defaults)
    return (
        search
        + (0 if progress.finals_cut else finals_left(progress.cell.seeds, len(progress.finals)))
        + finals_left(len(progress.wanted_defaults), defaults)
    )


REFRESH_SECONDS = 0.5
QUIET_SECONDS = 300.0  # a piped sweep prints a line at least this often while trials run
STEPS = 8  # and one after each eighth of its runs


class Progress:
    """The sweep's screen.

    Args:
        cells: returns the cells' progress, once the planner knows it.
        console: a terminal gets the live bar, anything else gets lines.
        clock: monotonic seconds.
    """

    def __init__(
        self, cells: Callable[[], list[CellProgress]], console: Console, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.cells, self.console, self.clock = cells, console, clock
        self.started = self.last_said = clock()
        self.latest: dict[str, str] = {}  # running trial → its latest line
        self.live: Live | None = None
        self.last_shown = 0.0
        self.step = 0  # the last of STEPS that was printed to a pipe
        self.remaining = RemainingTime()

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self.live = Live(self._view(), console=self.console, auto_refresh=False)
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.update(self._view(), refresh=True)
            self.live.stop()

    def say(self, text: str) -> None:
        """Print one line."""
        self.last_said = self.clock()
        self.console.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    def on_start(self, trial: Trial) -> None:
        """Show that a trial began."""
        self.latest[trial.id] = trial_name(trial)

    def epoch(self, trial: Trial, metric: str, epoch: EpochResult) -> None:
        """Show a trial's latest epoch."""
        name = trial_name(trial)
        self.latest[trial.id] = f"{name}: epoch {epoch.epoch}, dev {metric} {score_text(epoch.dev[metric], metric)}"

    def ended(self, record: TrialRecord) -> None:
        """Show that a trial ended; a failure gets a line."""
        self.latest.pop(record.id, None)
        self.remaining.add(record)
        if record.status == "failed":
            self.say(f"{self._clock()}  {'.'.join(record.cell)} {trial_label(record)} failed: {record.error}")
        done, total = self._counts()
        step = STEPS * done // max(1, total)
        if self.live is None and step > self.step:
            self.step = step
            self.say(self._line())

    def lost(self, trial: Trial, why: str) -> None:
        """Report a trial that was lost and will be retried."""
        self.latest.pop(trial.id, None)
        name = trial_name(trial)
        self.say(f"{self._clock()}  {name}: {why}")

    def resumed(self, trial: Trial, epochs: int, notes: Sequence[str]) -> None:
        """Report the saved epochs that a trial's worker found.

        Args:
            epochs: number of epochs after which it resumes.
            notes: faults of saved epochs, one line each.
        """
        name = trial_name(trial)
        for line in (*notes, *([f"resumes after epoch {epochs}"] if epochs else [])):
            self.say(f"{self._clock()}  {name}: {line}")

    def refresh(self) -> None:
        """Redraw, or print a line with a running trial after a long silence, if due."""
        now = self.clock()
        if self.live is not None and now - self.last_shown > REFRESH_SECONDS:
            self.live.update(self._view(), refresh=True)
            self.last_shown = now
        if self.live is None and self.latest and now - self.last_said > QUIET_SECONDS:
            self.say(f"{self._line()}; running: {min(self.latest.values())}")

    def _clock(self) -> str:
        seconds = int(self.clock() - self.started)
        return f"{seconds // 3600:d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"

    def planned(self) -> str:
        """The amount of work, worded as in `plan`."""
        cells = self.cells()
        defaults = sum(len(p.wanted_defaults) for p in cells)
        search, finals = sum(p.target for p in cells), sum(p.cell.seeds for p in cells)
        may_end_early = any(p.limit is not None for p in cells)
        return planned_work(len(cells), search, finals, defaults, may_end_early)

    def _counts(self) -> tuple[int, int]:
        """The numbers of ended and planned runs: search trials, finals, and finals of published settings."""
        done = total = 0
        for one in self.cells():
            wanted = one.wanted_defaults
            done += len(one.search) + len(one.finals) + sum(trial.id in one.defaults for trial in wanted)
            total += (len(one.search) if one.cut else one.target) + one.cell.seeds + len(wanted)
        return done, max(done, total)

    def _line(self) -> str:
        """`0:03:12  28/60 runs, about 4 min left; best on dev: 🔥 sst2 92.7, ❄ mrpc 81.0`."""
        done, total = self._counts()
        left = self.remaining.in_words(self.cells())
        best = [f"{modes.get(one.mode).symbol} {one.task} {_dev(one)}" for one in leaders(self.cells())]
        found = f"; best on dev: {', '.join(best)}" if best else ""
        return f"{self._clock()}  {done}/{total} runs{left and f', {left}'}{found}"

    def _view(self) -> Group:
        done, total = self._counts()
        bar = Table.grid(padding=(0, 1))
        left = self.remaining.in_words(self.cells())
        bar.add_row(
            ProgressBar(total=max(1, total), completed=done, width=30), f"{done}/{total} runs", self._clock(), left
        )
        table = Table.grid(padding=(0, 2))
        for best in leaders(self.cells()):
            table.add_row(
                Text(printable(best.task)), Text(f"{modes.get(best.mode).symbol} {best.mode}", style=colour(best.mode)),
                Text(_dev(best), style="bold"), Text("best on dev so far", style="dim"),
            )  # fmt: skip
        running = [
            Text(printable(f"  {line}"), style="dim", no_wrap=True, overflow="ellipsis")
            for line in sorted(self.latest.values())
        ]
        return Group(bar, table, *running)


def leaders(cells: Iterable[CellProgress]) -> list[TrialRecord]:
    """The best search trial so far of each task, by dev."""
    found: dict[str, TrialRecord] = {}
    for best in (one.best for one in cells):
        if best is not None and best.dev is not None:
            before = found.get(best.task)
            if before is None or gain(best.metric, best.dev) > gain(best.metric, before.dev or 0.0):
                found[best.task] = best
    return list(found.values())


def _dev(record: TrialRecord) -> str:
    return "" if record.dev is None else score_text(record.dev, record.metric)
