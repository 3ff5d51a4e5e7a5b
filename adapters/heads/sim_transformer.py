"""Sim-Transformer (arXiv 1907.05338, experiment C): BiMPM with a transformer instead of the aggregating BiLSTM.

The paper gives no sizes. Here one layer replaces one BiLSTM, with as many attention heads as a position has matchings,
and the fourfold feed-forward layer of Vaswani et al. (2017), whose layer the paper names. The pooling is ours: the mean
over each sentence's pieces, then BiMPM's prediction layer, with a ReLU because its tanh would saturate. The paper finds
it four points below BiMPM on a frozen encoder, but above BiMPM once the encoder is also fine-tuned.
"""

from __future__ import annotations

import torch
from torch import Tensor

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.head import Head
from meltpoint.adapters.hyperparameters import Parameter
from meltpoint.adapters.layers import matching
from meltpoint.adapters.layers.affine import mean, pool_rows
from meltpoint.adapters.layers.attention import Transformer, read_both
from meltpoint.adapters.layers.bundle import Bundle
from meltpoint.tasks.core.kinds import reading

LAYERS = Parameter("sim_transformer.layers", 1, "layers of the transformer", 1, 12, shapes=True)
HEADS = Parameter(
    "sim_transformer.heads", 8, "attention heads per layer; a divisor of 8 · bimpm.perspectives", 1, 64, shapes=True
)
FEED_FORWARD_SIZE = Parameter(
    "sim_transformer.feed_forward_size", 640, "units of each layer's feed-forward layer", 1, 16384, shapes=True
)
NORM = Parameter(
    "sim_transformer.norm", "after", "layer norms after each sub-layer (Vaswani et al. 2017) or before it",
    choices=("after", "before"), shapes=True,
)  # fmt: skip


class SimTransformer(Head):
    """BiLSTM → four matchings, both ways → transformer → mean of both sentences → two layers."""

    kinds = reading("pair")
    hyperparameters = (
        matching.PERSPECTIVES,
        matching.HIDDEN_SIZE,
        matching.FIRST_BILSTM,
        LAYERS,
        HEADS,
        FEED_FORWARD_SIZE,
        NORM,
    )
    summary = "BiMPM's matching → transformer → mean of both sentences → two layers"
    separate_pairs = True
    static = False  # it reads the sentences' longest lengths

    def compose(self, bundle: Bundle) -> None:
        """Create the matching layer, the transformer and the prediction layer.

        Raises:
            ValueError: the attention heads do not divide the size of a position's matchings.
        """
        self.matching = matching.Matching(self.shape.dim, bundle)
        dim, heads = self.matching.dim, bundle.size(HEADS)
        if dim % heads:
            raise ValueError(
                f"{HEADS.name} is {heads}; it must divide 8 · {matching.PERSPECTIVES.name} = {dim}. 8 always does."
            )
        self.transformer = Transformer(
            dim, bundle, bundle.size(LAYERS), heads, bundle.size(FEED_FORWARD_SIZE), bundle.choice(NORM) == "before"
        )
        self.prediction = matching.Prediction(2 * dim, self.shape.outputs, bundle, "relu")

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """Scores from (T or 1, batch, pieces, dim) states; see `Head.forward`."""
        read = read_both(self.transformer, *self.matching(states, batch))
        return self.prediction(torch.cat([pool_rows(mean, *own) for own in read], -1))


HEAD = SimTransformer
