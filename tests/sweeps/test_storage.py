"""storage: a folder, S3 and Google Cloud Storage keep the same promises, and what is wrong is told in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from meltpoint.sweeps.results.removal import removable, remove_sweep
from meltpoint.sweeps.storage import files, object_client
from meltpoint.sweeps.storage.files import StoragePath, readable_storage, storage_folder
from meltpoint.sweeps.storage.object_store import ObjectPath
from meltpoint.tests.local_servers import free_ports
from meltpoint.tests.object_stores import BUCKET, Faults

pytestmark = pytest.mark.skipif(find_spec("obstore") is None, reason="the extra 's3' is not installed")

PROCESSES = 3
LARGE = bytes(6 * 2**20)
"""More than goes in one part."""


@pytest.fixture(params=["folder", "s3", "gs"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> StoragePath:
    """A storage of each kind, empty."""
    if request.param == "folder":
        return tmp_path
    request.getfixturevalue(request.param)
    return ObjectPath.of(f"{request.param}://{BUCKET}/{request.node.name}".replace("[", "=").replace("]", ""))


def names(paths: Iterator[StoragePath]) -> list[str]:
    return sorted(path.name for path in paths)


def test_what_was_written_is_read_listed_replaced_and_removed(storage):
    file = storage / "sweep" / "trials" / "a1.json"
    with pytest.raises(FileNotFoundError):
        file.read_text()
    with pytest.raises(FileNotFoundError):
        file.stat()
    files.write(file, "één\n")
    files.write(storage / "sweep" / "trials" / "b2.json", "x")
    files.write(storage / "sweep" / "report.md", "x")
    assert file.read_text(encoding="utf-8") == "één\n"
    assert file.stat().st_size == len("één\n".encode())
    assert names(file.parent.glob("*.json")) == ["a1.json", "b2.json"]
    assert names(storage.glob("*/report.md")) == ["report.md"]
    assert names((storage / "sweep").iterdir()) == ["report.md", "trials"]
    assert (file.exists(), file.is_file(), file.is_dir()) == (True, True, False)
    assert (file.parent.exists(), file.parent.is_file(), file.parent.is_dir()) == (True, False, True)
    files.write(file, "new")
    assert file.read_bytes() == b"new"
    files.remove(file)
    assert not file.exists()
    files.remove(storage / "sweep")
    files.remove(storage / "not there")
    assert list(storage.iterdir()) == []


def test_large_files_made_on_this_machine_go_there_and_come_back_whole(storage, tmp_path):
    contents = os.urandom(11 * 2**20)  # several parts
    weights = storage / "checkpoints" / "a1" / "weights.safetensors"
    with files.storing(weights) as local:
        local.write_bytes(contents)
    with files.local_copy(weights) as local:
        assert local.read_bytes() == contents
    with files.storing_folder(storage / "submissions" / "x") as folder:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "SST-2.tsv").write_text("index\tprediction\n")
    assert (storage / "submissions" / "x" / "SST-2.tsv").read_text() == "index\tprediction\n"
    with pytest.raises(IsADirectoryError), files.storing(weights) as local:
        local.parent.write_bytes(b"a write that fails")
    assert weights.stat().st_size == len(contents)
    with pytest.raises(FileNotFoundError), files.local_copy(storage / "none") as local:
        local.read_bytes()


CLAIM = """
import sys
from meltpoint.sweeps.ledger.locks import Claim, make
from meltpoint.sweeps.ledger.locks import this_process
from meltpoint.sweeps.storage.files import append_line, storage_path

folder = storage_path(sys.argv[1])
sys.stdin.readline()
won = [n for n in range(1, 6) if make(Claim(folder, n), this_process(sys.argv[2], False, 1.0))]
append_line(folder.parent / "log.jsonl", {"process": sys.argv[2], "won": won})
"""


def test_of_many_processes_that_claim_the_same_numbers_one_has_each_and_all_their_lines_are_kept(storage):
    (storage / "drivers").mkdir(parents=True)
    words = [sys.executable, "-c", CLAIM, str(storage / "drivers")]
    running = [subprocess.Popen([*words, str(n)], stdin=subprocess.PIPE, text=True) for n in range(PROCESSES)]
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.wait(timeout=120) for process in running] == [0] * PROCESSES
    lines = [json.loads(line) for line in (storage / "log.jsonl").read_text().splitlines()]
    assert sorted(line["process"] for line in lines) == [str(n) for n in range(PROCESSES)]
    assert sorted(number for line in lines for number in line["won"]) == [1, 2, 3, 4, 5]


@pytest.fixture(params=["s3", "gs"])
def faulty(request: pytest.FixtureRequest) -> tuple[ObjectPath, Faults]:
    """A file of an object store that does not exist, and the store's faults."""
    faults = request.getfixturevalue(request.param)
    faults.requests.clear()
    return ObjectPath.of(f"{request.param}://{BUCKET}/faults/{time.monotonic_ns()}"), faults


def test_a_store_that_is_busy_for_a_moment_is_asked_again(faulty):
    file, faults = faulty
    faults.refuse = 2
    assert file.create(b"mine")
    assert len([request for request in faults.requests if request.startswith("PUT")]) == 3
    faults.refuse = 2
    assert file.read_bytes() == b"mine"


def test_a_write_whose_answer_was_lost_is_done_once_and_known_as_done(faulty):
    file, faults = faulty
    faults.lose = 1
    assert file.create(b"mine")
    assert not file.create(b"another's")
    faults.lose = 1
    assert file.replace_if(file.version(), b"newer")
    faults.lose = 1
    files.append_line(file.parent / (file.name + "-log"), {"once": True})
    assert (file.parent / (file.name + "-log")).read_text() == '{"once": true}\n'


def changes(file: ObjectPath, tmp_path: Path) -> dict[str, tuple[Callable[[], object], object]]:
    """Request → (what sends it, what it returns)."""
    other = file.parent / (file.name + "-other")
    return {
        "PUT, if there is none": (lambda: file.create(b"one"), True),
        "PUT, if it has not changed": (lambda: file.replace_if(file.version(), b"two"), True),
        "PUT": (lambda: file.put(b"three"), None),
        "PUT of a copy": (lambda: file.copy_to(other), None),
        "POST and PUT of a large one": (lambda: (file.parent / "large").put(LARGE), None),
        "GET": (file.read_bytes, b"three"),
        "GET into a file": (lambda: file.download(tmp_path / "local"), None),
        "GET of a list": (lambda: list(file.parent.iterdir()).count(file), 1),
        "GET of a long list": (lambda: list(file.parent.files()).count(file), 1),
        "GET of a list, for a folder": (file.parent.is_dir, True),
        "DELETE": (lambda: other.unlink(missing_ok=True), None),
    }


def test_a_request_whose_answer_breaks_off_is_sent_again_and_knows_its_own_contents(faulty, tmp_path):
    file, faults = faulty
    for name, (request, result) in changes(file, tmp_path).items():
        faults.break_off = 1
        assert request() == result, name
        assert faults.break_off == 0, name
    assert not file.create(b"another's")
    assert (tmp_path / "local").read_bytes() == b"three"
    assert (file.parent / "large").read_bytes() == LARGE


def test_a_line_whose_answer_was_lost_and_that_another_process_wrote_behind_is_there_once(faulty, monkeypatch):
    file, _ = faulty
    replace_if = ObjectPath.replace_if

    def answer_is_lost(path: ObjectPath, *words: object) -> bool:
        monkeypatch.setattr(ObjectPath, "replace_if", replace_if)
        assert replace_if(path, *words)
        files.append_line(path, {"by": "another"})
        return replace_if(path, *words)

    files.append_line(file, {"by": "a first one"})
    monkeypatch.setattr(ObjectPath, "replace_if", answer_is_lost)
    files.append_line(file, {"by": "this one"})
    assert [json.loads(line)["by"] for line in file.read_text().splitlines()] == ["a first one", "this one", "another"]


def test_a_file_that_has_changed_or_gone_is_not_replaced(faulty):
    file, _ = faulty
    assert file.version() is None
    assert file.replace_if(None, b"one")
    assert not file.replace_if(None, b"two")
    before = file.version()
    assert file.replace_if(before, b"three")
    assert not file.replace_if(before, b"four")
    assert file.read_bytes() == b"three"
    now = file.version()
    file.unlink()
    assert not file.replace_if(now, b"five")
    assert not file.exists()


def refusal(uri: str, opened=storage_folder) -> str:
    """The line that a storage is refused with, in less than 10 s, and without a secret."""
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"^--storage ") as refused:
        opened(uri)
    assert time.monotonic() - began < 10
    line = str(refused.value)
    assert "\n" not in line
    assert len(line) < 400
    assert "not-a-secret" not in line
    return line


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_bucket_that_is_not_there_is_refused(scheme, request):
    request.getfixturevalue(scheme)
    for opened in (storage_folder, readable_storage):
        assert f"{scheme}://missing does not exist; create that bucket" in refusal(f"{scheme}://missing/x", opened)


@pytest.mark.parametrize("code", ["SignatureDoesNotMatch", "RequestTimeTooSkewed"])
def test_wrong_credentials_and_a_wrong_clock_are_refused(s3, code):
    s3.refuse, s3.status, s3.code = 1, "403 Forbidden", code
    line = refusal(f"s3://{BUCKET}/x")
    assert f"refuses the request ({code}); set AWS_ACCESS_KEY_ID" in line
    assert "this machine's clock" in line


def test_missing_credentials_are_refused(s3, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{free_ports(1)[0]}")
    object_client._client.cache_clear()
    assert "no credentials were found; set AWS_ACCESS_KEY_ID" in refusal(f"s3://{BUCKET}/x")


def test_a_server_that_is_not_there_is_refused(s3, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://me:not-a-secret@127.0.0.1:{free_ports(1)[0]}")
    object_client._client.cache_clear()
    assert "does not answer at http://127.0.0.1" in refusal(f"s3://{BUCKET}/x")


def test_a_store_that_does_not_heed_conditions_is_refused(s3):
    s3.heeds_conditions = False
    assert "ignores conditional writes (If-None-Match, If-Match)" in refusal(f"s3://{BUCKET}/x")


def test_without_its_package_an_object_store_is_refused_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(object_client, "find_spec", lambda name: None)
    assert "pip install 'meltpoint[s3]'" in refusal("s3://bucket/x")
    assert "pip install 'meltpoint[gs]'" in refusal("gs://bucket/x")


@pytest.mark.parametrize("uri", ["s3://KEY:not-a-secret@bucket/x", "s3://KEY@bucket"])
def test_keys_in_the_uri_are_refused_and_not_repeated(uri):
    line = refusal(uri)
    assert "KEY" not in line
    assert "without credentials; Meltpoint reads those from the environment" in line


@pytest.mark.parametrize("uri", ["s3://", "s3:///x", "s3://bucket/a//b", "s3://bucket/../x", "s3://bucket/a?b"])
def test_a_uri_that_names_no_prefix_of_a_bucket_is_refused(uri):
    assert "write s3://BUCKET/PREFIX" in refusal(uri)


def test_a_storage_that_this_user_may_not_read_is_no_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.os, "access", lambda path, mode: False)  # root may read every folder
    with pytest.raises(ValueError, match="you may not read that folder; ask its owner"):
        readable_storage(str(tmp_path))
    readable_storage(str(tmp_path / "new"))


def test_rm_in_an_object_store_says_what_stopped_it_and_the_same_command_removes_the_rest(s3, monkeypatch):
    storage = ObjectPath.of(f"s3://{BUCKET}/rm-{time.monotonic_ns()}")
    names = ["sweep.json", "trials/a.json", "trials/b.json", "checkpoints/a/weights.safetensors"]
    for name in names:
        files.write(storage / "first" / name, "{}")

    def remove_first() -> None:
        remove_sweep(storage, "first", removable(storage, "first", only_checkpoints=False))

    unlink = ObjectPath.unlink

    def refusing(path: ObjectPath, missing_ok: bool = False) -> None:
        if path.name == "b.json":
            raise object_client.StoreError(f"{path} cannot be removed (AccessDenied)")
        unlink(path, missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(ObjectPath, "unlink", refusing)
        with pytest.raises(object_client.StoreError, match=r"trials/b\.json cannot be removed"):
            remove_first()
    assert (storage / "first" / "trials" / "b.json").is_file()
    remove_first()
    assert not list((storage / "first").files())
    with pytest.raises(ValueError, match="No sweep 'first'"):
        remove_first()
