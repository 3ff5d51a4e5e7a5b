"""ELMo as an encoder: layer 0 is the character CNN's word vector twice, the others the biLSTM layers' states."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from meltpoint.adapters.data.batch import Batch, mapped
from meltpoint.adapters.encoder import Encoder, LayerGroup
from meltpoint.adapters.families.elmo import files, layers
from meltpoint.adapters.families.elmo.files import ElmoOptions
from meltpoint.adapters.families.elmo.layers import CharacterCNN, LanguageModel
from meltpoint.adapters.layers.lstm import reversal


class ElmoEncoder(Encoder):
    """Peters et al. 2018, section 3: the bidirectional language model.

    Each sentence is read between `<S>` and `</S>`, whose states are not returned. Every sentence starts from a zero
    state; AllenNLP carries over the previous batch's state, so that its states depend on all earlier batches.

    Args:
        options: the model's sizes.
        fingerprint: sha256 (first 16 hex digits) of its files.
        revision: its folder.
    """

    family = "elmo"
    tokenizer: layers.ElmoTokenizer

    def __init__(self, options: ElmoOptions, fingerprint: str, revision: str) -> None:
        super().__init__()
        self.options = options
        self.fingerprint, self.revision = fingerprint, revision
        self.tokenizer = layers.ElmoTokenizer()
        self.max_pieces = self.tokenizer.max_pieces
        self.dim = 2 * options.lstm.projection_dim
        self.words = CharacterCNN(options.char_cnn, options.lstm.projection_dim)
        self.language_model = LanguageModel(options.lstm)
        self.layers = 1 + options.lstm.n_layers
        self.eval()

    def forward(self, batch: Batch) -> tuple[Tensor, ...]:
        """The states of every layer, the character CNN's first: a tuple of (batch, pieces, dim) in float32.

        Under autocast the character CNN runs in bf16, the LSTMs in float32.
        """
        pieces, place = torch.unique(batch.pieces[batch.piece_mask], return_inverse=True)
        spellings = [layers.BEFORE, layers.AFTER, *map(layers.spelling_of, pieces.tolist())]
        vectors = self.words(spellings).to(self.words.characters.dtype)
        order = _Order(batch.piece_mask)
        with torch.autocast(vectors.device.type, enabled=False):
            lowest = functional.embedding(order.words(place), vectors)
            inputs = functional.embedding(order.steps(place), vectors)
            read = self.language_model(inputs, order.lengths)
            return torch.cat([lowest, lowest], -1), *(order.states(layer) for layer in read)

    def layer_groups(self) -> list[LayerGroup]:
        """The layer groups: the character CNN, then each LSTM layer with both directions."""
        modules = [self.words, *self.language_model.layers]
        names = ["embeddings", *(f"layer_{number}" for number in range(1, self.layers))]
        return [LayerGroup(name, tuple(module.parameters())) for name, module in zip(names, modules, strict=True)]

    def set_dropout(self, ratio: float) -> None:
        """Set the ratio of the dropout on each LSTM layer's input; it is applied in training mode only."""
        self.language_model.dropout.p = ratio

    def save(self, folder: Path) -> None:
        """Write `options.json` and `weights.hdf5`, to be loaded as `elmo:FOLDER`."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / files.FILE).write_text(self.options.model_dump_json(indent=1) + "\n", encoding="utf-8")
        write_weights(folder / files.WEIGHTS, self.words, self.language_model)


@dataclass(frozen=True, eq=False)
class _Order:
    """The reading order of a batch: rows by length, the longest first, between `<S>` and `</S>`, in both directions.

    Attributes:
        mask: (batch, pieces) bool, True on words.
    """

    mask: Tensor

    @cached_property
    def counts(self) -> Tensor:
        """The number of words of each row: (batch,)."""
        return self.mask.sum(1)

    @cached_property
    def rows(self) -> Tensor:
        """The indices of the batch's rows, the longest first: (batch,)."""
        return self.counts.argsort(descending=True, stable=True)

    @cached_property
    def lengths(self) -> list[int]:
        """The number of steps of each row, with `<S>` and `</S>`, in the order of `rows`."""
        return list((self.counts[self.rows] + 2).tolist())

    def words(self, place: Tensor) -> Tensor:
        """The index of each piece's vector among the vectors of `<S>`, `</S>` and the distinct words: (batch, pieces).

        Args:
            place: the index of each real piece, row by row, among the distinct words.
        """
        return torch.zeros_like(self.mask, dtype=torch.int64).masked_scatter(self.mask, place + 2)

    def steps(self, place: Tensor) -> Tensor:
        """The index of the vector that each direction reads at each step: (2, steps, batch), in the order of `rows`."""
        read = functional.pad(self.words(place), (1, 1))
        read.scatter_(1, self.counts[:, None] + 1, 1)
        read = read[self.rows].T
        return torch.stack([read, read.gather(0, self._backwards[:, self.rows])])

    @cached_property
    def _backwards(self) -> Tensor:
        """The position of each step in its reversed row, with `<S>` and `</S>`; padding stays: (steps, batch)."""
        return reversal(functional.pad(self.mask, (2, 0), value=True)[None])[0]

    def states(self, layer: Tensor) -> Tensor:
        """(2, steps, batch, size) in reading order → (batch, pieces, 2 * size) in the batch's order."""
        _, steps, batch, size = layer.shape
        onward = torch.arange(steps, device=layer.device)[:, None].expand(steps, batch)
        step = torch.stack([onward, self._backwards])[:, 1:-1].permute(2, 1, 0)  # (batch, pieces, 2)
        direction = torch.arange(2, device=layer.device)
        place = (direction * steps + step) * batch + self.rows.argsort()[:, None, None]
        flat = place.flatten()
        selected = mapped(
            layer.reshape(-1, size),
            lambda rows: rows.index_select(0, flat),
            lambda gradient: gradient.new_zeros(2 * steps * batch, size).index_copy_(0, flat, gradient),
        )
        return selected.view(*self.mask.shape, 2 * size)


def load(folder: Path, fingerprint: str) -> ElmoEncoder:
    """Load an ELMo from its folder, in float32, on the CPU.

    Raises:
        ValueError: a file is missing or damaged, or a weight is missing or of a wrong shape; one line with the remedy.
    """
    read = files.read(folder / files.FILE)
    with torch.device("meta"):  # initial weights would be overwritten, and drawing them would advance the generator
        encoder = ElmoEncoder(read, fingerprint, str(folder))
    encoder.to_empty(device="cpu")
    read_weights(files.weights_file(folder), encoder.words, encoder.language_model)
    return encoder


CHARACTERS = "char_embed"
BROKEN = (OSError, RuntimeError, KeyError, TypeError, AttributeError, UnicodeDecodeError, OverflowError, MemoryError)
"""The errors that h5py raises for damaged files."""


def read_weights(path: Path, words: CharacterCNN, language_model: LanguageModel) -> None:
    """Load every parameter from a file.

    Raises:
        ValueError: it is not an HDF5 file, lacks a weight, or has a weight of another shape; one line.
    """
    try:
        with h5py.File(path, "r") as file:
            for name, place in _places(words, language_model):
                _fill(place, name, file.get(name), path)
    except BROKEN as error:
        raise ValueError(f"{path} is not a readable HDF5 file; copy it from ELMo's release again.") from error


def _fill(place: Tensor, name: str, dataset: object, path: Path) -> None:
    """Copy one HDF5 data set into a parameter."""
    if not isinstance(dataset, h5py.Dataset):
        raise ValueError(f"{path} lacks {name}, which options.json requires; use both files from one release.")
    if dataset.shape != tuple(place.shape) or dataset.dtype.kind != "f":
        raise ValueError(
            f"{path}: {name} is {dataset.shape} of {dataset.dtype}, but options.json requires numbers of "
            f"{tuple(place.shape)}; use both files from one release."
        )
    with torch.no_grad():
        place.copy_(torch.from_numpy(dataset[...].astype(np.float32, copy=False)))


def write_weights(path: Path, words: CharacterCNN, language_model: LanguageModel) -> None:
    """Write every parameter, as float32, under the released names."""
    with h5py.File(path, "w") as file:
        for name, place in _places(words, language_model):
            file.create_dataset(name, data=place.detach().float().cpu().contiguous().numpy())


def weights_without_embeddings(path: Path) -> int:
    """The number of weights that a forward pass multiplies by: all matrices except the character embeddings.

    Raises:
        ValueError: it is not an HDF5 file, or is truncated; one line.
    """
    sizes: list[int] = []

    def count(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset) and len(item.shape) > 1 and name != CHARACTERS:
            sizes.append(math.prod(item.shape))

    try:
        with h5py.File(path, "r") as file:
            file.visititems(count)
    except BROKEN as error:
        raise ValueError(f"{path} is not a readable HDF5 file; copy it from ELMo's release again.") from error
    return sum(sizes)


def _places(words: CharacterCNN, language_model: LanguageModel) -> Iterator[tuple[str, Tensor]]:
    """Yield (name in the file, view of the parameter in the file's shape) for every parameter.

    `allennlp.modules.elmo` and `elmo_lstm` read these names. Dense layers are transposed, since
    TensorFlow computes x W.
    """
    yield CHARACTERS, words.characters.detach()
    for number, filters in enumerate(words.convolutions):
        weight, bias = (filters.get_parameter(name).detach() for name in ("weight", "bias"))
        yield f"CNN/W_cnn_{number}", weight.permute(2, 1, 0)[None]  # (1, width, characters, filters)
        yield f"CNN/b_cnn_{number}", bias
    for number, highway in enumerate(words.highways):
        for gate in ("carry", "transform"):
            yield from _dense(f"CNN_high_{number}", f"_{gate}", highway.get_submodule(gate))
    yield from _dense("CNN_proj", "_proj", words.projection)
    for number, layer in enumerate(language_model.layers):
        kernel, projection = (layer.get_parameter(name).detach() for name in ("kernel", "projection"))
        for direction, bias_name in enumerate(("forward_bias", "backward_bias")):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{number}/LSTMCell"
            yield f"{cell}/W_0", kernel[direction]
            yield f"{cell}/B", layer.get_parameter(bias_name).detach()
            yield f"{cell}/W_P_0", projection[direction]


def _dense(group: str, ending: str, layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield (name in the file, view) of a dense layer's weight and bias."""
    yield f"{group}/W{ending}", layer.get_parameter("weight").detach().T
    yield f"{group}/b{ending}", layer.get_parameter("bias").detach()
