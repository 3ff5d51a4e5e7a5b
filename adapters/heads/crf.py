"""Each word's first subword token → dropout → linear → CRF over the sentence's labels (Lafferty et al. 2001)."""

from __future__ import annotations

from torch import Tensor

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.head import Head
from meltpoint.adapters.heads.linear import Linear
from meltpoint.adapters.layers.bundle import Bundle, lanes_of
from meltpoint.adapters.layers.crf import ConditionalRandomField
from meltpoint.tasks.core.kinds import reading
from meltpoint.tasks.core.metrics import Prediction


class CrfHead(Head):
    """Loss and predictions of a CRF over another head's scores: a subclass has this base first, that head second."""

    kinds = reading("words")

    def compose(self, bundle: Bundle) -> None:
        """The scorer's parts, and the CRF."""
        super().compose(bundle)  # type: ignore[safe-super]  # the scorer's: it comes next among the bases
        self.crf = ConditionalRandomField(self.shape.outputs, bundle)

    def loss(self, scores: Tensor, batch: Batch) -> Tensor:
        """Negative log-likelihood of the rows' label paths, a word; (T,)."""
        assert batch.labels is not None, "the loss needs labels"
        assert batch.word_mask is not None, "a CRF labels words"
        return self.crf.loss(scores, lanes_of(batch.labels, batch.lanes), lanes_of(batch.word_mask, batch.lanes))

    def decode(self, scores: Tensor, batch: Batch, member: int) -> list[Prediction]:
        """The best path of each row."""
        assert batch.word_mask is not None, "a CRF labels words"
        return list(self.crf.decode(scores, batch.word_mask, member))


class Crf(CrfHead, Linear):
    """A linear head whose labels are scored as a path; serves labels of words only."""

    summary = "each word's first piece → linear → conditional random field"


HEAD = Crf
