"""The modes: their phases, and what each asks of its cells."""

from __future__ import annotations

import pytest

from meltpoint.adapters import heads, modes, settings
from meltpoint.adapters.families.reference import FamilyTraits
from meltpoint.adapters.multiplier_table import Phase

# name → (symbol, what the head sees, whether the encoder trains, BERT's head for sentences where none is named)
FACTS = {
    "feature_extraction": ("❄", "mix", False, "bcn"),
    "fine_tuning": ("🔥", "top", True, "native"),
    "stack_and_finetune": ("❄🔥", "top", True, "highway_lstm"),
}


def test_the_three_modes_of_the_papers_are_there():
    assert modes.names() == sorted(FACTS)


@pytest.mark.parametrize("name", FACTS)
def test_every_mode_is_what_the_papers_say(name: str):
    mode = modes.get(name)
    assert mode.name == name
    head = mode.default_heads.of(FamilyTraits(), "sentence_classification").name
    layers = mode.layers(settings.complete({}, name, head))
    assert (mode.symbol, layers, mode.trains_encoder, head) == FACTS[name]
    assert head in heads.names()
    assert mode.summary
    assert set(mode.idle_when_constant) <= set(mode.hyperparameters)


@pytest.mark.parametrize("name", FACTS)
def test_a_mode_trains_the_encoder_exactly_if_one_of_its_phases_does(name: str):
    phases = modes.get(name).phases(settings.complete({}, name, "linear"))
    assert modes.get(name).trains_encoder == any(phase.encoder_trains for phase in phases)


def test_feature_extraction_and_fine_tuning_have_one_phase_of_the_settings_length_and_rate():
    setting = {"epochs": 7, "learning_rate": 2e-4}
    assert modes.get("feature_extraction").phases(setting) == (Phase("train", 7, 2e-4, False),)
    assert modes.get("fine_tuning").phases(setting) == (Phase("train", 7, 2e-4, True),)


def test_stack_and_finetune_has_a_frozen_phase_with_its_own_length_and_rate_first():
    setting = settings.complete({"epochs": 7, "learning_rate": 2e-5}, "stack_and_finetune", "bilstm")
    stack, finetune = modes.get("stack_and_finetune").phases(setting)
    assert stack == Phase("stack", 2, 1e-3, False)
    assert finetune == Phase("finetune", 7, 2e-5, True)


def test_an_unknown_mode_names_the_near_misses():
    with pytest.raises(ValueError, match=r"Unknown mode 'fine_tunning'. Did you mean fine_tuning\?"):
        modes.get("fine_tunning")
