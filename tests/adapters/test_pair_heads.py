"""ESIM and bi-attention against loops over words, written from the equations; what surrounds a sentence is unseen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from meltpoint.adapters import heads
from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.head import Head, HeadShape
from meltpoint.adapters.heads import esim
from meltpoint.adapters.hyperparameters import Setting
from meltpoint.adapters.layers import attention
from meltpoint.adapters.layers.affine import FeatureDropout
from meltpoint.adapters.layers.attention import Sentence, enhance, sentences, side_by_side
from meltpoint.adapters.layers.bundle import Bundle, MemberRng
from meltpoint.adapters.layers.lstm import BiLSTM
from meltpoint.tasks.core.task import Kind

DIM, HIDDEN = 6, 4
Pair = tuple[Tensor, Tensor]
"""A pair's states: (length, DIM) of each sentence."""
RELU = {"esim.activation": "relu"}
HEADS = [
    ("esim", {"esim.hidden_size": HIDDEN}), ("esim", {"esim.hidden_size": HIDDEN, **RELU}),
    ("bi_attention", {}), ("bi_attention", {"bi_attention.attend": False}),
]  # fmt: skip
KINDS: list[Kind] = ["pair_classification", "pair_regression"]
LENGTHS = [(3, 2), (1, 4), (5, 1)]


def build(word: str, members: int = 1, kind: Kind = "pair_classification", **setting: float | bool) -> Head:
    regression = kind == "pair_regression"
    shape = HeadShape(kind, DIM, 1 if regression else 3, (1.0, 5.0) if regression else None)
    given = {"dropout": 0.0, **setting}
    return heads.get(word, kind)(shape, [given] * members, MemberRng(range(members)))


def make_pairs(lengths: Sequence[tuple[int, int]], seed: int = 0) -> list[Pair]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(a, DIM, generator=generator), torch.randn(b, DIM, generator=generator)) for a, b in lengths]


def lay_out(pairs: Sequence[Pair], before: int = 1, between: int = 1, padding: int = 0) -> tuple[Tensor, Batch]:
    """Rows of the pairs' states with special tokens around them, whose states are large and random; (1, rows, …)."""
    width = max(len(one) + len(two) for one, two in pairs) + before + between + padding
    states, parts = 9 * torch.randn(1, len(pairs), width, DIM), torch.zeros(len(pairs), width, dtype=torch.int64)
    for row, (one, two) in enumerate(pairs):
        cut, start = before + len(one), before + len(one) + between
        states[0, row, before:cut], parts[row, before:cut] = one, 1
        states[0, row, start : start + len(two)], parts[row, start : start + len(two)] = two, 2
    mask = torch.arange(width) < torch.tensor([before + len(a) + between + len(b) for a, b in pairs])[:, None]
    return states, Batch(tuple(range(len(pairs))), mask.long(), mask, parts=parts)


def as_sentences(pairs: Sequence[Pair]) -> tuple[Sentence, Sentence]:
    return sentences(*lay_out(pairs))


# --- the equations of Chen et al. 2017, word by word ---


def aligned(own: Tensor, other: Tensor) -> Tensor:
    """Equations 11 to 13: for each word the sum of the other sentence's words, by the softmax of their products."""
    found = []
    for state in own:
        scores = [math.exp(float(state @ word)) for word in other]
        found.append(sum(score / sum(scores) * word for score, word in zip(scores, other, strict=True)))
    return torch.stack(found)


def enhanced(own: Tensor, other: Tensor) -> Tensor:
    """Equations 14 and 15."""
    pairs = zip(own, aligned(own, other), strict=True)
    return torch.stack([torch.cat([state, soft, state - soft, state * soft]) for state, soft in pairs])


def pooled(states: Tensor) -> Tensor:
    """Equations 18 and 19: maximum, then mean, over words."""
    highest = torch.stack([max(column) for column in states.T])
    return torch.cat([highest, sum(states) / len(states)])


def affine(layer: nn.Module, states: Tensor, member: int) -> Tensor:
    return states @ layer.weight[member].T + layer.bias[member]


def lstm_of(own: BiLSTM, inputs: int, member: int) -> Callable[[Tensor], Tensor]:
    """torch's own LSTM with a member's weights."""
    lstm = nn.LSTM(inputs, HIDDEN, batch_first=True, bidirectional=True)
    lstm.load_state_dict({name: parameter[member] for name, parameter in own.named_parameters()})
    return lambda states: lstm(states[None])[0][0]


def esim_alone(head: Head, setting: Setting, pair: Pair, member: int) -> Tensor:
    """One pair's scores, no padding anywhere."""
    encode, compose = lstm_of(head.encoder, DIM, member), lstm_of(head.composition, HIDDEN, member)
    one, two = map(encode, pair)
    both = [enhanced(one, two), enhanced(two, one)]
    vectors = [pooled(compose(affine(head.projection, states, member).clamp(min=0))) for states in both]
    activation = torch.relu if RELU.items() <= setting.items() else torch.tanh
    return affine(head.scores.linear, activation(affine(head.hidden, torch.cat(vectors), member)), member)


def bi_attention_alone(head: Head, setting: Setting, pair: Pair, member: int) -> Tensor:
    one, two = pair
    both = [enhanced(one, two), enhanced(two, one)] if setting.get("bi_attention.attend", True) else [one, two]
    return affine(head.scores.linear, torch.cat([pooled(states) for states in both]), member)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("word", "setting"), HEADS)
def test_scores_are_those_of_the_equations_word_by_word(word: str, setting: Setting, kind: Kind):
    head, pairs = build(word, 2, kind, **setting), make_pairs(LENGTHS)
    alone = esim_alone if word == "esim" else bi_attention_alone
    scores = head(*lay_out(pairs, padding=2))
    for member in range(2):
        for row, pair in enumerate(pairs):
            torch.testing.assert_close(scores[member, row], alone(head, setting, pair, member), atol=1e-5, rtol=1e-4)


def test_the_gradient_of_alignment_and_enhancement_is_that_of_finite_differences():
    (one, mask), (two, other) = as_sentences(make_pairs(LENGTHS[:2]))
    states = [own.double().requires_grad_() for own in (one, two)]

    def run(first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
        both = enhance(Sentence(first, mask), Sentence(second, other))
        return tuple(own.states[own.mask] for own in both)

    assert torch.autograd.gradcheck(run, states)


def test_esim_has_the_sizes_of_the_paper_unless_asked_otherwise():
    head = heads.get("esim")(HeadShape("pair_classification", 768, 3), [{}], MemberRng([0]))
    assert (head.encoder.dim, head.composition.dim) == (600, 600)
    assert [tuple(own.weight.shape) for own in (head.projection, head.hidden)] == [(1, 300, 2400)] * 2


# --- what surrounds a sentence, and which comes first ---

lengths = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=3)


@pytest.mark.parametrize(("word", "setting"), HEADS)
@settings(max_examples=20, deadline=None)
@given(sizes=lengths, around=st.tuples(*[st.integers(0, 3)] * 3), data=st.data())
def test_special_tokens_padding_order_and_neighbours_change_no_score(
    word: str, setting: dict[str, int], sizes: list[tuple[int, int]], around: tuple[int, int, int], data: st.DataObject
):
    head, pairs = build(word, **setting), make_pairs(sizes)
    alone = [head(*lay_out([pair]))[0, 0] for pair in pairs]
    order = data.draw(st.permutations(range(len(pairs))))
    found = head(*lay_out([pairs[row] for row in order], *around))[0]
    for place, row in enumerate(order):
        torch.testing.assert_close(found[place], alone[row], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("empty", [(0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize(("word", "setting"), HEADS)
def test_an_empty_sentence_has_finite_scores_and_gradients(word: str, setting: dict[str, int], empty: tuple[int, int]):
    head, pairs = build(word, **setting), make_pairs([empty, (2, 2)])
    states, batch = lay_out(pairs)
    scores = head(states.requires_grad_(), batch)
    torch.testing.assert_close(scores[:, :1], head(*lay_out(pairs[:1])), atol=1e-6, rtol=1e-5)
    scores.square().sum().backward()
    assert scores.isfinite().all()
    assert all(own.isfinite().all() for own in (states.grad, *(p.grad for p in head.parameters())))


# --- a GPU's way, on the CPU ---


@pytest.mark.parametrize(("word", "setting"), HEADS)
def test_only_a_sentences_own_pieces_get_a_gradient(word: str, setting: dict[str, int]):
    states, batch = lay_out(make_pairs(LENGTHS), padding=2)
    build(word, **setting)(states.requires_grad_(), batch).square().sum().backward()
    assert torch.equal(states.grad[0].abs().sum(-1) > 0, batch.parts > 0)


def test_both_sentences_as_one_batch_score_as_one_after_the_other(monkeypatch: pytest.MonkeyPatch):
    head, rows = build("esim", 2, **{"esim.hidden_size": HIDDEN}), lay_out(make_pairs(LENGTHS))
    expected = head(*rows)
    expected.square().sum().backward()
    gradients = [parameter.grad for parameter in head.parameters()]
    seen: list[tuple[int, ...]] = []

    def at_once(read: Callable[[Sentence], Tensor], one: Sentence, two: Sentence) -> tuple[Tensor, Tensor]:
        joined = side_by_side(one, two)
        seen.append(tuple(joined.states.shape))
        first, second = read(joined).chunk(2, 1)
        return first, second

    for module in (attention, esim):
        monkeypatch.setattr(module, "on_both", at_once)
    head.zero_grad()
    found = head(*rows)
    found.square().sum().backward()
    torch.testing.assert_close(found, expected)
    for parameter, gradient in zip(head.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-5, rtol=1e-4)
    assert seen == [(1, 6, 5, DIM), (2, 6, 5, 8 * HIDDEN)]


# --- precision ---


def test_alignment_is_exact_under_autocast():
    """Scores near 200 in bf16 would be whole numbers: alignments would be off by a factor of e."""
    one, two = as_sentences([(7 * a, 7 * b) for a, b in make_pairs([(4, 5), (3, 3)])])
    halves = [Sentence(own.states.bfloat16(), own.mask) for own in (one, two)]
    exact = enhance(*(Sentence(own.states.float(), own.mask) for own in halves))
    with torch.autocast("cpu", torch.bfloat16):
        found = enhance(*halves)
    for own, expected in zip(found, exact, strict=True):
        assert torch.equal(own.states, expected.states)


# --- dropout ---


def test_esims_dropout_acts_where_allennlps_does():
    """Whole features of both BiLSTMs' inputs, a sentence at a time; elements of the pooled vector and hidden layer."""
    head, rows = build("esim", **{"esim.hidden_size": HIDDEN, "dropout": 0.5}), lay_out(make_pairs(LENGTHS))
    drawn: list[tuple[int, ...]] = []
    bits = head.rng.bits

    def counted(shape: Sequence[int], device: torch.device) -> Tensor:
        drawn.append(tuple(shape))
        return bits(shape, device)

    head.rng.bits = counted
    head(*rows)
    assert drawn == [(1, 3, DIM)] * 2 + [(1, 3, HIDDEN)] * 2 + [(3, 8 * HIDDEN), (3, HIDDEN)]


def test_feature_dropout_drops_a_feature_everywhere_or_nowhere():
    dropout = FeatureDropout(Bundle([{"dropout": 0.25}, {"dropout": 0.0}], MemberRng([0, 1])))
    states = torch.randn(1, 5, 40, 50)
    found = dropout(states)
    kept = found[0] != 0
    assert torch.equal(kept, kept[:1].expand(5, -1, -1))
    assert 0.7 < kept[0].float().mean() < 0.8
    torch.testing.assert_close(found[0][kept], states[0][kept] / 0.75)
    assert torch.equal(found[1], states[0])
    assert dropout.eval()(states) is states
    assert len({tuple(row.tolist()) for row in kept[0]}) == 40, "each row has its own"


def test_a_members_dropout_does_not_depend_on_how_far_its_sentences_are_padded():
    pair, near, far = make_pairs([(3, 2), (2, 2), (9, 8)])
    found = []
    for rows in ([pair, near], [pair, far]):
        head = build("esim", **{"esim.hidden_size": HIDDEN, "dropout": 0.5})
        head.rng.begin(3)
        found.append(head(*lay_out(rows))[0, 0])
    torch.testing.assert_close(found[0], found[1])


# --- settings ---
