"""ESIM, the enhanced sequential inference model (Chen et al. 2017, "Enhanced LSTM for Natural Language Inference").

Peters, Ruder & Smith 2019, appendix A: the task model of frozen encoders for sentence pairs, "modified as needed to
support regression tasks in addition to classification", which here means one output and `Head`'s loss. Sizes are from
Chen et al. Dropout acts as in AllenNLP's ESIM: on whole features of both BiLSTMs' inputs, and on single elements of the
pooled vector and of the hidden layer.

Use it on frozen encoders, which need a task model that can learn much; on an encoder that trains, add little (table 1
there): `linear` or `bi_attention`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.head import Head
from meltpoint.adapters.hyperparameters import Parameter
from meltpoint.adapters.layers.affine import Affine, FeatureDropout, Scores, elementwise, pool_masked
from meltpoint.adapters.layers.attention import Sentence, enhance, on_both, read_both, sentences
from meltpoint.adapters.layers.bundle import Bundle
from meltpoint.adapters.layers.lstm import BiLSTM
from meltpoint.tasks.core.kinds import reading

HIDDEN_SIZE = Parameter(
    "esim.hidden_size", 300, "units of the hidden layers, and of each direction of both BiLSTMs", 1, 4096, shapes=True
)
"""Chen et al. 2017, section 4: all of them have 300."""

ACTIVATION = Parameter(
    "esim.activation", "tanh", "activation of the hidden layer before the scores", choices=("tanh", "relu"), shapes=True
)
"""tanh in Chen et al. 2017, section 3.3; relu in AllenNLP's configurations (esim.jsonnet, esim_elmo.jsonnet)."""


class Esim(Head):
    """BiLSTM → soft alignment → [a; ã; a − ã; a ∗ ã] → ReLU → BiLSTM → mean ⊕ max of both → tanh or ReLU → linear."""

    kinds = reading("pair")
    hyperparameters = (HIDDEN_SIZE, ACTIVATION)
    summary = "ESIM: BiLSTM → alignment of both sentences → BiLSTM → max ⊕ mean pooling of both → two layers"
    separate_pairs = True
    static = False  # it reads the sentences' longest lengths

    def compose(self, bundle: Bundle) -> None:
        """Create the layers; both sentences share all of them."""
        hidden = bundle.size(HIDDEN_SIZE)
        self.encoder = BiLSTM(self.shape.dim, bundle, hidden, 1, FeatureDropout(bundle))
        self.projection = Affine(8 * hidden, hidden, bundle, "relu")
        self.composition = BiLSTM(hidden, bundle, hidden, 1, FeatureDropout(bundle))
        self.dropout = bundle.dropout()
        self.is_relu = bundle.choice(ACTIVATION) == "relu"
        self.hidden = Affine(8 * hidden, hidden, bundle, "relu" if self.is_relu else "tanh")
        self.scores = Scores(hidden, self.shape.outputs, bundle)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """Scores from (T or 1, batch, pieces, dim) states; see `Head.forward`."""
        one, two = read_both(self.encoder, *sentences(states, batch))  # eqs. 1, 2
        pooled = torch.cat(on_both(self._composed, *enhance(one, two)), -1)  # eq. 20
        hidden = self.hidden(self.dropout(pooled))
        return self.scores(functional.relu(hidden) if self.is_relu else elementwise(torch.tanh, hidden))

    def _composed(self, enhanced: Sentence) -> Tensor:
        """A sentence's vector: (T, batch, 4 * hidden)."""
        projected = functional.relu(self.projection(enhanced.states))
        return pool_masked(self.composition(projected, enhanced.mask), enhanced.mask)  # eqs. 18, 19


HEAD = Esim
