"""Heads that break one promise each: the check of it says so, and what to do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.head import Head
from meltpoint.adapters.heads.crf import Crf
from meltpoint.adapters.heads.mlp import HIDDEN_SIZE, Mlp
from meltpoint.adapters.heads.pooling import PoolingHead
from meltpoint.adapters.layers.affine import Affine, first_states
from meltpoint.adapters.layers.bundle import Bundle
from meltpoint.tasks.core.metrics import Prediction
from meltpoint.tasks.core.task import Kind
from meltpoint.tests.adapters.head_promises import PROMISES, BrokenPromiseError, Promise, verify


class Silent(Mlp):
    summary = ""


class Undeclared(Mlp):
    hyperparameters = ()


class Unread(Mlp):
    def compose(self, bundle: Bundle) -> None:
        self.scores = Affine(self.shape.dim, self.shape.outputs, bundle)


class PlainLayer(Mlp):
    """One layer for all members."""

    def compose(self, bundle: Bundle) -> None:
        super().compose(bundle)
        self.hidden = nn.Linear(self.shape.dim, bundle.size(HIDDEN_SIZE))  # type: ignore[assignment]


class Buffered(Mlp):
    def compose(self, bundle: Bundle) -> None:
        super().compose(bundle)
        self.register_buffer("seen", torch.zeros(len(bundle)))


class Unseeded(Mlp):
    """First weights out of torch's common generator."""

    def compose(self, bundle: Bundle) -> None:
        super().compose(bundle)
        nn.init.normal_(self.hidden.weight)


class OnlyWords(Mlp):
    """Reads words, which only sequence labelling has, but declares every kind."""

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        assert batch.word_mask is not None, "words are labelled"
        return super().forward(states, batch)


class Lowered(Mlp):
    """Scores of autocast's type."""

    def compose(self, bundle: Bundle) -> None:
        super().compose(bundle)
        self.scores = Affine(bundle.size(HIDDEN_SIZE), self.shape.outputs, bundle)  # type: ignore[assignment]


class InPlace(Mlp):
    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        return super().forward(states.mul_(2.0), batch)


class Unmasked(PoolingHead):
    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        return self.scores(states.mean(2))


class BatchNormed(Mlp):
    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        scores = super().forward(states, batch)
        return scores - scores.mean(1, keepdim=True)


class ReadsMore(PoolingHead):
    reads = "first"


class ReadsLess(Mlp):
    reads = "all"


class OneSentence(Mlp):
    """[CLS] of the first sentence only."""

    kinds = ("pair_classification", "pair_regression")
    separate_pairs = True


class Hidden(Mlp):
    """A number that no parameter holds."""

    def compose(self, bundle: Bundle) -> None:
        super().compose(bundle)
        self.factors = torch.rand(len(bundle), 1, 1)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        return super().forward(states, batch) * self.factors


class Averaging(Mlp):
    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        scores = super().forward(states, batch)
        return scores - 0.1 * scores.mean(0)


class Rounding(Mlp):
    """A factor that only a bundle of several has, as small as what a kernel rounds."""

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        scores = super().forward(states, batch)
        return scores * (1 + 2**-20 * (len(scores) - 1))


class PlainDropout(Mlp):
    def compose(self, bundle: Bundle) -> None:
        super().compose(bundle)
        self.dropout = nn.Dropout(0.3)  # type: ignore[assignment]


class NoDropout(Mlp):
    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        self.scores.dropout.eval()
        return self.scores(torch.relu(self.hidden(first_states(states, batch))))


class Idle(Mlp):
    """A layer that nothing uses."""

    def compose(self, bundle: Bundle) -> None:
        super().compose(bundle)
        self.spare = Affine(3, 3, bundle)


class CommonLoss(Mlp):
    """The mean of the members' losses, in each member's place."""

    def loss(self, scores: Tensor, batch: Batch) -> Tensor:
        losses = super().loss(scores, batch)
        return losses.mean().expand(len(losses))


class SummedLoss(Mlp):
    def loss(self, scores: Tensor, batch: Batch) -> Tensor:
        return super().loss(scores, batch) * scores.shape[1]


class OneLane(PoolingHead):
    """A mask of (rows, pieces) for all members."""

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        kept = states.masked_fill(~batch.piece_mask[None, : states.shape[1], :, None], 0.0)
        return self.scores(kept.sum(2) / batch.piece_mask[: states.shape[1]].sum(1)[:, None])


class FirstMembers(Crf):
    """Every member's best paths by the first one's transitions."""

    def decode(self, scores: Tensor, batch: Batch, member: int) -> list[Prediction]:
        with torch.no_grad():
            self.crf.transitions[0] += 3.0 * torch.eye(self.shape.outputs)
        return super().decode(scores, batch, 0)


class NotKept(Mlp):
    """Members counted once, when the head is made."""

    def compose(self, bundle: Bundle) -> None:
        super().compose(bundle)
        self.ones = torch.ones(len(bundle), 1, 1)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        return super().forward(states, batch) * self.ones


class Faultless(Mlp):
    """Nothing is wrong with it."""


SENTENCE, PAIR, WORDS = "sentence_classification", "pair_classification", "sequence_labelling"
BROKEN: list[tuple[type[Head], Kind, str, str]] = [
    (Silent, SENTENCE, "its class says what it is", "`summary` is empty"),
    (Undeclared, SENTENCE, "the hyperparameters that it declares", "`mlp.hidden_size` is read, but"),
    (Unread, SENTENCE, "the hyperparameters that it declares", "`mlp.hidden_size` is in `hyperparameters`, but"),
    (PlainLayer, SENTENCE, "first dimension is the bundle's members", "`hidden.weight` has the shape (8, 12)"),
    (Buffered, SENTENCE, "first dimension is the bundle's members", "`seen` is a buffer"),
    (Unseeded, SENTENCE, "first weights are a function of its own seed", "`hidden.weight` of member 0"),
    (OnlyWords, SENTENCE, "serves every kind of task in `kinds`", "AssertionError: words are labelled"),
    (Lowered, SENTENCE, "float32", "torch.bfloat16 under autocast"),
    (InPlace, SENTENCE, "the states that it is given stay", "the states changed"),
    (Unmasked, SENTENCE, "neither on padding nor on the other rows", "row 0 scores otherwise by itself"),
    (BatchNormed, SENTENCE, "neither on padding nor on the other rows", "row 0 scores otherwise by itself"),
    (ReadsMore, SENTENCE, "`reads` says which states", "`reads` is 'first', but"),
    (ReadsLess, WORDS, "`reads` says which states", "`reads` is 'all', but"),
    (OneSentence, PAIR, "it reads both sentences", "the second sentence's states do not change"),
    (Hidden, SENTENCE, "its weights say all", "with member 1's weights, another head scores otherwise"),
    (Averaging, SENTENCE, "do not depend on its neighbours", "member 0 scores otherwise alone"),
    (Rounding, SENTENCE, "to the last bit those that it has alone", "member 0 rounds otherwise alone"),
    (PlainDropout, SENTENCE, "dropout is the setting's", "the second time"),
    (NoDropout, SENTENCE, "dropout is the setting's", "the setting's dropout changes nothing"),
    (Idle, SENTENCE, "every parameter learns", "`spare.bias`, `spare.weight` has no gradient"),
    (CommonLoss, SENTENCE, "loss and gradients are to the last bit", "member 0's loss is another one alone"),
    (SummedLoss, SENTENCE, "the loss is a mean over rows", "the rows' losses make another one"),
    (OneLane, SENTENCE, "members may read batches of their own", "scores its batch otherwise"),
    (FirstMembers, WORDS, "predictions are the member's own", "predicts otherwise alone"),
    (NotKept, SENTENCE, "can go on with some of its members", "it raised RuntimeError"),
]  # fmt: skip


@pytest.mark.parametrize(("head", "kind", "claim", "found"), BROKEN, ids=[head.__name__ for head, *_ in BROKEN])
def test_a_broken_head_is_told_what_it_breaks_and_what_to_do(head: type[Head], kind: Kind, claim: str, found: str):
    with pytest.raises(BrokenPromiseError) as broken:
        verify(head, kind)
    first, second, third = str(broken.value).splitlines()
    assert first.startswith(f"{head.__name__} for {kind.replace('_', ' ')}")
    assert claim in first
    assert second.startswith("Found: ")
    assert found in second
    assert third.startswith("To do: ")


def test_a_head_that_breaks_nothing_is_told_nothing():
    verify(Faultless, SENTENCE)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.check.__name__)
def test_every_promise_has_a_head_here_that_breaks_it(promise: Promise):
    assert any(claim in promise.claim for _, _, claim, _ in BROKEN)
