"""The question before a sweep grows: what is added to the sweep of that name, asked of a person at a terminal."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from meltpoint.sweeps.machine.terminal import tell
from meltpoint.sweeps.specification.sweep_spec import Resources, SweepSpec
from meltpoint.tasks.core.wording import plural, some

if TYPE_CHECKING:
    from meltpoint.sweeps.ledger.ledger import Ledger


def asked_to_grow(spec: SweepSpec, resources: Resources) -> Resources:
    """The resources, with `grow` where a person at the terminal agrees to it.

    Without a terminal nothing is asked: then `--grow` has to say it, and a sweep that asks for more is refused.

    Raises:
        ValueError: the person does not agree; nothing was changed.
    """
    if resources.grow or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return resources
    from meltpoint.sweeps.ledger.ledger import Ledger
    from meltpoint.sweeps.results.sweep_file import read_sweep
    from meltpoint.sweeps.storage.files import storage_folder

    ledger = Ledger(storage_folder(resources.storage) / spec.name)
    if not ledger.specification.exists():
        return resources
    then = read_sweep(ledger).spec
    if not spec.growth(then) or spec.differences(then, may_grow=True):
        return resources  # nothing to ask; or refused later, with all that differs
    import typer

    for line in question(ledger, then, spec):
        tell(line, err=True)
    if not typer.confirm("Go on?", err=True):
        raise ValueError(f"Nothing was changed; the sweep '{spec.name}' is as it was.")
    return replace(resources, grow=True)


def question(ledger: Ledger, then: SweepSpec, now: SweepSpec) -> list[str]:
    """The additions, the most work that they are, and the cells that stay closed; a line each."""
    from meltpoint.sweeps.results.summary import summarise

    lines = [f"The sweep '{now.name}' grows: {'; '.join(now.growth(then))}.", f"{added_work(then, now)}."]
    closed = [".".join(cell.header.key) for cell in summarise(ledger).cells if cell.closing is not None]
    if closed:
        names = f"{', '.join(closed[:3])}{', …' if len(closed) > 3 else ''}"
        lines.append(
            f"{some(len(closed), 'cell')} {'stays' if len(closed) == 1 else 'stay'} closed to more search trials, "
            f"because test was opened ({names}); --new-test-round searches on."
        )
    return lines


def added_work(then: SweepSpec, now: SweepSpec) -> str:
    """The number of cells that join, and the most search trials and finals that are added, in words."""
    # A block is no mapping: its `keys` are a method of its own.
    old, new = ({key: block for block in spec.products() for key in block.keys()} for spec in (then, now))  # noqa: SIM118
    joining = [key for key in new if key not in old]
    trials = sum(block.trials - (old[key].trials if key in old else 0) for key, block in new.items())
    seeds = sum(block.seeds - (old[key].seeds if key in old else 0) for key, block in new.items())
    finals = 2 * seeds if now.default_finals else seeds
    return (
        f"{some(len(joining), 'cell')} {'joins' if len(joining) == 1 else 'join'}; at most {trials} more search "
        f"{plural('trial')} and {finals} more finals"
    )
