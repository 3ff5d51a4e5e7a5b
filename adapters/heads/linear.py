"""[CLS], or each word's first piece → dropout → linear: the task model of BERT (Devlin et al. 2019)."""

from __future__ import annotations

from torch import Tensor

from meltpoint.adapters.batch import Batch
from meltpoint.adapters.head import Head, HeadShape
from meltpoint.adapters.heads._layers import Scores, first_states
from meltpoint.adapters.parameters import Setting

BERT_STD = 0.02
"""Standard deviation of BERT's own initial weights (Devlin et al. 2019's code; truncation makes no odds here)."""


class Linear(Head):
    """One linear layer."""

    summary = "[CLS] or each word's first piece → dropout → linear"

    def __init__(self, shape: HeadShape, setting: Setting) -> None:
        super().__init__(shape, setting)
        self.scores = Scores(shape.dim, shape.outputs, setting, std=BERT_STD)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """Scores from (batch, pieces, dim) states; see `Head.forward`."""
        scores: Tensor = self.scores(first_states(states, batch))
        return scores


HEAD = Linear
