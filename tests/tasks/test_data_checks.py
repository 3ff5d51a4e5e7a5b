"""Checks of train and dev: shared texts, missing classes, a small dev split; and none where nothing is wrong."""

from __future__ import annotations

import pytest

from meltpoint.tasks.core.splits import data_warnings
from meltpoint.tasks.core.task import Example, Kind, Task, TrainingData

KINDS: dict[Kind, tuple[str, ...]] = {
    "sentence_classification": ("no", "yes"), "pair_regression": (), "sequence_labelling": ("O", "B-X", "I-X"),
}  # fmt: skip


def data(train: list[Example], dev: list[Example], kind: Kind = "sentence_classification") -> TrainingData:
    labels = KINDS[kind]
    task = Task(name="t", kind=kind, metric="m", folder="", readers={}, labels=labels)
    return TrainingData(task, train, dev, "f" * 16)


def sentences(prefix: str, count: int, classes: int = 2) -> list[Example]:
    return [Example(f"{prefix}{n}", texts=(f"{prefix} {n}",), label=n % classes) for n in range(count)]


def test_sound_data_give_no_warning() -> None:
    assert data_warnings(data(sentences("train", 50), sentences("dev", 400))) == []


def test_texts_of_dev_that_stand_in_train_are_counted_whatever_their_case() -> None:
    train = sentences("train", 50)
    dev = [*sentences("dev", 396), *(Example(f"x{n}", texts=(f"TRAIN {n} ",), label=0) for n in range(4))]
    (line,) = data_warnings(data(train, dev))
    assert line.startswith("4 dev examples of 400 (1.0 %) also occur in train")
    assert data_warnings(data(train, [*sentences("dev", 397), *dev[396:399]])) == [], (
        "3 of 400 move no score by a point"
    )


def test_a_class_without_an_example_is_named_with_its_split() -> None:
    lines = data_warnings(data(sentences("train", 50, classes=1), sentences("dev", 400)))
    assert lines == ["train has no example of yes"]


@pytest.mark.parametrize(("size", "is_small"), [(384, True), (385, False)])
def test_a_dev_split_whose_scores_are_known_to_more_than_five_points_is_named(size: int, is_small: bool) -> None:
    lines = data_warnings(data(sentences("train", 50), sentences("dev", size)))
    assert bool(lines) is is_small
    assert all("about ± 5 points" in line for line in lines)


def test_words_to_label_need_every_span_type_and_no_inside_tag() -> None:
    def example(name: str, tags: tuple[int, ...]) -> Example:
        return Example(name, words=tuple(f"{name}{n}" for n in range(len(tags))), label=tags)

    train = [example("a", (0, 1))]
    dev = [example(f"d{n}", (0, 1)) for n in range(400)]
    assert data_warnings(data(train, dev, "sequence_labelling")) == []
    assert data_warnings(data([example("a", (0, 0))], dev, "sequence_labelling")) == ["train has no example of B-X"]


def test_scores_have_no_classes_to_miss() -> None:
    train = [Example(str(n), texts=(f"a{n}", "b"), label=float(n)) for n in range(5)]
    dev = [Example(f"d{n}", texts=(f"c{n}", "b"), label=1.0) for n in range(400)]
    assert data_warnings(data(train, dev, "pair_regression")) == []
