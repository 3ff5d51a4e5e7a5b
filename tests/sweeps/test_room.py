"""room: trials fit on a node or they do not; nodes are never added up for one trial."""

from __future__ import annotations

from typing import Any

import pytest

from meltpoint.sweeps.on_ray.room import needs, slots, trials_on


def node(cpus: float = 0.0, gpus: float = 0.0, alive: bool = True, group: str | None = None) -> dict[str, Any]:
    """A node as `ray.nodes()` has it."""
    resources = {name: number for name, number in (("CPU", cpus), ("GPU", gpus)) if number}
    labels = {"ray.io/node-id": "0123"} | ({"ray.io/node-group": group} if group else {})
    return {"Alive": alive, "Resources": resources, "Labels": labels}


@pytest.mark.parametrize(
    ("has", "wants", "count"),
    [
        ((8, 0), (1, 0), 8), ((8, 0), (3, 0), 2), ((1, 0), (0.1, 0), 10), ((8, 4), (1, 1), 4), ((2, 4), (1, 1), 2),
        ((64, 2), (1, 0.4), 4), ((64, 2), (1, 0.3333), 6), ((64, 4), (1, 3), 1), ((8, 0), (1, 0.5), 0),
    ],
)  # fmt: skip
def test_a_node_has_room_for_whole_trials_and_a_gpu_for_whole_shares(has, wants, count) -> None:
    assert trials_on(node(*has), *wants) == count


def test_slots_are_counted_on_each_node_and_dead_nodes_have_none() -> None:
    assert slots(2, 0, [node(3), node(3), node(1)]) == 2
    assert slots(1, 0.4, [node(8, 1), node(8, 1)]) == 4
    assert slots(1, 0, [node(2), node(64, alive=False)]) == 2


def test_a_trial_that_fits_no_single_node_is_refused_with_what_the_largest_have() -> None:
    with pytest.raises(ValueError, match=r"needs 2 CPUs and 0 GPUs, but a node of this Ray cluster has at most 1 CPU "):
        slots(2, 0, [node(1), node(1)])
    with pytest.raises(ValueError, match=r"at most 4 CPUs and 2 GPUs or 64 CPUs and 0 GPUs; lower --cpus-per-trial"):
        slots(8, 1, [node(64), node(4, 2)])
    with pytest.raises(ValueError, match=r"but Ray has 2 CPUs and 0 GPUs;"):
        slots(4, 0, [node(2)])


def test_a_trial_that_an_autoscaler_may_have_room_for_is_not_refused() -> None:
    assert slots(8, 1, [node(0, group="headgroup")]) == 1
    assert slots(8, 0, [node(1, group="small"), node(1)]) == 1


def test_a_need_is_said_in_words() -> None:
    assert [needs(2, 0), needs(1, 0.25), needs(1, 1)] == ["2 CPUs", "1 CPU and 0.25 GPUs", "1 CPU and 1 GPU"]
