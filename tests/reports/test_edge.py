"""EDGE against its authors' release, known information, a naive implementation of the equations, and its properties."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import mutual_info_score
from sklearn.neighbors import NearestNeighbors

from meltpoint.reports.analyses import mutual_information as edge_module
from meltpoint.reports.analyses.mutual_information import (
    ContinuousSide,
    DiscreteSide,
    Estimate,
    graph_information,
    information,
    neighbour_distance,
)

BUCKETS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=60)


def mutual_information(left: NDArray[Any], right: NDArray[Any]) -> Estimate:
    """By the release's defaults; whole numbers are labels."""
    one, other = (
        DiscreteSide(side) if np.issubdtype(side.dtype, np.integer) else ContinuousSide(side) for side in (left, right)
    )
    return information(one, other)


def gaussians(correlation: float, samples: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """A pair of normal variables and their mutual information in bits."""
    left, noise = np.random.RandomState(seed).standard_normal((samples, 2)).T
    right = correlation * left + math.sqrt(1 - correlation**2) * noise
    return left, right, -0.5 * math.log2(1 - correlation**2)


def two_classes(gap: float, samples: int, dim: int, seed: int = 1) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    draw = np.random.RandomState(seed)
    labels = draw.randint(0, 2, samples)
    return draw.standard_normal((samples, dim)) + gap * labels[:, None], labels


# Results of EDGE_4_3_1.py of github.com/mrtnoshad/EDGE for these samples: normalize_epsilon=False, then its defaults.
# It draws the 500 samples that set a width at random; ours are spaced by rank. Largest difference seen: 0.015 bits.
@pytest.mark.parametrize(
    ("sides", "first", "final"),
    [
        *((gaussians(correlation, 1000, 0)[:2], *bits) for correlation, *bits in (
            (0.0, 0.1872, 0.0388), (0.3, 0.2820, 0.2090), (0.6, 0.5369, 0.5584), (0.9, 1.2056, 1.4223))),
        *((two_classes(gap, 1000, 64), *bits) for gap, *bits in (
            (0.0, 0.0883, 0.001), (0.3, 0.1753, 0.001), (1.0, 0.5182, 0.5799), (2.0, 0.8448, 0.9568))),
    ],
    ids=lambda value: str(value)[:6],
)  # fmt: skip
def test_the_defaults_give_what_the_release_gives_on_normal_pairs_and_on_labels_in_64_dimensions(sides, first, final):
    estimate = mutual_information(*sides)
    assert estimate.first_pass == pytest.approx(first, abs=0.02)
    assert estimate.bits == pytest.approx(final, abs=0.02)


def drawn_neighbour_distance(column: NDArray[np.float64], dim: int) -> float:
    """The release's rule for a width: 500 samples drawn with replacement, always by the same seed."""
    k = math.floor(0.43 * len(column) ** (2 / 3 + 0.17 * dim / (dim + 1)) * math.exp(-1e-4))
    drawn = np.random.RandomState(3334).choice(column, size=500)
    return float(np.mean([np.sort(np.abs(column - one))[k - 1] for one in drawn]))


# The same of pairs of vectors; the last has three numbers on one side and two on the other. With the release's draw of
# 500 samples in the place of ours, the numbers are the release's; our widths move these by 11 % at most.
@pytest.mark.parametrize(
    ("dims", "correlation", "first", "final"),
    [
        ((2, 2), 0.0, 0.1788, 0.0124), ((2, 2), 0.6, 0.4505, 0.4476), ((2, 2), 0.9, 0.9035, 1.3630),
        ((3, 3), 0.9, 1.0458, 2.3145), ((10, 10), 0.6, 0.5472, 0.7950), ((3, 2), 0.9, 0.8541, 1.5863),
    ],
)  # fmt: skip
def test_the_defaults_give_what_the_release_gives_on_pairs_of_vectors(dims, correlation, first, final, monkeypatch):
    left, noise = np.random.RandomState(0).standard_normal((1000, 2, max(dims))).transpose(1, 0, 2)
    right = correlation * left + math.sqrt(1 - correlation**2) * noise
    sides = left[:, : dims[0]], right[:, : dims[1]]
    assert mutual_information(*sides).bits == pytest.approx(final, rel=0.1, abs=0.02)
    monkeypatch.setattr(edge_module, "neighbour_distance", drawn_neighbour_distance)
    estimate = mutual_information(*sides)
    assert estimate.first_pass == pytest.approx(first, abs=1e-4)
    assert estimate.bits == pytest.approx(final, abs=1e-4)


# Errors over eight seeds at 4 000 samples: 0.002 to 0.20 bits, always upwards.
@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6, 0.9, 0.99])
@pytest.mark.parametrize("seed", [0, 1])
def test_normal_pairs_are_told_to_a_fifth_of_a_bit_and_never_too_low(correlation, seed):
    left, right, truth = gaussians(correlation, 4000, seed)
    assert -0.02 < mutual_information(left, right).bits - truth < 0.22


@pytest.mark.parametrize("seed", range(5))
def test_independent_samples_have_none_and_fewer_than_twenty_are_refused(seed):
    draw = np.random.RandomState(seed)
    states, labels = draw.standard_normal((500, 48)), draw.randint(0, 3, 500)
    assert mutual_information(states, labels).bits == pytest.approx(0.001)  # the release's zero
    left, right = draw.standard_normal((2, 1000))
    assert mutual_information(left, right).bits < 0.05  # eight seeds: 0.010 to 0.035
    with pytest.raises(ValueError, match="of 19 examples cannot be estimated; it takes 20 or more"):
        mutual_information(np.zeros((19, 2)), np.zeros(19, dtype=np.int64))
    assert mutual_information(np.zeros((20, 2)), np.arange(20) % 2).bits == pytest.approx(0.001)


def test_a_dependence_that_the_second_pass_hides_is_seen_by_the_first():
    states, labels = two_classes(0.3, 1000, 64)  # an ideal classifier is right on 88 % of these
    draw = np.random.RandomState(0)
    chance = [mutual_information(states, draw.permutation(labels)).first_pass for _ in range(10)]
    estimate = mutual_information(states, labels)
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
