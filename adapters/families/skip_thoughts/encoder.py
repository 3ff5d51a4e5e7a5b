"""The encoders of Skip-thoughts as one of Meltpoint's: a text's words → GRUs → one vector a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.encoder import Encoder, LayerGroup
from meltpoint.adapters.families.skip_thoughts import tables
from meltpoint.adapters.families.skip_thoughts.files import (
    DICTIONARY,
    DIRECTIONS,
    PARAMETERS,
    TABLES,
    Array,
    read_directions,
)
from meltpoint.adapters.families.skip_thoughts.tokenizer import WordTokenizer
from meltpoint.adapters.families.skip_thoughts.variant import FAMILY, FILE, Variant
from meltpoint.adapters.layers.lstm import reversal, reverse


class WordTable:
    """Word vectors on the CPU, beside the module and not in it: fixed, and never copied with it or put on a GPU.

    Both published tables have 930 000 words in 620 numbers, 2.3 GB each. They come from regression on word2vec for all
    but 20 000 words (Kiros et al. 2015, section 2.2), so that training some of them would tear them from the others.

    Args:
        vectors: (words, dim) float32; may be mapped from a file.
    """

    def __init__(self, vectors: Array) -> None:
        self.vectors = torch.from_numpy(vectors)
        self.words, self.dim = vectors.shape

    def __deepcopy__(self, memo: dict[int, Any]) -> WordTable:
        return self

    def read(self, lines: Tensor) -> Tensor:
        """(…) int64 → (…, dim) float32, on the lines' device."""
        return functional.embedding(lines.cpu(), self.vectors).to(lines.device)


_STACKED = ("into", "recurrent", "bias")
"""A direction's parameters, in torch's order: (3 · units, dim), (3 · units, units), (3 · units): r, u, candidate."""


class GatedUnits(nn.Module):
    """One direction: Kiros et al. 2015, equations 1–4, as the authors' `gru_layer` computes them.

    r = σ(W_r x + U_r h + b_r), u = σ(W_u x + U_u h + b_u), c = tanh(W x + r ∗ (U h) + b), h' = u ∗ h + (1 − u) ∗ c.
    The paper writes U (r ∗ h), and u and 1 − u the other way around; the published weights were trained by the code.
    torch's GRU is the code's where its second bias is 0, which it stays: r would multiply it.

    Args:
        arrays: of `files.read_directions`: the gates r and u side by side, and the candidate's.
    """

    no_bias: Tensor

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        super().__init__()
        stacked = {
            "into": np.concatenate([arrays["W"], arrays["Wx"]], 1).T,
            "recurrent": np.concatenate([arrays["U"], arrays["Ux"]], 1).T,
            "bias": np.concatenate([arrays["b"], arrays["bx"]]),
        }
        for name, array in stacked.items():
            self.register_parameter(name, nn.Parameter(torch.from_numpy(np.ascontiguousarray(array))))
        self.register_buffer("no_bias", torch.zeros(len(stacked["bias"])), persistent=False)

    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """The state after each row's last word.

        Args:
            vectors: (words, batch, dim), in reading order, padding last.
            lengths: (batch,) int64, at least 1.

        Returns:
            (batch, units)
        """
        weights = [self.get_parameter(name) for name in _STACKED]
        start = vectors.new_zeros(1, vectors.shape[1], weights[1].shape[1])
        states, _ = torch.gru(vectors, start, [*weights, self.no_bias], True, 1, 0.0, self.training, False, False)
        return states[lengths - 1, torch.arange(len(lengths), device=lengths.device)]

    def published(self) -> dict[str, Array]:
        """The arrays that it was made of, as they are now."""
        into, recurrent, bias = (self.get_parameter(name).detach().cpu().numpy() for name in _STACKED)
        gates = 2 * len(bias) // 3
        return {
            "W": into[:gates].T, "Wx": into[gates:].T, "U": recurrent[:gates].T, "Ux": recurrent[gates:].T,
            "b": bias[:gates], "bx": bias[gates:],
        }  # fmt: skip


class SkipThoughtsModel(nn.Module):
    """One published model: uni-skip reads left to right, bi-skip both ways, its vector two states side by side."""

    def __init__(self, directions: list[dict[str, Array]], table: WordTable) -> None:
        super().__init__()
        self.directions = nn.ModuleList(GatedUnits(arrays) for arrays in directions)
        self.table = table
        self.dim = sum(len(arrays["bx"]) for arrays in directions)

    def forward(self, pieces: Tensor, mask: Tensor) -> Tensor:
        """(batch, pieces) lines of the dictionary and what of them is real → (batch, dim) of length 1."""
        lengths, vectors = mask.sum(1), self.table.read(pieces).transpose(0, 1)[None]
        orders = (vectors, reverse(vectors, reversal(mask[None])))
        read = [units(order[0], lengths) for units, order in zip(self.directions, orders, strict=False)]
        return functional.normalize(torch.cat(read, 1), dim=1)

    def published(self, prefixes: Sequence[str]) -> dict[str, Array]:
        """The arrays of every direction by their published names."""
        units = [own for own in self.directions if isinstance(own, GatedUnits)]
        return {
            f"{prefix}_{name}": array
            for prefix, own in zip(prefixes, units, strict=True)
            for name, array in own.published().items()
        }


class SkipThoughtsEncoder(Encoder):
    """One vector a text, at its first position; the other positions are 0.

    Heads that read first pieces find it there, and those are all that a cache then keeps; 0 elsewhere, so that nothing
    is taken for a state of a word. Each model's vector is scaled to length 1, as by the authors' `encode` (`use_norm`).
    They are computed in float32 also where the rest is bf16: the recurrence would add up its rounding.

    Args:
        models: in the order of their vectors.
        tokenizer: over the dictionary of the models' tables.
        variant: which vectors these are.
        fingerprint: sha256 (hex, 16 characters) of the files.
        revision: the folder, and which of its vectors these are.
    """

    family = FAMILY
    tokenizer: WordTokenizer

    def __init__(
        self, models: Mapping[str, SkipThoughtsModel], tokenizer: WordTokenizer, variant: Variant, fingerprint: str,
        revision: str,
    ) -> None:  # fmt: skip
        super().__init__()
        self.variant = variant
        self.models = nn.ModuleDict(models)
        self.dim = sum(model.dim for model in models.values())
        self.tokenizer, self.max_pieces = tokenizer, tokenizer.max_pieces
        self.fingerprint, self.revision = fingerprint, revision
        self.eval()

    def forward(self, batch: Batch) -> tuple[Tensor]:
        """The one layer: (batch, pieces, dim), the text's vector at position 0, zeros behind it."""
        with torch.autocast(batch.pieces.device.type, enabled=False):
            vectors = torch.cat([model(batch.pieces, batch.piece_mask) for model in self.models.values()], 1)
        return (functional.pad(vectors[:, None], (0, 0, 0, batch.pieces.shape[1] - 1)),)

    @property
    def layers(self) -> int:
        """One."""
        return 1

    def layer_groups(self) -> list[LayerGroup]:
        """All recurrent weights together: the models lie beside each other. The word vectors are never trained."""
        return [LayerGroup("units", tuple(self.parameters()))]

    def save(self, folder: Path) -> None:
        """Write everything in the published layout, tables as plain arrays, so that `skipthoughts:FOLDER` reads it."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, model in self.models.items():
            assert isinstance(model, SkipThoughtsModel)
            np.savez(folder / PARAMETERS[name], **model.published(DIRECTIONS[name]))  # type: ignore[arg-type]
            np.save(folder / TABLES[name], model.table.vectors.numpy())
        (folder / DICTIONARY).write_bytes("".join(f"{word}\n" for word in self.tokenizer.words).encode())
        (folder / FILE).write_text(f"{self.variant}\n", encoding="utf-8")

    def set_dropout(self, ratio: float) -> None:
        """Nothing: the published encoders have no dropout."""


def load(folder: Path, variant: Variant, fingerprint: str) -> SkipThoughtsEncoder:
    """Read a variant's files.

    Raises:
        ValueError: a file that is not what it should be, or that does not fit the others; one line with the remedy.
    """
    words = tables.read_words(folder / DICTIONARY)
    try:
        tokenizer = WordTokenizer(words, variant.eos)
    except ValueError as error:
        raise ValueError(f"{folder / DICTIONARY} {error}.") from error
    models = {name: _model(folder, name, len(words)) for name in variant.models}
    return SkipThoughtsEncoder(models, tokenizer, variant, fingerprint, f"{folder}#{variant}")


def _model(folder: Path, name: str, words: int) -> SkipThoughtsModel:
    """One model and its table, which fit each other."""
    directions, path = read_directions(folder, name), folder / TABLES[name]
    table = WordTable(tables.read_table(path))
    wanted = len(directions[0]["Wx"])
    if table.dim != wanted:
        raise ValueError(f"{path} has vectors of {table.dim}, its model reads {wanted}; download both again.")
    if table.words < words:
        raise ValueError(f"{path} has {table.words} vectors for {words} words of {DICTIONARY}; download both again.")
    return SkipThoughtsModel(directions, table)
