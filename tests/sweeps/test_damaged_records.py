"""damaged_records: what is damaged runs again, unless a setting was chosen by it whose test split was opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from meltpoint.sweeps.driver.opening import settle_specification
from meltpoint.sweeps.driver.record_writer import whole_records
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import Trial, TrialRecord
from meltpoint.sweeps.search.planner import Planner


def written(ledger: Ledger, spec, cells, make_record, scored: str = "") -> list[TrialRecord]:
    """A sweep whose trials have ended; the finals of modes named `scored` are scored on test."""
    settle_specification(ledger, spec, cells)
    planner, records = Planner(spec, cells, []), []
    while isinstance(proposal := planner.next(), Trial):
        planner.begin(proposal)
        is_scored = proposal.role != "search" and proposal.mode == scored
        dev = 0.9 - proposal.number / 10 if proposal.role == "search" else 0.9
        record = make_record(proposal, dev=(dev,), test={"accuracy": 0.5} if is_scored else None)
        if is_scored:
            ledger.append(ledger.openings, {"trial": record.id, "opened_at": 1.7e9})
        ledger.write(record)
        planner.end(record)
        records.append(record)
    return records


def chosen(records: list[TrialRecord], mode: str, role: str, number: int = 0) -> TrialRecord:
    return next(one for one in records if (one.mode, one.role, one.number) == (mode, role, number))


@pytest.mark.parametrize(
    ("scored", "mode", "role", "is_mended"),
    [
        ("", "fine_tuning", "search", True), ("", "fine_tuning", "final", True),
        ("fine_tuning", "fine_tuning", "final", True),
        ("fine_tuning", "feature_extraction", "final", True),
        ("fine_tuning", "feature_extraction", "search", True),
        ("fine_tuning", "fine_tuning", "search", False),
    ],
)  # fmt: skip
def test_a_record_is_set_aside_unless_a_setting_was_chosen_by_it_whose_test_was_opened(
    spec, cells, make_record, tmp_path: Path, scored, mode, role, is_mended
):
    ledger = Ledger(tmp_path / spec.name)
    records = written(ledger, spec, cells, make_record, scored)
    lost = chosen(records, mode, role)
    (ledger.trials / f"{lost.id}.json").write_text('{"id": ')
    said: list[str] = []
    with ledger.driving():
        if not is_mended:
            with pytest.raises(ValueError, match=rf"{lost.id}\.json is not a trial record"):
                whole_records(ledger, spec, [lost.code_version], cells, said.append)
            return
        left = whole_records(ledger, spec, [lost.code_version], cells, said.append)
    assert len(left) == len(records) - 1
    assert [lost.id in line for line in said] == [True]
    again = Planner(spec, cells, left, opened=[one.id for one in records if one.test]).next()
    assert isinstance(again, Trial)
    assert (again.id, again.number) == (lost.id, lost.number), "it runs again, as the same trial"
