"""The interface of a pretrained encoder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from torch import Tensor, nn

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.data.tokenizer import Tokenizer
from meltpoint.adapters.layers.compact_embedding import CompactEmbedding


@dataclass(frozen=True)
class LayerGroup:
    """Parameters that are frozen, thawed and given a learning rate together."""

    name: str
    parameters: tuple[nn.Parameter, ...]


class Encoder(nn.Module, ABC):
    """A pretrained encoder: all its layers out, its parameters in layer groups, bottom → top.

    Attributes:
        dim: size of a state.
        max_pieces: the longest input, special tokens included.
        tokenizer: the tokenizer it was pretrained with.
        fingerprint: sha256 (hex, 16 characters) of the files that it was loaded from.
        revision: where the weights came from: a folder, or `ID@COMMIT`.
        family: what stands before the colon where a folder that it was saved into is named: `hf:FOLDER`.
        padding_free: whether it reads a batch without its padding (`unpadding`), so that rows of any lengths may
            share one.
    """

    family: ClassVar[str]
    padding_free: bool = False
    dim: int
    max_pieces: int
    tokenizer: Tokenizer
    fingerprint: str
    revision: str

    @abstractmethod
    def forward(self, batch: Batch) -> tuple[Tensor, ...]:
        """Every layer's states, embeddings first: a tuple of (batch, pieces, dim).

        An encoder that can do with less gives (batch, 1, dim) where `Batch.cls_only` says that the first will do.
        """

    def top(self, batch: Batch) -> Tensor:
        """The last layer's states: (batch, pieces, dim), or (batch, 1, dim) as `forward` gives them."""
        states: tuple[Tensor, ...] = self(batch)
        return states[-1]

    def read(self, batch: Batch) -> tuple[Tensor, ...]:
        """`forward`, also where the encoder is given other rows than the batch's (`Batch.source`)."""
        if batch.source is None:
            return self(batch)  # type: ignore[no-any-return]
        return tuple(_picked(states, batch) for states in self(_source(batch)))

    def read_top(self, batch: Batch) -> Tensor:
        """`top`, also where the encoder is given other rows than the batch's."""
        return self.top(batch) if batch.source is None else _picked(self.top(_source(batch)), batch)

    @property
    @abstractmethod
    def layers(self) -> int:
        """How many layers `forward` gives, the embeddings counted."""

    @abstractmethod
    def layer_groups(self) -> list[LayerGroup]:
        """Every parameter of the encoder in exactly one group, bottom → top."""

    @abstractmethod
    def set_dropout(self, ratio: float) -> None:
        """Set every dropout inside the encoder; it acts in training mode only."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write weights and tokenizer as they were released, so that `family:FOLDER` reads them back."""

    def compact_pieces(self, pieces: Iterable[int]) -> CompactEmbedding | None:
        """Train only these pieces' embeddings and let the others decay: the same training, for less.

        Args:
            pieces: every piece that training will read; evaluation may read any.

        Returns:
            the table, which must `follow` the optimiser; None where the encoder has none that can be cut down.
        """
        return None

    def in_float32(self) -> AbstractContextManager[None]:
        """A context in which the encoder is read in float32, without gradients, after `train_in_bf16`."""
        return nullcontext()

    def train_in_bf16(self) -> dict[nn.Parameter, Tensor]:
        """Keep matrices in bf16, for training under autocast on a CPU: the same numbers, for less.

        Returns:
            each one's float32 master, which the optimiser has to move; empty where the encoder's weights stay as they
            are.
        """
        return {}


def _source(batch: Batch) -> Batch:
    """What the encoder is given in the rows' place, with what is wanted of it."""
    assert batch.source is not None, "rows that are not the encoder's own input"
    return replace(batch.source, cls_only=batch.cls_only)


def _picked(states: Tensor, batch: Batch) -> Tensor:
    """The states of a batch's own pieces among those of its source: (batch, pieces, dim).

    Where the encoder gave each input's first state alone, it stands for all of that input's.
    """
    assert batch.source is not None, "rows that are not the encoder's own input"
    assert batch.source_places is not None, "a batch with a source says where its pieces lie in it"
    longest = batch.source.pieces.shape[1]
    places = batch.source_places if states.shape[1] == longest else batch.source_places // longest
    return states.flatten(0, 1)[places]
