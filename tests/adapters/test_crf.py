"""The CRF against a sum over every path, against pytorch-crf itself, and against pytorch-crf's traps."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchcrf import CRF

from meltpoint.adapters.heads.crf import ConditionalRandomField
from meltpoint.adapters.layers.bundle import Bundle, MemberRng

LABELS = 3


def random_crf(seed: int, labels: int = LABELS, trials: int = 1) -> ConditionalRandomField:
    torch.manual_seed(seed)
    crf = ConditionalRandomField(labels, Bundle([{}] * trials, MemberRng(range(trials))))
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.normal_()
    return crf


def mask_of(lengths: list[int]) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def plain(crf: ConditionalRandomField, member: int) -> CRF:
    """pytorch-crf itself with a member's transition scores."""
    found = CRF(crf.transitions.shape[1], batch_first=True)
    found.load_state_dict({name: tensor[member] for name, tensor in crf.state_dict().items()})
    return found


def loss_of(crf: ConditionalRandomField, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """The loss of a bundle of one."""
    return crf.loss(scores[None], labels[None], mask[None])[0]


@torch.no_grad()
def path_score(crf: ConditionalRandomField, scores: Tensor, path: tuple[int, ...]) -> float:
    """start + emissions + transitions + end, added up by hand in double precision."""
    total = crf.start_transitions[0, path[0]].double() + crf.end_transitions[0, path[-1]].double()
    total = total + sum(scores[step, label].double() for step, label in enumerate(path))
    return float(total + sum(crf.transitions[0, a, b].double() for a, b in itertools.pairwise(path)))


def all_paths(crf: ConditionalRandomField, scores: Tensor) -> dict[tuple[int, ...], float]:
    paths = itertools.product(range(LABELS), repeat=len(scores))
    return {path: path_score(crf, scores, path) for path in paths}


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_loss_and_best_path_equal_those_of_all_paths(seed: int, lengths: list[int]):
    crf, mask = random_crf(seed), mask_of(lengths)
    scores = torch.randn(*mask.shape, LABELS)
    labels = torch.randint(LABELS, mask.shape)
    expected, best = 0.0, []
    for row, length in enumerate(lengths):
        paths = all_paths(crf, scores[row, :length])
        partition = torch.logsumexp(torch.tensor(list(paths.values()), dtype=torch.float64), 0)
        expected += float(partition) - paths[tuple(labels[row, :length].tolist())]
        best.append(list(max(paths, key=paths.__getitem__)))
    assert loss_of(crf, scores, labels, mask).item() == pytest.approx(expected / sum(lengths), rel=1e-4, abs=1e-5)
    assert crf.decode(scores, mask, 0) == best


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.lists(st.integers(1, 30), min_size=1, max_size=8), st.booleans())
def test_the_batched_viterbi_equals_pytorch_crfs_also_where_paths_tie(seed: int, lengths: list[int], ties: bool):
    crf, mask = random_crf(seed, 9), mask_of(lengths)
    scores = torch.randn(*mask.shape, 9)
    if ties:
        scores = scores.round()
        with torch.no_grad():
            for parameter in crf.parameters():
                parameter.round_()
    assert crf.decode(scores, mask, 0) == plain(crf, 0).decode(scores, mask)


def test_labels_where_masked_do_not_matter_not_even_minus_100():
    crf, mask = random_crf(0), mask_of([2, 4])
    scores, labels = torch.randn(2, 4, LABELS), torch.randint(LABELS, (2, 4))
    assert torch.equal(
        loss_of(crf, scores, labels, mask), loss_of(crf, scores, labels.masked_fill(~mask, -100), mask)
    )  # fmt: skip


def test_a_sentence_without_words_has_no_loss_no_gradient_and_no_path():
    crf, mask = random_crf(0, trials=2), torch.tensor([[[False] * 3, [True] * 3]])
    scores = torch.randn(2, 2, 3, LABELS, requires_grad=True)
    labels = torch.randint(LABELS, mask.shape)
    losses = crf.loss(scores, labels, mask)
    torch.testing.assert_close(losses, crf.loss(scores[:, 1:], labels[:, 1:], mask[:, 1:]))
    losses.sum().backward()
    assert not scores.grad[:, 0].any()
    assert scores.grad[:, 1].any()
    assert not crf.loss(scores[:, :1], labels[:, :1], mask[:, :1]).any()
    assert crf.decode(scores[0], mask[0], 0)[0] == []
    assert crf.decode(torch.zeros(2, 0, LABELS), torch.zeros(2, 0, dtype=torch.bool), 0) == [[], []]


def test_a_mask_with_holes_is_never_scored():
    crf, scores = random_crf(0), torch.randn(1, 3, LABELS)
    holes = torch.tensor([[True, False, True]])
    with pytest.raises(AssertionError, match="no holes"):
        loss_of(crf, scores, torch.zeros(1, 3, dtype=torch.int64), holes)
    with pytest.raises(AssertionError, match="no holes"):
        crf.decode(scores, holes, 0)


def test_autocast_does_not_touch_the_partition_function():
    crf, mask = random_crf(0), mask_of([20, 30])
    scores, labels = torch.randn(2, 30, LABELS), torch.randint(LABELS, (2, 30))
    expected = loss_of(crf, scores, labels, mask)
    with torch.autocast("cpu", torch.bfloat16):
        found = loss_of(crf, scores, labels, mask)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


@settings(max_examples=20)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.sampled_from([1, 3]), st.sampled_from([1, 3]))
def test_each_members_loss_and_gradients_are_pytorch_crfs(lengths: list[int], trials: int, lanes: int):
    crf, mask = random_crf(0, trials=trials), mask_of(lengths)[None].expand(min(lanes, trials), -1, -1)
    scores = torch.randn(trials, *mask.shape[1:], LABELS, requires_grad=True)
    labels = torch.randint(LABELS, mask.shape)
    losses = crf.loss(scores, labels, mask)
    losses.sum().backward()
    for member in range(trials):
        alone, lane, own = plain(crf, member), member % len(mask), scores.detach()[member].requires_grad_()
        expected = -alone(own, labels[lane], mask[lane], reduction="token_mean")
        expected.backward()
        torch.testing.assert_close(losses[member], expected)
        torch.testing.assert_close(scores.grad[member], own.grad, atol=1e-6, rtol=1e-4)
        for name, parameter in crf.named_parameters():
            if any(length > 1 for length in lengths) or name != "transitions":  # else there is nothing to pass on
                torch.testing.assert_close(parameter.grad[member], alone.get_parameter(name).grad, atol=1e-6, rtol=1e-4)


def test_transition_scores_start_as_pytorch_crfs_do():
    crf = ConditionalRandomField(50, Bundle([{}], MemberRng([0])))
    assert float(crf.transitions.abs().max()) == pytest.approx(0.1, rel=0.01)
    assert [name for name, _ in crf.named_parameters()] == ["start_transitions", "end_transitions", "transitions"]
