"""Sources of data: the hub's parquet files, and pinned downloads with their checksums."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import datasets
import pytest
from datasets import ClassLabel, Dataset, Features, Value

from meltpoint import tasks
from meltpoint.tasks.core import sources
from meltpoint.tasks.core.locked import open_test
from meltpoint.tasks.core.sources import check, class_id, load_hub_split
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec, PinnedFiles

NER = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def mirror(source, folder):
    """The same source, read from a folder in the dataset's layout, with as many rows as a test needs."""
    elsewhere = {split: mirror(other, folder) for split, other in source.elsewhere.items()}
    return dataclasses.replace(source, id=str(folder), elsewhere=elsewhere)


def write(folder, path, rows, features):
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    Dataset.from_dict(columns, features=Features(features)).to_parquet(target)


TEXT, NUMBER = Value("string"), Value("int32")


def test_glue_labels_come_by_name_and_hidden_ones_as_none(tmp_path):
    features = {"sentence": TEXT, "label": ClassLabel(names=["unacceptable", "acceptable"]), "idx": NUMBER}
    rows = [{"sentence": "Good. ", "label": 1, "idx": 7}, {"sentence": "bad the", "label": 0, "idx": 8}]
    write(tmp_path, "cola/validation-00000-of-00001.parquet", rows, features)
    hidden = [{"sentence": "x", "label": -1, "idx": 0}]
    write(tmp_path, "cola/test-00000-of-00001.parquet", hidden, features)
    source = mirror(tasks.get("cola").hub, tmp_path)
    examples = load_hub_split(source, "dev")
    assert [(e.id, e.texts, e.label) for e in examples] == [("7", ("Good.",), 1), ("8", ("bad the",), 0)]
    assert load_hub_split(source, "test")[0].label is None
    features = {"sentence1": TEXT, "sentence2": TEXT, "label": ClassLabel(names=["equivalent", "not_equivalent"])}
    row = {"sentence1": "a", "sentence2": "b", "label": 0, "idx": 3}
    write(tmp_path, "mrpc/train-00000-of-00001.parquet", [row], {**features, "idx": NUMBER})
    assert load_hub_split(mirror(tasks.get("mrpc").hub, tmp_path), "train")[0].label == 1, "in another order, by name"
    assert (class_id(1, (), ("a", "b")), class_id(None, (), ("a", "b"))) == (1, None)
    for value, names, wanted in ((2, (), "label 2 is not one of 0 to 1"), (0, ("c",), "Unknown label 'c'")):
        with pytest.raises(ValueError, match=wanted):
            class_id(value, names, ("a", "b"))


def test_conll_tags_come_by_name(tmp_path):
    names = NER[::-1]
    tags = datasets.Sequence(ClassLabel(names=names))
    rows = [{"id": "0", "tokens": ["Ann", "left"], "ner_tags": [names.index("B-PER"), names.index("O")]}]
    features = {"id": TEXT, "tokens": datasets.Sequence(TEXT), "ner_tags": tags}
    write(tmp_path, "data/validation-00000-of-00001.parquet", rows, features)
    task = tasks.get("conll2003")
    (example,) = load_hub_split(mirror(task.hub, tmp_path), "dev")
    assert example.words == ("Ann", "left")
    assert [task.labels[tag] for tag in example.label] == ["B-PER", "O"]


def test_stsb_scores_are_scaled_back_to_0_to_5(tmp_path):
    rows = [{"sentence1": "a", "sentence2": "b", "score": score / 5} for score in (0.0, 3.8, 2.917, 5.0)]
    features = {"sentence1": TEXT, "sentence2": TEXT, "score": Value("float32")}
    write(tmp_path, "data/test-00000-of-00001.parquet", rows, features)
    examples = load_hub_split(mirror(tasks.get("stsb").hub, tmp_path), "test")
    assert [example.label for example in examples] == pytest.approx([0.0, 3.8, 2.917, 5.0], abs=1e-6)


def test_mnli_keeps_genres_and_takes_its_test_from_glue(tmp_path):
    classes = ClassLabel(names=["entailment", "neutral", "contradiction"])
    row = {"pairID": "5e", "premise": "a", "hypothesis": " n/a", "genre": "slate", "label": 1}
    features = {"pairID": TEXT, "premise": TEXT, "hypothesis": TEXT, "genre": TEXT, "label": classes}
    write(tmp_path, "data/validation_matched-00000-of-00001.parquet", [row], features)
    other = {"premise": TEXT, "hypothesis": TEXT, "label": classes, "idx": NUMBER}
    hidden = [{"premise": "a", "hypothesis": "b", "label": -1, "idx": 4}]
    write(tmp_path, "mnli/test_matched-00000-of-00001.parquet", hidden, other)
    source = mirror(tasks.get("mnli").hub, tmp_path)
    (dev,) = load_hub_split(source, "dev")
    assert (dev.id, dev.texts, dev.label, dev.group) == ("5e", ("a", "n/a"), 1, "slate")
    (test,) = load_hub_split(source, "test")
    assert (test.id, test.label) == ("4", None)


def test_qqp_leaves_out_pairs_with_an_empty_question_except_where_the_server_asks_for_each(tmp_path):
    features = {"question1": TEXT, "question2": TEXT, "label": ClassLabel(names=["not_duplicate", "duplicate"])}
    rows = [{"question1": "a?", "question2": "b? ", "label": 1, "idx": 0}]
    rows += [{"question1": "How can I create an Android app?", "question2": "", "label": 0, "idx": 1}]
    write(tmp_path, "qqp/train-00000-of-00001.parquet", rows, {**features, "idx": NUMBER})
    hidden = [{**rows[1], "label": -1}]
    write(tmp_path, "qqp/test-00000-of-00001.parquet", hidden, {**features, "idx": NUMBER})
    source = mirror(tasks.get("qqp").hub, tmp_path)
    assert [(e.id, e.texts, e.label) for e in load_hub_split(source, "train")] == [("0", ("a?", "b?"), 1)]
    assert [(e.id, e.label) for e in load_hub_split(source, "test")] == [("1", None)]


TOPICS = [
    "Society & Culture", "Science & Mathematics", "Health", "Education & Reference", "Computers & Internet", "Sports",
    "Business & Finance", "Entertainment & Music", "Family & Relationships", "Politics & Government",
]  # fmt: skip


def test_yahoo_on_the_hub_gives_the_rows_of_the_classes_and_every_139th_row_as_dev(tmp_path):
    features = {"id": NUMBER, "topic": ClassLabel(names=TOPICS)}
    features |= dict.fromkeys(("question_title", "question_content", "best_answer"), TEXT)
    columns = {"question_content": "", "best_answer": "a\\nb"}
    rows = [{"id": place, "topic": place % 10, "question_title": f"q{place}", **columns} for place in range(300)]
    for part, some in enumerate((rows[:150], rows[150:])):  # train has two files on the hub
        write(tmp_path, f"yahoo_answers_topics/train-0000{part}-of-00002.parquet", some, features)
    write(tmp_path, "yahoo_answers_topics/test-00000-of-00001.parquet", rows[:20], features)
    task = tasks.get("yahoo:family_relationships+entertainment_music")
    source = mirror(task.hub, tmp_path)
    train, dev, test = (load_hub_split(source, split) for split in ("train", "dev", "test"))
    assert [e.id for e in dev] == ["138", "277"]
    assert [e.id for e in train] == [str(n) for n in range(300) if n % 10 in (7, 8) and n not in (138, 277)]
    assert [e.id for e in test] == ["7", "8", "17", "18"]
    assert train[0].texts == ("q7 a\nb",)
    assert [task.labels[e.label][:6] for e in (train[0], *dev)] == ["entert", "family", "entert"]
    every = mirror(tasks.get("yahoo").hub, tmp_path)
    assert [e.label for e in load_hub_split(every, "test")] == [*range(10), *range(10)]


def test_a_split_of_several_batches_keeps_its_order_and_positions(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BATCH_ROWS", 3)
    rows = [{"sentence": f"t{number}", "label": number % 2, "idx": number} for number in range(8)]
    features = {"sentence": TEXT, "label": Value("int64"), "idx": NUMBER}
    write(tmp_path, "sst2/train-00000-of-00001.parquet", rows, features)
    examples = load_hub_split(mirror(tasks.get("sst2_phrases").hub, tmp_path), "train")
    assert [(e.id, e.texts) for e in examples] == [(str(number), (f"t{number}",)) for number in range(8)]


def test_one_split_opens_no_other_splits_file(tmp_path):
    features = {"sentence1": TEXT, "sentence2": TEXT, "score": Value("float64")}
    for split in ("train", "validation", "test"):
        rows = [{"sentence1": split, "sentence2": "b", "score": 0.5}]
        write(tmp_path, f"data/{split}-00000-of-00001.parquet", rows, features)
    for split in ("validation", "test"):  # pyarrow opens files without an audit event
        (tmp_path / f"data/{split}-00000-of-00001.parquet").write_bytes(b"not parquet: reading this would fail")
    (example,) = load_hub_split(mirror(tasks.get("stsb").hub, tmp_path), "train")
    assert example.texts == ("train", "b")


def test_missing_files_columns_and_no_network_are_one_line_with_the_remedy(tmp_path):
    source = tasks.get("mrpc").hub
    for one in (mirror(source, tmp_path), source):  # the tests run offline
        with pytest.raises(ValueError, match=r"could not be loaded .*--data-dir") as caught:
            load_hub_split(one, "train")
        assert "\n" not in str(caught.value)
    write(tmp_path, "data/train-0.parquet", [{"sentence1": "a", "mark": 1}], {"sentence1": TEXT, "mark": NUMBER})
    with pytest.raises(ValueError, match="no column 'score'; its columns are: sentence1, mark"):
        load_hub_split(mirror(tasks.get("stsb").hub, tmp_path), "train")


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


def test_training_downloads_train_and_dev_once_and_only_the_final_downloads_test(served, monkeypatch):
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
    server.server.shutdown()
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    assert load_training_data(DataSpec("sst2")).fingerprint == data.fingerprint, "without a network"


def test_another_file_than_the_commits_none_and_no_network_are_one_line_with_the_remedy(served, monkeypatch):
    _, folder = served
    wanted = hashlib.sha256(FILES["stsa.binary.train"]).hexdigest()[:12]
    (folder / "data" / "stsa.binary.train").write_bytes(FILES["stsa.binary.train"][:-9])  # cut off in the last line
    damaged = rf"SHA-256 .* instead of {wanted}….* Delete .* --data-dir"
    gone = r"stsa\.binary\.train could not be downloaded .*--data-dir"
    for offline, message in ((False, damaged), (False, gone), (True, gone)):
        monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", offline)
        with pytest.raises(ValueError, match=message) as caught:
            load_training_data(DataSpec("sst2"))
        assert "\n" not in str(caught.value)
        (folder / "data" / "stsa.binary.train").unlink(missing_ok=True)
        shutil.rmtree(datasets.config.DOWNLOADED_DATASETS_PATH, ignore_errors=True)


def test_a_name_that_is_quoted_in_the_address_is_found(served, monkeypatch):
    server, folder = served
    task = tasks.get("sst2")
    sha256 = dict.fromkeys(("stsa.binary.train", "stsa.binary.dev"), hashlib.sha256(b"1 fun\n").hexdigest())
    (folder / "data" / "train\u526f\u672c.txt").write_bytes(b"1 fun\n")
    quoted = PinnedFiles(f"{server.url}/data", sha256, {"stsa.binary.train": "train%E5%89%AF%E6%9C%AC.txt"})
    monkeypatch.setattr(tasks, "get", lambda name: dataclasses.replace(task, pinned=quoted))
    assert [e.texts for e in load_training_data(DataSpec("sst2")).train] == [("fun",)]
    assert server.asked[0] == "/data/train%E5%89%AF%E6%9C%AC.txt"


@pytest.mark.parametrize("name", ["sst2", "sst2_subtrees"])
def test_the_pinned_files_are_the_original_ones(name):
    task = tasks.get(name)
    folder = SHARED / task.folder
    if not folder.is_dir():
        pytest.skip("needs ../shared/data")
    assert task.pinned is not None
    for file, sha256 in task.pinned.sha256.items():
        assert hashlib.sha256((folder / file).read_bytes()).hexdigest() == sha256, file
