"""Original files that are downloaded from a commit, through `datasets`: a split at a time, each file by its SHA-256."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import datasets
import pytest

from meltpoint import tasks
from meltpoint.tasks.core.locked import open_test
from meltpoint.tasks.core.sources import check
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec, PinnedFiles

SHARED = Path(__file__).parents[2] / ".." / "shared" / "data"

FILES = {
    "stsa.binary.train": b"1 a fine -lrb- short -rrb- film\n0 no fun\n",
    "stsa.binary.dev": b"1 fun\n",
    "stsa.binary.test": b"0 dull\n",
}


class Server:
    """A web server on 127.0.0.1 that counts what is asked of it."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[str] = []
        asked = self.asked

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                super().do_GET()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def served(tmp_path, monkeypatch) -> Iterator[tuple[Server, Path]]:
    """A repository's files on a server, as `sst2` reads them."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)  # it keeps from every server, this one too
    monkeypatch.setattr(datasets.config, "DOWNLOADED_DATASETS_PATH", str(tmp_path / "cache"))
    folder = tmp_path / "repository"
    (folder / "data").mkdir(parents=True)
    for name, content in FILES.items():
        (folder / "data" / name).write_bytes(content)
    server = Server(folder)
    sha256 = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    pinned = PinnedFiles(f"{server.url}/data", sha256)
    task = dataclasses.replace(tasks.get("sst2"), pinned=pinned)
    monkeypatch.setattr(tasks, "get", lambda name: task)
    thread = threading.Thread(target=server.server.serve_forever)
    thread.start()
    yield server, folder
    server.server.shutdown()
    thread.join()
    server.server.server_close()


def test_training_downloads_train_and_dev_once_and_only_the_final_downloads_test(served):
    server, _ = served
    assert check(DataSpec("sst2")) == "labelled"
    assert not server.asked
    data = load_training_data(DataSpec("sst2"))
    assert [(e.texts, e.label) for e in data.train] == [(("a fine ( short ) film",), 1), (("no fun",), 0)]
    assert server.asked == ["/data/stsa.binary.train", "/data/stsa.binary.dev"]
    load_training_data(DataSpec("sst2"))
    assert len(server.asked) == 2
    assert [(e.texts, e.label) for e in open_test(DataSpec("sst2")).examples] == [(("dull",), 0)]
    assert server.asked[2:] == ["/data/stsa.binary.test"]


def test_what_was_downloaded_is_read_without_a_network(served, monkeypatch):
    server, _ = served
    online = load_training_data(DataSpec("sst2"))
    server.server.shutdown()
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    assert load_training_data(DataSpec("sst2")).fingerprint == online.fingerprint


def test_another_file_than_the_commits_is_refused_with_its_place(served):
    _, folder = served
    (folder / "data" / "stsa.binary.train").write_bytes(FILES["stsa.binary.train"][:-9])  # cut off in the last line
    wanted = hashlib.sha256(FILES["stsa.binary.train"]).hexdigest()[:12]
    with pytest.raises(ValueError, match=rf"SHA-256 .* instead of {wanted}….* Delete .* --data-dir") as caught:
        load_training_data(DataSpec("sst2"))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_gone_and_no_network_are_one_line_with_the_remedy(served, monkeypatch):
    _, folder = served
    (folder / "data" / "stsa.binary.train").unlink()
    for offline in (False, True):
        monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", offline)
        with pytest.raises(ValueError, match=r"stsa\.binary\.train could not be downloaded .*--data-dir") as caught:
            load_training_data(DataSpec("sst2"))
        assert "\n" not in str(caught.value)


def test_a_name_that_is_quoted_in_the_address_is_found(served, monkeypatch):
    server, folder = served
    task = tasks.get("sst2")
    sha256 = dict.fromkeys(("stsa.binary.train", "stsa.binary.dev"), hashlib.sha256(b"1 fun\n").hexdigest())
    (folder / "data" / "train\u526f\u672c.txt").write_bytes(b"1 fun\n")
    quoted = PinnedFiles(f"{server.url}/data", sha256, {"stsa.binary.train": "train%E5%89%AF%E6%9C%AC.txt"})
    monkeypatch.setattr(tasks, "get", lambda name: dataclasses.replace(task, pinned=quoted))
    assert [e.texts for e in load_training_data(DataSpec("sst2")).train] == [("fun",)]
    assert server.asked[0] == "/data/train%E5%89%AF%E6%9C%AC.txt"


def test_the_phrases_of_glue_have_the_dev_and_test_of_the_sentences():
    sentences, phrases = tasks.get("sst2"), tasks.get("sst2_phrases")
    assert phrases.pinned == sentences.pinned
    assert phrases.hub is not None
    assert set(phrases.hub.splits) == {"train"}


@pytest.mark.parametrize("name", ["sst2", "sst2_subtrees"])
def test_the_pinned_files_are_the_original_ones(name):
    task = tasks.get(name)
    folder = SHARED / task.folder
    if not folder.is_dir():
        pytest.skip("needs ../shared/data")
    assert task.pinned is not None
    for file, sha256 in task.pinned.sha256.items():
        assert hashlib.sha256((folder / file).read_bytes()).hexdigest() == sha256, file


def test_a_file_may_have_another_name_in_the_repository(tmp_path, monkeypatch):
    names = ("trees/train.txt", "trees/dev.txt", "trees/test.txt")
    content = b"(3 (2 a) (4 film))\n"
    (tmp_path / "copy.txt").write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()
    pinned = PinnedFiles(str(tmp_path), dict.fromkeys(names, sha256), dict.fromkeys(names, "copy.txt"))
    task = dataclasses.replace(tasks.get("sst2_subtrees"), pinned=pinned)
    monkeypatch.setattr(tasks, "get", lambda name: task)
    train = load_training_data(DataSpec("sst2_subtrees")).train
    assert [(e.texts, e.label) for e in train] == [(("film",), 1), (("a film",), 1)]
