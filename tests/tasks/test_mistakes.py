"""Mistakes in task files and data: one line each that names the file, the place in it, and the remedy."""

from __future__ import annotations

import json

import pytest

from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec

TASK = """\
name: reviews
kind: sentence_classification
files: {train: train.csv, dev: dev.csv}
format: csv
columns: {text: review, label: verdict}
labels: [bad, good]
"""
TRAIN = "review,verdict\nfine,good\npoor,bad\ncold,bad\nwarm,good\n"
DEV = "review,verdict\nso so,bad\n"
LINES = TASK.replace("format: csv", "format: lines").replace("columns: {text: review, label: verdict}", "PATTERN")
NEEDED = "name: x\nkind: sentence_classification\nlabels: [bad, good]\ncolumns: {text: review, label: verdict}\n"
SPLITS = "file: train.csv\nsplit_column: s\nsplits: {train: tr, dev: de}"
FOLDERS = (
    "name: x\nkind: sentence_classification\nfiles: {train: texts, dev: texts}\nformat: folders\nlabels: [bad, good]\n"
)
SHA = "0" * 40

IN_TASK = {
    # what is wrong: (old text, new text of the task file, parts of the message)
    "a key with a typo": ("labels:", "lables:", "Unknown key 'lables'. Did you mean labels"),
    "a split with a typo": ("{train:", "{trian: x, train:", "Unknown key in files 'trian'. Did you mean train?"),
    "a column's key with a typo": ("{text:", "{txt: x, text:", "Unknown key in columns 'txt'. Did you mean text"),
    "no kind": ("kind: sentence_classification\n", "", "kind is missing; write one of "),
    "no labels": ("labels: [bad, good]", "range: [0, 5]", "labels: a sentence_classification task takes"),
    "no text": ("text: review, ", "", "columns: 'text' is missing; sentence_classification needs text, label."),
    "a text too many": ("text: review", "text_b: x, text: review", "'text_b' does not fit sentence_classification"),
    "columns of words": ("format: csv", "format: conll", "format: sentence_classification is not read from conll"),
    "a metric with a typo": ("format:", "metric: acuracy\nformat:", "Unknown metric of sentence_classification"),
    "a metric of another kind": ("format:", "metric: pearson\nformat:", "Choose from: accuracy, average_precision,"),
    "a name in capitals": ("name: reviews", "name: My Reviews", "name: 'My Reviews' must be lower-case letters"),
    "a name that is taken": ("name: reviews", "name: sst2", "'sst2' is the name of a built-in task"),
    "a format with a typo": ("format: csv", "format: jsnl", "Unknown format 'jsnl'. Did you mean jsonl"),
    "an unknown kind": ("sentence_classification", "sentence_clasification", "Did you mean sentence_classification"),
    "no dev": (", dev: dev.csv", "", "files.dev is missing; name it", "or carve it: dev_from: train[-500:]"),
    "dev twice": ("format:", "dev_from: train[-1:]\nformat:", "dev_from: files also has a dev split. Remove one"),
    "test twice": (
        "dev: dev.csv}", "dev: dev.csv, test: dev.csv}\ntest_from: train[-1:]",
        "test_from: files also has a test split. Remove one",
    ),
    "a slice without brackets": (
        ", dev: dev.csv}", "}\ndev_from: train", "dev_from 'train' is not a part of train or dev. Write train[-500:]",
    ),
    "dev of dev": (", dev: dev.csv}", "}\ndev_from: dev[:5]", "dev is carved off train, not off dev. Write dev_from"),
    "a fraction over 1": (
        ", dev: dev.csv}", "}\ndev_from: {from: train, fraction: 10}", "fraction is 10; write a number between 0 and 1",
    ),
    "a fold that is not there": (
        ", dev: dev.csv}", "}\ndev_from: {from: train, fold: 5, of: 5}", "no fold 5 of 5. Write fold: 0 to fold: 4",
    ),
    "a key of a part with a typo": (
        ", dev: dev.csv}", "}\ndev_from: {from: train, fracton: 0.1}", "Unknown key 'fracton'. Did you mean fraction",
    ),
    "an unknown encoding": (
        "format:", "encoding: latin1x\nformat:", "Unknown encoding 'latin1x'. Did you mean latin-1",
    ),
    "a delimiter of two characters": ("format:", "delimiter: '||'\nformat:", "delimiter is '||'; write one character"),
    "an unknown word for empty": ("format:", "empty: skp\nformat:", "Unknown empty 'skp'. Did you mean skip"),
    "a pattern for csv": ("format:", "pattern: '(.*)'\nformat:", "pattern: only for format lines, not for csv"),
    "a skipped label that is a label": (
        "format:", "skip_labels: [bad]\nformat:", "'bad' is also in labels. Name it",
    ),
    "one label": ("labels: [bad, good]", "labels: {1: good, 2: good}", "takes a list of two or more different labels"),
    "a label twice": ("[bad, good]", "[bad, good, bad]", "two or more different labels"),
    "a branch that moves": (
        TASK, NEEDED + "hub: {id: a/b, revision: main}\n", "hub.revision: 'main' may move. Write a commit's 40",
    ),
    "a hub and files": (
        "format:", f"hub: {{id: a/b, revision: '{SHA}'}}\nformat:", "this one has files and hub; write",
    ),
    "a split column alone": (
        "files: {train: train.csv, dev: dev.csv}", "file: train.csv", "file, split_column and splits go together; see",
    ),
    "no pattern": (TASK, LINES.replace("PATTERN\n", ""), "pattern is missing; write a regular expression"),
    "a pattern without a group": (
        TASK, LINES.replace("PATTERN", "pattern: '(?P<text>.+)'"), "the group 'label' is missing (it has: text). Write",
    ),
    "a pattern that is none": (
        TASK, LINES.replace("PATTERN", "pattern: '(?P<text>.+'"), "pattern: not a regular expression (missing )",
    ),
    "folders of pairs": (
        TASK, TASK.replace("csv\n", "folders\n").replace("sentence_c", "pair_c"),
        "pair_classification is not read from folders; see docs/tasks.md",
    ),
}  # fmt: skip

IN_DATA = {
    # what is wrong: (task file, files, file and place, parts of the message)
    "a column that is not there": (
        TASK.replace("review", "text"), {}, "train.csv, line 1", "no column 'text'. The columns are: review, verdict",
    ),
    "an unknown label": (
        TASK, {"train.csv": TRAIN + "x,godo\n"}, "train.csv, line 6, field 2 (label)", "Did you mean good",
    ),
    "an empty text": (
        TASK, {"train.csv": TRAIN + '"",bad\n'}, "train.csv, line 6, field 1 (text)", "or write empty: skip, or keep",
    ),
    "a row with a cell too many": (TASK, {"dev.csv": DEV + "a,b,bad\n"}, "dev.csv, line 3", "3 fields, not 2. Repair"),
    "an open quote": (TASK, {"dev.csv": DEV + '"a,bad\n'}, "dev.csv, line 3", "Close every quote and double"),
    "another encoding": (
        TASK, {"train.csv": (TRAIN + "caf\xe9,good\n").encode("latin-1")}, "train.csv, line 6: byte 56 (0xe9)",
        "is not UTF-8. Convert the file to UTF-8, for example with iconv, or name its encoding in the task file",
    ),
    "a declared encoding that is not it": (
        TASK + "encoding: ascii\n", {"train.csv": TRAIN + "é,good\n"}, "train.csv, line 6: byte 53 (0xc3)",
        "is not ascii. Correct encoding: in the task file",
    ),
    "a missing file": (TASK, {"dev.csv": None}, "dev.csv", "is missing. Put the file there"),
    "a header alone": (TASK, {"train.csv": "review,verdict\n"}, "train.csv", "has no rows under its header"),
    "a slice longer than the file": (
        TASK.replace(", dev: dev.csv}", "}\ndev_from: train[-9:]"), {}, "dev_from train[-9:]",
        "leaves nothing of the split: train has 4 examples. Choose other ends",
    ),
    "a line that the pattern does not match": (
        LINES.replace("PATTERN", r"pattern: '(?P<label>\w+): (?P<text>.+)'"),
        {"train.csv": "good: a\nbad b\n"}, "train.csv, line 2", "'bad b' does not match the pattern. Correct the line",
    ),
    "a split that nobody named": (
        TASK.replace("files: {train: train.csv, dev: dev.csv}", SPLITS),
        {"train.csv": "s,review,verdict\ntr,a,good\nte,b,bad\n"}, "train.csv, line 3, field 1 (split)",
        "Unknown split 'te'. Choose from: de, tr. Correct the file, or splits:",
    ),
    "a nested field that is not there": (
        TASK.replace("csv", "jsonl").replace("review,", "data.text,").replace("verdict}", "y}"),
        {"train.jsonl": json.dumps({"data": {"body": "a"}, "y": "bad"}) + "\n"}, "train.jsonl, line 1",
        "no column 'data.text'. The columns are: data, y",
    ),
    "a folder without folders": (
        FOLDERS, {"texts/a.txt": "a"}, "texts", "has no subfolders. Write one folder of texts per label",
    ),
    "a folder with another name": (
        FOLDERS, {"texts/goood/a.txt": "a"}, "a.txt, line 1, field 2 (label)", "label 'goood'. Did you mean good",
    ),
}  # fmt: skip


def message(folder, task, files):
    """The message for a task file with its data."""
    contents = {"train.csv": TRAIN, "dev.csv": DEV, **files}
    for name, text in contents.items():
        if text is not None:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path = folder / "task.yaml"
    path.write_text(task, encoding="utf-8")
    with pytest.raises(ValueError, match=r".") as caught:
        load_training_data(DataSpec(str(path)))
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 600
    return text


@pytest.mark.parametrize("name", IN_TASK)
def test_a_mistake_in_a_task_file_is_one_line_with_the_file_the_key_and_the_remedy(name, tmp_path):
    old, new, *wanted = IN_TASK[name]
    assert old in TASK
    text = message(tmp_path, TASK.replace(old, new, 1), {})
    assert text.startswith(f"{tmp_path / 'task.yaml'}: ")
    for part in wanted:
        assert part in text


@pytest.mark.parametrize("name", IN_DATA)
def test_a_mistake_in_data_is_one_line_with_the_file_the_place_and_the_remedy(name, tmp_path):
    task, files, place, *wanted = IN_DATA[name]
    text = message(tmp_path, task, files)
    for part in (place, *wanted):
        assert part in text
