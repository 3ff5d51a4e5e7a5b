"""A classifier on sentence vectors: the task models of Skip-thoughts (Kiros et al. 2015) and of GLUE's baselines.

A sentence is its vector u, the state of its first piece. A pair, whose sentences u and v are encoded separately, is
[|u − v|; u ∗ v] (Kiros et al. 2015, section 3.2, after Tai et al. 2015) or [u; v; |u − v|; u ∗ v] (Wang et al. 2018,
section 4). It suits encoders trained to put a text's meaning into one vector; the two sentences never attend to each
other.

`feats` adds six statistics of a pair's words to its vectors (`pair_statistics`): combine-skip + feats of Kiros et al.
2015, section 3.3, for MRPC.

The classifier is linear without dropout (Kiros et al.), or has one hidden layer of 512 tanh units (GLUE's baselines,
except for STS-B, where theirs is linear). Scores are regressed with a softmax over whole scores (Kiros et al., for
SICK) or as one number with squared error (GLUE's STS-B).
"""

from __future__ import annotations

import torch
from torch import Tensor

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.data.input_format import STATISTICS
from meltpoint.adapters.head import Head
from meltpoint.adapters.hyperparameters import Parameter
from meltpoint.adapters.layers.affine import Affine, Scores, elementwise, state_at
from meltpoint.adapters.layers.attention import PARTS, compared
from meltpoint.adapters.layers.bundle import Bundle, lanes_of
from meltpoint.tasks.core.kinds import reading
from meltpoint.tasks.core.metrics import Prediction


class ScoreDistribution:
    """A score as a distribution over fixed points, for regression by a softmax (Tai et al. 2015, section 4.2).

    The points are evenly spaced from the lowest score to the highest, about 1 apart: the whole scores 1 to 5 of SICK, 0
    to 5 of STS-B. A true score y between two points a < b becomes a distribution p with (b − y) / (b − a) at a and the
    rest at b, so its mean is y. The loss is the cross-entropy of the softmax against p, which differs from Tai et al.'s
    Kullback–Leibler divergence by a constant; the predicted score is the softmax's mean.

    Attributes:
        low, high: the lowest and the highest score.
        points: the number of points, at least 2.
    """

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high
        self.points = max(2, round(high - low) + 1)

    def target(self, labels: Tensor) -> Tensor:
        """Scores, (…), of at least `low` and at most `high` → distributions, (…, points) float32."""
        place = (labels.double() - self.low) * ((self.points - 1) / (self.high - self.low))
        points = torch.arange(self.points, device=labels.device, dtype=torch.float64)
        return (1 - (place[..., None] - points).abs()).clamp(min=0).float()

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy against `target`: (…, points) and (…) → (…)."""
        return -(self.target(labels) * torch.log_softmax(scores, -1)).sum(-1)

    def mean(self, scores: Tensor) -> Tensor:
        """The predicted scores: (…, points) → (…) float64."""
        points = torch.linspace(self.low, self.high, self.points, device=scores.device, dtype=torch.float64)
        return torch.softmax(scores.double(), -1) @ points


PAIR = Parameter(
    "sentence_vectors.pair", "kiros", "a pair's features: [|u-v|; u*v] (kiros), or u and v before it (glue)",
    choices=("kiros", "glue"), shapes=True, of_pairs=True,
)  # fmt: skip
HIDDEN_SIZE = Parameter(
    "sentence_vectors.hidden_size", 0, "tanh units of a hidden layer; 0 is a linear classifier", 0, 16384, shapes=True
)
REGRESSION = Parameter(
    "sentence_vectors.regression", "value",
    "a score as one number by squared error (value), or as a softmax over whole scores (distribution)",
    choices=("value", "distribution"), shapes=True,
)  # fmt: skip
FEATS = Parameter(
    "sentence_vectors.feats", False, "six statistics of a pair's words, added to its vectors (Kiros et al.: + feats)",
    shapes=True, of_pairs=True,
)  # fmt: skip


class SentenceVectors(Head):
    """u, or u and v compared → dropout → linear; with a hidden layer: dropout → linear → tanh → dropout → linear."""

    kinds = reading("sentence", "pair")
    hyperparameters = (PAIR, HIDDEN_SIZE, REGRESSION, FEATS)
    summary = "a sentence's [CLS], or [|u-v|; u*v] of a pair's two → dropout → linear, or a hidden layer before it"
    reads = "first"
    separate_pairs, joint_pairs = True, False
    is_linear = True

    def compose(self, bundle: Bundle) -> None:
        """Create the score layer, and the hidden layer if there is one."""
        self.pair = bundle.choice(PAIR)
        is_pair = self.shape.of_kind.is_pair
        self.feats = bool(bundle.size(FEATS)) and is_pair
        size = self.shape.dim * (PARTS[self.pair] if is_pair else 1) + STATISTICS * self.feats
        spread, limits = bundle.choice(REGRESSION) == "distribution", self.shape.label_range
        self.distribution = ScoreDistribution(*limits) if spread and limits is not None else None
        hidden = bundle.size(HIDDEN_SIZE)
        self.hidden = Affine(size, hidden, bundle, nonlinearity="tanh") if hidden else None
        self.dropout = bundle.dropout()
        if self.distribution is not None:
            self.outputs = self.distribution.points
        self.scores = Scores(hidden or size, self.outputs, bundle)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """Scores from (T or 1, batch, pieces, dim) states; see `Head.forward`."""
        vectors = self.vectors(states, batch)
        if self.hidden is not None:
            vectors = elementwise(torch.tanh, self.hidden(self.dropout(vectors)))
        return self.scores(vectors)

    def vectors(self, states: Tensor, batch: Batch) -> Tensor:
        """See `Head.vectors`; with a hidden layer, its input."""
        vectors = states[:, :, 0].float()
        if self.shape.of_kind.is_pair:
            assert batch.cuts is not None, "sentence_vectors compares sentences that were encoded separately"
            second = state_at(states, lanes_of(batch.cuts, batch.lanes))
            vectors = compared(vectors, second.float(), self.pair)
        if self.feats:
            assert batch.statistics is not None, "the pairs were tokenised without statistics"
            statistics = lanes_of(batch.statistics, batch.lanes).expand(len(vectors), -1, -1)
            vectors = torch.cat([vectors, statistics], -1)
        return vectors.contiguous()

    def loss(self, scores: Tensor, batch: Batch) -> Tensor:
        """See `Head.loss`; for a distribution, the mean cross-entropy against the true scores' distributions."""
        if self.distribution is None:
            return super().loss(scores, batch)
        assert batch.labels is not None, "the loss needs labels"
        labels = lanes_of(batch.labels, batch.lanes).expand(scores.shape[:2])
        return self.distribution.loss(scores, labels).mean(1)

    def decode(self, scores: Tensor, batch: Batch, member: int) -> list[Prediction]:
        """See `Head.decode`; for a distribution, its mean."""
        if self.distribution is None:
            return super().decode(scores, batch, member)
        return list(self.distribution.mean(scores).tolist())


HEAD = SentenceVectors
