"""Bi-attention without parameters between a pair's sentences (Peters, Ruder & Smith 2019, appendix A: ELMo fine-tuned).

"We first computed the bi-attention between all words in both sentences, then applied the same 'enhanced' pooling
operation as in (Chen et al., 2017) before predicting with a softmax": every state is joined with its alignment
in the other sentence, their difference and their product, and both sentences are pooled by maximum and mean.

`bi_attention.attend: false` is table 3's "w/o bi-attn.": the sentences do not interact before the score layer, so each
sentence's plain states are pooled. It costs a fine-tuned ELMo 5 to 42 points (dev, four tasks).

Use it on encoders that train and read each sentence alone; on a frozen encoder, `esim` can learn more.
"""

from __future__ import annotations

from torch import Tensor, cat

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.head import Head
from meltpoint.adapters.hyperparameters import Parameter
from meltpoint.adapters.layers.affine import Scores, pool_masked
from meltpoint.adapters.layers.attention import enhance, sentences
from meltpoint.adapters.layers.bundle import Bundle
from meltpoint.tasks.core.kinds import reading

ATTEND = Parameter(
    "bi_attention.attend", True, "whether each sentence's states attend to the other's before pooling", shapes=True
)


class BiAttention(Head):
    """soft alignment → [a; ã; a − ã; a ∗ ã] → max ⊕ mean of both sentences → dropout → linear."""

    kinds = reading("pair")
    hyperparameters = (ATTEND,)
    summary = "parameter-free attention between a pair's sentences → max ⊕ mean pooling of both → linear"
    separate_pairs = True
    static = False  # it reads the sentences' longest lengths

    def compose(self, bundle: Bundle) -> None:
        """Create the score layer, the only layer."""
        self.attends = bool(bundle.size(ATTEND))
        pooled = 4 * self.shape.dim  # maximum and mean of two sentences
        self.scores = Scores(4 * pooled if self.attends else pooled, self.shape.outputs, bundle)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """Scores from (T or 1, batch, pieces, dim) states; see `Head.forward`."""
        both = sentences(states, batch)
        if self.attends:
            both = enhance(*both)
        return self.scores(cat([pool_masked(*sentence) for sentence in both], -1))


HEAD = BiAttention
