"""A BiLSTM over all subword tokens (Peters, Ruder & Smith 2019, appendix A: the task model of frozen BERT for NER).

Words are labelled from the state of their first token; sentences and pairs from the maximum and the mean over tokens.
"""

from __future__ import annotations

from torch import Tensor

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.head import Head
from meltpoint.adapters.layers.affine import Scores, first_states, pool
from meltpoint.adapters.layers.bundle import Bundle, lanes_of
from meltpoint.adapters.layers.lstm import HIDDEN_SIZE, LAYERS, BiLSTM


class BiLstm(Head):
    """BiLSTM → first pieces, or pooling → dropout → linear."""

    hyperparameters = (HIDDEN_SIZE, LAYERS)
    summary = "BiLSTM over all pieces → each word's first piece, or max ⊕ mean pooling → linear"

    def compose(self, bundle: Bundle) -> None:
        """Create the BiLSTM and the score layer."""
        self.bilstm = BiLSTM(self.shape.dim, bundle, bundle.size(HIDDEN_SIZE), bundle.size(LAYERS))
        pooled = 1 if self.shape.of_kind.labels_words else 2
        self.scores = Scores(pooled * self.bilstm.dim, self.shape.outputs, bundle)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """Scores from (T or 1, batch, pieces, dim) states; see `Head.forward`."""
        read = self.bilstm(states, lanes_of(batch.piece_mask, batch.lanes))  # (T, batch, pieces, 2 * hidden)
        labelling = batch.word_starts is not None
        return self.scores(first_states(read, batch) if labelling else pool(read, batch))


HEAD = BiLstm
