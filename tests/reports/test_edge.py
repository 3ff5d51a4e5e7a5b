"""EDGE against its authors' release, a naive implementation of the equations, and its properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import mutual_info_score
from sklearn.neighbors import NearestNeighbors

from meltpoint.reports.analyses.mutual_information import (
    HashedStates,
    entropy_bits,
    graph_information,
    information,
    neighbour_distance,
)

BUCKETS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=60)


def estimated(states, labels):
    return information(HashedStates(states), labels)


def two_classes(gap: float, samples: int, dim: int):
    draw = np.random.RandomState(1)
    labels = draw.randint(0, 2, samples)
    return draw.standard_normal((samples, dim)) + gap * labels[:, None], labels


# Results of EDGE_4_3_1.py of github.com/mrtnoshad/EDGE for these samples: normalize_epsilon=False, then its defaults.
# It draws the 500 samples that set a width at random; ours are spaced by rank. Largest difference seen: 0.015 bits.
@pytest.mark.parametrize(
    ("gap", "first", "final"),
    [(0.0, 0.0883, 0.001), (0.3, 0.1753, 0.001), (1.0, 0.5182, 0.5799), (2.0, 0.8448, 0.9568)],
)
def test_the_defaults_give_what_the_release_gives_on_labels_in_64_dimensions(gap, first, final):
    states, labels = two_classes(gap, 1000, 64)
    estimate = estimated(states, labels)
    assert estimate.first_pass == pytest.approx(first, abs=0.02)
    assert estimate.bits == pytest.approx(final, abs=0.02)
    assert estimate.bits <= entropy_bits(labels) + 0.01


def test_independent_samples_have_none_and_fewer_than_twenty_are_refused():
    draw = np.random.RandomState(0)
    states, labels = draw.standard_normal((500, 48)), draw.randint(0, 3, 500)
    assert estimated(states, labels).bits == pytest.approx(0.001)  # the release's zero
    with pytest.raises(ValueError, match="of 19 examples cannot be estimated; it takes 20 or more"):
        estimated(np.zeros((19, 2)), np.zeros(19, dtype=np.int64))
    assert estimated(np.zeros((20, 2)), np.arange(20) % 2).bits == pytest.approx(0.001)


def test_a_dependence_that_the_second_pass_hides_is_seen_by_the_first():
    states, labels = two_classes(0.3, 1000, 64)  # an ideal classifier is right on 88 % of these
    draw = np.random.RandomState(0)
    chance = [estimated(states, draw.permutation(labels)).first_pass for _ in range(10)]
    estimate = estimated(states, labels)
    assert estimate.bits < 0.01
    assert estimate.first_pass - np.mean(chance) > 4 * np.std(chance)


@given(BUCKETS)
def test_a_graph_says_what_the_equations_say(pairs):
    left, right = (np.array(column) for column in zip(*pairs, strict=True))
    count, total = len(pairs), 0.0
    for i in set(left):  # equations 6 and 9, one edge at a time
        for j in set(right):
            shared = sum(pair == (i, j) for pair in pairs)
            if shared:
                here, there = sum(left == i), sum(right == j)
                weight = shared * count / (here * there)
                total += here / count * there / count * weight * math.log2(weight)
    estimate = graph_information(left, right, -math.inf)
    assert estimate == pytest.approx(total, abs=1e-9)
    assert estimate == pytest.approx(mutual_info_score(left, right) / math.log(2), abs=1e-9)
    assert graph_information(left, right) >= max(estimate, 0.001) - 1e-9


@pytest.mark.parametrize(("samples", "dim"), [(50, 1), (400, 5)])
def test_the_distance_to_the_neighbour_is_that_of_a_search(samples, dim):
    column = np.random.RandomState(0).standard_normal(samples)
    k = math.floor(0.43 * samples ** (2 / 3 + 0.17 * dim / (dim + 1)) * math.exp(-1e-4))
    search = NearestNeighbors(n_neighbors=k).fit(column[:, None])
    expected = search.kneighbors(column[:, None])[0][:, -1].mean()
    assert neighbour_distance(column, dim) == pytest.approx(expected, rel=1e-12)
