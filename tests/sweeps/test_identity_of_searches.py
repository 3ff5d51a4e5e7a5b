"""What a sweep searches: each field is refused under the same name, is in the identity, or changes nothing (and why).

The tables are read as those of `test_identity`; a new field has to be put into one of its classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path

import pytest
import yaml

from meltpoint.adapters import heads, modes, settings
from meltpoint.adapters.hyperparameters import Parameter, Value
from meltpoint.search_spaces.build import EarlyStopping
from meltpoint.search_spaces.ranges import Choice, Fixed, Integer, Real
from meltpoint.search_spaces.space import Space
from meltpoint.sweeps.driver.start import settle_specification
from meltpoint.sweeps.ledger.ledger import Ledger
from meltpoint.sweeps.results.sweep_file import read_sweep
from meltpoint.sweeps.search.planner import Planner
from meltpoint.sweeps.specification.cells import OpenCell, open_cells
from meltpoint.sweeps.specification.sweep_spec import Block, SweepSpec

CHANGES = "changes"
Change = Callable[[SweepSpec, Path], SweepSpec]


# --- a setting ---


def another(own: Parameter) -> Value:
    """Another value than the default."""
    if own.choices:
        return next(word for word in own.choices if word != own.default)
    if isinstance(own.default, bool):
        return not own.default
    if isinstance(own.default, int):
        return own.default + 1 if own.default + 1 <= own.maximum else own.default - 1
    return own.default / 2 if own.minimum <= own.default / 2 != own.default else own.maximum  # type: ignore[operator]


@pytest.mark.parametrize("mode", modes.names())
def test_every_parameter_makes_another_complete_setting_wherever_it_acts(mode):
    for head in heads.names():
        allowed = settings.parameters(mode, head)
        switches = [{own.name: True} for own in allowed if own.default is False]
        switches += [{own.name: word} for own in allowed for word in own.choices]
        for own in allowed:
            pairs = [({**on, own.name: own.default}, {**on, own.name: another(own)}) for on in ({}, *switches)]
            found = [[settings.complete(setting, mode, head) for setting in pair] for pair in pairs]
            assert any(one != two for one, two in found), (head, own.name)


# --- a space ---

SPACE = {
    "learning_rate": {"log_uniform": [1e-4, 1e-2], "first": 1e-3, "grid": [1e-3, 1e-2], "source": "ours"},
    "dropout": {"choice": [0.0, 0.1], "first": 0.1}, "epochs": 2, "batch_size": {"integer": [4, 8], "first": 8},
    "schedule": {"choice": ["slanted_triangular", "constant"]},
}  # fmt: skip
RULE = {"grace_epochs": 1, "reduction_factor": 3}
PLAIN = {**SPACE, "schedule": "constant"}


def with_range(name: str, **changes: object) -> dict[str, object]:
    entry = {**SPACE[name], **changes}  # type: ignore[dict-item]
    return {"parameters": {**SPACE, name: {key: value for key, value in entry.items() if value is not None}}}


SPACE_TABLE: dict[str, list[tuple[dict[str, object], str]]] = {
    "Space.parameters": [({"parameters": {**SPACE, "weight_decay": 0.5}}, CHANGES), ({"parameters": PLAIN}, CHANGES)],
    "Space.early_stopping": [({"parameters": PLAIN, "early_stopping": RULE}, CHANGES)],
    "Space.cell": [({"parameters": SPACE, "mode": "feature_extraction"}, "words about the file; the cell has its own")],
    "Space.provenance": [({"parameters": SPACE, "provenance": {"dev": 0.5}}, "where an exported file comes from")],
    "Space.sources": [({"parameters": SPACE}, "which file each range stood in")],
    "Space.allowed": [({"parameters": SPACE}, "from adapters/, whose code is in the identity")],
    "Space.elsewhere": [({"parameters": SPACE}, "for messages")],
    "Space.unreachable": [({"parameters": SPACE}, "of no trial; what an override makes of them counts")],
    "EarlyStopping.grace_epochs": [({"parameters": PLAIN, "early_stopping": {**RULE, "grace_epochs": 2}}, CHANGES)],
    "EarlyStopping.reduction_factor": [({"parameters": PLAIN, "early_stopping": {"reduction_factor": 4}}, CHANGES)],
    "EarlyStopping.grace_fraction": [({"parameters": PLAIN, "early_stopping": {"grace_fraction": 0.5}}, CHANGES)],
    "Fixed.value": [({"parameters": {**SPACE, "epochs": 3}}, CHANGES)],
    "Choice.values": [(with_range("dropout", choice=[0.0, 0.1, 0.2]), CHANGES)],
    "Choice.first": [(with_range("dropout", first=0.0), CHANGES)],
    "Integer.low": [(with_range("batch_size", integer=[5, 8]), CHANGES)],
    "Integer.high": [(with_range("batch_size", integer=[4, 9]), CHANGES)],
    "Integer.first": [(with_range("batch_size", first=5), CHANGES)],
    "Real.low": [(with_range("learning_rate", log_uniform=[2e-4, 1e-2]), CHANGES)],
    "Real.high": [(with_range("learning_rate", log_uniform=[1e-4, 2e-2]), CHANGES)],
    "Real.log": [(with_range("learning_rate", log_uniform=None, uniform=[1e-4, 1e-2]), CHANGES)],
    "Real.first": [(with_range("learning_rate", first=2e-3), CHANGES)],
    "Real.grid": [(with_range("learning_rate", grid=[1e-3, 2e-3]), CHANGES)],
    "Range.when": [(with_range("dropout", when={"schedule": "constant"}), CHANGES)],
    "Range.source": [(with_range("learning_rate", source="a paper"), "where the range comes from, for people")],
}  # fmt: skip


def test_the_table_has_every_field_of_a_space_and_its_ranges():
    ranges = {f"{kind.__name__}.{f.name}" for kind in (Fixed, Choice, Integer, Real) for f in fields(kind)}
    ranges = {f"Range.{name.partition('.')[2]}" if name.endswith((".when", ".source")) else name for name in ranges}
    own = {f"{kind.__name__}.{f.name}" for kind in (Space, EarlyStopping) for f in fields(kind)}
    assert set(SPACE_TABLE) == own | ranges


@pytest.mark.parametrize("field", SPACE_TABLE)
def test_a_field_of_a_space_is_refused_or_changes_nothing(field, frozen_spec, told_apart, tmp_path):
    def opened(document: Mapping[str, object]) -> tuple[SweepSpec, list[OpenCell]]:
        path = tmp_path / "space.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        own = frozen_spec.model_copy(update={"space": str(path)})
        return own, open_cells(own)

    base: dict[str, object] = {"parameters": SPACE}
    if field.startswith("EarlyStopping"):
        base = {"parameters": PLAIN, "early_stopping": {"grace_epochs": 1}}
    for document, says in SPACE_TABLE[field]:
        found = told_apart(opened(base), opened(document))
        assert found == ({"specification"} if says == CHANGES else set()), field


# --- a specification ---


def other_space(spec: SweepSpec, folder: Path) -> Path:
    path = folder / "moved.yaml"
    path.write_text(Path(str(spec.space)).read_text(encoding="utf-8"), encoding="utf-8")
    return path


SPEC_TABLE: dict[str, tuple[Change, str]] = {
    "name": (lambda s, f: s.model_copy(update={"name": "other"}), CHANGES),
    "encoders": (lambda s, f: s.model_copy(update={"encoders": ("minilm",)}), CHANGES),
    "modes": (lambda s, f: s.model_copy(update={"modes": ("fine_tuning",)}), CHANGES),
    "tasks": (lambda s, f: s.model_copy(update={"tasks": ("demo_sentiment",)}), CHANGES),
    "head": (lambda s, f: s.model_copy(update={"head": "mlp"}), CHANGES),
    "trials": (lambda s, f: s.model_copy(update={"trials": 2}), CHANGES),
    "seeds": (lambda s, f: s.model_copy(update={"seeds": 1}), CHANGES),
    "searcher": (lambda s, f: s.model_copy(update={"searcher": "random"}), CHANGES),
    "overrides": (lambda s, f: s.model_copy(update={"overrides": ("epochs=3",)}), CHANGES),
    "max_train_examples": (lambda s, f: s.model_copy(update={"max_train_examples": 20}), CHANGES),
    "max_dev_examples": (lambda s, f: s.model_copy(update={"max_dev_examples": 4}), CHANGES),
    "test_from": (lambda s, f: s.model_copy(update={"test_from": "dev[:4]"}), CHANGES),
    "seed": (lambda s, f: s.model_copy(update={"seed": 1}), CHANGES),
    "blocks": (lambda s, f: s.model_copy(update={"blocks": (BLOCK.model_copy(update={"encoders": s.encoders,
               "tasks": s.tasks, "head": "mlp"}),)}), CHANGES),
    "origin": (lambda s, f: s.model_copy(update={"origin": "table_4"}), CHANGES),
    "space": (lambda s, f: s.model_copy(update={"space": str(other_space(s, f))}), "its contents count"),
    "data_dir": (lambda s, f: s.model_copy(update={"data_dir": str(f)}), "the examples count"),
    "replaced": (lambda s, f: s.model_copy(update={"replaced": ("elmo=elmo:/x",)}), "the encoder is in the cells"),
    "left_out": (lambda s, f: s.model_copy(update={"left_out": ("elmo",)}), "cells that are not there yet"),
    "notes": (lambda s, f: s.model_copy(update={"notes": ("a note",)}), "for people: what the tables say"),
    "default_finals": (lambda s, f: s.model_copy(update={"default_finals": True}), "more finals; no trial is another"),
    "price_per_hour": (lambda s, f: s.model_copy(update={"price_per_hour": 2.5}), "for reports"),
    "margin": (lambda s, f: s.model_copy(update={"margin": 0.02}), "for the recommendation and the race"),
    "race": (lambda s, f: s.model_copy(update={"race": True}), "fewer trials; no trial is another"),
    "auto_trials": (lambda s, f: s.model_copy(update={"auto_trials": True}), "fewer trials; no trial is another"),
    "split": (lambda s, f: s.model_copy(update={"split": "dev"}), "test stays closed; no trial reads it"),
}  # fmt: skip
BLOCK = Block(encoders=("e",), modes=("feature_extraction",), tasks=("t",), head="linear", trials=3, seeds=2)
BLOCK_TABLE: dict[str, tuple[object, str]] = {
    "name": ("another", "for messages"),
    "train_examples": (20, CHANGES),
    "encoders": (("minilm",), CHANGES),
    "modes": (("fine_tuning",), CHANGES),
    "tasks": (("demo_sentiment",), CHANGES),
    "head": ("mlp", CHANGES),
    "variant": ("v", CHANGES),
    "overrides": (("epochs=3",), CHANGES),
    "trials": (2, CHANGES),
    "seeds": (1, CHANGES),
    "searcher": ("random", CHANGES),
}


def test_the_tables_have_every_field_of_a_specification_and_its_blocks():
    assert set(SPEC_TABLE) == set(SweepSpec.model_fields)
    assert set(BLOCK_TABLE) == set(Block.model_fields)


@pytest.mark.parametrize("field", SPEC_TABLE)
def test_a_field_of_a_specification_is_refused_or_changes_nothing(field, frozen_spec, told_apart, tmp_path):
    change, says = SPEC_TABLE[field]

    changed = change(frozen_spec, tmp_path)
    found = told_apart((frozen_spec, open_cells(frozen_spec)), (changed, open_cells(changed)))
    assert ("specification" in found) == (says == CHANGES), found


@pytest.mark.parametrize("field", [field for field, (_, says) in SPEC_TABLE.items() if says != CHANGES])
def test_a_field_that_may_change_is_stored_as_the_latest_command_has_it(field, frozen_spec, tmp_path):
    changed, ledger = SPEC_TABLE[field][0](frozen_spec, tmp_path), Ledger(tmp_path / frozen_spec.name)
    settle_specification(ledger, frozen_spec, open_cells(frozen_spec))
    assert settle_specification(ledger, changed, open_cells(changed)).spec == changed == read_sweep(ledger).spec


@pytest.mark.parametrize("more", [{"trials": 4}, {"seeds": 3}, {"modes": ("feature_extraction", "fine_tuning")}])
def test_more_of_a_specification_leaves_the_searches_that_there_are_as_they_are(frozen_spec, told_apart, more):
    changed = frozen_spec.model_copy(update=more)
    assert told_apart((frozen_spec, open_cells(frozen_spec)), (changed, open_cells(changed))) == set()


@pytest.mark.parametrize("field", BLOCK_TABLE)
def test_a_field_of_a_block_is_refused_or_changes_nothing(field, spec, told_apart):
    value, says = BLOCK_TABLE[field]
    block = BLOCK.model_copy(update={"encoders": spec.encoders, "tasks": spec.tasks})
    then = spec.model_copy(update={"blocks": (block,)})
    now = spec.model_copy(update={"blocks": (block.model_copy(update={field: value}),)})
    found = told_apart((then, open_cells(then)), (now, open_cells(now)))
    assert ("specification" in found) == (says == CHANGES), found


# --- an opened cell ---

OTHER = {
    "encoder": "other", "encoder_fingerprint": "0" * 16, "mode": "fine_tuning", "task_name": "other", "head": "mlp",
    "data_fingerprint": "0" * 16, "documents_fingerprint": "0" * 16, "variant": "other",
}  # fmt: skip
REASONS = {
    "task": "its metric is in the identity; the other fields are those of test_identity",
    "space": "another is refused, and a setting of it is in the identity",
    "reference": "where the encoder's files lie; what is in them counts",
    "data": "where the data lie, and which of them; the examples count",
    "train_examples": "counted in the data", "dev_examples": "counted in the data", "mean_words": "for estimates",
    "epoch_dev_examples": "what epochs are scored on counts, in the data",
    "length": "of the space, which names it; what it cuts is for people and for estimates",
    "head_source": "for people; the head counts",
    "notes": "for people", "warnings": "for people", "trials": "fewer are refused, more are growth",
    "encoder_word": "where the encoder lies; its fingerprint is in the identity",
    "seeds": "as trials; each seed is in its identity",
    "searcher": "another is refused",
}  # fmt: skip


def test_every_field_of_an_opened_cell_is_in_the_identity_or_has_a_reason_not_to_be(spec, cells):
    assert {field.name for field in fields(OpenCell)} == OTHER.keys() | REASONS.keys()
    planner, cell = Planner(spec, cells, []), cells[0]
    changed = [replace(cell, **{name: value}) for name, value in OTHER.items()]
    changed.append(replace(cell, task=replace(cell.task, metric="macro_f1")))
    found = {planner.trial_id(one, {}, 0, "search") for one in (cell, *changed)}
    assert len(found) == len(changed) + 1
