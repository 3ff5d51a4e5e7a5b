"""Each word's first subword token → dropout → linear → CRF over the sentence's labels (Lafferty et al. 2001).

The CRF is pytorch-crf's, with workarounds for its faults. Version 0.7.2 creates its own uint8 mask (deprecated). It
fails on an integer mask, on labels of -100 even if masked, and on sequences whose first step is masked. It silently
gives another likelihood if a mask has holes, and computes its partition function in the scores' precision.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torchcrf import CRF

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.head import Head
from meltpoint.adapters.heads.linear import Linear
from meltpoint.adapters.layers.bundle import Bundle, lanes_of
from meltpoint.tasks.core.kinds import reading
from meltpoint.tasks.core.metrics import Prediction

INITIAL_SPREAD = 0.1
"""As in pytorch-crf: initial transition scores are uniform within ± this."""


class ConditionalRandomField(nn.Module):
    """Transition scores over labels, one set per member; loss and best paths in float32, even under autocast.

    Args:
        labels: number of labels.
        bundle: the members.
    """

    def __init__(self, labels: int, bundle: Bundle) -> None:
        super().__init__()

        def fill(tensor: Tensor, generator: torch.Generator) -> None:
            nn.init.uniform_(tensor, -INITIAL_SPREAD, INITIAL_SPREAD, generator)

        self.start_transitions = bundle.parameter(labels, fill=fill)
        self.end_transitions = bundle.parameter(labels, fill=fill)
        self.transitions = bundle.parameter(labels, labels, fill=fill)
        # In a tuple, so that its own parameters, which are unused, are not registered here.
        self._one = (CRF(labels, batch_first=True),)

    def loss(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """Negative log-likelihood of the labels per word, for each member.

        The mean is over words, not sentences, so that the same learning rate suits a softmax and a CRF.

        Args:
            scores: (T, batch, words, labels), the emissions of each sentence's words, gathered.
            labels: (lanes, batch, words) int64; arbitrary where masked.
            mask: (lanes, batch, words) bool, True on the first words of each sentence and nowhere else.

        Returns:
            (T,) float32.
        """
        _check_contiguous(mask)
        trials, words = scores.shape[0], scores.shape[2]
        if not words:
            return scores.float().sum((1, 2, 3))
        labels, mask = labels.expand(trials, -1, -1), mask.expand(trials, -1, -1)
        worded = mask[:, :, 0]
        # pytorch-crf rejects a sentence without words: it gets a first word, and its likelihood is left out.
        inside = torch.cat([torch.ones_like(mask[:, :, :1]), mask[:, :, 1:]], 2)
        with torch.autocast(scores.device.type, enabled=False):
            rows = (scores.float(), labels.masked_fill(~mask, 0), inside)
            likelihood = self._likelihood(*rows)
        return -likelihood.where(worded, 0.0).sum(1) / mask.sum((1, 2)).clamp(min=1)

    def _likelihood(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """Log-likelihood of every row, (T, batch).

        Computed one member at a time, to keep the bundle's promise; all rows of eight members at once would take a
        fifth of the time (docs/internals/log.md).
        """
        found = []
        for member, rows in enumerate(zip(scores, labels, mask, strict=True)):
            own = {name: parameter[member] for name, parameter in self.named_parameters()}
            found.append(functional_call(self._one[0], own, rows, {"reduction": "none"}))
        return torch.stack(found)

    @torch.no_grad()
    def decode(self, scores: Tensor, mask: Tensor, member: int) -> list[list[int]]:
        """The best path of each sentence (Viterbi), traced back for the whole batch at once.

        The result equals pytorch-crf's, which traces back sentence by sentence in Python and takes 2 to 4 times as
        long.

        Args:
            scores: (batch, words, labels), one member's.
            mask: (batch, words) bool, as for the loss.
            member: the member whose transition scores apply.
        """
        lengths = mask.sum(1).tolist()
        _check_contiguous(mask)
        if not scores.shape[1]:
            return [[] for _ in lengths]
        paths = self._viterbi(scores.float(), mask, member).tolist()
        return [path[:length] for path, length in zip(paths, lengths, strict=True)]

    def _viterbi(self, scores: Tensor, mask: Tensor, member: int) -> Tensor:
        """Best labels, (batch, words); after a sentence's end its last label is repeated."""
        transitions = self.transitions[member]
        best = self.start_transitions[member] + scores[:, 0]  # (batch, labels)
        stay = torch.arange(scores.shape[2], device=scores.device).expand_as(best)
        back = []
        for step in range(1, scores.shape[1]):
            inside = mask[:, step, None]
            extended, origin = (best[:, :, None] + transitions + scores[:, step, None]).max(1)
            best = torch.where(inside, extended, best)
            back.append(torch.where(inside, origin, stay))
        label = (best + self.end_transitions[member]).argmax(1, keepdim=True)  # (batch, 1)
        path = [label]
        for origin in reversed(back):
            label = origin.gather(1, label)
            path.append(label)
        return torch.cat(path[::-1], 1)


def _check_contiguous(mask: Tensor) -> None:
    """Refuse a mask with holes, which would silently score another sequence."""
    assert mask.dtype == torch.bool, "the mask is boolean"
    assert bool((mask[..., 1:] <= mask[..., :-1]).all()), "words are gathered: a mask has no holes"


class CrfHead(Head):
    """Loss and predictions of a CRF over another head's scores; a subclass lists this base first, that head second."""

    kinds = reading("words")
    is_linear = False
    static = False  # it checks that the mask has no holes

    def compose(self, bundle: Bundle) -> None:
        """Create the scoring head's layers and the CRF."""
        super().compose(bundle)  # type: ignore[safe-super]  # the scoring head's, the next base
        self.crf = ConditionalRandomField(self.shape.outputs, bundle)

    def loss(self, scores: Tensor, batch: Batch) -> Tensor:
        """Negative log-likelihood of the rows' label paths per word; (T,)."""
        assert batch.labels is not None, "the loss needs labels"
        assert batch.word_mask is not None, "a CRF labels words"
        return self.crf.loss(scores, lanes_of(batch.labels, batch.lanes), lanes_of(batch.word_mask, batch.lanes))

    def decode(self, scores: Tensor, batch: Batch, member: int) -> list[Prediction]:
        """The best path of each row."""
        assert batch.word_mask is not None, "a CRF labels words"
        return list(self.crf.decode(scores, batch.word_mask, member))


class Crf(CrfHead, Linear):
    """A linear head with labels scored as a path; supports labels of words only."""

    summary = "each word's first piece → linear → conditional random field"


HEAD = Crf
