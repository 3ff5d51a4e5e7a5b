"""The rules of a space: epochs of small data, and the word tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from meltpoint import tasks
from meltpoint.adapters import settings
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import OpenCell, open_cells
from meltpoint.sweeps.specification.space_rules import ENOUGH_STEPS, MOST_EPOCHS, with_word_tokenizer
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tests.adapters.conftest import save_tiny_elmo

TASK = """\
name: reviews
kind: sentence_classification
files: {train: train.tsv, dev: dev.tsv}
format: tsv
header: true
columns: {text: sentence, label: label}
labels: [bad, good]
"""


def opened(place: Path, examples: int, mode: str = "fine_tuning", task: str = "", **fields: object) -> OpenCell:
    for split, count in (("train", examples), ("dev", 20)):
        rows = "".join(f"{split} {number}\t{('bad', 'good')[number % 2]}\n" for number in range(count))
        (place / f"{split}.tsv").write_text("sentence\tlabel\n" + rows, encoding="utf-8")
    (place / "reviews.yaml").write_text(TASK, encoding="utf-8")
    values = {"name": "n", "encoders": ("minilm",), "modes": (mode,), "tasks": (task or str(place / "reviews.yaml"),)}
    (cell,) = open_cells(SweepSpec.model_validate(values | {"head": "linear"} | fields))
    return cell


def epochs(cell: OpenCell) -> tuple[int, ...]:
    return tuple(int(value) for value in cell.space.parameters["epochs"].points() or ())


@pytest.mark.parametrize("mode", ["fine_tuning", "stack_and_finetune"])
@pytest.mark.parametrize(
    ("examples", "batches", "epochs"),
    [(20, (8,), 20), (300, (8,), 6), (500, (8,), 4), (1000, (8,), 3), (1500, (16, 8), 3), (2100, (16, 8), 3)],
)
def test_few_examples_train_in_smaller_batches_first_and_then_for_more_epochs(
    tmp_path: Path, mode: str, examples: int, batches: tuple[int, ...], epochs: int
) -> None:
    cell = opened(tmp_path, examples, mode)
    first = cell.space.first()
    assert (tuple(cell.space.parameters["batch_size"].points() or ()), first["epochs"]) == (batches, epochs)
    steps = -(-examples // int(first["batch_size"])) * int(first["epochs"])
    assert first["epochs"] == MOST_EPOCHS or steps >= ENOUGH_STEPS
    (note,) = (note for note in cell.notes if "since an epoch is" in note)
    assert "Mosbach et al. 2021" in note


def test_the_values_keep_their_proportions_and_are_said_beside_the_old_ones(tmp_path: Path) -> None:
    cell = opened(tmp_path, 100)
    assert epochs(cell) == (16, 21, 27)
    said = "batch_size 8 instead of 32, 16; epochs 16, 21, 27 instead of 3, 4, 5, since an epoch is 4 steps"
    assert f"{said} (Mosbach et al. 2021)" in cell.notes


def test_a_batch_size_by_hand_stays(tmp_path: Path) -> None:
    cell = opened(tmp_path, 300, overrides=("batch_size=32",))
    assert (cell.space.first()["batch_size"], epochs(cell)) == (32, (20, 27, 33))


@pytest.mark.parametrize(
    ("examples", "fields", "first"),
    [
        (2200, {}, 3),
        (300, {"overrides": ("epochs=3",)}, 3),
        (300, {"overrides": ("epochs={choice: [3, 4, 5]}",)}, 3),
        (2200, {"mode": "feature_extraction"}, 75),
        (300, {"mode": "feature_extraction", "overrides": ("patience=5",)}, 75),
        (300, {"mode": "feature_extraction", "overrides": ("epochs=40",)}, 40),
        (300, {"task": "demo_sentiment"}, 3),
    ],
    ids=[
        "enough examples",
        "a value by hand",
        "a range by hand",
        "a frozen encoder",
        "a patience by hand",
        "a cap by hand",
        "a space of the task",
    ],
)
def test_what_needs_no_more_or_was_named_stays_as_it_is(
    tmp_path: Path, examples: int, fields: dict[str, object], first: int
) -> None:
    cell = opened(tmp_path, examples, **fields)  # type: ignore[arg-type]
    assert not [note for note in cell.notes if note.startswith(("epochs", "patience", "batch"))]
    assert epochs(cell)[0] == first


@pytest.mark.parametrize(
    ("examples", "patience", "cap"), [(300, 20, 300), (1000, 7, 105), (20, 200, 1000), (1280, 5, 75)]
)
def test_a_frozen_encoders_head_may_stay_for_two_hundred_steps_before_it_ends(
    tmp_path: Path, examples: int, patience: int, cap: int
) -> None:
    cell = opened(tmp_path, examples, "feature_extraction")
    assert (cell.space.first()["patience"], cell.space.first()["epochs"]) == (patience, cap)
    said = f"patience {patience} and at most {cap} epochs instead of 5 and 75, since an epoch is "
    assert [note.startswith(said) for note in cell.notes if "patience" in note] == [True] * (patience > 5)


def test_a_space_file_of_ones_own_stays_as_it_is(tmp_path: Path) -> None:
    space = tmp_path / "fine_tuning.yaml"
    space.write_text("parameters:\n  epochs: {choice: [2, 3]}\n", encoding="utf-8")
    assert epochs(opened(tmp_path, 300, space=str(space))) == (2, 3)


ROWS = "text\tlabel\n" + "It was good.\tgood\nIt wasn't.\tbad\n" * 4
PLAIN_TASK = {
    "name": "mine", "kind": "sentence_classification", "files": {"train": "a.tsv", "dev": "a.tsv"},
    "format": "tsv", "columns": {"text": "text", "label": "label"}, "labels": ["bad", "good"],
}  # fmt: skip
RAW = ("mnli", "sick_e", "sick_r", "mrpc", "stsb", "cola", "qqp", "yahoo")
TOKENISED = ("sst2", "sst2_phrases", "sst2_subtrees", "conll2003", "demo_sentiment", "demo_entailment")
Open = Callable[..., OpenCell]


@pytest.fixture
def opened_words(tmp_path: Path, quick_space: Path) -> Open:
    """Opens the cell of a tiny ELMo on a task file, frozen, with overrides."""
    elmo = save_tiny_elmo(tmp_path / "elmo")
    (tmp_path / "a.tsv").write_text(ROWS, encoding="utf-8")

    def cell(*overrides: str, **task: object) -> OpenCell:
        path = tmp_path / "mine.yaml"
        path.write_text(yaml.safe_dump({**PLAIN_TASK, **task}), encoding="utf-8")
        spec = SweepSpec(
            name="words", encoders=(f"elmo:{elmo}",), modes=("feature_extraction",), tasks=(str(path),), head="pooling",
            trials=2, seeds=2, space=str(quick_space), overrides=overrides,
        )  # fmt: skip
        return open_cells(spec)[0]

    return cell


def trial_id(cell: OpenCell) -> str:
    """The identity of a cell's first trial."""
    spec = SweepSpec(name="words", encoders=(cell.encoder,), modes=(cell.mode,), tasks=("demo_sentiment",))
    complete = settings.complete(cell.space.first(), cell.mode, cell.head, cell.task.kind)
    return Planner(spec, [cell], []).trial_id(cell, complete, 0, "search")


def test_elmo_on_a_tokenised_task_and_an_asked_rule_are_left_alone(opened_words: Open):
    assert "word_tokenizer" not in opened_words(tokenised="true").space.first()
    assert opened_words("word_tokenizer=whitespace").space.first()["word_tokenizer"] == "whitespace"


def test_trials_of_another_word_tokenizer_are_other_trials(opened_words: Open):
    raw, plain, tokenised = opened_words(), opened_words("word_tokenizer=whitespace"), opened_words(tokenised="true")
    assert trial_id(raw) != trial_id(plain)
    assert trial_id(plain) == trial_id(tokenised)


def test_an_exported_setting_keeps_the_rule_that_it_was_found_with(opened_words: Open):
    cell = opened_words("word_tokenizer=whitespace")
    complete = settings.complete(cell.space.first(), cell.mode, cell.head, cell.task.kind)
    exported = cell.space.fixed(complete, provenance={"dev": 0.5})
    assert with_word_tokenizer(exported, cell.reference, cell.task).first() == exported.first()


def test_the_tasks_say_which_of_their_texts_are_tokenised():
    assert not any(tasks.get(name).tokenised for name in RAW)
    assert all(tasks.get(name).tokenised for name in TOKENISED)
    assert not tasks.get("yahoo:sports+health").tokenised
