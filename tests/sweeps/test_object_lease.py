"""A sweep in an object store: one driver's writes count whatever is halted or killed; and whole sweeps in S3 (moto)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meltpoint.sweeps.ledger import lease as leases
from meltpoint.sweeps.ledger.lease import Lease, LeaseLostError, ObjectLease, acquire
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.sweeps.storage import files, object_store
from meltpoint.sweeps.storage.object_store import ObjectPath
from meltpoint.tests.object_stores import BUCKET
from meltpoint.tests.sweeps import ray_nodes
from meltpoint.tests.sweeps.ray_nodes import RayNode
from meltpoint.tests.sweeps.test_lease_steps import DRIVERS, MANY, TRIALS, TURNS, Driver, World, stepped, taking_turns
from meltpoint.tests.sweeps.whole_sweeps import PATIENCE_SECONDS, SEEDS, command, wait_until
from meltpoint.tests.sweeps.whole_sweeps import TRIALS as SEARCHED

pytestmark = pytest.mark.skipif(find_spec("obstore") is None, reason="the extra 's3' is not installed")

REQUESTS = ("copy", "delete", "get", "head", "list", "list_with_delimiter", "put")
EXAMPLES = int(os.environ.get("MELTPOINT_LEASE_EXAMPLES", "40"))
FOLDER = ObjectPath("s3://bucket", "tiny")


def record(name: str, **changes: object) -> TrialRecord:
    facts = {
        "id": name, "number": 0, "encoder": "e", "mode": "m", "task": "t", "role": "search", "seed": 0, "setting": {},
        "head": "h", "status": "finished", "metric": "f1", "data_fingerprint": "d", "code_version": "1",
        "started_at": 0.0, "seconds": 1.0,
    }  # fmt: skip
    return TrialRecord.model_validate(facts | changes)


def contents(found: TrialRecord) -> tuple[str | None, str | None]:
    """The driver that trained it and the one that noted its run; not the one that signed it last."""
    return found.error, found.mlflow_run_id


class ObjectWorld(World):
    """Drivers of one sweep in one object store."""

    def __init__(self, is_one_machine: bool) -> None:
        self.is_one_machine = is_one_machine
        self.now, self.highest = 0.0, 0
        self.drivers = [Driver(number, self.drive) for number in range(DRIVERS + 1)]
        self.by_thread = {}
        self.acknowledged: dict[str, str] = {}

    def drive(self, me: Driver) -> None:
        lease = self._acquired()
        if lease is None:
            return
        me.attempt, self.highest = lease.attempt, max(self.highest, lease.attempt)
        ledger = Ledger(FOLDER)
        ledger.lease = lease
        with suppress(LeaseLostError):
            if lease.took_over:
                lease.inherit(ledger.trials.glob("*.json"))
            known = {one.id: contents(one) for one in ledger.records()}
            lease.check()  # so they were read while this driver had the sweep
            assert self.acknowledged.keys() <= known.keys(), "a record that was acknowledged is gone"
            for trial in TRIALS:
                self.train(ledger, me, trial, known)
            now = {one.id: contents(one) for one in ledger.records()}
            lease.check()
            assert now == known, "another driver has written beside the one that has the sweep"
        lease.release()

    def train(self, ledger: Ledger, me: Driver, trial: str, known: dict[str, tuple]) -> None:
        """Write a record where there is none, and again with its run where it has none."""
        by = f"{trial} by {me.number} as {me.attempt}"
        if trial not in known:
            ledger.start({"id": trial, "role": "search", "number": 0})
            ledger.write(record(trial, error=by))
            self.acknowledged[trial] = by
            known[trial] = by, None
        if known[trial][1] is None:
            ledger.write(record(trial, error=known[trial][0], mlflow_run_id=by))
            known[trial] = known[trial][0], by

    def _acquired(self) -> Lease | None:
        for _ in range(3):
            with suppress(ValueError):
                try:
                    return acquire(FOLDER / "drivers", say=lambda line: None)
                except LeaseLostError:
                    return None
        return None

    def watch(self, name: str, arguments: tuple) -> None:
        """A late request is allowed: it may not count."""


class InTurn:
    """In place of a pool of threads: the driver's own does it."""

    def __init__(self, _: int) -> None: ...

    def __enter__(self) -> InTurn:
        return self

    def __exit__(self, *_: object) -> None: ...

    map = staticmethod(map)


def sent_twice(put: Callable[..., object]) -> Callable[..., object]:
    """A write whose first answer is lost."""
    from obstore.exceptions import AlreadyExistsError, PreconditionError

    def twice(*words: object, **options: object) -> object:
        with suppress(AlreadyExistsError, PreconditionError):
            put(*words, **options)
        return put(*words, **options)

    return twice


@contextmanager
def simulated(world: ObjectWorld, loses_answers: bool) -> Iterator[None]:
    """Drivers' requests in turns.

    Args:
        loses_answers: every write is sent twice, as after a lost answer; others may write in between.
    """
    import obstore
    from obstore.store import MemoryStore

    store = MemoryStore()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_store, "client", lambda root, patience: store)
        patch.setattr(files, "ThreadPoolExecutor", InTurn)
        for name in REQUESTS:
            patch.setattr(obstore, name, stepped(world, name, getattr(obstore, name)))
        if loses_answers:
            patch.setattr(obstore, "put", sent_twice(obstore.put))
        with taking_turns(world, patch):
            yield


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(TURNS, st.booleans(), st.booleans())
def test_what_a_driver_reads_and_writes_stays_so_until_another_has_the_sweep(turns, is_one_machine, loses_answers):
    """Drivers take turns of any length; the rest of the time they are halted, with a request about to leave."""
    world = ObjectWorld(is_one_machine)
    with simulated(world, loses_answers):
        for number, what, count in turns:
            driver = world.drivers[number]
            driver.is_killed = driver.is_killed or what == "kill"
            for _ in range(count * (MANY if what == "many" else 1)):
                driver.step()
        for driver in world.drivers:  # all wake and go on to their ends, one after the other
            driver.finish()
            assert driver.error is None, driver.error
        after = {one.id: one for one in Ledger(FOLDER).records()}
        assert after.keys() == set(TRIALS)
        assert {trial: after[trial].error for trial in world.acknowledged} == world.acknowledged
        assert Ledger(FOLDER).unfinished() == []


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object store in memory."""
    from obstore.store import MemoryStore

    store = MemoryStore()
    monkeypatch.setattr(object_store, "client", lambda root, patience: store)


def taken_over(lease: Lease) -> ObjectLease:
    """The lease of a driver that took over from one that is halted."""
    claim = leases.Claim(FOLDER / "drivers", lease.attempt + 1)
    assert leases.make(claim, lease.owner.model_copy(update={"token": "another"}))
    return ObjectLease.settle(claim, lease.owner, took_over=True)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("trial", ["new", "old"])
def test_a_write_that_was_halted_between_its_check_and_its_request_does_not_count(trial, monkeypatch):
    """The request leaves after another driver has read the ledger: a new record is left out, an old one fails."""
    import obstore

    ledger, later = Ledger(FOLDER), Ledger(FOLDER)
    ledger.lease = acquire(FOLDER / "drivers", say=print)
    ledger.write(record("old"))
    put = obstore.put

    def halted(store: object, path: str, *more: object, **options: object) -> object:
        if later.lease is None and path == f"tiny/trials/{trial}.json":
            later.lease = taken_over(ledger.lease)
            later.lease.inherit(later.trials.glob("*.json"))
            assert [one.id for one in later.records()] == ["old"]
        return put(store, path, *more, **options)

    monkeypatch.setattr(obstore, "put", halted)
    with pytest.raises(LeaseLostError):
        ledger.write(record(trial, error="late"))
    assert [(one.id, one.error) for one in later.records()] == [("old", None)]
    assert later.left_out == (["new"] if trial == "new" else [])
    later.write(record("new", error="by the driver"))
    assert [(one.id, one.error) for one in later.records()] == [("new", "by the driver"), ("old", None)]


@pytest.mark.usefixtures("memory")
def test_moved_and_removed_weights_are_the_drivers_alone():
    ledger = Ledger(FOLDER)
    ledger.lease = lease = acquire(FOLDER / "drivers", say=print)
    (ledger.checkpoint("one") / "weights.safetensors").put(b"w")
    ledger.move_checkpoint("one", "two")
    assert not ledger.checkpoint("one").exists()
    assert (ledger.checkpoint("two") / "weights.safetensors").read_bytes() == b"w"
    with pytest.raises(FileNotFoundError):
        ledger.move_checkpoint("one", "three")
    taken_over(lease)
    for change in (lambda: ledger.drop_checkpoint("two"), lambda: ledger.move_checkpoint("two", "one")):
        with pytest.raises(LeaseLostError):
            change()
    assert ledger.checkpoint("two").exists()


@pytest.mark.usefixtures("memory")
def test_a_sweep_in_an_object_store_has_one_driver_at_a_time_and_is_free_after_it():
    with Ledger(FOLDER).driving():
        assert Ledger(FOLDER).is_driven()
        with pytest.raises(ValueError, match="Another process drives this sweep"), Ledger(FOLDER).driving():
            pass
    assert not Ledger(FOLDER).is_driven()
    with Ledger(FOLDER).driving():
        assert "lease" in {thread.name for thread in threading.enumerate()}


@pytest.mark.usefixtures("memory")
def test_a_folder_of_an_object_store_that_holds_other_things_is_no_place_for_a_sweep():
    ledger = Ledger(FOLDER)
    ledger.check_place()
    with ledger.driving():
        pass
    ledger.check_place()
    (FOLDER / "diary.txt").put(b"dear diary")
    with pytest.raises(ValueError, match=r"--name tiny: s3://bucket/tiny contains other files \(diary\.txt\)"):
        ledger.check_place()


KILLED = """
import os, signal, sys
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.storage.object_store import ObjectPath
ledger = Ledger(ObjectPath.of(sys.argv[1]))
with ledger.driving():
    ledger.write(TrialRecord.model_validate_json(sys.argv[2]))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.usefixtures("s3")
def test_a_driver_that_was_killed_in_s3_is_followed_at_once_and_its_records_count():
    folder = f"s3://{BUCKET}/killed"
    words = [sys.executable, "-c", KILLED, folder, record("one").model_dump_json()]
    assert subprocess.run(words, check=False, timeout=120).returncode == -signal.SIGKILL
    ledger = Ledger(ObjectPath.of(folder))
    with ledger.driving(say=pytest.fail):
        assert [(one.id, one.driver_attempt) for one in ledger.records()] == [("one", 2)]


STORAGE = f"s3://{BUCKET}/lab"
SECRET = "not-a-secret"


def said(words: list[str], *storage: str) -> subprocess.CompletedProcess[str]:
    """A command of Meltpoint and what it said."""
    called = [sys.executable, "-m", "meltpoint.launch", *words, *storage]
    return subprocess.run(called, capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS, check=False)


def in_store(spec: SweepSpec, tmp_path: Path, *more: str) -> list[str]:
    """The command of a sweep in the object store, its cache in a folder of the node."""
    words = command(spec, Path(), "--tracking-uri", f"sqlite:///{tmp_path}/mlflow.db", *more)
    words[words.index("--storage") + 1] = STORAGE
    return [*words, "--cache-dir", str(tmp_path / "cache")]


def documents(folder: ObjectPath) -> list[dict]:
    return [json.loads(path.read_text()) for path in (folder / "trials").glob("*.json")]


def numbers(found: list[dict]) -> list[tuple]:
    """The results of a sweep, whatever its storage."""
    return sorted((r["id"], r["role"], r["status"], r["dev"], json.dumps(r["test"])) for r in found)


def kill_after(count: int, words: list[str], folder: ObjectPath) -> None:
    """SIGKILL a sweep's driver once so many trials have ended."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: len(list((folder / "trials").glob("*.json"))) >= count, process)
    assert process.poll() is None, "it ended before it was killed"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
def test_a_killed_sweep_in_s3_goes_on_and_finds_the_same_as_in_a_folder(s3, frozen_spec, tmp_path, done):
    spec, folder = frozen_spec.model_copy(update={"trials": SEARCHED}), ObjectPath.of(f"{STORAGE}/tiny")
    words = in_store(spec, tmp_path)
    kill_after(1, words, folder)
    first = {one["id"]: one["seconds"] for one in documents(folder)}
    went_on = subprocess.run(words, capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS, check=False)
    assert went_on.returncode == 0, went_on.stderr
    found = documents(folder)
    assert {one["id"]: one["seconds"] for one in found}.items() >= first.items(), "what had ended is not trained again"
    assert len(found) == SEARCHED + SEEDS
    assert {one["driver_attempt"] for one in found} == {2}, "the driver that went on signed what it found"
    assert list((folder / "started").iterdir()) == []
    in_a_folder = [json.loads(path.read_text()) for path in (done[1] / "tiny" / "trials").glob("*.json")]
    assert numbers(found) == numbers([one for one in in_a_folder if one["mode"] == "feature_extraction"])
    assert len((folder / "test_openings.jsonl").read_text().splitlines()) == SEEDS
    assert len(list((folder / "checkpoints").iterdir())) == 1
    assert len(list((tmp_path / "cache" / "features").glob("*/entry.json"))) == 2, "train and dev, encoded once"
    assert_commands_work(folder, tmp_path)
    everything = [path.read_bytes() for path in ObjectPath.of(STORAGE).files()]
    assert not any(SECRET.encode() in contents for contents in everything)
    assert SECRET not in went_on.stdout + went_on.stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="there is no /proc/self/cwd")
def test_two_nodes_of_a_cluster_run_one_sweep_in_s3_and_each_builds_its_own_features(s3, frozen_spec, tmp_path, done):
    spec = frozen_spec.model_copy(update={"trials": SEARCHED})
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    with ray_nodes.cluster(*(RayNode(folder=str(folder)) for folder in folders)) as running:
        words = [*in_store(spec, tmp_path, "--address", running.address), "--cache-dir", "/proc/self/cwd/cache"]
        patient = ray_nodes.environment()
        ran = subprocess.run(
            words, capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS, check=False, env=patient,
            cwd=folders[0],
        )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    in_a_folder = [json.loads(path.read_text()) for path in (done[1] / "tiny" / "trials").glob("*.json")]
    alone = [one for one in in_a_folder if one["mode"] == "feature_extraction"]
    assert numbers(documents(ObjectPath.of(f"{STORAGE}/tiny"))) == numbers(alone)
    assert [len(list((folder / "cache" / "features").glob("*/entry.json"))) for folder in folders] == [2, 2]


def assert_commands_work(folder: ObjectPath, tmp_path: Path) -> None:
    """`status`, `report` and `export` read the object store, and `export` writes there or here."""
    status = said(["status", "tiny", "--json"], "--storage", STORAGE)
    assert json.loads(status.stdout)["state"] == "done", status.stderr
    report = said(["report", "tiny"], "--storage", STORAGE)
    assert report.stdout == (folder / "report.md").read_text()
    exported = said(["export", "tiny", "--model"], "--storage", STORAGE)
    written = [ObjectPath.of(line) for line in exported.stdout.splitlines()]
    assert [path.exists() for path in written] == [True, True], exported.stderr
    local = said(["export", "tiny", "--out", str(tmp_path / "out")], "--storage", STORAGE)
    assert (tmp_path / "out" / written[0].name).read_bytes() == written[0].read_bytes(), local.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["status", "none"], "No sweep 'none' under s3://sweeps/refused. It has no sweeps yet"),
        (["analyse", "-", "mutual_information"], "analyses are written into a folder; name one with --out DIR"),
        (["ui"], "MLflow's SQLite store cannot be in an object store; name an MLflow server"),
        (["demo"], "the demo keeps its model in a folder; name one"),
    ],
)
def test_what_an_object_store_does_not_have_is_refused_in_one_line(words, line, s3):
    refused = said(words, "--storage", f"s3://{BUCKET}/refused")
    assert refused.returncode == 2, refused.stderr
    assert line in refused.stderr
    assert refused.stderr.count("\n") == 1
