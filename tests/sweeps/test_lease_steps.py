"""lease: whatever is halted, killed or taken over at any step, one driver writes, and nothing is lost or done twice."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meltpoint.sweeps.ledger import lease as leases
from meltpoint.sweeps.ledger import locks as owners
from meltpoint.sweeps.ledger.lease import Lease, LeaseLostError, acquire
from meltpoint.sweeps.ledger.locks import Found, Owner

TRIALS = ("one", "two", "three")
DRIVERS = 4
STEPS = ("listdir", "mkdir", "open", "rename", "replace", "rmdir", "stat", "unlink")
"""What a driver does to the disk: it may be halted or killed before each."""


class KilledError(BaseException):
    """Ends a simulated driver; each further step of its ends it again, so that no `finally` has an effect."""


class Driver:
    """A driver in a thread of its own, which takes a step when it is told to."""

    def __init__(self, number: int, work: Callable[[Driver], None]) -> None:
        self.number, self.work = number, work
        self.attempt = 0
        self.is_killed = self.is_over = False
        self.error: BaseException | None = None
        self._go, self._came = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        self.thread.start()
        self._came.acquire()

    def step(self) -> None:
        if not self.is_over:
            self._go.release()
            self._came.acquire()

    def finish(self) -> None:
        for _ in range(ENOUGH):
            self.step()
            if self.is_over:
                return
        raise AssertionError("a driver does not come to its end")

    def pause(self) -> None:
        """In its own thread: wait to be told to go on."""
        self._came.release()
        self._go.acquire()
        if self.is_killed:
            raise KilledError

    def _run(self) -> None:
        try:
            self.pause()
            self.work(self)
        except KilledError:
            pass
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error
        finally:
            self.is_over = True
            self._came.release()


class World:
    """Drivers of one sweep on one disk, and what the test holds them to.

    Attributes:
        acknowledged: trial → what was written, as soon as its driver knew that it was.
        finished: how many times each trial's file was put in its place.
    """

    def __init__(self, folder: Path, is_one_machine: bool) -> None:
        self.folder, self.is_one_machine = folder, is_one_machine
        self.trials = folder / "trials"
        self.trials.mkdir()
        self.now = 0.0
        self.drivers = [Driver(number, self.drive) for number in range(DRIVERS + 1)]
        self.by_thread: dict[int, Driver] = {}
        self.acknowledged: dict[str, str] = {}
        self.finished: Counter[str] = Counter()
        self.highest = 0

    def drive(self, me: Driver) -> None:
        lease = self._acquired()
        if lease is None:
            return
        me.attempt = lease.attempt
        assert lease.attempt > self.highest or self._is_shut_out(lease), "two drivers hold a valid lease"
        self.highest = max(self.highest, lease.attempt)
        with suppress(LeaseLostError):
            found = {path.name for path in self.trials.iterdir()}
            for beats, trial in enumerate(name for name in TRIALS if name not in found):
                text = f"{trial} by {me.number} as {lease.attempt}"
                with lease.placing(self.trials / trial) as beside:
                    beside.write_text(text)
                self.acknowledged[trial] = text
                lease.renew(2 + beats)
        lease.release()

    def _acquired(self) -> Lease | None:
        for _ in range(3):
            with suppress(ValueError):
                try:
                    return acquire(self.folder / "drivers", say=lambda line: None)
                except LeaseLostError:
                    return None
        return None

    def _is_shut_out(self, lease: Lease) -> bool:
        return not lease.staging.exists()

    def watch(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Before a step is done: what it may not be."""
        me = self.by_thread[threading.get_ident()]
        if name == "replace" and Path(arguments[1]).parent == self.trials and Path(arguments[0]).exists():
            assert me.attempt >= self.highest, "a driver writes that another one has followed"
            self.finished[Path(arguments[1]).name] += 1

    # What takes the place of the system.

    def this_process(self, token: str, has_file_lock: bool, heartbeat_seconds: float) -> Owner:
        number = self.by_thread[threading.get_ident()].number
        boot = "here" if self.is_one_machine else f"machine {number}"
        return Owner(
            host="h", boot=boot, namespace="n", process=number, started="at noon", since="today", token=token,
            heartbeat_seconds=heartbeat_seconds,
        )  # fmt: skip

    def look_up(self, process: int) -> Found | None:
        driver = self.drivers[process]
        return None if driver.is_killed or driver.is_over else Found("T", "at noon")

    def boot(self) -> str:
        return "here" if self.is_one_machine else f"machine {self.by_thread[threading.get_ident()].number}"

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.by_thread[threading.get_ident()].pause()
        self.now += seconds


@contextmanager
def simulated(world: World) -> Iterator[None]:
    """Let the steps of the world's drivers on the disk wait for their turn."""
    with pytest.MonkeyPatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, stepped(world, name, getattr(os, name)))
        with taking_turns(world, patch):
            yield


@contextmanager
def taking_turns(world: World, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin the world's drivers, in its time and on its machines; kill those that are left after the block."""
    patch.setattr(leases, "time", world)
    patch.setattr(leases, "this_process", world.this_process)
    for name in ("look_up", "boot"):
        patch.setattr(owners, name, getattr(world, name))
    patch.setattr(owners, "namespace", lambda: "n")
    patch.setenv(leases.SILENCE, "1")
    for driver in world.drivers:
        driver.begin()
        assert driver.thread.ident is not None
        world.by_thread[driver.thread.ident] = driver
    try:
        yield
    finally:
        for driver in world.drivers:
            driver.is_killed = True
            while not driver.is_over:
                driver.step()


def stepped(world: World, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        driver = world.by_thread.get(threading.get_ident())
        if driver is not None:
            driver.pause()
            world.watch(name, arguments)
        return real(*arguments, **options)

    return call


def written(world: World) -> dict[str, str]:
    return {path.name: path.read_text() for path in world.trials.iterdir()}


TURNS = st.lists(
    st.tuples(st.integers(0, DRIVERS - 1), st.sampled_from(["some", "many", "kill"]), st.integers(1, 12)), max_size=24
)
MANY = 40
ENOUGH = 20_000
EXAMPLES = int(os.environ.get("MELTPOINT_LEASE_EXAMPLES", "80"))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(TURNS, st.booleans())
def test_one_driver_writes_at_a_time_whatever_is_halted_killed_or_taken_over(turns, is_one_machine):
    """Drivers take turns of any length; the rest of the time they are halted, as by SIGSTOP."""
    folder = Path(tempfile.mkdtemp())
    world = World(folder, is_one_machine)
    with simulated(world):
        for number, what, count in turns:
            driver = world.drivers[number]
            driver.is_killed = driver.is_killed or what == "kill"
            for _ in range(count * (MANY if what == "many" else 1)):
                driver.step()
        before = written(world)
        assert {trial: before.get(trial) for trial in world.acknowledged} == world.acknowledged
        for driver in world.drivers:  # all wake and go on to their ends, one after the other
            driver.finish()
            assert driver.error is None, driver.error
        after = written(world)
    assert after.keys() == set(TRIALS)
    assert {trial: after[trial] for trial in before} == before, "nothing that was there is written again"
    assert world.acknowledged.items() <= after.items()
    assert max(world.finished.values(), default=1) == 1, "each trial is finished once"
    shutil.rmtree(folder)
