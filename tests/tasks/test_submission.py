"""Submission files for the GLUE server: file names, header, order, labels as names or numbers."""

from __future__ import annotations

import pytest

from meltpoint import tasks
from meltpoint.tasks.core.locked import write_glue_submission
from meltpoint.tasks.core.task import Task


@pytest.mark.parametrize(
    ("name", "predictions", "file", "rows"),
    [
        ("mnli", [2, 0, 1], "MNLI-m.tsv", ["0\tneutral", "1\tentailment", "2\tcontradiction"]),
        ("cola", [1, 0, 1], "CoLA.tsv", ["0\t1", "1\t0", "2\t1"]),
        ("sst2_phrases", [1, 0, 1], "SST-2.tsv", ["0\t1", "1\t0", "2\t1"]),
        ("mrpc", [0, 1, 1], "MRPC.tsv", ["0\t1", "1\t1", "2\t0"]),
        ("stsb", [5.25, -0.125, 2.5], "STS-B.tsv", ["0\t2.500", "1\t0.000", "2\t5.000"]),
    ],
)
def test_rows_are_in_the_servers_order_and_words(tmp_path, name, predictions, file, rows):
    path = write_glue_submission(tasks.get(name), predictions, ["2", "1", "0"], tmp_path / "new")
    assert path == tmp_path / "new" / file
    assert path.read_bytes().decode() == "\n".join(["index\tprediction", *rows]) + "\n"


def test_a_users_own_qnli_has_words_too(tmp_path):
    task = Task("qnli", "pair_classification", "accuracy", "", {}, ("entailment", "not_entailment"))
    path = write_glue_submission(task, [1], ["0"], tmp_path)
    assert (path.name, path.read_text(encoding="utf-8")) == ("QNLI.tsv", "index\tprediction\n0\tnot_entailment\n")


@pytest.mark.parametrize("ids", [["0", "0"], ["1", "2"], ["0", "x"]])
def test_ids_that_are_not_glues_are_refused(tmp_path, ids):
    with pytest.raises(ValueError, match="not GLUE's indices 0 to 1"):
        write_glue_submission(tasks.get("cola"), [0, 1], ids, tmp_path)


def test_a_task_that_glue_lacks_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Unknown GLUE task 'conll2003'"):
        write_glue_submission(tasks.get("conll2003"), [], [], tmp_path)
    with pytest.raises(ValueError, match="1 prediction for 2 ids"):
        write_glue_submission(tasks.get("cola"), [0], ["0", "1"], tmp_path)
