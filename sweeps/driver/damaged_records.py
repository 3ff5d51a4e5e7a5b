"""Damaged records of a sweep that goes on: set aside, so that their trials run again, where that changes no choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.search.closing import opened_trials
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.search.test_rounds import read_rounds
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.specification.sweep_spec import SweepSpec


def whole_records(
    ledger: Ledger, spec: SweepSpec, codes: Sequence[str], cells: list[OpenCell], say: Callable[[str], None]
) -> list[TrialRecord]:  # fmt: skip
    """The ledger's records; those that are damaged are set aside first, where no setting was chosen by them.

    Args:
        codes: the versions of the code whose records count.
        say: is told of each record that is set aside.

    Raises:
        ValueError: a record is damaged by which a setting may have been chosen whose test split was opened; the
            message names it.
    """
    try:
        return ledger.records()
    except ValueError:
        readable, damaged = ledger.readable_records()
        for line in ledger.set_aside(_chose_nothing(ledger, spec, codes, cells, readable, damaged)):
            say(line)
        return ledger.records()


def _chose_nothing(
    ledger: Ledger, spec: SweepSpec, codes: Sequence[str], cells: list[OpenCell], readable: list[TrialRecord],
    damaged: Sequence[str],
) -> set[str]:  # fmt: skip
    """The ids of damaged records by which no setting was chosen whose test split was opened.

    Every record, where no test split was opened, or where no search trial is missing in a cell whose split was; else
    finals alone: those that were scored, and those that are due.
    """
    opened = opened_trials(ledger)
    planner = Planner(spec, cells, readable, codes=codes, opened=opened, rounds=read_rounds(ledger))
    closed = [progress for progress in planner.cells.values() if progress.cut]
    if not opened or all(len(progress.search) >= progress.target for progress in closed):
        return set(damaged)
    finals = [
        proposal.id for progress in planner.cells.values()
        for proposal in (*planner.missing_finals(progress), *planner.missing_defaults(progress))
    ]  # fmt: skip
    return set(damaged) & {*opened, *finals}
