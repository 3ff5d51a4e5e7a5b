"""Public data sets are read by a task file alone; `new-task` writes one that loads as it is."""

from __future__ import annotations

import filecmp
import re
from collections import Counter
from pathlib import Path

import pandas
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from meltpoint.launch import app
from meltpoint.tasks.core.files import schema_line
from meltpoint.tasks.core.locked import open_test
from meltpoint.tasks.core.sources import check
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec
from meltpoint.tasks.inspection.new_task import as_read, keep, new_task, split_sizes, tuned_draft
from meltpoint.tasks.inspection.roles import GUESS, Asked
from meltpoint.tasks.inspection.splits import split_word
from meltpoint.tasks.inspection.text_shape import encoding_of, table_shape
from meltpoint.tests.tasks.layouts import LAYOUTS


def shown(task, examples):
    """The examples as a layout states them: texts or words, with the label's name, the score, or the tags."""
    return [(example.texts or example.words, in_words(task, example.label)) for example in examples]


def in_words(task, label):
    if task.of_kind.has_labels:
        return tuple(name for name, has in zip(task.labels, label, strict=True) if has)
    if isinstance(label, tuple):
        return tuple(task.labels[tag] for tag in label)
    return task.labels[label] if task.labels else label


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_task_file_alone_reads_a_data_set_as_it_is_published(name, tmp_path):
    layout = LAYOUTS[name]
    spec = DataSpec(layout.write(tmp_path))
    has_test = "test:" in layout.yaml
    assert check(spec) == ("labelled" if has_test else "absent")
    data = load_training_data(spec)
    assert data.notes == layout.notes
    train, dev = shown(data.task, data.train), shown(data.task, data.dev)
    if layout.dev is not None:
        assert (train, dev) == (layout.train, layout.dev)
    else:
        assert Counter(map(str, train + dev)) == Counter(map(str, layout.train))
        assert len({label for _, label in dev}) == 2, "stratified: each class is in dev"
    assert data.train[0].id != data.train[-1].id
    if has_test:
        opened = open_test(spec)
        assert opened.labelled
        assert not {example.texts for example in opened.examples} & {example.texts for example in data.train}


@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if layout.asked])
def test_the_task_file_that_is_written_loads_as_it_is(name, tmp_path, monkeypatch):
    layout = LAYOUTS[name]
    layout.write(tmp_path)
    (tmp_path / "task.yaml").unlink()
    monkeypatch.chdir(tmp_path)
    made = new_task(layout.asked, Path("mine.yaml"))
    document = yaml.load(Path("mine.yaml").read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    assert {key: document.get(key) for key in layout.guessed} == layout.guessed
    data = load_training_data(DataSpec("mine.yaml"))
    assert data.train
    assert data.dev
    if "test" in str(document.get("files", document.get("splits"))):
        assert open_test(DataSpec("mine.yaml")).examples
    Path("mine.yaml").unlink()
    assert new_task(layout.asked, Path("mine.yaml")) == made, "the same files give the same text"


def rows(count, label=lambda number: "ab"[number % 2]):
    return "".join(f"{number}\tthe meal number {number} was fine\t{label(number)}\n" for number in range(count))


def written(tmp_path, **files):
    paths = []
    for name, text in files.items():
        path = tmp_path / name.replace("__", ".")
        path.write_text(text, encoding="utf-8")
        paths.append(str(path))
    return new_task(paths, tmp_path / "out.yaml")


HEADER = "id\ttext\tlabel\n"


def test_examples_are_counted_and_labels_but_those_of_test(tmp_path):
    rare = HEADER + rows(12) + "98\tgone cold again\tc\n"
    text = written(tmp_path, train__tsv=rare, dev__tsv=HEADER + rows(4), test__tsv=HEADER + rows(5))
    assert "# train: 13 examples\n# train, labels: 'a' 6 (46 %), 'b' 6 (46 %), 'c' 1 (8 %)\n" in text
    assert "# test: 5 examples\n" in text
    assert "test, labels" not in text


def test_test_files_without_labels_are_left_out_and_said(tmp_path):
    text = written(tmp_path, train__tsv=HEADER + rows(40), test__tsv="index\ttext\n1\tan unknown meal\n")
    assert "files: {train: train.tsv}\n" in text
    assert re.search("# left out, .* no column 'label'. The columns are: index, text.", text)
    assert load_training_data(DataSpec(str(tmp_path / "out.yaml"))).train


def test_a_file_sorted_by_class_or_alternating_shows_all_its_classes(tmp_path):
    for label in (lambda number: "ab"[number >= 3000], lambda number: "ab"[number % 2]):
        text = written(tmp_path, train__tsv=rows(6000, label))
        (tmp_path / "out.yaml").unlink()
        assert "columns: {text: '1', label: '2'}\nlabels: [a, b]\n" in text


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"dev.tsv": "a\tb\n"}, "None of dev.tsv is the training split"),
        ({"train.csv": ""}, "train.csv is empty"),
        ({"train.json": '[{"a": 1}]'}, "train.json is one JSON list. Write one object per line"),
        ({"train.jsonl": '{"a": "x"}\n{"a"\n'}, "train.jsonl, line 2: not JSON"),
        ({"train.jsonl": '{"a": 1}\n{"a": 2}\n'}, "train.jsonl (jsonl): no column of texts among a."),
        ({"train.txt": "one text here\nand another\n"}, "train.txt is not a table, JSON lines or tagged words."),
        ({"train.tsv": HEADER + rows(12) + "a cell\n"}, "train.tsv, line 14: 1 field, not 3"),
        ({"none.csv": None}, "none.csv is missing. Name a file"), ({".": None}, "is a folder. Name a file"),
    ],
)  # fmt: skip
def test_what_cannot_be_guessed_is_one_line_that_names_the_file(tmp_path, files, wanted):
    for name, text in files.items():
        if text is not None:
            (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r".") as caught:
        new_task([str(tmp_path / name) for name in files])
    assert wanted in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_command_prints_writes_and_refuses_to_overwrite(tmp_path):
    (tmp_path / "train.tsv").write_text(HEADER + rows(40), encoding="utf-8")
    asked = ["new-task", str(tmp_path / "train.tsv")]
    printed = CliRunner().invoke(app, asked)
    assert printed.exit_code == 0
    assert "columns: {text: text, label: label}\n" in printed.stdout
    out = tmp_path / "mine.yaml"
    done = CliRunner().invoke(app, [*asked, "--out", str(out)])
    assert done.exit_code == 0
    assert f"meltpoint plan --task {out}" in done.stderr.replace("\n", "")
    before = out.read_text(encoding="utf-8")
    again = CliRunner().invoke(app, [*asked, "--out", str(out)])
    assert again.exit_code == 2
    assert again.stderr.startswith(f"meltpoint: {out} already exists. Name another file with --out")
    assert out.read_text(encoding="utf-8") == before


@given(st.lists(st.tuples(st.text("ab, ;\"'é\n\t", min_size=1), st.sampled_from("xy")), min_size=4, max_size=9))
def test_a_quoted_table_is_read_back_whatever_its_cells_hold(cells):
    import csv
    import io

    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows([("text", "label"), *cells])
    shape = table_shape(out.getvalue())
    assert shape is not None
    assert (shape.delimiter, shape.is_quoted, shape.has_header, shape.names) == (",", True, True, ("text", "label"))
    assert list(shape.rows) == cells


@pytest.mark.parametrize(
    ("out", "name"),
    [("reviews.yaml", "reviews"), ("My Reviews.yaml", "my_reviews"), ("task.yaml", "shop"), ("sst2.yaml", "my_sst2")],
)
def test_a_task_has_the_name_of_its_file_or_else_of_the_folder(out, name, tmp_path):
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "train.csv").write_text("text,label\na good meal,good\na bad meal,bad\n" * 9, encoding="utf-8")
    assert f"\nname: {name}\n" in new_task([str(folder / "train.csv")], folder / out)


# --- `tune`: nobody looks at the draft ---


def table(folder, count, name="train.csv", head="question,topic,id"):
    path = folder / name
    lines = [f"how does the thing number {n} work,{'ab'[n % 2]},{n}" for n in range(count)]
    path.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [
        (300, {"test": 75, "dev": 100}),
        (120, {"test": 30, "dev": 45}),
        (1000, {"test": 100, "dev": 100}),
        (5000, {"test": 500, "dev": 450}),
    ],
)
def test_of_one_file_dev_and_test_are_large_enough_to_choose_and_to_compare_by(tmp_path, rows, sizes):
    draft = tuned_draft({"train": table(tmp_path, rows)}, "", GUESS)
    place = keep(draft, {"train": tmp_path / "train.csv"}, tmp_path / "kept", "task.yaml", "data", ["train.csv"])
    data, test = load_training_data(DataSpec(str(place))), open_test(DataSpec(str(place)))
    assert {"test": len(test.examples), "dev": len(data.dev)} == sizes
    assert len(data.train) == rows - sum(sizes.values())
    said = split_sizes(draft)
    assert said.startswith(f"train {len(data.train):,}; dev {sizes['dev']} drawn".replace(",", " "))


def test_a_dev_and_a_test_file_are_taken_as_they_are_whatever_they_are_called(tmp_path):
    files = {"train": table(tmp_path, 60, "a_test.csv"), "dev": table(tmp_path, 20, "b.csv"),
             "test": table(tmp_path, 30, "c_dev.csv")}  # fmt: skip
    assert split_sizes(tuned_draft(files, "", GUESS)) == "train 60; dev 20; test 30, locked until the finals"


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.csv", "train"), ("snli_1.0_dev.jsonl", "dev"), ("20news-bydate-test", "test"), ("valid.tsv", "dev"),
        ("avis.csv", None), ("train-00000-of-00001.parquet", "train"), ("latest.csv", None), ("train_test.csv", None),
    ],
)  # fmt: skip
def test_the_split_that_a_name_says_and_the_encoding_of_bytes(name, split):
    assert split_word(name) == split
    encodings = {
        b"a": "utf-8",
        "é".encode(): "utf-8",
        b"\xe9": "cp1252",
        b"\x81": "latin-1",
        "é".encode("utf-16"): "utf-16",
    }
    assert {data: encoding_of(data) for data in encodings} == encodings


@pytest.mark.parametrize(
    ("asked", "columns", "kind"),
    [
        (Asked(("id",), "topic"), {"text": "id", "label": "topic"}, "sentence_classification"),
        (Asked(("question",)), {"text": "question", "label": "topic"}, "sentence_classification"),
        (Asked(("question", "id"), "topic"), {"text_a": "question", "text_b": "id", "label": "topic"},
         "pair_classification"),
        (Asked((), "id", "sentence_regression"), {"text": "question", "label": "id"}, "sentence_regression"),
    ],
)  # fmt: skip
def test_columns_and_kind_that_are_asked_for_are_taken(tmp_path, asked, columns, kind):
    keys = tuned_draft({"train": table(tmp_path, 60)}, "", asked).keys
    assert (keys["columns"], keys["kind"]) == (columns, kind)


TOKENS = {"tokens": ["a", "meal"], "pos": ["DET", "NOUN"]}
MARKS = {"angry": 0, "sad": 1, "calm": 1}


@pytest.mark.parametrize(
    ("more", "asked", "kind", "label"),
    [
        (TOKENS, GUESS, "word_tagging", None),
        (TOKENS, Asked(label="mood"), "sentence_classification", "mood"),
        (TOKENS, Asked(kind="sentence_classification"), "sentence_classification", "mood"),
        (MARKS, Asked(kind="sentence_classification"), "sentence_classification", "mood"),
        ({"topics": ["x"], "moods": ["p", "q"]}, Asked(label="moods"), "multi_label_classification", "moods"),
    ],
)
def test_a_column_or_kind_that_is_asked_for_goes_before_lists_and_marks(tmp_path, more, asked, kind, label):
    rows = [{"text": f"the meal number {n} was fine", "mood": "ab"[n % 2], **more} for n in range(60)]
    for n, row in enumerate(rows):
        row.update({name: 1 - value for name, value in MARKS.items() if n % 2} if more is MARKS else {})
    pandas.DataFrame(rows).to_json(tmp_path / "train.jsonl", orient="records", lines=True)
    keys = tuned_draft({"train": tmp_path / "train.jsonl"}, "", asked).keys
    assert (keys["kind"], keys["columns"].get("label")) == (kind, label)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (Asked(kind="pair_classification"), "takes text_a, text_b, label, but only text, label were found"),
        (Asked(kind="sequence_labelling"), "takes words, tags, but only text, label were found"),
        (Asked(texts=("marks",)), "the column 'marks' holds lists"),
        (Asked(label="marks", kind="sentence_classification"), "the column 'marks' holds lists"),
    ],
)
def test_a_kind_that_the_columns_do_not_fit_is_refused(tmp_path, asked, message):
    rows = [{"text": f"meal {n} was fine", "label": "ab"[n % 2], "marks": ["x", "y"][: n % 3]} for n in range(60)]
    pandas.DataFrame(rows).to_json(tmp_path / "train.jsonl", orient="records", lines=True)
    with pytest.raises(ValueError, match=message):
        tuned_draft({"train": tmp_path / "train.jsonl"}, "", asked)


def test_a_column_of_splits_without_train_is_refused(tmp_path):
    rows = [{"text": f"meal {n} was fine", "label": "ab"[n % 2], "split": "dev"} for n in range(60)]
    pandas.DataFrame(rows).to_csv(tmp_path / "all.csv", index=False)
    with pytest.raises(ValueError, match="no row of the column 'split' has the value train"):
        tuned_draft({"train": tmp_path / "all.csv"}, "", GUESS)


def test_sizes_count_only_rows_that_are_read_and_none_is_a_class(tmp_path):
    stances = ["FAVOR", "AGAINST", "NONE", "-"]
    rows = [{"text": "" if n == 0 else f"meal {n} was fine", "stance": stances[n % 4]} for n in range(400)]
    pandas.DataFrame(rows).to_csv(tmp_path / "train.csv", index=False)
    draft = tuned_draft({"train": tmp_path / "train.csv"}, "", Asked(label="stance"))
    assert draft.keys["labels"] == ["AGAINST", "FAVOR", "NONE"]
    assert as_read(draft).endswith("; 100 rows without a label left out; 1 empty text left out")
    sizes = split_sizes(draft)
    place = keep(draft, {"train": tmp_path / "train.csv"}, tmp_path / "kept", "task.yaml", "data", [])
    data, test = load_training_data(DataSpec(str(place))), open_test(DataSpec(str(place)))
    found = re.match(r"train (\d+); dev (\d+) drawn from train; test (\d+) ", sizes)
    assert found is not None
    assert list(map(int, found.groups())) == [len(data.train), len(data.dev), len(test.examples)]


def test_a_column_of_groups_is_not_taken_for_a_text_or_a_label_and_its_splits_are_of_whole_groups(tmp_path):
    rows = [{"author": f"the author {n // 6}", "id": n, "body": f"how does thing number {n} work", "topic": "ab"[n % 2]}
            for n in range(300)]  # fmt: skip
    pandas.DataFrame(rows).to_json(tmp_path / "train.jsonl", orient="records", lines=True)
    draft = tuned_draft({"train": tmp_path / "train.jsonl"}, "", Asked(group="author"))
    assert draft.keys["columns"] == {"text": "body", "label": "topic", "group": "author"}
    wanted = "train about 125; dev about 100 drawn from train in whole groups; test about 75 drawn from train in whole"
    assert split_sizes(draft).startswith(wanted)
    place = keep(draft, {"train": tmp_path / "train.jsonl"}, tmp_path / "kept", "task.yaml", "data", [])
    data, test = load_training_data(DataSpec(str(place))), open_test(DataSpec(str(place)))
    assert (len(data.train), len(data.dev), len(test.examples)) == (126, 102, 72)


def test_groups_of_a_column_file_are_its_documents(tmp_path):
    sentences = "-DOCSTART- O\n\n" + "Ann B-X\nran O\n\nhe O\nsang O\n\n"
    (tmp_path / "train.conll").write_text(sentences * 30, encoding="utf-8")
    draft = tuned_draft({"train": tmp_path / "train.conll"}, "", Asked(group="document"))
    assert draft.keys["columns"] == {"words": 0, "tags": -1, "group": "document"}
    with pytest.raises(ValueError, match=r"has no named columns, and its groups are its documents: --group doc"):
        tuned_draft({"train": tmp_path / "train.conll"}, "", Asked(group="author"))
    (tmp_path / "train.conll").write_text(sentences.partition("\n\n")[2] * 30, encoding="utf-8")
    with pytest.raises(ValueError, match=r"train\.conll has no -DOCSTART- and no # newdoc\. Mark its documents, or"):
        tuned_draft({"train": tmp_path / "train.conll"}, "", Asked(group="document"))


@pytest.mark.parametrize(
    ("asked", "more", "message"),
    [
        (Asked((), "topics"), "", r"Unknown column 'topics'. Did you mean topic"),
        (Asked(group="topics"), "", r"train\.csv \(csv\): Unknown column 'topics'. Did you mean topic"),
        (Asked(group="id"), "how does it work,a,\n", r"train\.csv, line 62.*the group is empty"),
        (GUESS, "one cell\n", r"line 62: 1 field, not 3"),
        (GUESS, None, r"test\.csv, line 1: there is no column 'topic'"),
    ],
)  # fmt: skip
def test_unknown_columns_broken_rows_and_a_test_without_labels_end_a_draft_with_their_place(
    tmp_path, asked, more, message
):
    files = {"train": table(tmp_path, 60)}
    with files["train"].open("a", encoding="utf-8") as file:
        file.write(more or "")
    if more is None:
        files["test"] = tmp_path / "test.csv"
        files["test"].write_text("question\nhow is it\n", encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        tuned_draft(files, "", asked)


def test_the_same_files_find_the_task_again_and_others_are_refused(tmp_path):
    files = {"train": table(tmp_path, 60)}

    def kept(*words, begun=True, path="train.csv"):
        draft = tuned_draft(files, "", GUESS)
        return keep(draft, files, tmp_path / "kept", "task.yaml", "data", [path, *words], begun)

    place = kept()
    place.write_text(place.read_text("utf-8") + "# corrected\n", encoding="utf-8")
    assert kept().read_text("utf-8").endswith("# corrected\n")
    assert kept(path="elsewhere/train.csv").read_text("utf-8").endswith("# corrected\n")  # the folder has moved
    with pytest.raises(ValueError, match="Choose another --name, or remove it: meltpoint rm kept"):
        kept("--label=id")
    table(tmp_path, 61)
    with pytest.raises(ValueError, match="Choose another --name"):
        kept()
    assert "corrected" not in kept(begun=False).read_text("utf-8")  # nothing was trained with the old file
    assert filecmp.cmp(tmp_path / "kept" / "data" / "train.csv", files["train"], shallow=False)


def test_a_written_task_names_its_schema_and_one_of_an_earlier_version_is_used_again(tmp_path):
    def kept(words):
        draft = tuned_draft({"train": table(tmp_path, 300)}, "", GUESS)
        return keep(draft, {"train": tmp_path / "train.csv"}, tmp_path / "kept", "task.yaml", "data", words, begun=True)

    place = kept(["train.csv"])
    first, _, rest = place.read_text(encoding="utf-8").partition("\n")
    assert first == schema_line("task")
    with_line = load_training_data(DataSpec(str(place))).fingerprint
    place.write_text(rest, encoding="utf-8")
    assert kept(["train.csv"]).read_text(encoding="utf-8") == rest
    assert load_training_data(DataSpec(str(place))).fingerprint == with_line
    with pytest.raises(ValueError, match="was made from other files or columns"):
        kept(["train.csv", "--label=id"])
