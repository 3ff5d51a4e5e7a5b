"""What flows from the tokenizer through the encoder to the head: rows of word pieces, and padded batches of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from meltpoint.tasks.core.task import Label


@dataclass(frozen=True, slots=True)
class Row:
    """One input of the encoder: an example, or one window of a sentence too long for it.

    Attributes:
        example: the example's position in its split.
        offset: the position, in its sentence, of the row's first word; 0 but for later windows.
        pieces: word-piece ids, special tokens included.
        segments: token types, as long as `pieces`; empty where the tokenizer has none.
        word_starts: for each word of the row, the position of its first piece; empty but for sequence labelling.
        label: the example's label; for sequence labelling those of the row's words; None where hidden.
        spans: (start, stop) in `pieces` of each sentence of a pair, special tokens left out; empty for other kinds.
        cut: where the second sentence's own input begins in `pieces`, for pairs that are encoded separately; else 0.
        before, after: what the encoder reads around `pieces` (document context, special tokens) and no head sees.
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

    @property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """What the encoder is given: one sequence of pieces, or two where a pair is encoded separately."""
        if self.cut:
            return self.pieces[: self.cut], self.pieces[self.cut :]
        return ((*self.before, *self.pieces, *self.after),)

    @property
    def input_segments(self) -> tuple[tuple[int, ...], ...]:
        """The token types of each of `inputs`; empty where the tokenizer has none. Context has its sentence's own."""
        if not self.segments:
            return ((),) * len(self.inputs)
        if self.cut:
            return self.segments[: self.cut], self.segments[self.cut :]
        return (self.segments[:1] * len(self.inputs[0]),)

    @property
    def is_its_input(self) -> bool:
        """Whether the encoder is given just the pieces that heads see."""
        return not (self.cut or self.before or self.after)


@dataclass(frozen=True)
class EncodedSplit:
    """A tokenised split.

    Attributes:
        rows: in the examples' order; more rows than examples where sentences were cut into windows.
        examples: how many examples the split has.
        truncated: how many examples lost pieces to the length limit.
        windowed: how many sequence-labelling sentences were cut into several windows (no word is lost).
        word_counts: words of each sequence-labelling sentence.
        alone: how many sentences that were to be read within their documents have no neighbour there.
        name: "train", "dev" or "test", for what people read; "" where nobody said.
    """

    rows: list[Row]
    examples: int
    truncated: int = 0
    windowed: int = 0
    word_counts: list[int] = field(default_factory=list)
    alone: int = 0
    name: str = ""


@dataclass(frozen=True)
class Batch:
    """Padded rows as tensors.

    Attributes:
        rows: which rows of the split these are, in this order.
        pieces: (batch, pieces) int64.
        piece_mask: (batch, pieces) bool, True on real pieces.
        segments: (batch, pieces) int64, or None where the tokenizer has no token types.
        word_starts: (batch, words) int64, 0 where padded; None but for sequence labelling.
        word_mask: (batch, words) bool; None but for sequence labelling.
        labels: (batch,) int64 or float32, or (batch, words) int64 with 0 where padded; None where hidden.
        lanes: how many trials' batches lie one after another in every tensor (`batch` is then lanes × rows); 1 where
            all trials share the batch.
        states: (layers, lanes, rows, pieces, dim): the frozen encoder's states, where they are cached; None where the
            encoder has to run.
        padded: whether any row may be shorter than the longest. Known on the host: asking a GPU would make it wait.
        parts: (batch, pieces) int64: 1 on the first sentence's own pieces, 2 on the second's, 0 on special tokens and
            padding; None but for pairs.
        cuts: (batch,) int64, where the second sentence's own input begins, for pairs that are encoded separately; else
            None.
        source: what the encoder is given where that is not these rows; None where it is.
        source_places: (batch, pieces) int64, each piece's place in `source`: row · longest + position; 0 where padded.
        places, lengths: the real pieces' places in the padded rows and the rows' lengths, the shortest row first
            (`unpadding.places_of`); None and () where nothing is padded or the states are cached.
        cls_only: whether only each input's first state ([CLS]) will be read; an encoder that can then leaves the
            others out: (batch, 1, dim).
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
    source: Batch | None = None
    source_places: Tensor | None = None
    places: Tensor | None = None
    lengths: tuple[int, ...] = ()
    cls_only: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    def to(self, device: torch.device) -> Batch:
        """The same batch with every tensor on `device`."""

        def move(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device, non_blocking=True)

        return replace(
            self, pieces=self.pieces.to(device, non_blocking=True),
            piece_mask=self.piece_mask.to(device, non_blocking=True), segments=move(self.segments),
            word_starts=move(self.word_starts), word_mask=move(self.word_mask), labels=move(self.labels),
            states=move(self.states), places=move(self.places), parts=move(self.parts), cuts=move(self.cuts),
            source=None if self.source is None else self.source.to(device), source_places=move(self.source_places),
        )  # fmt: skip
