"""The numbers of docs/defaults.md: what each shipped space tries, and first, against the table's figures by hand."""

from __future__ import annotations

import pytest

from meltpoint import tasks
from meltpoint.adapters import settings
from meltpoint.search_spaces.files import find
from meltpoint.search_spaces.ranges import Choice, Integer, Real
from meltpoint.search_spaces.space import Space
from meltpoint.sweeps.specification.sweep_spec import SweepSpec

FROZEN, TUNED, STACKED = "feature_extraction", "fine_tuning", "stack_and_finetune"
WARMUP, TRIANGLE = "linear_warmup_decay", "slanted_triangular"
TRICKS = ("discriminative_rates", "gradual_unfreezing")


def space_of(mode: str, encoder: str, task: str, head: str) -> Space:
    allowed = {one.name: one for one in settings.parameters(mode, head, tasks.get(task).kind)}
    every = {one.name: one for one in settings.all_parameters()}
    return find(mode, encoder, task, head, allowed, every=every)


def tried(space: Space, name: str) -> tuple[object, ...]:
    """The ends of a range, or the values of a choice, and last the first value."""
    one, first = space.parameters[name], space.first()[name]
    if isinstance(one, Integer | Real):
        return (one.low, one.high, first)
    assert isinstance(one, Choice), f"{name} is fixed"
    return (*one.values, first)


@pytest.mark.parametrize(
    ("mode", "encoder", "task", "head", "name", "expected"),
    [
        (FROZEN, "bert-base", "mrpc", "esim", "learning_rate", (1e-4, 3e-3, 1e-3)),
        (FROZEN, "bert-base", "conll2003", "bilstm", "learning_rate", (1e-4, 1e-2, 1e-3)),
        (FROZEN, "bert-base", "mrpc", "esim", "dropout", (0.0, 0.6, 0.5)),
        (FROZEN, "bert-base", "sst2", "bcn", "dropout", (0.0, 0.6, 0.25)),
        (FROZEN, "bert-base", "sst2", "bcn", "learning_rate", (1e-4, 1.25e-3, 1e-3)),
        (FROZEN, "bert-base", "mrpc", "esim", "weight_decay", (0.01, 0.0, 0.1, 0.01)),
        (FROZEN, "bert-base", "conll2003", "bilstm", "bilstm.hidden_size", (100, 200, 200)),
        (TUNED, "bert-base", "mrpc", "native", "learning_rate", (1e-5, 1e-4, 5e-5)),
        (TUNED, "bert-base", "mrpc", "native", "dropout", (0.0, 0.3, 0.1)),
        (TUNED, "bert-base", "mrpc", "native", "weight_decay", (0.01, 0.0, 0.1, 0.01)),
        (TUNED, "bert-base", "mrpc", "native", "epochs", (2, 3, 4, 3)),
        (TUNED, "bert-base", "mrpc", "native", "batch_size", (16, 32, 32)),
        (TUNED, "bert-base", "mrpc", "native", "schedule", (WARMUP, TRIANGLE, WARMUP)),
        (TUNED, "minilm", "mrpc", "native", "learning_rate", (2e-5, 3e-4, 5e-5)),
        (TUNED, "minilm", "mrpc", "native", "epochs", (3, 4, 5, 3)),
        (TUNED, "elmo:folder", "sst2", "pooling", "learning_rate", (1e-4, 4e-3, 1e-3)),
        (TUNED, "elmo:folder", "sst2", "pooling", "dropout", (0.0, 0.6, 0.5)),
        (TUNED, "elmo:folder", "sst2", "pooling", "encoder_dropout", (0.0, 0.3, 0.1)),
        (TUNED, "elmo:folder", "sst2", "pooling", "epochs", (4, 6, 10, 6)),
        (TUNED, "elmo:folder", "sst2", "pooling", "schedule", (TRIANGLE, "constant", TRIANGLE)),
        (STACKED, "bert-base", "mrpc", "sim_transformer", "learning_rate", (1e-5, 1e-4, 5e-5)),
        (STACKED, "bert-base", "mrpc", "sim_transformer", "epochs", (2, 3, 4, 3)),
        (STACKED, "minilm", "mrpc", "sim_transformer", "epochs", (3, 4, 5, 3)),
        (STACKED, "bert-base", "mrpc", "sim_transformer", "dropout", (0.0, 0.3, 0.1)),
        (STACKED, "bert-base", "mrpc", "sim_transformer", "stack_and_finetune.stack_learning_rate", (1e-4, 1e-2, 1e-3)),
        (STACKED, "bert-base", "mrpc", "sim_transformer", "stack_and_finetune.stack_epochs", (2, 6, 4)),
        (STACKED, "bert-base", "mrpc", "sim_transformer", "stack_and_finetune.largest_gap", (0.005, 0.1, 0.02)),
    ],
)  # fmt: skip
def test_what_is_tried_is_what_the_table_of_the_papers_says(mode, encoder, task, head, name, expected):
    assert tried(space_of(mode, encoder, task, head), name) == expected


@pytest.mark.parametrize(
    ("mode", "task", "head", "fixed"),
    [
        (FROZEN, "mrpc", "esim", {"epochs": 75, "patience": 5, "batch_size": 32, "schedule": "constant"}),
        (FROZEN, "mrpc", "esim", {"esim.hidden_size": 300, "feature_extraction.layers": "mix"}),
        (FROZEN, "sst2", "bcn", {"bcn.hidden_size": 300, "bcn.pool_size": 4}),
        (FROZEN, "conll2003", "bilstm", {"bilstm.layers": 2}),
        (FROZEN, "mrpc", "bimpm", {"bimpm.perspectives": 20, "bimpm.hidden_size": 100, "bimpm.first_bilstm": True}),
        (TUNED, "mrpc", "native", {"encoder_dropout": 0.1, "native.pooler": "pretrained"}),
        (STACKED, "mrpc", "sim_transformer", {"encoder_dropout": 0.1, "stack_and_finetune.restart_schedule": True}),
    ],
)
def test_what_is_not_searched_has_the_tables_value(mode, task, head, fixed):
    space = space_of(mode, "bert-base", task, head)
    assert {name: space.first()[name] for name in fixed} == fixed
    assert all(space.parameters[name].count == 1 for name in fixed)


def test_eight_settings_and_five_seeds_where_none_are_named():
    spec = SweepSpec(name="any", encoders=("minilm",), modes=(TUNED,), tasks=("sst2",))
    assert (spec.trials, spec.seeds) == (8, 5)


@pytest.mark.parametrize("mode", [TUNED, STACKED])
@pytest.mark.parametrize("encoder", ["bert-base", "minilm", "elmo:folder"])
@pytest.mark.parametrize(("task", "head"), [("sst2", "linear"), ("mrpc", "linear"), ("conll2003", "linear")])
def test_the_owners_words_and_every_trick_are_searched_wherever_the_encoder_trains(mode, encoder, task, head):
    space = space_of(mode, encoder, task, head)
    names = ("learning_rate", "dropout", "weight_decay", "epochs", "schedule", *TRICKS)
    assert [name for name in names if space.parameters[name].count == 1] == []
