"""tracking: a real MLflow server that is away, hangs, is killed, or loses its answers, while trials go on."""

from __future__ import annotations

import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlflow.tracking import MlflowClient

from meltpoint.sweeps.ledger.records import Trial, TrialRecord
from meltpoint.sweeps.specification.provenance import code_version
from meltpoint.sweeps.tracking import tracker as tracking
from meltpoint.sweeps.tracking.tracker import Tracker
from meltpoint.sweeps.tracking.unwritten import Unwritten
from meltpoint.tests.local_servers import until
from meltpoint.tests.short_connections import short_connections
from meltpoint.tests.sweeps.mlflow_server import MlflowServer, Proxy, mlflow_server, proxy

TRIALS = 6
CUTS = 4
"""So many connections are closed, in the midst of a request or between two."""
BEGAN = 1.7e9
"""When the records of `make_record` began."""
LONG_SECONDS = 0.5
"""More than any call of the driver may take; a request to a server that hangs takes `REQUEST_SECONDS`."""
REQUEST_SECONDS = 2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    with mlflow_server(tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture
def between(server: MlflowServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The way to the server, with a tracker that tries again soon."""
    monkeypatch.setattr(tracking, "PAUSES", (0.05, 0.2))
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", str(REQUEST_SECONDS))
    with proxy(server.port) as made:
        yield made


class Sweep:
    """A driver's calls to the tracker, the time that each took, and what was said."""

    def __init__(self, name: str, uri: str, storage: Path, cells: list, make_record: Callable) -> None:
        self.cells, self.make_record = cells, make_record
        self.said: list[str] = []
        self.seconds: list[float] = []
        self.records: dict[str, TrialRecord] = {}
        self.tracker = Tracker(name, uri, storage, self.said.append)
        self.call(self.tracker.open, cells, "{}")

    def call(self, method: Callable, *words: object) -> None:
        began = time.perf_counter()
        method(*words)
        self.seconds.append(time.perf_counter() - began)

    def trial(self) -> None:
        """A trial with two epochs, each of which has news."""
        number = len(self.records)
        proposal = self.cells[0].trial(f"{number:016x}", number, "search", {"learning_rate": 0.1 + number}, number)
        record = self.make_record(proposal, started_at=BEGAN + number)
        self.call(self.tracker.begin, proposal, code_version(), record.started_at)
        for epoch in record.epochs:
            self.call(self.tracker.epoch, record.id, epoch)
            self.call(self.tracker.run_of, record.id)
        self.call(self.tracker.end, record)
        self.records[record.id] = record

    def trials(self, count: int = TRIALS) -> None:
        for _ in range(count):
            self.trial()

    def end(self) -> None:
        self.tracker.reconcile(self.records.values())
        self.tracker.close([(cell.key, {"best_dev": 0.75}) for cell in self.cells], True, {"table.md": "| a |"})

    def until_everything_is_written(self) -> None:
        until(lambda: len(self.said) % 2 == 0 and self.said[-1:] and "all data are written" in self.said[-1])

    def assert_nobody_waited(self) -> None:
        assert max(self.seconds) < LONG_SECONDS

    def assert_each_trial_once(self, server: MlflowServer) -> None:
        """Every trial has one run in MLflow, with its epochs, and its times from the ledger."""
        client = MlflowClient(server.uri)
        found = defaultdict(list)
        experiment = client.get_experiment_by_name(self.tracker.sweep).experiment_id
        for run in client.search_runs([experiment], max_results=1000):
            found[run.data.tags.get("meltpoint.trial", "cell")].append(run)
        assert len(found.pop("cell")) == len(self.cells)
        assert {trial: len(runs) for trial, runs in found.items()} == dict.fromkeys(self.records, 1)
        for trial, (run,) in found.items():
            record = self.records[trial]
            assert run.info.status == "FINISHED"
            assert run.info.start_time == record.started_at * 1000
            assert run.info.end_time == (record.started_at + record.seconds) * 1000
            assert run.data.params["seed"] == str(record.seed)
            assert run.data.metrics["best_dev"] == 0.75
            for name in ("train/loss", "dev/accuracy", "epoch"):
                history = client.get_metric_history(run.info.run_id, name)
                assert [metric.timestamp for metric in history] == [e.finished_at * 1000 for e in record.epochs]
                assert [metric.step for metric in history] == [epoch.step for epoch in record.epochs]

    def assert_ended(self, server: MlflowServer) -> None:
        client = MlflowClient(server.uri)
        experiment = client.get_experiment_by_name(self.tracker.sweep).experiment_id
        assert {run.info.status for run in client.search_runs([experiment])} == {"FINISHED"}
        assert self.tracker.trouble is None


@pytest.fixture
def sweep(between: Proxy, tmp_path: Path, cells, make_record) -> Iterator[Callable]:
    """Opens a sweep behind the proxy, under a name of its own."""
    opened: list[Sweep] = []

    def make() -> Sweep:
        opened.append(Sweep(uuid4().hex, between.uri, tmp_path, cells[:1], make_record))
        return opened[-1]

    yield make
    for one in opened:
        one.tracker.hurry(0)
        one.tracker.close([], True, {})


@pytest.mark.slow
def test_a_server_that_is_down_when_the_sweep_starts_gets_everything_while_it_runs(server, between, sweep):
    between.refuse()
    begun = sweep()
    begun.trials()
    until(lambda: begun.said)
    between.listen()
    begun.until_everything_is_written()
    begun.assert_each_trial_once(server)
    begun.assert_nobody_waited()
    begun.end()
    begun.assert_ended(server)
    assert len(begun.said) == 2, "one line when it stopped, one when it answered again"


@pytest.mark.slow  # a server without HTTP between is in tests/sweeps/test_mlflow_runs.py
@pytest.mark.parametrize("path", ["runs/create", "experiments/create", "runs/log-batch", "runs/update", "runs/search"])
def test_answers_that_are_lost_after_the_server_has_obeyed_leave_nothing_twice(
    server, between, tmp_path, cells, make_record, path, capfd
):
    lost = []

    def loses_the_first_three(request: bytes) -> bool:
        if f"mlflow/{path} ".encode() not in request.split(b"\r\n", 1)[0] or len(lost) == 3:
            return False
        lost.append(request)
        return True

    between.loses = loses_the_first_three
    begun = Sweep(uuid4().hex, between.uri, tmp_path, cells[:1], make_record)
    begun.trials()
    until(lambda: begun.tracker.run_of(f"{TRIALS - 1:016x}"))
    begun.end()
    assert lost
    begun.assert_each_trial_once(server)
    begun.assert_ended(server)
    begun.assert_nobody_waited()
    assert "View run" not in "".join(capfd.readouterr())


@pytest.mark.slow
def test_a_server_whose_connections_are_all_cut_after_half_a_second_has_each_trial_once(
    server, tmp_path, cells, make_record, monkeypatch
):
    monkeypatch.setattr(tracking, "PAUSES", (0.05, 0.2))
    with short_connections(server.port, 0.5, growth=1.3) as cutting:
        begun = Sweep(uuid4().hex, cutting.uri, tmp_path, cells[:1], make_record)
        while cutting.cut < CUTS:
            begun.trials()
            until(lambda: begun.tracker.run_of(f"{len(begun.records) - 1:016x}"))
        begun.end()
        begun.assert_each_trial_once(server)
        begun.assert_ended(server)
        begun.assert_nobody_waited()


@pytest.mark.slow
def test_a_sweep_that_ends_while_its_server_is_away_waits_a_bounded_time_and_the_same_command_fills_it_in(
    server, between, sweep, tmp_path, monkeypatch
):
    monkeypatch.setattr(tracking, "END_SECONDS", 1.0)
    begun = sweep()
    begun.trials(3)
    until(lambda: begun.tracker.run_of(f"{2:016x}"))
    between.refuse()
    begun.trials(3)
    began = time.monotonic()
    begun.end()
    assert time.monotonic() - began < 5.0
    assert "it lacks data of " in begun.tracker.trouble
    assert "the same command updates MLflow" in begun.tracker.trouble
    between.listen()
    again = Tracker(begun.tracker.sweep, between.uri, tmp_path)
    again.open(begun.cells, "{}")
    begun.tracker = again
    begun.end()
    begun.assert_each_trial_once(server)
    begun.assert_ended(server)


@pytest.mark.slow
def test_a_server_that_is_killed_and_started_again_in_between_has_each_trial_once(
    tmp_path, cells, make_record, monkeypatch
):
    monkeypatch.setattr(tracking, "PAUSES", (0.05, 0.5))
    with mlflow_server(tmp_path) as server:
        begun = Sweep("killed", server.uri, tmp_path, cells[:1], make_record)
        for _ in range(2):
            begun.trials(20)
            until(lambda: begun.tracker.run_of(f"{len(begun.records) - 15:016x}"))
            server.kill()
            begun.trials(20)
            until(lambda: len(begun.said) % 2 == 1)
            server.start()
            begun.until_everything_is_written()
        begun.assert_nobody_waited()
        begun.assert_each_trial_once(server)
        begun.end()
        begun.assert_ended(server)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trackers that wait a second at their end, and try again soon."""
    monkeypatch.setattr(tracking, "PAUSES", (0.05, 0.2))
    monkeypatch.setattr(tracking, "END_SECONDS", 1.0)


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_a_dead_server_is_one_line_of_trouble_and_stops_nothing(
    nobody, impatient, tmp_path, cells, proposal, make_record
):
    said: list[str] = []
    tracker = Tracker("dead", nobody, tmp_path, said.append)
    tracker.open(cells, "{}")
    tracker.begin(proposal, code_version(), BEGAN)
    assert tracker.run_of(proposal.id) is None
    tracker.end(make_record(proposal))
    tracker.flush()
    assert nobody in tracker.trouble
    assert "the ledger has everything" in tracker.trouble
    assert "\n" not in tracker.trouble
    assert [line for line in said if "the sweep continues" in line] == said[:1]
    tracker.close([], True, {})


def test_a_server_that_is_away_at_the_end_is_waited_for_once_and_for_a_bounded_time(
    nobody, impatient, tmp_path, cells, proposal, make_record
):
    tracker = Tracker("away", nobody, tmp_path)
    tracker.open(cells, "{}")
    tracker.begin(proposal, code_version(), BEGAN)
    tracker.flush()
    began = time.monotonic()
    tracker.reconcile([make_record(proposal)])
    tracker.close([(cells[0].key, {})], True, {})
    assert time.monotonic() - began < 5.0
    assert "has nothing from this command" in tracker.trouble


TOLD = tuple(
    Trial(id=word * 16, number=0, encoder="e", mode="m", task="t", role="search", seed=0, setting={}) for word in "abc"
)


class Store:
    """Keeps of each trial what the writes of `Unwritten` say; the same write may come any number of times."""

    def __init__(self) -> None:
        self.state: dict[str, str] = {}
        self.epochs: dict[str, set[int]] = {trial.id: set() for trial in TOLD}

    def begin(self, proposal: Trial, code: str, started_at: float) -> None:
        """A run is created or reopened."""
        self.state[proposal.id] = "running"

    def write(self, trial: str, epochs: list, record: object) -> None:
        """A trial's epochs, and perhaps its end."""
        assert trial in self.state, "it has no run yet"
        self.epochs[trial] |= {epoch.step for epoch in epochs}
        if record is not None:
            self.state[trial] = "ended"

    def abandon(self, trial: str, at: float) -> None:
        """A trial is interrupted."""
        self.state[trial] = "interrupted"


CALLS = st.tuples(st.sampled_from(["begin", "epoch", "epoch", "end", "abandon"]), st.sampled_from(TOLD))


@settings(max_examples=300, deadline=None)
@given(st.lists(CALLS | st.sampled_from(["succeeds", "fails", "succeeds without an answer"]), max_size=40))
def test_any_mixture_of_failures_and_lost_answers_ends_with_the_last_state_of_each_trial_and_all_its_epochs(steps):
    unwritten, store = Unwritten(), Store()
    unwritten._waiting = 1  # as if somebody waited, so that nothing is collected for half a second
    state: dict[str, str] = {}
    epochs: dict[str, dict[int, object]] = {trial.id: {} for trial in TOLD}

    def write(how: str) -> None:
        if unwritten.trials() and (job := unwritten.take()) is not None:
            if how != "fails":
                job.write(store)
            if how == "succeeds":
                unwritten.done()

    def tell(word: str, trial: Trial) -> None:
        if word != "begin" and state.get(trial.id) != "running":
            tell("begin", trial)
        match word:
            case "begin":
                if state.get(trial.id) == "ended":  # the epochs of the next attempt count
                    epochs[trial.id].clear()
                unwritten.begin(trial, "code", BEGAN)
                state[trial.id] = "running"
            case "epoch":
                epoch = Mock(step=len(epochs[trial.id]) + 1)
                epochs[trial.id][epoch.step] = epoch
                unwritten.epoch(trial.id, epoch)
            case "end":
                record = Mock(id=trial.id, epochs=list(epochs[trial.id].values()))
                unwritten.end(record)
                state[trial.id] = "ended"
            case "abandon":
                unwritten.abandon(trial.id, BEGAN)
                state[trial.id] = "interrupted"

    for step in steps:
        if isinstance(step, str):
            write(step)
        else:
            tell(*step)
    while unwritten.trials():
        write("succeeds")
    assert store.state == state
    assert all(set(told) <= store.epochs[trial] for trial, told in epochs.items())
    assert unwritten.wait_until_empty(lambda: 0.0)


def test_a_run_is_begun_before_updates_of_other_trials(proposal, make_record):
    unwritten = Unwritten()
    unwritten.epoch("a", make_record(proposal).epochs[0])
    unwritten.begin(proposal, "code", BEGAN)
    assert unwritten.take().trial == proposal.id


def test_a_pause_holds_jobs_back_until_somebody_waits_for_them():
    unwritten, taken = Unwritten(), []
    unwritten.put(lambda runs: None)
    unwritten.pause(600.0)
    writer = threading.Thread(target=lambda: taken.append(unwritten.take()), daemon=True)
    writer.start()
    writer.join(0.1)
    assert not taken
    began = time.monotonic()
    deadlines = iter([began + 0.05, began + 0.15, began + 0.15])
    assert not unwritten.wait_until_empty(lambda: next(deadlines, 0.0)), "its deadline may move"
    assert 0.05 <= time.monotonic() - began < 5.0
    writer.join(20)
    assert taken
