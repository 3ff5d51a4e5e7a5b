"""Dev and test that are carved off train: disjoint, seeded, stratified, and stated."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meltpoint.tasks.core.carving import Draw, Slice, carve, parse_cut
from meltpoint.tasks.core.locked import open_test
from meltpoint.tasks.core.sources import check
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import DataSpec, Example


def examples(labels):
    return [Example(str(number), (f"text {number}",), label=label) for number, label in enumerate(labels)]


LABELS = st.lists(st.integers(0, 4), min_size=2, max_size=80)
FRACTIONS = st.floats(0.01, 0.99)
SEEDS = st.integers(0, 5)


def draw(**keys):
    cut = parse_cut({"from": "train", **keys})
    assert isinstance(cut, Draw)
    return cut


@given(LABELS, FRACTIONS, SEEDS)
def test_a_stratified_fraction_has_of_each_class_its_share_to_within_one(labels, fraction, seed):
    wanted = round(len(labels) * fraction)
    assume(0 < wanted < len(labels))
    drawn = draw(fraction=fraction, seed=seed).positions(examples(labels))
    assert len(drawn) == wanted
    assert drawn == sorted(set(drawn))
    counts = Counter(labels[position] for position in drawn)
    for label, count in Counter(labels).items():
        assert abs(counts[label] - count * fraction) < 1


@given(LABELS, st.integers(2, 5), SEEDS, st.booleans())
def test_each_example_is_in_one_fold_and_folds_are_alike(labels, of, seed, stratified):
    assume(len(labels) >= of)
    folds = [draw(fold=fold, of=of, seed=seed, stratified=stratified).positions(examples(labels)) for fold in range(of)]
    assert sorted(position for fold in folds for position in fold) == list(range(len(labels)))
    assert max(map(len, folds)) - min(map(len, folds)) <= 1
    if stratified:
        for label in set(labels):
            shares = [sum(labels[position] == label for position in fold) for fold in folds]
            assert max(shares) - min(shares) <= 1


def test_a_drawing_is_the_same_each_time_and_another_with_another_seed():
    many = examples([0, 1] * 40)
    assert draw(fraction=0.25, seed=3).positions(many)[:6] == [0, 2, 5, 6, 8, 15], "as in the version that wrote this"
    assert draw(fraction=0.25, seed=3).positions(many) != draw(fraction=0.25, seed=4).positions(many)
    assert draw(fraction=0.25).positions(many) == draw(fraction=0.25, seed=0).positions(many)
    scores = examples([0.5, 1.0, 2.0, 0.25])
    assert (len(draw(fraction=0.5).positions(scores)), "stratified" in draw(fraction=0.5).note(scores)) == (2, False)
    with pytest.raises(ValueError, match=r"only examples with a class can be stratified\. Write stratified: false"):
        draw(fraction=0.5, stratified="true").positions(scores)


@given(st.integers(2, 300), st.integers(1, 99))
def test_two_slices_at_one_percentage_share_nothing_and_leave_nothing(count, percent):
    many = examples([0] * count)
    assume(0 < count * percent // 100 < count)
    head, tail = (parse_cut(text).positions(many) for text in (f"train[:{percent}%]", f"train[{percent}%:]"))
    assert head + tail == list(range(count))
    many = examples([0] * 25)
    assert parse_cut("train[-20%:]").positions(many) == list(range(20, 25))
    assert parse_cut("train[10%:5]").positions(many) == [2, 3, 4]
    with pytest.raises(ValueError, match=r"train\[:1%\] is empty: train has 25 examples"):
        parse_cut("train[:1%]").positions(many)


CUTS = st.sampled_from([
    "train[-5:]", "train[:20%]", "train[3:9]", "{from: train, fraction: 0.2, seed: 1}", "{from: train, fold: 1, of: 4}",
])  # fmt: skip


@given(CUTS, CUTS)
def test_dev_and_test_never_share_an_example_or_are_refused(dev, test):
    many = examples([0, 1, 2] * 15)
    cuts = {"dev": parse_cut(dev, "dev_from"), "test": parse_cut(test, "test_from")}
    positions = [set(cut.positions(many)) for cut in cuts.values()]
    if all(isinstance(cut, Slice) for cut in cuts.values()) and positions[0] & positions[1]:
        with pytest.raises(ValueError, match="shares examples with the other part"):
            carve(many, cuts)
        return
    rest, carved = carve(many, cuts)  # a drawing takes of what a slice leaves
    parts = [rest, carved["dev"], carved["test"]]
    assert sorted(int(one.id) for part in parts for one in part) == list(range(45))
    assert all([one.id for one in part] == sorted((one.id for one in part), key=int) for part in parts)


def test_the_test_does_not_depend_on_how_dev_is_drawn():
    many = examples([0, 1] * 30)
    cut = parse_cut("{from: train, fraction: 0.2}", "test_from")
    dev = parse_cut("{from: train, fold: 0, of: 3}", "dev_from")
    assert carve(many, {"test": cut})[1]["test"] == carve(many, {"dev": dev, "test": cut})[1]["test"]


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        *((text, "is not a part of train or dev") for text in (
            "test[:10]", "train[10]", "train[::2]", "train[a:b]", "train[:]", "{from: test, fold: 0, of: 2}", "{from",
            "{from: train}", "{from: train, fraction: 0.1, fold: 0, of: 5}", "{from: train, fold: 0}",
            "{from: train, fraction: x}", "{from: train, fraction: 0.1, seed: -1}", "{from: [train], fraction: 0.1}",
            "{from: train, fraction: 0.1, stratified: maybe}",
        )),
        ("{from: train, fold: 0, of: 1}", "there is no fold 0 of 1"),
        ("{from: train, fraction: nan}", "fraction is nan; write a number between 0 and 1"),
        ("train", "Write train[-500:], train[:10%], {from: train, fraction: 0.1, seed: 0} or"),
    ],
)  # fmt: skip
def test_other_parts_are_refused_with_the_right_form(written, wanted):
    with pytest.raises(ValueError, match=r"^--test-from") as caught:
        parse_cut(written)
    assert wanted in str(caught.value)
    assert "\n" not in str(caught.value)


TASK = """\
name: reviews
kind: sentence_classification
files: {train: train.tsv}
dev_from: {from: train, fraction: 0.2, seed: 1}
format: tsv
columns: {text: text, label: label}
labels: [a, b]
"""


def task_file(tmp_path, text=TASK, rows=40):
    lines = [f"text {number}\t{'ab'[number % 2]}" for number in range(rows)]
    (tmp_path / "train.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n", encoding="utf-8")
    path = tmp_path / "task.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_command_line_and_the_task_file_have_one_grammar(tmp_path):
    cut = "{from: train, fraction: 0.25, seed: 2}"
    given_in_file = DataSpec(task_file(tmp_path, TASK + f"test_from: {cut}\n"))
    written, opened = load_training_data(given_in_file), open_test(given_in_file)
    assert check(given_in_file) == "carved"
    given_outside = DataSpec(task_file(tmp_path), test_from=cut)
    assert load_training_data(given_outside).fingerprint == written.fingerprint
    assert open_test(given_outside).fingerprint == opened.fingerprint
    assert written.notes == ("dev = 20 % of train, stratified, seed 1", "test = 25 % of train, stratified, seed 2")
    assert opened.notes == written.notes[1:]
    assert (len(written.train), len(written.dev), len(opened.examples)) == (24, 6, 10)


def test_the_option_goes_before_the_task_file(tmp_path):
    spec = DataSpec(task_file(tmp_path, TASK + "test_from: train[:8]\n"), test_from="dev[:50%]")
    data, opened = load_training_data(spec), open_test(spec)
    assert data.notes[-1] == "test = dev[:50%]"
    assert (len(data.train), len(data.dev), len(opened.examples)) == (32, 4, 4)
    assert not {one.id for one in opened.examples} & {one.id for one in data.train + data.dev}


AUTHORS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), min_size=4, max_size=60)


def by_author(rows):
    return [
        Example(str(number), ("text",), label=label, group=str(author)) for number, (author, label) in enumerate(rows)
    ]


@given(AUTHORS, SEEDS, st.integers(2, 4))
def test_folds_of_groups_cut_no_group_and_hold_each_example_once(rows, seed, of):
    assume(len({author for author, _ in rows}) > of)
    folds = [replace(draw(fold=fold, of=of, seed=seed), by_group=True).positions(by_author(rows)) for fold in range(of)]
    assert sorted(position for fold in folds for position in fold) == list(range(len(rows)))
    authors = [{rows[position][0] for position in fold} for fold in folds]
    assert sum(map(len, authors)) == len(set().union(*authors))


def test_of_few_groups_a_fraction_draws_one():
    rows = by_author([(author, 0) for author in range(5) for _ in range(30)])
    cut = replace(draw(fraction=0.1), by_group=True)
    (drawn,) = {rows[position].group for position in cut.positions(rows)}
    assert drawn in "01234"
    assert cut.note(rows).startswith("1 of 5 groups of train")


def test_a_slice_that_cuts_a_group_is_refused_with_the_remedy():
    rows = by_author([(0, 0), (0, 1), (1, 0), (1, 1)])
    assert replace(parse_cut("train[-2:]"), by_group=True).positions(rows) == [2, 3]
    with pytest.raises(ValueError, match=r"cuts the group '1' apart\. Write \{from: train, fraction: 0\.1\}"):
        replace(parse_cut("train[-1:]"), by_group=True).positions(rows)


GROUPED = """
name: reviews
kind: sentence_classification
files: {train: train.csv}
dev_from: {from: train, fraction: 0.25, seed: 0}
test_from: {from: train, fraction: 0.25, seed: 1}
format: csv
labels: [bad, good]
columns: {text: text, label: label, group: author}
"""


def test_a_task_with_groups_keeps_each_on_one_side_and_another_column_is_other_data(tmp_path):
    rows = "".join(f"text {row},{('bad', 'good')[row % 2]},a{row // 5},b{row // 5 % 7}\n" for row in range(100))
    (tmp_path / "train.csv").write_text(f"text,label,author,other\n{rows}", encoding="utf-8")
    prints = []
    for columns in ("group: author", "group: other", ""):
        text = GROUPED.replace(", group: author", f", {columns}" if columns else "")
        (tmp_path / "task.yaml").write_text(text, encoding="utf-8")
        spec = DataSpec(str(tmp_path / "task.yaml"))
        data, test = load_training_data(spec), open_test(spec)
        prints.append(data.fingerprint)
        if columns:
            sides = [{one.group for one in side} for side in (data.train, data.dev, test.examples)]
            assert sum(map(len, sides)) == len(set().union(*sides)) == (20 if "author" in columns else 7)
            assert "whole groups" in " ".join(data.notes)
    assert len(set(prints)) == 3
