"""tracking_uri: storage folders of any name that MLflow can have a store in, and no password in what is shown."""

from __future__ import annotations

import shutil
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.ledger.records import Trial
from meltpoint.sweeps.machine import terminal
from meltpoint.sweeps.machine.doctor import mlflow_store
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import OpenCell
from meltpoint.sweeps.specification.provenance import code_version
from meltpoint.sweeps.specification.tracking_uri import (
    check_scheme,
    check_sign_in,
    default_uri,
    is_database,
    redacted,
    sqlite_file,
)
from meltpoint.sweeps.tracking import run_contents
from meltpoint.sweeps.tracking import tracker as tracking
from meltpoint.sweeps.tracking.runs import Runs
from meltpoint.sweeps.tracking.tracker import Tracker
from meltpoint.tests.sweeps.planning import note_of


@pytest.mark.parametrize(("uri", "known"), [("foo://x", ""), ("sqllite:///a.db", "sqlite"), ("htps://a", "http")])
def test_a_scheme_that_mlflow_has_no_store_for_is_refused_with_its_near_miss(uri, known):
    with pytest.raises(ValueError, match=rf"^--tracking-uri: Unknown scheme '{uri.partition(':')[0]}'.*{known}"):
        check_scheme(uri)


@pytest.mark.parametrize(
    "uri",
    ["http://a:5000", "HTTPS://a", "sqlite:////a/b.db", "postgresql+psycopg2://u@h/d", "mysql://h/d", "file:///a"],
)
def test_the_schemes_of_mlflows_own_stores_are_taken(uri):
    check_scheme(uri)


@pytest.mark.parametrize("name", ["two words#x 50%", "100%zz größe a&b;c=d at@b:c"])
def test_mlflow_keeps_its_store_in_a_folder_of_an_odd_name_and_makes_nothing_beside_it(tmp_path, name, file_name):
    name = file_name(name)
    storage = tmp_path / name
    storage.mkdir()
    uri = default_uri(storage)
    made = Runs("first", uri, storage)
    made.open([], "{}", 1.7e9)
    assert MlflowClient(uri).get_experiment_by_name("first").artifact_location == "mlflow-artifacts:/first"
    assert sqlite_file(uri) == storage / "mlflow.db"
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (storage / "mlflow.db").stat().st_size > 0


@pytest.mark.parametrize("name", ["what?x", "percent%20x"])
def test_a_folder_that_no_uri_of_mlflow_can_name_is_refused_with_the_remedy(tmp_path, name):
    with pytest.raises(ValueError, match=r"--storage .* rename that folder, or name another one with --storage DIR\.$"):
        default_uri(tmp_path / name)


@pytest.mark.parametrize("uri", ["localhost:5000", "mlflow:5000", "head.example.org:5000/mlflow"])
def test_a_servers_address_without_a_scheme_is_refused_by_sweeps_and_doctor(uri, tmp_path):
    with pytest.raises(ValueError, match=f"write http://{uri}"):
        check_scheme(uri)
    assert not mlflow_store(tmp_path, uri).ok


def test_the_options_of_a_store_are_no_part_of_its_files_name():
    assert sqlite_file("sqlite:////data/mlflow.db?timeout=5") == Path("/data/mlflow.db")
    assert sqlite_file("sqlite:///:memory:") is None
    assert sqlite_file("sqlite://") is None
    assert sqlite_file("http://tracking:5000") is None


@pytest.mark.parametrize(("uri", "is_one"), [("sqlite:///x", True), ("mssql+pyodbc://u@h", True), ("https://h", False)])
def test_a_database_is_told_from_a_server(uri, is_one):
    assert is_database(uri) is is_one


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:secret@127.0.0.1:1/", "http://user:***@127.0.0.1:1/"),
        ("postgresql+psycopg2://u:secret@db/x", "postgresql+psycopg2://u:***@db/x"),
        ("http://u:se@cret@h/ and http://v:secret@h/", "http://u:***@h/ and http://v:***@h/"),
        ("mysql://u:se/cret@h/x", "mysql://u:***@h/x"),
        ("http://u:it's-secret@h", "http://u:***@h"),
        ("http://:secret@h", "http://:***@h"),
        ("postgresql://h/x?user=u&password=secret&sslmode=on", "postgresql://h/x?user=u&password=***&sslmode=on"),
        ("mssql://?odbc_connect=Driver%3Dx%3BPWD%3Dsecret", "mssql://?odbc_connect=***"),
        ("http://host:5000/path sent to anna@example.org", "http://host:5000/path sent to anna@example.org"),
        ("sqlite:////runs/mlflow.db", "sqlite:////runs/mlflow.db"),
    ],
)
def test_a_password_in_a_text_is_shown_as_stars_and_nothing_else_changes(text, shown):
    assert redacted(text) == shown


def test_a_sign_in_with_white_space_is_refused_and_not_shown():
    with pytest.raises(ValueError, match=r"^--tracking-uri: the user or password contains white space; .* as %20\.$"):
        check_sign_in("http://user:se cret@h")
    check_sign_in("http://user:se%20cret@h")
    check_sign_in("sqlite:////two words/anna@home/mlflow.db")


@pytest.mark.parametrize("uri", ["http://user:secret@127.0.0.1:1/", "postgresql://u:secret@127.0.0.1:1/db"])
def test_a_store_that_does_not_answer_is_named_without_its_password(tmp_path, cells, monkeypatch, capfd, uri):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(tracking, "END_SECONDS", 1.0)
    tracker = Tracker("dead", uri, tmp_path)
    tracker.open(cells, "{}")
    tracker.flush()
    assert ":***@127.0.0.1:1/" in tracker.trouble
    assert "secret" not in tracker.trouble + "".join(capfd.readouterr())


def test_the_command_to_type_again_and_the_complaints_hide_the_password(monkeypatch, capsys):
    uri = "http://user:secret@127.0.0.1:1/"
    monkeypatch.setattr(sys, "argv", ["meltpoint", "sweep", f"--tracking-uri={uri}", "--tracking-uri", uri])
    terminal.complain(f"{uri} does not answer")
    shown = terminal.again() + capsys.readouterr().err
    assert shown.count("user:***@127.0.0.1:1") == 3
    assert "secret" not in shown


Listing = dict[str, tuple[int, str]]


def listing(folder: Path) -> Listing:
    """Everything in a folder: path → (when it changed, its content's hash)."""
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mtime_ns, sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in [folder, *folder.rglob("*")]
    }  # fmt: skip


def files_of(storage: Path) -> dict[str, str]:
    """The files of MLflow's runs in a storage: name → text."""
    found = (storage / "mlartifacts").rglob("*.*")
    return {path.name: path.read_text(encoding="utf-8") for path in found if path.is_file()}


def drive(storage: Path, cell: OpenCell, proposal: Trial, record: object, text: str) -> None:
    """A sweep of one cell and one trial, as MLflow sees it."""
    tracker = Tracker("first", default_uri(storage), storage)
    tracker.open([cell], "{}")
    tracker.begin(proposal, code_version(), 1.7e9)
    tracker.end(record)
    tracker.reconcile([record])
    tracker.close([(proposal.cell, {"best_dev": 0.5})], True, {"report.md": text})
    assert tracker.trouble is None


@pytest.fixture
def original(tmp_path: Path, made_store: Path, cells, proposal, make_record) -> Path:
    storage = tmp_path / "original"
    storage.mkdir()
    shutil.copy(made_store, storage)
    drive(storage, cells[1], proposal, make_record(proposal), "before")
    return storage


def test_a_copied_storage_goes_on_and_leaves_the_original_as_it_is(tmp_path, original, cells, proposal, make_record):
    shutil.copytree(original, tmp_path / "copy")
    before = listing(original)
    other = proposal.model_copy(update={"id": "0" * 16, "number": 1})
    drive(tmp_path / "copy", cells[1], other, make_record(other), "after")
    assert listing(original) == before
    assert files_of(tmp_path / "copy")["report.md"] == "after"


def test_a_moved_storage_goes_on_and_makes_nothing_at_its_old_place(
    tmp_path, original, cells, proposal, make_record, file_name
):
    name = file_name("räum #2 +x")
    moved = tmp_path / name / "moved"
    moved.parent.mkdir()
    original.rename(moved)
    drive(moved, cells[1], proposal, make_record(proposal), "after")
    assert files_of(moved) == {"report.md": "after", "space.yaml": cells[1].space.dump()}
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


@pytest.mark.parametrize("uri", ["postgresql+psycopg2://u:pw@db/mlflow", "mysql://db/mlflow", "sqlite:////x/mlflow.db"])
def test_files_of_a_database_without_a_server_lie_in_the_storage(tmp_path, uri):
    address = f"{run_contents.artifact_location(uri, 'first')}/run/artifacts"
    run_contents.RunWriter(uri, tmp_path, None).write("run", address, "report.md", "| a |")
    assert files_of(tmp_path) == {"report.md": "| a |"}


def test_a_server_chooses_where_its_files_lie():
    assert run_contents.artifact_location("http://127.0.0.1:5000", "first") is None


def test_a_trial_that_was_cut_off_in_the_original_goes_on_with_the_copys_own_paths(tmp_path, spec, cells, proposal):
    """The note of a started trial holds absolute paths; none of them is read."""
    ledger = Ledger(tmp_path / "copy" / "tiny")
    ledger.create()
    elsewhere = str(tmp_path / "original")
    ledger.start({**note_of(proposal), "checkpoint": elsewhere, "cache": elsewhere})
    planner = Planner(spec, cells, [])
    planner.recall(ledger.unfinished())
    assert planner.cells[proposal.cell].again == [proposal]
    assert elsewhere not in repr(planner.cells[proposal.cell].again)
