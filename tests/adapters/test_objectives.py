"""Losses and predictions of each target: those of plain torch, example by example."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor

from meltpoint.adapters import heads
from meltpoint.adapters.head import HeadShape
from meltpoint.adapters.layers.bundle import MemberRng
from meltpoint.adapters.objectives import OBJECTIVES, Options
from meltpoint.adapters.settings import parameters
from meltpoint.tasks.core.task import KINDS

T, ROWS, LABELS = 3, 5, 4
PLAIN = Options((0.0,) * T, (0.5,) * T, (None,) * T)


def scores(seed: int, outputs: int = LABELS) -> Tensor:
    return torch.randn(T, ROWS, outputs, generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 2**31))
def test_one_label_is_minus_the_log_of_its_probability(seed):
    given_scores, labels = scores(seed), torch.arange(ROWS) % LABELS
    expected = [
        sum(-math.log(torch.softmax(member[row].double(), -1)[labels[row]]) for row in range(ROWS)) / ROWS
        for member in given_scores
    ]
    found = OBJECTIVES["label"].loss(given_scores, labels.expand(T, -1), None, None, PLAIN)
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
    objective = OBJECTIVES["labels"]
    found = objective.loss(given_scores, labels.expand(T, -1, -1), None, None, PLAIN)
    assert found.tolist() == pytest.approx(expected, rel=1e-4)
    probabilities = objective.probabilities(given_scores[0])
    predicted = objective.decode(given_scores[0], None, None, 0.5)
    assert predicted == [[int(share >= 0.5) for share in row] for row in probabilities]


@given(st.integers(0, 2**31))
def test_grades_are_a_distribution_whose_log_is_the_loss_and_whose_median_is_predicted(seed):
    objective, given_scores = OBJECTIVES["grade"], scores(seed, LABELS - 1)
    labels = torch.arange(ROWS) % LABELS
    expected = []
    for member in given_scores:
        probabilities = objective.probabilities(member)
        assert [sum(row) for row in probabilities] == pytest.approx([1.0] * ROWS)
        assert min(min(row) for row in probabilities) >= 0
        expected.append(-sum(math.log(row[label]) for row, label in zip(probabilities, labels, strict=True)) / ROWS)
        predicted = objective.decode(member, None, None, 0.5)
        for row, median in zip(probabilities, predicted, strict=True):
            assert sum(row[: median + 1]) >= 0.5 - 1e-9
            assert sum(row[:median]) <= 0.5 + 1e-9
    assert objective.loss(given_scores, labels.expand(T, -1), None, None, PLAIN).tolist() == pytest.approx(
        expected, rel=1e-4
    )


# --- focal loss and class weights ---


def one_by_one(member: Tensor, labels: Tensor, gamma: float, weights: Tensor | None) -> float:
    """The weighted focal loss of a member, written out."""
    total = 0.0
    for row, label in zip(member.double(), labels.tolist(), strict=True):
        p = float(torch.softmax(row, -1)[label])
        total += (1.0 if weights is None else float(weights[label])) * (1 - p) ** gamma * -math.log(p)
    return total / len(labels)


@given(st.integers(0, 2**31), st.floats(0, 5))
def test_the_focal_loss_and_weights_are_those_written_out_for_each_member(seed, gamma):
    given_scores, labels = scores(seed), torch.arange(ROWS) % LABELS
    weights = (None, torch.tensor([0.5, 2.0, 1.0, 0.0]), torch.tensor([1.0, 1.0, 3.0, 1.0]))
    options = Options((gamma, 0.0, 2.0), (0.5,) * T, weights)
    found = OBJECTIVES["label"].loss(given_scores, labels.expand(T, -1), None, None, options)
    expected = [
        one_by_one(member, labels, own, weight)
        for member, own, weight in zip(given_scores, options.gammas, weights, strict=True)
    ]
    assert found.tolist() == pytest.approx(expected, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("target", ["label", "labels"])
def test_a_members_focal_loss_and_gradient_have_the_bits_that_it_has_alone(target):
    labels = torch.arange(ROWS) % LABELS
    own = labels.expand(T, -1) if target == "label" else (scores(8) > 0).float()
    options = Options((0.0, 2.0, 0.7), (0.5,) * T, (None, None, torch.tensor([0.5, 2.0, 1.0, 1.0])))
    together = scores(9).requires_grad_()
    losses = OBJECTIVES[target].loss(together, own, None, None, options)
    losses.sum().backward()
    for member in range(T):
        alone = scores(9)[member : member + 1].requires_grad_()
        loss = OBJECTIVES[target].loss(alone, own[member : member + 1], None, None, options.kept([member]))
        loss.sum().backward()
        assert torch.equal(loss[0], losses[member])
        assert torch.equal(alone.grad[0], together.grad[member])


def test_a_focal_loss_of_a_certain_answer_has_a_finite_slope():
    certain = torch.tensor([[[90.0, -90.0]]]).requires_grad_()
    options = Options((0.5,), (0.5,), (None,))
    OBJECTIVES["label"].loss(certain, torch.tensor([[0]]), None, None, options).sum().backward()
    assert certain.grad.isfinite().all()


def test_another_threshold_predicts_other_labels():
    given_scores = torch.tensor([[-1.0, 0.0, 1.0]])  # probabilities 0.27, 0.5, 0.73
    objective = OBJECTIVES["labels"]
    assert objective.decode(given_scores, None, None, 0.5) == [[0, 1, 1]]
    assert objective.decode(given_scores, None, None, 0.6) == [[0, 0, 1]]
    assert objective.decode(given_scores, None, None, 0.2) == [[1, 1, 1]]


def test_balanced_weights_are_scikit_learns_and_members_keep_their_own():
    labels = [0] * 6 + [1] * 3 + [2]
    shape = HeadShape("sentence_classification", 8, 3, class_weights=(1.0, 2.0, 4.0))
    settings = [{"class_weights": name} for name in ("none", "balanced", "task")]
    head = heads.get("linear")(shape, settings, MemberRng([0, 0, 0]))
    head.weigh(labels)
    wanted = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    none, balanced, own = head.options.weights
    assert none is None
    assert balanced.tolist() == pytest.approx(wanted.tolist())
    assert own.tolist() == [1.0, 2.0, 4.0]
    head.keep([2, 0])
    assert head.options.weights[0] is own
    assert head.options.weights[1] is None


def test_a_kind_without_such_a_loss_has_no_such_hyperparameter():
    names = {kind: {one.name for one in parameters("fine_tuning", "linear", kind)} for kind in KINDS}
    assert "focal_gamma" in names["pair_classification"]
    assert "threshold" not in names["pair_classification"]
    assert {"focal_gamma", "threshold"} <= names["multi_label_classification"]
    assert not {"focal_gamma", "threshold", "class_weights"} & names["sentence_regression"]
