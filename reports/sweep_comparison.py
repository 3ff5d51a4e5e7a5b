"""Two sweeps side by side: their specifications, code and data, and the setting and scores of each common cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from meltpoint.adapters.hyperparameters import Value
from meltpoint.reports.formats import value_text
from meltpoint.sweeps.results.cost import spread_text
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.search.selection import Spread
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.tasks.core.scoring import difference_text


@dataclass(frozen=True)
class CellDifference:
    """A cell that both sweeps have.

    Attributes:
        cell: its name.
        metric: of the scores; both sweeps' if they differ.
        conditions: differences in the basis of its numbers, `data: 0a1b → 2c3d`; scores compare settings only if empty.
        setting: parameter → its values in the best settings, if they differ; None if one does not have it.
        split: of the scores: test if both have test scores, else dev.
        a, b: mean scores over seeds; None without finals.
        delta: b − a.
    """

    cell: str
    metric: str
    conditions: list[str] = field(default_factory=list)
    setting: dict[str, tuple[Value | None, Value | None]] = field(default_factory=dict)
    split: str = "dev"
    a: Spread | None = None
    b: Spread | None = None
    delta: float | None = None


@dataclass(frozen=True)
class SweepDifference:
    """Two sweeps, `a` and `b`.

    Attributes:
        specification: differences between the specifications, `trials 16 → 32`.
        code: the code versions of each.
        only_a, only_b: names of cells that the other one does not have.
        cells: the cells of both.
    """

    a: str
    b: str
    specification: list[str]
    code: tuple[tuple[str, ...], tuple[str, ...]]
    only_a: list[str]
    only_b: list[str]
    cells: list[CellDifference]

    def as_json(self) -> dict[str, Any]:
        """The document of `compare --json`."""
        return asdict(self)


CONDITIONS: Mapping[str, str] = {
    "head": "head", "metric": "metric", "data_fingerprint": "data", "documents_fingerprint": "documents",
    "encoder_fingerprint": "the encoder's files", "space_fingerprint": "space", "train_examples": "training examples",
    "dev_examples": "dev examples",
}  # fmt: skip
"""Field of a cell's header → its name in a comparison."""


def compare_sweeps(a: SweepSummary, b: SweepSummary) -> SweepDifference:
    """Compare two sweeps; nothing is trained or scored."""
    ours, theirs = ({cell_name(*cell.header.key): cell for cell in one.cells} for one in (a, b))
    return SweepDifference(
        a.name, b.name, [line for line in b.spec.differences(a.spec) if not line.startswith("name ")],
        (a.code_versions, b.code_versions), [name for name in ours if name not in theirs],
        [name for name in theirs if name not in ours],
        [_cell(name, cell, theirs[name]) for name, cell in ours.items() if name in theirs],
    )  # fmt: skip


def _cell(name: str, a: CellSummary, b: CellSummary) -> CellDifference:
    split = "test" if a.test and b.test else "dev"
    of_a, of_b = (a.test, b.test) if split == "test" else (a.dev, b.dev)
    metrics = dict.fromkeys((a.header.metric, b.header.metric))
    delta = of_b.mean - of_a.mean if of_a and of_b and len(metrics) == 1 else None
    facts = ((word, getattr(a.header, field), getattr(b.header, field)) for field, word in CONDITIONS.items())
    conditions = [f"{word}: {before} → {now}" for word, before, now in facts if before != now]
    before, now = (a.best.setting, b.best.setting) if a.best and b.best else ({}, {})
    setting = {key: (before.get(key), now.get(key)) for key in {**before, **now} if before.get(key) != now.get(key)}
    return CellDifference(name, " → ".join(metrics), conditions, setting, split, of_a, of_b, delta)


def lines(found: SweepDifference) -> Iterator[str]:
    """The comparison as text, one fact per line."""
    yield f"a: {found.a} · b: {found.b}"
    yield f"Specification: {'; '.join(found.specification) or 'the same'}."
    before, now = (", ".join(versions) for versions in found.code)
    yield "Code: the same." if before == now else f"Code: {before} → {now}."
    for name, only in ((found.a, found.only_a), (found.b, found.only_b)):
        if only:
            yield f"Only in {name}: {', '.join(only)}."
    for cell in found.cells:
        lacking = " and ".join(name for name, over in (("a", cell.a), ("b", cell.b)) if over is None)
        change = "" if cell.delta is None else f", Δ {difference_text(cell.delta, cell.metric)}"
        scores = (spread_text(over, cell.metric) for over in (cell.a, cell.b))
        said = f"no finals in {lacking} yet" if lacking else f"{cell.split} {cell.metric} {' → '.join(scores)}{change}"
        yield f"{cell.cell}: {said}"
        if cell.conditions:
            yield f"  not the same: {'; '.join(cell.conditions)}"
        if cell.setting:
            texts = {
                name: " → ".join("absent" if one is None else value_text(one) for one in both)
                for name, both in cell.setting.items()
            }
            yield "  " + ", ".join(f"{name} {text}" for name, text in texts.items())
