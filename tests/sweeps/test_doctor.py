"""doctor: each check says what was found and, where something is wrong, the remedy; and it changes nothing."""

from __future__ import annotations

import os
import sqlite3
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from meltpoint.sweeps.machine import doctor, services
from meltpoint.sweeps.machine.doctor import Check


def by_name(found: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in found}


def test_every_check_has_a_remedy_exactly_where_it_is_not_ok(tmp_path: Path) -> None:
    found = doctor.checks(tmp_path, "http://127.0.0.1:9", "127.0.0.1:9")
    assert len({check.name for check in found}) == len(found)
    for check in found:
        assert check.detail
        assert bool(check.remedy) != check.ok, check
        assert "\n" not in check.detail + check.remedy


def test_this_machine_meets_the_supported_ranges_and_the_checks_cover_every_declared_part(tmp_path: Path) -> None:
    found = by_name(doctor.checks(tmp_path, None, None))
    for name in ("Python", "torch", "transformers", "ray", "optuna", "datasets", "mlflow", "pytorch-crf"):
        assert found[name].ok, found[name]
    others = "cores", "memory", "bf16 on the CPU", "storage", "MLflow store"
    assert {*others, "Ray"} <= set(found)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    doctor.checks(tmp_path / "new" / "runs", None, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", ["torch>=99", "no-such-part-anywhere>=1"])
def test_a_part_outside_its_range_or_missing_is_named_with_the_command_that_installs_it(line: str) -> None:
    check = doctor.package(Requirement(line))
    assert not check.ok
    assert line.partition(">=")[2] in check.detail
    assert f"pip install '{line}'" in check.remedy


def test_a_checkout_that_is_not_installed_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.metadata, "metadata", absent)
    monkeypatch.setattr(doctor.metadata, "requires", absent)
    check = doctor.python()
    assert not check.ok
    assert "not installed" in check.detail
    assert "make install" in check.remedy
    assert doctor.packages() == []


@pytest.mark.parametrize(("quota", "ok"), [("50000 100000", False), ("100000 100000", True), ("max 100000", True)])
def test_a_container_with_less_than_one_core_is_told_so(tmp_path: Path, quota: str, ok: bool) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    check = doctor.cores(tmp_path)
    assert check.ok is ok
    assert ("0.5 of" in check.detail) is not ok


def test_a_containers_memory_limit_counts_and_not_the_machines_memory(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(str(2 * doctor.GIB))
    (tmp_path / "memory.current").write_text(str(doctor.GIB))
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {doctor.GIB // 2}\n")
    check = doctor.memory(tmp_path)
    assert not check.ok
    assert check.detail == "1.5 of 2.0 GiB free", "files that were only read count as free"


def test_a_machine_with_a_gpu_that_torch_cannot_use_is_told_so(tmp_path: Path) -> None:
    driver = tmp_path / "nvidiactl"
    assert doctor.no_gpu(driver).ok
    driver.touch()
    check = doctor.no_gpu(driver)
    assert not check.ok
    assert "CUDA build" in check.remedy


def test_a_storage_folder_is_writable_or_can_be_made(tmp_path: Path) -> None:
    assert "is writable" in doctor.storage_folder(tmp_path).detail
    assert "can be created" in doctor.storage_folder(tmp_path / "a" / "b").detail


@pytest.mark.parametrize("name", ["file", "file/runs"])
def test_a_storage_folder_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    check = doctor.storage_folder(tmp_path / name)
    assert not check.ok
    assert "--storage" in check.remedy


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_storage_folder_closed_to_this_user_is_refused(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    assert not doctor.storage_folder(closed).ok


def test_a_full_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LEAST_FREE_BYTES", 1 << 62)
    check = doctor.storage_folder(tmp_path)
    assert not check.ok
    assert "free 1 GiB" in check.remedy


def test_no_secret_reaches_a_check() -> None:
    uris = "postgresql://user:s3cret@127.0.0.1:9/mlflow", "http://user:s3cret@127.0.0.1:9"
    assert "s3cret" not in repr([services.tracking_store(uri) for uri in uris])


def store(path: Path, *revisions: str) -> str:
    """An SQLite file whose tables claim these revisions."""
    with sqlite3.connect(path) as connection:
        connection.execute("create table alembic_version (version_num varchar(32))")
        connection.executemany("insert into alembic_version values (?)", [(revision,) for revision in revisions])
    connection.close()
    return f"sqlite:///{path}"


def test_a_store_that_mlflow_made_itself_is_current(made_store: Path) -> None:
    assert services.tracking_store(f"sqlite:///{made_store}").ok


def test_an_older_store_is_told_how_to_move_up_and_is_not_moved(tmp_path: Path) -> None:
    first_ever = "451aebb31d03"  # mlflow/store/db_migrations/versions/451aebb31d03_add_metric_step.py
    uri = store(tmp_path / "old.db", first_ever)
    before = (tmp_path / "old.db").read_bytes()
    check = services.tracking_store(uri)
    assert not check.ok
    assert f"mlflow db upgrade {uri}" in check.remedy
    assert (tmp_path / "old.db").read_bytes() == before


@pytest.mark.parametrize("revisions", [(), ("feedfacecafe",), ("451aebb31d03", "feedfacecafe")])
def test_a_store_of_a_newer_or_broken_mlflow_is_refused_without_offering_to_upgrade_it(
    tmp_path: Path, revisions: tuple[str, ...]
) -> None:
    check = services.tracking_store(store(tmp_path / "new.db", *revisions))
    assert not check.ok
    assert "upgrade" not in check.remedy


def test_a_file_that_is_no_database_or_another_programs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text(
        "no database, but long enough to have a header of its own, which is not SQLite's\n" * 9
    )
    sqlite3.connect(tmp_path / "other.db").execute("create table t (x int)").connection.close()
    assert not services.tracking_store(f"sqlite:///{tmp_path / 'text.db'}").ok
    assert not services.tracking_store(f"sqlite:///{tmp_path / 'other.db'}").ok


def test_a_store_that_does_not_exist_yet_is_fine_where_it_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert services.tracking_store(f"sqlite:///{tmp_path / 'a' / 'mlflow.db'}").ok
    assert not services.tracking_store(f"sqlite:///{tmp_path / 'file' / 'mlflow.db'}").ok


@pytest.mark.parametrize("uri", ["./mlruns", "file:mlruns", "sqlite://", "sqlite:///:memory:"])
def test_a_store_that_mlflow_refuses_or_that_nobody_else_could_read_is_refused(uri: str) -> None:
    assert not services.tracking_store(uri).ok


def test_the_folder_of_the_data_is_looked_at(tmp_path: Path) -> None:
    empty, there = doctor.data_folder(tmp_path), tmp_path / "train.tsv"
    there.touch()
    found, missing = doctor.data_folder(tmp_path), doctor.data_folder(tmp_path / "none")
    assert [check.ok for check in (empty, found, missing)] == [False, True, False]
    assert found.detail == f"{tmp_path}, 1 entry"
    assert "No such file or directory" in missing.detail
    assert "--data-dir" in missing.remedy
