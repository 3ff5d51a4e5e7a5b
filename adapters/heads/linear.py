"""[CLS], or each word's first subword token → dropout → linear: the task model of BERT (Devlin et al. 2019)."""

from __future__ import annotations

from torch import Tensor

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.head import Head
from meltpoint.adapters.layers.affine import Scores, first_states
from meltpoint.adapters.layers.bundle import Bundle

BERT_STD = 0.02
"""Standard deviation of BERT's own initial weights (Devlin et al. 2019's code; truncation makes no difference here)."""


class Linear(Head):
    """One linear layer."""

    summary = "[CLS] or each word's first piece → dropout → linear"
    reads = "first"
    is_linear = True

    def compose(self, bundle: Bundle) -> None:
        """Create the score layer."""
        self.scores = Scores(self.shape.dim, self.shape.outputs, bundle, std=BERT_STD)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """Scores from (T or 1, batch, pieces, dim) states; see `Head.forward`."""
        return self.scores(self.vectors(states, batch))

    def vectors(self, states: Tensor, batch: Batch) -> Tensor:
        """See `Head.vectors`."""
        return first_states(states, batch)


HEAD = Linear
