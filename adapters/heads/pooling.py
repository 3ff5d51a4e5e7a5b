"""The states pooled without parameters → dropout → linear: for fine-tuned ELMo and for sentence encoders.

Peters, Ruder & Smith 2019, section 3.2, fine-tune ELMo for classification with the maximum over the states, which was
slightly better than the mean (appendix A.2); they also tried the first and last states.

Sentence encoders (Reimers & Gurevych 2019; E5, BGE, GTE) were trained to give one vector per sentence; the kind
`encoder` is their own pooling, with its normalisation. Pairs are then read separately, as in their training, and become
[u; v; |u − v|; u ∗ v]. As in sentence-transformers, every piece of an input counts, including special tokens, but not
padding or the other sentence. A jointly encoded pair is one input and has one vector.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.data.input_format import OWN_POOLING, PAIRING, Pairing, is_separate
from meltpoint.adapters.head import Head
from meltpoint.adapters.hyperparameters import Parameter
from meltpoint.adapters.layers.affine import POOLINGS, Pooling, Scores, normalised, pool_rows
from meltpoint.adapters.layers.attention import PARTS, compared
from meltpoint.adapters.layers.bundle import Bundle, lanes_of
from meltpoint.tasks.core.kinds import reading

KIND = Parameter(
    "pooling.kind", "max", "maximum or mean over pieces, first, first ⊕ last, or the encoder's own",
    choices=("max", "mean", "first_last", "cls", "encoder"), shapes=True,
)  # fmt: skip
PAIR = Parameter(
    "pooling.pair", "glue", "a separate pair's u and v: [u; v; |u-v|; u*v] (glue), or [|u-v|; u*v] (kiros)",
    choices=("glue", "kiros"), shapes=True, of_pairs=True,
)  # fmt: skip


class PoolingHead(Head):
    """Pooling of each input, and one linear layer."""

    kinds = reading("sentence", "pair")
    hyperparameters = (KIND, PAIR)
    summary = "maximum, mean, [CLS], first ⊕ last, or the encoder's own pooling → dropout → linear"
    separate_pairs = True
    is_linear = True

    def compose(self, bundle: Bundle) -> None:
        """Create the pooling and the score layer.

        Raises:
            ValueError: the setting uses the encoder's own pooling, but the encoder has none.
        """
        self.kind, self.pair = bundle.choice(KIND), bundle.choice(PAIR)
        self.pool = self._pooling(self.kind)
        pairing = cast(Pairing, bundle.choice(PAIRING))
        is_pair = self.shape.of_kind.is_pair
        self.separate = is_pair and is_separate(pairing, self.shape.joins_pairs, self.kind)
        size = self.shape.dim * (2 if self.kind == "first_last" else 1)
        self.scores = Scores(size * (PARTS[self.pair] if self.separate else 1), self.shape.outputs, bundle)

    def _pooling(self, kind: str) -> Pooling:
        """The function of a kind."""
        if kind != OWN_POOLING:
            return POOLINGS[kind]
        own = self.shape.pooling
        if own is None:
            raise ValueError("pooling.kind is encoder, but this encoder ships no pooling; use mean, max or cls.")
        return normalised(POOLINGS[own.kind]) if own.normalise else POOLINGS[own.kind]

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """Scores from (T or 1, batch, pieces, dim) states; see `Head.forward`."""
        return self.scores(self.vectors(states, batch))

    def vectors(self, states: Tensor, batch: Batch) -> Tensor:
        """See `Head.vectors`."""
        mask = lanes_of(batch.piece_mask, batch.lanes)
        if not self.separate:
            return pool_rows(self.pool, states, mask)
        assert batch.cuts is not None, "the sentences of the pair were encoded separately"
        cuts = lanes_of(batch.cuts, batch.lanes)[..., None]
        place = torch.arange(mask.shape[-1], device=mask.device)
        one, two = (pool_rows(self.pool, states, mask & inside) for inside in (place < cuts, place >= cuts))
        return compared(one, two, self.pair)


HEAD = PoolingHead
