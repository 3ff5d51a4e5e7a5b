"""Faults × phases on a cluster of two nodes: whatever happens, the sweep ends as the undisturbed one (`make chaos`)."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tests.cluster import chaos, kills
from meltpoint.tests.cluster.chaos import FAULTS, PHASES, Outcome, World

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def chaos_spec(tiny_encoder: str, tiny_task: Path, quick_space: Path) -> SweepSpec:
    """Two cells, one of which shares frozen states; ten trials."""
    return SweepSpec(
        name="tiny", encoders=(tiny_encoder,), modes=("feature_extraction", "fine_tuning"), tasks=(str(tiny_task),),
        head="linear", trials=3, seeds=2, space=str(quick_space),
    )  # fmt: skip


@pytest.fixture(scope="module")
def parts(chaos_spec: SweepSpec) -> Iterator[World]:
    """The cluster, the server and the storage, which the cases use one after another."""
    with tempfile.TemporaryDirectory(prefix="mpc-") as folder, chaos.world(Path(folder), chaos_spec) as made:
        yield made


@pytest.fixture(scope="module")
def calm(parts: World) -> Outcome:
    """The undisturbed sweep."""
    parts.begin("calm")
    return chaos.undisturbed(parts)


@pytest.fixture(scope="module")
def table(calm: Outcome) -> Iterator[list[str]]:
    """A row a case; printed at the end."""
    rows = ["| fault | phase | starts | seconds lost | |", "|---|---|---|---|---|"]
    yield rows
    print("", f"Undisturbed: {calm.seconds:.0f} s, {len(calm.trials)} trials.", *rows, sep="\n")


@pytest.fixture
def world(parts: World, calm: Outcome, request: pytest.FixtureRequest) -> World:
    """The parts, whole again, for a sweep of the case's own name."""
    parts.begin(re.sub(r"\W+", "-", request.node.name.partition("[")[2]).strip("-"))
    return parts


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_disturbed_sweep_ends_as_the_undisturbed_one(fault: str, phase: str, world: World, calm, table) -> None:
    found = chaos.disturbed(world, FAULTS[fault], phase)
    chaos.assert_equal(world, found, calm)
    came = "" if found.met else "came as the sweep had ended"
    table.append(row := f"| {fault} | {phase} | {found.starts} | {found.seconds - calm.seconds:.0f} | {came} |")
    print(row, flush=True)  # a run that is cut off keeps its rows


@pytest.mark.timeout(3600)
def test_thirty_kills_at_random_cost_time_and_no_trial(chaos_spec: SweepSpec) -> None:
    spec = chaos_spec.model_copy(update={"trials": 24})  # of each of the two cells
    with tempfile.TemporaryDirectory(prefix="mpc-") as folder, chaos.world(Path(folder), spec) as world:
        world.epochs = 1000  # a kill costs 15 s on 2 cores, however long the sweep: 30 are half of it at 15 minutes
        world.begin("calm")
        calm = chaos.undisturbed(world)
        world.begin("killed")
        assert_each_trial_once_after_thirty_kills(world, calm)


def assert_each_trial_once_after_thirty_kills(world: World, calm: Outcome) -> None:
    seconds = kills.kill_at_random(world, 30, over_seconds=0.9 * calm.seconds)
    found = chaos.outcome(world, time.monotonic() - seconds, True)
    print(f"48 trials: {calm.seconds:.0f} s undisturbed, {seconds:.0f} s with 30 kills and {found.starts} starts")
    searched = [one for one in found.trials.values() if one[0] == "search"]
    assert len(searched) == 48
    assert {one[1] for one in found.trials.values()} <= {"finished", "stopped"}
    chaos.assert_once(world, found)
    assert seconds <= 1.5 * calm.seconds
