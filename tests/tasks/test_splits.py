"""Train and dev: samples, carved parts, fingerprints, and warnings about the data."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meltpoint import tasks
from meltpoint.tasks.core.carving import carve, parse_cut
from meltpoint.tasks.core.locked import open_test
from meltpoint.tasks.core.sources import check, read_split
from meltpoint.tasks.core.splits import data_warnings, dev_sample_size, fingerprint, load_training_data, nested, sample
from meltpoint.tasks.core.task import DataSpec, Example, Kind, Task, TrainingData

MANY = [Example(str(number), (f"text {number}",), label=number % 2) for number in range(50)]


def folder(tmp_path, lines=40, name="data"):
    """A folder with CoLA's three files, in the original format."""
    cola = tmp_path / name / "cola"
    cola.mkdir(parents=True)
    for file in ("in_domain_train", "in_domain_dev", "out_of_domain_dev"):
        rows = [f"x\t{number % 2}\t\tsentence {number} of {file}" for number in range(lines)]
        (cola / f"{file}.tsv").write_text("\n".join(rows))
    return str(tmp_path / name)


@given(st.integers(1, 50))
def test_a_sample_is_the_same_each_time_in_order_and_without_repeats(size):
    sampled = sample(MANY, size)
    assert sampled == sample(MANY, size)
    ids = [int(example.id) for example in sampled]
    assert ids == sorted(set(ids))
    assert len(ids) == size


@given(st.integers(-60, 60) | st.none(), st.integers(-60, 60) | st.none())
def test_carving_divides_the_split_as_python_slices_do(start, stop):
    written = f"train[{'' if start is None else start}:{'' if stop is None else stop}]"
    wanted = MANY[start:stop]
    if start is None and stop is None:
        with pytest.raises(ValueError, match="is not a part"):
            parse_cut(written)
    elif wanted in ([], MANY):
        with pytest.raises(ValueError, match=r"is empty|leaves nothing"):
            carve(MANY, {"test": parse_cut(written)})
    else:
        rest, parts = carve(MANY, {"test": parse_cut(written)})
        assert parts == {"test": wanted}
        assert rest == [example for example in MANY if example not in wanted]


def test_dev_is_sampled_in_its_order_and_neither_train_nor_a_test_that_is_carved_off_it(tmp_path):
    data_dir, cut = folder(tmp_path), "dev[-10:]"
    whole = load_training_data(DataSpec("cola", data_dir, test_from=cut))
    spec = DataSpec("cola", data_dir, test_from=cut, max_dev_examples=12)
    sampled = load_training_data(spec)
    assert sampled.train == whole.train
    assert sampled.dev == sorted(sampled.dev, key=whole.dev.index)
    assert len(set(sampled.dev)) == 12
    assert sampled.dev == load_training_data(spec).dev
    assert sampled.notes == (*whole.notes, "dev sample of 12 of 70 for epochs, seed 0; finals on all of it")
    assert sampled.fingerprint != whole.fingerprint
    assert open_test(spec).examples == open_test(DataSpec("cola", data_dir, test_from=cut)).examples


def test_only_a_sample_of_sentences_in_documents_keeps_the_others_as_context(tmp_path):
    conll = tmp_path / "conll2003"
    conll.mkdir()
    sentences = "".join(f"-DOCSTART- -X- O O\n\n{number} NN O O\n\nand NN O O\n\n" for number in range(5))
    for name in ("eng.train", "eng.testa", "eng.testb"):
        (conll / name).write_text(sentences)
    data_dir = str(tmp_path)
    sampled = load_training_data(DataSpec("conll2003", data_dir, max_train_examples=3))
    assert [len(sampled.train), len(sampled.whole_train)] == [3, 10]
    assert set(sampled.train) < set(sampled.whole_train)
    assert sampled.whole_dev is None
    whole = load_training_data(DataSpec("conll2003", data_dir))
    assert whole.whole_train is whole.whole_dev is None
    carved = load_training_data(DataSpec("conll2003", data_dir, 3, "train[-4:]", 2))
    assert [len(carved.whole_train), len(carved.whole_dev)] == [6, 10], "what is carved off as test is no context"
    texts = load_training_data(DataSpec("cola", folder(tmp_path), max_train_examples=3))
    assert texts.whole_train is None


def test_the_fingerprint_depends_on_the_data_and_not_on_the_folder(tmp_path):
    first = load_training_data(DataSpec("cola", folder(tmp_path, name="one")))
    second = load_training_data(DataSpec("cola", folder(tmp_path, name="two")))
    fewer = load_training_data(DataSpec("cola", folder(tmp_path, lines=39, name="three")))
    assert first.fingerprint == second.fingerprint != fewer.fingerprint
    assert len(first.fingerprint) == 16


def test_the_fingerprint_sees_dev_examples_that_no_epoch_is_scored_on(monkeypatch):
    def loaded(dev):
        splits = {"train": lambda folder: MANY, "dev": lambda folder: dev}
        made = Task("t", "sentence_classification", "accuracy", "", splits, labels=("no", "yes"), generated=True)
        monkeypatch.setattr("meltpoint.tasks.core.splits.find", lambda spec: made)
        monkeypatch.setattr("meltpoint.tasks.core.splits.read_split", lambda spec, split: splits[split](None))
        return load_training_data(DataSpec("t", max_dev_examples=4))

    before = loaded(MANY[:20])
    unseen = next(n for n, one in enumerate(MANY[:20]) if one not in before.dev)
    changed = [replace(one, texts=("other",)) if n == unseen else one for n, one in enumerate(MANY[:20])]
    after = loaded(changed)
    assert after.dev == before.dev
    assert after.fingerprint != before.fingerprint


def test_the_fingerprint_sees_texts_labels_order_and_where_a_split_ends():
    task = tasks.get("cola")
    base = fingerprint(task, MANY, MANY[:5])
    relabelled = [Example("0", ("text 0",), label=1), *MANY[1:]]
    assert base != fingerprint(task, relabelled, MANY[:5])
    assert base != fingerprint(task, MANY[::-1], MANY[:5])
    assert base != fingerprint(task, [*MANY, MANY[0]], MANY[1:5])
    assert base != fingerprint(tasks.get("sst2"), MANY, MANY[:5])


def test_the_fingerprint_is_the_same_in_another_process(tmp_path):
    spec = DataSpec("cola", folder(tmp_path), max_train_examples=10)
    code = (
        "from meltpoint.tasks.core.splits import load_training_data as load\n"
        "from meltpoint.tasks.core.task import DataSpec\n"
        f"print(load({spec!r}).fingerprint, load(DataSpec('demo_similarity')).fingerprint)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    wanted = [load_training_data(one).fingerprint for one in (spec, DataSpec("demo_similarity"))]
    assert done.stdout.split() == wanted


def test_check_says_what_the_test_will_be(tmp_path):
    data = folder(tmp_path)
    assert check(DataSpec("cola", data)) == "absent"
    assert check(DataSpec("cola", data, test_from="train[-5:]")) == "carved"
    (tmp_path / "data/cola/test.tsv").write_text("index\tsentence\n0\tone\n1\ttwo\n")
    assert check(DataSpec("cola", data)) == "hidden"
    assert check(DataSpec("cola")) == "hidden"
    assert check(DataSpec("demo_sentiment")) == "labelled"


def test_what_is_missing_of_any_split_or_a_sample_of_nothing_stops_before_anything_is_read(tmp_path):
    with pytest.raises(ValueError, match=r"cola is missing; cola reads .*in_domain_train\.tsv.*leave --data-dir out"):
        check(DataSpec("cola", str(tmp_path)))
    data = folder(tmp_path)
    with pytest.raises(ValueError, match=r"locked; only tasks/core/locked\.py opens it"):
        read_split(DataSpec("cola", data), "test")
    for option in ("max_train_examples", "max_dev_examples"):
        with pytest.raises(ValueError, match="at least 1"):
            load_training_data(DataSpec("cola", data, **{option: 0}))
    (tmp_path / "data/cola/out_of_domain_dev.tsv").unlink()
    with pytest.raises(ValueError, match=r"out_of_domain_dev\.tsv is missing; cola needs it"):
        check(DataSpec("cola", data))
    sick = tmp_path / "data/sick"
    sick.mkdir()
    for name in ("SICK_train.txt", "SICK_trial.txt"):
        (sick / name).write_text("x")
    with pytest.raises(ValueError, match=r"SICK_test_annotated\.txt is missing"):
        check(DataSpec("sick_e", data))


@pytest.mark.parametrize(
    ("train", "dev", "scored"),
    [(200, 3250, 500), (200, 750, 750), (200, 751, 500), (1000, 3250, 2000), (2000, 3250, 3250), (6920, 872, 872)],
)
def test_epochs_are_scored_on_a_sample_of_a_dev_that_is_many_times_train(train, dev, scored):
    assert dev_sample_size(train, dev) == scored


def test_the_default_dev_sample_has_each_class_s_share_and_all_of_dev_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("meltpoint.tasks.core.splits.FEWEST_SAMPLED", 4)
    data_dir = folder(tmp_path)
    whole = load_training_data(DataSpec("cola", data_dir, max_train_examples=10))
    spec = DataSpec("cola", data_dir, max_train_examples=10, max_dev_examples="auto")
    sampled = load_training_data(spec)
    assert (len(sampled.dev), sampled.all_dev, sampled.train) == (20, whole.dev, whole.train)
    shares = [sum(example.label == 1 for example in split) / len(split) for split in (sampled.dev, whole.dev)]
    assert abs(shares[0] - shares[1]) <= 1 / 20
    assert sampled.notes[-1] == "dev sample of 20 of 80 for epochs, stratified, seed 0; finals on all of it"
    assert sampled.dev == load_training_data(spec).dev
    assert sampled.fingerprint != whole.fingerprint


KINDS: dict[Kind, tuple[str, ...]] = {
    "sentence_classification": ("no", "yes"), "pair_regression": (), "sequence_labelling": ("O", "B-X", "I-X"),
}  # fmt: skip


def data(train: list[Example], dev: list[Example], kind: Kind = "sentence_classification") -> TrainingData:
    labels = KINDS[kind]
    task = Task(name="t", kind=kind, metric="m", folder="", readers={}, labels=labels)
    return TrainingData(task, train, dev, "f" * 16)


def sentences(prefix: str, count: int, classes: int = 2) -> list[Example]:
    return [Example(f"{prefix}{n}", texts=(f"{prefix} {n}",), label=n % classes) for n in range(count)]


def test_texts_of_dev_that_stand_in_train_are_counted_whatever_their_case() -> None:
    train = sentences("train", 50)
    dev = [*sentences("dev", 396), *(Example(f"x{n}", texts=(f"TRAIN {n} ",), label=0) for n in range(4))]
    (line,) = data_warnings(data(train, dev))
    assert line.startswith("4 dev examples of 400 (1.0 %) also occur in train")
    assert data_warnings(data(train, [*sentences("dev", 397), *dev[396:399]])) == [], (
        "3 of 400 move no score by a point"
    )


@pytest.mark.parametrize(("size", "is_small"), [(153, True), (154, False)])
def test_a_dev_split_that_cannot_tell_five_points_apart_is_named(size: int, is_small: bool) -> None:
    lines = data_warnings(data(sentences("train", 50), sentences("dev", size)))
    assert bool(lines) is is_small
    assert all(line.startswith("dev has 153 examples: a difference of less than about 5 points") for line in lines)


def test_a_class_or_span_type_without_an_example_is_named_and_an_inside_tag_is_not() -> None:
    def example(name: str, tags: tuple[int, ...]) -> Example:
        return Example(name, words=tuple(f"{name}{n}" for n in range(len(tags))), label=tags)

    train = [example("a", (0, 1))]
    dev = [example(f"d{n}", (0, 1)) for n in range(400)]
    assert data_warnings(data(train, dev, "sequence_labelling")) == []
    assert data_warnings(data([example("a", (0, 0))], dev, "sequence_labelling")) == ["train has no example of B-X"]
    one_class = data(sentences("train", 50, classes=1), sentences("dev", 400))
    assert data_warnings(one_class) == ["train has no example of yes"]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.data())
def test_a_nested_sample_holds_the_smaller_ones_and_keeps_the_classes_shares(labels, data):
    examples = [Example(str(number), label=label) for number, label in enumerate(labels)]
    size = data.draw(st.integers(1, len(examples)))
    chosen = nested(examples, size)
    assert len(chosen) == size
    assert [int(example.id) for example in chosen] == sorted(int(example.id) for example in chosen)
    smaller = nested(examples, data.draw(st.integers(1, size)))
    assert {example.id for example in smaller} <= {example.id for example in chosen}
    for label in set(labels):
        expected = size * labels.count(label) / len(labels)
        assert abs(sum(example.label == label for example in chosen) - expected) <= 2
