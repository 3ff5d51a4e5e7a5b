"""experiment: Tune's searcher and scheduler, and the faults that Tune would not survive by itself."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from ray.exceptions import OutOfMemoryError, RayActorError, RayTaskError
from ray.tune import PlacementGroupFactory, TuneError
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from meltpoint.search_spaces.space import EarlyStopping
from meltpoint.sweeps.ledger.records import Attempt, HardwareRecord
from meltpoint.sweeps.on_ray.experiment import (
    WORKER_SECONDS,
    AshaPerCell,
    CellSearch,
    Listener,
    hand_back,
    memory_kill_behind,
    resources_of,
)
from meltpoint.sweeps.on_ray.workers import EVENTS, UNFIT_NODE, result_of
from meltpoint.sweeps.worker.outcome import STOPPED_BY_BUDGET, STOPPED_EARLY, TrialEvent, TrialOutcome, failed
from meltpoint.sweeps.worker.work_order import Order
from meltpoint.tasks.core.task import DataSpec
from meltpoint.tests.sweeps.planning import epoch_of

ORDER = Order(
    id="a", number=0, role="search", encoder="minilm", mode="fine_tuning", task="t", head="linear", seed=0, setting={},
    data=DataSpec("t"), data_fingerprint="", encoder_fingerprint="", checkpoint="nowhere", cpus=1.0, gpus=0.0,
)  # fmt: skip
HARDWARE = HardwareRecord(device="cpu", name="AVX2", threads=1, gpu_share=0.0, precision="fp32", host="here")


def epoch_event(trial: str, epoch: int = 1, epochs: int = 2, score: float = 0.5) -> TrialEvent:
    attempt = Attempt(epochs=[epoch_of(epoch, score)])
    return TrialEvent(trial=trial, attempt=attempt, score=score, percent=100 * epoch / epochs)


def started(trial: str) -> TrialEvent:
    return TrialEvent(trial=trial, attempt=Attempt(hardware=HARDWARE, trained_together=2, task_parameters=1))


def test_the_time_budget_stops_trials_that_share_a_worker_at_their_next_epoch():
    order = object()
    is_late = False
    driver = SimpleNamespace(
        wants_stop=lambda work: True, early_stopping=lambda work: None, begins_too_late=lambda work: is_late
    )
    outcomes: dict[str, TrialOutcome] = {}
    scheduler = AshaPerCell(driver, {"t": order}, outcomes)
    trial = SimpleNamespace(trial_id="t")
    at_start, at_epoch = (result_of([event(name) for name in "ab"]) for event in (started, epoch_event))
    assert scheduler.on_trial_result(None, trial, at_start) == TrialScheduler.CONTINUE
    assert outcomes == {}
    assert scheduler.on_trial_result(None, trial, at_epoch) == TrialScheduler.STOP
    assert outcomes == {"t": STOPPED_BY_BUDGET}
    is_late = True
    assert scheduler.on_trial_result(None, trial, at_start) == TrialScheduler.STOP
    at_end = result_of([started("a").model_copy(update={"outcome": STOPPED_EARLY})])
    assert scheduler.on_trial_result(None, trial, at_end) == TrialScheduler.CONTINUE


def test_rungs_can_be_shares_of_each_trials_own_schedule():
    rule = EarlyStopping(reduction_factor=2, grace_fraction=0.25)
    first = SimpleNamespace(role="search", cell=("e", "m", "t"))
    orders = dict.fromkeys(("long", "short", "late"), (first,))
    driver = SimpleNamespace(wants_stop=lambda work: False, early_stopping=lambda work: rule)
    outcomes: dict[str, TrialOutcome] = {}
    scheduler = AshaPerCell(driver, orders, outcomes)

    def tell(name: str, epoch: int, epochs: int, score: float) -> str:
        result = result_of([epoch_event(name, epoch, epochs, score)])
        return scheduler.on_trial_result(None, Trial("train", trial_id=name, stub=True), result)

    for name in orders:
        scheduler.on_trial_add(None, Trial("train", trial_id=name, stub=True))
    assert tell("long", 1, 8, 0.9) == TrialScheduler.CONTINUE  # an eighth: before the first rung
    assert tell("long", 2, 8, 0.9) == TrialScheduler.CONTINUE
    assert tell("short", 1, 4, 0.8) == TrialScheduler.STOP, "at the same share, the lower score loses its rung"
    assert tell("late", 1, 4, 0.95) == TrialScheduler.CONTINUE
    assert outcomes == {"short": STOPPED_EARLY}


def choices(slots: int, running: int, waiting: int, count: int, seconds: float = 0.0) -> list[str]:
    """The trials that are chosen one after the other, of some that run, some that wait, and one that ended.

    Args:
        seconds: between a look at them and these choices.
    """
    names = ["ended", *(f"runs{number}" for number in range(running)), *(f"w{number}" for number in range(waiting))]
    times = itertools.chain([0.0], itertools.repeat(seconds))
    orders = {name: object() for name in names[1:]}
    scheduler = AshaPerCell(SimpleNamespace(slots=slots), orders, {}, clock=lambda: next(times))
    trials = [Trial("train", trial_id=name, stub=True) for name in names]
    for trial in trials[1 : running + 1]:
        trial.status = Trial.RUNNING
    tune = SimpleNamespace(get_live_trials=lambda: set(trials[1:]))
    scheduler.choose_trial_to_run(tune)
    scheduler.chosen = ""
    chosen = [scheduler.choose_trial_to_run(tune) for _ in range(count)]
    return ["" if trial is None else trial.trial_id for trial in chosen]


def test_trials_that_wait_take_turns_the_oldest_first_and_none_that_ended_is_looked_at():
    assert choices(slots=2, running=1, waiting=3, count=5) == ["w0", "w1", "w2", "w0", "w1"]
    assert choices(slots=2, running=2, waiting=1, count=2) == ["w0", "w0"]
    assert choices(slots=2, running=2, waiting=0, count=1) == [""]


def test_a_trial_whose_own_worker_is_to_come_is_given_no_other_for_a_while():
    assert choices(slots=4, running=2, waiting=3, count=3) == ["w1", "w2", "w1"]
    assert choices(slots=4, running=2, waiting=1, count=1) == [""]
    late = WORKER_SECONDS + 1
    assert choices(slots=4, running=2, waiting=3, count=3, seconds=late) == ["w0", "w1", "w2"], "it may never come"


@pytest.mark.parametrize(
    ("error", "text", "cause"),
    [
        (RayActorError(), None, "worker"),
        (None, "Task was killed due to the node running low on memory.", "memory"),
        (RayTaskError("train", "Traceback", KeyError("work")), None, "worker"),
        (RayTaskError("train", "Traceback", torch.AcceleratorError("CUDA error: ECC")), None, "worker"),
    ],
)
def test_the_driver_is_told_whether_our_code_raised_or_the_worker_was_lost(error, text, cause):
    told = []
    orders, outcomes = {"t": object()}, {}
    driver = SimpleNamespace(on_order_end=lambda order, outcome: told.append((outcome.status, outcome.cause)))
    search, scheduler = CellSearch(driver, orders, outcomes, set()), AshaPerCell(driver, orders, outcomes)
    trial = SimpleNamespace(trial_id="t", get_pickled_error=lambda: error, get_error=lambda: TuneError(text))
    scheduler.on_trial_error(None, trial)
    search.on_trial_complete("t", error=True)
    assert told == [("failed", cause)]
    assert orders == outcomes == {}


KILL = """1 worker(s) were killed due to the node running low on memory.
Considered workers: [
Selected to kill: (Actor(7a74): job ID=01, task name=ImplicitFunc.__init__, pid=11, actual memory used=1.91GB)
(Actor(fea6): job ID=01, task name=ImplicitFunc.__init__, pid=12, actual memory used=0.11GB)
]"""


def tunes_error(text: str) -> Exception:
    """As Tune raises it where a worker was killed."""
    try:
        try:
            raise OutOfMemoryError(text)
        except OutOfMemoryError as kill:
            raise RuntimeError("Caught unexpected exception") from kill
    except RuntimeError as error:
        return error


def test_a_memory_kill_is_found_behind_tunes_error_and_another_error_is_not_taken_for_one():
    error = tunes_error(KILL)
    assert memory_kill_behind(error) is error.__cause__
    assert memory_kill_behind(RuntimeError("Caught unexpected exception")) is None


@pytest.mark.parametrize(
    ("text", "lost"),
    [(KILL, {"killed": "memory", "beside it": "restarted", "not begun": "restarted"}),
     ("the node running low on memory", dict.fromkeys(("killed", "beside it", "not begun"), "memory"))],
)  # fmt: skip
def test_the_killed_workers_order_is_lost_and_the_others_are_handed_back_uncounted(text, lost):
    heard: dict[object, str] = {}
    driver = SimpleNamespace(on_order_end=lambda work, outcome: heard.update({work: outcome.cause or outcome.status}))
    orders = {"a": "killed", "b": "beside it", "c": "not begun"}
    hand_back(driver, orders, {"a": 11, "b": 12}, tunes_error(text).__cause__)
    assert heard == lost
    assert orders == {}


def refused_by(node: str, alive: list[str], monkeypatch: pytest.MonkeyPatch, unfit: set[str]) -> list[object]:
    """A worker on a node refuses the order of trial `t`; what the driver is told."""
    nodes = [{"NodeID": one, "Alive": True, "Resources": {"CPU": 1.0}, "Labels": {}} for one in alive]
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    told: list[object] = []
    driver = SimpleNamespace(on_event=told.append, failure=None)
    orders = {"t": (ORDER,)}
    refusal = TrialEvent(trial="a", outcome=failed("worker", "its machine b has other code; bring both to the same"))
    listener = Listener(driver, orders, unfit)  # type: ignore[arg-type]
    result = {EVENTS: [refusal], UNFIT_NODE: node, "pid": 1}
    listener.on_trial_result(0, [], SimpleNamespace(trial_id="t"), result)  # type: ignore[arg-type]
    return told


def test_a_node_that_refused_gets_no_other_order(monkeypatch):
    unfit: set[str] = set()
    (told,) = refused_by("bbbb", ["aaaa", "bbbb"], monkeypatch, unfit)
    assert told.outcome.cause == "worker"
    driver = SimpleNamespace(next_order=lambda: (ORDER,))
    config = CellSearch(driver, {}, {}, unfit).suggest("u")
    others = PlacementGroupFactory([{"CPU": 1.0}], bundle_label_selector=[{"ray.io/node-id": "!in(bbbb)"}])
    assert resources_of(config) == others != resources_of({"cpus": 1.0, "gpus": 0.0})


def test_a_sweep_ends_with_one_line_where_every_node_has_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"^No machine is left to train on: its machine b has other code;"):
        refused_by("bbbb", ["bbbb"], monkeypatch, set())


SCRIPT = """
import os, sys, time
from pathlib import Path
import psutil

SPARE = 3.5e9
memory = psutil.virtual_memory()
os.environ["RAY_memory_monitor_refresh_ms"] = "100"
os.environ["RAY_memory_usage_threshold"] = str((memory.total - memory.available + SPARE) / memory.total)
from meltpoint.sweeps.on_ray import experiment
from meltpoint.sweeps.on_ray.cluster import SETTINGS, Cluster
from meltpoint.sweeps.on_ray.workers import result_of
from meltpoint.sweeps.worker.outcome import TrialEvent
from meltpoint.sweeps.worker.outcome import TrialOutcome
from meltpoint.sweeps.worker.work_order import from_config
from meltpoint.tests.tiny_parts import bare_order

os.environ.update(SETTINGS)
MARK = Path(sys.argv[1])


def train(config):
    from ray import tune

    first = from_config(config)[0]
    tune.report(result_of([]))
    hog = []
    while first.id == "0" and not Path(f"{MARK}.killed").exists():
        time.sleep(0.01)  # until the other one is about to be killed
    while first.id == "1" and len(hog) < 500:
        if Path(f"{MARK}.killed").exists():
            break
        hog.append(os.urandom(1000) * 20_000)
        time.sleep(0.01)
        if sum(map(len, hog)) > SPARE / 2:
            Path(f"{MARK}.killed").touch()
            hog.append(b"x" * int(2 * SPARE))
            time.sleep(30)
    time.sleep(15 if first.id == "0" else 0)
    tune.report(result_of([TrialEvent(trial=first.id, outcome=TrialOutcome(status="finished"))]))


class Driver:
    failure, slots = None, 2

    def __init__(self):
        self.orders, self.under_way, self.said = [(bare_order(n),) for n in range(2)], set(), []

    def next_order(self):
        if self.orders:
            work = self.orders.pop(0)
            self.under_way.add(work[0].id)
            return work
        return "wait" if self.under_way else "done"

    def on_event(self, event):
        self.under_way.discard(event.trial)
        self.said.append("ended " + event.trial)

    def on_order_end(self, work, outcome):
        if work[0].id in self.under_way:
            self.said.append(f"{outcome.cause or outcome.status} {work[0].id}")
            self.orders.append(work)

    def on_start(self, work): pass
    def wants_stop(self, work): return False
    def begins_too_late(self, work): return False
    def early_stopping(self, work): return None
    def tick(self): pass
    def has_enough(self): return False


if __name__ == "__main__":
    driver = Driver()
    with Cluster(None, 2) as cluster:
        cluster.join()
        experiment.run_on_tune(driver, train)
    print(", ".join(sorted(driver.said)))
"""


@pytest.mark.slow
def test_a_worker_killed_for_memory_is_lost_and_every_trial_ends(tmp_path: Path) -> None:
    script = tmp_path / "kill.py"
    script.write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "mark")], capture_output=True, encoding="utf-8", timeout=200,
        check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1:] == ["ended 0, ended 1, memory 1, restarted 0"], done.stderr[-3000:]
