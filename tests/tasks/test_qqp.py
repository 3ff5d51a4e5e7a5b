"""Quora's question pairs: GLUE's three files and the sample's file, in their published formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from meltpoint.tasks.core.locked import open_test, write_glue_submission
from meltpoint.tasks.core.scoring import score
from meltpoint.tasks.core.sources import check
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec

HEADER = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
TRAIN = [
    "133273\t213221\t213222\tHow does \"it\" work?\tHow do I do it?\t1",
    "402555\t536040\t536041\t\"Was he a real figure?\n\"\tWhat is the evidence? \t0",  # GLUE has such line breaks
    "201841\t303951\t174364\tHow can I create an Android app?\t\t0",
    "360472\t364011\t490273\tWhat can one do after MBBS?\tWhat do I do after my MBBS ?\t1",
]  # fmt: skip
DEV = ["201359\t303345\t303346\tWhy are African-Americans so beautiful?\tWhy are hispanics so beautiful?\t0"]
TEST = ["0\tWould the idea of Trump be good?\tDo you think it works?", "1\tWhat are the top ten?\tWhat is it?"]

SAMPLE = [
    "1\tWhy?\tWhy so?\t18", "0\tHow do I \"read\"?\tWhat is a book\t211", "1\tmarked as \u2018this?\tHow?\t129",
    "0\tWho is he?\tWho was she?\t30",
]  # fmt: skip


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    folder = tmp_path / "qqp"
    folder.mkdir()
    for name, rows in (("train", [HEADER, *TRAIN]), ("dev", [HEADER, *DEV])):
        (folder / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    (folder / "test.tsv").write_text("\n".join(["id\tquestion1\tquestion2", *TEST]) + "\n")
    return tmp_path


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    (tmp_path / "qqp").mkdir()
    data = "\n".join(SAMPLE).encode() + b"\n1\tcosts \xe2\x82500?\tHow much?\t528\n"
    (tmp_path / "qqp" / "sample.tsv").write_bytes(data)
    return tmp_path


def test_glues_rows_are_read_with_line_breaks_mended_and_empty_questions_left_out(glue):
    data = load_training_data(DataSpec("qqp", str(glue)))
    assert [(e.id, e.label) for e in data.train] == [("133273", 1), ("402555", 0), ("360472", 1)]
    assert data.train[0].texts == ('How does "it" work?', "How do I do it?")
    assert data.train[1].texts == ('"Was he a real figure?\n"', "What is the evidence?")
    assert [e.id for e in data.dev] == ["201359"]
    assert data.notes == ("test labels hidden",)


def test_glues_test_is_hidden_and_predictions_on_it_become_the_servers_file(glue, tmp_path):
    spec = DataSpec("qqp", str(glue))
    assert check(spec) == "hidden"
    opened = open_test(spec)
    assert not opened.labelled
    task = load_training_data(spec).task
    path = write_glue_submission(task, [1, 0], [e.id for e in opened.examples], tmp_path)
    assert (path.name, path.read_text(encoding="utf-8")) == ("QQP.tsv", "index\tprediction\n0\t1\n1\t0\n")


def test_f1_of_duplicates_stands_beside_accuracy(glue):
    task = load_training_data(DataSpec("qqp", str(glue))).task
    # Three predicted duplicates, of which two are right, and two gold ones: precision 2/3, recall 1.
    assert score(task, [1, 0, 1, 0], [1, 1, 1, 0]) == {"accuracy": 0.75, "f1": pytest.approx(0.8)}


def test_the_sample_is_split_by_the_last_digit_of_the_id_and_its_test_has_labels(sample):
    spec = DataSpec("qqp", str(sample))
    data, opened = load_training_data(spec), open_test(spec)
    assert [e.id for e in data.train] == ["211", "30"]
    assert [e.id for e in data.dev] == ["18", "528"]
    assert [(e.id, e.label) for e in opened.examples] == [("129", 1)]
    assert (check(spec), opened.labelled, opened.notes) == ("labelled", True, ())
    assert data.notes == ("sample.tsv, not GLUE's split: dev is the pairs whose id ends in 8, test those in 9",)


def test_a_character_that_lost_a_byte_is_marked_in_the_sample(sample):
    dev = load_training_data(DataSpec("qqp", str(sample))).dev
    assert dev[1].texts == ("costs \ufffd500?", "How much?")


def test_glues_files_are_read_where_both_lie_there(glue):
    (glue / "qqp" / "sample.tsv").write_text("\n".join(SAMPLE), encoding="utf-8")
    assert len(load_training_data(DataSpec("qqp", str(glue))).dev) == 1
    assert check(DataSpec("qqp", str(glue))) == "hidden"


def test_a_folder_without_either_asks_for_glues_file(tmp_path):
    (tmp_path / "qqp").mkdir()
    with pytest.raises(ValueError, match=r"train\.tsv is missing; qqp needs it"):
        check(DataSpec("qqp", str(tmp_path)))


@pytest.mark.parametrize(
    ("file", "row", "part"),
    [
        ("sample.tsv", "2\ta?\tb?\t5", r"line 6, field 1 \(label\): Unknown label '2'"),
        ("sample.tsv", "1\ta?\tb?\tx5", r"line 6, field 4 \(id\): 'x5' is not a number"),
        ("sample.tsv", "1\t \tb?\t50", r"line 6, field 2 \(question1\): the text is empty"),
        ("sample.tsv", "1\ta?\tb?", "line 6: 3 fields, not 4"),
    ],
)
def test_a_broken_row_of_the_sample_is_named(sample, file, row, part):
    path = sample / "qqp" / file
    path.write_bytes(path.read_bytes() + row.encode() + b"\n")
    with pytest.raises(ValueError, match=part):
        load_training_data(DataSpec("qqp", str(sample)))


@pytest.mark.parametrize(
    ("row", "part"),
    [
        ("7\t1\t2\ta?\tb?\tyes", r"line 7, field 6 \(is_duplicate\): Unknown label 'yes'"),
        ("7\t1\t2\ta?\tb?", "line 7: 5 fields, not 6"),
        ("7\t1\t2\ta?\n8\t1\t2\ta?\tb?\t0", "line 8: 9 fields, not 6"),
    ],
)
def test_a_broken_row_of_glues_file_is_named(glue, row, part):
    path = glue / "qqp" / "train.tsv"
    path.write_text(path.read_text(encoding="utf-8") + row + "\n")
    with pytest.raises(ValueError, match=part):
        load_training_data(DataSpec("qqp", str(glue)))
