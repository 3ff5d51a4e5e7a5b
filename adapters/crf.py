"""A linear-chain conditional random field (Lafferty et al. 2001): pytorch-crf behind a wrapper that avoids its traps.

pytorch-crf 0.7.2 makes a uint8 mask of its own (deprecated), fails on an integer mask, on labels of -100 even where
they are masked and on sequences whose first step is masked, silently gives another likelihood where a mask has holes,
and computes its partition function in whatever precision the scores come in.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchcrf import CRF


class ConditionalRandomField(nn.Module):
    """Transition scores over labels; loss and best paths in float32, whatever autocast is on.

    Args:
        labels: how many labels there are.
    """

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.crf = CRF(labels, batch_first=True)

    def loss(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """Negative log-likelihood of the labels, divided by the number of words.

        The mean over words, not over sentences, so that one learning rate suits a softmax and a CRF alike.

        Args:
            scores: (batch, words, labels), the emissions of each sentence's words, gathered.
            labels: (batch, words) int64; anything where masked.
            mask: (batch, words) bool, True on the first words of each sentence and nowhere else.
        """
        scores, labels, mask = _with_words(mask, scores, labels, mask)
        if not len(scores):
            return scores.sum()
        with torch.autocast(scores.device.type, enabled=False):
            likelihood: Tensor = self.crf(scores.float(), labels.masked_fill(~mask, 0), mask, reduction="token_mean")
        return -likelihood

    @torch.no_grad()
    def decode(self, scores: Tensor, mask: Tensor) -> list[list[int]]:
        """The best path of each sentence (Viterbi), traced back for the whole batch at once.

        Equal to pytorch-crf's own, which goes back sentence by sentence in Python (measured: 2 to 4 times as long).

        Args:
            scores: (batch, words, labels).
            mask: (batch, words) bool, as for the loss.
        """
        lengths = mask.sum(1).tolist()
        _check_contiguous(mask)
        if not scores.shape[1]:
            return [[] for _ in lengths]
        paths = self._viterbi(scores.float(), mask).tolist()
        return [path[:length] for path, length in zip(paths, lengths, strict=True)]

    def _viterbi(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Best labels, (batch, words); past a sentence's end its last label is repeated."""
        crf = self.crf
        best = crf.start_transitions + scores[:, 0]  # (batch, labels)
        stay = torch.arange(scores.shape[2], device=scores.device).expand_as(best)
        back = []
        for step in range(1, scores.shape[1]):
            inside = mask[:, step, None]
            extended, origin = (best[:, :, None] + crf.transitions + scores[:, step, None]).max(1)
            best = torch.where(inside, extended, best)
            back.append(torch.where(inside, origin, stay))
        label = (best + crf.end_transitions).argmax(1, keepdim=True)  # (batch, 1)
        path = [label]
        for origin in reversed(back):
            label = origin.gather(1, label)
            path.append(label)
        return torch.cat(path[::-1], 1)


def _check_contiguous(mask: Tensor) -> None:
    """A mask with holes would silently score another sequence."""
    assert mask.dtype == torch.bool, "the mask is boolean"
    assert bool((mask[:, 1:] <= mask[:, :-1]).all()), "words are gathered: a mask has no holes"


def _with_words(mask: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors without the sentences that have no words, which pytorch-crf does not take."""
    _check_contiguous(mask)
    kept = mask.any(1)
    return tensors if bool(kept.all()) else tuple(tensor[kept] for tensor in tensors)
