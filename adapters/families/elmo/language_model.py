"""ELMo's bidirectional language model: two independent stacks of LSTMs, one per direction."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from meltpoint.adapters.families.elmo.options import LstmOptions
from meltpoint.adapters.families.elmo.recurrence import Clips, ProjectedLSTM, Start

FORGET_BIAS = 1.0
"""TensorFlow's LSTMCell adds it to the forget gate's pre-activation; the released biases do not include it."""


class Layer(nn.Module):
    """One layer with both directions; its parameters have the layout of the released files.

    Attributes:
        kernel: (2, 2 * size, 4 * cells), the weights of the input and of the previous output; gates: input, new,
            forget, output.
        forward_bias, backward_bias: (4 * cells,); separate vectors, so that they are excluded from weight decay.
        projection: (2, cells, size).
    """

    def __init__(self, size: int, cells: int, clips: Clips) -> None:
        super().__init__()
        self.clips = clips
        self.kernel = nn.Parameter(torch.randn(2, 2 * size, 4 * cells) / math.sqrt(2 * size))
        self.forward_bias = nn.Parameter(torch.zeros(4 * cells))
        self.backward_bias = nn.Parameter(torch.zeros(4 * cells))
        self.projection = nn.Parameter(torch.randn(2, cells, size) / math.sqrt(cells))

    def forward(self, inputs: Tensor, lengths: Sequence[int], start: Start | None) -> tuple[Tensor, Start]:
        """(2, steps, batch, size) → (2, steps, batch, size), and the rows' last states.

        On a CPU the directions run one after the other, so that the weights stay in the cache; on a GPU they share each
        matrix product.
        """
        bias = torch.stack([self.forward_bias, self.backward_bias]).view(2, 4, -1)
        opened = (bias + bias.new_tensor([0.0, 0.0, FORGET_BIAS, 0.0])[:, None]).flatten(1)
        shares = 1 if inputs.is_cuda else 2
        given = zip(*(part.chunk(shares) for part in (inputs, self.kernel, opened, self.projection)), strict=True)
        starts = [None] * shares if start is None else [*zip(*(part.chunk(shares) for part in start), strict=True)]
        keeps = torch.is_grad_enabled() and any(one.requires_grad for one in (inputs, *self.parameters()))
        results = [
            ProjectedLSTM.apply(*tensors, begin, lengths, self.clips, keeps)  # type: ignore[no-untyped-call]
            for tensors, begin in zip(given, starts, strict=True)
        ]
        read, *last = (torch.cat(parts) for parts in zip(*results, strict=True))
        return read, Start(*last)


class LanguageModel(nn.Module):
    """All layers of the language model.

    Dropout is applied to each layer's input, as in ELMo's training (allenai/bilm-tf, training.py: `DropoutWrapper`
    around `ResidualWrapper`, so that the skip connection gets the dropped input), and not to the top layer's output,
    where the head has its own dropout.
    """

    def __init__(self, options: LstmOptions) -> None:
        super().__init__()
        clips = Clips(options.cell_clip or math.inf, options.proj_clip or math.inf)
        layers = (Layer(options.projection_dim, options.dim, clips) for _ in range(options.n_layers))
        self.layers = nn.ModuleList(layers)
        self.dropout = nn.Dropout(0.0)
        self.skips = options.use_skip_connections

    def forward(
        self, inputs: Tensor, lengths: Sequence[int], starts: Sequence[Start] | None = None
    ) -> tuple[list[Tensor], list[Start]]:
        """Run both directions over rows.

        Args:
            inputs: (2, steps, batch, size): the rows' words, and the same reversed within each row.
            lengths: of the rows, the longest first.
            starts: the initial state of each layer; None for zeros.

        Returns:
            Each layer's states, (2, steps, batch, size), with the second direction's in reversed order; and each
            layer's last states.
        """
        states, ends = inputs, []
        layers = []
        for number, layer in enumerate(self.layers):
            given = self.dropout(states)
            states, end = layer(given, lengths, None if starts is None else starts[number])
            if self.skips and number:
                states = states + given
            layers.append(states)
            ends.append(end)
        return layers, ends
