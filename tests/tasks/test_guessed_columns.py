"""What `tune` guesses of columns, splits and labels where a name or a missing value could mislead it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas
import pytest

from meltpoint.tasks.inspection.draft import Draft
from meltpoint.tasks.inspection.new_task import tuned_draft
from meltpoint.tasks.inspection.roles import GUESS, Asked


def drafted(folder: Path, asked: Asked = GUESS, **splits: list[dict[str, object]]) -> Draft:
    files = {split: folder / f"{split}.csv" for split in splits}
    for split, rows in splits.items():
        pandas.DataFrame(rows).to_csv(files[split], index=False)
    return tuned_draft(files, "", asked)


def some_rows(count: int, **more: Callable[[int], object]) -> list[dict[str, object]]:
    return [{"text": f"meal {n} was fine", **{name: value(n) for name, value in more.items()}} for n in range(count)]


def test_a_column_of_splits_is_not_needed_where_each_split_has_its_file(tmp_path):
    train, test = (
        some_rows(120, label=lambda n: "ab"[n % 2], split=lambda n, name=name: name) for name in ("train", "test")
    )
    keys = drafted(tmp_path, train=train, test=test).keys
    assert "split_column" not in keys
    assert keys["files"].keys() == {"train", "test"}
    with pytest.raises(ValueError, match="has several splits, by its column 'split'; leave out the other files"):
        drafted(tmp_path, train=train + test, test=test)


def test_files_of_two_formats_are_refused(tmp_path):
    frame = pandas.DataFrame(some_rows(60, label=lambda n: "ab"[n % 2]))
    frame.to_csv(tmp_path / "train.csv", index=False)
    frame.to_json(tmp_path / "t.jsonl", orient="records", lines=True)
    with pytest.raises(ValueError, match=r"t.jsonl is jsonl, but .*train.csv is csv; write all files in one format"):
        tuned_draft({"train": tmp_path / "train.csv", "test": tmp_path / "t.jsonl"}, "", GUESS)


def test_a_column_called_label_has_the_classes_whatever_else_looks_like_them(tmp_path):
    many = drafted(tmp_path, train=some_rows(400, label=lambda n: n % 77)).keys
    assert (many["kind"], len(many["labels"])) == ("sentence_classification", 77)
    flags = {name: lambda n, k=k: (n // k) % 2 for k, name in enumerate(("verified", "has_image", "is_reply"), 1)}
    keys = drafted(tmp_path, train=some_rows(200, label=lambda n: "ab"[n % 2], **flags)).keys
    assert (keys["kind"], keys["columns"]["label"]) == ("sentence_classification", "label")


def test_grades_in_words_have_no_order_and_numbers_have_one(tmp_path):
    asked = Asked(kind="ordinal_classification")
    with pytest.raises(ValueError, match="has the grades high, low, mid, whose order the file does not tell"):
        drafted(tmp_path, asked, train=some_rows(60, label=lambda n: ("low", "mid", "high")[n % 3]))
    keys = drafted(tmp_path, asked, train=some_rows(60, label=lambda n: (2, 10, 1)[n % 3])).keys
    assert keys["labels"] == ["1", "2", "10"]


def test_the_range_of_scores_holds_those_of_test_too(tmp_path):
    draft = drafted(
        tmp_path, train=some_rows(60, price=lambda n: 50.5 + n), test=some_rows(60, price=lambda n: 900.5 + n / 2)
    )
    assert draft.keys["range"] == [50, 930]
    assert "930" not in "".join(draft.remarks["range"])


def test_rows_without_a_score_or_without_a_label_in_test_are_left_out(tmp_path):
    scores = some_rows(60, score=lambda n: None if n == 3 else n / 7)
    keys = drafted(tmp_path, train=scores).keys
    assert (keys["kind"], keys["skip_labels"]) == ("sentence_regression", [""])
    assert keys["range"][1] < 10
    test = some_rows(60, label=lambda n: "" if n == 5 else "ab"[n % 2])
    assert drafted(tmp_path, train=some_rows(60, label=lambda n: "ab"[n % 2]), test=test).keys["skip_labels"] == [""]
