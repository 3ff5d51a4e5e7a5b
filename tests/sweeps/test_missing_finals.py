"""A cell whose finals are not all there: its state, its lines, and what tries them again."""

from __future__ import annotations

from pathlib import Path

import pytest

from meltpoint.reports.notes import trial_notes
from meltpoint.sweeps.driver.cell_endings import missing_finals
from meltpoint.sweeps.driver.opening import settle_specification
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.summary import SweepSummary, summarise
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.provenance import code_version


@pytest.fixture
def summary_of(spec, cells, make_record, tmp_path: Path):
    """The summary of a one-cell sweep: a finished search trial, a scored final, and one that failed by a cause."""

    def made(cause: str) -> SweepSummary:
        own = spec.model_copy(update={"modes": ("feature_extraction",), "trials": 1})
        opened = [cell for cell in cells if cell.mode == "feature_extraction"]
        ledger = Ledger(tmp_path / cause)
        settle_specification(ledger, own.model_copy(update={"name": cause}), opened)
        planner = Planner(own, opened, [])
        (progress,) = planner.cells.values()
        progress.target = 1
        search = make_record(planner.next(), code_version=code_version())
        planner.end(search)
        scored, failed = planner.missing_finals(progress)
        ledger.write(search)
        ledger.write(make_record(scored, test={"accuracy": 0.5}, code_version=code_version()))
        changes = {"status": "failed", "error": "it went wrong", "cause": cause}
        ledger.write(make_record(failed, dev=(), code_version=code_version(), **changes))
        return summarise(ledger)

    return made


@pytest.mark.parametrize(
    ("cause", "state", "way"),
    [("setting", "failed", "add --retry-failed to retry"), ("worker", "stopped", "the same command retries")],
)
def test_a_missing_final_is_said_with_its_error_and_what_tries_it_again(summary_of, cause, state, way):
    summary = summary_of(cause)
    (cell,) = summary.cells
    assert summary.state == state
    line = missing_finals(summary, cell)
    assert line is not None
    assert "1 of 2 finals without a result (it went wrong)" in line
    assert line.endswith(f"{way}.")
    assert [note.partition(": ")[2] for note in trial_notes(summary)] == ["of 2 finals, 1 without a result."]
