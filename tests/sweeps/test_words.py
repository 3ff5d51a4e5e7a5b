"""The word tokenizer of a cell: the default by encoder and task, in every setting, and another one is another trial."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from meltpoint import tasks
from meltpoint.adapters import encoders, settings
from meltpoint.search_spaces.space import Space
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import OpenCell, open_cells
from meltpoint.sweeps.specification.space_rules import with_word_tokenizer
from meltpoint.sweeps.specification.sweep_spec import SweepSpec
from meltpoint.tests.adapters.conftest import save_tiny_elmo

ROWS = "text\tlabel\n" + "It was good.\tgood\nIt wasn't.\tbad\n" * 4
TASK = {
    "name": "mine", "kind": "sentence_classification", "files": {"train": "a.tsv", "dev": "a.tsv"},
    "format": "tsv", "columns": {"text": "text", "label": "label"}, "labels": ["bad", "good"],
}  # fmt: skip
RAW = ("mnli", "sick_e", "sick_r", "mrpc", "stsb", "cola", "qqp", "yahoo")
TOKENISED = ("sst2", "sst2_phrases", "sst2_subtrees", "conll2003", "demo_sentiment", "demo_entailment")
Open = Callable[..., OpenCell]


@pytest.fixture
def opened(tmp_path: Path, quick_space: Path) -> Open:
    """Opens the cell of a tiny ELMo on a task file, frozen, with overrides."""
    elmo = save_tiny_elmo(tmp_path / "elmo")
    (tmp_path / "a.tsv").write_text(ROWS, encoding="utf-8")

    def cell(*overrides: str, **task: object) -> OpenCell:
        path = tmp_path / "mine.yaml"
        path.write_text(yaml.safe_dump({**TASK, **task}), encoding="utf-8")
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


def test_every_setting_of_elmo_on_raw_text_names_moses(opened: Open):
    assert opened().space.first()["word_tokenizer"] == "moses"


def test_elmo_on_a_tokenised_task_and_an_asked_rule_are_left_alone(opened: Open):
    assert "word_tokenizer" not in opened(tokenised="true").space.first()
    assert opened("word_tokenizer=whitespace").space.first()["word_tokenizer"] == "whitespace"


def test_trials_of_another_word_tokenizer_are_other_trials(opened: Open):
    raw, plain, tokenised = opened(), opened("word_tokenizer=whitespace"), opened(tokenised="true")
    assert trial_id(raw) != trial_id(plain)
    assert trial_id(plain) == trial_id(tokenised)


def test_an_exported_setting_keeps_the_rule_that_it_was_found_with(opened: Open):
    cell = opened("word_tokenizer=whitespace")
    complete = settings.complete(cell.space.first(), cell.mode, cell.head, cell.task.kind)
    exported = cell.space.fixed(complete, provenance={"dev": 0.5})
    assert with_word_tokenizer(exported, cell.reference, cell.task).first() == exported.first()


def test_an_encoder_with_a_tokenizer_of_its_own_reads_raw_text_as_it_is():
    allowed = {own.name: own for own in settings.parameters("feature_extraction", "linear")}
    minilm = encoders.resolve("minilm", "pair_classification")
    assert with_word_tokenizer(Space.of({}, allowed), minilm, tasks.get("mrpc")).parameters == {}


def test_the_tasks_say_which_of_their_texts_are_tokenised():
    assert not any(tasks.get(name).tokenised for name in RAW)
    assert all(tasks.get(name).tokenised for name in TOKENISED)
    assert not tasks.get("yahoo:sports+health").tokenised


def test_a_wrong_value_of_tokenised_in_a_task_file_is_named_with_the_remedy(opened: Open):
    with pytest.raises(ValueError, match="tokenised is 'perhaps'; write true or false"):
        opened(tokenised="perhaps")
