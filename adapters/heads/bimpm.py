"""BiMPM, bilateral multi-perspective matching of sentence pairs (Wang, Hamza & Florian 2017).

arXiv 1907.05338, experiment C, stacks it on BERT for similarity.

Sizes, the tanh and the width of the prediction layer are the authors'. Without its first BiLSTM (`bimpm.first_bilstm`)
it is the paper's variant that does equally well on BERT. It compares words, so it helps if the words that both
sentences share decide. It is slow: every piece meets every piece of the other sentence, l times in each direction.
"""

from __future__ import annotations

import torch
from torch import Tensor

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.head import Head
from meltpoint.adapters.layers import matching
from meltpoint.adapters.layers.attention import read_both
from meltpoint.adapters.layers.bundle import Bundle
from meltpoint.adapters.layers.lstm import BiLSTM
from meltpoint.tasks.core.kinds import reading


class BiMpm(Head):
    """BiLSTM → four matchings, both ways → BiLSTM → final states of both directions and sentences → two layers."""

    kinds = reading("pair")
    hyperparameters = (matching.PERSPECTIVES, matching.HIDDEN_SIZE, matching.FIRST_BILSTM)
    summary = "BiMPM: BiLSTM → each piece matched with the other sentence by cosines → BiLSTM → two layers"
    separate_pairs = True
    static = False  # it reads the sentences' longest lengths

    def compose(self, bundle: Bundle) -> None:
        """Create the matching layer, the aggregating BiLSTM and the prediction layer."""
        hidden = bundle.size(matching.HIDDEN_SIZE)
        self.matching = matching.Matching(self.shape.dim, bundle)
        self.aggregation = BiLSTM(self.matching.dim, bundle, hidden, 1)
        self.prediction = matching.Prediction(4 * hidden, self.shape.outputs, bundle)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """Scores from (T or 1, batch, pieces, dim) states; see `Head.forward`."""
        read = read_both(self.aggregation, *self.matching(states, batch))
        return self.prediction(torch.cat([matching.ends(*own) for own in read], -1))


HEAD = BiMpm
