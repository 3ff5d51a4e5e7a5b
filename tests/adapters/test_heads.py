"""Heads: the registry, what each head computes, and that every head learns for every kind that it serves."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from meltpoint.adapters import heads, layers, modes, tricks
from meltpoint.adapters.head import Head, HeadShape
from meltpoint.adapters.hyperparameters import Parameter
from meltpoint.adapters.layers.bundle import MemberRng
from meltpoint.tasks.core.task import KINDS, Kind
from meltpoint.tests.adapters.head_cases import CUTS, DIM, head_shape, make_batch, small_setting
from meltpoint.tests.adapters.head_promises import verify

SERVED = [(word, kind) for word, kind in itertools.product(heads.names(), KINDS) if kind in heads.get(word).kinds]


def build(word: str, kind: Kind, **setting: float | str) -> Head:
    head = heads.get(word, kind)
    return head(head_shape(kind), [small_setting(head, **setting)], MemberRng([0]))


# --- the registry ---


@pytest.mark.parametrize(
    ("registry", "message"),
    [
        (heads, r"Unknown head 'lineer'. Did you mean linear\?"),
        (modes, r"Unknown mode 'fine_tunning'. Did you mean fine_tuning\?"),
        (tricks, r"Unknown trick 'gradual_freezing'. Did you mean gradual_unfreezing\?"),
    ],
)
def test_an_unknown_plug_in_names_the_near_misses(registry: Any, message: str):
    with pytest.raises(ValueError, match=message):
        registry.get(message.split("'")[1])


def test_a_head_for_an_impossible_kind_names_those_that_serve_it():
    with pytest.raises(
        ValueError, match=r"Head 'crf' cannot serve pair regression; these can: .*bilstm, .*linear, mlp"
    ):
        heads.get("crf", "pair_regression")


def test_the_hyperparameters_read_from_the_files_text_are_those_of_the_classes():
    found = heads.parameters()
    assert set(found) == {own for name in heads.names() for own in heads.get(name).hyperparameters}
    assert heads.declared_in([*heads.__path__, *layers.__path__]) == found, "without a torch import"


def test_a_hyperparameter_of_no_plain_values_is_refused_with_its_file(tmp_path):
    path = tmp_path / "own.py"
    path.write_text('SIZE = Parameter("own.size", 3, "units", 1, 9)\n', encoding="utf-8")
    assert heads.declared_in([str(tmp_path)]) == (Parameter("own.size", 3, "units", 1, 9),)
    path.write_text('SIZE = Parameter("own.size", len("abc"), "units", 1, 9)\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"own\.py: write a Parameter's values as literals"):
        heads.declared_in([str(tmp_path)])


# --- each head's own claims ---


def test_linear_reads_each_words_first_piece():
    head = build("linear", "sequence_labelling")
    states, batch = make_batch("sequence_labelling")
    scores = head(states, batch)
    torch.testing.assert_close(scores[:, 2, 3], head.scores.linear(states[:, 2, 5:6])[:, 0])


def compared(form: str, one: Tensor, two: Tensor) -> list[float]:
    """A pair of vectors as Kiros et al. and GLUE's baselines write it, number by number."""
    pairs = list(zip(one.tolist(), two.tolist(), strict=True))
    own = [u for u, _ in pairs] + [v for _, v in pairs] if form == "glue" else []
    return own + [abs(u - v) for u, v in pairs] + [u * v for u, v in pairs]


@pytest.mark.parametrize(("form", "width"), [("kiros", 2 * DIM), ("glue", 4 * DIM)])
def test_sentence_vectors_compare_the_first_states_of_both_sentences(form: str, width: int):
    head = build("sentence_vectors", "pair_classification", **{"sentence_vectors.pair": form})
    states, batch = make_batch("pair_classification")
    assert head.scores.linear.weight.shape == (1, 4, width)
    rows = [compared(form, states[0, row, 0], states[0, row, cut]) for row, cut in enumerate(CUTS.tolist())]
    torch.testing.assert_close(head(states, batch), head.scores.linear(torch.tensor([rows])))


@pytest.mark.parametrize("word", ["linear", "sentence_vectors"])
def test_a_sentence_is_scored_from_its_first_state_alone(word: str):
    head = build(word, "sentence_classification")
    states, batch = make_batch("sentence_classification")
    torch.testing.assert_close(head(states, batch), head.scores.linear(states[:, :, 0]))


def test_sentence_vectors_never_score_pairs_that_were_encoded_jointly():
    states, batch = make_batch("pair_classification")
    with pytest.raises(AssertionError, match="encoded separately"):
        build("sentence_vectors", "pair_classification")(states, dataclasses.replace(batch, cuts=None))


def test_a_hidden_layer_on_sentence_vectors_is_that_of_glues_baselines():
    head = build("sentence_vectors", "pair_classification", **{
        "sentence_vectors.pair": "glue", "sentence_vectors.hidden_size": 5,
    })  # fmt: skip
    states, batch = make_batch("pair_classification")
    plain = nn.Sequential(nn.Dropout(0.2), nn.Linear(4 * DIM, 5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, 4)).eval()
    own = [head.hidden.weight, head.hidden.bias, head.scores.linear.weight, head.scores.linear.bias]
    assert sum(parameter.numel() for parameter in head.parameters()) == sum(one.numel() for one in own)
    for parameter, one in zip(plain.parameters(), own, strict=True):
        parameter.data.copy_(one[0])
    rows = [compared("glue", states[0, row, 0], states[0, row, cut]) for row, cut in enumerate(CUTS.tolist())]
    torch.testing.assert_close(head(states, batch)[0], plain(torch.tensor(rows)))


@pytest.mark.parametrize(("word", "kind"), [pair for pair in SERVED if pair[0] == "sentence_vectors"])
def test_sentence_vectors_keep_a_heads_promises_with_all_that_is_off_by_default(word: str, kind: Kind):
    other = {
        "sentence_vectors.hidden_size": 8, "sentence_vectors.regression": "distribution",
        "sentence_vectors.feats": True,
    }  # fmt: skip
    head = heads.get(word)
    own = tuple(dataclasses.replace(one, default=other.get(one.name, one.default)) for one in head.hyperparameters)
    verify(type("Other", (head,), {"hyperparameters": own}), kind)


def test_mlp_has_two_fully_connected_layers_of_the_size_asked_for():
    head = build("mlp", "sentence_classification", **{"mlp.hidden_size": 16})
    assert [tuple(p.shape) for p in head.parameters() if p.dim() == 3] == [(1, 16, DIM), (1, 4, 16)]


def test_mlp_starts_with_kaimings_variance():
    head = heads.get("mlp")(HeadShape("sentence_classification", 500, 2), [{"mlp.hidden_size": 400}], MemberRng([0]))
    assert head.hidden.weight.detach().std().item() == pytest.approx((2 / 500) ** 0.5, rel=0.02)
    assert not head.hidden.bias.any()


def test_a_head_takes_the_defaults_of_what_its_setting_does_not_name():
    head = heads.get("bilstm")(HeadShape("sequence_labelling", DIM, 3), [{}], MemberRng([0]))
    assert (head.bilstm.dim, head.bilstm.layers) == (400, 2)
    assert head.scores.dropout.levels == [round(0.1 * 2**16)]
