"""Files of the adapters: their locks, and the modes that the umask gives."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from meltpoint.adapters import settings
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.exported_model import save_folder
from meltpoint.adapters.features import hold, locked
from meltpoint.adapters.files import acquire, replacing, write_atomically
from meltpoint.adapters.model import Member, build
from meltpoint.adapters.training.saved_state import TrainingState, write_state
from meltpoint.sweeps.worker.worker import save_weights
from meltpoint.tasks.core.task import Task


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


Load = Callable[[str], Encoder]


@pytest.fixture(params=[0o022, 0o077, 0o002], ids=["022", "077", "002"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Each of the usual umasks in turn."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def wrong(folder: Path, umask: int) -> dict[str, str]:
    """Path below the folder → its mode, where that is not what the umask gives."""
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    wanted = {path: (0o777 if path.is_dir() else 0o666) & ~umask for path in found}
    assert found, "something was written"
    return {str(path.relative_to(folder)): oct(mode) for path, mode in found.items() if mode != wanted[path]}


def test_a_file_written_whole_has_the_mode_of_the_umask(tmp_path: Path, umask: int):
    write_atomically(tmp_path / "sub" / "trial.json", "{}")
    with replacing(tmp_path / "sub" / "private") as beside:
        beside.touch()
        beside.chmod(0o600)  # as safetensors and mkstemp make theirs
    assert wrong(tmp_path, umask) == {}


def test_weights_and_stages_have_the_mode_of_the_umask(tmp_path: Path, umask: int):
    tensors = {"a": torch.zeros(2, 3)}
    save_weights(tensors, tmp_path / "checkpoints" / "one")
    write_state(tmp_path / "stages" / "one.safetensors", TrainingState(tensors, {}), {})
    assert wrong(tmp_path, umask) == {}


def test_a_model_folder_has_the_modes_of_the_umask(load_tiny: Load, tmp_path: Path, umask: int):
    task = Task("own", "sentence_classification", "accuracy", "", {}, labels=("bad", "good"))
    setting = settings.complete({}, "fine_tuning", "linear")
    model = build(load_tiny("bert"), task, "fine_tuning", "linear", [Member(setting, 0)], "cpu")
    save_folder(tmp_path / "model", model, task, "fine_tuning", "linear", setting, "fp32", {})
    assert wrong(tmp_path, umask) == {}
    assert (tmp_path / "model" / "encoder" / "model.safetensors").is_file()
