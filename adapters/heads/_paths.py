"""What makes a head of scores a head of paths: a CRF over each row's words."""

from __future__ import annotations

from torch import Tensor

from meltpoint.adapters.batch import Batch
from meltpoint.adapters.crf import ConditionalRandomField
from meltpoint.adapters.head import Head, HeadShape, Prediction
from meltpoint.adapters.parameters import Setting


class PathHead(Head):
    """Scores, loss and predictions of whole label sequences; comes first among a head's bases, the scorer second."""

    kinds = ("sequence_labelling",)

    def __init__(self, shape: HeadShape, setting: Setting) -> None:
        super().__init__(shape, setting)
        self.crf = ConditionalRandomField(shape.outputs)

    def loss(self, scores: Tensor, batch: Batch) -> Tensor:
        """Negative log-likelihood of the rows' label paths, a word."""
        assert batch.labels is not None, "the loss needs labels"
        assert batch.word_mask is not None, "a CRF labels words"
        return self.crf.loss(scores, batch.labels, batch.word_mask)

    def decode(self, scores: Tensor, batch: Batch) -> list[Prediction]:
        """The best path of each row."""
        assert batch.word_mask is not None, "a CRF labels words"
        return list(self.crf.decode(scores, batch.word_mask))
