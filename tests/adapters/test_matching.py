"""BiMPM's matchings against slow loops written from its equations; gradients against finite differences."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from meltpoint.adapters import heads
from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.head import HeadShape
from meltpoint.adapters.layers.attention import sentences
from meltpoint.adapters.layers.bundle import Bundle, MemberRng
from meltpoint.adapters.layers.matching import MATCHINGS, Matching, Side, by_members, ends, match

TRIALS, ROWS, SIZE, PERSPECTIVES = 2, 3, 4, 3
LENGTHS = ([3, 1, 4], [2, 5, 1])
EXACT = torch.float64


def side(lengths: list[int], seed: int, size: int = SIZE, dtype: torch.dtype = EXACT) -> Side:
    """Random states, (T, rows, longest, size), noise on padding too; their last real ones; and the mask."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(TRIALS, ROWS, max(lengths), size, generator=generator, dtype=dtype)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    last = torch.stack([states[:, row, length - 1] for row, length in enumerate(lengths)], 1)
    return states, last, mask.expand(TRIALS, -1, -1)


def weights(size: int = SIZE, dtype: torch.dtype = EXACT) -> Tensor:
    generator = torch.Generator().manual_seed(9)
    return torch.randn(TRIALS, len(MATCHINGS), PERSPECTIVES, size, generator=generator, dtype=dtype)


def cosine(one: Tensor, two: Tensor) -> Tensor:
    return one @ two / (one.norm() * two.norm())


def f_m(one: Tensor, two: Tensor, weight: Tensor) -> list[Tensor]:
    """Equations 3 and 4."""
    return [cosine(own * one, own * two) for own in weight]


def slow(state: Tensor, others: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    """Equations 5 to 9 for one state, the other sentence's real states (other's length, size), and (4, l, size)."""
    full = f_m(state, end, weight[0])
    pooled = [max(own) for own in zip(*(f_m(state, other, weight[1]) for other in others), strict=True)]
    alphas = [cosine(state, other) for other in others]
    mean = sum(alpha * other for alpha, other in zip(alphas, others, strict=True)) / sum(alphas)
    attentive = f_m(state, mean, weight[2])
    max_attentive = f_m(state, others[int(torch.stack(alphas).argmax())], weight[3])
    return torch.stack([*full, *pooled, *attentive, *max_attentive])


def check(found: Tensor, one: Side, two: Side, weight: Tensor) -> None:
    """One sentence's matchings, position by position; 0 on padding."""
    for trial, row in itertools.product(range(TRIALS), range(ROWS)):
        others = two[0][trial, row][two[2][trial, row]]
        for place, real in enumerate(one[2][trial, row].tolist()):
            expected = torch.zeros(len(MATCHINGS) * PERSPECTIVES, dtype=found.dtype)
            if real:
                expected = slow(one[0][trial, row, place], others, two[1][trial, row], weight[trial])
            torch.testing.assert_close(found[trial, row, place], expected)


# --- one direction ---


@pytest.mark.parametrize("size", [2, SIZE, 9])
def test_every_matching_of_both_sentences_is_that_of_the_papers_equations(size: int):
    one, two, weight = side(LENGTHS[0], 0, size), side(LENGTHS[1], 1, size), weights(size)
    first, second = match(one, two, weight)
    check(first, one, two, weight)
    check(second, two, one, weight)


def test_a_mean_whose_cosines_sum_to_less_than_nothing_points_the_other_way():
    """Equation 8 divides by a negative number there."""
    one, two, weight = side([2, 2, 2], 0), side([3, 3, 3], 1), weights()
    opposite = (-two[0], -two[1], two[2])
    sums = [float(sum(cosine(one[0][0, 0, 0], state) for state in own[0][0, 0])) for own in (two, opposite)]
    assert min(sums) < 0 < max(sums)
    for other in (two, opposite):
        check(match(one, other, weight)[0], one, other, weight)


@pytest.mark.parametrize("junk", [1e9, float("nan"), float("inf")])
def test_padding_never_wins_a_maximum_and_never_counts_in_a_mean(junk: float):
    one, two, weight = side(LENGTHS[0], 0), side(LENGTHS[1], 1), weights()
    spoilt = [(states.masked_fill(~mask[..., None], junk), end, mask) for states, end, mask in (one, two)]
    for found, expected in zip(match(*spoilt, weight), match(one, two, weight), strict=True):
        assert torch.equal(found, expected)


def test_a_state_of_zeros_has_cosines_and_gradients_of_zero():
    one, two = side([1, 1, 1], 0), side([2, 2, 2], 1)
    states = torch.zeros_like(one[0]).requires_grad_()
    found, others = match((states, states[:, :, 0], one[2]), two, weights())
    assert not found.any()
    (found.sum() + others.sum()).backward()
    assert states.grad is not None
    assert not states.grad.any()


def test_members_at_once_are_members_one_by_one():
    """As on a GPU, and as on a CPU."""
    one, two, weight = side(LENGTHS[0], 0), side(LENGTHS[1], 1), weights()
    apart = by_members([own[:, None] for own in one], [own[:, None] for own in two], weight[:, None])
    for found, expected in zip(apart, match(one, two, weight), strict=True):
        torch.testing.assert_close(found, expected)


def test_bf16_states_are_matched_in_float32():
    one, two = (side(lengths, seed, dtype=torch.bfloat16) for seed, lengths in enumerate(LENGTHS))
    weight = weights(dtype=torch.float32)
    found = match(one, two, weight)
    exact = match((one[0].float(), one[1].float(), one[2]), (two[0].float(), two[1].float(), two[2]), weight)
    assert {own.dtype for own in found} == {torch.float32}
    assert all(torch.equal(*pair) for pair in zip(found, exact, strict=True))


# --- gradients ---


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [tensor.clone().requires_grad_() for tensor in tensors]


def test_the_gradient_of_all_matchings_is_that_of_finite_differences():
    one, two = side([2, 1, 2], 0), side([1, 3, 2], 1)

    def outputs(first: Tensor, second: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return match((first, first[:, :, 0], one[2]), (second, second[:, :, 0], two[2]), weight)

    assert torch.autograd.gradcheck(outputs, leaves(one[0], two[0], weights()))


# --- the layer ---


def layer(first_bilstm: bool, inputs: int = 6) -> Matching:
    setting = {"dropout": 0.0, "bimpm.hidden_size": SIZE, "bimpm.perspectives": PERSPECTIVES}
    return Matching(inputs, Bundle([setting | {"bimpm.first_bilstm": first_bilstm}] * TRIALS, MemberRng(range(TRIALS))))


def pairs(inputs: int = 6) -> tuple[Tensor, Batch]:
    parts = torch.tensor([[0, 1, 1, 1, 0, 2, 2, 0, 0], [0, 1, 0, 2, 2, 2, 2, 2, 0], [0, 1, 1, 1, 1, 0, 2, 0, 0]])
    states = torch.randn(1, ROWS, 9, inputs, generator=torch.Generator().manual_seed(3))
    return states, Batch((0, 1, 2), torch.ones_like(parts), torch.ones_like(parts, dtype=torch.bool), parts=parts)


@pytest.mark.parametrize("first_bilstm", [True, False])
def test_the_onward_direction_ends_at_the_last_state_and_the_backward_one_at_the_first(first_bilstm: bool):
    matching, (states, batch) = layer(first_bilstm), pairs()
    read = list(sentences(states, batch))
    if matching.bilstm is not None:
        read = [own._replace(states=matching.bilstm(own.states, own.mask)) for own in read]
    found = matching(states, batch)
    half = len(MATCHINGS) * PERSPECTIVES
    for number, weight in enumerate(matching.weight.unbind(1)):
        sides = []
        for own in read:
            seen = own.states.chunk(2, -1)[number] if first_bilstm else own.states
            last = own.mask.sum(-1)[0] - 1 if number == 0 else torch.zeros(ROWS, dtype=torch.int64)
            seen = seen.expand(TRIALS, -1, -1, -1)
            sides.append((seen, seen[:, torch.arange(ROWS), last], own.mask.expand(TRIALS, -1, -1)))
        for one, two, own in ((*sides, found[0]), (*reversed(sides), found[1])):
            check(own.states[..., number * half : (number + 1) * half], one, two, weight)


def test_without_its_first_bilstm_the_encoders_whole_states_are_matched():
    matching = layer(first_bilstm=False, inputs=6)
    assert matching.bilstm is None
    assert matching.weight.shape == (TRIALS, 2, len(MATCHINGS), PERSPECTIVES, 6)
    assert layer(first_bilstm=True, inputs=6).weight.shape == (TRIALS, 2, len(MATCHINGS), PERSPECTIVES, SIZE)


def test_the_ends_of_a_bilstm_are_the_last_states_of_torchs_lstm():
    lstm, states = torch.nn.LSTM(5, 3, batch_first=True, bidirectional=True), torch.randn(2, 6, 5)
    lengths = [6, 2]
    read, mask = torch.zeros(1, 2, 6, 6), torch.arange(6) < torch.tensor(lengths)[:, None]
    for row, length in enumerate(lengths):
        own, (last, _) = lstm(states[row : row + 1, :length])
        read[0, row, :length] = own[0]
        torch.testing.assert_close(ends(read, mask[None])[0, row], last[:, 0].flatten())


# --- the heads ---


@pytest.mark.parametrize("word", ["bimpm", "sim_transformer"])
@pytest.mark.parametrize("first_bilstm", [True, False])
def test_an_empty_sentence_gives_finite_scores_and_gradients(word: str, first_bilstm: bool):
    states, batch = pairs()
    assert batch.parts is not None
    batch.parts[0].masked_fill_(batch.parts[0] == 2, 0)
    batch.parts[1].zero_()
    sizes = {"bimpm.hidden_size": 4, "bimpm.perspectives": 2, "sim_transformer.feed_forward_size": 8, "dropout": 0.3}
    setting = sizes | {"bimpm.first_bilstm": first_bilstm}
    head = heads.get(word)(HeadShape("pair_classification", 6, 2), [setting], MemberRng([0]))
    states.requires_grad_()
    scores = head(states, batch)
    scores.sum().backward()
    assert scores.isfinite().all()
    assert all(own.grad is not None and own.grad.isfinite().all() for own in (states, *head.parameters()))


def test_heads_that_do_not_divide_a_positions_matchings_are_refused():
    setting = {"bimpm.perspectives": 5, "sim_transformer.heads": 3}
    with pytest.raises(ValueError, match=r"sim_transformer\.heads is 3; it must divide 8 · bimpm\.perspectives = 40"):
        heads.get("sim_transformer")(HeadShape("pair_classification", 6, 2), [setting], MemberRng([0]))


def test_bimpms_sizes_are_the_authors():
    head = heads.get("bimpm")(HeadShape("pair_classification", 300, 2), [{}], MemberRng([0]))
    assert head.matching.weight.shape == (1, 2, 4, 20, 100)
    assert (head.matching.dim, head.aggregation.dim) == (160, 200)
    assert head.prediction.hidden.weight.shape == (1, 200, 400)
