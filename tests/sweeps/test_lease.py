"""lease: when it may be taken over, what a lost one refuses, and what it needs of a file system."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from meltpoint.adapters.files import replacing
from meltpoint.sweeps.ledger import lease as leases
from meltpoint.sweeps.ledger import locks
from meltpoint.sweeps.ledger.lease import LeaseLostError, acquire
from meltpoint.sweeps.ledger.locks import Claim, beat_text, this_process
from meltpoint.tests.local_servers import until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "drivers"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A take-over after 0.3 s, and a holder that says nothing meanwhile."""
    monkeypatch.setenv(leases.SILENCE, "0.3")


def held_elsewhere(folder: Path, **changes: object) -> Claim:
    """A lease that another process holds, by default of another machine."""
    lease = acquire(folder, say=print)
    facts = {"boot": "another", "host": "other", "heartbeat_seconds": 0.01, **changes}
    lease.claim.path.write_text(lease.owner.model_copy(update=facts).model_dump_json())
    return lease.claim


def gone_process() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_the_lease_of_a_process_that_has_ended_is_taken_over_at_once(folder):
    ours = this_process("", has_file_lock=False, heartbeat_seconds=5)
    held_elsewhere(folder, boot=ours.boot, process=gone_process())
    before = time.monotonic()
    lease = acquire(folder, say=pytest.fail)
    assert (lease.attempt, lease.took_over) == (2, True)
    assert time.monotonic() - before < 1


def test_a_process_id_that_was_given_again_is_not_the_driver(folder):
    ours = this_process("", has_file_lock=False, heartbeat_seconds=5)
    held_elsewhere(folder, boot=ours.boot, started="an earlier time")
    assert acquire(folder, say=pytest.fail).attempt == 2


@pytest.mark.parametrize(("had", "has", "is_gone"), [(True, True, True), (False, True, False), (True, False, False)])
def test_a_driver_in_another_container_is_gone_only_where_its_file_lock_is_free(folder, had, has, is_gone):
    ours = this_process("", has_file_lock=False, heartbeat_seconds=5)
    there = held_elsewhere(folder, boot=ours.boot, namespace="another", process=1, has_file_lock=had)
    assert there.is_free(file_lock_is_free=has) is is_gone


@pytest.mark.usefixtures("quick")
def test_the_lease_of_an_unreachable_machine_is_taken_over_after_its_silence_and_the_waiter_says_so(folder):
    held_elsewhere(folder)
    said: list[str] = []
    before = time.monotonic()
    assert acquire(folder, say=said.append).attempt == 2
    assert time.monotonic() - before >= 0.3
    (line,) = said
    assert "on other since" in line
    assert "If it stays silent for 0.3 s, this process takes over." in line


@pytest.mark.usefixtures("quick")
def test_a_driver_on_another_machine_whose_heart_beats_is_not_taken_over(folder):
    there = held_elsewhere(folder)
    over = threading.Event()

    def beat() -> None:
        for count in range(2, 10**6):
            there.write_beat(beat_text(count))
            if over.wait(0.05):
                return

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(ValueError, match=r"Another process drives this sweep \(process \d+ on other since"):
            acquire(folder, say=print)
    finally:
        over.set()
        thread.join()


class Clock:
    """A clock that jumps as the test says."""

    def __init__(self, *steps: float) -> None:
        self.now, self.steps, self.slept = 0.0, list(steps), 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        self.now += self.steps.pop(0) if self.steps else seconds


@pytest.mark.usefixtures("quick")
def test_the_time_in_which_the_waiter_was_halted_itself_is_no_silence(folder, monkeypatch):
    held_elsewhere(folder)
    clock = Clock(3600.0)
    monkeypatch.setattr(leases, "time", clock)
    acquire(folder, say=lambda line: None)
    assert clock.slept >= 9, "an hour's halt counts as two pauses of ten"


@pytest.mark.usefixtures("quick")
def test_the_time_in_which_the_waiter_cannot_read_the_storage_is_no_silence(folder, monkeypatch):
    held_elsewhere(folder)
    clock = Clock()
    monkeypatch.setattr(leases, "time", clock)
    real = Claim.beat

    def unreachable(claim: Claim) -> bytes:
        if 5 <= clock.slept < 100:
            raise OSError(errno.EIO, "Input/output error")
        return real(claim)

    monkeypatch.setattr(Claim, "beat", unreachable)
    acquire(folder, say=lambda line: None)
    assert clock.slept >= 100 + 9


@pytest.mark.parametrize("gone", ["", "drivers", "drivers/000001.staging"])
def test_a_folder_that_is_gone_is_named_and_no_other_driver_is_blamed(tmp_path, gone):
    sweep = tmp_path / "first"
    ours = acquire(sweep / "drivers", say=print)
    (sweep / gone).rename(tmp_path / "elsewhere")
    message = rf"^{re.escape(str(sweep / gone))} was removed, renamed or moved"
    with pytest.raises(LeaseLostError, match=message), ours.placing(sweep / "note") as beside:
        beside.write_text("new")
    assert not (sweep / "note").exists()


def test_a_lost_lease_writes_moves_and_removes_nothing_and_names_who_has_it(folder, tmp_path):
    ours = acquire(folder, say=print)
    (tmp_path / "note").write_text("old")
    locks.make(Claim(folder, 2), ours.owner.model_copy(update={"process": 4711, "token": "t"}))
    message = r"another driver has taken over this sweep \(process 4711 on"
    with pytest.raises(LeaseLostError, match=message), ours.placing(tmp_path / "note") as beside:
        beside.write_text("new")
    with pytest.raises(LeaseLostError, match=message):
        ours.move(tmp_path / "note", tmp_path / "other")
    with pytest.raises(LeaseLostError, match=message):
        ours.remove(tmp_path / "note")
    with pytest.raises(LeaseLostError, match=message):
        ours.renew(2)
    assert (tmp_path / "note").read_text() == "old"


def test_a_driver_that_passed_its_check_before_it_was_halted_writes_nothing_after_the_take_over(folder, tmp_path):
    """What a check alone cannot do: the folder that the file would be renamed from is gone."""
    ours = acquire(folder, say=print)
    (tmp_path / "note").write_text("old")

    def write_after_the_take_over() -> None:
        with replacing(tmp_path / "note", ours.staging) as beside:
            beside.write_text("new")
            locks.shut([ours.staging])

    with pytest.raises(FileNotFoundError):
        write_after_the_take_over()
    assert (tmp_path / "note").read_text() == "old"


def test_the_thread_that_renews_a_lease_tells_that_it_was_lost(folder, monkeypatch):
    monkeypatch.setenv(leases.SILENCE, "0.2")
    ours, told = acquire(folder, say=print), threading.Event()
    ours.keep_renewing(lambda lost: told.set())
    until(lambda: ours.claim.beat() > beat_text(2))
    locks.make(Claim(folder, 2), ours.owner.model_copy(update={"token": "t"}))
    assert told.wait(10)


def test_a_heartbeat_that_cannot_be_written_for_a_while_ends_nothing(folder, monkeypatch):
    monkeypatch.setenv(leases.SILENCE, "0.2")
    ours = acquire(folder, say=print)
    real, refusals = Claim.write_beat, iter(range(5))

    def write_beat(claim: Claim, text: bytes) -> None:
        if next(refusals, None) is not None:
            raise OSError(errno.EIO, "Input/output error")
        real(claim, text)

    monkeypatch.setattr(Claim, "write_beat", write_beat)
    ours.keep_renewing(pytest.fail)
    until(lambda: ours.claim.beat() > beat_text(5))
    ours.release()


def test_a_released_lease_is_taken_at_once_and_nothing_is_left_of_its_folder(folder):
    first = acquire(folder, say=print)
    first.release()
    second = acquire(folder, say=pytest.fail)
    assert (second.attempt, second.took_over) == (2, False)
    assert {path.name for path in folder.iterdir()} == {
        "000001.json", "000001.beat", "000002.json", "000002.beat", "000002.staging",
    }  # fmt: skip


@pytest.mark.parametrize("number", [None, errno.EPERM, errno.EOPNOTSUPP])
def test_a_number_is_claimed_once_on_a_file_system_without_hard_links_too(folder, monkeypatch, number):
    def no_links(*_: object) -> None:
        raise OSError(number, "Operation not permitted")

    if number is not None:
        monkeypatch.setattr(os, "link", no_links)
    ours = acquire(folder, say=print)
    assert not locks.make(ours.claim, ours.owner.model_copy(update={"token": "t"}))
    with pytest.raises(ValueError, match=f"Another process drives this sweep .process {os.getpid()}"):
        acquire(folder, say=print)


def test_a_link_whose_answer_was_lost_is_known_by_its_token(folder, monkeypatch):
    link = os.link

    def repeated(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", repeated)
    assert acquire(folder, say=print).attempt == 1


@pytest.mark.usefixtures("quick")
def test_a_claim_that_a_crash_left_empty_is_followed_after_its_silence(folder):
    folder.mkdir()
    (folder / "000007.json").touch()
    assert acquire(folder, say=lambda line: None).attempt == 8


@pytest.mark.parametrize("said", ["soon", "0", "-1", "inf", "nan"])
def test_a_silence_that_is_no_time_is_refused(folder, monkeypatch, said):
    monkeypatch.setenv(leases.SILENCE, said)
    with pytest.raises(ValueError, match=f"{leases.SILENCE}={said}: set a number of seconds"):
        acquire(folder, say=print)


def test_a_processs_start_is_told_without_proc_too(monkeypatch, tmp_path):
    monkeypatch.setattr(locks, "PROC", tmp_path)
    found = locks.look_up(os.getpid())
    assert found is not None
    assert str(time.localtime().tm_year) in found.started
    assert locks.look_up(gone_process()) is None


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
