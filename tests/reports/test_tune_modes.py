"""The modes that `tune` takes: all that a time budget allows, the cheapest first, with ❄ and 🔥 in any case."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meltpoint.adapters import modes
from meltpoint.reports.commands.search import _modes_within_budget
from meltpoint.reports.python_api import options_of
from meltpoint.sweeps.command_line.spec_from_options import asked_spec, checked_spec
from meltpoint.sweeps.driver import plan
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.sweep_file import SweepFile, write_sweep
from meltpoint.sweeps.specification.sweep_options import SweepOptions
from meltpoint.sweeps.specification.sweep_spec import SweepSpec

ICE, FIRE = "feature_extraction", "fine_tuning"


@pytest.fixture
def asked(tiny_encoder: str, tiny_task: Path, tmp_path: Path) -> SweepOptions:
    return options_of({"name": "own", "encoder": tiny_encoder, "task": str(tiny_task), "storage": str(tmp_path)})


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "own")


def test_the_cheapest_rungs_fill_the_budget(asked, ledger, monkeypatch):
    monkeypatch.setattr(plan, "multiply_rate", lambda threads, gpus: 1e9)  # of any machine: its load says nothing here
    planned = plan.plan_sweep(spec_of(asked), asked)
    worker_seconds = {cell.mode: cell.estimated_seconds for cell in planned.cells}
    cheapest = sorted(worker_seconds, key=worker_seconds.__getitem__)
    assert cheapest[0] == "probe"
    for count in range(1, len(cheapest) + 1):
        enough = plan.wall_seconds((worker_seconds[name] for name in cheapest[:count]), planned.workers)
        found = _modes_within_budget(replace(asked, time_budget=enough + 1e-6), ledger)
        assert set(found) == {*cheapest[:count], ICE, FIRE}
        assert found == [name for name in modes.expanded([modes.LADDER]) if name in found]
    assert _modes_within_budget(replace(asked, time_budget=1.0), ledger) == [ICE, FIRE]
    assert _modes_within_budget(asked, ledger) is None, "the usual modes without a budget"


def spec_of(asked: SweepOptions) -> SweepSpec:
    return checked_spec(replace(asked, mode=["ladder"]))


def test_a_rung_that_the_head_does_not_fit_is_left_out(asked, ledger):
    found = _modes_within_budget(replace(asked, head="bilstm", time_budget=1e9), ledger)
    assert set(modes.names()) - set(found) == {"probe", "lp_ft"}


def test_a_sweep_that_has_begun_keeps_its_modes(asked, ledger):
    ledger.create()
    spec = SweepSpec(name="own", encoders=("minilm",), modes=("probe", FIRE), tasks=("sst2",))
    write_sweep(ledger, SweepFile(spec=spec, code="0", cells=()))
    for budget in (None, 1.0):
        assert _modes_within_budget(replace(asked, time_budget=budget), ledger) == ["probe", FIRE]
    sizes = replace(asked, mode=["probe", FIRE], train_sizes=["8", "all"])
    write_sweep(ledger, SweepFile(spec=asked_spec(sizes), code="0", cells=()))
    assert _modes_within_budget(asked, ledger) == ["probe", FIRE], "also of a sweep over sizes of train"
