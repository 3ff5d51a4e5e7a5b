"""What `new-task`, training and `predict` read of one file is the same rows, or the file is refused in one line."""

from __future__ import annotations

import io
import json
import re
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pyarrow
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from meltpoint.sweeps.results.predicting import _text, _text_columns
from meltpoint.sweeps.results.text_files import read_pieces
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec
from meltpoint.tasks.inspection.draft import draft_of
from meltpoint.tasks.inspection.new_task import new_task

CLASSIFIER = SimpleNamespace(
    task=SimpleNamespace(
        kind="sentence_classification", of_kind=kinds.get("sentence_classification"), text_columns=(), joiner=" "
    )
)


def drafted(path: Path) -> Counter[str] | None:
    """The labels that `new-task` counts; None if some texts are empty, which training skips."""
    new_task([str(path)], path.parent / "mine.yaml")
    draft = draft_of([path], path.parent)
    faults = [line for lines in draft.remarks.values() for line in lines if "NOT YET RIGHT" in line]
    if faults:
        raise ValueError(faults[0])
    counts = draft.counts["train"]
    return None if counts.empty else counts.labels


def trained(path: Path) -> list[tuple[str, str]]:
    """(text, label) of each row, by the task file that `new-task` wrote."""
    data = load_training_data(DataSpec(str(path.parent / "mine.yaml")))
    examples = sorted([*data.train, *data.dev], key=lambda example: int(example.id))
    return [(example.texts[0], data.task.labels[example.label]) for example in examples]


def predicted(path: Path) -> list[str]:
    """The texts that `predict` gives to a model."""
    return [
        _text(CLASSIFIER, ((cell,),), f"row {number}")
        for piece in read_pieces(path, 3)
        for number, cell in enumerate(piece[_text_columns(path, piece, ("text",), CLASSIFIER.task)[0][0]], 1)
    ]  # fmt: skip


def refusals(path: Path) -> list[str]:
    """Check that all three read the same rows; the refusals of those that read none, each of one line."""
    lines: list[str] = []

    def attempt(read):
        try:
            return read(path)
        except ValueError as error:
            lines.append(str(error))
            return None

    counted, rows, texts = attempt(drafted), attempt(trained), attempt(predicted)
    if rows is not None and counted is not None:
        assert counted == Counter(label for _, label in rows)
    if rows is not None and texts is not None:
        assert texts == [text for text, _ in rows]
    assert not any("\n" in line for line in lines)
    return [line for line in lines if "mine.yaml" not in line]  # no task file, or one that `new-task` calls not right


NASTY = "ab \"'é,;|\t\n\r\u0085\u2028\x0b\x0c\u00a0\ufeff🙂"
CELLS = st.text(NASTY, max_size=6).map(lambda text: f"a {text}b")
LABELS = ("x", "007")
QUICK = settings(max_examples=40, phases=(Phase.explicit, Phase.generate), deadline=None)


def rows_of(cells: st.SearchStrategy[str]) -> st.SearchStrategy[list[tuple[str, str]]]:
    """Rows of a text and one of two labels, in turn."""
    return st.lists(cells, min_size=8, max_size=12).map(
        lambda texts: [(text, LABELS[at // 2 % 2]) for at, text in enumerate(texts)]
    )


def quoted(cell: str, always: bool) -> str:
    return '"' + cell.replace('"', '""') + '"' if always or set(cell) & set('",\r\n') else cell


def read_by_all(name: str, data: bytes, rows: list[tuple[str, str]]) -> None:
    """Check that nobody refuses a file, and that its rows are read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        assert refusals(path) == []
        assert trained(path) == [(text.strip(" "), label) for text, label in rows]


@QUICK
@given(rows_of(CELLS), st.booleans(), st.sampled_from(["\n", "\r\n", "\r"]), st.booleans())
def test_a_well_written_csv_is_read_by_all_three(rows, always, end, has_mark):
    if end == "\r":
        rows = [(text.replace("\n", ""), label) for text, label in rows]
    lines = [("", "text", "label"), *((str(number), *row) for number, row in enumerate(rows))]
    text = "".join(",".join(quoted(cell, always) for cell in line) + end for line in lines)
    read_by_all("train.csv", (b"\xef\xbb\xbf" if has_mark else b"") + text.encode(), rows)


@QUICK
@given(rows_of(CELLS.map(lambda text: re.sub(r"[\t\r\n]", "", text))), st.sampled_from(["\n", "\r\n", "\r"]))
def test_a_well_written_tsv_is_read_by_all_three(rows, end):
    lines = [("text", "label", "", ""), *((*row, "", "") for row in rows)]
    read_by_all("train.tsv", "".join("\t".join(line) + end for line in lines).encode(), rows)


@QUICK
@given(rows_of(CELLS), st.booleans(), st.sampled_from(["\n", "\r\n", "\n\n"]))
def test_well_written_json_lines_are_read_by_all_three(rows, ascii_only, end):
    lines = [
        json.dumps({"text": text, "label": label, "n": 2**60 + 1}, ensure_ascii=ascii_only) for text, label in rows
    ]
    read_by_all("train.jsonl", "".join(line + end for line in lines).encode(), rows)


@QUICK
@given(rows_of(CELLS))
def test_parquet_is_read_by_all_three(rows):
    out = io.BytesIO()
    parquet.write_table(pyarrow.table({"label": [label for _, label in rows], "text": [text for text, _ in rows]}), out)
    read_by_all("train.parquet", out.getvalue(), rows)


ROWS = [(f"a fine meal {number}", LABELS[number // 2 % 2]) for number in range(12)]
PLAIN = ["text,label", *(f"{text},{label}" for text, label in ROWS)]


def csv_with(line: str, at: int = 5) -> bytes:
    return "\n".join([*PLAIN[:at], line, *PLAIN[at:], ""]).encode()


def with_rows(*rows: tuple[str, str]) -> tuple[bytes, list[tuple[str, str]]]:
    return csv_with("\n".join(map(",".join, rows)), 13), [*ROWS, *rows]


def in_columns(separator: str, head: str, row: str) -> bytes:
    lines = [head, *(row.replace("T", text).replace("L", label) for text, label in ROWS)]
    return "".join(line.replace(",", separator) + "\n" for line in lines).encode()


def json_lines(*rows: str) -> bytes:
    return "\n".join([*(json.dumps({"text": text, "label": label}) for text, label in ROWS), *rows]).encode()


def parquet_of(**columns: list[object]) -> bytes:
    out = io.BytesIO()
    parquet.write_table(pyarrow.table(list(columns.values()), names=[name.rstrip("_") for name in columns]), out)
    return out.getvalue()


TEXTS, NAMES = [text for text, _ in ROWS], [label for _, label in ROWS]
READ: dict[str, tuple[str, bytes, list[tuple[str, str]]]] = {
    "blank lines": ("train.csv", csv_with("\n\n"), ROWS),
    "words for nothing": ("train.csv", *with_rows(("NA", "x"), ("NaN", "x"), ("null", "x"))),
    "labels as they are spelled": ("train.csv", *with_rows(("b", "1"), ("c", "1.0"), ("d", "1"), ("e", "1.0"))),
    "quotes in mid-cell": ("train.csv", *with_rows(('a "b" c', "x"), ('d" e', "x"))),
    "quotes behind a space in quotes": ("train.csv", csv_with('" ""b"" c",x', 13), [*ROWS, ('"b" c', "x")]),
    "quoted names": ("train.csv", in_columns(",", '"text","label"', "T,L"), ROWS),
    "row numbers of pandas": ("train.csv", in_columns(",", ",text,label", "1,T,L"), ROWS),
    "empty columns behind": ("train.csv", in_columns(",", "text,label,,", "T,L,,"), ROWS),
    "names of other case": ("train.csv", in_columns(",", "text,label,Text,LABEL", "T,L,no text,z"), ROWS),
    "semicolons": ("train.csv", in_columns(";", "text,label", "T,L"), ROWS),
    "bars": ("train.tsv", in_columns("|", "text,label", "T,L"), ROWS),
    "UTF-16": ("train.csv", csv_with("").decode().encode("utf-16"), ROWS),
    "Windows' encoding": ("train.csv", csv_with("café,x", 13).decode().encode("cp1252"), [*ROWS, ("café", "x")]),
    "an end without a line end": ("train.csv", csv_with("")[:-1] + "\né,x".encode("cp1252"), [*ROWS, ("é", "x")]),
    "a mark of order": ("train.csv", b"\xef\xbb\xbf" + csv_with(""), ROWS),
    "numbers and truth values": (
        "train.jsonl",
        json_lines(*(f'{{"text": {text}, "label": "x"}}' for text in ("7.0", "true", "9007199254740993"))),
        [*ROWS, ("7", "x"), ("true", "x"), ("9007199254740993", "x")],
    ),
    "NaN elsewhere": ("train.jsonl", json_lines('{"text": "b", "label": "x", "n": NaN}'), [*ROWS, ("b", "x")]),
}  # fmt: skip
"""What it is → the file and its rows."""


@pytest.mark.parametrize("what", READ)
def test_what_can_be_read_is_read_alike(what):
    read_by_all(*READ[what])


REFUSED = {
    "two texts": ("train.csv", in_columns(",", "text,label,text", "T,L,id"), "two columns are named 'text'", 1),
    "two texts in parquet": ("train.parquet", parquet_of(text=TEXTS, label=NAMES, text_=TEXTS), "two columns", 2),
    "a key twice": ("train.jsonl", json_lines('{"text": "a", "text": "b"}'), "the key 'text' is given twice", 2),
    "no number": ("train.jsonl", json_lines('{"text": NaN, "label": "x"}'), "row 1 has nan", 1),
    "no end": ("train.jsonl", json_lines('{"text": 1e999, "label": "x"}'), "inf", 2),
    "a nested text": ("train.jsonl", json_lines('{"text": {"a": "b"}, "label": "x"}'), "{'a': 'b'}", 2),
    "NaN in parquet": ("train.parquet", parquet_of(text=[0.5, float("nan")] * 6, label=NAMES), "text", 2),
    "an open quote": ("train.csv", csv_with('"a good meal,x'), "line 6: broken row", 1),
    "letters behind a quote": ("train.csv", csv_with('"a good" meal,x'), "line 6: broken row", 1),
    "a null character": ("train.csv", csv_with("a\0 meal,x"), "line 6: a null character", 2),
    "UTF-16 without its mark": ("train.csv", csv_with("").decode().encode("utf-16-le"), "line 1: a null character", 2),
    "quotes in tsv": ("train.tsv", in_columns("\t", "text,label", '"T","L"'), "has all its cells in quotes", 1),
    "a cell more": ("train.csv", csv_with("a,x,y"), "line 6: 3 fields, not 2. Repair or remove the row.", 2),
    "a cell less": ("train.csv", csv_with("a"), "line 6: 1 field, not 2. Repair or remove the row.", 2),
    "a cell more a row": ("train.csv", in_columns(",", "text,label", "T,L,"), "line 2: 3 fields, not 2", 2),
    "a blank line in tsv": ("train.tsv", in_columns("\t", "text,label", "T,L") + b"\n", "line 14: 1 field, not 2", 2),
    "names alone": ("train.csv", b"text,label\n", "has no rows under its header", 2),
}  # fmt: skip
"""What it is → the file, its refusal, and who refuses it: `predict`, and `new-task` where no task file can say it."""


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_read_alike_is_refused(what, tmp_path):
    name, data, wanted, count = REFUSED[what]
    (tmp_path / name).write_bytes(data)
    lines = refusals(tmp_path / name)
    assert len(lines) == count, lines
    assert all(wanted in line for line in lines), lines


def test_whole_numbers_beside_a_null_stay_whole(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(parquet_of(text=["a", "b"], id=[2**53 + 1, None]))
    (piece,) = read_pieces(path, 3)
    assert list(piece["id"]) == [2**53 + 1, None]
