"""What several heads are made of: the score layer, the choice of states, and a BiLSTM that padding never changes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from meltpoint.adapters.batch import Batch
from meltpoint.adapters.parameters import COMMON, Parameter, Setting, Value

_DROPOUT = next(parameter for parameter in COMMON if parameter.name == "dropout")

HIDDEN_SIZE = Parameter("bilstm.hidden_size", 200, "units of each direction of the BiLSTM", 1, 4096)
LAYERS = Parameter("bilstm.layers", 2, "layers of the BiLSTM", 1, 8)
"""Peters, Ruder & Smith 2019, appendix A: a two-layer BiLSTM; its size of 200 is that of Peters et al. 2018."""


def value(setting: Setting, parameter: Parameter) -> Value:
    """A setting's value of a parameter, in its own type; the default where the setting does not name it."""
    return parameter.check(setting.get(parameter.name, parameter.default))


def dropout(setting: Setting) -> nn.Dropout:
    """The head's dropout."""
    return nn.Dropout(float(value(setting, _DROPOUT)))


def first_states(states: Tensor, batch: Batch) -> Tensor:
    """The states that scores are computed from.

    Args:
        states: (batch, pieces, dim).
        batch: the batch they belong to.

    Returns:
        (batch, words, dim), each word's first piece, for sequence labelling; else (batch, dim), the first piece
        ([CLS]).
    """
    if batch.word_starts is None:
        return states[:, 0]
    return states.gather(1, batch.word_starts[:, :, None].expand(-1, -1, states.shape[2]))


class Scores(nn.Module):
    """dropout → linear, in float32 even under autocast: bf16 has 8 bits, too few to tell regressed scores apart.

    Args:
        inputs: size of a state.
        outputs: size of the scores.
        setting: its `dropout` is taken.
        std: standard deviation of the initial weights; None is Kaiming's (He et al. 2015) for a linear unit.
    """

    def __init__(self, inputs: int, outputs: int, setting: Setting, std: float | None = None) -> None:
        super().__init__()
        self.dropout = dropout(setting)
        self.linear = nn.Linear(inputs, outputs)
        nn.init.normal_(self.linear.weight, std=inputs**-0.5 if std is None else std)
        nn.init.zeros_(self.linear.bias)

    def forward(self, states: Tensor) -> Tensor:
        """(…, inputs) of any float type → (…, outputs) float32."""
        with torch.autocast(states.device.type, enabled=False):
            scores: Tensor = self.linear(self.dropout(states.float()))
        return scores


class BiLSTM(nn.Module):
    """A stacked bidirectional LSTM over a row's real pieces; dropout on its input and between its layers.

    Initialisation: Kaiming (He et al. 2015; arXiv 1907.05338 uses it for stacked heads) on the input weights,
    orthogonal recurrent weights (Saxe et al. 2014), forget bias 1 (Jozefowicz et al. 2015), other biases 0.

    Args:
        inputs: size of a state.
        setting: its `dropout`, `bilstm.hidden_size` and `bilstm.layers` are taken.
    """

    def __init__(self, inputs: int, setting: Setting) -> None:
        super().__init__()
        hidden, layers = int(value(setting, HIDDEN_SIZE)), int(value(setting, LAYERS))
        self.dim = 2 * hidden
        self.dropout = dropout(setting)
        between = self.dropout.p if layers > 1 else 0.0
        self.lstm = nn.LSTM(inputs, hidden, layers, batch_first=True, bidirectional=True, dropout=between)
        for name, parameter in self.lstm.named_parameters():
            _initialise(name, parameter)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """(batch, pieces, inputs) → (batch, pieces, dim) float32, 0 on padding.

        Under autocast the recurrence runs in bf16, at half its cost in fp32; scores above it are float32 all the same.
        """
        lengths = batch.piece_mask.sum(1).cpu()
        packed = pack_padded_sequence(self.dropout(states), lengths, batch_first=True, enforce_sorted=False)
        unpacked, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=states.shape[1])
        return unpacked.float()


@torch.no_grad()
def _initialise(name: str, parameter: nn.Parameter) -> None:
    """Set one of an LSTM's parameters; gates lie in the order input, forget, cell, output."""
    quarter = parameter.shape[0] // 4
    if name.startswith("weight_ih"):
        nn.init.kaiming_normal_(parameter, nonlinearity="linear")
    elif name.startswith("weight_hh"):
        for gate in range(4):
            nn.init.orthogonal_(parameter[gate * quarter : (gate + 1) * quarter])
    else:
        nn.init.zeros_(parameter)
        if name.startswith("bias_ih"):  # the other bias is added to it: one of the two carries the 1
            parameter[quarter : 2 * quarter] = 1.0


def pool(states: Tensor, mask: Tensor) -> Tensor:
    """Maximum ⊕ mean over real pieces: (batch, pieces, dim), (batch, pieces) bool → (batch, 2 * dim)."""
    outside = ~mask[:, :, None]
    highest = states.masked_fill(outside, float("-inf")).amax(1)
    mean = states.masked_fill(outside, 0.0).sum(1) / mask.sum(1, keepdim=True)
    return torch.cat([highest, mean], -1)
