"""Yahoo's topics: all ten or some, from the files of the release and of the sample, in their formats."""

from __future__ import annotations

import csv
from itertools import permutations
from pathlib import Path

import pytest

from meltpoint import tasks
from meltpoint.sweeps.command_line.option_values import split_at_commas
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.tasks.core.locked import open_test
from meltpoint.tasks.core.sources import check
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec
from meltpoint.tasks.yahoo import CLASSES

ROWS = 556  # four times 139: four rows of dev


def write(path: Path, rows: list[list[str]]) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)


def row(place: int) -> list[str]:
    return [str(place % 10 + 1), f'why "{place}"?', "" if place % 3 else "more\\nof it", f"because, {place}"]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    write(tmp_path / "yahoo" / "train.csv", [row(place) for place in range(ROWS)])
    write(tmp_path / "yahoo" / "test.csv", [row(place) for place in range(20)])
    return tmp_path


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    names = ["society_culture"] * 30 + ["science_mathematics"] * 30
    write(tmp_path / "yahoo" / "sample_2class_train.csv", [[f"text {n}\\nend", name] for n, name in enumerate(names)])
    write(tmp_path / "yahoo" / "sample_2class_test.csv", [["one  two", names[0]], ["three", names[-1]]])
    return tmp_path


def test_the_classes_are_the_releases_in_its_order(shared):
    lines = (shared / "data" / "yahoo" / "classes.txt").read_text(encoding="utf-8").split("\n")[:10]
    assert [line.lower().replace(" & ", "_") for line in lines] == list(CLASSES) == list(tasks.get("yahoo").labels)


def test_all_ten_classes_are_read_by_their_index_with_every_139th_row_as_dev(release):
    spec = DataSpec("yahoo", str(release))
    data, opened = load_training_data(spec), open_test(spec)
    assert [e.id for e in data.dev] == ["138", "277", "416", "555"]
    assert [e.id for e in data.train] == [str(n) for n in range(ROWS) if n % 139 != 138]
    assert all(e.label == int(e.id) % 10 for e in [*data.train, *data.dev, *opened.examples])
    assert data.notes == ("dev = every 139th row of train.csv",)
    assert (check(spec), len(opened.examples), opened.labelled) == ("labelled", 20, True)


def test_a_text_is_title_content_and_answer_with_its_line_breaks_and_no_gap_where_one_is_empty(release):
    train = load_training_data(DataSpec("yahoo", str(release))).train
    assert train[0].texts == ('why "0"? more\nof it because, 0',)
    assert train[1].texts == ('why "1"? because, 1',)


def test_some_classes_are_those_rows_alone_with_ids_of_their_own_order(release):
    spec = DataSpec("yahoo:politics_government+sports", str(release))
    data, opened = load_training_data(spec), open_test(spec)
    assert data.task.labels == ("sports", "politics_government")
    whole = load_training_data(DataSpec("yahoo", str(release)))
    for few, every in ((data.train, whole.train), (data.dev, whole.dev)):
        wanted = [(e.id, e.texts, CLASSES[e.label]) for e in every if e.label in (5, 9)]
        assert [(e.id, e.texts, data.task.labels[e.label]) for e in few] == wanted
        assert few
    assert [e.id for e in opened.examples] == ["5", "9", "15", "19"]
    assert data.fingerprint != whole.fingerprint


@pytest.mark.parametrize("run", [1, 556])
def test_each_class_has_its_share_of_dev_in_a_sorted_file_and_in_one_that_takes_classes_in_turn(run, tmp_path):
    rows = [[str(place // run % 10 + 1), "title", "content", "answer"] for place in range(5560)]
    write(tmp_path / "yahoo" / "train.csv", rows)
    write(tmp_path / "yahoo" / "test.csv", rows[:10])
    dev = load_training_data(DataSpec("yahoo", str(tmp_path))).dev
    assert [sum(e.label == label for e in dev) for label in range(10)] == [4] * 10


def test_the_order_of_the_words_does_not_matter_and_all_ten_are_the_whole_task():
    names = {tasks.get(f"yahoo:{'+'.join(three)}").name for three in permutations(("sports", "health", CLASSES[0]))}
    assert names == {"yahoo:society_culture+health+sports"}
    assert tasks.get(f"yahoo:{'+'.join(reversed(CLASSES))}").name == "yahoo"


def test_the_name_of_a_variant_is_a_word_of_the_command_line_and_fit_for_a_file_name():
    name = tasks.get("yahoo:sports+health").name
    assert tasks.get(name).name == name
    assert split_at_commas([f"sst2,{name}"]) == ("sst2", name)
    assert cell_name("minilm", "fine_tuning", name) == "minilm.fine_tuning.yahoo_health_sports"


@pytest.mark.parametrize(
    ("word", "part"),
    [
        ("yahoo:sport+health", r"^Unknown class of yahoo 'sport'\. Did you mean sports\? There is: business_finance, "),
        ("yahoo:sports,health", r"^Unknown class of yahoo 'sports,health'"),
        ("yahoo:sports+", r"^Unknown class of yahoo ''"),
        ("yahoo:", r"^Unknown class of yahoo ''"),
        ("yahoo:sports", r"^yahoo:sports is one class; name two or more"),
        ("yahoo:sports+health+sports", r"names a class twice; name each once\.$"),
    ],
)
def test_wrong_words_are_refused_in_one_line(word, part):
    with pytest.raises(ValueError, match=part) as caught:
        check(DataSpec(word))
    assert "\n" not in str(caught.value)


def test_the_sample_is_read_where_only_it_is_there_with_every_11th_row_as_dev(sample):
    spec = DataSpec("yahoo:society_culture+science_mathematics", str(sample))
    data, opened = load_training_data(spec), open_test(spec)
    assert [e.id for e in data.dev] == ["10", "21", "32", "43", "54"]
    assert [e.label for e in data.dev] == [0, 0, 1, 1, 1]
    assert len(data.train) == 55
    assert data.train[0].texts == ("text 0\nend",)
    assert data.notes == ("dev = every 11th row of sample_2class_train.csv",)
    assert [(e.texts[0], e.label) for e in opened.examples] == [("one  two", 0), ("three", 1)]


def test_a_class_that_the_sample_lacks_is_named_with_the_way_out(sample):
    with pytest.raises(ValueError, match=r"has no example of sports\. Ask for .*\(yahoo:society_culture\+science"):
        load_training_data(DataSpec("yahoo:society_culture+sports", str(sample)))


@pytest.mark.parametrize(
    ("bad", "part"),
    [
        (["11", "a", "b", "c"], r"line 557, field 1 \(class\): Unknown label '11'"),
        (["0", "a", "b", "c"], r"line 557, field 1 \(class\): Unknown label '0'"),
        (["1", "", " ", ""], r"line 557, field 2 \(title\): title, content and answer are empty"),
        (["1", "a", "b"], "line 557: 3 fields, not 4"),
    ],
)
def test_a_broken_row_of_the_release_is_named(release, bad, part):
    write(release / "yahoo" / "train.csv", [*(row(place) for place in range(ROWS)), bad])
    with pytest.raises(ValueError, match=part):
        load_training_data(DataSpec("yahoo", str(release)))


def test_a_missing_test_file_stops_before_anything_is_read(release):
    (release / "yahoo" / "test.csv").unlink()
    with pytest.raises(ValueError, match=r"test\.csv is missing; yahoo:health\+sports needs it"):
        check(DataSpec("yahoo:sports+health", str(release)))
