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


def test_indicators_are_columns_of_true_and_false_too_and_a_rare_one_is_not_lost(tmp_path):
    flags = {name: lambda n, k=k: (n // k) % 2 == 0 for k, name in enumerate(("toxic", "obscene", "insult"), 1)}
    keys = drafted(tmp_path, train=some_rows(5000, **flags, threat=lambda n: n == 4321)).keys
    assert (keys["kind"], keys["columns"]["label"]) == ("multi_label_classification", [*flags, "threat"])


@pytest.mark.parametrize("name", ["target", "y", "label_id"])
def test_whole_numbers_under_a_name_of_classes_are_classes(tmp_path, name):
    keys = drafted(tmp_path, train=some_rows(400, **{name: lambda n: n % 77})).keys
    assert (keys["kind"], len(keys["labels"])) == ("sentence_classification", 77)


def test_scores_among_which_some_are_missing_are_scores(tmp_path):
    keys = drafted(tmp_path, train=some_rows(200, score=lambda n: "NA" if n % 9 == 0 else n / 7)).keys
    assert (keys["kind"], keys["range"]) == ("sentence_regression", [0, 29])


def test_long_labels_are_found_under_a_name_of_classes(tmp_path):
    keys = drafted(
        tmp_path, train=some_rows(100, label=lambda n: f"I want to {('cancel', 'change')[n % 2]} an order")
    ).keys
    assert (keys["kind"], len(keys["labels"])) == ("sentence_classification", 2)


def test_several_labels_in_a_cell_need_not_occur_alone_where_the_kind_is_told(tmp_path):
    train = some_rows(90, label=lambda n: ("billing;late delivery of goods", "damaged;billing")[n % 2])
    keys = drafted(tmp_path, Asked(kind="multi_label_classification"), train=train).keys
    assert (keys["label_separator"], keys["labels"]) == (";", ["billing", "damaged", "late delivery of goods"])


def test_lists_as_text_and_vectors_are_refused_with_the_form_to_write(tmp_path):
    with pytest.raises(ValueError, match=r"'label' has lists written as text, such as \['joy'\]. Write them as"):
        drafted(tmp_path, train=some_rows(60, label=lambda n: str([["joy"], ["joy", "anger"]][n % 2])))
    assert drafted(tmp_path, train=some_rows(60, label=lambda n: ("[A]", "[B]")[n % 2])).keys["labels"] == [
        "[A]",
        "[B]",
    ]
    path = tmp_path / "train.jsonl"
    lines = [f'{{"text": "meal {n} was fine", "labels": [{n % 2}, 1, 0]}}' for n in range(60)]
    path.write_text("\n".join(lines))
    with pytest.raises(
        ValueError, match=r"the lists of 'labels' are vectors of 0 and 1. Write each as its labels' names"
    ):
        tuned_draft({"train": path}, "", GUESS)


def test_semicolons_go_before_decimal_commas(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("text;label\n" + "".join(f"a meal, {n} of them;{'ab'[n % 2]}\n" for n in range(60)))
    keys = tuned_draft({"train": path}, "", GUESS).keys
    assert (keys["delimiter"], keys["columns"]) == (";", {"text": "text", "label": "label"})


def test_one_broken_byte_is_not_another_encoding_and_files_have_one(tmp_path):
    good = "".join(f"café {n},{'ab'[n % 2]}\n" for n in range(60))
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    train.write_bytes(b"text,label\n" + good.encode() + b"caf\xe9,a\n")
    with pytest.raises(ValueError, match=r"train.csv, line 62 is not UTF-8, but most lines are. Correct that line"):
        tuned_draft({"train": train}, "", GUESS)
    train.write_bytes(b"text,label\n" + good.encode("cp1252"))
    test.write_bytes(b"text,label\n" + good.encode())
    with pytest.raises(ValueError, match=r"test.csv is utf-8, but .*train.csv is cp1252; write both in UTF-8"):
        tuned_draft({"train": train, "test": test}, "", GUESS)
    train.write_bytes(b"PK\x03\x04xlsx")
    with pytest.raises(ValueError, match=r"train.csv is an Excel file. Save it as CSV \(UTF-8\)"):
        tuned_draft({"train": train}, "", GUESS)


def test_a_test_without_any_label_is_refused_before_the_search(tmp_path):
    train = some_rows(200, label=lambda n: "ab"[n % 2])
    with pytest.raises(ValueError, match=r"No row of test has a label. Leave test out"):
        drafted(tmp_path, train=train, test=some_rows(50, label=lambda n: ""))
