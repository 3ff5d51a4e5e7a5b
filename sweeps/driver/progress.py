"""Progress of a running sweep on standard error: a live table on a terminal, plain lines when piped."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from meltpoint.adapters import modes
from meltpoint.sweeps.driver.planned_work import planned_work
from meltpoint.sweeps.driver.remaining_time import RemainingTime
from meltpoint.sweeps.ledger.records import EpochRecord, TrialRecord
from meltpoint.sweeps.search.cell_progress import CellProgress, Proposal, trial_label, trial_name
from meltpoint.sweeps.search.selection import finals_of, spread
from meltpoint.tasks.core.printable import printable
from meltpoint.tasks.core.score_text import score_text

REFRESH_SECONDS = 0.5
QUIET_SECONDS = 120.0  # a piped sweep says something at least this often while trials run
NAMED = 3  # the running trials that it then names


class Progress:
    """The sweep's screen.

    Args:
        cells: gives the cells' progress, once the planner knows it.
        console: where to; a terminal gets the live table, anything else gets lines.
        clock: seconds, from any moment on.
    """

    def __init__(
        self, cells: Callable[[], list[CellProgress]], console: Console, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.cells, self.console, self.clock = cells, console, clock
        self.started = self.last_said = clock()
        self.latest: dict[str, str] = {}  # running trial → its latest word
        self.live: Live | None = None
        self.last_shown = 0.0
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
        """One line of talk."""
        self.last_said = self.clock()
        self.console.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    def on_start(self, proposal: Proposal) -> None:
        """A trial began."""
        self.latest[proposal.id] = trial_name(proposal)

    def epoch(self, proposal: Proposal, epoch: EpochRecord) -> None:
        """An epoch ended."""
        metric = proposal.cell.task.metric
        name = trial_name(proposal)
        self.latest[proposal.id] = f"{name}: epoch {epoch.epoch}, dev {metric} {score_text(epoch.dev[metric], metric)}"

    def ended(self, record: TrialRecord) -> None:
        """A trial ended."""
        self.latest.pop(record.id, None)
        self.remaining.add(record)
        if self.live is None:
            left = self.remaining.in_words(self.cells())
            self.say(f"{self._clock()}  {self._counts()}  {describe(record)}{left and f'; {left}'}")

    def lost(self, proposal: Proposal, why: str) -> None:
        """A trial was lost and is tried again."""
        self.latest.pop(proposal.id, None)
        name = trial_name(proposal)
        self.say(f"{self._clock()}  {name}: {why}")

    def resumed(self, proposal: Proposal, epochs: int, notes: Sequence[str]) -> None:
        """A trial's worker has looked for saved epochs.

        Args:
            epochs: how many of them it goes on from.
            notes: what was wrong with some, a line each.
        """
        name = trial_name(proposal)
        for line in (*notes, *([f"it goes on after epoch {epochs}"] if epochs else [])):
            self.say(f"{self._clock()}  {name}: {line}")

    def waits(self, proposal: Proposal) -> None:
        """A trial ended and waits to begin again."""
        self.latest.pop(proposal.id, None)

    def scored(self, record: TrialRecord) -> None:
        """A finalist was scored on test."""
        if self.live is None:
            score = record.test.get(record.metric) if record.test else None
            text = (
                "test not scored, predictions saved"
                if score is None
                else f"test {record.metric} {score_text(score, record.metric)}"
            )
            whose = "default, " if record.role == "default" else ""
            self.say(f"{self._clock()}  {'.'.join(record.cell)} {whose}seed {record.seed}: {text}")

    def refresh(self) -> None:
        """Draw again, or say what runs where nothing was said for long, if it is time."""
        now = self.clock()
        if self.live is not None and now - self.last_shown > REFRESH_SECONDS:
            self.live.update(self._view(), refresh=True)
            self.last_shown = now
        if self.live is None and self.latest and now - self.last_said > QUIET_SECONDS:
            named = "; ".join([*self.latest.values()][:NAMED])
            more = f"; {len(self.latest) - NAMED} more" if len(self.latest) > NAMED else ""
            self.say(f"{self._clock()}  {self._counts()}  running: {named}{more}")

    def _clock(self) -> str:
        seconds = int(self.clock() - self.started)
        return f"{seconds // 3600:d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"

    def planned(self) -> str:
        """The amount of work, in the words of `plan`."""
        cells = self.cells()
        defaults = sum(len(p.wanted_defaults) for p in cells)
        return planned_work(len(cells), sum(p.target for p in cells), sum(p.cell.seeds for p in cells), defaults)

    def _counts(self) -> str:
        """The numbers of ended and planned search trials, finals and finals of published settings."""
        cells = self.cells()
        search, finals = sum(len(p.search) for p in cells), sum(len(p.finals) for p in cells)
        text = f"trials {search}/{sum(p.target for p in cells)}, finals {finals}/{sum(p.cell.seeds for p in cells)}"
        defaults = sum(len(p.wanted_defaults) for p in cells)
        ended = sum(proposal.id in p.defaults for p in cells for proposal in p.wanted_defaults)
        return f"{text}, defaults {ended}/{defaults}" if defaults else text

    def _view(self) -> Group:
        title = " · ".join(filter(None, (self._counts(), self._clock(), self.remaining.in_words(self.cells()))))
        table = Table(title=title, title_justify="left")
        for column, justify in (("cell", "left"), ("trials", "right"), ("best dev", "right"), ("finals", "left")):
            table.add_column(column, justify=justify, no_wrap=True)  # type: ignore[arg-type]
        for progress in self.cells():
            table.add_row(*row(progress))
        running = [Text(printable(f"  {line}"), style="dim") for line in sorted(self.latest.values())]
        return Group(table, *running)


def describe(record: TrialRecord) -> str:
    """A trial's end in one line."""
    name = f"{'.'.join(record.cell)} {trial_label(record)}"
    if record.status == "failed":
        return f"{name} failed: {record.error}"
    dev = "no score" if record.dev is None else f"dev {record.metric} {score_text(record.dev, record.metric)}"
    return f"{name} {record.status}: {dev}, best epoch {record.best_epoch}, {record.seconds:.0f} s"


def row(progress: CellProgress) -> tuple[str, str, str, str]:
    """A cell's line in the live table."""
    cell, best = progress.cell, progress.best
    finals = finals_of(best, progress.finals.values())
    tests = spread([f.test[f.metric] for f in finals if f.test])
    failed = sum(record.status == "failed" for record in progress.search.values())
    trials = f"{len(progress.search)}/{progress.target}" + (f" ({failed} failed)" if failed else "")
    shown = (
        f"{len(finals)}/{cell.seeds} trained"
        if tests is None
        else f"test {score_text(tests.mean, finals[0].metric)} over {tests.count}"
    )
    return (
        f"{modes.get(cell.mode).symbol} {' · '.join([cell.encoder, *cell.key[2:]])}",
        trials,
        "" if best is None or best.dev is None else score_text(best.dev, best.metric),
        shown if finals else "",
    )
