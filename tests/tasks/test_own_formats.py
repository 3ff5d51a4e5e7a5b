"""What a task file can say of its data, key by key; and that task files of earlier versions mean what they meant."""

from __future__ import annotations

import dataclasses
import json

import datasets
import pandas
import pyarrow
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from pyarrow import parquet

from meltpoint import tasks
from meltpoint.tasks.core.conll import to_iob2
from meltpoint.tasks.core.locked import open_test
from meltpoint.tasks.core.sources import check, parquet_files
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec

HEAD = "name: own\nkind: sentence_classification\nlabels: [bad, good]\n"
CSV = HEAD + "format: csv\nfiles: {train: train.csv, dev: train.csv}\ncolumns: {text: text, label: label}\n"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def load(folder, text, **files):
    for name, contents in files.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
    (folder / "task.yaml").write_text(text, encoding="utf-8")
    return load_training_data(DataSpec(str(folder / "task.yaml")))


def pairs(data):
    return [(*example.texts, data.task.labels[example.label]) for example in data.train]


OLD = {
    "tsv": (
        "name: a\nkind: sentence_classification\nfiles: {train: t, dev: d}\nformat: tsv\n"
        "columns: {text: review, label: verdict}\nlabels: [no, yes]\n",
        'id\treview\tverdict\n1\t fine "x\tyes\n2\tpoor\tno\n', "verdict\treview\nno\tbad\n", "73817327f68d9a49",
    ),
    "csv": (
        "name: a\nkind: pair_regression\nfiles: {train: t, dev: d}\nformat: csv\nheader: false\n"
        "columns: {text_a: 0, text_b: 1, label: 2}\nrange: [0, 5]\n",
        '"a ""b"", c\nd",x,1\né,y,2.5\n', "p,q,5\n", "38ac2009d6b43098",
    ),
    "jsonl": (
        "name: a\nkind: pair_classification\nmetric: f1\nfiles: {train: t, dev: d}\nformat: jsonl\n"
        'columns: {text_a: q, text_b: a, label: ok}\nlabels: ["false", "true"]\n',
        '{"q": "who?", "a": 7, "ok": true}\n{"q": "why", "a": "me", "ok": false}\n',
        '{"q": "a", "a": "b", "ok": true}\n', "a67c1e11abe05d8a",
    ),
    "conll": (
        "name: a\nkind: sequence_labelling\nfiles: {train: t, dev: t}\nformat: conll\nlabels: [O, B-GENE, I-GENE]\n"
        "tag_scheme: iob1\n",
        "-DOCSTART- O\n\np53 I-GENE\nbinds O\nA I-GENE\nB B-GENE\n\nx O\n", "", "f49b7599a67d2d31",
    ),
}  # fmt: skip
"""Task files of version ab4dfdf with their data, and the fingerprints that it gave them."""


@pytest.mark.parametrize("form", OLD)
def test_a_task_file_of_an_earlier_version_keeps_its_fingerprint(form, tmp_path):
    text, train, dev, fingerprint = OLD[form]
    data = load(tmp_path, text, t=train, d=dev)
    assert data.fingerprint == fingerprint
    assert data.notes == (("tags are iob1 in the files, converted to IOB2",) if form == "conll" else ())


def test_labels_may_join_raw_values_and_texts_several_columns(tmp_path):
    data = load(
        tmp_path, CSV.replace("[bad, good]", "{5: good, 4: good, 1: bad}"), train__csv="text,label\na,1\nb,4\nc,5\n"
    )
    assert (data.task.labels, [example.label for example in data.train]) == (("good", "bad"), [1, 0, 0])
    text = CSV.replace("text: text", "text: [title, body]") + 'joiner: " — "\nempty: skip\n'
    data = load(tmp_path, text, train__csv="title,body,label\na,b,bad\n,c,good\n,,bad\nd, ,bad\n")
    assert pairs(data) == [("a — b", "bad"), ("c", "good"), ("d", "bad")], "empty only together"
    assert data.notes == ("train: 1 row with an empty text left out", "dev: 1 row with an empty text left out")


def test_empty_texts_are_refused_skipped_or_kept_as_the_task_file_says(tmp_path):
    contents = "text,label\na,bad\n,good\n"
    with pytest.raises(ValueError, match="the text is empty"):
        load(tmp_path, CSV, train__csv=contents)
    kept = load(tmp_path, CSV + "empty: keep\n", train__csv=contents)
    assert pairs(kept) == [("a", "bad"), ("", "good")]
    assert kept.notes[0] == "train: 1 row with an empty text kept"
    texts = (("NaN", '"bad"'), ("null", '"bad"'), ('"a"', "null"), ('"b"', '"good"'))
    rows = "".join(f'{{"text": {text}, "label": {label}}}\n' for text, label in texts)
    skipped = load(tmp_path, CSV.replace("csv", "jsonl") + "empty: skip\nskip_labels: ['']\n", train__jsonl=rows)
    assert pairs(skipped) == [("b", "good")], "a missing value is an empty text, or a label that may be skipped"
    assert skipped.notes[0] == "train: 2 rows with an empty text left out"


def test_a_column_is_found_by_number_under_a_header_too_unless_one_has_that_name(tmp_path):
    numbered = CSV.replace("{text: text, label: label}", "{text: 0, label: 1}")
    assert pairs(load(tmp_path, numbered, train__csv="text,label\na,bad\n")) == [("a", "bad")]
    assert pairs(load(tmp_path, numbered, train__csv="1,0\nbad,a\n")) == [("a", "bad")]
    twice = "text,label,text,x,x,,\na,bad,b,1,2,3,4\n"
    assert pairs(load(tmp_path, CSV.replace("text: text", "text: 2"), train__csv=twice)) == [("b", "bad")]
    assert pairs(load(tmp_path, CSV, train__csv=twice.replace("text,x", "other,x"))) == [("a", "bad")]


@pytest.mark.parametrize(
    ("keys", "contents"),
    [
        ('delimiter: "|"\nquoting: none\n', 'text|label\na, "b"|bad\n'),
        (r'delimiter: "\t"' + "\nquoting: false\n", 'text\tlabel\na, "b"\tbad\n'),
        ("encoding: utf-16\n", 'text,label\n"a, ""b""",bad\n'.encode("utf-16")),
        ("encoding: utf-8\n", '\ufefftext,label\r\n"a, ""b""",bad\r\n'.encode()),
    ],
    ids=lambda value: str(value)[:12],
)
def test_the_shape_of_a_table_is_what_the_task_file_says(keys, contents, tmp_path):
    assert pairs(load(tmp_path, CSV + keys, train__csv=contents)) == [('a, "b"', "bad")]


def test_several_files_and_patterns_of_names_are_one_split(tmp_path):
    for number in range(3):
        table = pyarrow.table({"data": [{"text": f"t{number}"}], "label": ["bad"]})
        parquet.write_table(table, tmp_path / f"train-0000{number}.parquet")
    text = HEAD + "format: parquet\nfiles: {train: train-*.parquet, dev: [train-00002.parquet, train-00000.parquet]}\n"
    data = load(tmp_path, text + "columns: {text: data.text, label: label}\n")
    assert [example.texts[0] for example in data.train] == ["t0", "t1", "t2"]
    assert [example.id for example in data.train] == ["0", "1", "2"]
    assert [example.texts[0] for example in data.dev] == ["t2", "t0"]
    (tmp_path / "task.yaml").write_text(text.replace("train-*", "tr-*") + "columns: {text: a, label: b}\n", "utf-8")
    with pytest.raises(ValueError, match=r"tr-\*\.parquet is missing"):
        check(DataSpec(str(tmp_path / "task.yaml")))


CLASSES = Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos"])})
ROWS = {"text": ["a", "b", "c"], "label": [1, 0, 1]}


@pytest.mark.parametrize("labels", ["[pos, neg]", "{1: pos, 0: neg}"])
def test_a_parquet_file_of_a_dataset_has_its_labels_by_name_or_by_number(labels, tmp_path):
    Dataset.from_dict(ROWS, features=CLASSES).to_parquet(tmp_path / "rows.parquet")
    text = HEAD.replace("[bad, good]", labels) + "format: parquet\ncolumns: {text: text, label: label}\n"
    data = load(tmp_path, text + "files: {train: rows.parquet, dev: rows.parquet}\n")
    assert pairs(data) == [("a", "pos"), ("b", "neg"), ("c", "pos")]


HUB = """\
name: own
kind: sentence_classification
hub:
  id: someone/reviews
  revision: 0123456789abcdef0123456789abcdef01234567
  config: plain
  splits: {train: train, dev: validation, test: test}
columns: {text: [title, data.text], label: label, group: author}
joiner: ": "
labels: [neg, pos]
empty: skip
"""


def test_a_parquet_file_with_a_text_that_is_not_utf_8_is_one_line_that_names_it(tmp_path):
    parquet.write_table(pyarrow.table({"text": ["a fine film"], "label": ["good"]}), tmp_path / "rows.parquet",
                        compression="none")  # fmt: skip
    whole = (tmp_path / "rows.parquet").read_bytes()
    (tmp_path / "rows.parquet").write_bytes(whole.replace(b"a fine film", b"a f\xefne film"))
    text = CSV.replace("format: csv", "format: parquet").replace("train.csv", "rows.parquet")
    with pytest.raises(ValueError, match=r"rows\.parquet, one of the rows 1 to 1: a value cannot be read") as refused:
        load(tmp_path, text)
    assert "\n" not in str(refused.value)


def test_a_dataset_of_the_hub_at_a_revision_is_read_from_its_parquet_files(tmp_path, monkeypatch):
    path = tmp_path / "task.yaml"
    path.write_text(HUB, encoding="utf-8")
    task = tasks.get(str(path))
    assert check(DataSpec(str(path))) == "labelled"
    assert check(DataSpec(str(path), data_dir="/nowhere")) == "labelled", "a folder is not looked for"
    wanted = "hf://datasets/someone/reviews@0123456789abcdef0123456789abcdef01234567/plain/validation-*.parquet"
    assert parquet_files(task.hub, "dev") == wanted
    features = Features({
        "title": Value("string"), "data": {"text": Value("string")}, "label": ClassLabel(names=["neg", "pos"]),
        "author": Value("int64"),
    })  # fmt: skip
    for split, titles in (("train", ["a", "", "b"]), ("validation", ["c", "d", "e"]), ("test", ["f", "g", "h"])):
        rows = {"title": titles, "data": [{"text": "x"}, {"text": ""}, {"text": "y"}], "label": [1, 0, 0]}
        rows["author"] = [7, 7, 8]
        place = tmp_path / "plain" / f"{split}-00000-of-00001.parquet"
        place.parent.mkdir(exist_ok=True)
        Dataset.from_dict(rows, features=features).to_parquet(place)
    mirror = dataclasses.replace(task, hub=dataclasses.replace(task.hub, id=str(tmp_path)))
    monkeypatch.setattr(tasks, "get", lambda name: mirror)
    data = load_training_data(DataSpec(str(path)))
    assert pairs(data) == [("a: x", "pos"), ("b: y", "neg")]
    assert [example.group for example in data.train] == ["7", "8"]
    assert data.notes == ("train: 1 row left out",)
    assert [example.texts for example in open_test(DataSpec(str(path))).examples] == [("f: x",), ("g",), ("h: y",)]


AUTHORED = [{"text": f"t{n}", "label": ("bad", "good")[n % 2], "author": n // 2} for n in range(6)]
TAGGED = [{"words": ["a", f"t{n}"], "tags": ["O", "B-X"], "author": n // 2} for n in range(6)]
IN_DOCUMENTS = "-DOCSTART- O\n\n" + "-DOCSTART- O\n\n".join("a O\nt B-X\n\n" * 2 for _ in range(3))
LINES_OF = "".join(f"{row['author']} {row['label']} {row['text']}\n" for row in AUTHORED)


@pytest.mark.parametrize(
    ("form", "rows", "columns"),
    [
        ("csv", AUTHORED, "{text: text, label: label, group: author}"),
        ("tsv", AUTHORED, "{text: text, label: label, group: author}"),
        ("jsonl", AUTHORED, "{text: text, label: label, group: author}"),
        ("parquet", AUTHORED, "{text: text, label: label, group: author}"),
        ("lines", LINES_OF, "{group: author}\npattern: (?P<author>\\d+) (?P<label>\\w+) (?P<text>.+)"),
        ("jsonl", TAGGED, "{words: words, tags: tags, group: author}"),
        ("parquet", TAGGED, "{words: words, tags: tags, group: author}"),
        ("conll", IN_DOCUMENTS, "{words: 0, tags: 1, group: document}"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 9 else "",
)
def test_groups_are_read_from_every_format_and_kept_whole_in_carved_splits(form, rows, columns, tmp_path):
    if isinstance(rows, str):
        (tmp_path / "train").write_text(rows, "utf-8")
    else:
        written = {"csv": lambda frame, path: frame.to_csv(path, index=False),
                   "tsv": lambda frame, path: frame.to_csv(path, index=False, sep="\t"),
                   "jsonl": lambda frame, path: frame.to_json(path, orient="records", lines=True),
                   "parquet": lambda frame, path: frame.to_parquet(path)}  # fmt: skip
        written[form](pandas.DataFrame(rows), tmp_path / "train")
    head = "name: own\nkind: sequence_labelling\nlabels: [O, B-X, I-X]\n" if "words" in columns else HEAD
    keys = f"format: {form}\nfiles: {{train: train}}\ndev_from: {{from: train, fraction: 0.3, seed: 0}}\n"
    data = load(tmp_path, f"{head}{keys}columns: {columns}\n")
    assert data.task.is_grouped
    groups = [[example.group for example in split] for split in (data.train, data.dev)]
    assert sorted(map(len, groups)) == [2, 4]
    assert len({*groups[0]}) + len({*groups[1]}) == len({*groups[0], *groups[1]}) == 3


@pytest.mark.parametrize(
    ("config", "revision", "inside"),
    [
        ("config: plain", "0" * 40, "plain/train-*.parquet"), ("", "0" * 40, "data/train-*.parquet"),
        ("", "refs/convert/parquet", "default/train/*.parquet"),
        ("pattern: 'x/{split}.parquet'", "refs/convert/parquet", "x/train.parquet"),
    ],
)  # fmt: skip
def test_the_place_of_a_split_on_the_hub_follows_the_hubs_layouts(config, revision, inside, tmp_path):
    path = tmp_path / "task.yaml"
    path.write_text(
        HUB.replace("config: plain", config).replace("0123456789abcdef0123456789abcdef01234567", revision), "utf-8"
    )
    assert parquet_files(tasks.get(str(path)).hub, "train") == f"hf://datasets/someone/reviews@{revision}/{inside}"


def test_tagged_rows_of_a_dataset_have_numbers_or_names_and_may_be_empty(tmp_path):
    text = (
        "name: own\nkind: sequence_labelling\nformat: jsonl\nfiles: {train: t.jsonl, dev: t.jsonl}\n"
        "columns: {words: data.tokens, tags: tags}\nempty: skip\n"
    )
    rows = [{"data": {"tokens": ["a", "b"]}, "tags": [1, 2]}, {"data": {"tokens": []}, "tags": []}]
    contents = "".join(json.dumps(row) + "\n" for row in rows)
    data = load(tmp_path, text + "labels: {0: O, 1: B-X, 2: I-X}\n", t__jsonl=contents)
    assert [(e.words, e.label) for e in data.train] == [(("a", "b"), (1, 2))]
    assert data.notes[0] == "train: 1 row with no words left out"
    with pytest.raises(ValueError, match="empty: a sentence without words cannot be labelled"):
        load(tmp_path, text.replace("skip", "keep") + "labels: [O, B-X, I-X]\n", t__jsonl=contents)


@pytest.mark.parametrize("tags", [["(A*", "(B*"], ["*)"], [""], ["A)"]])
def test_brackets_that_open_or_close_nothing_are_refused_with_their_sentence(tags, tmp_path):
    with pytest.raises(ValueError, match=r"opens or closes no entity\. Write"):
        to_iob2(tags, "brackets")
    assert to_iob2(["(A"], "brackets") == ["B-A"], "an entity may be cut off at the sentence's end"
    text = (
        "name: own\nkind: sequence_labelling\nformat: conll\nfiles: {train: t, dev: t}\ntag_scheme: brackets\n"
        "labels: [O, B-X, I-X]\n"
    )
    with pytest.raises(ValueError, match=r"t, the sentence from line 3: the tag '\*\)' opens or closes no entity"):
        load(tmp_path, text, t="a *\n\nb *)\n")
    with pytest.raises(ValueError, match=r"t, line 4, the tag's column: Unknown tag 'B-Y'"):
        load(tmp_path, text, t="a *\n\nb (X)\nc (Y)\n")


def test_a_file_with_all_splits_gives_test_only_to_whoever_may_open_it(tmp_path):
    text = HEAD + (
        "format: csv\nfile: all.csv\nsplit_column: part\nsplits: {train: [a, b], dev: c, test: d}\n"
        "columns: {text: text, label: label}\n"
    )
    data = load(tmp_path, text, all__csv="part,text,label\na,1,bad\nd,4,good\nb,2,good\nc,3,bad\n")
    assert pairs(data) == [("1", "bad"), ("2", "good")]
    assert [example.texts for example in data.dev] == [("3",)]
    assert [example.texts for example in open_test(DataSpec(str(tmp_path / "task.yaml"))).examples] == [("4",)]
    carved = text.replace(", dev: c", "").replace("splits:", "dev_from: train[-1:]\nsplits:")
    assert pairs(load(tmp_path, carved, all__csv="part,text,label\na,1,bad\nd,4,good\nb,2,good\n")) == [("1", "bad")]


JSON = CSV.replace("csv", "jsonl")
AMBIGUOUS = {
    "a column named twice": (CSV, "text,label,text\na,bad,1\n", r"train\.csv, line 1: two columns are named 'text'"),
    "a space before a quote": (CSV, 'text,label\n"a",bad\nb, "good"\n', r"line 3, field 2 .* Did you mean good"),
    "a null character": (CSV, "text,label\na\0,bad\n", r"line 2: a null character, .* encoding: utf-16-le"),
    "a key twice": (JSON, '{"text": "a", "text": "b", "label": "bad"}\n', r"line 1: .*the key 'text' is given twice"),
    "NaN": (JSON, '{"text": NaN, "label": "bad"}\n', r"line 1, field 'text': nan is neither text nor a number"),
    "a number without end": (JSON, '{"text": -1e999, "label": "bad"}\n', r"field 'text': -inf is neither text"),
    "no label": (JSON, '{"text": "a", "label": null}\n', r"line 1, field 2 \(label\): Unknown label ''"),
    "NaN as label": (JSON, '{"text": "a", "label": NaN}\n', r"field 2 \(label\): Unknown label 'nan'"),
}


@pytest.mark.parametrize("what", AMBIGUOUS)
def test_what_can_be_read_in_two_ways_is_refused_with_its_place(what, tmp_path):
    text, contents, wanted = AMBIGUOUS[what]
    with pytest.raises(ValueError, match=wanted) as refused:
        load(tmp_path, text, **{"train__jsonl" if text is JSON else "train__csv": contents})
    assert "\n" not in str(refused.value)
