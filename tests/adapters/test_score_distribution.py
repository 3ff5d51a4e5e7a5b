"""Scores as distributions: Tai et al.'s formula, Kiros et al.'s regression as scipy fits it."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, special

from meltpoint.adapters import heads
from meltpoint.adapters.head import HeadShape
from meltpoint.adapters.heads.sentence_vectors import ScoreDistribution
from meltpoint.adapters.layers.bundle import MemberRng
from meltpoint.tests.adapters.head_cases import CUTS, DIM, make_batch


def of_tai(score: float, classes: int) -> list[float]:
    """Tai, Socher & Manning 2015, section 4.2: p over the classes 1 to K for a score in [1, K], class by class."""
    below = math.floor(score)
    return [
        score - below if i == below + 1 else below - score + 1 if i == below else 0.0 for i in range(1, classes + 1)
    ]


@given(st.floats(1, 5))
def test_a_target_is_that_of_tai_et_al(score: float):
    found = ScoreDistribution(1, 5).target(torch.tensor([score], dtype=torch.float64))
    assert found[0].tolist() == pytest.approx(of_tai(score, 5), abs=1e-6)


@given(st.floats(-50, 50), st.floats(0.01, 100), st.floats(0, 1))
def test_a_targets_mean_is_the_score_whatever_the_range(low: float, width: float, share: float):
    spread = ScoreDistribution(low, low + width)
    score = min(low + share * width, low + width)
    target = spread.target(torch.tensor(score, dtype=torch.float64)).double()
    assert target.sum().item() == pytest.approx(1, abs=1e-5)
    assert (target > 0).sum() <= 2
    logarithms = (target + 1e-12).log()  # a softmax gives the target back
    assert spread.mean(logarithms).item() == pytest.approx(score, abs=1e-4 * (1 + abs(low) + width))


def test_the_points_are_the_whole_scores():
    assert [ScoreDistribution(*limits).points for limits in [(1, 5), (0, 5), (0, 1), (0, 0.2)]] == [5, 6, 2, 2]


def test_the_loss_is_the_divergence_of_tai_et_al_but_for_the_targets_entropy():
    spread = ScoreDistribution(1, 5)
    labels = torch.tensor([1.0, 2.25, 3.6, 5.0])
    scores = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    target = numpy.array([of_tai(score, 5) for score in labels.tolist()])
    divergence = special.rel_entr(target, special.softmax(scores.numpy(), -1)).sum(-1)
    assert spread.loss(scores, labels).numpy() == pytest.approx(divergence + special.entr(target).sum(-1), abs=1e-5)


def test_the_head_learns_the_optimum_that_scipy_finds():
    """A linear softmax over u and v compared, without a penalty, fitted to scores: the same loss, the same scores."""
    setting = {"dropout": 0.0, "sentence_vectors.regression": "distribution"}
    head = heads.get("sentence_vectors")(HeadShape("pair_regression", DIM, 1, (0.0, 5.0)), [setting], MemberRng([0]))
    states, batch = make_batch("pair_regression")
    optimiser = torch.optim.LBFGS(head.parameters(), max_iter=500, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = head.loss(head(states, batch), batch).sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    first, second = states[0, :, 0].double(), states[0, torch.arange(3), CUTS].double()
    inputs = torch.cat([(first - second).abs(), first * second], 1).numpy()
    assert batch.labels is not None
    target = numpy.array([of_tai(score + 1, 6) for score in batch.labels.tolist()])

    def loss(weights: numpy.ndarray) -> float:
        scores = inputs @ weights[:-6].reshape(-1, 6) + weights[-6:]
        return float(-(target * special.log_softmax(scores, -1)).sum(-1).mean())

    wanted = optimize.minimize(loss, numpy.zeros(inputs.shape[1] * 6 + 6), options={"maxiter": 200}).fun
    assert head.loss(head(states, batch), batch).item() == pytest.approx(wanted, abs=2e-3)
    assert head.decode(head(states, batch)[0], batch, 0) == pytest.approx(batch.labels.tolist(), abs=0.02)
