"""However a driver ends (a signal, SIGKILL, a second driver), finished trials are kept and no process is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from meltpoint.sweeps.ledger.lease import SILENCE
from meltpoint.sweeps.ledger.locks import latest
from meltpoint.sweeps.machine.signals import TERMINATED
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tests.marked_processes import Marked, titled
from meltpoint.tests.sweeps.whole_sweeps import (
    PATIENCE_SECONDS,
    assert_whole,
    command,
    mlflow_runs,
    records,
    run,
)

SAVED_SECONDS, GONE_SECONDS = 10.0, 30.0
AGENTS_SECONDS = 75.0
"""How long two of Ray's agents may outlive a driver that was killed: for 60 s they tell a head that is gone of it."""
LONG = ("--set", "epochs=150")
"""Trials that are far from their end when their first epochs are known."""


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
                start_new_session=True,
            )  # fmt: skip

    def until(self, condition: Callable[[Sweep], object]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition(self):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.02)

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def saved(self) -> bool:
        """True once the ledger is no longer driven and MLflow has no run that seems to go on."""
        claim = latest(self.folder / "drivers")
        return claim is not None and claim.is_released()


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


def assert_nothing_is_left(sweep: Sweep, agents_seconds: float = GONE_SECONDS) -> None:
    ended = time.monotonic()
    for seconds, are_agents in ((GONE_SECONDS, False), (agents_seconds, True)):
        while left := [one for one in sweep.marked.processes() if are_agents or "Agent" not in titled(one)]:
            assert time.monotonic() < ended + seconds, titles(sweep)
            time.sleep(0.1)
    assert left == []


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
    with suppress(AttributeError):  # no experiment yet
        assert "RUNNING" not in {run.info.status for run in mlflow_runs(sweep.storage)}


def go_on(sweep: Sweep) -> None:
    finished = run(sweep.words)
    assert finished.returncode == 0, finished.stderr
    assert_whole(sweep.storage, cells=1, trials=3, seeds=2)


def test_sigterm_saves_what_there_is_ends_with_143_and_the_same_command_goes_on(spec, tmp_path):
    sweep = Sweep(spec, tmp_path)
    sweep.until(PHASES["search"])
    end_by(sweep, lambda: sweep.process.send_signal(signal.SIGTERM))
    assert "Stopped (stopped by SIGTERM)" in sweep.said()
    go_on(sweep)


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


@pytest.mark.parametrize(
    "phase", [phase if phase == "search" else pytest.param(phase, marks=pytest.mark.slow) for phase in PHASES]
)
def test_of_a_driver_that_is_killed_nothing_runs_on_and_nothing_is_lost_or_repeated(spec, tmp_path, phase):
    sweep = Sweep(spec, tmp_path)
    sweep.until(PHASES[phase])
    sweep.process.kill()
    sweep.process.wait()
    assert_nothing_is_left(sweep, AGENTS_SECONDS)
    go_on(sweep)


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
