"""cluster_part: `status` says which part of its cluster a running sweep may use, by a note of its driver."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from meltpoint.reports.status_view import show_status
from meltpoint.sweeps.driver.driver import SweepDriver
from meltpoint.sweeps.driver.opening import settle_specification
from meltpoint.sweeps.ledger.driver_notes import ClusterPart, note_part, noted_part
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.on_ray.room import LOOK_SECONDS
from meltpoint.sweeps.results.summary import summarise
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.sweep_options import Resources
from meltpoint.tests.sweeps.test_room import Cluster


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (
            ClusterPart(places=4, whole=16, cpus=1, others=("a", "b"), most=8),
            "4 of 16 CPUs (4 of 16 trials at a time), shared with the sweeps a and b; at most 8 workers",
        ),
        (
            ClusterPart(places=2, whole=4, cpus=2, others=("a", "b", "c")),
            "4 of 8 CPUs (2 of 4 trials at a time), shared with the sweeps a, b and c",
        ),
        (
            ClusterPart(places=1, whole=6, cpus=2, gpus=1 / 3, others=("a",)),
            "0.3333 of 2 GPUs (1 of 6 trials at a time), shared with the sweep a",
        ),
        (
            ClusterPart(places=4, whole=4, cpus=1, has_no_node=True),
            "none: no node with room for a trial is left; the sweep waits for one that joins",
        ),
        (
            ClusterPart(places=1, whole=2, cpus=0.5, most=1),
            "0.5 of 1 CPU (1 of 2 trials at a time); at most 1 worker",
        ),
    ],
)
def test_a_part_is_one_line(part, words):
    assert str(part) == words


@contextmanager
def running(ledger: Ledger, planner: Planner, cluster: Cluster, most: int | None = None) -> Iterator[SweepDriver]:
    """A sweep's driver on a cluster."""
    silent = SimpleNamespace(say=lambda line: None)
    resources = Resources(storage=str(ledger.folder.parent), gpus_per_trial=0.0, max_workers=most)
    driver = SweepDriver(planner, ledger, silent, silent, silent, resources)  # type: ignore[arg-type]
    with ledger.driving():
        driver.share = cluster.share(planner.spec.name, most)
        driver.note_part()
        yield driver


def shown(ledger: Ledger) -> str:
    console = Console(width=120, force_terminal=False)
    with console.capture() as captured:
        show_status(summarise(Ledger(ledger.folder)), console)
    return captured.get()


@pytest.fixture
def begun(spec, cells, tmp_path: Path) -> tuple[Ledger, Planner]:
    ledger = Ledger(tmp_path / spec.name)
    settle_specification(ledger, spec, cells)
    return ledger, Planner(spec, cells, [])


def test_status_shows_the_part_of_a_sweep_that_runs_and_follows_it(begun):
    ledger, planner = begun
    cluster = Cluster(places=8)
    with running(ledger, planner, cluster, most=6) as driver:
        assert "It may use 6 of 8 CPUs (6 of 8 trials at a time); at most 6 workers." in shown(ledger)
        cluster.share("second")
        cluster.seconds += LOOK_SECONDS
        driver._follow_cluster()
        assert "It may use 4 of 8 CPUs (4 of 8 trials at a time), shared with the sweep second;" in shown(ledger)
        document = summarise(Ledger(ledger.folder)).as_json()["cluster"]
        part = {"places": 4, "whole": 8, "cpus": 1.0, "gpus": 0.0, "others": ["second"], "most": 6}
        assert document == part | {"has_no_node": False}
    assert "It may use" not in shown(ledger)
    assert summarise(ledger).as_json()["cluster"] is None


def test_a_later_driver_has_a_part_of_its_own_and_none_before_it_says_so(begun):
    ledger, planner = begun
    with running(ledger, planner, Cluster(places=2)):
        assert noted_part(ledger.drivers) == ClusterPart(places=2, whole=2, cpus=1.0)
    with ledger.driving():
        assert noted_part(ledger.drivers) is None
        assert "It may use" not in shown(ledger)


@pytest.mark.parametrize("text", ["", "{", '{"places": -1}', "[]", "\x00"])
def test_a_note_that_is_damaged_is_none(begun, text):
    ledger, _ = begun
    with ledger.driving():
        note_part(ledger.drivers, ledger.attempt, ClusterPart(places=1, whole=1, cpus=1.0))
        (note,) = ledger.drivers.glob("*.part")
        note.write_text(text)
        assert noted_part(ledger.drivers) is None


def test_a_disk_without_room_for_the_note_ends_no_sweep(begun, monkeypatch):
    ledger, _ = begun

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with ledger.driving():
        monkeypatch.setattr(os, "fsync", full)
        note_part(ledger.drivers, ledger.attempt, ClusterPart(places=1, whole=1, cpus=1.0))
        assert noted_part(ledger.drivers) is None
