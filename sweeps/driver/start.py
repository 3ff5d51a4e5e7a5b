"""Opening of a sweep: write its specification, or compare it with the stored one; report its closed cells."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from meltpoint.adapters import encoders
from meltpoint.adapters.settings import complete
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import CellKey, TrialRecord
from meltpoint.sweeps.results.sweep_file import CellHeader, Growth, SweepFile, kept_in_words, read_sweep, write_sweep
from meltpoint.sweeps.search.cell_progress import planned_trials, work_of
from meltpoint.sweeps.search.locked_test import (
    Closing,
    ClosingLogs,
    ReopenedCell,
    TestRound,
    TestRounds,
    closing_of,
    in_words,
    opened_trials,
    read_rounds,
)
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.specification.provenance import code_version
from meltpoint.sweeps.specification.sweep_options import Overflow, Resources
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.storage.files import append_line


def settle_specification(
    ledger: Ledger, spec: SweepSpec, cells: list[OpenCell], overflow: Overflow = "on_the_fly",
    mix_code_versions: bool = False, grow: bool = False,
) -> SweepFile:  # fmt: skip
    """Write the specification, or check that it equals or extends the stored one; returns the one now stored.

    Args:
        grow: whether it may extend the stored one.

    Raises:
        ValueError: the name is taken by another specification, or by other code that was not accepted; the message
            names the differences.
    """
    now = asked_sweep(spec, cells, overflow)
    if not ledger.specification.exists():
        ledger.create()
        write_sweep(ledger, now)
        return now
    then = check_same(ledger, now, mix_code_versions, grow)
    ledger.create()
    if spec.price_per_hour is None:  # a price that was given once stays
        now = now.model_copy(update={"spec": spec.model_copy(update={"price_per_hour": then.spec.price_per_hour})})
    added = spec.growth(then.spec)
    base = then if then.spec == now.spec else now  # what differs by now may change
    grown = Growth(at=time.time(), changes=added, opened=len(opened_trials(ledger)))
    growth = (*then.growth, grown) if added else then.growth
    continued = then.continued_with if then.codes[-1] == now.code else (*then.continued_with, now.code)
    changes = {"code": then.code, "continued_with": continued, "growth": growth}
    settled = base.model_copy(update=changes)
    if settled != then:
        write_sweep(ledger, settled)
    return settled


def asked_sweep(spec: SweepSpec, cells: list[OpenCell], overflow: Overflow) -> SweepFile:
    """The contents of `sweep.json` for a sweep."""
    headers = tuple(map(header, cells))
    return SweepFile(spec=spec, code=code_version(), cells=headers, cache_overflow=overflow)


def check_same(
    ledger: Ledger, now: SweepFile, mix_code_versions: bool = False, grow: bool = False
) -> SweepFile:  # fmt: skip
    """The stored sweep of that name, if it is the requested one or a part of it.

    Raises:
        ValueError: it is another one, a smaller one without `--grow`, or one that other code ran without
            `--mix-code-versions`; one line names the differences.
    """
    then = read_sweep(ledger)
    added = now.spec.growth(then.spec)
    differs = differences(then, now)
    before = then.codes[-1]
    if differs:
        differs += added
        differs += [f"Meltpoint's code {before} → {now.code}"] if before != now.code else []
        raise ValueError(
            f"The name '{now.spec.name}' is taken by another specification; differences: {'; '.join(differs)}. "
            "Use another --name, or the old options and files."
        )
    if added and not grow:
        raise ValueError(
            f"The sweep '{now.spec.name}' would grow: {'; '.join(added)}. Add --grow to extend it, or "
            "use another --name."
        )
    if before != now.code and not mix_code_versions:
        raise ValueError(
            f"The sweep '{now.spec.name}' ran on Meltpoint's code {before}, and this is {now.code}, which may give "
            "different scores. Use another --name to train everything with this code; or add --mix-code-versions to "
            "keep the trials that ended and run the rest with this code: tables then mark each cell that has both."
        )
    return then


def header(cell: OpenCell) -> CellHeader:
    """The entry of `sweep.json` for a cell."""
    return CellHeader(
        encoder=cell.encoder, mode=cell.mode, task=cell.task_name, head=cell.head, kind=cell.task.kind,
        metric=cell.metric, planned=planned_trials(cell), space=cell.space.dump(),
        space_fingerprint=cell.space.fingerprint(),
        data_fingerprint=cell.data_fingerprint, documents_fingerprint=cell.documents_fingerprint,
        encoder_fingerprint=cell.encoder_fingerprint, encoder_revision=encoders.revision(cell.reference),
        train_examples=cell.train_examples, dev_examples=cell.dev_examples,
        epoch_dev_examples=cell.epoch_dev_examples, notes=cell.notes, variant=cell.variant,
        seeds=cell.seeds, beside=cell.task.beside, warnings=cell.warnings,
        also_test=tuple(f"{name}/{cell.metric}" for name in cell.task.also_test),
        published=complete(cell.space.first(), cell.mode, cell.head, cell.task.kind),
        encoder_size=encoders.state_size(cell.reference), work=work_of(cell),
    )  # fmt: skip


def differences(then: SweepFile, now: SweepFile) -> list[str]:
    """The differences between the stored sweep and the requested one, in words; growth is not a difference."""
    differs = now.spec.differences(then.spec, may_grow=True)
    old, new = ({cell.key: cell for cell in sweep.cells} for sweep in (then, now))
    differs = differs or _renamed(then.spec, now.spec, list(old), list(new))
    for key in new:
        differs += _cell_differences(old[key], new[key]) if key in old else []
    if then.cache_overflow != now.cache_overflow:
        differs.append(f"--cache-overflow {then.cache_overflow} → {now.cache_overflow}")
    return list(dict.fromkeys(differs))


def _renamed(then: SweepSpec, now: SweepSpec, old: list[CellKey], new: list[CellKey]) -> list[str]:
    """Cells that are gone or new although the options are the same: a task file now contains another name."""
    joining = {encoder for word, encoder in now.replacements().items() if word in then.left_out}
    found = [f"{'.'.join(key)} is gone" for key in old if key not in new]
    if now.growth(then):
        return found
    return found + [f"{'.'.join(key)} is new" for key in new if key not in old and key[0] not in joining]


def _cell_differences(then: CellHeader, now: CellHeader) -> list[str]:
    """The differences in one cell; fields that an older file lacks are not compared."""
    cell = ".".join(now.key)
    pairs = {
        f"the metric of {now.task}": (then.metric, now.metric), f"the kind of {now.task}": (then.kind, now.kind),
        f"the head of {cell}": (then.head, now.head),
    }  # fmt: skip
    found = [f"{what}: {before} → {after}" for what, (before, after) in pairs.items() if before != after]
    wholes = {
        f"the space of {cell}": (then.space_fingerprint, now.space_fingerprint),
        f"the data of {now.task}": (then.data_fingerprint, now.data_fingerprint),
        f"the documents of {now.task}'s sentences": (then.documents_fingerprint, now.documents_fingerprint),
        f"the files of encoder {now.encoder}{_pin_hint(then, now)}": (
            then.encoder_fingerprint,
            now.encoder_fingerprint,
        ),
    }
    return found + [what for what, (before, after) in wholes.items() if before and before != after]


def _pin_hint(then: CellHeader, now: CellHeader) -> str:
    """The two commits, if an encoder's revision moved on the hub, and the remedy."""
    old, new = then.encoder_revision, now.encoder_revision
    return f" ({old} → {new} on the hub; hf:{old} pins it)" if old and new and old != new else ""


def kept_lines(planner: Planner) -> list[str]:
    """A line about the trials of other code versions that count, if any do."""
    line = kept_in_words(planner.counted(), code_version())
    return [line] if line else []


def closed_lines(ledger: Ledger, planner: Planner) -> list[str]:
    """A line for each cell that was closed before all its search trials ran: more budget has no effect there."""
    closings = planned_closings(ledger, planner)
    return [in_words(key, closing) for key, closing in closings.items() if closing and closing.is_early]


def planned_closings(ledger: Ledger, planner: Planner) -> dict[CellKey, Closing | None]:
    """The closing of each of a planner's cells; None while it is open."""
    logs, last = ClosingLogs.read(ledger), planner.rounds.last
    return {
        key: closing_of(logs, [*one.search.values(), *one.finalists], one.target, last.get(key))
        for key, one in planner.cells.items()
    }


def next_test_round(ledger: Ledger, planner: Planner) -> TestRound | None:
    """The round that reopens the cells that were closed before all their trials ran; None without such cells.

    It is not recorded yet.

    Args:
        planner: the planner before the round.
    """
    cells = []
    for key, closing in planned_closings(ledger, planner).items():
        progress = planner.cells[key]
        if closing is not None and closing.is_early:
            scored = [one.id for one in progress.finalists if one.test is not None or one.id in planner.opened]
            cells.append(ReopenedCell(key=key, scored=tuple(scored), planned=progress.target))
    number = len(planner.rounds.later) + 2
    return TestRound(round=number, began_at=time.time(), cells=tuple(cells)) if cells else None


def round_in_words(begun: TestRound | None) -> str:
    """One line on the round that begins, or on the reason why none does."""
    if begun is None:
        return "No test round begins: no cell was closed before all its search trials ran."
    cells = ", ".join(".".join(cell.key) for cell in begun.cells)
    return f"Test round {begun.round}: the search continues in {cells}, with test scores known; the tables say so."


def open_planner(
    ledger: Ledger, spec: SweepSpec, codes: Sequence[str], cells: list[OpenCell], records: list[TrialRecord],
    resources: Resources, say: Callable[[str], None], is_plan: bool = False,
) -> Planner:  # fmt: skip
    """The planner for a sweep's records, in a new test round if one is requested and any cell is closed.

    Args:
        is_plan: whether a new round is not recorded.
    """
    opened = opened_trials(ledger)

    def planner(rounds: TestRounds) -> Planner:
        return Planner(spec, cells, records, resources.retry_failed, codes, opened, rounds)

    rounds = read_rounds(ledger)
    if resources.new_test_round:
        begun = next_test_round(ledger, planner(rounds))
        say(round_in_words(begun))
        if begun is not None:
            rounds = TestRounds((*rounds.later, begun))
            if not is_plan:
                append_line(ledger.test_rounds, begun.model_dump(mode="json"))
    return planner(rounds)
