"""The states pooled without parameters → dropout → linear: the task model of fine-tuned ELMo for classification.

Peters, Ruder & Smith 2019, section 3.3 and appendix A.2: a maximum over the states, which was slightly better than the
mean and the first and last states. On pairs it sees both sentences in one row.

It is for encoders that train and have no piece that stands for the sentence; where [CLS] does, the paper takes it
(`linear`).
"""

from __future__ import annotations

from torch import Tensor

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.head import Head
from meltpoint.adapters.hyperparameters import Parameter
from meltpoint.adapters.layers.affine import Scores
from meltpoint.adapters.layers.bundle import Bundle, lanes_of
from meltpoint.adapters.layers.pooling import first_and_last, highest, mean, pool_rows

KIND = Parameter(
    "pooling.kind", "max", "maximum or mean over the row's pieces, or its first piece's state ⊕ its last one's",
    choices=("max", "mean", "first_last"), shapes=True,
)  # fmt: skip
POOLINGS = {"max": highest, "mean": mean, "first_last": first_and_last}


class PoolingHead(Head):
    """Pooling, and one linear layer."""

    kinds = ("sentence_classification", "pair_classification", "pair_regression")
    hyperparameters = (KIND,)
    summary = "maximum, mean, or first ⊕ last over all pieces → dropout → linear"

    def compose(self, bundle: Bundle) -> None:
        """The score layer."""
        self.kind = bundle.choice(KIND)
        pooled = 2 if self.kind == "first_last" else 1
        self.scores = Scores(pooled * self.shape.dim, self.shape.outputs, bundle)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """Scores from (T or 1, batch, pieces, dim) states; see `Head.forward`."""
        mask = lanes_of(batch.piece_mask, batch.lanes)
        return self.scores(pool_rows(POOLINGS[self.kind], states, mask))


HEAD = PoolingHead
