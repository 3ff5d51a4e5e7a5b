"""The seeds of order, first weights and dropout, given apart: each moves its own source and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.adapters.hyperparameters import Seeds
from meltpoint.adapters.layers.bundle import MemberRng
from meltpoint.adapters.model import Member
from meltpoint.adapters.training.trainer import Trainer
from meltpoint.adapters.training.training_state import first_phase_key
from meltpoint.tests.adapters.devices import cpu_bits

Make = Callable[..., Any]
SEED = 5
SAME = Seeds.all_of(SEED)
SOURCES = ("order", "initial", "dropout")
DROPPING = {"dropout": 0.4, "encoder_dropout": 0.3}
MODES = ("feature_extraction", "fine_tuning", "stack_and_finetune")


def own(mode: str, **setting: float) -> dict[str, float]:
    """A setting with dropout wherever the mode has some."""
    return {name: value for name, value in (DROPPING | setting).items()
            if mode != "feature_extraction" or name != "encoder_dropout"}  # fmt: skip


def outcome(trainer: Trainer) -> tuple[list[object], dict[str, torch.Tensor]]:
    """What a bundle of one gave, without its times, and its weights."""
    results = [one.model_copy(update={"train_seconds": 0.0, "dev_seconds": 0.0})
               for epoch in trainer.epochs() for _, one in epoch]  # fmt: skip
    return results, dict(trainer.trials[0].best_state)


def is_same(
    one: tuple[list[object], dict[str, torch.Tensor]], two: tuple[list[object], dict[str, torch.Tensor]]
) -> bool:
    same = one[1].keys() == two[1].keys() and all(torch.equal(one[1][name], two[1][name]) for name in one[1])
    return same and one[0] == two[0]


def test_a_trials_sources_share_its_seed_unless_they_are_given_apart():
    assert Member({}, SEED).seeds == SAME
    assert Member({}, SEED, Seeds(1, 2, 3)).seeds == Seeds(1, 2, 3)


@pytest.mark.parametrize("mode", MODES)
def test_one_seed_given_three_times_trains_to_the_bits_of_the_seed(make_trainer: Make, mode: str):
    assert is_same(*(outcome(make_trainer(mode, seed=seed, **own(mode))) for seed in (SEED, SAME)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("source", SOURCES)
def test_each_source_moves_the_result_in_every_mode(make_trainer: Make, mode: str, source: str):
    moved = replace(SAME, **{source: SEED + 1})
    assert not is_same(*(outcome(make_trainer(mode, seed=seed, **own(mode))) for seed in (SAME, moved)))


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_moves_its_own_numbers_alone(make_trainer: Make, source: str):
    def numbers(seeds: Seeds) -> dict[str, object]:
        trainer = make_trainer("feature_extraction", head="mlp", seed=seeds, **own("feature_extraction"))
        rows: list[tuple[int, ...]] = []
        trainer.model.register_forward_pre_hook(
            lambda model, given: rows.append(given[0].rows) if model.training else None
        )
        first = {name: weight.detach().clone() for name, weight in trainer.model.own_parameters().items()}
        trainer.model.rng.begin(0)
        masks = trainer.model.rng.bits((64,), torch.device("cpu"))
        next(iter(trainer.epochs()))
        return {
            "order": rows,
            "initial": sum(float(weight.sum()) for weight in first.values()),
            "dropout": masks.tolist(),
        }

    before, after = numbers(SAME), numbers(replace(SAME, **{source: SEED + 1}))
    assert {name for name in SOURCES if before[name] != after[name]} == {source}


def test_the_encoders_dropout_follows_the_dropout_seed(make_trainer: Make):
    setting = {"dropout": 0.0, "encoder_dropout": 0.3}
    found = [outcome(make_trainer("fine_tuning", seed=replace(SAME, dropout=seed), **setting)) for seed in (SEED, 9)]
    assert not is_same(*found)
    without = {"dropout": 0.0, "encoder_dropout": 0.0}
    found = [outcome(make_trainer("fine_tuning", seed=replace(SAME, dropout=seed), **without)) for seed in (SEED, 9)]
    assert is_same(*found)


@cpu_bits
def test_trials_of_one_order_in_a_bundle_are_the_trials_alone_to_the_last_bit(make_stack: Make):
    seeds = [SAME, replace(SAME, initial=8), replace(SAME, dropout=8), replace(SAME, initial=9, dropout=9)]
    bundle = make_stack("sentence_classification", "bilstm", [(one, {"dropout": 0.4}) for one in seeds])
    together: dict[int, list[object]] = {}
    for epoch in bundle.epochs():
        for index, one in epoch:
            together.setdefault(index, []).append(one.model_copy(update={"train_seconds": 0.0, "dev_seconds": 0.0}))
    for index, one in enumerate(seeds):
        alone = outcome(make_stack("sentence_classification", "bilstm", [(one, {"dropout": 0.4})]))
        assert is_same(alone, (together[index], dict(bundle.trials[index].best_state)))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=5), st.data())
def test_kept_members_keep_both_of_their_seeds(pairs: list[tuple[int, int]], data: st.DataObject):
    rng = MemberRng([masks for masks, _ in pairs], [first for _, first in pairs])
    kept = data.draw(st.lists(st.integers(0, len(pairs) - 1), min_size=1, unique=True))
    rng.keep(kept)
    assert list(zip(rng.seeds, rng.initial_seeds, strict=True)) == [pairs[member] for member in kept]
    expected = MemberRng([pairs[member][1] for member in kept])
    for place in range(len(kept)):
        assert rng.initial(place).initial_seed() == expected.initial(place).initial_seed()


def test_a_first_phase_is_shared_only_by_trials_with_the_same_seeds(make_trainer: Make):
    facts = {"encoder": "e", "data": "d", "head": "bilstm", "mode": "stack_and_finetune", "code": "c"}
    seeds = (SEED, *(replace(SAME, **{source: SEED + 1}) for source in SOURCES))
    keys = {first_phase_key(make_trainer("stack_and_finetune", seed=seed), facts) for seed in seeds}
    assert len(keys) == 4
