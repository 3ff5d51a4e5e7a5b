"""A linear classifier on sentence vectors: the task model of Skip-thoughts (Kiros et al. 2015) and of GLUE's baselines.

A sentence is its vector u, the state of its first piece. A pair, whose sentences u and v are encoded separately, is
[|u − v|; u ∗ v] (Kiros et al. 2015, section 3.2, after Tai et al. 2015) or [u; v; |u − v|; u ∗ v] (Wang et al. 2018,
section 4). It helps where the encoder was trained to put meaning into one vector; two sentences never see each other.

Kiros et al. fit logistic regression without dropout, and regress scores by a softmax over their whole numbers; here the
squared error of the one score is the loss, as for every head.
"""

from __future__ import annotations

from torch import Tensor

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.head import Head
from meltpoint.adapters.hyperparameters import Parameter
from meltpoint.adapters.layers.affine import Scores
from meltpoint.adapters.layers.bundle import Bundle, lanes_of
from meltpoint.adapters.layers.comparison import PARTS, compared

PAIR = Parameter(
    "sentence_vectors.pair", "kiros", "what a pair's u and v become: [|u-v|; u*v] (kiros), or u and v before it (glue)",
    choices=("kiros", "glue"), shapes=True,
)  # fmt: skip


class SentenceVectors(Head):
    """u, or u and v compared → dropout → linear."""

    kinds = ("sentence_classification", "pair_classification", "pair_regression")
    hyperparameters = (PAIR,)
    summary = "a sentence's [CLS], or [|u-v|; u*v] of a pair's two → dropout → linear"
    reads = "first"
    separate_pairs, joint_pairs = True, False

    def compose(self, bundle: Bundle) -> None:
        """The score layer."""
        self.pair = bundle.choice(PAIR)
        parts = PARTS[self.pair] if self.shape.kind.startswith("pair") else 1
        self.scores = Scores(parts * self.shape.dim, self.shape.outputs, bundle)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """Scores from (T or 1, batch, pieces, dim) states; see `Head.forward`."""
        first = states[:, :, 0].float()
        if self.shape.kind.startswith("pair"):
            first = compared(first, _second(states, batch).float(), self.pair)
        return self.scores(first.contiguous())


def _second(states: Tensor, batch: Batch) -> Tensor:
    """The state of the second sentence's first piece: (T or 1, batch, dim)."""
    assert batch.cuts is not None, "sentence_vectors compares sentences that were encoded separately"
    places = lanes_of(batch.cuts, batch.lanes)[:, :, None, None]
    return states.gather(2, places.expand(len(states), -1, 1, states.shape[3])).squeeze(2)


HEAD = SentenceVectors
