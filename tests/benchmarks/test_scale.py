"""The large ledger at a tiny size."""

from __future__ import annotations

from meltpoint.benchmarks import large_ledger
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import open_cells


def test_a_made_ledger_answers_the_commands_and_is_planned_on(tiny_encoder, tmp_path) -> None:
    large_ledger.make(tmp_path, 60, tiny_encoder)
    assert large_ledger.cost_of(large_ledger.words_of("status", tmp_path, 60, tiny_encoder)) > 0
    assert large_ledger.missed({"status": 30.5, "report": 59.0}) == ["status"]
    spec = large_ledger.specification(60, tiny_encoder)
    planner = Planner(spec, open_cells(spec), Ledger(tmp_path / large_ledger.NAME).records())
    assert [len(progress.search) for progress in planner.cells.values()] == [30, 30]
