"""conductor: how many orders lie at Ray at a time."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from meltpoint.sweeps import ray_tune
from meltpoint.sweeps.conductor import SweepConductor
from meltpoint.sweeps.ledger import Ledger
from meltpoint.sweeps.orders import WorkOrder
from meltpoint.sweeps.planner import Planner
from meltpoint.sweeps.specification import Resources


@pytest.fixture
def conductor(spec, cells, tmp_path: Path) -> SweepConductor:
    calls = ("begin", "began", "prepare", "run_of", "end", "ended")
    deaf = SimpleNamespace(**dict.fromkeys(calls, lambda *_: None))
    resources = Resources(storage=str(tmp_path))
    made = SweepConductor(Planner(spec, cells, []), Ledger(tmp_path / "sweep"), deaf, deaf, deaf, resources)
    made.slots = 3
    return made


def asked(conductor: SweepConductor) -> list[WorkOrder]:
    """What Ray gets where it asks until it is told to wait."""
    orders: list[WorkOrder] = []
    while isinstance(order := conductor.next_order(), WorkOrder):
        orders.append(order)
        assert len(orders) < 10
    assert order == "wait"
    return orders


def test_an_order_waits_for_each_worker_without_one_and_one_more_where_all_have_some(conductor):
    first, second, third = asked(conductor)
    conductor.began(first)
    assert asked(conductor) == [], "two workers are on their way, and two orders wait for them"
    conductor.began(second)
    conductor.began(third)
    (fourth,) = asked(conductor)
    conductor.lost(second, "its worker died")
    assert asked(conductor) == [], "the fourth takes its place"
    conductor.began(fourth)
    assert len(asked(conductor)) == 1


def test_tune_asks_for_all_workers_at_once_unless_a_person_said_otherwise(monkeypatch):
    monkeypatch.delenv(ray_tune.MOST_PENDING, raising=False)
    with ray_tune._workers_start_together(5):
        assert os.environ[ray_tune.MOST_PENDING] == "5"
    assert ray_tune.MOST_PENDING not in os.environ
    monkeypatch.setenv(ray_tune.MOST_PENDING, "2")
    with ray_tune._workers_start_together(5):
        assert os.environ[ray_tune.MOST_PENDING] == "2"
    assert os.environ[ray_tune.MOST_PENDING] == "2"
