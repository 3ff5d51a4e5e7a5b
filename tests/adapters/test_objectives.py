"""Losses and predictions of each target: those of plain torch, example by example."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from meltpoint.adapters import objectives

T, ROWS, LABELS = 3, 5, 4


def scores(seed: int, outputs: int = LABELS) -> Tensor:
    return torch.randn(T, ROWS, outputs, generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 2**31))
def test_one_label_is_minus_the_log_of_its_probability(seed):
    given_scores, labels = scores(seed), torch.arange(ROWS) % LABELS
    expected = [
        sum(-math.log(torch.softmax(member[row].double(), -1)[labels[row]]) for row in range(ROWS)) / ROWS
        for member in given_scores
    ]
    found = objectives.of("label").loss(given_scores, labels.expand(T, -1), None, None)
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


@given(st.integers(0, 2**31))
def test_several_labels_are_binary_decisions(seed):
    given_scores = scores(seed)
    labels = torch.randint(0, 2, (ROWS, LABELS), generator=torch.Generator().manual_seed(seed)).float()
    expected = []
    for member in given_scores.double():
        shares = torch.sigmoid(member)
        rows = [-(math.log(p) if y else math.log(1 - p)) for p, y in zip(shares.ravel(), labels.ravel(), strict=True)]
        expected.append(sum(rows) / len(rows))
    objective = objectives.of("labels")
    found = objective.loss(given_scores, labels.expand(T, -1, -1), None, None)
    assert found.tolist() == pytest.approx(expected, rel=1e-4)
    probabilities = objective.probabilities(given_scores[0])
    predicted = objective.decode(given_scores[0], None, None)
    assert predicted == [[int(share >= 0.5) for share in row] for row in probabilities]


@given(st.integers(0, 2**31))
def test_grades_are_a_distribution_whose_log_is_the_loss_and_whose_median_is_predicted(seed):
    objective, given_scores = objectives.of("grade"), scores(seed, LABELS - 1)
    labels = torch.arange(ROWS) % LABELS
    expected = []
    for member in given_scores:
        probabilities = objective.probabilities(member)
        assert [sum(row) for row in probabilities] == pytest.approx([1.0] * ROWS)
        assert min(min(row) for row in probabilities) >= 0
        expected.append(-sum(math.log(row[label]) for row, label in zip(probabilities, labels, strict=True)) / ROWS)
        predicted = objective.decode(member, None, None)
        for row, median in zip(probabilities, predicted, strict=True):
            assert sum(row[: median + 1]) >= 0.5 - 1e-9
            assert sum(row[:median]) <= 0.5 + 1e-9
    assert objective.loss(given_scores, labels.expand(T, -1), None, None).tolist() == pytest.approx(expected, rel=1e-4)


def test_two_grades_are_two_classes():
    objective, given_scores = objectives.of("grade"), scores(0, 1)
    labels = torch.tensor([0, 1, 1, 0, 1])
    plain = torch.nn.functional.binary_cross_entropy_with_logits(given_scores[0, :, 0], labels.float())
    assert objective.loss(given_scores, labels.expand(T, -1), None, None)[0] == pytest.approx(float(plain))


@pytest.mark.parametrize("target", ["label", "labels", "grade", "score"])
def test_losses_of_parts_weighted_by_their_rows_are_the_loss_of_the_whole(target):
    outputs = {"score": 1, "grade": LABELS - 1}.get(target, LABELS)
    labels = {
        "score": torch.rand(ROWS) * 5, "labels": (torch.rand(ROWS, LABELS) > 0.5).float(),
    }.get(target, torch.arange(ROWS) % LABELS).expand(T, ROWS, *([LABELS] if target == "labels" else []))  # fmt: skip
    objective, limits = objectives.of(target), (0.0, 5.0) if target == "score" else None
    given_scores = scores(1, outputs)
    whole = objective.loss(given_scores, labels, None, limits)
    parts = [objective.loss(given_scores[:, cut], labels[:, cut], None, limits) for cut in (slice(0, 2), slice(2, 5))]
    assert torch.allclose(0.4 * parts[0] + 0.6 * parts[1], whole)


def test_an_unknown_target_is_refused():
    with pytest.raises(ValueError, match="Unknown target of a kind of task 'lable'"):
        objectives.of("lable")
