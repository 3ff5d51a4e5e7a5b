"""Epochs of cells with few training examples: scaled towards 200 steps where nobody named them, and said."""

from __future__ import annotations

from pathlib import Path

import pytest

from meltpoint.sweeps.specification.cells import OpenCell, open_cells
from meltpoint.sweeps.specification.space_rules import ENOUGH_STEPS, MOST_EPOCHS
from meltpoint.sweeps.specification.sweep_spec import SweepSpec

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
@pytest.mark.parametrize("examples", [20, 300, 1000, 2100])
def test_the_first_setting_has_two_hundred_steps_or_twenty_epochs(tmp_path: Path, mode: str, examples: int) -> None:
    cell = opened(tmp_path, examples, mode)
    first = cell.space.first()
    steps = -(-examples // int(first["batch_size"])) * int(first["epochs"])
    assert first["epochs"] == MOST_EPOCHS or ENOUGH_STEPS <= steps < ENOUGH_STEPS + -(-examples // 32)
    (note,) = (note for note in cell.notes if note.startswith("epochs"))
    assert "Mosbach et al. 2021" in note


def test_the_values_keep_their_proportions_and_are_said_beside_the_old_ones(tmp_path: Path) -> None:
    cell = opened(tmp_path, 300)
    assert epochs(cell) == (20, 27, 33)
    assert "epochs 20, 27, 33 instead of 3, 4, 5, since an epoch is 10 steps (Mosbach et al. 2021)" in cell.notes


@pytest.mark.parametrize(
    ("examples", "fields"),
    [
        (2200, {}),
        (300, {"overrides": ("epochs=3",)}),
        (300, {"overrides": ("epochs={choice: [3, 4, 5]}",)}),
        (2200, {"mode": "feature_extraction"}),
        (300, {"mode": "feature_extraction", "overrides": ("patience=5",)}),
        (300, {"mode": "feature_extraction", "overrides": ("epochs=40",)}),
        (300, {"task": "demo_sentiment"}),
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
    tmp_path: Path, examples: int, fields: dict[str, object]
) -> None:
    cell = opened(tmp_path, examples, **fields)  # type: ignore[arg-type]
    assert not [note for note in cell.notes if note.startswith(("epochs", "patience"))]
    assert epochs(cell)[0] in (3, 40, 75)


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
