"""tracking_uri: storage folders of any name that MLflow can have a store in, and no password in what is shown."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from meltpoint.sweeps.command_line import errors
from meltpoint.sweeps.specification.tracking_uri import (
    check_scheme,
    check_sign_in,
    default_uri,
    is_database,
    redacted,
    sqlite_file,
    without_sign_in,
)
from meltpoint.sweeps.tracking import tracker as tracking
from meltpoint.sweeps.tracking.runs import Runs
from meltpoint.sweeps.tracking.tracker import Tracker


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


def test_the_default_store_is_that_of_the_contract(tmp_path):
    assert default_uri(Path("/data/runs")) == "sqlite:////data/runs/mlflow.db"


@pytest.mark.parametrize("name", ["two words", "hash#x", "50%", "100%zz", "größe", "a&b;c=d", "at@b:c"])
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
    with pytest.raises(ValueError, match=r"--storage .* rename that folder, or name another with --storage DIR\.$"):
        default_uri(tmp_path / name)


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
    with pytest.raises(ValueError, match=r"^--tracking-uri: white space .* as %20\.$"):
        check_sign_in("http://user:se cret@h")
    check_sign_in("http://user:se%20cret@h")
    check_sign_in("sqlite:////two words/anna@home/mlflow.db")


def test_an_address_to_open_has_no_sign_in():
    assert without_sign_in("http://anna:secret@tracking:5000/x?token=secret") == "http://tracking:5000/x"


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
    errors.complain(f"{uri} does not answer")
    shown = errors.again() + capsys.readouterr().err
    assert shown.count("user:***@127.0.0.1:1") == 3
    assert "secret" not in shown
