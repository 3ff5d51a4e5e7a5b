"""A sweep behind gateways that close every connection after 10 seconds: before Ray's head, MLflow and the object store.

Behind the head's are the driver's own connections, and those of the second node with its workers. Connections between
nodes, and from a worker to the driver, go to addresses that Ray publishes itself, and through no gateway.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlparse

import pytest
from mlflow.tracking import MlflowClient

from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.storage.object_store import ObjectPath
from meltpoint.tests.object_stores import BUCKET, s3_server
from meltpoint.tests.short_connections import ShortConnections, short_connections
from meltpoint.tests.sweeps import ray_nodes
from meltpoint.tests.sweeps.mlflow_server import MlflowServer, mlflow_server
from meltpoint.tests.sweeps.ray_nodes import RayNode
from meltpoint.tests.sweeps.whole_sweeps import command

LIFE_SECONDS = 10.0
PATIENCE_SECONDS = 900
TRIALS, SEEDS = 3, 2

pytestmark = [
    pytest.mark.slow, pytest.mark.timeout(2 * PATIENCE_SECONDS),
    pytest.mark.skipif(find_spec("obstore") is None, reason="the extra 's3' is not installed"),
]  # fmt: skip


@dataclass
class Place:
    """All that a sweep needs, behind gateways.

    Attributes:
        environment: of its driver.
    """

    head: ShortConnections
    mlflow: ShortConnections
    store: ShortConnections
    server: MlflowServer
    environment: dict[str, str]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with ExitStack() as stack:
        named, _ = stack.enter_context(s3_server(keeps_open=True))
        for name, value in named.items():
            monkeypatch.setenv(name, value)  # this test reads what was written, without the gateway
        store = stack.enter_context(short_connections(int(urlparse(named["AWS_ENDPOINT_URL"]).port or 0), LIFE_SECONDS))
        server = stack.enter_context(mlflow_server(tmp_path))
        mlflow = stack.enter_context(short_connections(server.port, LIFE_SECONDS))
        behind = {**named, "AWS_ENDPOINT_URL": store.uri}
        running = stack.enter_context(ray_nodes.cluster(RayNode(), **behind))
        head = stack.enter_context(short_connections(int(running.address.rpartition(":")[2]), LIFE_SECONDS))
        running.add(RayNode(head=f"127.0.0.1:{head.port}"))
        environment = ray_nodes.environment(**behind)
        yield Place(head, mlflow, store, server, environment)


@pytest.fixture
def spec(tiny_encoder: str, tiny_task: Path, quick_space: Path) -> SweepSpec:
    """A cell."""
    return SweepSpec(
        name="short", encoders=(tiny_encoder,), modes=("fine_tuning",), tasks=(str(tiny_task),), head="linear",
        trials=TRIALS, seeds=SEEDS, space=str(quick_space),
    )  # fmt: skip


def test_no_trial_is_lost_and_each_is_there_once_where_every_connection_is_closed_after_10_seconds(
    spec, tmp_path, place
):
    storage = f"s3://{BUCKET}/lab"
    words = command(
        spec, Path("unused"), "--address", f"127.0.0.1:{place.head.port}", "--tracking-uri", place.mlflow.uri,
        "--storage", storage, "--cache-dir", str(tmp_path / "cache"), "--set", "epochs=300",
    )  # fmt: skip
    began = time.monotonic()
    done = subprocess.run(
        words, env=place.environment, capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS, check=False
    )
    print(f"{time.monotonic() - began:.0f} s\n{done.stderr}")
    assert done.returncode == 0
    assert "tried again" not in done.stderr
    folder = ObjectPath.of(f"{storage}/{spec.name}")
    found = [json.loads(path.read_text()) for path in (folder / "trials").iterdir()]
    assert Counter(record["role"] for record in found) == {"search": TRIALS, "final": SEEDS}
    assert {(one["status"], one["attempts"], one["driver_attempt"]) for one in found} == {("finished", 1, 1)}
    assert max(record["seconds"] for record in found) > LIFE_SECONDS, "a trial that outlives connections"
    assert_in_mlflow(place.server, spec.name, found)
    cuts = {name: getattr(place, name).cut for name in ("head", "mlflow", "store")}
    assert all(cuts.values()), cuts


def assert_in_mlflow(server: MlflowServer, name: str, found: list[dict]) -> None:
    """Each trial has one run, with all its epochs."""
    client = MlflowClient(server.uri)
    experiment = client.get_experiment_by_name(name)
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    assert {run.info.status for run in runs} == {"FINISHED"}
    by_trial = {run.data.tags["meltpoint.trial"]: run for run in runs if "meltpoint.trial" in run.data.tags}
    assert sorted(by_trial) == sorted(record["id"] for record in found)
    assert len(runs) == len(found) + 1, "and one for the cell"
    for record in found:
        history = client.get_metric_history(by_trial[record["id"]].info.run_id, "epoch")
        assert [metric.step for metric in history] == [epoch["step"] for epoch in record["epochs"]]
