"""A stack of trials equals its members trained alone: every head, every kind, with dropout on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from meltpoint.adapters import heads, modes
from meltpoint.adapters import settings as catalogue
from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.head import Head, HeadShape
from meltpoint.adapters.layers.dropout import MemberRng
from meltpoint.adapters.training.stacked_adamw import StackedAdamW
from meltpoint.tasks.core.task import KINDS, Kind

DIM, ROWS, WIDTH, WORDS = 12, 3, 9, 4
SIZES = {
    "bilstm.hidden_size": 8, "bilstm.layers": 2, "mlp.hidden_size": 16,
    "esim.hidden_size": 8,
    "bcn.hidden_size": 8, "highway_lstm.hidden_size": 8, "densenet.growth_rate": 4,
    "bimpm.hidden_size": 8, "bimpm.perspectives": 2,
    "sim_transformer.heads": 4, "sim_transformer.feed_forward_size": 16,
}  # fmt: skip
PARTS = torch.tensor([[0, 1, 1, 1, 0, 2, 0, 0, 0], [0, 1, 0, 2, 2, 0, 0, 0, 0], [0, 0, 2, 0, 0, 0, 0, 0, 0]])
"""Which sentence of its pair each piece belongs to; (rows, width)."""
CUTS = torch.tensor([4, 2, 1])
"""Where the second sentence's own input begins, for heads that compare sentences' own vectors; (rows,)."""
DROPOUTS, SEEDS = (0.0, 0.3, 0.5), (5, 6, 5)
SERVED = [(word, kind) for word, kind in itertools.product(heads.names(), KINDS) if kind in heads.get(word).kinds]
CASES = [(word, kind, lanes) for (word, kind), lanes in itertools.product(SERVED, (1, 3))]


def build(word: str, kind: Kind, members: Sequence[int] = (0, 1, 2)) -> Head:
    regression = kind == "pair_regression"
    shape = HeadShape(kind, DIM, 1 if regression else 4, (0.0, 5.0) if regression else None)
    settings = [SIZES | {"dropout": DROPOUTS[member]} for member in members]
    return heads.get(word, kind)(shape, settings, MemberRng([SEEDS[member] for member in members]))


def make_lanes(kind: Kind, lanes: int) -> list[tuple[Tensor, Batch]]:
    """States, (1, rows, width, dim), and a batch of one lane, for each lane."""
    found = []
    for lane in range(lanes):
        generator = torch.Generator().manual_seed(lane)
        lengths = torch.randint(WORDS + 2, WIDTH + 1, (ROWS, 1), generator=generator)
        mask, states = torch.arange(WIDTH) < lengths, torch.randn(1, ROWS, WIDTH, DIM, generator=generator)
        rows, pieces = tuple(range(ROWS)), torch.ones(ROWS, WIDTH, dtype=torch.int64)
        if kind == "sequence_labelling":
            words = torch.arange(WORDS) < torch.randint(1, WORDS + 1, (ROWS, 1), generator=generator)
            starts = (torch.arange(WORDS) + 1) * words
            labels = torch.randint(4, (ROWS, WORDS), generator=generator) * words
            found.append((states, Batch(rows, pieces, mask, None, starts, words, labels)))
        elif kind == "pair_regression":
            labels = torch.rand(ROWS, generator=generator) * 5
            found.append((states, Batch(rows, pieces, mask, labels=labels, parts=PARTS, cuts=CUTS)))
        else:
            labels = torch.randint(4, (ROWS,), generator=generator)
            parts, cuts = (PARTS, CUTS) if kind == "pair_classification" else (None, None)
            found.append((states, Batch(rows, pieces, mask, labels=labels, parts=parts, cuts=cuts)))
    return found


def together(lanes: list[tuple[Tensor, Batch]]) -> tuple[Tensor, Batch]:
    """The lanes' batches, one after another."""
    batches = [batch for _, batch in lanes]

    def join(name: str) -> Tensor | None:
        own = [getattr(batch, name) for batch in batches]
        return None if own[0] is None else torch.cat(own)

    rows = tuple(row for batch in batches for row in batch.rows)
    names = ("pieces", "piece_mask", "segments", "word_starts", "word_mask", "labels")
    joined = Batch(rows, *map(join, names), lanes=len(lanes), parts=join("parts"), cuts=join("cuts"))
    return torch.cat([states for states, _ in lanes]), joined


def gradients(head: Head, states: Tensor, batch: Batch, step: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Scores, losses and gradients of a training step."""
    head.rng.begin(step)
    scores = head.train()(states, batch)
    losses = head.loss(scores, batch)
    for parameter in head.parameters():
        parameter.grad = None
    losses.sum().backward()
    return scores, losses, {name: p.grad for name, p in head.named_parameters()}


def check_member(stack: tuple[Tensor, Tensor, dict[str, Tensor]], row: int, head: Head, states: Tensor, batch: Batch):
    scores, losses, found = gradients(head, states, batch, step=7)
    torch.testing.assert_close(stack[0][row], scores[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(stack[1][row], losses[0], atol=1e-5, rtol=1e-4)
    for name, gradient in found.items():
        torch.testing.assert_close(stack[2][name][row], gradient[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("word", "kind", "lanes"), CASES)
def test_every_member_scores_loses_and_learns_as_it_does_alone(word: str, kind: Kind, lanes: int):
    own = make_lanes(kind, lanes)
    stack = gradients(build(word, kind), *together(own), step=7)
    for member in range(3):
        check_member(stack, member, build(word, kind, [member]), *own[member % lanes])
    assert not torch.allclose(stack[0][1], stack[0][2]), "dropouts and seeds that differ give scores that differ"


@pytest.mark.parametrize(("word", "kind"), SERVED)
def test_the_members_that_are_kept_go_on_as_before_in_their_new_order(word: str, kind: Kind):
    states, batch = make_lanes(kind, 1)[0]
    head = build(word, kind)
    before = head.loss(head(states, batch), batch)  # alive: its graph still knows the old shapes
    head.keep([2, 0])
    stack = gradients(head, states, batch, step=7)
    assert before.shape == (3,)
    for row, member in enumerate((2, 0)):
        check_member(stack, row, build(word, kind, [member]), states, batch)


@pytest.mark.parametrize(("word", "kind"), SERVED)
def test_a_members_predictions_are_those_that_it_makes_alone(word: str, kind: Kind):
    states, batch = make_lanes(kind, 1)[0]
    head = build(word, kind).eval()
    scores = head(states, batch)
    for member in range(3):
        alone = build(word, kind, [member]).eval()
        expected = alone(states, batch)[0]
        found = head.decode(scores[member], batch, member)
        wanted = alone.decode(expected, batch, 0)
        assert found == (pytest.approx(wanted, rel=1e-5) if kind == "pair_regression" else wanted)
        rows, ones = head.probabilities(scores[member], batch), alone.probabilities(expected, batch)
        assert (rows is None) == (ones is None)
        if rows is not None and ones is not None:
            torch.testing.assert_close(torch.tensor(rows), torch.tensor(ones), atol=1e-6, rtol=1e-5)


def train(head: Head, optimiser: StackedAdamW, steps: range, rates: Tensor, kind: Kind) -> None:
    states, batch = make_lanes(kind, 1)[0]
    for step in steps:
        head.rng.begin(step)
        optimiser.zero_grad()
        head.loss(head(states, batch), batch).sum().backward()
        optimiser.scale((1.0 / optimiser.norms()).clamp(max=1.0))
        optimiser.step(rates)


@pytest.mark.parametrize(("word", "kind"), [("bilstm_crf", "sequence_labelling"), ("mlp", "sentence_classification")])
def test_a_stack_that_a_member_leaves_trains_each_one_as_it_trains_alone(word: str, kind: Kind):
    rates, decays = torch.tensor([1e-2, 3e-3, 2e-2]), torch.tensor([0.0, 0.1, 0.3])
    stack = build(word, kind).train()
    optimiser = StackedAdamW(list(stack.parameters()), decays)
    train(stack, optimiser, range(4), rates, kind)
    stack.keep([0, 2])
    optimiser.keep([0, 2])
    train(stack, optimiser, range(4, 8), rates[[0, 2]], kind)
    for row, member in enumerate((0, 2)):
        alone = build(word, kind, [member]).train()
        train(alone, StackedAdamW(list(alone.parameters()), decays[[member]]), range(8), rates[[member]], kind)
        for one, two in zip(stack.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(one[row], two[0], atol=2e-4, rtol=1e-3)


def test_members_that_disagree_on_a_size_are_no_stack():
    shape = HeadShape("sentence_classification", DIM, 2)
    settings = [{"mlp.hidden_size": 8}, {"mlp.hidden_size": 9}]
    with pytest.raises(AssertionError, match=r"members of a bundle agree on mlp\.hidden_size"):
        heads.get("mlp")(shape, settings, MemberRng([0, 1]))


# --- which trials may share a stack ---


def key(mode: str, head: str, **setting: bool | float | str) -> tuple[object, ...]:
    own = {name.replace("__", "."): value for name, value in setting.items()}
    return catalogue.bundle_key(catalogue.complete(own, mode, head), mode, head)


@pytest.mark.parametrize("mode", modes.names())
def test_rates_dropout_decay_epochs_and_schedule_do_not_part_a_stack(mode: str):
    other = key(
        mode, "mlp", learning_rate=0.1, dropout=0.5, weight_decay=0.3, epochs=7, schedule="linear_warmup_decay",
        gradient_clip=0.5,
    )  # fmt: skip
    assert other == key(mode, "mlp")


@pytest.mark.parametrize("own", [{"batch_size": 8}, {"max_pieces": 64}, {"precision": "fp32"}, {"mlp__hidden_size": 9}])
def test_what_shapes_the_computation_parts_a_stack(own: dict[str, int | str]):
    assert key("fine_tuning", "mlp", **own) != key("fine_tuning", "mlp")


@pytest.mark.parametrize("own", [{"bilstm__hidden_size": 9}, {"bilstm__layers": 1}])
def test_a_bilstms_sizes_part_a_stack(own: dict[str, int]):
    assert key("feature_extraction", "bilstm_crf", **own) != key("feature_extraction", "bilstm_crf")
