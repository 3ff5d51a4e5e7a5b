"""locks: another holder, a file system without locks and a broken disk are three things."""

from __future__ import annotations

import errno
import fcntl
import os

import pytest

from meltpoint.adapters.features.entries import hold, locked
from meltpoint.adapters.files import acquire


def refuse(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Stand for a file system whose flock fails."""

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)


def test_a_lock_that_is_held_is_not_got_and_is_free_again_afterwards(tmp_path):
    path = tmp_path / "x.lock"
    with path.open("a") as one, path.open("a") as other:
        assert acquire(one, shared=False, wait=False)
        assert not acquire(other, shared=True, wait=False)
        one.close()
        assert acquire(other, shared=False, wait=False)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named_by_its_folder_with_the_remedy(tmp_path, monkeypatch, number):
    refuse(monkeypatch, number)
    message = rf"{tmp_path}: its file system has no file locks .* --storage DIR"
    with pytest.raises(ValueError, match=message), locked(tmp_path / "x.lock", wait=False):
        pass
    with pytest.raises(ValueError, match=message):
        hold(tmp_path, "entry")


def test_a_broken_disk_is_an_error_that_names_the_file(tmp_path, monkeypatch):
    refuse(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="Input/output error") as caught, locked(tmp_path / "x.lock", wait=True):
        pass
    assert caught.value.filename == str(tmp_path / "x.lock")
