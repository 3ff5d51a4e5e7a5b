"""The remedies for the keys of a task file: what to write in place of a wrong value."""

from __future__ import annotations

from typing import get_args

from meltpoint.tasks.core.carving import FORMS
from meltpoint.tasks.core.conll import TagScheme
from meltpoint.tasks.core.task import KINDS
from meltpoint.tasks.core.user_layout import EmptyTexts, Format

FORMATS = get_args(Format)
ENCODINGS = ("utf-8", "latin-1", "cp1252", "iso-8859-15", "utf-16", "cp1251", "gb18030", "shift_jis", "euc-kr")
"""The encodings that a message names; Python's others are read too."""
FILE_REMEDY = "write a file's name, as in files: {train: train.tsv, dev: dev.tsv}"
COLUMNS_REMEDY = "write a column's name, or its position, as in columns: {text: sentence, label: label}"
SPLITS_REMEDY = "write each split's name in the data, as in splits: {train: training, dev: validation}"
HUB_REMEDY = "write a dataset's place, as in hub: {id: owner/name, revision: COMMIT, splits: {train: train, dev: dev}}"
HUB_REMEDIES = {
    "id": "write the dataset's name on the hub, as in hub: {id: owner/name, revision: COMMIT}",
    "revision": "write a commit's 40 hexadecimal digits, or revision: refs/convert/parquet",
    "splits": "write each split's name on the hub, as in splits: {train: train, dev: validation}",
    "config": "write the configuration's name, as in config: default",
    "pattern": "write the path of a split's parquet files, as in pattern: data/{split}-*.parquet",
}
YES_NO = "write true or false"
WANTED = {
    "name": "write a word, as in name: reviews",
    "kind": f"write one of {', '.join(KINDS)}",
    "metric": "write a metric's name, as in metric: accuracy",
    "also": "write a list of metrics, as in also: [macro_f1, matthews]",
    "files": "write a mapping, as in files: {train: train.tsv, dev: dev.tsv}",
    "files.train": FILE_REMEDY,
    "files.dev": f"{FILE_REMEDY}, or carve it: dev_from: train[-500:]",
    "files.test": "write a file's name, as in files: {train: train.tsv, dev: dev.tsv, test: test.tsv}",
    "file": "write the name of the file that has all splits, as in file: data.csv",
    "split_column": "write the column that says which split a row is in, as in split_column: split",
    "splits": SPLITS_REMEDY,
    **{f"splits.{name}": SPLITS_REMEDY for name in ("train", "dev", "test")},
    "hub": HUB_REMEDY,
    **{f"hub.{name}": remedy for name, remedy in HUB_REMEDIES.items()},
    **{f"hub.splits.{name}": HUB_REMEDIES["splits"] for name in ("train", "dev", "test")},
    "dev_from": f"write {FORMS}",
    "test_from": f"write {FORMS}",
    "format": f"write one of {', '.join(FORMATS)}",
    "columns": "write a mapping, as in columns: {text: sentence, label: label}",
    **{f"columns.{name}": COLUMNS_REMEDY for name in ("text", "text_a", "text_b", "words", "tags", "label", "group")},
    "joiner": 'write the text between two columns, as in joiner: " "',
    "label_files": "write files with one label a line, as in label_files: {train: train.gold.txt, dev: dev.gold.txt}",
    **{f"label_files.{name}": FILE_REMEDY.replace("files", "label_files") for name in ("train", "dev", "test")},
    "header": YES_NO,
    "delimiter": 'write one character, as in delimiter: ";"',
    "quoting": "write true, false or none",
    "quotechar": """write one character, as in quotechar: "'\"""",
    "widths": "write the other numbers of cells that rows have, as in widths: [9]",
    "encoding": f"write the name of an encoding, as in encoding: latin-1 ({', '.join(ENCODINGS)})",
    "pattern": r"write a regular expression with named groups, as in pattern: '(?P<label>\w+) (?P<text>.+)'",
    "empty": f"write one of {', '.join(get_args(EmptyTexts))}",
    "labels": "write a list of words, as in labels: [bad, good], or a mapping, as in labels: {1: bad, 2: good}",
    "class_weights": "write each label with its weight, as in class_weights: {rare: 5}",
    "label_separator": 'write the text between two labels, as in label_separator: ";"',
    "skip_labels": "write a list of labels whose rows are left out, as in skip_labels: ['-']",
    "range": "write the lowest and the highest score, as in range: [0, 5]",
    "tag_scheme": f"write one of {', '.join(get_args(TagScheme))}",
    "tokenised": YES_NO,
    "description": "write one line of text",
}
"""The remedy for each key of a task file."""
