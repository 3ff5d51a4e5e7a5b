"""Kinds of task are plug-ins: a new file is a kind, everywhere."""

from __future__ import annotations

import pytest

from meltpoint.adapters import heads, modes, objectives
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.kinds import TaskKind
from meltpoint.tasks.core.metrics import METRICS


@pytest.mark.parametrize("name", kinds.names())
def test_every_kind_has_what_the_other_rooms_ask_of_it(name):
    kind = kinds.get(name)
    assert all(name in METRICS[metric].kinds for metric in kind.metrics)
    assert objectives.of(kind.target)
    assert [word for word in heads.names() if name in heads.get(word).kinds]
    assert all(name in modes.get(mode).default_heads.joint for mode in modes.names())


def test_an_unknown_kind_is_refused_with_the_near_ones():
    with pytest.raises(ValueError, match="Did you mean pair_regression"):
        kinds.get("pair_regresion")


def test_a_kind_says_what_its_columns_are():
    kind = TaskKind("x", "pair", "score", ("pearson",), "")
    assert kind.columns == ("text_a", "text_b", "label")
    assert kind.is_pair
    assert not kind.labels_words


@pytest.mark.parametrize(
    ("inputs", "wanted"),
    [(("words",), {"sequence_labelling"}), (("pair",), {"pair_classification", "pair_regression"})],
)
def test_kinds_are_found_by_what_their_examples_hold(inputs, wanted):
    assert wanted <= set(kinds.reading(*inputs))
    assert not set(kinds.reading(*inputs)) & (set(kinds.names()) - set(kinds.reading(*inputs)))
