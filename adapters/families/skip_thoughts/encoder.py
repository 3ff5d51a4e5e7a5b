"""Skip-thoughts as an encoder: a text's words → GRUs → one vector per text; with its tokenizer and word tables.

The authors split a text into sentences with NLTK's punkt, and sentences into words with NLTK's Treebank tokenizer; here
both are `input_format.words_of`. Nothing is lower-cased, since the dictionary and the authors' look-up are
case-sensitive.

The published tables are pickled NumPy arrays of Python objects, one small array per word. Unpickling can run any code,
so you convert each once (docs/encoders.md) to plain float32, which is memory-mapped: all processes share one copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.data.input_format import Prompts, Span, words_of
from meltpoint.adapters.encoder import Encoder, LayerGroup
from meltpoint.adapters.families.huggingface.files import first_line
from meltpoint.adapters.families.skip_thoughts import files
from meltpoint.adapters.families.skip_thoughts.files import FAMILY, Array, Variant
from meltpoint.adapters.layers.lstm import reversal, reverse

UNKNOWN, END = "UNK", f"<{files.EOS}>"
UNBOUNDED = 100_000
"""Longest input in pieces: a GRU can read texts of any length, so only a setting's `max_pieces` limits them."""


class SkipThoughtsTokenizer:
    """A `Tokenizer` with a dictionary of whole words: a word's piece id is its line number.

    Args:
        words: the dictionary's lines; for a repeated word the last line counts, as in the authors' code.
        eos: whether `<eos>` is appended to every text.

    Raises:
        ValueError: `UNK` or `<eos>` is not among the words.
    """

    joins_pairs = False
    prompts = Prompts()
    max_pieces = UNBOUNDED

    def __init__(self, words: Sequence[str], eos: bool) -> None:
        self.words = words
        self._lines = {word: number for number, word in enumerate(words)}
        absent = [word for word in (UNKNOWN, END) if word not in self._lines]
        if absent:
            raise ValueError(f"has no {absent[0]}; download it again")
        self._unknown, self._end = self._lines[UNKNOWN], self._lines[END]
        self._tail = [self._end] if eos else []
        self.pad_piece = self._end

    def sentence(self, text: str, limit: int) -> tuple[list[int], list[int], int]:
        """(pieces, [], number of words cut) of one sentence of at most `limit` words, including `<eos>`.

        A text without words becomes `<eos>` alone, like an empty sentence in training; the authors' code cannot encode
        it.
        """
        lines = [self._lines.get(word, self._unknown) for word in words_of(text)]
        room = limit - len(self._tail)
        return lines[:room] + self._tail or [self._end], [], max(0, len(lines) - room)

    def pair(self, first: str, second: str, limit: int) -> tuple[list[int], list[int], tuple[Span, Span], int]:
        """Never called: `joins_pairs` is false, so the sentences of a pair are encoded separately."""
        raise AssertionError("Skip-thoughts read one sentence at a time")

    def word(self, word: str) -> list[int]:
        """The line number of one word."""
        return [self._lines.get(word, self._unknown)]

    def frame(self, pieces: Sequence[int]) -> tuple[list[int], list[int], int]:
        """(the pieces, followed by `<eos>` if the variant has it, [], 0)."""
        return [*pieces, *self._tail], [], 0


def read_table(path: Path) -> Array:
    """Memory-map a table, copy-on-write: (words, dim).

    Raises:
        ValueError: the file is not a plain table of word vectors; one line with the remedy.
    """
    try:
        table: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(
            f"{path} is not a plain table of word vectors ({first_line(error)}); docs/encoders.md has the line that "
            "converts a published table."
        ) from error
    if table.ndim != 2 or table.dtype.kind != "f":
        raise ValueError(
            f"{path} holds {table.dtype} of shape {table.shape}, not one vector per word; download it again."
        )
    return table.astype(np.float32, copy=False)


def read_words(path: Path) -> list[str]:
    """Read the words of `dictionary.txt`, one per line, stripped of white space as in the authors' code.

    Lines end at line feeds only, as in the authors' Python 2; `str.splitlines` would also split at other separators.

    Raises:
        ValueError: the file is not UTF-8.
    """
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8; download it again.") from error
    return [line.strip() for line in (lines if lines[-1] else lines[:-1])]


class WordTable:
    """Fixed word vectors on the CPU; not a submodule, so they are neither copied nor moved with the encoder.

    Both published tables have 930 000 words × 620, 2.3 GB each. All but 20 000 words' vectors were obtained by
    regression on word2vec (Kiros et al. 2015, section 2.2), so training some of them would make them inconsistent with
    the others.

    Args:
        vectors: (words, dim) float32; may be memory-mapped.
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
"""A direction's parameters in the order of `torch.gru`, with shapes (3 · units, dim), (3 · units, units), (3 · units);
the gates are r, u and the candidate."""


class DirectionGRU(nn.Module):
    """The GRU of one direction: Kiros et al. 2015, equations 1–4, as in the authors' function `gru_layer`.

    r = σ(W_r x + U_r h + b_r), u = σ(W_u x + U_u h + b_u), c = tanh(W x + r ∗ (U h) + b), h' = u ∗ h + (1 − u) ∗ c.
    The paper has U (r ∗ h), and u and 1 − u swapped; the published weights were trained with the code. torch's GRU
    equals the code if its second bias, which is multiplied by r, is 0, so that bias is a constant.

    Args:
        arrays: the concatenated gates r and u, and the candidate, from `files.read_directions`.
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
            (batch, units).
        """
        weights = [self.get_parameter(name) for name in _STACKED]
        start = vectors.new_zeros(1, vectors.shape[1], weights[1].shape[1])
        states, _ = torch.gru(vectors, start, [*weights, self.no_bias], True, 1, 0.0, self.training, False, False)
        return states[lengths - 1, torch.arange(len(lengths), device=lengths.device)]

    def published(self) -> dict[str, Array]:
        """The current weights as arrays in the published format."""
        into, recurrent, bias = (self.get_parameter(name).detach().cpu().numpy() for name in _STACKED)
        gates = 2 * len(bias) // 3
        return {
            "W": into[:gates].T, "Wx": into[gates:].T, "U": recurrent[:gates].T, "Ux": recurrent[gates:].T,
            "b": bias[:gates], "bx": bias[gates:],
        }  # fmt: skip


class SkipThoughtsModel(nn.Module):
    """One published model: uni-skip reads left to right; bi-skip reads both ways and concatenates the two states."""

    def __init__(self, directions: list[dict[str, Array]], table: WordTable) -> None:
        super().__init__()
        self.directions = nn.ModuleList(DirectionGRU(arrays) for arrays in directions)
        self.table = table
        self.dim = sum(len(arrays["bx"]) for arrays in directions)

    def forward(self, pieces: Tensor, mask: Tensor) -> Tensor:
        """(batch, pieces) line numbers of the dictionary, and their mask → (batch, dim) vectors of norm 1."""
        lengths, vectors = mask.sum(1), self.table.read(pieces).transpose(0, 1)[None]
        orders = (vectors, reverse(vectors, reversal(mask[None])))
        read = [units(order[0], lengths) for units, order in zip(self.directions, orders, strict=False)]
        return functional.normalize(torch.cat(read, 1), dim=1)

    def published(self, prefixes: Sequence[str]) -> dict[str, Array]:
        """The current weights of every direction under their published names."""
        units = [direction for direction in self.directions if isinstance(direction, DirectionGRU)]
        return {
            f"{prefix}_{name}": array
            for prefix, direction in zip(prefixes, units, strict=True)
            for name, array in direction.published().items()
        }


class SkipThoughtsEncoder(Encoder):
    """One vector per text, returned as the state of its first position; the states of other positions are 0.

    Heads that read first pieces get the vector, and a cache stores only first pieces. Each model's vector is scaled to
    norm 1, as in the authors' `encode` (`use_norm`). Vectors are computed in float32 even under bf16 autocast, since
    rounding errors would accumulate over the recurrence.

    Args:
        models: name → model, in the order of their vectors.
        tokenizer: a tokenizer with the dictionary of the models' tables.
        variant: the published vectors to compute.
        fingerprint: sha256 (first 16 hex digits) of the files and the variant.
        revision: the folder, with the variant.
    """

    family = FAMILY
    layers = 1
    tokenizer: SkipThoughtsTokenizer

    def __init__(
        self, models: Mapping[str, SkipThoughtsModel], tokenizer: SkipThoughtsTokenizer, variant: Variant,
        fingerprint: str, revision: str,
    ) -> None:  # fmt: skip
        super().__init__()
        self.variant = variant
        self.models = nn.ModuleDict(models)
        self.dim = sum(model.dim for model in models.values())
        self.tokenizer, self.max_pieces = tokenizer, tokenizer.max_pieces
        self.fingerprint, self.revision = fingerprint, revision
        self.eval()

    def forward(self, batch: Batch) -> tuple[Tensor]:
        """The single layer: (batch, pieces, dim), with the text's vector at position 0 and zeros elsewhere."""
        with torch.autocast(batch.pieces.device.type, enabled=False):
            vectors = torch.cat([model(batch.pieces, batch.piece_mask) for model in self.models.values()], 1)
        return (functional.pad(vectors[:, None], (0, 0, 0, batch.pieces.shape[1] - 1)),)

    def layer_groups(self) -> list[LayerGroup]:
        """One group of all GRUs' weights, since the models are not stacked; the word vectors are never trained."""
        return [LayerGroup("units", tuple(self.parameters()))]

    def save(self, folder: Path) -> None:
        """Write all files in the published format, tables as plain arrays, to be loaded as `skipthoughts:FOLDER`."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, model in self.models.items():
            assert isinstance(model, SkipThoughtsModel)
            np.savez(folder / files.PARAMETERS[name], **model.published(files.DIRECTIONS[name]))  # type: ignore[arg-type]
            np.save(folder / files.TABLES[name], model.table.vectors.numpy())
        (folder / files.DICTIONARY).write_bytes("".join(f"{word}\n" for word in self.tokenizer.words).encode())
        (folder / files.FILE).write_text(f"{self.variant}\n", encoding="utf-8")

    def set_dropout(self, ratio: float) -> None:
        """Do nothing: the published encoders have no dropout."""


def load(folder: Path, variant: Variant, fingerprint: str) -> SkipThoughtsEncoder:
    """Load a variant from its files.

    Raises:
        ValueError: a file is damaged, of another format, or does not fit the others; one line with the remedy.
    """
    words = read_words(folder / files.DICTIONARY)
    try:
        tokenizer = SkipThoughtsTokenizer(words, variant.eos)
    except ValueError as error:
        raise ValueError(f"{folder / files.DICTIONARY} {error}.") from error
    models = {name: _model(folder, name, len(words)) for name in variant.models}
    return SkipThoughtsEncoder(models, tokenizer, variant, fingerprint, f"{folder}#{variant}")


def _model(folder: Path, name: str, words: int) -> SkipThoughtsModel:
    """Load one model and its table, and check that they fit each other."""
    directions, path = files.read_directions(folder, name), folder / files.TABLES[name]
    table = WordTable(read_table(path))
    wanted = len(directions[0]["Wx"])
    if table.dim != wanted:
        raise ValueError(f"{path} has vectors of {table.dim}, but its model reads {wanted}; download both again.")
    if table.words < words:
        raise ValueError(
            f"{path} has {table.words} vectors for {words} words of {files.DICTIONARY}; download both again."
        )
    return SkipThoughtsModel(directions, table)
