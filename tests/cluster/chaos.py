"""A sweep on a cluster of two nodes, and what can happen to it: the parts of `make chaos`.

Two raylets, an MLflow server behind a proxy, a storage, and the
driver are processes of this machine, on 127.0.0.1.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from mlflow.tracking import MlflowClient

from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tests.marked_processes import Marked, titled
from meltpoint.tests.sweeps import ray_nodes
from meltpoint.tests.sweeps.mlflow_server import MlflowServer, Proxy
from meltpoint.tests.sweeps.whole_sweeps import command, records

PATIENCE_SECONDS = 1500.0
AWAY_SECONDS = 15.0
"""How long a server is down."""
EPOCHS = 40
"""Long enough for a fault to meet a trial under way."""

TRAINING, SCORING = "ray::ImplicitFunc.train", "ray::"


class World:
    """What a sweep needs, in processes that can be ended.

    Attributes:
        starts: how often the driver of the present sweep was started.
        clusters: how many clusters were started.
        epochs: of each trial.
    """

    def __init__(self, folder: Path, spec: SweepSpec) -> None:
        self.spec, self.folder = spec, folder
        self.storage = folder / "runs"
        self.server = MlflowServer(folder)
        self.proxy = Proxy(self.server.port)
        self.nodes, self.driver = Marked(), Marked()
        self.cluster: ray_nodes.Running | None = None
        self.address = ""
        self.process: subprocess.Popen[bytes] | None = None
        self.starts, self.clusters, self.epochs = 0, 0, EPOCHS
        self.timers: list[threading.Timer] = []

    @property
    def sweep(self) -> Path:
        """The sweep's folder."""
        return self.storage / self.spec.name

    def begin(self, name: str) -> None:
        """Make place for a sweep of this name; the cluster and the server, if they run, stay."""
        self.driver.kill()
        for timer in self.timers:
            timer.join()
        if len(raylets(self)) < 2 or not self.nodes.processes("gcs_server"):
            self.end_cluster()
        shutil.rmtree(self.storage / "cache", ignore_errors=True)
        (self.folder / "said").write_text("")
        self.spec = self.spec.model_copy(update={"name": name})
        self.starts, self.timers, self.driver, self.process = 0, [], Marked(), None
        self.mend()

    def mend(self) -> None:
        """Start what does not run: the cluster, the server, the proxy."""
        if self.server.process is None:
            self.server.start()
        self.proxy.hang(False)
        self.proxy.listen()
        if self.cluster is None:
            self.start_cluster()

    def start_cluster(self) -> None:
        """Two nodes with a CPU each."""
        self.nodes = Marked()
        self.clusters += 1
        folder = self.folder / f"ray-{self.clusters}"
        folder.mkdir()
        started = ray_nodes.started(folder, **self.nodes.environment)
        self.cluster = started.add(ray_nodes.RayNode(), ray_nodes.RayNode())
        self.address = self.cluster.address

    def end_cluster(self) -> None:
        """Kill all its processes."""
        self.nodes.kill()
        if self.cluster is not None:
            self.cluster.process.wait()
        self.cluster = None

    def drive(self) -> None:
        """Start the command, the same each time but for the cluster's address."""
        words = command(
            self.spec, self.storage, "--address", self.address, "--tracking-uri", self.proxy.uri, "--set",
            f"epochs={self.epochs}",
        )  # fmt: skip
        self.starts += 1
        (self.sweep / "trials").mkdir(parents=True, exist_ok=True)
        patient = ray_nodes.environment(MLFLOW_HTTP_REQUEST_TIMEOUT="5")
        with (self.folder / "said").open("a") as said:
            self.process = subprocess.Popen(
                words, stdout=said, stderr=said, env={**patient, **self.driver.environment}, start_new_session=True
            )

    def until(self, condition: Callable[[World], object]) -> bool:
        """Wait for a condition; False if the driver ended first."""
        assert self.process is not None
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition(self):
            if self.process.poll() is not None:
                return bool(condition(self))
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.01)
        return True

    def ended(self) -> int:
        """The driver's exit status."""
        assert self.process is not None
        return self.process.wait(timeout=PATIENCE_SECONDS)

    def later(self, act: Callable[[], object]) -> None:
        """Do something when a fault is over."""
        self.timers.append(threading.Timer(AWAY_SECONDS, act))
        self.timers[-1].start()

    def said(self) -> str:
        """All that the driver said, in all its starts."""
        return (self.folder / "said").read_text(encoding="utf-8")

    def close(self) -> None:
        """End everything."""
        for timer in self.timers:
            timer.cancel()
            timer.join()
        self.driver.kill()
        self.end_cluster()
        self.server.kill()
        self.proxy.refuse()


@contextmanager
def world(folder: Path, spec: SweepSpec) -> Iterator[World]:
    """All parts, running; ended with the block."""
    made = World(folder, spec)
    try:
        made.mend()
        yield made
    finally:
        made.close()


PHASES: dict[str, Callable[[World], object]] = {
    "search": lambda world: records(world.storage, world.spec.name) and notes(world, "search"),
    "finals": lambda world: notes(world, "final"),
    "scoring": lambda world: (world.sweep / "test_openings.jsonl").exists(),
    "export": lambda world: any((world.sweep / "exports").glob("*")),
}
"""Phase → whether it has come."""


def notes(world: World, role: str) -> list[str]:
    """Trials of a role that have begun and not ended."""
    found = []
    for path in (world.sweep / "started").glob("*.json"):
        with suppress(FileNotFoundError):
            found += [path.stem] if f'"role": "{role}"' in path.read_text(encoding="utf-8") else []
    return found


@dataclass(frozen=True)
class Fault:
    """A fault, and what the driver does.

    Attributes:
        do: makes it happen.
        statuses: with which the driver ends, where it does not go on by itself; then the same command resumes it.
        damage: what happens to files while no driver runs.
    """

    do: Callable[[World], object]
    statuses: tuple[int, ...] = ()
    damage: Callable[[World], object] = lambda world: None


def kill_worker(world: World) -> None:
    """SIGKILL the workers that train; where none does, all that Ray has."""
    world.nodes.kill(TRAINING) or world.nodes.kill(SCORING)


def raylets(world: World) -> dict[bool, psutil.Process]:
    """Is of the head → raylet."""
    return {"--head" in titled(one).split(): one for one in world.nodes.processes("raylet/raylet")}


def kill_node(world: World) -> None:
    """SIGKILL all of the second node."""
    raylet = raylets(world)[False]
    for process in [raylet, *raylet.children(recursive=True)]:
        with suppress(psutil.Error):
            process.kill()


def kill_own_raylet(world: World) -> None:
    """SIGKILL the raylet that the driver is connected to."""
    raylets(world)[True].kill()


def lose_cluster(world: World) -> None:
    """Make place for another cluster."""
    world.end_cluster()


def signal_driver(number: int) -> Callable[[World], object]:
    """Send the driver a signal."""
    return lambda world: world.process.send_signal(number)  # type: ignore[union-attr]


def reboot(world: World) -> None:
    """SIGKILL everything at once."""
    world.driver.kill()
    world.end_cluster()
    world.server.kill()


def stop_mlflow(world: World) -> None:
    """SIGKILL MLflow, which is started again later."""
    world.server.kill()
    world.later(world.server.start)


def hang_mlflow(world: World) -> None:
    """MLflow takes requests and does not answer, for a while."""
    world.proxy.hang(True)
    world.later(lambda: world.proxy.hang(False))


def damage(world: World, pattern: str, count: int = 1) -> None:
    """Cut the newest files of a name in half, and change a byte of what is left."""
    found = sorted(world.storage.glob(pattern), key=lambda path: path.stat().st_mtime_ns)[-count:]
    for path in found:
        data = bytearray(path.read_bytes()[: max(1, path.stat().st_size // 2)])
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)


FILLS_IN = "the same command updates MLflow once it answers"
"""What a driver says that ended while MLflow was away: its last wait for it is bounded."""
STOPPED, KILLED, FAILED = 128 + signal.SIGTERM, -signal.SIGKILL, 1

FAULTS: dict[str, Fault] = {
    "a worker killed": Fault(kill_worker),
    "a node lost": Fault(kill_node),
    "the head lost": Fault(lambda world: world.nodes.kill("gcs_server"), (FAILED,), lose_cluster),
    "the driver's raylet lost": Fault(kill_own_raylet, (FAILED,), lose_cluster),
    "the driver killed": Fault(signal_driver(signal.SIGKILL), (KILLED,)),
    "the machine rebooted": Fault(reboot, (KILLED,)),
    "SIGTERM": Fault(signal_driver(signal.SIGTERM), (STOPPED,)),
    "SIGUSR1": Fault(signal_driver(signal.SIGUSR1), (STOPPED,)),
    "MLflow down": Fault(stop_mlflow),
    "MLflow hangs": Fault(hang_mlflow),
    "a checkpoint damaged": Fault(
        signal_driver(signal.SIGKILL),
        (KILLED,),
        lambda world: damage(world, f"{world.spec.name}/checkpoints/*/*.safetensors", 9),
    ),
    "a feature cache damaged": Fault(
        signal_driver(signal.SIGKILL), (KILLED,), lambda world: damage(world, "cache/features/*/*", 3)
    ),
}


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended.

    Attributes:
        seconds: from the first start of the driver to the end of the last.
        trials: identity → (role, status, seed, dev, test).
        starts: of the driver.
        met: whether the fault came in its phase.
    """

    seconds: float
    trials: dict[str, tuple[object, ...]]
    starts: int
    met: bool


def undisturbed(world: World) -> Outcome:
    """The sweep without a fault."""
    began = time.monotonic()
    world.drive()
    assert world.ended() == 0, world.said()
    return outcome(world, began, True)


def disturbed(world: World, fault: Fault, phase: str) -> Outcome:
    """The sweep with a fault in a phase; the same command again where the driver ended by it."""
    began = time.monotonic()
    world.drive()
    assert world.until(PHASES[phase]), world.said()
    fault.do(world)
    status = world.ended()
    met = not fault.statuses or status in fault.statuses
    assert met or status == 0, f"status {status}\n{world.said()}"
    fault.damage(world)
    if status != 0 or not met or FILLS_IN in world.said():
        for timer in world.timers:
            timer.join()
        world.mend()
        world.drive()
        assert world.ended() == 0, world.said()
    return outcome(world, began, met)


def outcome(world: World, began: float, met: bool) -> Outcome:
    """How the sweep of a world ended, as its ledger says."""
    facts = ("role", "status", "seed", "dev", "test")
    found = {one["id"]: tuple(one[fact] for fact in facts) for one in records(world.storage, world.spec.name)}
    return Outcome(time.monotonic() - began, found, world.starts, met)


def assert_equal(world: World, one: Outcome, calm: Outcome) -> None:
    """Every trial exactly once in ledger and MLflow, with the numbers of the undisturbed sweep, and nothing left."""
    assert one.trials == calm.trials, world.said()
    assert_once(world, one)


def assert_once(world: World, one: Outcome) -> None:
    """Every trial of the ledger exactly once in MLflow, and nothing left."""
    for timer in world.timers:
        timer.join()
    world.mend()
    client = MlflowClient(world.proxy.uri)
    experiment = client.get_experiment_by_name(world.spec.name)
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    trials = Counter(run.data.tags["meltpoint.trial"] for run in runs if "meltpoint.trial" in run.data.tags)
    assert trials == dict.fromkeys(one.trials, 1), world.said()
    assert len(runs) == len(trials) + len(world.spec.modes), "and one run a cell"
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert not list((world.sweep / "started").iterdir())
    assert len(list((world.sweep / "exports").glob("*.yaml"))) == len(world.spec.modes)
    assert "Traceback" not in world.said()
