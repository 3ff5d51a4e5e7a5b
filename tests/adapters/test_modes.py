"""The modes: their phases, and what each asks of its cells."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from meltpoint.adapters import encoders, heads, modes, settings
from meltpoint.adapters.data.input_format import SentencePooling
from meltpoint.adapters.families import EncoderReference
from meltpoint.adapters.multiplier_table import Phase
from meltpoint.adapters.settings import check_possible
from meltpoint.tasks.core.kinds import reading
from meltpoint.tasks.core.task import KINDS, Kind

# name → (symbol, what the head sees, whether the encoder trains, BERT's head for sentences where none is named)
FACTS = {
    "feature_extraction": ("❄", "mix", False, "bcn"),
    "fine_tuning": ("🔥", "top", True, "native"),
    "stack_and_finetune": ("❄🔥", "top", True, "highway_lstm"),
    "probe": ("🔍", 1.0, False, "pooling"),
    "norm_bias": ("⚖", "top", True, "native"),
    "lora": ("🧩", "top", True, "native"),
    "top_k": ("🔝", "top", True, "native"),
    "lp_ft": ("🔍🔥", "top", True, "pooling"),
}


@pytest.mark.parametrize("name", FACTS)
def test_every_mode_is_what_the_papers_say(name: str):
    mode = modes.get(name)
    assert mode.name == name
    head = mode.default_heads.of(encoders.TRANSFORMERS, "sentence_classification").name
    layers = mode.layers(settings.complete({}, name, head))
    assert (mode.symbol, layers, mode.trains_encoder, head) == FACTS[name]
    assert head in heads.names()
    assert mode.summary
    assert set(mode.idle_when_constant) <= set(mode.hyperparameters)


def test_stack_and_finetune_has_a_frozen_phase_with_its_own_length_and_rate_first():
    setting = settings.complete({"epochs": 7, "learning_rate": 2e-5}, "stack_and_finetune", "bilstm")
    stack, finetune = modes.get("stack_and_finetune").phases(setting)
    assert stack == Phase("stack", 2, 1e-3, False)
    assert finetune == Phase("finetune", 7, 2e-5, True)


BERT, ELMO = encoders.TRANSFORMERS, encoders.traits("elmo:")
POOLED = replace(BERT, pooling=SentencePooling("mean"))
SENTENCES = encoders.traits("skipthoughts:")
PAPERS = {
    ("feature_extraction", BERT): ("bilstm", "bcn", "esim", "esim"),
    ("feature_extraction", ELMO): ("bilstm_crf", "bcn", "esim", "esim"),
    ("feature_extraction", POOLED): ("bilstm", "pooling", "pooling", "pooling"),
    ("fine_tuning", BERT): ("native", "native", "native", "native"),
    ("fine_tuning", replace(BERT, word="elmo:")): ("linear", "linear", "linear", "linear"),
    ("fine_tuning", POOLED): ("native", "native", "native", "native"),
    ("fine_tuning", ELMO): ("crf", "pooling", "bi_attention", "bi_attention"),
    ("stack_and_finetune", BERT): ("bilstm", "highway_lstm", "sim_transformer", "sim_transformer"),
    ("stack_and_finetune", POOLED): ("bilstm", "highway_lstm", "sim_transformer", "sim_transformer"),
    ("stack_and_finetune", ELMO): ("bilstm_crf", "highway_lstm", "sim_transformer", "sim_transformer"),
}
"""Of sequence labelling, sentence classification, pair classification, pair regression: appendix A and section 3.2 of
Peters, Ruder & Smith 2019; experiments A, B and C of arXiv 1907.05338; section 5 of Reimers & Gurevych 2019."""
STUDIED: tuple[Kind, ...] = ("sequence_labelling", "sentence_classification", "pair_classification", "pair_regression")


@pytest.mark.parametrize(("mode", "traits"), PAPERS)
def test_the_default_heads_are_those_of_the_papers(mode: str, traits: EncoderReference) -> None:
    found = [modes.get(mode).default_heads.of(traits, kind) for kind in STUDIED]
    assert tuple(head.name for head in found) == PAPERS[mode, traits]
    assert all("2019" in head.source or "arXiv" in head.source for head in found)


@pytest.mark.parametrize("mode", modes.names())
def test_one_vector_a_sentence_gets_a_linear_classifier_in_every_mode(mode: str) -> None:
    kinds = [kind for kind in KINDS if kind not in reading("words")]
    assert {modes.get(mode).default_heads.of(SENTENCES, kind).name for kind in kinds} == {"sentence_vectors"}


@pytest.mark.parametrize(("mode", "kind"), list(itertools.product(modes.names(), KINDS)))
def test_a_default_head_can_be_combined_with_its_encoder(mode: str, kind: Kind, tiny_folder, elmo_folder: Path) -> None:
    for word in (f"hf:{tiny_folder('bert')}", f"elmo:{elmo_folder}"):
        reference = encoders.resolve(word, kind)
        check_possible(reference, modes.get(mode).default_heads.of(reference, kind).name, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_the_traits_by_a_word_choose_as_the_reference_does(kind: Kind, elmo_folder: Path) -> None:
    word = f"elmo:{elmo_folder}"
    for mode in map(modes.get, modes.names()):
        by_word, by_files = encoders.traits("elmo"), encoders.resolve(word, kind)
        assert mode.default_heads.of(by_word, kind) == mode.default_heads.of(by_files, kind)
