"""Every private name of Ray and Tune that the package uses, as a table of patches. Light to import: no Ray.

A patch saves time, on a shared cluster that of other sweeps, and decides nothing else. All are off with
MELTPOINT_RAY_PATCHES=0 and under a version of Ray that they were not tested with; each is undone when what it serves
ends. `tests/house/test_private_names.py` refuses private names of Ray anywhere else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet

from meltpoint.sweeps.on_ray.forked_worker import FORKING, Forking

if TYPE_CHECKING:
    from meltpoint.sweeps.machine.services import Check

TESTED = SpecifierSet(">=2.60,<2.61")
"""The versions of Ray that the patches were tested with."""
SWITCH = "MELTPOINT_RAY_PATCHES"
"""The environment variable that turns them off (0), or all but those it names (fork_server,plain_actors)."""


@dataclass(frozen=True)
class Patch:
    """One change to a private part of Ray or Tune.

    Attributes:
        name: as `MELTPOINT_RAY_PATCHES` names it.
        effect: what it does.
        gain: what it buys, as measured (docs/log.md has the runs).
        since: the first version of Ray that it was tested with.
        without: what happens where it is off.
    """

    name: str
    effect: str
    gain: str
    since: str
    without: str


PATCHES = (
    Patch(
        "released_workers",
        "ends the one idle worker that Tune keeps, where another sweep or `--max-workers` leaves it nothing to do "
        "(`TuneController._cleanup_cached_actors`)",
        "a sweep that waits for its share begins one trial of the other sweep earlier",
        "2.60",
        "a sweep that gives places back keeps one idle until its next trial ends",
    ),
    Patch(
        "lean_head",
        "starts no autoscaler monitor, log monitor and dashboard server (`Node.start_monitor`, `start_log_monitor`, "
        "`start_api_server`)",
        "10 % (1.6 s of 15.2 more without it, 2026-11-23)",
        "2.60",
        "Ray starts and stops the three processes, which a sweep's own cluster has no use for",
    ),
    Patch(
        "fork_server",
        "gives Ray `forked_worker.py` to start in the place of a worker (`setup_worker_path` of `Node`), and starts no "
        "workers before they are asked for (`prestart_worker_first_driver`)",
        "101 % (15.4 s of 15.2 more without it, 2026-11-23)",
        "2.60",
        "each worker is a new Python that imports torch and transformers and loads the encoder by itself",
    ),
    Patch(
        "plain_actors",
        "lets Tune ask for workers without a runtime environment of its own (`_ActorClassCache.get`), as those that a "
        "local cluster has started or that the fork server gives",
        "108 % (16.4 s of 15.2 more without it, 2026-11-23), since the fork server serves no other",
        "2.60",
        "Tune's workers are new Pythons, whatever has been started",
    ),
    Patch(
        "idle_workers",
        "keeps a local cluster's idle workers for an hour (`idle_worker_killing_time_threshold_ms`), with the one "
        "that scores finalists",
        "5 to 8 % (0.8 s of 13.6 more without it, 2026-11-23)",
        "2.60",
        "Ray ends idle workers after a second, and starts others",
    ),
)


def active(environment: Mapping[str, str] = os.environ) -> frozenset[str]:
    """The names of the patches that are active: none under a Ray that they were not tested with.

    Raises:
        ValueError: MELTPOINT_RAY_PATCHES names a patch that there is not.
    """
    known = frozenset(patch.name for patch in PATCHES)
    said = environment.get(SWITCH, "1")
    asked = {"0": frozenset[str](), "1": known}.get(said, frozenset(said.split(",")))
    if asked - known:
        raise ValueError(f"{SWITCH}={said}: write 0, 1, or some of {','.join(sorted(known))}.")
    return asked if TESTED.contains(ray_version(), prereleases=True) else frozenset()


def ray_version() -> str:
    """The installed one."""
    return metadata.version("ray")


def check() -> Check:
    """A line of `doctor`: which patches are active here."""
    from meltpoint.sweeps.machine.services import Check

    name, version = "Ray's patches", ray_version()
    try:
        on = active()
    except ValueError as error:
        fault, _, remedy = str(error).removesuffix(".").partition(": ")
        return Check(name, False, fault, remedy)
    if not TESTED.contains(version, prereleases=True):
        why = f"tested with Ray {TESTED}; this is Ray {version}"
        return Check(name, True, f"none active ({why}); a sweep works the same, and starts more slowly")
    if not on:
        return Check(name, True, f"none active ({SWITCH}=0); a sweep works the same, and starts more slowly")
    count = f"all {len(on)}" if len(on) == len(PATCHES) else f"{len(on)} of {len(PATCHES)}"
    return Check(name, True, f"{count} active (Ray {version})")


@contextmanager
def starting_ray(fork_server: str | None) -> Iterator[dict[str, Any]]:
    """Patch Ray while a local cluster starts.

    Args:
        fork_server: the socket that the fork server listens on; None where there is none.

    Yields:
        What `ray.init` is to be told besides.
    """
    on = active()
    system: dict[str, Any] = {}
    if "idle_workers" in on:
        system["idle_worker_killing_time_threshold_ms"] = 3_600_000
    if fork_server is not None:
        system["prestart_worker_first_driver"] = False  # Ray would wait for them, and the fork server is quick
    with ExitStack() as undo:
        if "lean_head" in on:
            for name in ("start_monitor", "start_log_monitor", "start_api_server"):
                undo.enter_context(_replaced(_node(), name, lambda node, **options: None))
        if fork_server is not None:
            undo.enter_context(_forking(fork_server))
        yield {"_system_config": system} if system else {}


@contextmanager
def running_tune(is_local: bool) -> Iterator[None]:
    """Patch Tune while an experiment runs.

    Args:
        is_local: whether the cluster is the sweep's own, whose workers have the driver's environment.
    """
    if "plain_actors" not in active() or not is_local:
        yield
        return
    from ray.tune.execution.class_cache import _ActorClassCache

    with _replaced(_ActorClassCache, "get", _plain_actor):
        yield


@contextmanager
def releasing_workers(has_enough: Callable[[], bool]) -> Iterator[None]:
    """Let Tune end its idle worker between steps, while nothing is to be started.

    Args:
        has_enough: true while no other order will be handed out.
    """
    if "released_workers" not in active():
        yield
        return
    from ray.tune.execution.tune_controller import TuneController

    clean_up = TuneController._cleanup_cached_actors

    def cleaned_up(controller: Any, force_all: bool = False) -> None:
        clean_up(controller, force_all=force_all or (not controller._staged_trials and has_enough()))

    with _replaced(TuneController, "_cleanup_cached_actors", cleaned_up):
        yield


def _node() -> Any:
    """The class that starts Ray's processes on one machine."""
    from ray._private.node import Node

    return Node


@contextmanager
def _replaced(holder: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)


@contextmanager
def _forking(socket_path: str) -> Iterator[None]:
    """Let the raylet start `forked_worker.py` where it wants a worker (ray 2.60, services.py).

    The raylet's environment tells that script where the fork server listens, and how Ray would start a worker.
    """
    start = _node().start_raylet

    def start_raylet(node: Any, *arguments: Any, **options: Any) -> None:
        asked = Forking(
            socket=socket_path, setup=node._ray_params.setup_worker_path, language="--language=PYTHON",
            runtime_environment="--serialized-runtime-env-context",
        )  # fmt: skip
        node._ray_params.setup_worker_path = str(Path(__file__).with_name("forked_worker.py"))
        os.environ[FORKING] = asked.as_json()
        try:
            start(node, *arguments, **options)
        finally:
            del os.environ[FORKING]

    with _replaced(_node(), "start_raylet", start_raylet):
        yield


def _plain_actor(cache: Any, trainable: Any) -> Any:
    """Ray's actor class of a trainable, registered once; without the environment variables that Tune asks for."""
    import ray

    if trainable not in cache._cache:
        cache._cache[trainable] = ray.remote(trainable)
    return cache._cache[trainable]
