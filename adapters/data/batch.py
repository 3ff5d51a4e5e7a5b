"""Tokenised inputs: rows of subword tokens ("pieces"), tokenised splits, and batches, with padding or without.

At least half of a randomly drawn padded batch is padding: 2.0 positions per real piece on SST-2, 2.6 on CoNLL 2003.
Batches of rows of one length would avoid that, but each step would then see only sentences of about one length. So an
encoder's linear layers process the pieces of all rows concatenated, (1, rounded pieces, dim), and attention restores
the rows, as in Zeng et al. 2022, "Boosting distributed training performance of the unpadded BERT model"; the encoder
gets position ids, and attention the rows' lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from meltpoint.tasks.core.task import Label


@dataclass(frozen=True, slots=True)
class Row:
    """One tokenised example, or one window of a sentence that is too long for the encoder.

    Attributes:
        example: the example's position in its split.
        offset: the position, in its sentence, of the row's first word; 0 except in later windows.
        pieces: subword token ids, special tokens included.
        segments: token type ids, as long as `pieces`; empty if the tokenizer has none.
        word_starts: for each word of the row, the position of its first piece; empty except for sequence labelling.
        label: the example's label; for sequence labelling, the labels of the row's words; None if hidden.
        spans: (start, stop) in `pieces` of each sentence of a pair, without special tokens; empty for other kinds.
        cut: the position in `pieces` at which the second sentence's input begins, if a pair is encoded separately;
            otherwise 0.
        statistics: statistics of a pair's words, for heads that request them; otherwise empty.
        before, after: pieces that the encoder reads around `pieces` (document context, special tokens); no head reads
            their states.
    """

    example: int
    offset: int
    pieces: tuple[int, ...]
    segments: tuple[int, ...]
    word_starts: tuple[int, ...]
    label: Label
    spans: tuple[tuple[int, int], ...] = ()
    cut: int = 0
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    statistics: tuple[float, ...] = ()

    @property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """The encoder's inputs: one sequence of pieces, or two for a pair that is encoded separately."""
        if self.cut:
            return self.pieces[: self.cut], self.pieces[self.cut :]
        return ((*self.before, *self.pieces, *self.after),)

    @property
    def input_segments(self) -> tuple[tuple[int, ...], ...]:
        """The token type ids of each of `inputs`; empty if the tokenizer has none. Context has its sentence's type."""
        if not self.segments:
            return ((),) * len(self.inputs)
        if self.cut:
            return self.segments[: self.cut], self.segments[self.cut :]
        return (self.segments[:1] * len(self.inputs[0]),)

    @property
    def is_its_input(self) -> bool:
        """True if the encoder's input is exactly `pieces`: no separate inputs, no context."""
        return not (self.cut or self.before or self.after)


@dataclass(frozen=True)
class EncodedSplit:
    """A tokenised split.

    Attributes:
        rows: in the examples' order; more rows than examples if sentences were cut into windows.
        examples: number of examples in the split.
        truncated: number of examples that lost pieces to the length limit.
        windowed: number of sequence-labelling sentences that were cut into several windows (no word is lost).
        word_counts: number of words of each sequence-labelling sentence.
        alone: number of sentences in document context that have no neighbouring sentence.
        name: "train", "dev" or "test", used in messages; "" if unnamed.
        whole: for each example, the number of pieces of its longest input without a length limit, special tokens
            included; in document context, of its document.
        pieces_cut: number of pieces that the length limit cut off examples.
        narrowed: number of sentences in document context whose input lacks a part of their document.
    """

    rows: list[Row]
    examples: int
    truncated: int = 0
    windowed: int = 0
    word_counts: list[int] = field(default_factory=list)
    alone: int = 0
    name: str = ""
    whole: list[int] = field(default_factory=list)
    pieces_cut: int = 0
    narrowed: int = 0

    @property
    def pieces(self) -> int:
        """Number of pieces that the encoder reads, special tokens and context included."""
        return sum(len(pieces) for row in self.rows for pieces in row.inputs)


@dataclass(frozen=True)
class Batch:
    """Padded rows as tensors.

    Attributes:
        rows: indices of the batch's rows in their split, in this order.
        pieces: (batch, pieces) int64.
        piece_mask: (batch, pieces) bool, True on real pieces.
        segments: (batch, pieces) int64 token type ids, or None if the tokenizer has none.
        word_starts: (batch, words) int64, 0 where padded; None except for sequence labelling.
        word_mask: (batch, words) bool, True on real words; None except for sequence labelling.
        labels: (batch,) int64 or float32; (batch, labels) float32, 0 or 1 for each of several labels; or (batch, words)
            int64 with 0 where padded; None if hidden.
        lanes: number of trials whose batches are concatenated in every tensor (`batch` is then lanes × rows); 1 if
            all trials share the batch.
        states: (layers, lanes, rows, pieces, dim): cached hidden states of the frozen encoder; None if the encoder must
            run.
        padded: whether any row may be shorter than the longest. Kept on the host: reading it from a GPU would
            synchronise.
        parts: (batch, pieces) int64: 1 on the first sentence's pieces, 2 on the second's, 0 on special tokens and
            padding; None except for pairs.
        cuts: (batch,) int64, the position at which the second sentence's input begins, for pairs that are encoded
            separately; otherwise None.
        statistics: (batch, numbers) float32, `Row.statistics`; None if the rows have none.
        source: the batch of the encoder's inputs if they differ from these rows; otherwise None.
        source_places: (batch, pieces) int64, each piece's flat index in `source`: row · longest + position; 0 where
            padded.
        places, lengths: flat indices of the real pieces in the padded rows, and the rows' lengths, the shortest row
            first (`places_of`); None and () if nothing is padded or the states are cached.
        share: the weight of its mean loss in its step's loss: 1, or for a micro-batch its share of the step's rows (of
            their words, for sequence labelling).
        ends_step: False on all micro-batches of a step except the last.
        cls_only: whether only each input's first state ([CLS]) will be read; an encoder that supports it then omits
            the others and returns (batch, 1, dim).
        is_static: whether it is padded to one of a few widths (`batching.static_width`), so that batches of one width
            can share a CUDA graph.
    """

    rows: tuple[int, ...]
    pieces: Tensor
    piece_mask: Tensor
    segments: Tensor | None = None
    word_starts: Tensor | None = None
    word_mask: Tensor | None = None
    labels: Tensor | None = None
    lanes: int = 1
    states: Tensor | None = None
    padded: bool = True
    parts: Tensor | None = None
    cuts: Tensor | None = None
    statistics: Tensor | None = None
    source: Batch | None = None
    source_places: Tensor | None = None
    places: Tensor | None = None
    lengths: tuple[int, ...] = ()
    cls_only: bool = False
    is_static: bool = False
    share: float = 1.0
    ends_step: bool = True

    def __len__(self) -> int:
        return len(self.rows)

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """The same batch with `function` applied to each of its tensors, including its source's."""
        moved: dict[str, Any] = {
            own.name: function(tensor) for own in fields(self) if isinstance(tensor := getattr(self, own.name), Tensor)
        }
        return replace(self, source=None if self.source is None else self.source.mapped(function), **moved)

    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by name, including its source's."""
        own = {field.name: tensor for field in fields(self) if isinstance(tensor := getattr(self, field.name), Tensor)}
        more = {} if self.source is None else self.source.tensors()
        return own | {f"source.{name}": tensor for name, tensor in more.items()}

    def repeated(self, times: int) -> Batch:
        """The encoder's inputs several times, one copy after another, with their padding."""
        made: dict[str, Any] = {
            name: own.repeat(times, 1)
            for name in ("pieces", "piece_mask", "segments", "source_places")
            if (own := getattr(self, name)) is not None
        }
        if self.source is not None:
            starts = self.source.pieces.numel() * torch.arange(times, device=self.pieces.device)
            made["source_places"] += starts[:, None].expand(-1, len(self.pieces)).reshape(-1, 1)
            made["source"] = self.source.repeated(times)
        return replace(self, places=None, lengths=tuple(sorted(self.lengths * times)), **made)

    def to(self, device: torch.device) -> Batch:
        """The same batch with every tensor on `device`."""
        return self.mapped(lambda tensor: tensor.to(device, non_blocking=True))


# Batches without padding.


UNPADDED = "meltpoint_unpadded"
"""The keyword under which a model passes an `Unpadded` to its attention."""


Map = Callable[[Tensor], Tensor]

GPU_POSITIONS = 8192
"""Positions of a padded batch up to which a GPU keeps the padding if its step is not a CUDA graph: starting kernels
then takes most of its time, and attention without padding starts more of them (`docs/internals/log.md`, 2026-11-26)."""


ROWS_TOGETHER = 8
"""Rows of similar length whose attention is computed together: 4 and 16 take as long (`docs/internals/log.md`)."""


def is_worthwhile(pieces: Tensor) -> bool:
    """True if a padded batch, (batch, pieces), is faster without its padding."""
    return not pieces.is_cuda or pieces.numel() > GPU_POSITIONS


def rounded(pieces: int) -> int:
    """The number of pieces that the linear layers process for `pieces` real pieces: at most a sixteenth more.

    Rounding limits the number of shapes. oneDNN generates a kernel for every new shape on a CPU (a tenth of a
    fine-tuning step if no two batches have the same length, and 10 MB of kept kernels per step); on a GPU, multiples of
    16 are also faster.
    """
    step = 1 << max(0, pieces.bit_length() - 5)
    return -(-pieces // step) * step


def places_of(lengths: NDArray[np.int64]) -> tuple[Tensor, tuple[int, ...]]:
    """The flat indices of a padded batch's real pieces, the shortest row first.

    Args:
        lengths: (batch,) number of pieces of each row.

    Returns:
        ((real pieces,) int64: row · longest + position; the rows' lengths in that order).
    """
    order = np.argsort(lengths, kind="stable")
    longest = int(lengths.max())
    real = np.arange(longest) < lengths[order, None]
    return torch.from_numpy((order[:, None] * longest + np.arange(longest))[real]), tuple(lengths[order].tolist())


@dataclass
class Unpadded:
    """The layout of a batch's concatenated real pieces, for attention.

    The pieces are padded to a `rounded` count with copies of the first piece. No row attends to the copies, and their
    states are not read, so they contribute no gradient.

    Attributes:
        places: (real pieces,) int64, the flat index of each in the padded batch.
        lengths: number of pieces of each row, ascending, in the order of the concatenation.
        cls_only: whether only each row's first state will be read.
    """

    places: Tensor
    lengths: Sequence[int]
    cls_only: bool = False

    @property
    def longest(self) -> int:
        """Number of pieces of the longest row: the padded batch's width."""
        return self.lengths[-1]

    @cached_property
    def first(self) -> Tensor:
        """(batch,) int64: the index among the real pieces of each row's first piece, in the padded batch's order."""
        lengths = torch.tensor(self.lengths, device=self.places.device)
        starts = torch.cumsum(lengths, 0) - lengths
        return torch.empty_like(starts).index_copy_(0, self.places[starts] // self.longest, starts)

    @cached_property
    def _filled(self) -> Tensor:
        """(rounded pieces,) int64: `places`, padded with its first element."""
        more = rounded(len(self.places)) - len(self.places)
        return torch.cat([self.places, self.places[:1].expand(more)])

    def positions(self) -> Tensor:
        """(1, rounded pieces): each piece's position in its row, from 0."""
        return (self._filled % self.longest)[None]

    @cached_property
    def _sources(self) -> tuple[Tensor, Tensor]:
        """((batch · pieces,) int64: each position's index among the real pieces, 0 where padded; True where padded)."""
        count, device = len(self.places), self.places.device
        sources = torch.full((len(self.lengths) * self.longest,), -1, device=device)
        sources.index_copy_(0, self.places, torch.arange(count, device=device))
        is_padding = sources < 0
        return sources.masked_fill_(is_padding, 0), is_padding

    @cached_property
    def parts(self) -> list[tuple[slice, Unpadded]]:
        """A few rows of similar length at a time: the real pieces of these rows, and their layout."""
        found, start = [], 0
        for first in range(0, len(self.lengths), ROWS_TOGETHER):
            lengths = self.lengths[first : first + ROWS_TOGETHER]
            pieces = slice(start, start := start + sum(lengths))
            rows = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
            found.append((pieces, Unpadded(rows * lengths[-1] + self.places[pieces] % self.longest, lengths)))
        return found

    def pad(self, states: Tensor) -> Tensor:
        """(rounded pieces, …) → (batch, pieces, …), 0 where padded."""
        rows = mapped(states, self.rows_of, self._real_pieces_of)
        return rows.view(-1, self.longest, *states.shape[1:])

    def unpad(self, states: Tensor) -> Tensor:
        """(batch, pieces, …) → (rounded pieces, …)."""
        return mapped(states.flatten(0, 1), self.pieces_of, self.rows_of)

    def key_mask(self, window: int | None = None) -> Tensor:
        """(batch, 1, 1, pieces) bool, True on real pieces; (batch, 1, pieces, pieces) if a row exceeds the window.

        Args:
            window: the distance from which a piece is not attended to. A padded position attends to itself: a softmax
                over nothing would give its gradient no number.
        """
        mask = ~self._sources[1].view(-1, 1, 1, self.longest)
        if window is None or window >= self.longest:
            return mask
        positions = torch.arange(self.longest, device=mask.device)
        distances = (positions[:, None] - positions).abs()
        return mask & (distances < window) | (distances == 0)

    def rows_of(self, states: Tensor) -> Tensor:
        """(rounded pieces, …) → (batch · pieces, …), 0 where padded."""
        if not states.is_cuda:  # halves the time on a CPU; a GPU would first sort the indices, to be deterministic
            rows = states.new_zeros(len(self.lengths) * self.longest, *states.shape[1:])
            return rows.index_copy_(0, self.places, states[: len(self.places)])
        return self.picked(states)

    def picked(self, states: Tensor) -> Tensor:
        """`rows_of` by picking a piece for each position."""
        sources, is_padding = self._sources
        rows = states.index_select(0, sources)
        return rows.masked_fill_(is_padding.view(-1, *[1] * (states.dim() - 1)), 0)

    def pieces_of(self, rows: Tensor) -> Tensor:
        """(batch · pieces, …) → (rounded pieces, …)."""
        return rows.index_select(0, self._filled)

    def _real_pieces_of(self, rows: Tensor) -> Tensor:
        """`pieces_of`, with 0 in the padding copies: nothing reads them, so they have no gradient."""
        pieces = self.pieces_of(rows)
        pieces[len(self.places) :] = 0
        return pieces


def mapped(rows: Tensor, onward: Map, back: Map) -> Tensor:
    """`onward(rows)`, whose gradient is mapped by `back`; torch's own would scatter it, and sort first on a GPU."""
    return _Mapped.apply(rows, onward, back)  # type: ignore[no-any-return, no-untyped-call]


class _Mapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, onward: Map, back: Map) -> Tensor:
        ctx.back = back
        return onward(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(gradient), None, None
