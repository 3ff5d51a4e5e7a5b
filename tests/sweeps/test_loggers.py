"""Loggers beside MLflow: each gets every trial's curve and scores, and none can harm a sweep."""

from __future__ import annotations

import json
import sqlite3
import struct
import time
from pathlib import Path

import pytest

from meltpoint.sweeps.machine.services import notify
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.tracking import loggers
from meltpoint.sweeps.tracking.loggers import Loggers
from meltpoint.tests.local_servers import QuietHandler, served_by

OWN = """
from pathlib import Path

class Run:
    def __init__(self, sweep, trial, folder):
        self.file = folder / f"{sweep}.{trial.id}.txt"
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.open("a").write("begin\\n")

    def log(self, metrics, step):
        self.file.open("a").write(f"{step} {sorted(metrics)}\\n")

    def finish(self):
        self.file.open("a").write("finish\\n")

def begin(sweep, trial, folder):
    return Run(sweep, trial, folder)
"""


def log_all(made: Loggers, trial, record) -> None:
    made.begin(trial)
    for epoch in record.epochs:
        made.epoch(trial.id, epoch)
    made.end(record)


@pytest.fixture
def own(tmp_path: Path) -> str:
    file = tmp_path / "own_logger.py"
    file.write_text(OWN)
    return str(file)


def lines_of(folder: Path, trial: str) -> list[str]:
    return (folder / f"first.{trial}.txt").read_text().splitlines()


def test_a_file_of_your_own_gets_each_epoch_once_and_the_scores(own, tmp_path, spec, cells, proposal, make_record):
    made = Loggers([own], "first", tmp_path / "logs", print)
    record = make_record(proposal)
    log_all(made, proposal, record)
    made.close(10.0)
    epoch = "['dev/accuracy', 'learning_rate', 'train/loss']"
    assert lines_of(tmp_path / "logs", proposal.id) == [
        "begin", f"4 {epoch}", f"8 {epoch}", "8 ['best_dev', 'seconds']", "finish"
    ]  # fmt: skip


def test_a_final_stays_open_until_its_test_scores_come(own, tmp_path, proposal, make_record):
    made = Loggers([own], "first", tmp_path / "logs", print)
    final = proposal.model_copy(update={"role": "final"})
    made.begin(final)
    record = make_record(final)
    made.end(record)  # reused from its search trial: no epoch was reported
    made.end(record.model_copy(update={"test": {"accuracy": 0.7}}))
    made.close(10.0)
    said = lines_of(tmp_path / "logs", final.id)
    assert sum("train/loss" in line for line in said) == 2
    assert said[-2:] == ["8 ['best_dev', 'seconds', 'test/accuracy']", "finish"]


def test_a_logger_that_fails_is_named_once_and_left_out(own, tmp_path, spec, cells, make_record):
    broken = tmp_path / "broken.py"
    broken.write_text("def begin(sweep, trial, folder):\n    raise ConnectionError('no route to host')\n")
    said: list[str] = []
    made = Loggers([str(broken), own], "first", tmp_path / "logs", said.append)
    planner = Planner(spec, cells, [])
    for trial in (planner.next(), planner.next()):
        log_all(made, trial, make_record(trial))
    made.close(10.0)
    assert said == [f"{broken} fails (no route to host); the sweep continues without it."]
    assert len(list((tmp_path / "logs").iterdir())) == 2, "the other logger has both trials"


def test_a_logger_that_hangs_delays_the_end_for_a_bounded_time(tmp_path, proposal, make_record):
    stuck = tmp_path / "stuck.py"
    stuck.write_text("import threading\ndef begin(sweep, trial, folder):\n    threading.Event().wait()\n")
    made = Loggers([str(stuck)], "first", tmp_path, print)
    log_all(made, proposal, make_record(proposal))
    began = time.monotonic()
    made.close(0.2)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("name", "remedy"), [("tensorbord", "tensorboard"), ("mine.py", "name a Python file with a function begin")]
)
def test_an_unknown_logger_is_refused_before_the_sweep(name, remedy):
    with pytest.raises(ValueError, match=remedy):
        loggers.check([name])


def test_a_logger_whose_package_is_missing_is_refused_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(loggers, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="run `pip install wandb`"):
        loggers.check(["wandb"])


def events_of(folder: Path) -> bytes:
    """The events of a TensorBoard file: length, its checksum, data, its checksum (the TFRecord format)."""
    (file,) = folder.rglob("events.out.tfevents.*")
    raw, found = file.read_bytes(), b""
    while raw:
        (length,) = struct.unpack("<Q", raw[:8])
        found, raw = found + raw[12 : 12 + length], raw[16 + length :]
    return found


def test_tensorboard_has_every_curve(tmp_path, proposal, make_record):
    made = Loggers(["tensorboard"], "first", tmp_path, print)
    log_all(made, proposal, make_record(proposal))
    made.close(30.0)
    events = events_of(tmp_path / "tensorboard")
    assert all(name in events for name in (b"dev/accuracy", b"train/loss", b"best_dev", b"learning_rate"))


@pytest.mark.slow
def test_trackio_has_every_curve(tmp_path, monkeypatch, proposal, make_record):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    said: list[str] = []
    made = Loggers(["trackio"], "first", tmp_path, said.append)
    log_all(made, proposal, make_record(proposal))
    made.close(60.0)
    assert said == []
    (store,) = tmp_path.rglob("first*.db")
    with sqlite3.connect(store) as rows:
        logged = [json.loads(text) for (text,) in rows.execute("select metrics from metrics order by step")]
    assert [one["dev/accuracy"] for one in logged if "dev/accuracy" in one] == [0.5, 0.75]
    assert any(one.get("best_dev") == 0.75 for one in logged)


@pytest.mark.slow
def test_wandb_writes_an_offline_run_whose_id_is_the_trials(tmp_path, monkeypatch, proposal, make_record):
    monkeypatch.setenv("WANDB_MODE", "offline")
    said: list[str] = []
    made = Loggers(["wandb"], "first", tmp_path, said.append)
    log_all(made, proposal, make_record(proposal))
    made.close(60.0)
    assert said == []
    (run,) = (tmp_path / "wandb").glob("offline-run-*")
    assert run.name.endswith(proposal.id)
    assert b"dev/accuracy" in (run / f"run-{proposal.id}.wandb").read_bytes()


class Receiver(QuietHandler):
    """Keeps what is posted; refuses the path /refuse."""

    taken: list[dict[str, object]]

    def post(self) -> None:
        self.taken.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.answer(404 if self.path == "/refuse" else 200)


@pytest.fixture
def receiver():
    Receiver.taken = []
    with served_by(Receiver) as url:
        yield url


def test_a_message_arrives_as_json(receiver):
    assert notify(f"{receiver}/hook", {"sweep": "first", "text": "first: done. Fine-tune it: 🔥 92.7"}) == ""
    assert Receiver.taken == [{"sweep": "first", "text": "first: done. Fine-tune it: 🔥 92.7"}]


def test_a_refused_message_is_one_line_that_does_not_show_the_path(receiver):
    said = notify(f"{receiver}/refuse", {"sweep": "first"})
    assert said == "--notify: 127.0.0.1 did not take the message (Not Found)."
    assert "refused" in notify("http://127.0.0.1:9/secret", {})
