"""The classification head of the encoder's family, as Hugging Face transformers builds it.

For sentences and pairs it is the head that `AutoModelForSequenceClassification` puts on the encoder: BERT's pooler (a
dense layer and tanh, trained by next-sentence prediction) → dropout → classifier (Devlin et al. 2019, section 3.2 and
A.1), RoBERTa's dense layer and tanh, DistilBERT's dense layer and ReLU, and so on. For sequence labelling it is the
head that `AutoModelForTokenClassification` puts on each word's first piece. The encoder's family builds it
(`FamilyHead`); encoders outside transformers have none.

All its weights, including a pretrained pooler's, are in the head's row of the multiplier table: the head reads a frozen
encoder's cached hidden states, and each member of a bundle trains its own copy. BERT's released code trains pooler and
classifier at the encoder's rate; so does this head unless a trick or phase gives the rows different rates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.head import Head, Reads
from meltpoint.adapters.hyperparameters import Parameter
from meltpoint.adapters.layers.affine import first_states
from meltpoint.adapters.layers.bundle import Bundle, ByMember, lanes_of

POOLER = Parameter(
    "native.pooler", "pretrained", "the checkpoint's pooler (fresh if it ships none), a fresh one, or none",
    choices=("pretrained", "fresh", "none"), shapes=True,
)  # fmt: skip


class Native(Head):
    """The family's own head, called one member at a time."""

    hyperparameters = (POOLER,)
    summary = "the family's own head as transformers builds it: BERT's pretrained pooler → dropout → linear"
    reads: Reads = "first"
    is_native = True

    def compose(self, bundle: Bundle) -> None:
        """Create the family's layers."""
        shape, native = self.shape, self.shape.native
        assert native is not None, "compatibility refuses encoders without their own head"
        own = native.build(shape.kind, shape.outputs, bundle.choice(POOLER), bundle.generators)
        self.top = ByMember(own, bundle)
        self.reads = native.reads(shape.kind)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """Scores from (T or 1, batch, pieces, dim) states; see `Head.forward`. In float32, like `Scores`."""
        mask = batch.piece_mask
        if batch.word_mask is not None:
            states, mask = first_states(states, batch), batch.word_mask
        elif self.reads == "first":
            states, mask = states[:, :, :1], mask[:, :1]
        with torch.autocast(states.device.type, enabled=False):
            return self.top(states.float(), lanes_of(mask, batch.lanes))


HEAD = Native
