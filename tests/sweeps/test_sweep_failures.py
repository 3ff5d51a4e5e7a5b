"""A whole sweep that is cut off, killed, copied, or whose weights or MLflow are damaged: nothing is lost."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from meltpoint.tests.marked_processes import titled
from meltpoint.tests.sweeps.whole_sweeps import (
    PATIENCE_SECONDS,
    SEEDS,
    TRIALS,
    assert_whole,
    command,
    hung_server,
    in_the_background,
    mlflow_runs,
    records,
    roles,
    run,
    started,
    wait_for,
)


def test_ctrl_c_stops_cleanly_prints_the_way_on_and_going_on_completes_the_sweep(spec, tmp_path):
    words = command(spec, tmp_path, modes=("fine_tuning",))
    process = started(words, tmp_path / "log", in_the_background)
    (tmp_path / "tiny" / "trials").mkdir(parents=True, exist_ok=True)
    wait_for(tmp_path, 1, process)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 1, (tmp_path / "log").read_text(encoding="utf-8")
    assert "Resume it with:" in (tmp_path / "log").read_text(encoding="utf-8")
    assert "RUNNING" not in {run.info.status for run in mlflow_runs(tmp_path)}
    assert run(words).returncode == 0
    assert_whole(tmp_path, cells=1, trials=3, seeds=2)


@pytest.mark.slow
def test_a_time_budget_ends_the_search_and_the_finals_still_follow(spec, tmp_path):
    words = command(spec, tmp_path, "--time-budget", "8s", modes=("fine_tuning",), trials=400)
    ended = run(words)
    assert ended.returncode == 0, ended.stderr
    assert "time budget is spent" in ended.stderr
    found = roles(tmp_path)
    assert 1 <= found["search"] < 400
    assert found["final"] == 2
    more = command(
        spec, tmp_path, "--time-budget", "1h", "--address", "127.0.0.1:1", modes=("fine_tuning",), trials=400
    )
    again = run(more)  # nobody answers there, and nobody is asked
    assert again.returncode == 0, again.stderr
    assert roles(tmp_path) == found
    assert f"its search ended after {found['search']} of 400 trials (time budget)" in ended.stdout
    assert "1 of 1 cell ended the search early" in ended.stdout
    assert f"{found['search']} of 400 search trials ran, then the time budget was spent" in again.stderr
    assert "is closed because its test split was opened on" in again.stderr
    assert "Nothing is left to train" in again.stderr


def wait_for_epochs(store: Path, process: subprocess.Popen) -> None:
    """Until MLflow has an epoch of a trial, or the process ended."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while process.poll() is None:
        assert time.monotonic() < deadline, "no trial begins"
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as tables:
            if tables.execute("select count(*) from metrics where key = 'epoch'").fetchone()[0]:
                return
        time.sleep(0.02)


def workers_of(process: subprocess.Popen, doing: str = "") -> list[psutil.Process]:
    """The Ray worker processes that train for a driver, or that do what Ray's title for them says."""
    with suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
        return [child for child in family if f"ray::ImplicitFunc{doing}" in titled(child)]
    return []


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_time_and_no_trial(spec, tmp_path):
    longer = ("--set", "epochs=150")  # far from its end when its first epochs are known
    process = started(command(spec, tmp_path, *longer, modes=("fine_tuning",)), tmp_path / "log")
    wait_for_epochs(tmp_path / "mlflow.db", process)
    victims = workers_of(process)
    assert victims, "a trial must be under way"
    for victim in victims:
        victim.kill()
    assert process.wait(timeout=PATIENCE_SECONDS) == 0, (tmp_path / "log").read_text(encoding="utf-8")
    assert "its worker died" in (tmp_path / "log").read_text(encoding="utf-8")
    assert_whole(tmp_path, cells=1, trials=3, seeds=2)
    assert {record["attempts"] for record in records(tmp_path)} == {1, 2}


@pytest.mark.slow
def test_a_worker_that_is_killed_before_its_trial_begins_does_not_hang_the_sweep(spec, tmp_path):
    process = started(command(spec, tmp_path, modes=("fine_tuning",)), tmp_path / "log")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (victims := workers_of(process, ".__init__")):
        assert time.monotonic() < deadline, (tmp_path / "log").read_text(encoding="utf-8")
        assert process.poll() is None, "no worker was seen while its actor was made"
    for victim in victims:
        victim.kill()
    assert process.wait(timeout=PATIENCE_SECONDS) == 0, (tmp_path / "log").read_text(encoding="utf-8")
    assert_whole(tmp_path, cells=1, trials=3, seeds=2)


@pytest.mark.slow
def test_a_finalist_whose_weights_are_damaged_is_trained_again_and_scored(done, tmp_path):
    spec, storage = done
    copied = tmp_path / "copied"
    shutil.copytree(storage, copied)
    finals = {record["seed"]: record for record in records(copied) if record["role"] == "final"}
    for record in finals.values():
        path = copied / "tiny" / "trials" / f"{record['id']}.json"
        path.write_text(json.dumps({**record, "test": None}))
        weights = copied / "tiny" / "checkpoints" / record["id"] / "weights.safetensors"
        weights.parent.mkdir(parents=True, exist_ok=True)
        weights.write_bytes(b"half of a fi")
    again = run(command(spec, copied))
    assert again.returncode == 0, again.stderr
    assert "is damaged" in again.stderr
    assert "retraining it" in again.stderr
    scored = {record["id"]: record for record in records(copied) if record["role"] == "final"}
    for record in finals.values():
        assert scored[record["id"]]["dev"] == record["dev"]
        assert scored[record["id"]]["test"] == record["test"]


@pytest.mark.slow
def test_one_ctrl_c_ends_a_sweep_within_ten_seconds_though_mlflow_hangs(spec, tmp_path):
    with hung_server() as uri:
        words = command(spec, tmp_path, "--tracking-uri", uri, "--set", "epochs=150", modes=("fine_tuning",))
        process = started(words, tmp_path / "log")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not workers_of(process, ".train"):
            assert time.monotonic() < deadline
            assert process.poll() is None, (tmp_path / "log").read_text(encoding="utf-8")
            time.sleep(0.05)
        told = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 1
        assert time.monotonic() - told < 10
    assert "Resume it with:" in (tmp_path / "log").read_text(encoding="utf-8")


def listing(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """Everything in a folder: when it changed, and what files hold."""
    paths = [folder, *folder.rglob("*")]
    return {path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in paths}


def cut_off(storage: Path) -> None:
    """Make a trained final one that began and did not end, as a killed driver leaves it: its note has `storage`."""
    final = next(r for r in records(storage) if r["mode"] == "fine_tuning" and r["role"] == "final" and r["seed"] == 1)
    (storage / "tiny" / "trials" / f"{final['id']}.json").unlink()
    words = ("id", "number", "role", "encoder", "mode", "task", "head", "seed", "setting")
    note = {word: final[word] for word in words}
    note |= {"checkpoint": str(storage / "tiny" / "checkpoints" / final["id"]), "cache": str(storage / "cache")}
    (storage / "tiny" / "started" / f"{final['id']}.json").write_text(json.dumps(note))


@pytest.mark.slow
def test_a_copied_sweep_goes_on_and_is_used_and_the_original_stays_as_it_is(done, tmp_path):
    spec, storage = done
    original, copied = tmp_path / "original", tmp_path / "copied"
    shutil.copytree(storage, original)
    cut_off(original)
    shutil.copytree(original, copied)
    before = listing(original)
    finished = run(command(spec, copied))
    assert finished.returncode == 0, finished.stderr
    assert_whole(copied, cells=2, trials=TRIALS, seeds=SEEDS)
    for words in (["export", "--model"], ["report"], ["ensemble", "--task", "tiny_reviews"], ["status"]):
        used = [sys.executable, "-m", "meltpoint.launch", words[0], "tiny", *words[1:], "--storage", str(copied)]
        assert run(used).returncode == 0
    assert listing(original) == before


@pytest.mark.slow
def test_a_password_in_the_tracking_uri_is_printed_and_kept_nowhere(spec, tmp_path):
    changes = {"modes": ("fine_tuning",), "trials": 1, "seeds": 1}
    away = command(spec, tmp_path, "--tracking-uri", "http://user:secret@127.0.0.1:1/", **changes)
    new = run(away)
    assert new.returncode == 2, "a new sweep is refused where nobody answers"
    assert "127.0.0.1:1 does not answer" in new.stderr
    assert run(command(spec, tmp_path, **changes)).returncode == 0
    again = run(away)
    assert again.returncode == 0, again.stderr
    assert ":***@127.0.0.1:1/" in again.stderr
    assert "the same command updates MLflow" in " ".join(again.stderr.split())
    assert "secret" not in "".join(one.stdout + one.stderr for one in (new, again))
    assert [path for path in tmp_path.rglob("*") if path.is_file() and b"secret" in path.read_bytes()] == []
