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
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from meltpoint.sweeps.results.predicting import texts_of
from meltpoint.sweeps.results.prediction_files import read_pieces
from meltpoint.tasks import kinds
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec
from meltpoint.tasks.inspection.new_task import new_task

CLASSIFIER = SimpleNamespace(
    task=SimpleNamespace(kind="sentence_classification", of_kind=kinds.get("sentence_classification"))
)


def drafted(path: Path) -> tuple[Counter[str], set[str]]:
    """What `new-task` counts: labels, and the different texts."""
    draft = new_task([str(path)], path.parent / "mine.yaml").draft
    faults = [line for lines in draft.remarks.values() for line in lines if "NOT YET RIGHT" in line]
    if faults:
        raise ValueError(faults[0])
    counts = draft.counts["train"]
    return counts.labels, {text for (text,) in counts.texts}


def trained(path: Path) -> list[tuple[str, str]]:
    """(text, label) of each row, by the task file that `new-task` wrote."""
    data = load_training_data(DataSpec(str(path.parent / "mine.yaml")))
    examples = sorted([*data.train, *data.dev], key=lambda example: int(example.id))
    return [(example.texts[0], data.task.labels[example.label]) for example in examples]


def predicted(path: Path) -> list[str]:
    """The texts that `predict` gives to a model."""
    return [text for piece in read_pieces(path, 3) for text in texts_of(CLASSIFIER, piece)]


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
        assert counted == (Counter(label for _, label in rows), {text for text, _ in rows})
    if rows is not None and texts is not None:
        assert texts == [text for text, _ in rows]
    assert [line for line in lines if "\n" in line or path.name not in line] == []
    return lines


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
