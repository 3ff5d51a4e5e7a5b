"""Task files of users: every format and kind, and a one-line error for every mistake."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from meltpoint import tasks
from meltpoint.tasks.core.locked import open_test
from meltpoint.tasks.core.sources import check
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec
from meltpoint.tasks.core.user_layout import Columns
from meltpoint.tasks.core.user_task import Hub, HubSplits, Splits, UserTask

SENTENCES = """\
name: reviews
kind: sentence_classification
files: {train: train.tsv, dev: dev.tsv}
format: tsv
columns: {text: review, label: verdict}
labels: [no, yes]
"""


def task_file(folder, text, **files):
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content, encoding="utf-8")
    path = folder / "task.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def load(folder, text, **files):
    return load_training_data(DataSpec(task_file(folder, text, **files)))


def problem(folder, text, **files):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (every test below matches the text itself)
        load(folder, text, **files)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_files_lie_beside_the_task_file_and_tsv_is_quoted_only_where_it_is_said(tmp_path):
    path = task_file(tmp_path, SENTENCES, **GOOD)
    assert load_training_data(DataSpec(path, data_dir="/nowhere")).train
    files = {"train__tsv": 'review\tverdict\n"a\tyes\n', "dev__tsv": 'review\tverdict\n"b"\tno\n'}
    data = load(tmp_path, SENTENCES, **files)
    assert (data.train[0].texts, data.dev[0].texts) == (('"a',), ('"b"',))
    assert "line 2: broken row" in problem(tmp_path, SENTENCES + "quoting: true\n", **files)


GOOD = {"train__tsv": "id\treview\tverdict\n1\tfine\tyes\n2\tpoor\tno\n", "dev__tsv": "verdict\treview\nno\tbad\n"}


PAIRS = """\
name: answers
kind: pair_classification
metric: f1
files: {train: train.jsonl, dev: dev.jsonl, test: test.jsonl}
format: jsonl
columns: {text_a: q, text_b: a, label: ok}
labels: ["false", "true"]
"""


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_further_test_files_are_opened_with_test_and_read_like_it(tmp_path):
    rows = lines({"q": "who?", "a": "me", "ok": True}, {"q": "why?", "a": 7, "ok": False})
    other = lines({"q": "where?", "a": "here", "ok": True})
    path = task_file(
        tmp_path, PAIRS + "also_test: {far: far.jsonl}\n", train__jsonl=rows, dev__jsonl=rows, test__jsonl=rows
    )
    with pytest.raises(ValueError, match=r"far\.jsonl is missing; answers needs it"):
        check(DataSpec(path))
    without = open_test(DataSpec(task_file(tmp_path, PAIRS))).fingerprint
    task_file(tmp_path, PAIRS + "also_test: {far: far.jsonl}\n", far__jsonl=other)
    assert check(DataSpec(path)) == "labelled"
    test = open_test(DataSpec(path))
    assert [(e.texts, e.label) for e in test.also["far"]] == [(("where?", "here"), 1)]
    assert len(test.examples) == 2
    assert test.fingerprint != without
    assert not load_training_data(DataSpec(path)).task.readers.keys() - {"train", "dev", "test"}


def test_further_test_files_need_a_test_and_files(tmp_path):
    without = PAIRS.replace(", test: test.jsonl", "")
    assert "also_test: name a test split too" in problem(tmp_path, without + "also_test: {far: far.jsonl}\n")
    assert "also_test" in problem(tmp_path, PAIRS + "also_test: {Far: far.jsonl}\n")
    assert "write a name and a file for each" in problem(tmp_path, PAIRS + "also_test: far.jsonl\n")


SCORES = """\
name: closeness
kind: pair_regression
files: {train: train.parquet, dev: train.parquet}
format: parquet
columns: {text_a: left, text_b: right, label: score}
range: [0, 1]
"""


TAGS = """\
name: genes
kind: sequence_labelling
files: {train: train.conll, dev: train.conll}
format: conll
labels: [O, B-GENE, I-GENE]
tag_scheme: iob1
"""


def test_tagged_words_as_json_lists(tmp_path):
    text = TAGS.replace("conll", "jsonl") + "columns: {words: tokens, tags: marks}\n"
    row = {"tokens": ["p53", "binds"], "marks": ["I-GENE", "O"]}
    assert load(tmp_path, text, train__jsonl=lines(row)).train[0].label == (1, 0)
    short = {**row, "marks": ["O"]}
    assert "line 2: 2 words but 1 tag" in problem(tmp_path, text, train__jsonl=lines(row, short))
    wrong = {**row, "marks": ["O", "GENE"]}
    assert "line 1, field 2 (tags): Unknown label 'GENE'" in problem(tmp_path, text, train__jsonl=lines(wrong))
    empty = {"tokens": [], "marks": []}
    assert "not a list of words" in problem(tmp_path, text, train__jsonl=lines(empty))


PARTS = {"files": Splits, "columns": Columns, "splits": Splits, "hub": Hub, "hub.splits": HubSplits}
KEYS = (*UserTask.model_fields, *(f"{place}.{key}" for place, model in PARTS.items() for key in model.model_fields))
NEEDED = {"splits": {"train": "a", "dev": "b"}, "hub": {"id": "a/b", "revision": "0" * 40}}
"""What a part of a task file must have beside the value that is tried."""
LISTS = {
    "labels", "skip_labels", *(f"{place}.{split}" for place in ("files", "splits") for split in Splits.model_fields),
    *(f"columns.{text}" for text in ("text", "text_a", "text_b")),
}  # fmt: skip
"""The keys that a list of texts is right for."""


@pytest.mark.parametrize("wrong", ["oddity", "", [], ["a", "b"], [["a"]], {"a": "b"}], ids=repr)
@pytest.mark.parametrize("key", KEYS)
def test_a_value_of_a_wrong_type_is_answered_with_what_to_write_and_never_in_pydantics_words(tmp_path, key, wrong):
    document = yaml.load(SENTENCES, Loader=yaml.BaseLoader)
    *outer, inner = key.split(".")
    place = document
    for part in outer:
        place = place.setdefault(part, {**NEEDED.get(part, {})})
    place[inner] = wrong
    path = task_file(tmp_path, yaml.dump(document))
    try:
        tasks.get(path)
    except ValueError as error:
        message = str(error)
        assert message.startswith(path)
        assert inner in message or any(key.split(".")[0] in message for _ in outer), message
        assert "\n" not in message
        assert not re.search(r"Input should|\bvalid\b|pydantic|tuple|dict\b|instance", message), message
    else:
        assert isinstance(wrong, str) or (key in LISTS and wrong == ["a", "b"]), "only texts take any text"


@pytest.mark.parametrize(
    ("text", "format", "header", "wanted"),
    [
        ("review;verdict\nfine, really;yes\n", "csv", True,
         ("line 1: 1 field", "separated by semicolons, but is read as separated by commas. Set delimiter: \";\".")),
        ("review,verdict\nfine,yes\n", "tsv", True, ("separated by commas", "Set format: csv.")),
        ("review\tverdict\nfine\tyes\n", "csv", True, ("separated by tabs", "Set format: tsv.")),
        ("fine;yes\n", "csv", False, ("line 1: 1 field", "separated by semicolons")),
        ("review\tverdict\nfine;yes\n", "tsv", True, ("line 2: 1 field, not 2", "separated by semicolons")),
        ("review\tverdict\na\tb; c\tyes\n", "tsv", True, ("line 2: 3 fields, not 2. Repair or remove the row.",)),
    ],
)  # fmt: skip
def test_a_table_with_another_separator_is_answered_with_the_one_it_seems_to_have(
    tmp_path, text, format, header, wanted
):
    task = SENTENCES.replace("format: tsv", f"format: {format}")
    if not header:
        task = task.replace("text: review, label: verdict", "text: 0, label: 1") + "header: false\n"
    message = problem(tmp_path, task, train__tsv=text, dev__tsv=text)
    for part in (*wanted, "train.tsv"):
        assert part in message


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (TAGS.replace("[O, B-GENE, I-GENE]", "[O, GENE]"), "'GENE' is not an IOB2 name"),
        (TAGS.replace("[O, B-GENE, I-GENE]", "[O, I-GENE]"), "I-GENE also needs B-GENE"),
        *((SCORES.replace(*change), "range: a pair_regression task takes range: [lowest, highest]")
          for change in (("range: [0, 1]", "labels: [a, b]"), ("[0, 1]", "[1, 0]"))),
    ],
)  # fmt: skip
def test_labels_of_sequences_are_iob2_names_and_regression_takes_a_range(tmp_path, text, wanted):
    assert wanted in problem(tmp_path, text)


def test_a_missing_task_file_and_a_text_that_is_no_mapping(tmp_path):
    with pytest.raises(ValueError, match=r"none\.yaml is missing"):
        tasks.get(str(tmp_path / "none.yaml"))
    assert "is not a mapping of keys to values" in problem(tmp_path, "- a\n- b\n")
    twice = ("format: tsv\n", "format: tsv\nformat: csv\n"), ("text: review", "text: review, text: verdict")
    for old, new in (("[no, yes]", "[no, yes"), *twice):
        message = problem(tmp_path, SENTENCES.replace(old, new), **GOOD)
        assert "is not YAML" in message
        assert ("is given twice" in message) == (old != "[no, yes]")


def test_broken_json_names_its_line(tmp_path):
    row = lines({"q": "a", "a": "b", "ok": True})
    assert "line 2: not JSON" in problem(tmp_path, PAIRS, train__jsonl=row + "{\n", dev__jsonl=row, test__jsonl=row)
    missing = lines({"q": "a", "ok": True})
    assert "line 1: there is no column 'a'. The columns are: q, ok." in problem(tmp_path, PAIRS, train__jsonl=missing)
    null = lines({"q": "a", "a": None, "ok": True})
    assert "line 1, field 'a': None is neither text nor a number" in problem(tmp_path, PAIRS, train__jsonl=null)


def test_a_task_without_a_test_asks_for_a_slice(tmp_path):
    path = task_file(tmp_path, SENTENCES, **GOOD)
    assert check(DataSpec(path)) == "absent"
    with pytest.raises(ValueError, match="--test-from"):
        open_test(DataSpec(path))
    assert len(open_test(DataSpec(path, test_from="train[:1]")).examples) == 1


def test_tasks_files_are_what_the_documentation_shows(tmp_path, checkout):
    text = (checkout / "docs" / "tasks.md").read_text(encoding="utf-8")
    shown = [block.split("```")[0] for block in text.split("```yaml\n")[1:]]
    kinds = set()
    for position, block in enumerate(shown):
        path = tmp_path / f"{position}.yaml"
        path.write_text(block, encoding="utf-8")
        kinds.add(tasks.get(str(path)).kind)
    assert len(shown) >= 4
    assert len(kinds) == 5
