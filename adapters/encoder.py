"""The interface of a pretrained encoder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from torch import Tensor, nn

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.data.input_format import SentencePooling, Tokenizer
from meltpoint.adapters.head import FamilyHead
from meltpoint.adapters.layers.compact_embedding import CompactEmbedding


@dataclass(frozen=True)
class LayerGroup:
    """Parameters that share a learning rate and are frozen and unfrozen together."""

    name: str
    parameters: tuple[nn.Parameter, ...]


class Encoder(nn.Module, ABC):
    """A pretrained encoder that returns the states of all its layers and divides its parameters into layer groups.

    Attributes:
        dim: size of a hidden state.
        layers: number of layers that `forward` returns, including the embeddings.
        max_pieces: the longest input, special tokens included.
        tokenizer: the tokenizer that it was pretrained with.
        fingerprint: sha256 (first 16 hex digits) of the files that it was loaded from.
        revision: the origin of the weights: a folder, or `ID@COMMIT`.
        family: the prefix that names its saved folder: "hf" in `hf:FOLDER`.
        padding_free: whether it skips the padding of a batch (`batch.Unpadded`), so that rows of different lengths in
            one batch cost nothing.
        static: whether a GPU may record it as a CUDA graph: it reads a wider padding with the same result, and its
            forward pass does not depend on numbers that the host reads from the device.
        supports_checkpointing: whether it can recompute its activations in the backward pass instead of keeping them.
        checkpoints: whether it does so now.
        native: the classification head that its family puts on it; None if there is none.
        pooling: the pooling that turns its states into a sentence vector, if it was trained with one.
    """

    family: ClassVar[str]
    padding_free: bool = False
    static: bool = False
    supports_checkpointing: bool = False
    checkpoints: bool = False
    native: FamilyHead | None = None
    pooling: SentencePooling | None = None
    dim: int
    layers: int
    max_pieces: int
    tokenizer: Tokenizer
    fingerprint: str
    revision: str

    @abstractmethod
    def forward(self, batch: Batch) -> tuple[Tensor, ...]:
        """The hidden states of every layer, embeddings first: a tuple of (batch, pieces, dim).

        With `Batch.cls_only`, an encoder may return the first state of each row only: (batch, 1, dim).
        """

    def top(self, batch: Batch) -> Tensor:
        """The last layer's states: (batch, pieces, dim), or (batch, 1, dim) as in `forward`."""
        states: tuple[Tensor, ...] = self(batch)
        return states[-1]

    def read(self, batch: Batch) -> tuple[Tensor, ...]:
        """Like `forward`, but also for batches whose encoder inputs differ from their rows (`Batch.source`)."""
        if batch.source is None:
            return self(batch)  # type: ignore[no-any-return]
        return tuple(_picked(states, batch) for states in self(_source(batch)))

    def read_top(self, batch: Batch) -> Tensor:
        """Like `top`, but also for batches whose encoder inputs differ from their rows (`Batch.source`)."""
        return self.top(batch) if batch.source is None else _picked(self.top(_source(batch)), batch)

    @abstractmethod
    def layer_groups(self) -> list[LayerGroup]:
        """The layer groups, bottom → top; every parameter of the encoder is in exactly one."""

    @abstractmethod
    def set_dropout(self, ratio: float) -> None:
        """Set the ratio of every dropout layer of the encoder; dropout is applied in training mode only."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write weights and tokenizer in the family's released format, to be loaded as `family:FOLDER`."""

    def add_lora(self, rank: int, alpha: int) -> None:
        """Add LoRA's matrices to all linear layers, and freeze the encoder's own weights (Hu et al. 2022, section 4).

        Args:
            rank: the number of columns of each matrix.
            alpha: the product of two matrices is multiplied by alpha / rank.

        Raises:
            ValueError: the family does not support it.
        """
        raise ValueError(f"{self.revision} is not a transformers encoder, which lora needs; use norm_bias or top_k.")

    def join_lora(self, others: Sequence[Encoder]) -> None:
        """Hold the LoRA matrices of several trials side by side (`layers.side_by_side`): its own, and those of others.

        From then on, a batch holds the trials' rows one after another.

        Args:
            others: copies that share all other weights with this encoder.

        Raises:
            ValueError: the family does not keep the rows of a batch apart.
        """
        raise ValueError(f"{self.revision} has no LoRA matrices.")

    def save_lora(self, folder: Path) -> None:
        """Write LoRA's matrices in the format of `peft`, for `PeftModel.from_pretrained`; nothing without them."""

    def checkpoint(self) -> None:
        """Recompute activations in the backward pass from now on, with the same numbers (Chen et al. 2016)."""
        raise NotImplementedError

    def freeze_below(self, layer: int) -> bool:
        """Keep a layer and those below it in evaluation mode, also while the others train.

        Returns:
            Whether the family supports it, and `top_from` this layer.
        """
        return False

    def top_from(self, batch: Batch, states: Tensor, layer: int) -> Tensor:
        """`top`, computed from a lower layer's states, (batch, pieces, dim)."""
        raise NotImplementedError

    def compact_pieces(self, pieces: Iterable[int]) -> CompactEmbedding | None:
        """Restrict the trained embedding table to the pieces of the training data; other rows only decay.

        The result is the same as with the whole table, at lower cost.

        Args:
            pieces: every piece of the training data; evaluation may use any.

        Returns:
            the compact table, whose `decay` each step lowers; None if the encoder does not support it.
        """
        return None


def _source(batch: Batch) -> Batch:
    """The batch of the encoder's inputs, with the `cls_only` of the rows' batch."""
    assert batch.source is not None, "the encoder's inputs differ from the rows"
    return replace(batch.source, cls_only=batch.cls_only)


def _picked(states: Tensor, batch: Batch) -> Tensor:
    """The states of the rows' pieces, selected from the states of `source`: (batch, pieces, dim).

    If the encoder returned only each input's first state, all pieces of that input get it.
    """
    assert batch.source is not None, "the encoder's inputs differ from the rows"
    assert batch.source_places is not None, "a batch with a source has its pieces' indices in the source"
    longest = batch.source.pieces.shape[1]
    places = batch.source_places if states.shape[1] == longest else batch.source_places // longest
    return states.flatten(0, 1)[places]
