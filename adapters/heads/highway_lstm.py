"""Highway-LSTM: BiLSTM layers with gated skip connections; one of the three text classifiers of arXiv 1907.05338.

The paper (experiment B) gives only the name and Kaiming initialisation. This head uses the highway connection of
Srivastava et al. 2015 (arXiv 1505.00387) around each BiLSTM layer except the first: y = t ∗ BiLSTM(x) + (1 − t) ∗ x
with t = σ(W x + b). As there, the first layer has none, because it changes the size of a state. Zhang et al. 2016
instead gate the cells of two layers within the recurrence. Pooling and score layer are the same as in `bilstm`.

It is for stack-and-finetune; the paper's gain of 0.72 % is from an ensemble with `densenet` and plain BERT.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.head import Head
from meltpoint.adapters.hyperparameters import Parameter
from meltpoint.adapters.layers.affine import Affine, Scores, elementwise, pool
from meltpoint.adapters.layers.bundle import Bundle, lanes_of
from meltpoint.adapters.layers.lstm import BiLSTM
from meltpoint.tasks.core.kinds import reading

HIDDEN_SIZE = Parameter("highway_lstm.hidden_size", 200, "units of each direction of each BiLSTM", 1, 4096, shapes=True)
LAYERS = Parameter(
    "highway_lstm.layers", 3, "BiLSTM layers; all but the first have a highway around them", 2, 16, shapes=True
)

CARRY_BIAS = -1.0
"""Initial value of the gates' biases: mostly carrying (Srivastava et al. 2015: "e.g. -1, -3")."""


class HighwayLayer(nn.Module):
    """A BiLSTM layer with a gate between its output and its input.

    Args:
        dim: size of a state, twice the units of a direction.
        bundle: the members.
    """

    def __init__(self, dim: int, bundle: Bundle) -> None:
        super().__init__()
        self.bilstm = BiLSTM(dim, bundle, dim // 2, layers=1)
        self.gate = Affine(dim, dim, bundle, bias=CARRY_BIAS)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """(T, batch, pieces, dim) and the mask of real pieces → the same, arbitrary on padding."""
        open_part = elementwise(torch.sigmoid, self.gate(states))
        # Not `torch.lerp`, whose last bits depend on the memory layout of its factors.
        read = self.bilstm(states, mask)
        return states + open_part * (read - states)


class HighwayLstm(Head):
    """BiLSTM → BiLSTM layers with highways → maximum ⊕ mean → dropout → linear."""

    kinds = reading("sentence")
    hyperparameters = (HIDDEN_SIZE, LAYERS)
    summary = "BiLSTM layers with highway connections around them → max ⊕ mean pooling → linear"

    def compose(self, bundle: Bundle) -> None:
        """Create the layers and the score layer."""
        hidden = bundle.size(HIDDEN_SIZE)
        self.first = BiLSTM(self.shape.dim, bundle, hidden, layers=1)
        self.highways = nn.ModuleList(HighwayLayer(2 * hidden, bundle) for _ in range(bundle.size(LAYERS) - 1))
        self.scores = Scores(4 * hidden, self.shape.outputs, bundle)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """Scores from (T or 1, batch, pieces, dim) states; see `Head.forward`."""
        mask = lanes_of(batch.piece_mask, batch.lanes)
        states = self.first(states, mask)
        for layer in self.highways:
            states = layer(states, mask)
        return self.scores(pool(states, batch))


HEAD = HighwayLstm
