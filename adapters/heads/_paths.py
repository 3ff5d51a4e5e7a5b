"""What makes a head of scores a head of paths: a CRF over each row's words."""

from __future__ import annotations

from torch import Tensor

from meltpoint.adapters.batch import Batch
from meltpoint.adapters.crf import ConditionalRandomField
from meltpoint.adapters.head import Head, Prediction
from meltpoint.adapters.stack import Stack, lanes_of


class PathHead(Head):
    """Scores, loss and predictions of whole label sequences; comes first among a head's bases, the scorer second."""

    kinds = ("sequence_labelling",)

    def compose(self, stack: Stack) -> None:
        """The scorer's parts, and the CRF."""
        super().compose(stack)  # type: ignore[safe-super]  # the scorer's: it comes next among the bases
        self.crf = ConditionalRandomField(self.shape.outputs, stack)

    def loss(self, scores: Tensor, batch: Batch) -> Tensor:
        """Negative log-likelihood of the rows' label paths, a word; (T,)."""
        assert batch.labels is not None, "the loss needs labels"
        assert batch.word_mask is not None, "a CRF labels words"
        return self.crf.loss(scores, lanes_of(batch.labels, batch.lanes), lanes_of(batch.word_mask, batch.lanes))

    def decode(self, scores: Tensor, batch: Batch, member: int) -> list[Prediction]:
        """The best path of each row."""
        assert batch.word_mask is not None, "a CRF labels words"
        return list(self.crf.decode(scores, batch.word_mask, member))
