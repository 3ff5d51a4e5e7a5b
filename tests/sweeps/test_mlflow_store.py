"""The kept empty store: what MLflow makes of a copy is what it makes itself, and a bad copy never reaches a sweep."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from meltpoint.sweeps import mlflow_store
from meltpoint.sweeps.mlflow_runs import Runs


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def uri_of(folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / 'mlflow.db'}"


def schema(path: Path) -> set[tuple[str, ...]]:
    """Every table, column, index and trigger, and the version of the schema."""
    with contextlib.closing(sqlite3.connect(path)) as store:
        made = set(store.execute("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master"))
        return made | set(store.execute("SELECT 'version', version_num, '', '' FROM alembic_version"))


@pytest.fixture
def shared_with_a_group() -> Iterator[None]:
    """The umask of people who share a storage."""
    before = os.umask(0o002)
    yield
    os.umask(before)


@pytest.mark.usefixtures("shared_with_a_group")
def test_a_copy_of_the_kept_store_is_what_mlflow_makes_itself(cache: Path, tmp_path: Path):
    first, second = uri_of(tmp_path / "first"), uri_of(tmp_path / "second")
    assert mlflow_store.put(first), "nothing is kept yet"
    Runs("one", first, tmp_path / "first").open([], "{}")
    assert mlflow_store.template().is_relative_to(cache)
    assert not mlflow_store.put(second)
    assert schema(tmp_path / "second" / "mlflow.db") == schema(tmp_path / "first" / "mlflow.db")
    Runs("two", second, tmp_path / "second").open([], "{}")
    names = {own.name: own.artifact_location for own in MlflowClient(second).search_experiments()}
    assert set(names) == {"Default", "two"}, "nothing of the first folder's"
    assert str(tmp_path / "first") not in "".join(names.values())
    modes = {own: (tmp_path / own / "mlflow.db").stat().st_mode & 0o777 for own in ("first", "second")}
    assert modes == {"first": 0o664, "second": 0o664}


def test_a_store_that_is_there_is_left_alone(cache: Path, tmp_path: Path):
    uri = uri_of(tmp_path)
    Runs("one", uri, tmp_path).open([], "{}")
    before = (tmp_path / "mlflow.db").read_bytes()
    assert not mlflow_store.put(uri)
    assert (tmp_path / "mlflow.db").read_bytes() == before
    assert not mlflow_store.put("http://127.0.0.1:5000")


@pytest.mark.parametrize("damage", [b"", b"not a database at all" * 100, "cut"])
def test_a_damaged_copy_is_thrown_away_and_made_again(cache: Path, tmp_path: Path, damage: bytes | str):
    Runs("one", uri_of(tmp_path / "first"), tmp_path / "first")
    kept = mlflow_store.template()
    sound = kept.read_bytes()
    kept.write_bytes(sound[: len(sound) // 2] if isinstance(damage, str) else damage)
    uri = uri_of(tmp_path / "second")
    assert mlflow_store.put(uri)
    assert not kept.exists()
    Runs("two", uri, tmp_path / "second").open([], "{}")
    assert {own.name for own in MlflowClient(uri).search_experiments()} == {"Default", "two"}


def test_a_cache_that_cannot_be_written_is_no_harm(cache: Path, tmp_path: Path):
    cache.write_text("a file in the place of the folder")
    uri = uri_of(tmp_path)
    Runs("one", uri, tmp_path).open([], "{}")
    assert {own.name for own in MlflowClient(uri).search_experiments()} == {"Default", "one"}
