"""Two fully connected layers: the finetune-only baseline's task model of arXiv 1907.05338, section 3."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from meltpoint.adapters.batch import Batch
from meltpoint.adapters.head import Head, HeadShape
from meltpoint.adapters.heads._layers import Scores, dropout, first_states, value
from meltpoint.adapters.parameters import Parameter, Setting

HIDDEN_SIZE = Parameter("mlp.hidden_size", 768, "units of the hidden layer (a state of BERT-base has 768)", 1, 16384)


class Mlp(Head):
    """dropout → linear → ReLU → dropout → linear, with Kaiming initialisation (He et al. 2015)."""

    hyperparameters = (HIDDEN_SIZE,)
    summary = "[CLS] or each word's first piece → two fully connected layers with a ReLU between them"

    def __init__(self, shape: HeadShape, setting: Setting) -> None:
        super().__init__(shape, setting)
        hidden = int(value(setting, HIDDEN_SIZE))
        self.dropout = dropout(setting)
        self.hidden = nn.Linear(shape.dim, hidden)
        nn.init.kaiming_normal_(self.hidden.weight, nonlinearity="relu")
        nn.init.zeros_(self.hidden.bias)
        self.scores = Scores(hidden, shape.outputs, setting)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """Scores from (batch, pieces, dim) states; see `Head.forward`."""
        hidden = functional.relu(self.hidden(self.dropout(first_states(states, batch))))
        scores: Tensor = self.scores(hidden)
        return scores


HEAD = Mlp
