"""Two sweeps side by side: their specifications, code and data, and the setting and scores of each common cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from meltpoint.adapters.hyperparameters import Value
from meltpoint.reports.formats import value_text
from meltpoint.sweeps.results.cost import spread_text
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.results.sweep_file import CellHeader
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
    split: str | None = None
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


def compare_sweeps(a: SweepSummary, b: SweepSummary) -> SweepDifference:
    """Compare two sweeps; nothing is trained or scored."""
    ours = {cell.header.key: cell for cell in a.cells}
    theirs = {cell.header.key: cell for cell in b.cells}
    asked = [line for line in b.spec.differences(a.spec) if not line.startswith("name ")]
    return SweepDifference(
        a.name, b.name, asked, (a.code_versions, b.code_versions),
        [cell_name(*key) for key in ours if key not in theirs], [cell_name(*key) for key in theirs if key not in ours],
        [_cell(cell, theirs[key]) for key, cell in ours.items() if key in theirs],
    )  # fmt: skip


def _cell(a: CellSummary, b: CellSummary) -> CellDifference:
    split, of_a, of_b = _scores(a, b)
    metric = " → ".join(dict.fromkeys((a.header.metric, b.header.metric)))
    same = a.header.metric == b.header.metric and of_a is not None and of_b is not None
    delta = of_b.mean - of_a.mean if same and of_a is not None and of_b is not None else None
    conditions = list(_conditions(a.header, b.header))
    return CellDifference(cell_name(*a.header.key), metric, conditions, _settings(a, b), split, of_a, of_b, delta)


def _scores(a: CellSummary, b: CellSummary) -> tuple[str | None, Spread | None, Spread | None]:
    if a.test and b.test:
        return "test", a.test, b.test
    return ("dev" if a.dev or b.dev else None), a.dev, b.dev


CONDITIONS: Mapping[str, str] = {
    "head": "head", "metric": "metric", "data_fingerprint": "data", "documents_fingerprint": "documents",
    "encoder_fingerprint": "the encoder's files", "space_fingerprint": "space", "train_examples": "training examples",
    "dev_examples": "dev examples",
}  # fmt: skip
"""Field of a cell's header → its name in a comparison."""


def _conditions(a: CellHeader, b: CellHeader) -> Iterator[str]:
    for name, word in CONDITIONS.items():
        before, now = getattr(a, name), getattr(b, name)
        if before != now:
            yield f"{word}: {before} → {now}"


def _settings(a: CellSummary, b: CellSummary) -> dict[str, tuple[Value | None, Value | None]]:
    if a.best is None or b.best is None:
        return {}
    before, now = a.best.setting, b.best.setting
    names = dict.fromkeys((*before, *now))
    return {name: (before.get(name), now.get(name)) for name in names if before.get(name) != now.get(name)}


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
        yield from _cell_lines(cell)


def _cell_lines(cell: CellDifference) -> Iterator[str]:
    yield f"{cell.cell}: {_scores_text(cell)}"
    if cell.conditions:
        yield f"  not the same: {'; '.join(cell.conditions)}"
    if cell.setting:
        yield "  " + ", ".join(f"{name} {_value(old)} → {_value(new)}" for name, (old, new) in cell.setting.items())


def _scores_text(cell: CellDifference) -> str:
    if cell.a is None or cell.b is None:
        lacking = " and ".join(name for name, over in (("a", cell.a), ("b", cell.b)) if over is None)
        return f"no finals in {lacking} yet"
    change = "" if cell.delta is None else f", Δ {difference_text(cell.delta, cell.metric)}"
    return f"{cell.split} {cell.metric} {spread_text(cell.a, cell.metric)} → {spread_text(cell.b, cell.metric)}{change}"


def _value(value: Value | None) -> str:
    return "absent" if value is None else value_text(value)
