"""Two fully connected layers: the finetune-only baseline's task model of arXiv 1907.05338, section 3.

Start a new head from this file. A head serves several trials at once: the first dimension of its weights and scores
counts the trials. `compose` creates the layers and `forward` applies them; the layers of `adapters/layers/` keep the
trials apart. `layers.bundle` lists the rules beyond that.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.head import Head
from meltpoint.adapters.hyperparameters import Parameter
from meltpoint.adapters.layers.affine import Affine, Scores, first_states
from meltpoint.adapters.layers.bundle import Bundle

HIDDEN_SIZE = Parameter(
    "mlp.hidden_size", 768, "units of the hidden layer (a state of BERT-base has 768)", 1, 16384, shapes=True
)


class Mlp(Head):
    """dropout → linear → ReLU → dropout → linear, with Kaiming initialisation (He et al. 2015)."""

    hyperparameters = (HIDDEN_SIZE,)
    summary = "[CLS] or each word's first piece → two fully connected layers with a ReLU between them"
    reads = "first"

    def compose(self, bundle: Bundle) -> None:
        """Create the hidden layer and the score layer, which has its own dropout."""
        hidden = bundle.size(HIDDEN_SIZE)
        self.dropout = bundle.dropout()
        self.hidden = Affine(self.shape.dim, hidden, bundle, nonlinearity="relu")
        self.scores = Scores(hidden, self.shape.outputs, bundle)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """Scores, (T, batch, outputs), from hidden states, (T or 1, batch, pieces, dim); see `Head.forward`."""
        hidden = functional.relu(self.hidden(self.dropout(first_states(states, batch))))
        return self.scores(hidden)


HEAD = Mlp
