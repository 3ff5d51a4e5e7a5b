"""SICK's three files in their published format: tabs, a header, and CRLF in the test file."""

from __future__ import annotations

from pathlib import Path

import pytest

from meltpoint.tasks import get
from meltpoint.tasks.core.locked import open_test
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec

HEADER = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
ROWS = {
    "SICK_train.txt": [
        "1\tA man is eating\tSomeone eats\t4.5\tENTAILMENT", "2\tA dog runs\tNo dog runs\t3.3\tCONTRADICTION",
    ],
    "SICK_trial.txt": ["4\tA boy \"waves\tA boy sings\t2.8\tNEUTRAL"],
    "SICK_test_annotated.txt": ["6\tThe sea is calm\tThe sea is rough\t3.6\tCONTRADICTION"],
}  # fmt: skip


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "sick").mkdir()
    for name, rows in ROWS.items():
        end = "\r\n" if "test" in name else "\n"
        (tmp_path / "sick" / name).write_bytes((end.join([HEADER, *rows]) + end).encode())
    return tmp_path


def test_entailment_reads_the_judgment_and_relatedness_the_score_of_the_same_pairs(data_dir):
    entailment = load_training_data(DataSpec("sick_e", str(data_dir)))
    relatedness = load_training_data(DataSpec("sick_r", str(data_dir)))
    assert [e.texts for e in entailment.train] == [e.texts for e in relatedness.train]
    assert [entailment.task.labels[e.label] for e in entailment.train] == ["entailment", "contradiction"]
    assert [e.label for e in relatedness.train] == [4.5, 3.3]
    assert [e.id for e in entailment.train] == ["1", "2"]


def test_a_lone_quotation_mark_is_text(data_dir):
    assert load_training_data(DataSpec("sick_e", str(data_dir))).dev[0].texts[0] == 'A boy "waves'


def test_the_test_file_may_end_its_lines_with_crlf(data_dir):
    (example,) = open_test(DataSpec("sick_e", str(data_dir))).examples
    assert example.texts == ("The sea is calm", "The sea is rough")
    assert get("sick_e").labels[example.label] == "contradiction"


@pytest.mark.parametrize(
    ("row", "part"),
    [("9\ta\tb\t7.5\tNEUTRAL", "7.5"), ("9\ta\tb\t2.5\tMAYBE", "MAYBE"), ("9\ta\tb\t2.5", "line 4")],
)
def test_a_broken_row_is_named_with_its_line(data_dir, row, part):
    path = data_dir / "sick" / "SICK_train.txt"
    path.write_text(path.read_text(encoding="utf-8") + row + "\n")
    task = "sick_r" if part == "7.5" else "sick_e"
    with pytest.raises(ValueError, match=r"SICK_train\.txt.*line 4") as caught:
        load_training_data(DataSpec(task, str(data_dir)))
    assert part in str(caught.value)
