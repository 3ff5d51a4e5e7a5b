"""However a driver ends (a signal, SIGKILL, a second driver), finished trials are kept and no process is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from meltpoint.sweeps.ledger.lease import SILENCE
from meltpoint.sweeps.ledger.locks import latest
from meltpoint.sweeps.machine import signals
from meltpoint.sweeps.machine.signals import TERMINATED
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tests.marked_processes import Marked, titled
from meltpoint.tests.sweeps.whole_sweeps import (
    PATIENCE_SECONDS,
    assert_whole,
    command,
    in_the_background,
    mlflow_runs,
    records,
    run,
)

SAVED_SECONDS, GONE_SECONDS = 10.0, 30.0
AGENTS_SECONDS = 75.0
"""How long two of Ray's agents may outlive a driver that was killed: for 60 s they tell a head that is gone of it."""


class Sweep:
    """A sweep in a process group of its own, whose processes are known by a mark in their environment.

    Attributes:
        words: its command.
    """

    def __init__(self, spec: SweepSpec, storage: Path, *more: str, **changes: object) -> None:
        self.storage, self.marked = storage, Marked()
        self.words = command(spec, storage, *more, **{"modes": ("fine_tuning",), **changes})
        self.log = storage / "log"
        self.folder = storage / "tiny"
        (self.folder / "trials").mkdir(parents=True, exist_ok=True)
        with self.log.open("a") as file:
            self.process = subprocess.Popen(
                self.words, stdout=file, stderr=file, env={**os.environ, **self.marked.environment},
                start_new_session=True, preexec_fn=in_the_background,
            )  # fmt: skip

    def until(self, condition: Callable[[Sweep], object]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition(self):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.02)

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")


def titles(sweep: Sweep) -> str:
    return "\n".join(map(titled, sweep.marked.processes()))


def notes(sweep: Sweep, role: str) -> list[dict]:
    found = []
    for path in (sweep.folder / "started").glob("*.json"):
        with suppress(FileNotFoundError, json.JSONDecodeError):
            found.append(json.loads(path.read_text(encoding="utf-8")))
    return [note for note in found if note["role"] == role]


PHASES: dict[str, Callable[[Sweep], object]] = {
    "start": lambda sweep: "raylet" in titles(sweep),
    "search": lambda sweep: records(sweep.storage) and notes(sweep, "search"),
    "finals": lambda sweep: notes(sweep, "final"),
    "scoring": lambda sweep: (sweep.folder / "test_openings.jsonl").exists(),
}
"""Phase of a sweep → whether it has come."""


def assert_gone(sweep: Sweep, seconds: float, but_agents: bool = False) -> None:
    ended = time.monotonic()
    while [one for one in sweep.marked.processes() if not (but_agents and "Agent" in titled(one))]:
        assert time.monotonic() < ended + seconds, titles(sweep)
        time.sleep(0.1)


def assert_nothing_is_left(sweep: Sweep, agents_seconds: float = GONE_SECONDS) -> None:
    assert_gone(sweep, GONE_SECONDS, but_agents=True)
    assert_gone(sweep, agents_seconds)


def end_by(sweep: Sweep, send: Callable[[], None]) -> None:
    """Send a signal, and hold the sweep to what it promises of its end."""
    told = time.monotonic()
    send()
    assert sweep.process.wait(timeout=60) == TERMINATED, sweep.said()
    assert time.monotonic() - told < SAVED_SECONDS + 5
    assert "finished trials are kept, and the same command resumes it." in sweep.said()
    assert "Traceback" not in sweep.said()
    assert "*** SIGTERM" not in sweep.said(), "no trace of C++"
    assert_nothing_is_left(sweep)
    assert "RUNNING" not in {run.info.status for run in mlflow_runs(sweep.storage)}


def go_on(sweep: Sweep, trials: int = 3) -> None:
    finished = run(sweep.words)
    assert finished.returncode == 0, finished.stderr
    assert_whole(sweep.storage, cells=1, trials=trials, seeds=2)


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("to_group", [False, True], ids=["to the driver", "to all its group"])
def test_a_sweep_saves_what_there_is_in_every_phase_whoever_gets_the_signal(spec, tmp_path, phase, number, to_group):
    sweep = Sweep(spec, tmp_path)
    sweep.until(PHASES[phase])
    send = (lambda: os.killpg(sweep.process.pid, number)) if to_group else (lambda: sweep.process.send_signal(number))
    end_by(sweep, send)
    go_on(sweep)


def test_a_sweep_that_is_interrupted_and_then_killed_keeps_what_finished_and_is_completed(spec, tmp_path):
    interrupted = Sweep(spec, tmp_path, trials=4)
    interrupted.until(PHASES["search"])
    interrupted.process.send_signal(signal.SIGINT)
    assert interrupted.process.wait(timeout=60) == 1, interrupted.said()
    assert "Resume it with:" in interrupted.said()
    assert "RUNNING" not in {run.info.status for run in mlflow_runs(tmp_path)}
    kept = {record["id"]: record["dev"] for record in records(tmp_path)}
    killed = Sweep(spec, tmp_path, trials=4)
    killed.until(lambda sweep: len(records(tmp_path)) > len(kept))
    killed.process.kill()
    killed.process.wait()
    assert_gone(killed, GONE_SECONDS, but_agents=True)
    go_on(killed, trials=4)  # at once, as a user does: Ray's agents may take a minute to notice
    assert kept.items() <= {record["id"]: record["dev"] for record in records(tmp_path)}.items()


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_of_a_driver_that_is_killed_nothing_runs_on_and_nothing_is_lost_or_repeated(spec, tmp_path, phase):
    sweep = Sweep(spec, tmp_path)
    sweep.until(PHASES[phase])
    sweep.process.kill()
    sweep.process.wait()
    assert_gone(sweep, GONE_SECONDS, but_agents=True)
    go_on(sweep)
    assert_gone(sweep, AGENTS_SECONDS)


@pytest.mark.slow
def test_a_driver_that_was_halted_and_taken_over_ends_in_one_line_and_each_trial_is_there_once(
    spec, tmp_path, monkeypatch
):
    monkeypatch.setenv(SILENCE, "4")
    halted = Sweep(spec, tmp_path, modes=("fine_tuning",))
    halted.until(PHASES["search"])
    halted.process.send_signal(signal.SIGSTOP)
    other = Sweep(spec, tmp_path)
    other.until(lambda sweep: latest(sweep.folder / "drivers").number == 2)  # type: ignore[union-attr]
    halted.process.send_signal(signal.SIGCONT)
    assert halted.process.wait(timeout=60) == 1, halted.said()
    assert f"another driver has taken over this sweep (process {other.process.pid} on" in halted.said()
    assert_nothing_is_left(halted)
    assert other.process.wait(timeout=PATIENCE_SECONDS) == 0, other.said()
    assert_whole(tmp_path, cells=1, trials=3, seeds=2)


BEFORE = """
import ctypes, os, signal, sys, threading, time
from meltpoint.sweeps.machine import signals
from meltpoint.sweeps.machine.signals import StopRequest, raise_requested, request_stop, stoppable

def caught(act):
    try:
        act()
    except StopRequest as stop:
        print("request:", stop, stop.status)
        return signals.reason_of(stop)
    except KeyboardInterrupt as stop:
        print("interrupted")
        return signals.reason_of(stop)
    print("nothing was raised")

def send(number):
    caught(lambda: signal.raise_signal(number))

"""


@pytest.mark.slow
def test_a_race_that_was_killed_ends_as_an_undisturbed_one(spec, tmp_path):
    words = ("--race", "--margin", "30", "--trials", "auto", "--searcher", "random")
    modes = ("feature_extraction", "fine_tuning")
    found = []
    for name in ("undisturbed", "killed"):
        (tmp_path / name).mkdir()
        sweep = Sweep(spec, tmp_path / name, *words, modes=modes)
        if name == "killed":
            sweep.until(PHASES["search"])
            sweep.process.kill()
            sweep.process.wait()
            assert_nothing_is_left(sweep, AGENTS_SECONDS)
            finished = run(sweep.words)
            assert finished.returncode == 0, finished.stderr
        status = 0 if name == "undisturbed" else -signal.SIGKILL
        assert sweep.process.wait(timeout=PATIENCE_SECONDS) == status, sweep.said()
        ended = records(sweep.storage)
        table = (sweep.folder / "report.csv").read_text(encoding="utf-8")
        found.append(({(one["id"], one["dev"]) for one in ended}, [row.split(",")[:8] for row in table.splitlines()]))
        assert len(ended) < len(modes) * (16 + 2), "each search ended early"
    assert found[0] == found[1]


def case(code: str) -> subprocess.CompletedProcess[str]:
    """What a process says and how it ends."""
    words = [sys.executable, "-c", BEFORE + code]
    return subprocess.run(words, capture_output=True, encoding="utf-8", check=False, timeout=60)


@pytest.mark.parametrize("number", signals.STOPPING)
def test_a_signal_is_raised_once_as_a_request_that_says_which(number):
    done = case(f"""
signals.SECOND_AFTER_SECONDS = 60  # the next one is its copy, as a process group's
with stoppable():
    send({number})
    send({number})
    caught(raise_requested)
""")
    raised = f"request: stopped by {number.name} {TERMINATED}\nnothing was raised\nnothing was raised\n"
    assert (done.stdout, done.returncode) == (raised, 0), done.stderr
    assert done.stderr.count("the same command resumes it") == 1


def test_handlers_are_those_from_before_after_it_ended():
    done = case("""
numbers = (*signals.STOPPING, signal.SIGINT)
before = [signal.getsignal(number) for number in numbers]
with stoppable():
    print(signal.getsignal(signal.SIGTERM) in before)
print([signal.getsignal(number) for number in numbers] == before)
""")
    assert done.stdout == "False\nTrue\n", done.stderr


def test_a_thread_may_ask_for_the_end():
    done = case("""
request = StopRequest("the cluster is lost", status=1)
def ask_and_wait():
    threading.Thread(target=request_stop, args=(request,)).start()
    threading.Event().wait(50)
with stoppable():
    print(caught(ask_and_wait) is request)
""")
    assert done.stdout == "request: the cluster is lost 1\nTrue\n", done.stderr


def test_a_request_that_python_swallowed_is_raised_again_when_it_is_asked_for():
    done = case("""
with stoppable():
    signals._Asked.request = StopRequest("here", status=1)  # made, and raised where nobody hears it
    caught(raise_requested)
    caught(raise_requested)
""")
    assert done.stdout == "request: here 1\nnothing was raised\n", done.stderr


@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, "interrupted"), (signal.SIGTERM, f"request: stopped by SIGTERM {TERMINATED}")],
)
def test_a_signal_that_came_in_a_finaliser_is_raised_again(number, raised):
    done = case(f"""
class Finalised:
    def __del__(self):
        signal.raise_signal({number})
with stoppable():
    caught(Finalised)  # Python ignores what is raised there
    caught(raise_requested)
    caught(raise_requested)
""")
    assert "Exception ignored" in done.stderr
    assert done.stdout == f"nothing was raised\n{raised}\nnothing was raised\n", done.stderr


def test_a_signal_that_somebody_else_took_is_taken_back():
    done = case("""
with stoppable():
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # as Tune's `run` does
    raise_requested()
    send(signal.SIGUSR1)
""")
    assert done.stdout == f"request: stopped by SIGUSR1 {TERMINATED}\n", done.stderr


def test_a_second_signal_ends_the_process_at_once():
    done = case("""
with stoppable():
    send(signal.SIGTERM)
    sys.stdout.flush()
    time.sleep(signals.SECOND_AFTER_SECONDS + 0.1)
    send(signal.SIGUSR1)
""")
    assert (done.returncode, done.stdout) == (TERMINATED, f"request: stopped by SIGTERM {TERMINATED}\n"), done.stderr


def test_a_process_that_does_not_come_to_its_end_is_ended():
    done = case("""
signals.LAST_SECONDS = 0.3
with stoppable():
    send(signal.SIGTERM)
    time.sleep(50)
""")
    assert done.returncode == TERMINATED
    assert "finished trials are kept" in done.stderr


def test_sigterm_is_heard_after_cpp_code_took_it_in_another_thread_and_that_threads_children_get_no_notices():
    done = case("""
mask = []
def take():
    with signals.sigterm_kept():
        ctypes.CDLL(None).signal(signal.SIGTERM, None)  # as ray.init does in C++, from its own thread
        mask.extend(signal.pthread_sigmask(signal.SIG_BLOCK, []))
with stoppable():
    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    send(signal.SIGTERM)
print(sorted(mask) == sorted(signals.NOTICES))
""")
    assert done.stdout == f"request: stopped by SIGTERM {TERMINATED}\nTrue\n", done.stderr


def test_outside_of_the_main_thread_nothing_is_changed():
    done = case("""
def within():
    with stoppable():
        print(signal.getsignal(signal.SIGTERM) == before)
before = signal.getsignal(signal.SIGTERM)
thread = threading.Thread(target=within)
thread.start()
thread.join()
""")
    assert done.stdout == "True\n", done.stderr
