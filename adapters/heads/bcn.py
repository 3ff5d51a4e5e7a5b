"""The biattentive classification network (McCann et al. 2017, section 5), with the sizes of AllenNLP.

Peters, Ruder & Smith 2019, appendix A.1: the task model of frozen encoders for sentences.

The two texts that attend to each other are the same sentence, as in the papers; pairs have other heads. AllenNLP
applies dropout at six places, with ratios of 0.25, 0.25, 0, 0.1, 0.2 and 0.3. These proportions are kept: the setting's
`dropout` is the first ratio, so 0.25 gives AllenNLP's ratios and one number is searched, as in Peters, Ruder & Smith
2019. As in AllenNLP, the batch normalisation of McCann et al. is left out, so a row's scores depend on no other row.

Use it on frozen encoders, which need a task model that can learn much; on an encoder that trains, add little (table 1
there): `linear` or `pooling`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.head import Head
from meltpoint.adapters.hyperparameters import Parameter
from meltpoint.adapters.layers.affine import Affine, Maxout, highest, lowest, mean, pool_rows
from meltpoint.adapters.layers.attention import AttentivePooling, attend_to_itself
from meltpoint.adapters.layers.bundle import Bundle, lanes_of
from meltpoint.adapters.layers.lstm import BiLSTM
from meltpoint.tasks.core.kinds import reading

HIDDEN_SIZE = Parameter(
    "bcn.hidden_size", 300, "units of the first layer and of each direction of both BiLSTMs", 1, 4096, shapes=True
)
POOL_SIZE = Parameter("bcn.pool_size", 4, "linear units that compete for a unit of a maxout layer", 1, 16, shapes=True)

INTEGRATOR_INPUT, INTEGRATED, FIRST_MAXOUT, SECOND_MAXOUT = 0.0, 0.4, 0.8, 1.2
"""Dropout ratios relative to the ratio on the states: AllenNLP's 0, 0.1, 0.2 and 0.3 to 0.25."""


class Bcn(Head):
    """linear, ReLU → BiLSTM → self-attention → BiLSTM → four poolings → three maxout layers."""

    kinds = reading("sentence")
    hyperparameters = (HIDDEN_SIZE, POOL_SIZE)
    summary = "BiLSTM → self bi-attention → BiLSTM → max, min, mean and attentive pooling → three maxout layers"

    def compose(self, bundle: Bundle) -> None:
        """Create the two BiLSTMs, and the layers before, between and after them."""
        hidden, pool_size = bundle.size(HIDDEN_SIZE), bundle.size(POOL_SIZE)
        self.dropout = bundle.dropout()
        self.feedforward = Affine(self.shape.dim, hidden, bundle, "relu")
        self.encoder = BiLSTM(hidden, bundle, hidden, layers=1)
        self.integrator = BiLSTM(6 * hidden, bundle, hidden, layers=1, dropout=bundle.dropout(INTEGRATOR_INPUT))
        self.attention = AttentivePooling(2 * hidden, bundle)
        self.maxouts = nn.ModuleList(
            [
                Maxout(8 * hidden, 4 * hidden, pool_size, bundle),
                Maxout(4 * hidden, 2 * hidden, pool_size, bundle),
                Maxout(2 * hidden, self.shape.outputs, pool_size, bundle),
            ]
        )
        self.dropouts = nn.ModuleList(bundle.dropout(share) for share in (INTEGRATED, FIRST_MAXOUT, SECOND_MAXOUT))

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """Scores from (T or 1, batch, pieces, dim) states; see `Head.forward`."""
        mask = lanes_of(batch.piece_mask, batch.lanes)
        read = self.encoder(functional.relu(self.feedforward(self.dropout(states))), mask)
        found = attend_to_itself(read, mask)
        integrated = self.integrator(torch.cat([read, read - found, read * found], -1), mask)
        pooled = torch.cat([pool_rows(_pooled, integrated, mask), self.attention(integrated, mask)], -1)
        return self._scores(pooled)

    def _scores(self, pooled: Tensor) -> Tensor:
        """(T, batch, 8 * hidden) → (T, batch, outputs); the last layer in float32 even under autocast."""
        one, two, last = self.maxouts
        integrated, first, second = self.dropouts
        hidden = two(first(one(integrated(pooled))))
        with torch.autocast(pooled.device.type, enabled=False):
            scores: Tensor = last(second(hidden.float()))
        return scores


def _pooled(states: Tensor, mask: Tensor) -> Tensor:
    return torch.cat([highest(states, mask), lowest(states, mask), mean(states, mask)], -1)


HEAD = Bcn
