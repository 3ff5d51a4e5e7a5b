"""Every field that changes numbers or their meaning: another identity, a refused specification, or equal numbers.

Each table has every field of its model, so that a new field has to be put into one of three classes:

- `CHANGES`: a record from before is never an answer afterwards; the trial has another identity, or the name is refused;
- `REFUSED`: a ValueError before the first trial;
- a text: nothing of a trial changes, and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

import pytest
import yaml

from meltpoint import tasks
from meltpoint.sweeps.specification import cells as opening
from meltpoint.sweeps.specification.cells import OpenCell, open_cells
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tasks.core.locked import open_test
from meltpoint.tasks.core.task import DataSpec, Example, Task
from meltpoint.tasks.core.user_layout import Columns
from meltpoint.tasks.core.user_task import Hub, Splits, UserTask

CHANGES, REFUSED = "changes", "refused"

# --- a task ---


def examples(count: int, word: str = "fine") -> list[Example]:
    return [Example(str(n), texts=(f"the film was {word} {n}",), label=n % 2) for n in range(count)]


READERS = {
    "train": lambda folder: examples(8), "dev": lambda folder: examples(6, "dull"),
    "test": lambda folder: examples(4, "cold"),
}  # fmt: skip
TASK = Task(
    name="made", kind="sentence_classification", metric="accuracy", folder="/nowhere", readers=READERS,
    labels=("bad", "good"),
)  # fmt: skip
TASK_TABLE: dict[str, list[tuple[object, str]]] = {
    "name": [("other", CHANGES)],
    "kind": [("pair_classification", CHANGES)],
    "metric": [("macro_f1", CHANGES), ("f1", CHANGES)],
    "labels": [(("good", "bad"), CHANGES), (("bad", "good", "ugly"), CHANGES), (("Bad", "good"), CHANGES)],
    "label_range": [((0.0, 5.0), CHANGES)],
    "readers": [
        ({**READERS, "train": lambda folder: examples(9)}, CHANGES),
        ({**READERS, "dev": lambda folder: examples(6, "poor")}, CHANGES),
        ({**READERS, "test": lambda folder: examples(5)}, "no trial reads test; a scored final keeps its print"),
    ],
    "folder": [("/elsewhere", "the examples that are read there count, by their fingerprint")],
    "hub": [(tasks.get("cola").hub, "so do those that are read from the hub")],
    "pinned": [(tasks.get("sst2").pinned, "and those of original files that are downloaded")],
    "generated": [(True, "and those of a generator")],
    "files": [({"train": ()}, "names of files, looked for before the examples are read")],
    "sample": [(replace(TASK, name="part"), "read only where the task's own file is missing; its examples count then")],
    "test_labels": [("hidden", "no trial reads test; only Meltpoint's own tasks say it, and their code counts")],
    "test_examples": [(4, "said by `plan`; what is scored counts itself")],
    "description": [("another", "for people")],
    "notes": [(("a note",), "for people: what the tables say of the data")],
    "beside": [(("f1",), "shown in tables; nothing is selected by it, and every final has it")],
    "tokenised": [(True, "read for encoders that read words, in the setting (test_space_rules)")],
    "dev_from": [("train[-2:]", CHANGES)],
    "is_grouped": [(True, CHANGES)],
    "also_test": [({"far": lambda folder: examples(4)}, "no trial reads it; it is opened with test")],
    "test_from": [("train[-2:]", CHANGES)],
    "class_weights": [((1.0, 3.0), CHANGES)],
    "text_columns": [((("body",),), "read by `predict`")],
    "joiner": [("\n", "read by `predict`; the texts that are joined count, by their fingerprint")],
    "conll_columns": [((1, 2), "read by `predict`; the examples that are read there count, by their fingerprint")],
}  # fmt: skip


def test_the_table_has_every_field_of_a_task():
    assert set(TASK_TABLE) == {field.name for field in fields(Task)}


@pytest.mark.parametrize("field", TASK_TABLE)
def test_a_field_of_a_task_changes_the_identity_or_nothing(field, frozen_spec, told_apart, monkeypatch):
    spec = frozen_spec.model_copy(update={"tasks": ("made",)})

    def opened(task: Task) -> tuple[SweepSpec, list[OpenCell]]:
        for module in (opening, tasks):
            monkeypatch.setattr(module, "get", lambda word: task)
        return spec, open_cells(spec)

    before = opened(TASK)
    for value, says in TASK_TABLE[field]:
        found = told_apart(before, opened(replace(TASK, **{field: value})))
        assert ("identity" in found) if says == CHANGES else not found, (field, value, found)


# --- a task file ---

ROWS = [("a", '"the film"', "was warm", "bad", "1"), ("b", "the meal", "was dull", "good", "2")] * 4
HEADER = ("text", "other", "second", "label", "score")
WORDS = "-DOCSTART- O\n\nthe O\nLondon I-PER\n\nwas O\n\n"

BASES: dict[str, dict[str, object]] = {
    "sentence": {
        "name": "mine", "kind": "sentence_classification", "files": {"train": "a.tsv", "dev": "a.tsv", "test": "a.tsv"},
        "format": "tsv", "columns": {"text": "other", "label": "label"}, "labels": ["bad", "good"],
    },
    "pair": {
        "name": "mine", "kind": "pair_regression", "files": {"train": "a.tsv", "dev": "a.tsv"}, "format": "tsv",
        "columns": {"text_a": "other", "text_b": "second", "label": "score"}, "range": [0, 5],
    },
    "words": {
        "name": "mine", "kind": "sequence_labelling", "files": {"train": "a.conll", "dev": "a.conll"},
        "format": "conll", "columns": {"words": "0", "tags": "1"}, "labels": ["O", "B-PER", "I-PER"],
        "tag_scheme": "iob1",
    },
}  # fmt: skip
BASES |= {
    "whole": {
        "name": "mine", "kind": "sentence_classification", "file": "a.tsv", "split_column": "score",
        "splits": {"train": "1", "dev": "2"}, "format": "tsv", "columns": {"text": "other", "label": "label"},
        "labels": ["bad", "good"],
    },
    "carved": {**BASES["sentence"], "files": {"train": "a.tsv"}, "dev_from": "train[-2:]"},
    "joined": {**BASES["sentence"], "columns": {"text": ["other", "second"], "label": "label"}},
    "three": {**BASES["sentence"]},
    "lines": {
        "name": "mine", "kind": "sentence_classification", "files": {"train": "a.txt", "dev": "a.txt"},
        "format": "lines", "pattern": "(?P<label>bad|good) (?P<text>.+)", "labels": ["bad", "good"],
    },
}  # fmt: skip
BASES["several"] = {**BASES["sentence"], "kind": "multi_label_classification"}
SAME_EXAMPLES = "the same examples, whatever file or format they were read from"
YAML_TABLE: dict[str, list[tuple[str, object, str]]] = {
    "name": [("sentence", "yours", CHANGES)],
    "kind": [("sentence", "pair_classification", REFUSED)],
    "metric": [
        ("sentence", "f1", CHANGES), ("pair", "spearman", CHANGES), ("words", "word_accuracy", CHANGES),
        ("sentence", "accuracy", "what the kind has where the file names none"),
    ],
    "also": [
        ("sentence", ["macro_f1", "matthews"], "shown in tables; nothing is selected by them"),
        ("pair", "macro_f1", REFUSED),
    ],
    "also_test": [("sentence", {"far": "b.tsv"}, "no trial reads it; it is opened with test")],
    "files.train": [("sentence", "b.tsv", CHANGES), ("sentence", "copy.tsv", SAME_EXAMPLES)],
    "files.dev": [("sentence", "b.tsv", CHANGES)],
    "files.test": [("sentence", "b.tsv", "no trial reads test; whoever is scored on it keeps its print")],
    "format": [("sentence", "csv", REFUSED), ("words", "parquet", REFUSED)],
    "columns.text": [("sentence", "second", CHANGES)],
    "columns.label": [("sentence", "text", REFUSED), ("pair", "label", REFUSED)],
    "columns.text_a": [("pair", "second", CHANGES)],
    "columns.text_b": [("pair", "other", CHANGES)],
    "columns.group": [("sentence", "second", CHANGES), ("sentence", "nothing", REFUSED)],
    "columns.words": [("words", "1", REFUSED), ("words", "-2", SAME_EXAMPLES)],
    "columns.tags": [("words", "0", REFUSED), ("words", "-1", SAME_EXAMPLES)],
    "header": [("sentence", "false", REFUSED)],
    "quoting": [("sentence", "true", CHANGES), ("pair", "true", CHANGES)],
    "labels": [("sentence", ["good", "bad"], CHANGES), ("words", ["O", "I-PER", "B-PER"], CHANGES)],
    "range": [("pair", [0, 4], CHANGES)],
    "tag_scheme": [("words", "iob2", CHANGES)],
    "tokenised": [("sentence", "true", "read for encoders that read words, in the setting (test_space_rules)")],
    "description": [("sentence", "some words", "for people")],
    "file": [("sentence", "b.tsv", REFUSED), ("whole", "c.tsv", CHANGES)],
    "split_column": [("sentence", "label", REFUSED), ("whole", "label", REFUSED)],
    "splits.train": [("whole", ["1", "2"], REFUSED), ("whole", "3", REFUSED)],
    "splits.dev": [("whole", "1", REFUSED)],
    "splits.test": [("whole", "3", "no trial reads test; and rows of other splits are refused")],
    "hub.id": [("sentence", "a/b", REFUSED)],
    "hub.revision": [("sentence", "main", REFUSED)],
    "hub.splits": [("sentence", {"train": "train"}, REFUSED)],
    "hub.config": [("sentence", "default", REFUSED)],
    "hub.pattern": [("sentence", "{split}.parquet", REFUSED)],
    "dev_from": [("carved", "train[-3:]", CHANGES), ("carved", {"from": "train", "fold": 0, "of": 2}, CHANGES)],
    "test_from": [("carved", "train[:2]", CHANGES), ("sentence", "train[:2]", REFUSED)],
    "joiner": [("joined", " | ", CHANGES), ("sentence", " | ", "nothing is joined")],
    "delimiter": [("sentence", ";", REFUSED), ("sentence", r"\t", "what a tsv file has where the task names none")],
    "encoding": [("sentence", "latin-1", SAME_EXAMPLES), ("sentence", "utf-16", REFUSED)],
    "pattern": [("lines", "(?P<label>bad|good) -(?P<text>.+)", CHANGES), ("sentence", "(?P<text>.+)", REFUSED)],
    "empty": [("sentence", "skip", "no text is empty here"), ("sentence", "keep", "no text is empty here")],
    "class_weights": [("sentence", {"bad": 3}, CHANGES), ("sentence", {"x": 3}, REFUSED), ("pair", {"x": 1}, REFUSED)],
    "label_separator": [("sentence", ";", REFUSED), ("several", "|", SAME_EXAMPLES)],
    "skip_labels": [("three", ["ugly"], "no row has that label"), ("sentence", ["good"], REFUSED)],
}  # fmt: skip


def test_the_table_has_every_key_of_a_task_file():
    models = {"files": Splits, "columns": Columns, "splits": Splits, "hub": Hub}
    parts = {f"{key}.{part}" for key, model in models.items() for part in model.model_fields}
    assert set(YAML_TABLE) == (set(UserTask.model_fields) - set(models)) | parts


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """The files that the task files name."""
    folder = tmp_path_factory.mktemp("own")
    lines = ["\t".join(row) for row in (HEADER, *ROWS)]
    for name in ("a.tsv", "copy.tsv"):
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "b.tsv").write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
    (folder / "c.tsv").write_text("\n".join([*lines, lines[1]]) + "\n", encoding="utf-8")
    (folder / "a.conll").write_text(WORDS, encoding="utf-8")
    (folder / "a.txt").write_text("bad -meal\ngood -film\nbad -x y\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("key", YAML_TABLE)
def test_a_key_of_a_task_file_changes_the_identity_or_nothing(key, frozen_spec, told_apart, data):
    path = data / "mine.yaml"

    def opened(document: Mapping[str, object]) -> tuple[SweepSpec, list[OpenCell]]:
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        own = frozen_spec.model_copy(update={"tasks": (str(path),)})
        return own, open_cells(own)

    for base, value, says in YAML_TABLE[key]:
        before = opened(BASES[base])
        outer, _, inner = key.partition(".")
        part = {**BASES[base].get(outer, {}), inner: value} if inner else value  # type: ignore[dict-item]
        document = {**BASES[base], outer: part}
        if says == REFUSED:
            with pytest.raises(ValueError, match=r"mine.yaml|a.tsv|a.conll"):
                opened(document)
            continue
        found = told_apart(before, opened(document))
        assert ("identity" in found) if says == CHANGES else not found, (key, base, value, found)


def test_another_test_file_has_another_fingerprint_and_a_copy_has_the_same(data):
    prints = []
    for name in ("a.tsv", "copy.tsv", "b.tsv"):
        path = data / "test.yaml"
        sentence = BASES["sentence"]
        document = {**sentence, "files": {**sentence["files"], "test": name}}  # type: ignore[dict-item]
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        prints.append(open_test(DataSpec(str(path))).fingerprint)
    assert prints[0] == prints[1] != prints[2]


def test_moving_a_document_boundary_counts_only_where_documents_are_read(frozen_spec, told_apart, data):
    path = data / "documents.yaml"
    document = {**BASES["words"], "files": {"train": "moved.conll", "dev": "a.conll"}}
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    sentence = frozen_spec.model_copy(update={"tasks": (str(path),)})
    for context, apart in (("document", {"identity", "specification"}), ("sentence", set())):
        opened = []
        for text in (WORDS, WORDS.replace("was O", "-DOCSTART- O\n\nwas O")):
            (data / "moved.conll").write_text(text, encoding="utf-8")
            own = sentence.model_copy(update={"overrides": (f"context={context}",)})
            opened.append((own, open_cells(own)))
        assert told_apart(*opened) == apart
