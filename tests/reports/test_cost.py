"""Score against cost: the Pareto set by brute force, and the table of the report."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.reports.report import report
from meltpoint.reports.statistics.cost import (
    Point,
    cost_notes,
    cost_rows,
    cost_texts,
    pareto,
    price_text,
    seconds_text,
    trade_offs,
)
from meltpoint.reports.table_values import Delta
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.cost import NOTHING, CellCost
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.tests.reports.conftest import HARDWARE
from meltpoint.tests.reports.stored_sweeps import read_csv

ICE, FIRE, BOTH = "feature_extraction", "fine_tuning", "stack_and_finetune"

few = st.integers(0, 4).map(float)
"""Few values, so that many points are equal in one or both."""
clouds = st.lists(st.tuples(few, few), max_size=12) | st.lists(
    st.tuples(st.floats(-1, 1), st.floats(0, 1e9)), max_size=12
)


@given(clouds)
def test_the_pareto_set_is_what_brute_force_finds(cloud) -> None:
    points = [Point((str(number),), score, cost) for number, (score, cost) in enumerate(cloud)]
    brute = [
        one for one in points
        if not any(
            (o.score >= one.score and o.cost <= one.cost) and (o.score > one.score or o.cost < one.cost) for o in points
        )
    ]  # fmt: skip
    found = pareto(points)
    assert sorted(point.cell for point in found) == sorted(point.cell for point in brute)
    assert [point.cost for point in found] == sorted(point.cost for point in found)
    assert pareto(found) == found


def with_use(cell: CellSummary, seconds: float, **fields: object) -> CellSummary:
    """The cell, each of whose trials had one epoch of so many seconds."""

    def changed(record: TrialRecord) -> TrialRecord:
        epochs = [record.epochs[0].model_copy(update={"train_seconds": seconds, "dev_seconds": 0.0})]
        return record.model_copy(update={"epochs": epochs, **fields})

    lists = {name: [changed(one) for one in getattr(cell, name)] for name in ("finals", "search", "records")}
    return replace(cell, best=changed(cell.best), **lists)


GPU = {"peak_memory_bytes": 3_210_000_000, "peak_memory_kind": "gpu_allocated", "trained_parameters": 109_483_778}


@pytest.fixture
def cells(make_cell) -> list[CellSummary]:
    """Three modes of a task, the third of which is beaten by the second; a task with hidden labels in one cell."""
    return [
        with_use(make_cell(ICE, finals=[(0.8, 0.81)] * 2), 2.0),
        with_use(make_cell(FIRE, finals=[(0.9, 0.91)] * 2), 40.0, **GPU),
        with_use(make_cell(BOTH, finals=[(0.9, 0.90)] * 2), 50.0, **GPU),
        with_use(make_cell(ICE, "mnli", finals=[(0.7, 0.1)]), 3.0),
        with_use(make_cell(FIRE, "mnli", finals=[(0.6, "hidden")]), 9.0),
    ]


def test_cells_are_compared_within_an_encoder_and_a_task_on_a_split_that_all_have(cells, make_cell) -> None:
    found = trade_offs([*cells, make_cell(FIRE, "cola", search=()), make_cell(FIRE, variant="none", search=())])
    assert [key[1::2] for key in found] == [("sst2", "test"), ("mnli", "dev")]
    first, second = found.values()
    assert [(point.cell[1], point.cost) for point in pareto(first)] == [(ICE, 2.0), (FIRE, 40.0)]
    assert [point.cell[1] for point in pareto(second)] == [ICE], "by dev, where 0.7 beats 0.6"


def test_the_report_has_a_row_a_cell_with_what_hardware_told(cells, make_sweep) -> None:
    summary = make_sweep(*cells)
    heads, ice, fire, both, *_ = cost_rows(summary, (), {})
    assert heads[3:] == [
        "score", "search", "finals", "GPU-hours", "peak memory", "weights trained", "next task adds", "one run",
    ]  # fmt: skip
    assert ice[3:] == ["81.0 ± 0.0", "1 min", "2 min", "0", NOTHING, NOTHING, NOTHING, "2 s"]
    assert fire[4:] == ["1 min", "2 min", "0", "3.21 GB", "109 483 778", "438 MB", "40 s"]
    assert both[6:8] == ["0", "3.21 GB"]
    section = report(summary, "md").partition("## Score and cost\n")[2].partition("\n## ")[0]
    assert "Peak memory is of tensors on the GPU." in section
    _, plain, *_ = read_csv(report(summary, "csv"))
    assert (plain["peak_memory_bytes"], plain["trained_parameters"]) == ("3210000000", "109483778")
    assert (float(plain["gpu_hours"]), float(plain["seconds_of_a_final"])) == (0.0, 40.0)
    told = with_use(summary.cells[0], 1.0, peak_memory_bytes=5, peak_memory_kind="process_lifetime")
    assert "since the worker began, including earlier trials" in " ".join(cost_notes(make_sweep(told)))
    share = CellCost(trained_parameters=664_322, model_parameters=22_600_000)
    assert cost_texts(share)[4:6] == ["664 322 (2.94 %)", "2.66 MB"]
    assert (seconds_text(0.4321), seconds_text(9.94), seconds_text(75)) == ("0.43 s", "9.9 s", "1 min 15 s")


def test_a_cell_has_its_difference_to_fine_tuning_whichever_side_of_the_comparison_it_is_on(cells, make_sweep) -> None:
    summary = make_sweep(*cells)
    ice, fire, both = (cell.header.key for cell in summary.cells[:3])
    known = dict.fromkeys(("variant", "split"), "") | {"metric": "accuracy"}
    first = SimpleNamespace(upper=fire, lower=ice, delta=0.1, low=0.05, high=0.2, **known)
    second = SimpleNamespace(upper=both, lower=fire, delta=0.02, low=0.01, high=0.03, **known)
    deltas = [Delta("Δ", one, in_family=True) for one in (first, second)]  # type: ignore[arg-type]
    heads, *rows = cost_rows(summary, deltas, {ice: (0.75, 0.872)})
    assert [row[heads.index("score")] for row in rows[:2]] == ["81.0 [75.0, 87.2]", "91.0 ± 0.0"]
    column = heads.index("Δ to 🔥")
    assert [row[column] for row in rows[:3]] == ["−10.0 [−20.0, −5.0]", NOTHING, "+2.0 [+1.0, +3.0]"]


def test_a_price_per_hour_prices_gpu_hours_and_without_them_the_trials_hours(cells, make_sweep) -> None:
    ice, fire, *_ = cells
    fire = replace(fire, records=[with_gpu(record) for record in fire.records])
    summary = make_sweep(ice, fire, price_per_hour=10.0)
    hours = {cell.header.mode: cell.cost.gpu_hours or cell.cost.seconds / 3600 for cell in summary.cells}
    assert hours[FIRE] == pytest.approx(summary.cells[1].cost.seconds / 7200)
    frozen, tuned = 10 * hours[ICE], 10 * hours[FIRE]
    assert price_text(summary) == f"{frozen + tuned:.2f} at 10 an hour (❄ {frozen:.2f}, 🔥 {tuned:.2f})"
    assert f"Price: {price_text(summary)}." in report(summary, "md")
    assert price_text(make_sweep(ice, fire)) == ""


def with_gpu(record: TrialRecord) -> TrialRecord:
    return record.model_copy(update={"hardware": HARDWARE.model_copy(update={"device": "cuda:0", "gpu_share": 0.5})})
