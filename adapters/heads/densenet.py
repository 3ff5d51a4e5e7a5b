"""DenseNet over subword tokens: four dense blocks of four convolutions, and [CLS]; text classifier of arXiv 1907.05338.

The paper (experiment B): "four independent blocks and each block has four CNNs connected by residual", its output
concatenated with [CLS] for prediction, Kaiming initialisation. It leaves other choices open; these are ours. A block is
as in Huang et al. 2017: each convolution reads the states and the outputs of all earlier ones, then ReLU and dropout.
The blocks are independent: all read the encoder's states, without transitions between them. A row's vector is the
maximum over its pieces (Kim 2014) of the blocks' contents, including the states. There is no batch normalisation, which
would make a row's scores depend on other rows. Padding, and the space beyond a row's ends, is zero before each
convolution.

It is for stack-and-finetune; the paper's gain of 0.72 % is from an ensemble with `highway_lstm` and plain BERT.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.head import Head
from meltpoint.adapters.hyperparameters import Parameter
from meltpoint.adapters.layers.affine import Affine, Scores, first_states, highest, pool_rows
from meltpoint.adapters.layers.attention import GroupedConvolution, windows
from meltpoint.adapters.layers.bundle import Bundle, lanes_of
from meltpoint.tasks.core.kinds import reading

GROWTH_RATE = Parameter("densenet.growth_rate", 32, "channels that each convolution adds", 1, 1024, shapes=True)
KERNEL_SIZE = Parameter("densenet.kernel_size", 3, "word pieces that a convolution sees at once", 1, 15, shapes=True)
"""32 channels: Huang et al. 2017, section 4.2 (their ImageNet networks); 3 pieces: the width of their kernels."""

BLOCKS, LAYERS = 4, 4
"""arXiv 1907.05338, experiment B."""


class DenseLayer(nn.Module):
    """One convolution of every block, over the states and the outputs of the block's earlier convolutions.

    A convolution of a concatenation is the sum of its parts' convolutions. So the states, which all blocks read, become
    windows once for all layers, and one product serves the four blocks.

    Args:
        dim: size of a state.
        layer: the number of convolutions before it in its block.
        bundle: the members.
    """

    def __init__(self, dim: int, layer: int, bundle: Bundle) -> None:
        super().__init__()
        growth, size = bundle.size(GROWTH_RATE), bundle.size(KERNEL_SIZE)
        std = nn.init.calculate_gain("relu") * (size * (dim + layer * growth)) ** -0.5
        self.from_states = Affine(size * dim, BLOCKS * growth, bundle, std=std)
        self.from_block = GroupedConvolution(layer * growth, growth, size, BLOCKS, bundle, std) if layer else None
        self.dropout = bundle.dropout()

    def forward(self, seen: Tensor, earlier: list[Tensor], inside: Tensor) -> Tensor:
        """The layer's output in every block.

        Args:
            seen: (T or 1, batch, pieces, size * dim), windows of the states.
            earlier: outputs of the earlier layers.
            inside: (T or lanes, 1, batch, pieces, 1) bool, real pieces.

        Returns:
            (T, blocks, batch, pieces, growth), zeros on padding.
        """
        read = self.from_states(seen)
        found = read.view(*read.shape[:-1], BLOCKS, -1).movedim(-2, 1)
        if self.from_block is not None:
            found = found + self.from_block(torch.cat(earlier, -1))
        return self.dropout(functional.relu(found)) * inside


class DenseNet(Head):
    """Four dense blocks of four convolutions → maximum over pieces ⊕ [CLS] → dropout → linear."""

    kinds = reading("sentence")
    hyperparameters = (GROWTH_RATE, KERNEL_SIZE)
    summary = "four dense blocks of four convolutions over all pieces → maximum ⊕ [CLS] → linear"

    def compose(self, bundle: Bundle) -> None:
        """Create the layers of all blocks and the score layer."""
        dim = self.shape.dim
        self.size = bundle.size(KERNEL_SIZE)
        self.dropout = bundle.dropout()
        self.layers = nn.ModuleList(DenseLayer(dim, layer, bundle) for layer in range(LAYERS))
        self.scores = Scores(2 * dim + BLOCKS * LAYERS * bundle.size(GROWTH_RATE), self.shape.outputs, bundle)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """Scores from (T or 1, batch, pieces, dim) states; see `Head.forward`."""
        mask = lanes_of(batch.piece_mask, batch.lanes)
        seen = windows(self.dropout(states) * mask[..., None], self.size)
        found: list[Tensor] = []
        for layer in self.layers:
            found.append(layer(seen, found, mask[:, None, :, :, None]))
        trials = len(found[0])
        blocks = torch.cat(found, -1).amax(3)  # (T, blocks, batch, layers * growth): none is below the zeros of padding
        parts = [first_states(states, batch), pool_rows(highest, states, mask)]
        shared = [part.float().expand(trials, -1, -1) for part in parts]
        return self.scores(torch.cat([*shared, blocks.float().movedim(1, 2).flatten(2)], -1))


HEAD = DenseNet
