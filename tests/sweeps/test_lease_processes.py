"""lease: real processes that fight for one sweep, or are started at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from meltpoint.sweeps.ledger import lease as leases
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.locks import latest

DRIVES = """
import sys, time
from pathlib import Path
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.lease import LeaseLostError
from meltpoint.sweeps.ledger.records import TrialRecord
folder, log = Path(sys.argv[1]), open(sys.argv[2], "a")
ledger = Ledger(folder)
def record(name):
    return TrialRecord(
        id=name, number=0, encoder="e", mode="m", task="t", role="search", seed=0, setting={}, head="h",
        status="finished", metric="f1", data_fingerprint="d", code_version="1", started_at=0.0, seconds=1.0,
    )
def say(*words):
    print(*words, file=log, flush=True)
while not (folder / "stop").exists():
    try:
        with ledger.driving(say=lambda line: None):
            ledger.create()
            found = {one.id for one in ledger.records()}
            say("began", ledger.attempt, *sorted(found))
            count = len(found)
            while not (folder / "stop").exists():
                ledger.start(record(f"{count:06d}").model_dump(mode="json"))
                ledger.write(record(f"{count:06d}"))
                say("wrote", ledger.attempt, f"{count:06d}")
                count += 1
    except LeaseLostError as lost:
        say("lost", str(lost))
    except ValueError as refused:
        say("refused", str(refused))
        time.sleep(0.02)
"""


class Contender:
    """A process that drives the sweep whenever it may, and logs what it wrote."""

    def __init__(self, folder: Path, number: int) -> None:
        self.log = folder.parent / f"{number}.log"
        self.log.touch()
        environment = {**os.environ, leases.SILENCE: "1"}
        words = [sys.executable, "-c", DRIVES, str(folder), str(self.log)]
        self.process = subprocess.Popen(words, env=environment)

    def lines(self, word: str) -> list[list[str]]:
        split = [line.split() for line in self.log.read_text().splitlines()]
        return [words[1:] for words in split if words[0] == word]


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.01)


def fight(folder: Path, seconds: float) -> tuple[list[Contender], int]:
    """Two drivers of one sweep; whichever has it is halted, and woken once the other has taken over."""
    folder.mkdir()
    contenders = [Contender(folder, number) for number in range(2)]
    by_process = {one.process.pid: one for one in contenders}
    end, turns = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        until(lambda: (claim := latest(folder / "drivers")) and claim.owner() and claim.staging.exists())
        claim = latest(folder / "drivers")
        owner = claim.owner()
        wrote = len(by_process[owner.process].lines("wrote"))
        until(lambda who=owner.process, had=wrote: len(by_process[who].lines("wrote")) > had + 20)
        os.kill(owner.process, signal.SIGSTOP)
        until(lambda number=claim.number: latest(folder / "drivers").number > number)
        other = next(one for process, one in by_process.items() if process != owner.process)
        begun = len(other.lines("wrote"))
        until(lambda who=other, had=begun: len(who.lines("wrote")) > had)
        os.kill(owner.process, signal.SIGCONT)
        turns += 1
        until(lambda count=turns: sum(len(one.lines("lost")) for one in contenders) == count)
    (folder / "stop").touch()
    for one in contenders:
        assert one.process.wait(60) == 0
    return contenders, turns


def assert_fair(folder: Path, contenders: list[Contender], turns: int) -> None:
    wrote = [(trial, int(attempt)) for one in contenders for attempt, trial in one.lines("wrote")]
    began = {int(number): set(found) for one in contenders for number, *found in one.lines("began")}
    ledger = Ledger(folder)
    records = {record.id: record.driver_attempt for record in ledger.records()}
    assert len({trial for trial, _ in wrote}) == len(wrote), "no trial was written twice"
    assert dict(wrote).items() <= records.items(), "what was acknowledged is there, as it was written"
    late = [t for t, by in records.items() if any(by < number and t not in found for number, found in began.items())]
    assert (late, ledger.left_out) == ([], [])
    assert len(began) > turns


def test_of_two_drivers_that_fight_for_a_sweep_one_writes_at_a_time(tmp_path):
    assert_fair(tmp_path / "sweep", *fight(tmp_path / "sweep", seconds=1.0))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_drivers_fight_for_a_sweep_for_a_minute(tmp_path):
    contenders, turns = fight(tmp_path / "sweep", seconds=60.0)
    print(f"{turns} take-overs, {sum(len(one.lines('wrote')) for one in contenders)} records")
    assert_fair(tmp_path / "sweep", contenders, turns)
    assert turns > 10


AT_ONCE = 4
ONCE = """
import sys, time
from pathlib import Path
from meltpoint.sweeps.ledger.ledger import Ledger
folder = Path(sys.argv[1])
while not (folder.parent / "go").exists():
    pass
try:
    with Ledger(folder).driving():
        print("runs", flush=True)
        sys.stdin.read()
except ValueError as refused:
    print(refused)
"""


def test_one_name_that_is_started_several_times_at_the_same_moment_runs_once_and_the_others_say_who_drives(tmp_path):
    words = [sys.executable, "-c", ONCE, str(tmp_path / "sweep")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "encoding": "utf-8"}
    started = [subprocess.Popen(words, **pipes) for _ in range(AT_ONCE)]  # type: ignore[call-overload]
    (tmp_path / "go").touch()
    said = {one.pid: one.stdout.readline() for one in started}
    (driver,) = [process for process, line in said.items() if line == "runs\n"]
    assert all(f"({driver_of(driver)}" in line for process, line in said.items() if process != driver), said
    for one in started:
        one.communicate()
        assert one.returncode == 0


def driver_of(process: int) -> str:
    return f"process {process} on {os.uname().nodename} since "
