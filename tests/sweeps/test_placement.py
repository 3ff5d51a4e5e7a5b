"""placement: what trials run on, by what Ray has. No test needs a GPU: Ray only counts them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from meltpoint.sweeps.driver.plan import planned_gpus
from meltpoint.sweeps.on_ray.placement import ClusterGpus, gpus_of_nodes, in_words, settle
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.sweeps.specification.sweep_options import Resources, checked_options
from meltpoint.sweeps.worker import retrain

AUTO = Resources()
NO_GPU = ClusterGpus(0)
H100 = ClusterGpus(4, ("H100",))
MIXED = ClusterGpus(3, ("A100", "T4"))


@pytest.fixture(params=[True, False], ids=["torch-has-cuda", "torch-has-none"])
def has_cuda(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether this process's torch says that it can use a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: request.param)
    return bool(request.param)


def node(alive: bool = True, **resources: float) -> dict[str, Any]:
    """A node as `ray.nodes()` has it."""
    return {"Alive": alive, "Resources": {"CPU": 2.0, **{name.replace("__", ":"): n for name, n in resources.items()}}}


# --- what Ray has ---


def test_the_gpus_of_living_nodes_count_and_a_kind_without_gpus_does_not():
    nodes = [
        node(GPU=2.0, accelerator_type__H100=1.0), node(GPU=2.0, accelerator_type__H100=1.0),
        node(alive=False, GPU=8.0, accelerator_type__T4=1.0), node(accelerator_type__TPU=1.0), node(),
    ]  # fmt: skip
    assert gpus_of_nodes(nodes) == H100
    assert gpus_of_nodes([node(), node(alive=False)]) == NO_GPU


def test_a_node_whose_gpus_ray_cannot_name_is_a_kind_of_its_own():
    assert gpus_of_nodes([node(GPU=1.0)]) == ClusterGpus(1, ("unknown",))
    assert gpus_of_nodes([node(GPU=1.0), node(GPU=1.0, accelerator_type__A100=1.0)]).kinds == ("A100", "unknown")


# --- what auto becomes ---


def test_auto_is_the_cpu_where_ray_has_no_gpu_whatever_torch_sees(has_cuda: bool):
    for address in (None, "10.0.0.1:6379"):
        assert settle(replace(AUTO, address=address), NO_GPU) == (0.0, "no GPU in this Ray cluster")


def test_auto_measures_where_ray_has_gpus_of_one_kind_that_torch_can_use(has_cuda: bool):
    assert settle(replace(AUTO, address="10.0.0.1:6379"), H100) == ("auto", "Ray has 4 GPUs (H100)"), (
        "the driver may have no GPU itself"
    )
    assert settle(replace(AUTO, address="10.0.0.1:6379"), ClusterGpus(2, ("unknown",)))[0] == "auto"
    gpus, why = settle(AUTO, H100)
    assert gpus == ("auto" if has_cuda else 0.0)
    assert why.startswith("Ray has 4 GPUs (H100)" if has_cuda else "Ray has 4 GPUs (H100), but torch ")


def test_several_kinds_give_each_trial_a_whole_gpu_and_the_line_says_why():
    gpus, why = settle(replace(AUTO, address="10.0.0.1:6379"), MIXED)
    assert gpus == 1.0
    line = in_words(3, 3, 1.0, (gpus, gpus), why)
    assert line.startswith("3 cells, 3 trials at a time, each on 1 GPU and 1 CPU (Ray has 3 GPUs (A100, T4); set")
    assert "--gpus-per-trial" in line


@pytest.mark.parametrize("found", [NO_GPU, H100, MIXED])
@pytest.mark.parametrize("gpus", [0.0, 0.25, 2.0])
def test_a_number_stays_what_was_asked_for(gpus: float, found: ClusterGpus, has_cuda: bool):
    assert settle(Resources(gpus_per_trial=gpus), found)[0] == gpus


# --- the line ---


@pytest.mark.parametrize(
    ("cells", "count", "cpus", "shares", "line"),
    [
        (3, 2, 1.0, (0.0, 0.0), "3 cells, 2 trials at a time, each on 1 CPU (why)."),
        (3, 16, 2.0, (0.25, 0.25), "3 cells, 16 trials at a time, each on 0.25 GPUs and 2 CPUs (why)."),
        (1, 8, 1.0, (0.125, 0.5), "1 cell, up to 8 trials at a time, each on 0.125 to 0.5 GPUs and 1 CPU (why)."),
    ],
)
def test_the_first_line_says_what_trials_run_on(cells, count, cpus, shares, line):
    assert in_words(cells, count, cpus, shares, "why") == line


# --- plan, which asks no Ray ---


def test_a_plan_says_which_machine_it_assumes(has_cuda: bool):
    gpus, (said,) = planned_gpus(AUTO)
    assert gpus == float(has_cuda)
    assert ("whole GPU" in said) == has_cuda
    remote = planned_gpus(replace(AUTO, address="10.0.0.1:6379"))[1]
    assert "the cluster at 10.0.0.1:6379 is not queried" in remote[0]
    assert planned_gpus(Resources(gpus_per_trial=0.0)) == (0.0, [])


# --- train, which has no Ray ---


@pytest.mark.parametrize("recorded", ["", "provenance: {hardware: {threads: 1, gpu_share: 0.0}}\n"])
def test_train_takes_the_gpu_of_this_machine_unless_the_file_records_a_cpu(
    recorded: str, has_cuda: bool, tiny_encoder, tiny_task, tmp_path, monkeypatch
):
    asked: list[float] = []

    def stop(threads: int, gpu_share: float) -> None:
        asked.append(gpu_share)
        raise ArithmeticError

    monkeypatch.setattr(retrain, "claim_device", stop)
    path = tmp_path / "point.yaml"
    path.write_text(
        f"encoder: {tiny_encoder}\nmode: fine_tuning\ntask: {tiny_task}\nparameters: {{epochs: 1}}\n{recorded}",
        encoding="utf-8",
    )
    with pytest.raises(ArithmeticError):
        retrain.retrain(str(path), None, False, None, lambda result: None)
    assert asked == [1.0 if has_cuda and not recorded else 0.0]


# --- the option ---


def test_the_option_takes_auto_and_numbers_and_refuses_the_rest():
    found = [checked_options({"gpus_per_trial": text}).gpus_per_trial for text in ("auto", "0", "0.25", "2")]
    assert found == ["auto", 0.0, 0.25, 2.0]
    for text in ("-1", "nan", "inf", "half", ""):
        with pytest.raises(ValueError, match="write 0, a share such as"):
            checked_options({"gpus_per_trial": text})


# --- on a Ray that believes in one GPU ---

SCRIPT = """
import os, sys
import ray
import torch
from meltpoint.sweeps.on_ray.cluster import SETTINGS
os.environ.update(SETTINGS)
from meltpoint.sweeps.on_ray import placement
from meltpoint.sweeps.specification.cells import open_cells
from meltpoint.sweeps.worker.work_order import Order
from meltpoint.sweeps.ledger.records import Trial
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.worker.gpu_probe import Need
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.specification.sweep_options import Resources


def order_of(proposal, gpus):
    cell = planner.cells[proposal.cell].cell
    return Order(
        **dict(Trial.of(proposal)), head=cell.head, data=cell.data, data_fingerprint="", encoder_fingerprint="",
        checkpoint="nowhere", cpus=1, gpus=gpus,
    )


def probe(document):
    mode = document["bundles"][0][0]["mode"]
    given = ray.get_runtime_context().get_assigned_resources()
    assert given["GPU"] == 1.0
    gib = 2**30
    return Need(8 * gib, 24 * gib) if mode == "feature_extraction" else Need(20 * gib, 24 * gib)


if __name__ == "__main__":
    kinds = {"accelerator_type:L4": 1}
    ray.init("local", num_cpus=2, num_gpus=2, resources=kinds, include_dashboard=False, logging_level="ERROR")
    spec = SweepSpec.model_validate_json(sys.argv[1])
    planner = Planner(spec, open_cells(spec), [])
    torch.cuda.is_available = lambda: True
    placed = placement.place(planner, order_of, Resources(), print, probe)
    print(placed.line)
    ray.shutdown()
"""


@pytest.mark.slow
def test_probes_get_a_gpu_each_from_ray_and_give_each_cell_its_share(spec, cells, tmp_path):
    """On a local Ray that believes in two GPUs, which it only counts."""
    script = tmp_path / "shares.py"
    script.write_text(SCRIPT, encoding="utf-8")
    words = [sys.executable, str(script), spec.model_dump_json()]
    done = subprocess.run(words, capture_output=True, encoding="utf-8", timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    frozen, tuned = (cell_name(*cell.key) for cell in cells)
    assert done.stdout.splitlines()[-2:] == [
        "Ray has 2 GPUs (L4): each cell's heaviest setting runs on one, to measure how many trials share it.",
        "2 cells, up to 2 trials at a time, each on 0.5 to 1 GPU and 1 CPU (Ray has 2 GPUs (L4)). "
        f"Measured shares of a GPU: {frozen} 0.5, {tuned} 1.",
    ]
